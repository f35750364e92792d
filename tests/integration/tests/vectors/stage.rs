//! A fleet with one provider, and the means to bring about what a vector gives and to see what it expects.
//!
//! A vector's own event comes from a client, over HTTP, with the upstream answering as the vector says. What it gives
//! is history: attempts that this stage decided like a data plane and reports as having ended in the past, which is how
//! minutes pass without waiting. All numbers are those of the guide; no setting is made smaller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use secrecy::SecretString;
use tidegate_core::ids::{ProviderId, Shard};
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, chat};
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::admin::v1::{
    BreakerStatus, ConnectionStatus, ExplainRequest, GetStatusRequest, ListBreakersRequest,
    ListConnectionsRequest, ListLockoutsRequest, ListTransitionsRequest, Lockout, ResetRequest,
    ResetScope, Transition,
};
use tidegate_proto::common::v1::{self as common, outcome::Kind};
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_proto::report::v1::{AttemptReport, NumberedReport, ReportRequest};
use tidegate_proto::routing::v1::decide_response::Step;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{
    AbandonRequest, DecideRequest, DecideResponse, Protocol, RequestFacts,
};
use tidegate_test_support::upstream::{FakeUpstream, Mode};
use tidegate_test_support::{ADMIN_TOKEN, DATA_PLANE_TOKEN, Fleet, FleetOptions};

use super::setting::SIDE;
pub(crate) use super::setting::Setting;

/// Incarnation of the data plane that the stage plays towards the first replica; towards the next it is another one,
/// since reports of one data plane are ordered, and so cannot race.
const PLANE: u64 = 0x5eed_57a6;
/// One replica, spoken to directly.
#[derive(Clone, Debug)]
struct Replica {
    admin: AdminServiceClient<PlaneChannel>,
    routing: RoutingServiceClient<PlaneChannel>,
    reports: ReportServiceClient<PlaneChannel>,
    /// Incarnation of the data plane that reports here.
    plane: u64,
    /// Number of its last report.
    numbered: Arc<AtomicU64>,
}

/// See the module's own text.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) fleet: Fleet,
    pub(crate) upstream: FakeUpstream,
    pub(crate) setting: Setting,
    replicas: Vec<Replica>,
    attempts: AtomicU64,
}

impl Stage {
    pub(crate) async fn start(setting: Setting) -> Result<Self> {
        // The vectors are about what is decided, not about who answers in time on a busy machine: past its limit a
        // replica decides without the store, and a data plane without the replica.
        let limits = [
            ("TIDEGATE_DECIDE_LIMIT", "8s"),
            ("TIDEGATE_DECISION_LIMIT", "7s"),
            ("TIDEGATE_DECISION_STORE_LIMIT", "3s"),
        ];
        let fleet = Fleet::start_with(FleetOptions {
            env: limits
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            ..FleetOptions::default()
        })
        .await?;
        let mut replicas = Vec::new();
        for replica in &fleet.control_planes {
            let address = Address::Tcp(format!("http://{}", replica.grpc).parse()?);
            let connect = |token: &str| {
                let token = SecretString::from(token);
                channel(&address, &ChannelSettings::default(), None, Some(&token))
            };
            let plane = connect(DATA_PLANE_TOKEN)?;
            replicas.push(Replica {
                admin: AdminServiceClient::new(connect(ADMIN_TOKEN)?),
                routing: RoutingServiceClient::new(plane.clone()),
                reports: ReportServiceClient::new(plane),
                plane: PLANE + u64::try_from(replicas.len())?,
                numbered: Arc::default(),
            });
        }
        for name in setting.names().chain([SIDE.to_owned()]) {
            fleet.write_secret(&format!("{name}.key"), &format!("sk-{name}"))?;
        }
        fleet.write_secret("client.key", CLIENT_KEY)?;
        let stage = Self {
            fleet,
            upstream: FakeUpstream::start().await?,
            setting,
            replicas,
            attempts: AtomicU64::new(0),
        };
        stage.apply().await?;
        Ok(stage)
    }

    /// Puts the setting, as it now is, in force everywhere.
    pub(crate) async fn apply(&self) -> Result<()> {
        let document = self.setting.document(&self.upstream.base_url());
        self.fleet.apply(&document.to_string()).await?;
        Ok(())
    }

    /// From now on the connections cool.
    pub(crate) async fn let_cool(&mut self) -> Result<()> {
        self.setting.connections.fill(false);
        self.apply().await
    }

    // === What a client does ===

    /// A request for the provider's model through the first data plane, with the upstream answering like this.
    pub(crate) async fn request(&self, answer: Mode) -> Result<Answer> {
        self.request_at(0, &format!("{}/m", self.setting.provider), answer)
            .await
    }

    /// A request of a combo whose steps are the connections in turn.
    pub(crate) async fn combo_request(&self, answer: Mode) -> Result<Answer> {
        self.request_at(0, "combo", answer).await
    }

    pub(crate) async fn request_at(
        &self,
        plane: usize,
        model: &str,
        answer: Mode,
    ) -> Result<Answer> {
        self.upstream.set_default(answer);
        let plane = self
            .fleet
            .data_planes
            .get(plane)
            .context("no such data plane")?;
        chat(plane.http, model).await
    }

    // === What the stage does as a data plane ===

    /// The time of the store, as a replica tells it, in ms.
    pub(crate) async fn now(&self) -> Result<u64> {
        let mut admin = self.replica(0)?.admin.clone();
        let status = admin.get_status(GetStatusRequest {}).await?.into_inner();
        let freshness = status.freshness.context("a status tells its freshness")?;
        Ok(freshness.store_time_unix_ms)
    }

    /// Asks one replica where an attempt may go.
    pub(crate) async fn decide(&self, replica: usize, model: &str) -> Result<DecideResponse> {
        let request = DecideRequest {
            attempt: Some(self.new_id()),
            facts: Some(RequestFacts {
                key_id: "client".to_owned(),
                model: model.to_owned(),
                protocol: Protocol::Openai.into(),
                ..RequestFacts::default()
            }),
            ..DecideRequest::default()
        };
        let mut routing = self.replica(replica)?.routing.clone();
        Ok(routing.decide(request).await?.into_inner())
    }

    /// An attempt on a connection, decided now on what the first replica sees.
    pub(crate) async fn attempt(&self, connection: &str) -> Result<common::Attempt> {
        let side = format!("{}/{SIDE}", self.setting.provider);
        let attempt = dispatched(&self.decide(0, &side).await?)?;
        Ok(common::Attempt {
            connection: connection.to_owned(),
            model: "m".to_owned(),
            ..attempt
        })
    }

    /// Reports the end of an attempt to a replica and waits until it is applied.
    pub(crate) async fn report(&self, replica: usize, end: End) -> Result<()> {
        let shard = Shard::of_provider(&ProviderId::new(self.setting.provider)?);
        let replica = self.replica(replica)?;
        let number = replica.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender
            .send(ReportRequest {
                plane: replica.plane,
                shard: u32::from(shard.number()),
                reports: vec![NumberedReport {
                    number,
                    report: Some(end.0),
                }],
            })
            .await?;
        let mut answers = replica
            .reports
            .clone()
            .report(tokio_stream::wrappers::ReceiverStream::new(receiver))
            .await?
            .into_inner();
        loop {
            let answer = tokio::time::timeout(LIMIT, answers.message())
                .await??
                .context("the stream ended")?;
            if answer.acknowledged >= number {
                drop(sender);
                return Ok(());
            }
        }
    }

    /// Failures of `c1` with this status, each decided after the one before, the last one `age_ms` ago and
    /// `apart_ms` between two.
    pub(crate) async fn failures(
        &self,
        number: u64,
        status: u32,
        age_ms: u64,
        apart_ms: u64,
    ) -> Result<()> {
        let now = self.now().await?;
        for left in (0..number).rev() {
            let attempt = self.attempt("c1").await?;
            let at = now - age_ms - left * apart_ms;
            self.report(0, End::status(attempt, status).at(at)).await?;
        }
        Ok(())
    }

    /// Takes the breaker to so many counted failures, the last one `age_ms` ago, outside of any de-duplication.
    pub(crate) async fn count(&self, failures: u64, age_ms: u64) -> Result<()> {
        self.failures(failures, 503, age_ms, 6_000).await
    }

    /// Takes `c1` to this level of the ladder, while it does not cool, by failures that no breaker counts.
    pub(crate) async fn level(&self, level: u64) -> Result<()> {
        self.failures(level, 429, 10_000, 6_000).await
    }

    // === What people see ===

    pub(crate) async fn breaker(&self, replica: usize) -> Result<BreakerStatus> {
        let mut admin = self.replica(replica)?.admin.clone();
        let listed = admin
            .list_breakers(ListBreakersRequest::default())
            .await?
            .into_inner();
        listed
            .breakers
            .into_iter()
            .find(|breaker| breaker.provider == self.setting.provider)
            .context("the provider has no breaker")
    }

    pub(crate) async fn connection(
        &self,
        replica: usize,
        connection: &str,
    ) -> Result<ConnectionStatus> {
        let mut admin = self.replica(replica)?.admin.clone();
        let listed = admin
            .list_connections(ListConnectionsRequest::default())
            .await?
            .into_inner();
        listed
            .connections
            .into_iter()
            .find(|listed| listed.id == connection)
            .with_context(|| format!("no connection {connection}"))
    }

    /// The end of what excludes a connection for this reason, if it is excluded for it.
    pub(crate) async fn excluded_until(
        &self,
        replica: usize,
        connection: &str,
        reason: &str,
    ) -> Result<Option<u64>> {
        let mut admin = self.replica(replica)?.admin.clone();
        let explained = admin
            .explain(ExplainRequest {
                model: format!("{}/m", self.setting.provider),
                ..ExplainRequest::default()
            })
            .await?
            .into_inner();
        let target = explained
            .targets
            .into_iter()
            .find(|target| target.connection == connection)
            .with_context(|| format!("{connection} is not explained"))?;
        Ok(target
            .exclusions
            .iter()
            .find(|exclusion| exclusion.reason == reason)
            .and_then(|exclusion| exclusion.until_unix_ms))
    }

    pub(crate) async fn locks(&self, replica: usize, connection: &str) -> Result<Vec<Lockout>> {
        let mut admin = self.replica(replica)?.admin.clone();
        let listed = admin
            .list_lockouts(ListLockoutsRequest::default())
            .await?
            .into_inner();
        let mut locks = listed.lockouts;
        locks.retain(|lock| lock.connection == connection);
        Ok(locks)
    }

    pub(crate) async fn transitions(&self) -> Result<Vec<Transition>> {
        let mut admin = self.replica(0)?.admin.clone();
        let request = ListTransitionsRequest {
            provider: self.setting.provider.to_owned(),
            limit: 1_000,
            ..ListTransitionsRequest::default()
        };
        Ok(admin
            .list_transitions(request)
            .await?
            .into_inner()
            .transitions)
    }

    /// Waits until every replica shows the breaker in this state with this count, and returns it.
    pub(crate) async fn expect_breaker(&self, state: &str, failures: u32) -> Result<BreakerStatus> {
        self.everywhere(
            &format!("{state} at {failures} failures"),
            async |replica| self.breaker(replica).await,
            |breaker| breaker.state == state && breaker.failure_count == failures,
        )
        .await
    }

    /// Waits until every replica shows a connection as `wanted` says, and returns it.
    pub(crate) async fn expect_connection(
        &self,
        connection: &str,
        what: &str,
        wanted: impl Fn(&ConnectionStatus) -> bool,
    ) -> Result<ConnectionStatus> {
        self.everywhere(
            what,
            async |replica| self.connection(replica, connection).await,
            wanted,
        )
        .await
    }

    /// Waits until every replica shows exactly one lock on a connection, with this count, and returns it.
    pub(crate) async fn expect_lock(&self, connection: &str, failures: u32) -> Result<Lockout> {
        let locks = self
            .everywhere(
                &format!("a lock with {failures} failures"),
                async |replica| self.locks(replica, connection).await,
                |locks| matches!(locks.as_slice(), [lock] if lock.failure_count == failures),
            )
            .await?;
        locks.into_iter().next().context("there is no lock")
    }

    /// Waits until everything that the first data plane has reported is applied, whether it shows or not: reports
    /// of one shard are applied in their order, so one that shows comes after all of them.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.settle_at(0).await
    }

    /// The same for any data plane.
    pub(crate) async fn settle_at(&self, plane: usize) -> Result<()> {
        let model = format!("{}/{SIDE}", self.setting.provider);
        // Another status each time, so that the last one is told from those before.
        let status = 451 + u16::try_from(plane)?;
        self.request_at(plane, &model, Mode::status(status)).await?;
        self.expect_connection(SIDE, "the last report is applied", |side| {
            side.last_error_status == Some(status.into())
        })
        .await?;
        self.reset(ResetScope::Cooldowns, SIDE).await
    }

    /// An operator's reset of the breaker.
    pub(crate) async fn reset_breaker(&self) -> Result<()> {
        self.reset(ResetScope::Breakers, "").await
    }

    async fn reset(&self, scope: ResetScope, connection: &str) -> Result<()> {
        let mut admin = self.replica(0)?.admin.clone();
        let request = ResetRequest {
            scope: scope.into(),
            provider: self.setting.provider.to_owned(),
            connection: connection.to_owned(),
            model: String::new(),
        };
        admin.reset(request).await?;
        Ok(())
    }

    /// Gives back what an attempt was granted.
    pub(crate) async fn abandon(&self, replica: usize, attempt: &common::Attempt) -> Result<()> {
        let request = AbandonRequest {
            attempt: attempt.id,
            provider: attempt.provider.clone(),
        };
        let mut routing = self.replica(replica)?.routing.clone();
        routing.abandon(request).await?;
        Ok(())
    }

    /// Looks at every replica until what it shows is as wanted, and returns what the last one showed.
    pub(crate) async fn everywhere<T: std::fmt::Debug>(
        &self,
        what: &str,
        look: impl AsyncFn(usize) -> Result<T>,
        wanted: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let mut shown = None;
        for replica in 0..self.replicas.len() {
            let end = tokio::time::Instant::now() + LIMIT;
            loop {
                let seen = look(replica).await?;
                if wanted(&seen) {
                    shown = Some(seen);
                    break;
                }
                if tokio::time::Instant::now() > end {
                    bail!("replica {replica} never showed {what}, but {seen:?}");
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        shown.context("there are no replicas")
    }

    fn replica(&self, number: usize) -> Result<&Replica> {
        self.replicas.get(number).context("no such replica")
    }

    fn new_id(&self) -> common::AttemptId {
        common::AttemptId {
            plane: PLANE,
            number: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

/// The attempt of an answer that dispatches.
pub(crate) fn dispatched(answer: &DecideResponse) -> Result<common::Attempt> {
    match &answer.step {
        Some(Step::Dispatch(dispatch)) => dispatch.attempt.clone().context("no attempt"),
        other => bail!("not dispatched: {other:?}"),
    }
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(crate) struct End(AttemptReport);

impl End {
    pub(crate) fn of(attempt: common::Attempt, kind: Kind) -> Self {
        Self(AttemptReport {
            attempt: Some(attempt),
            outcome: Some(common::Outcome { kind: Some(kind) }),
            ..AttemptReport::default()
        })
    }

    pub(crate) fn success(attempt: common::Attempt) -> Self {
        Self::of(attempt, Kind::Success(common::Success {}))
    }

    pub(crate) fn status(attempt: common::Attempt, status: u32) -> Self {
        Self::answer(attempt, status, &[], "")
    }

    pub(crate) fn answer(
        attempt: common::Attempt,
        status: u32,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let headers = headers.iter().map(|(name, value)| common::Header {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        });
        Self::of(
            attempt,
            Kind::Response(common::UpstreamError {
                status,
                headers: headers.collect(),
                body: body.to_owned(),
                embedded: false,
            }),
        )
    }

    /// When it ended, in the store's time.
    pub(crate) fn at(mut self, unix_ms: u64) -> Self {
        self.0.occurred_at_unix_ms = unix_ms;
        self
    }

    /// The request named a combo.
    pub(crate) fn of_combo(mut self) -> Self {
        self.0.combo = true;
        self
    }
}
