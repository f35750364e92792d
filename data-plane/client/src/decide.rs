//! Where an attempt goes: asked of the control plane within one limit, decided here when there is no answer.
//!
//! The limit holds for everything together: other replicas when one refuses, and a configuration that is on
//! its way. A question that outlives the limit, or whose request is dropped meanwhile, is not cut off but
//! followed in the background, so that a probe it may still be granted is given back.
//!
//! **Permits.** What needs no permit is decided here when the limit is over. What needs one waits on for a control plane
//! that is only slow, up to a limit of its own, because others are granted permits meanwhile; shares of the cap are given
//! out here only when the control plane is gone (decision 62). [`contact`] tells the two apart.

mod contact;
mod gate;
mod grant;
mod local;
mod periods;
mod questions;
mod translate;

use std::sync::Arc;
use std::time::Duration;

use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{AwaitRequest, DecideResponse};
use tidegate_wire::attempt::id_to_proto;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

pub(crate) use contact::{Patience, Standing};
pub(crate) use gate::Gate;

use self::grant::{Awaited, Unclaimed};
use self::local::{Local, PermitsHere};
use self::questions::{NoAnswer, Questions};
use self::translate::{Answered, PermitPast};
use crate::client::Inner;
use crate::permits::PoolName;
use crate::port::{Answer, Ask, Dispatch, Step};
use crate::replicas::Asked;
use crate::shadow::Scene;

/// Most questions that are followed at once; others are cut off and their grants expire.
pub(crate) const MAX_FOLLOWED: usize = 256;
/// Most requests that wait for a control plane that is slow; others do without it.
pub(crate) const MAX_PATIENT: usize = 1_024;
/// Longest wait for a grant, whatever the control plane says.
const MAX_GRANT_WAIT: Duration = Duration::from_secs(600);
/// Grants waited for in one decision; as many as may be named as waited for in vain.
const MAX_GRANT_WAITS: usize = 64;
/// What the end of a wait may take until it is heard of here.
const GRANT_GRACE: Duration = Duration::from_secs(2);

/// Why the control plane did not decide.
enum Unanswered {
    /// It need not: this answer needs no permit.
    NotNeeded(Box<Answer>),
    /// It did not answer as long as it may be waited for.
    Late,
    /// Nobody could be asked.
    Unreached,
    /// The answer, or the question, means nothing to the other side.
    Unusable,
}

impl Inner {
    /// Decides; see [`crate::PlaneClient::decide`].
    pub(crate) async fn decide(self: &Arc<Self>, ask: Ask) -> Answer {
        let _deciding = self.permits.deciding(ask.attempt.number);
        let mut permits = PermitPast::default();
        let mut unreached_since: Option<Instant> = None;
        let mut is_shared = true;
        for _ in 0..MAX_GRANT_WAITS {
            let sent = Instant::now();
            if !self.gate.admits(sent) {
                if self.gate.standing(sent) == Standing::Gone {
                    break;
                }
                if let Some(answer) = self.without_permit(&ask) {
                    return self.decided_here(&ask, answer);
                }
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
                    unreached_since = None;
                    // Nobody holds a permit while it waits for another.
                    let number = ask.attempt.number;
                    let before = ask.replaces.map_or(number, |replaced| replaced.number);
                    self.permits.release(before);
                    self.permits.release(number);
                    permits.granted = None;
                    // The time to wait begins now: the answer may have been late.
                    let until = Instant::now() + limit;
                    match self.await_grant(&ask, &pool, ticket, until).await {
                        Some(true) => permits.granted = Some(pool),
                        Some(false) => permits.in_vain.push(pool.connection),
                        None => {}
                    }
                }
                Err(Unanswered::NotNeeded(answer)) => return self.decided_here(&ask, *answer),
                Err(Unanswered::Late) => {
                    is_shared = self.gate.standing(Instant::now()) == Standing::Gone;
                    break;
                }
                Err(Unanswered::Unreached) => {
                    let now = Instant::now();
                    if self.gate.standing(now) == Standing::Gone {
                        break;
                    }
                    if let Some(answer) = self.without_permit(&ask) {
                        return self.decided_here(&ask, answer);
                    }
                    let since = *unreached_since.get_or_insert(sent);
                    if now.saturating_duration_since(since) >= self.limits.decide_slow {
                        is_shared = false;
                        break;
                    }
                    // It may be starting, but not in no time.
                    tokio::time::sleep(self.limits.decide).await;
                }
                Err(Unanswered::Unusable) => break,
            }
        }
        // Others may be granted permits by a control plane that is only slow, so none are given out here.
        let permits = if is_shared {
            PermitsHere::Shares(self.live_data_planes())
        } else {
            PermitsHere::Policy
        };
        let (answer, _) = self.decide_here(&ask, permits);
        self.decided_here(&ask, answer)
    }

    /// The decision as made here, unless anything was passed over for want of a permit and nothing else can be sent.
    fn without_permit(&self, ask: &Ask) -> Option<Answer> {
        let (answer, full) = self.decide_here(ask, PermitsHere::PassOver);
        (!full || matches!(answer.decision, Step::Dispatch(_))).then_some(answer)
    }

    fn decided_here(&self, ask: &Ask, answer: Answer) -> Answer {
        self.metrics.decided_locally.inc();
        self.gate.decided_here();
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
        let now = self.clock.at(sent);
        let question = translate::question(ask, permits, now, self.configuration_version());
        let mut questions = Questions::new(self, question);
        let mut deadline = sent + self.limits.decide;
        let response = match questions.answer(deadline).await {
            Ok(response) => {
                self.gate.answered(Instant::now());
                response
            }
            Err(NoAnswer::Late) => {
                self.gate.missed(Instant::now());
                if let Some(answer) = self.without_permit(ask) {
                    return Err(Unanswered::NotNeeded(Box::new(answer)));
                }
                deadline = sent + self.limits.decide_slow.max(self.limits.decide);
                self.late_answer(&mut questions, deadline).await?
            }
            Err(NoAnswer::Unreached) => {
                self.gate.unreached(Instant::now());
                return Err(Unanswered::Unreached);
            }
            Err(NoAnswer::Unusable) => return Err(Unanswered::Unusable),
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

    /// Goes on waiting for whoever was asked, unless nobody is there or too many wait already.
    async fn late_answer(
        &self,
        questions: &mut Questions<'_>,
        deadline: Instant,
    ) -> Result<DecideResponse, Unanswered> {
        if self.gate.standing(Instant::now()) == Standing::Gone {
            return Err(Unanswered::Late);
        }
        let Ok(_room) = self.patient.try_acquire() else {
            self.metrics.decide_impatient.inc();
            return Err(Unanswered::Late);
        };
        match questions.answer(deadline).await {
            Ok(response) => {
                self.gate.answered_late(Instant::now());
                self.metrics.decided_late.inc();
                Ok(response)
            }
            Err(NoAnswer::Late | NoAnswer::Unreached) => Err(Unanswered::Late),
            Err(NoAnswer::Unusable) => Err(Unanswered::Unusable),
        }
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

    /// Decides without the control plane. Also says whether anything was passed over for want of a permit.
    fn decide_here(&self, ask: &Ask, permits_here: PermitsHere) -> (Answer, bool) {
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
            permits_here,
            unheld_lines: &self.unheld_lines,
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

/// The room for requests that wait for a slow control plane.
pub(crate) fn patient() -> Semaphore {
    Semaphore::new(MAX_PATIENT)
}
