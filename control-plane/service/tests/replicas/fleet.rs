//! A fleet of replicas in this process, and the words tests speak to it with.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use secrecy::SecretString;
use tidegate_control::plane::{
    ControlPlane, ControlPlaneConfig, DecisionLimits, Retention, SharedRegistry, Tokens,
};
use tidegate_core::ids::{ProviderId, Shard};
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tidegate_proto::report::v1 as report;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::admission_service_client::AdmissionServiceClient;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_store::durable::DurableStore;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::hot::HotStore as _;
use tidegate_store::memory::clock::SystemClock;
use tidegate_store::memory::{MemoryHotStore, MemoryOptions};
use tidegate_store::seal::{Sealer, SealingKey};
use tidegate_store_sql::{SqlLimits, SqliteDurableStore};
use tidegate_test_support::ScratchDir;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};

/// The store of each replica, which can be made to fail.
pub(crate) type Hot = FaultyHotStore<MemoryHotStore>;

/// A data plane that is silent for so long is lost.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(3);
/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// After so long a replica's call to its hot store has usually failed.
const HOT_CALL_LIMIT: Duration = Duration::from_millis(40);
/// What is decided must not depend on how busy the machine is. A store that does not answer is given up by the store's
/// own limit long before ([`HOT_CALL_LIMIT`]).
const PATIENT_DECISIONS: DecisionLimits = DecisionLimits {
    decide: Duration::from_secs(10),
    store_call: Duration::from_secs(5),
};

/// What all replicas share.
pub(crate) struct Fleet {
    pub(crate) memory: MemoryHotStore,
    pub(crate) durable: Arc<dyn DurableStore>,
    /// Of replicas that are started from now on.
    pub(crate) decision_limits: DecisionLimits,
    /// The same: after so long a call to the hot store has failed.
    pub(crate) hot_call_limit: Duration,
    /// The same: contract variables.
    pub(crate) environment: BTreeMap<String, String>,
    sealer: Arc<Sealer>,
    tasks: TaskTracker,
    started: AtomicU64,
    _directory: Option<ScratchDir>,
}

/// One control plane and a connection to it.
pub(crate) struct Replica {
    pub(crate) plane: ControlPlane,
    registry: SharedRegistry,
    pub(crate) hot: Hot,
    pub(crate) channel: Channel,
}

/// A data plane's reports: one stream.
pub(crate) struct Reporting {
    sender: mpsc::Sender<report::ReportRequest>,
    pub(crate) acknowledged: tonic::Streaming<report::ReportResponse>,
}

pub(crate) const ALPHA: &str = "alpha";
pub(crate) const MODEL: &str = "alpha/m";

impl Fleet {
    pub(crate) async fn new() -> Self {
        // In memory where there is room: a disk that is busy says nothing about replicas.
        let directory = ScratchDir::new("durable").unwrap();
        let durable = open(directory.path()).await;
        Self {
            _directory: Some(directory),
            ..Self::over(durable)
        }
    }

    /// A fleet over this durable store.
    pub(crate) fn over(durable: Arc<dyn DurableStore>) -> Self {
        let options = MemoryOptions {
            undo_writes: 1_000,
            ..MemoryOptions::default()
        };
        Self {
            memory: MemoryHotStore::new(Arc::new(SystemClock), options),
            durable,
            decision_limits: PATIENT_DECISIONS,
            hot_call_limit: HOT_CALL_LIMIT,
            environment: BTreeMap::new(),
            sealer: Arc::new(Sealer::new(&key()).unwrap()),
            tasks: TaskTracker::new(),
            started: AtomicU64::new(0),
            _directory: None,
        }
    }

    /// A fleet whose configuration is [`document`], and its first replicas.
    pub(crate) async fn with_replicas<const N: usize>() -> (Self, [Replica; N]) {
        let fleet = Self::new().await;
        let replicas = fleet.replicas_with(document()).await;
        (fleet, replicas)
    }

    /// The first replicas of a fleet whose configuration is this.
    pub(crate) async fn replicas_with<const N: usize>(
        &self,
        document: config::Document,
    ) -> [Replica; N] {
        let mut replicas = Vec::new();
        for _ in 0..N {
            replicas.push(self.start().await);
        }
        replicas[0].apply(apply_request(document)).await.unwrap();
        for replica in &replicas {
            replica.has_configuration(1).await;
        }
        let Ok(replicas) = replicas.try_into() else {
            panic!("as many as were started");
        };
        replicas
    }

    /// The hot store has a value in a life that began on its present server.
    pub(crate) async fn stores(&self, key: &str) -> bool {
        let image = self.memory.read(shard()).await.unwrap();
        image.check.incarnation.is_some() && image.entries.iter().any(|entry| entry.key == key)
    }

    /// Runs what serves, until its replica ends it.
    pub(crate) fn run(&self, serving: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(serving);
    }

    /// Starts a replica and waits until it is ready.
    pub(crate) async fn start(&self) -> Replica {
        self.start_with(Tokens::default()).await
    }

    /// The same with these tokens.
    pub(crate) async fn start_with(&self, tokens: Tokens) -> Replica {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let hot = Hot::new(Arc::new(self.memory.clone()), self.hot_call_limit);
        let registry = SharedRegistry::default();
        let plane = ControlPlane::start(
            ControlPlaneConfig {
                traces: tidegate_telemetry::Traces::off(),
                replica: format!("replica-{number}"),
                tokens,
                environment: self.environment.clone(),
                drain_limit: Duration::from_secs(10),
                decision_limits: self.decision_limits,
                silence_limit: SILENCE_LIMIT,
                retention: Retention::default(),
                registry: Arc::clone(&registry),
            },
            Arc::new(hot.clone()),
            Arc::clone(&self.durable),
            Arc::clone(&self.sealer),
        );
        let (sender, receiver) = mpsc::channel::<DuplexStream>(16);
        let incoming = ReceiverStream::new(receiver).map(Ok::<_, std::io::Error>);
        let serving = plane.serve(incoming);
        self.tasks.spawn(async move { serving.await.unwrap() });
        let connector = tower::service_fn(move |_| {
            let sender = sender.clone();
            async move {
                let (ours, theirs) = tokio::io::duplex(64 * 1024);
                sender.send(theirs).await.map_err(std::io::Error::other)?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(ours))
            }
        });
        let channel = Endpoint::from_static("http://replica")
            .connect_with_connector(connector)
            .await
            .unwrap();
        within("readiness", plane.ready()).await;
        Replica {
            plane,
            registry,
            hot,
            channel,
        }
    }
}

async fn open(directory: &Path) -> Arc<dyn DurableStore> {
    let file = directory.join("tidegate.db");
    Arc::new(SqliteDurableStore::open(&file, patient()).await.unwrap())
}

/// Limits of a durable store whose lateness is not what a test is about.
pub(crate) fn patient() -> SqlLimits {
    SqlLimits {
        call: Duration::from_secs(10),
        whole: Duration::from_secs(20),
        ..SqlLimits::default()
    }
}

fn key() -> SealingKey {
    let text = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    SealingKey::parse(&SecretString::from(text)).unwrap()
}

impl Replica {
    /// The value of a counter, labels and all, without the prefix.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read()).unwrap();
        let name = format!("tidegate_cp_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap().parse().unwrap()
    }

    /// The value of a gauge without labels.
    pub(crate) fn gauge(&self, name: &str) -> u64 {
        self.counter(name)
    }

    pub(crate) fn routing(&self) -> RoutingServiceClient<Channel> {
        RoutingServiceClient::new(self.channel.clone())
    }

    pub(crate) fn admission(&self) -> AdmissionServiceClient<Channel> {
        AdmissionServiceClient::new(self.channel.clone())
    }

    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn apply(
        &self,
        request: admin::ApplyConfigurationRequest,
    ) -> Result<admin::ApplyConfigurationResponse, tonic::Status> {
        let applied = self.admin().apply_configuration(request).await?;
        Ok(applied.into_inner())
    }

    pub(crate) async fn settings(&self) -> admin::GetSettingsResponse {
        let mut client = AdminServiceClient::new(self.channel.clone());
        let request = admin::GetSettingsRequest {};
        client.get_settings(request).await.unwrap().into_inner()
    }

    pub(crate) async fn patch(
        &self,
        request: admin::PatchSettingsRequest,
    ) -> Result<admin::PatchSettingsResponse, tonic::Status> {
        let mut client = AdminServiceClient::new(self.channel.clone());
        Ok(client.patch_settings(request).await?.into_inner())
    }

    pub(crate) async fn configuration_version(&self) -> u64 {
        let request = admin::GetConfigurationRequest {};
        let answer = self.admin().get_configuration(request).await.unwrap();
        answer.into_inner().version
    }

    pub(crate) async fn has_configuration(&self, version: u64) {
        eventually("the configuration", async || {
            self.configuration_version().await == version
        })
        .await;
    }

    /// State of alpha's breaker.
    pub(crate) async fn breaker(&self) -> String {
        self.breaker_status().await.state
    }

    pub(crate) async fn breaker_status(&self) -> admin::BreakerStatus {
        let request = admin::ListBreakersRequest::default();
        let answer = self.admin().list_breakers(request).await.unwrap();
        let breakers = answer.into_inner().breakers;
        breakers
            .into_iter()
            .find(|it| it.provider == ALPHA)
            .unwrap()
    }

    pub(crate) async fn breaker_becomes(&self, state: &str) {
        eventually(state, async || self.breaker().await == state).await;
    }

    pub(crate) async fn connection(&self, id: &str) -> admin::ConnectionStatus {
        let request = admin::ListConnectionsRequest::default();
        let answer = self.admin().list_connections(request).await.unwrap();
        let connections = answer.into_inner().connections;
        connections.into_iter().find(|it| it.id == id).unwrap()
    }

    pub(crate) async fn status(&self) -> admin::GetStatusResponse {
        let request = admin::GetStatusRequest {};
        self.admin().get_status(request).await.unwrap().into_inner()
    }

    pub(crate) async fn decide(&self, plane: u64, number: u64) -> routing::DecideResponse {
        let request = decide_request(plane, number);
        self.routing().decide(request).await.unwrap().into_inner()
    }

    pub(crate) fn reports(&self) -> ReportServiceClient<Channel> {
        ReportServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn report(&self) -> Reporting {
        let (sender, receiver) = mpsc::channel(16);
        let answer = self
            .reports()
            .report(ReceiverStream::new(receiver))
            .await
            .unwrap();
        Reporting {
            sender,
            acknowledged: answer.into_inner(),
        }
    }

    pub(crate) async fn watch(
        &self,
        plane: u64,
        resume: Vec<common::ShardVersion>,
    ) -> tonic::Streaming<config::WatchResponse> {
        let request = config::WatchRequest {
            plane,
            name: "test".to_owned(),
            configuration_version: 0,
            credentials_revision: 0,
            resume,
        };
        let mut client = SnapshotServiceClient::new(self.channel.clone());
        client.watch(request).await.unwrap().into_inner()
    }

    /// Two failures open the breaker of alpha. Returns the number of the last report.
    pub(crate) async fn open_breaker(&self, plane: u64) -> u64 {
        let mut reporting = self.report().await;
        let version = self.dispatched(plane).await;
        reporting
            .send(
                plane,
                vec![failure(plane, 1, &version), failure(plane, 2, &version)],
            )
            .await;
        reporting.acknowledged_to(2).await;
        2
    }

    /// An attempt as this replica dispatches it now.
    pub(crate) async fn dispatched(&self, plane: u64) -> common::Attempt {
        match self.decide(plane, 1_000_000).await.step.unwrap() {
            routing::decide_response::Step::Dispatch(dispatch) => dispatch.attempt.unwrap(),
            other => panic!("expected a dispatch: {other:?}"),
        }
    }

    pub(crate) async fn shutdown(self) {
        assert!(self.plane.shutdown().await, "shut down in time");
    }
}

impl Reporting {
    pub(crate) async fn send(&self, plane: u64, reports: Vec<report::NumberedReport>) {
        self.send_to(plane, shard().number(), reports).await;
    }

    pub(crate) async fn send_to(
        &self,
        plane: u64,
        shard: u8,
        reports: Vec<report::NumberedReport>,
    ) {
        let request = report::ReportRequest {
            plane,
            shard: u32::from(shard),
            reports,
        };
        self.sender.send(request).await.unwrap();
    }

    pub(crate) async fn acknowledged_to(&mut self, number: u64) {
        within("an acknowledgement", async {
            loop {
                let response = self.acknowledged.message().await.unwrap().unwrap();
                if response.acknowledged >= number {
                    return;
                }
            }
        })
        .await;
    }

    /// The status the stream ends with.
    pub(crate) async fn refused(mut self) -> tonic::Status {
        within("a refusal", async move {
            loop {
                match self.acknowledged.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("ended without a status"),
                    Err(status) => return status,
                }
            }
        })
        .await
    }
}

/// The shard of alpha.
pub(crate) fn shard() -> Shard {
    Shard::of_provider(&ProviderId::new(ALPHA).unwrap())
}

/// One provider of class `local` (opens at two failures), two connections, another provider.
pub(crate) fn document() -> config::Document {
    config::Document {
        providers: vec![provider(ALPHA, 9), provider("beta", 8)],
        connections: vec![connection("a1", ALPHA, 1), connection("b1", "beta", 1)],
        combos: Vec::new(),
        keys: Vec::new(),
        settings_json:
            r#"{"providerBreaker":{"dedupConnectionMs":0,"dedupProviderMs":0},"waitForCooldown":{"enabled":false}}"#
                .to_owned(),
        ..config::Document::default()
    }
}

pub(crate) fn provider(id: &str, port: u16) -> config::Provider {
    config::Provider {
        id: id.to_owned(),
        protocol: "openai".to_owned(),
        base_url: format!("http://127.0.0.1:{port}/v1"),
        // A provider on this machine would lock models otherwise.
        per_model_quota: Some(false),
        ..config::Provider::default()
    }
}

pub(crate) fn connection(id: &str, provider: &str, priority: u32) -> config::Connection {
    config::Connection {
        id: id.to_owned(),
        provider: provider.to_owned(),
        priority: Some(priority),
        // The breaker alone decides in these tests.
        disable_cooling: true,
        ..config::Connection::default()
    }
}

pub(crate) fn apply_request(document: config::Document) -> admin::ApplyConfigurationRequest {
    let secrets = document
        .connections
        .iter()
        .map(|connection| {
            (
                connection.id.clone(),
                format!("secret of {}", connection.id),
            )
        })
        .map(|(connection, secret)| (connection, secret.into_bytes()));
    admin::ApplyConfigurationRequest {
        credentials: secrets.collect(),
        document: Some(document),
        ..admin::ApplyConfigurationRequest::default()
    }
}

pub(crate) fn decide_request(plane: u64, number: u64) -> routing::DecideRequest {
    routing::DecideRequest {
        attempt: Some(common::AttemptId { plane, number }),
        facts: Some(routing::RequestFacts {
            model: MODEL.to_owned(),
            protocol: routing::Protocol::Openai.into(),
            ..routing::RequestFacts::default()
        }),
        ..routing::DecideRequest::default()
    }
}

/// A report that an attempt like `like` failed with a 503 just now.
pub(crate) fn failure(plane: u64, number: u64, like: &common::Attempt) -> report::NumberedReport {
    let outcome = common::Outcome {
        kind: Some(common::outcome::Kind::Response(common::UpstreamError {
            status: 503,
            ..common::UpstreamError::default()
        })),
    };
    numbered(plane, number, like, outcome)
}

/// A report that an attempt like `like` succeeded just now.
pub(crate) fn success(plane: u64, number: u64, like: &common::Attempt) -> report::NumberedReport {
    let outcome = common::Outcome {
        kind: Some(common::outcome::Kind::Success(common::Success {})),
    };
    numbered(plane, number, like, outcome)
}

fn numbered(
    plane: u64,
    number: u64,
    like: &common::Attempt,
    outcome: common::Outcome,
) -> report::NumberedReport {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let id = if like.probe {
        like.id
    } else {
        Some(common::AttemptId { plane, number })
    };
    report::NumberedReport {
        number,
        report: Some(report::AttemptReport {
            attempt: Some(common::Attempt { id, ..like.clone() }),
            outcome: Some(outcome),
            occurred_at_unix_ms: u64::try_from(now.as_millis()).unwrap(),
            count: 1,
            ..report::AttemptReport::default()
        }),
    }
}

/// Waits for something, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_elapsed) => panic!("waited too long for {what}"),
    }
}

/// Asks again and again until it is true.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
