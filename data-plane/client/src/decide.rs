//! Where an attempt goes: asked of the control plane within one limit, decided here when there is no answer.
//!
//! The limit holds for everything together: other replicas when one refuses, and a configuration that is on
//! its way. A question that outlives the limit, or whose request is dropped meanwhile, is not cut off but
//! followed in the background, so that a probe it may still be granted is given back.

mod gate;
mod grant;
mod local;
mod translate;

use std::sync::Arc;
use std::time::Duration;

use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{AwaitRequest, DecideRequest, DecideResponse};
use tidegate_wire::attempt::id_to_proto;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

pub(crate) use gate::Gate;

use self::grant::{Awaited, Question, Unclaimed};
use self::local::Local;
use self::translate::{Answered, PermitPast};
use crate::client::Inner;
use crate::permits::PoolName;
use crate::port::{Answer, Ask, Dispatch, Step};
use crate::replicas::Asked;
use crate::shadow::Scene;

/// Most questions that are followed at once; others are cut off and their grants expire.
pub(crate) const MAX_FOLLOWED: usize = 256;
/// Longest wait for a grant, whatever the control plane says.
const MAX_GRANT_WAIT: Duration = Duration::from_secs(600);
/// Grants waited for in one decision; as many as may be named as waited for in vain.
const MAX_GRANT_WAITS: usize = 64;
/// What the end of a wait may take until it is heard of here.
const GRANT_GRACE: Duration = Duration::from_secs(2);

/// Why the control plane did not decide.
enum Unanswered {
    /// Nobody answered in time, or at all.
    Silent,
    /// The answer, or the question, means nothing to the other side.
    Unusable,
}

impl Inner {
    /// Decides; see [`crate::PlaneClient::decide`].
    pub(crate) async fn decide(self: &Arc<Self>, ask: Ask) -> Answer {
        let mut permits = PermitPast::default();
        let mut silences: u32 = 0;
        for _ in 0..MAX_GRANT_WAITS {
            let sent = Instant::now();
            if !self.gate.admits(sent) {
                break;
            }
            match self.ask(&ask, &permits, sent).await {
                Ok(Answered::Step(answer)) => {
                    self.metrics.decided_remotely.inc();
                    self.keep_permit(&ask, &answer);
                    return answer;
                }
                Ok(Answered::AwaitGrant {
                    pool,
                    ticket,
                    limit,
                }) => {
                    // Nobody holds a permit while it waits for another.
                    let number = ask.attempt.number;
                    let before = ask.replaces.map_or(number, |replaced| replaced.number);
                    self.permits.release(before);
                    self.permits.release(number);
                    permits.granted = None;
                    let until = sent + limit;
                    match self.await_grant(&ask, &pool, ticket, until).await {
                        Some(true) => permits.granted = Some(pool),
                        Some(false) => permits.in_vain.push(pool.connection),
                        None => {}
                    }
                }
                Err(Unanswered::Silent) => {
                    silences = silences.saturating_add(1);
                    if silences >= self.limits.timeouts_until_local || self.gate.is_shut() {
                        break;
                    }
                    // One silence is no outage: others may be granted permits by the control plane meanwhile, so none
                    // are given out here. What needs one is asked about again.
                    let (answer, full) = self.decide_here(&ask, false);
                    if !full || matches!(answer.decision, Step::Dispatch(_)) {
                        return self.decided_here(&ask, answer);
                    }
                }
                Err(Unanswered::Unusable) => break,
            }
        }
        let (answer, _) = self.decide_here(&ask, true);
        self.decided_here(&ask, answer)
    }

    fn decided_here(&self, ask: &Ask, answer: Answer) -> Answer {
        self.metrics.decided_locally.inc();
        self.keep_permit(ask, &answer);
        answer
    }

    /// What the answer means for the permit that the attempt holds, or waited for.
    fn keep_permit(&self, ask: &Ask, answer: &Answer) {
        let number = ask.attempt.number;
        match &answer.decision {
            Step::Dispatch(dispatch) => {
                if dispatch.permit {
                    let pool = PoolName {
                        provider: dispatch.attempt.provider.clone(),
                        connection: dispatch.attempt.connection.clone(),
                    };
                    self.permits.hold(number, pool);
                } else {
                    self.permits.release(number);
                }
                self.permits.answered(number);
            }
            Step::Reject(_) | Step::Plan(_) => {
                self.permits.release(number);
                self.permits.answered(number);
            }
            // It is asked again with the same attempt.
            Step::Wait { .. } => self.permits.release(number),
        }
    }

    async fn ask(
        self: &Arc<Self>,
        ask: &Ask,
        permits: &PermitPast,
        sent: Instant,
    ) -> Result<Answered, Unanswered> {
        let deadline = sent + self.limits.decide;
        let now = self.clock.at(sent);
        let question = translate::question(ask, permits, now, self.configuration_version());
        let response = match self.put(question, sent, deadline).await {
            Ok(response) => {
                self.gate.answered();
                response
            }
            Err(unanswered) => {
                if matches!(unanswered, Unanswered::Silent) {
                    self.gate.unanswered(Instant::now());
                }
                return Err(unanswered);
            }
        };
        let wanted = response.configuration_version;
        let answered = match translate::answer(ask, response) {
            Ok(answered) => answered,
            Err(error) => {
                tracing::warn!(error = %error, "the control plane's answer is not understood");
                self.metrics.decide_unusable.inc();
                return Err(Unanswered::Unusable);
            }
        };
        self.usable(answered, wanted, deadline).await
    }

    /// Puts the question to one replica after the other until one answers or the limit is reached.
    async fn put(
        self: &Arc<Self>,
        question: DecideRequest,
        sent: Instant,
        deadline: Instant,
    ) -> Result<DecideResponse, Unanswered> {
        let mut asked = Asked::default();
        let mut refused = false;
        while let Some(replica) = self.replicas.choose(Instant::now(), asked) {
            asked.add(replica.index);
            let mut client = RoutingServiceClient::new(replica.channel());
            let copy = question.clone();
            let asked_at = Instant::now();
            let call = async move { client.decide(copy).await };
            let mut call = Question::new(self, Box::pin(call));
            match timeout_at(deadline, call.answer()).await {
                Ok(Ok(response)) => {
                    let response = response.into_inner();
                    if let Some(freshness) = &response.freshness {
                        let time = tidegate_core::time::Timestamp(freshness.store_time_unix_ms);
                        self.clock.answered(asked_at, Instant::now(), time);
                    }
                    let now = Instant::now();
                    self.replicas
                        .answered(replica, response.freshness.as_ref(), now);
                    return Ok(response);
                }
                Ok(Err(status)) => {
                    self.metrics.decide_errors.inc();
                    tracing::debug!(
                        replica = %replica.name, error = %status, "the control plane did not decide"
                    );
                    match status.code() {
                        Code::InvalidArgument => return Err(Unanswered::Unusable),
                        // It is well and says no, for example to a key that its configuration lacks;
                        // another replica's may be newer.
                        Code::FailedPrecondition | Code::NotFound | Code::Aborted => refused = true,
                        _ => self.replicas.failed(replica, Instant::now()),
                    }
                }
                Err(_) => {
                    self.metrics.decide_timeouts.inc();
                    self.replicas.failed(replica, Instant::now());
                    // Dropped, the question is followed.
                    return Err(Unanswered::Silent);
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        tracing::debug!(
            after = ?sent.elapsed(), "no replica of the control plane decided"
        );
        Err(if refused {
            Unanswered::Unusable
        } else {
            Unanswered::Silent
        })
    }

    /// An answer that can be carried out here: its connection has a credential in the snapshot. If the
    /// configuration it rests on is newer, it may be on its way.
    async fn usable(
        &self,
        answered: Answered,
        wanted: u64,
        deadline: Instant,
    ) -> Result<Answered, Unanswered> {
        let Answered::Step(mut answer) = answered else {
            return Ok(answered);
        };
        let Step::Dispatch(dispatch) = &mut answer.decision else {
            return Ok(Answered::Step(answer));
        };
        let unclaimed = Unclaimed::new(self, &dispatch.attempt, dispatch.permit);
        if self.configuration_version() < wanted {
            let mut installed = self.installed.subscribe();
            let newer = installed.wait_for(|version| *version >= wanted);
            // Without it what we have is used.
            let waited = timeout_at(deadline, newer).await;
            tracing::debug!(wanted, came = waited.is_ok(), "waited for a configuration");
        }
        if self.adopt_credential(dispatch) {
            unclaimed.claim();
            return Ok(Answered::Step(answer));
        }
        tracing::warn!(
            connection = %dispatch.attempt.connection, "decided on a connection without a credential here"
        );
        self.metrics.decide_unusable.inc();
        Err(Unanswered::Unusable)
    }

    /// The attempt carries the version of the credential that it will really use; false when there is none.
    fn adopt_credential(&self, dispatch: &mut Dispatch) -> bool {
        let snapshot = self.snapshot.load();
        let credential = snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.credentials.get(&dispatch.attempt.connection));
        match credential {
            Some(credential) => {
                dispatch.attempt.credential_version = credential.version;
                true
            }
            None => false,
        }
    }

    /// Waits for a permit until the control plane says how the wait ended, at most until then and a little longer.
    /// `None` when it is not known: then the next question finds out. Dropped, it gives back what it may be granted.
    async fn await_grant(
        &self,
        ask: &Ask,
        pool: &PoolName,
        ticket: Vec<u8>,
        until: Instant,
    ) -> Option<bool> {
        let now = Instant::now();
        let deadline = (until + GRANT_GRACE).min(now + MAX_GRANT_WAIT);
        let replica = self.replicas.choose(now, Asked::default())?;
        let mut client = RoutingServiceClient::new(replica.channel());
        let awaited = Awaited::new(&self.permits, ask.attempt.number, pool.clone());
        let waiting = client.r#await(AwaitRequest {
            attempt: Some(id_to_proto(ask.attempt)),
            ticket,
        });
        match timeout_at(deadline, waiting).await {
            Ok(Ok(answer)) => {
                let granted = answer.into_inner().granted;
                if granted {
                    awaited.granted();
                } else {
                    awaited.refused();
                }
                Some(granted)
            }
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "no grant");
                drop(awaited);
                // The replica that queued us is gone: the next one queues us anew, but not in a hurry.
                tokio::time::sleep(self.limits.decide).await;
                None
            }
            // Whatever became of the call, the time to wait is over.
            Err(_) => Some(false),
        }
    }

    /// Decides without the control plane. With `shares`, permits come from this data plane's shares; without, who needs
    /// one is passed over, and the answer says whether anybody was.
    fn decide_here(&self, ask: &Ask, shares: bool) -> (Answer, bool) {
        let moment = Instant::now();
        let now = self.clock.at(moment);
        let Some(snapshot) = self.snapshot.load_full() else {
            return (local::without_configuration(ask, now), false);
        };
        let newest_attempt = self.newest_attempt();
        let scene = Scene {
            config: &snapshot.config,
            view: &self.view,
            now,
            newest_attempt,
        };
        self.shadow.refresh(scene, moment, self.is_following());
        Local {
            snapshot: &snapshot,
            view: &self.view,
            shadow: &self.shadow,
            permits: &self.permits,
            planes: shares.then(|| self.live_data_planes()),
            telemetry: &*self.telemetry.view(),
            now,
            newest_attempt,
            metrics: &self.metrics,
        }
        .decide(ask)
    }
}

/// The room for questions that are followed.
pub(crate) fn followed() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_FOLLOWED))
}
