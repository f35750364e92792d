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

use self::grant::{Question, Unclaimed};
use self::local::Local;
use self::translate::Answered;
use crate::client::Inner;
use crate::port::{Answer, Ask, Dispatch, Step};
use crate::replicas::Asked;
use crate::shadow::Scene;

/// Most questions that are followed at once; others are cut off and their grants expire.
pub(crate) const MAX_FOLLOWED: usize = 256;
/// Longest wait for a grant, whatever the control plane says.
const MAX_GRANT_WAIT: Duration = Duration::from_secs(300);
/// Grants waited for in one decision.
const MAX_GRANT_WAITS: usize = 8;

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
        for _ in 0..MAX_GRANT_WAITS {
            let sent = Instant::now();
            if !self.gate.admits(sent) {
                break;
            }
            match self.ask(&ask, sent).await {
                Ok(Answered::Step(answer)) => {
                    self.metrics.decided_remotely.inc();
                    return answer;
                }
                Ok(Answered::AwaitGrant { ticket, limit }) => {
                    self.await_grant(&ask, ticket, sent, limit).await;
                }
                Err(Unanswered::Silent | Unanswered::Unusable) => break,
            }
        }
        self.metrics.decided_locally.inc();
        self.decide_here(&ask)
    }

    async fn ask(self: &Arc<Self>, ask: &Ask, sent: Instant) -> Result<Answered, Unanswered> {
        let deadline = sent + self.limits.decide;
        let question = translate::question(ask, self.clock.at(sent), self.configuration_version());
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
        let unclaimed = Unclaimed::new(&self.abandoned, &dispatch.attempt);
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

    /// Waits for a grant; whether it came, the next question will tell.
    async fn await_grant(&self, ask: &Ask, ticket: Vec<u8>, sent: Instant, limit: Duration) {
        let deadline = sent + limit.min(MAX_GRANT_WAIT);
        let Some(replica) = self.replicas.choose(sent, Asked::default()) else {
            return;
        };
        let mut client = RoutingServiceClient::new(replica.channel());
        let waiting = client.r#await(AwaitRequest {
            attempt: Some(id_to_proto(ask.attempt)),
            ticket,
        });
        match timeout_at(deadline, waiting).await {
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "no grant");
                // The replica that queued us is gone: the next one queues us anew, but not in a hurry.
                tokio::time::sleep_until(deadline.min(Instant::now() + self.limits.decide)).await;
            }
        }
    }

    /// Decides without the control plane.
    fn decide_here(&self, ask: &Ask) -> Answer {
        let moment = Instant::now();
        let now = self.clock.at(moment);
        let Some(snapshot) = self.snapshot.load_full() else {
            return local::without_configuration(ask, now);
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
