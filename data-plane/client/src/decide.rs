//! Where an attempt goes: asked of the control plane within one limit, decided here when there is no answer.
//!
//! The limit holds for everything together: other replicas when one refuses, and a configuration that is on
//! its way. A question that outlives the limit, or whose request is dropped meanwhile, is not cut off but
//! followed in the background, so that a probe it may still be granted is given back.
//!
//! **Permits.** What needs no permit is decided here when the limit is over. What needs one waits on for a control plane
//! that is only slow, up to a limit of its own, because others are granted permits meanwhile; shares of the cap are given
//! out here only when the control plane is gone (decision 62). [`contact`] tells the two apart. So it is with probes.
//!
//! **Managed requests** have a limit of their own and are never decided here ([`managed`]).
//!
//! **Numbers.** An attempt's number is good for one question, or for one wait for a permit and, granted, the question after
//! it. What is granted late to a number that was given up can then be given back without a look at who uses what.

mod contact;
mod gate;
mod grant;
mod local;
mod managed;
mod periods;
mod questions;
mod translate;
mod waiting;

use std::sync::Arc;

use tidegate_proto::routing::v1::DecideResponse;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

pub(crate) use contact::{Patience, Standing};
pub(crate) use gate::Gate;
pub(crate) use grant::Awaited;

use self::grant::{Deciding, Unclaimed};
use self::local::{GrantsHere, Local};
use self::questions::{NoAnswer, Questions};
use crate::client::Inner;
use crate::permits::PoolName;
use crate::port::{Answer, Ask, Dispatch, Step};
use crate::shadow::Scene;

/// Most questions that are followed at once; others are cut off and their grants expire.
pub(crate) const MAX_FOLLOWED: usize = 256;
/// Most requests that wait for a control plane that is slow; others do without it.
pub(crate) const MAX_PATIENT: usize = 1_024;
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
        let _deciding = Deciding::begin(self, ask.attempt.number);
        if managed::is_managed(&ask) {
            return self.decide_managed(&ask).await;
        }
        let mut unreached_since: Option<Instant> = None;
        let is_shared = loop {
            let sent = Instant::now();
            if !self.gate.admits(sent) {
                if self.gate.standing(sent) == Standing::Gone {
                    break true;
                }
                if let Some(answer) = self.without_grants(&ask) {
                    return self.decided_here(&ask, answer);
                }
            }
            match self.ask(&ask, sent).await {
                Ok(answer) => {
                    self.metrics.decided_remotely.inc();
                    self.keep_grants(&ask, &answer);
                    return answer;
                }
                Err(Unanswered::NotNeeded(answer)) => return self.decided_here(&ask, *answer),
                Err(Unanswered::Late) => {
                    break self.gate.standing(Instant::now()) == Standing::Gone;
                }
                Err(Unanswered::Unreached) => {
                    let now = Instant::now();
                    if self.gate.standing(now) == Standing::Gone {
                        break true;
                    }
                    if let Some(answer) = self.without_grants(&ask) {
                        return self.decided_here(&ask, answer);
                    }
                    let since = *unreached_since.get_or_insert(sent);
                    if now.saturating_duration_since(since) >= self.limits.decide_slow {
                        break false;
                    }
                    // It may be starting, but not in no time.
                    tokio::time::sleep(self.limits.decide).await;
                }
                // It is there, so it gives out what it did not grant here.
                Err(Unanswered::Unusable) => break false,
            }
        };
        // Others may be granted what a control plane that is only slow gives out, so nothing is given out here.
        let grants = if is_shared {
            GrantsHere::Shares(self.live_data_planes())
        } else {
            GrantsHere::Policy
        };
        let (answer, _) = self.decide_here(&ask, grants);
        self.decided_here(&ask, answer)
    }

    /// The decision as made here, unless anything was passed over for want of a permit or a probe and nothing else can be
    /// sent.
    fn without_grants(&self, ask: &Ask) -> Option<Answer> {
        let (answer, passed_over) = self.decide_here(ask, GrantsHere::PassOver);
        (!passed_over || matches!(answer.decision, Step::Dispatch(_))).then_some(answer)
    }

    fn decided_here(&self, ask: &Ask, answer: Answer) -> Answer {
        self.metrics.decided_locally.inc();
        self.gate.decided_here();
        self.keep_grants(ask, &answer);
        answer
    }

    /// What the answer means for what the attempt was granted.
    fn keep_grants(&self, ask: &Ask, answer: &Answer) {
        let number = ask.attempt.number;
        match &answer.decision {
            Step::Dispatch(dispatch) => {
                let attempt = &dispatch.attempt;
                if attempt.probe {
                    self.permits.probes(number, &attempt.provider);
                }
                if dispatch.permit {
                    let pool = PoolName {
                        provider: attempt.provider.clone(),
                        connection: attempt.connection.clone(),
                    };
                    self.permits.hold(number, pool);
                } else {
                    self.permits.release(number);
                }
            }
            Step::Reject(_) | Step::Plan(_) | Step::Wait { .. } => self.permits.release(number),
            Step::AwaitPermit(_) => {
                // Nobody holds a permit while it waits for another.
                if let Some(replaced) = ask.replaces {
                    self.permits.release(replaced.number);
                }
                self.permits.release(number);
            }
        }
        self.permits.answered(number);
    }

    async fn ask(self: &Arc<Self>, ask: &Ask, sent: Instant) -> Result<Answer, Unanswered> {
        let now = self.clock.at(sent);
        let question = {
            let released = self.permits.unheard();
            translate::question(ask, now, self.configuration_version(), released)
        };
        let mut questions = Questions::new(self, question, &ask.origin);
        let mut deadline = sent + self.limits.decide;
        let response = match questions.answer(deadline).await {
            Ok(response) => {
                self.gate.answered(Instant::now());
                response
            }
            Err(NoAnswer::Late) => {
                let now = Instant::now();
                self.gate.missed(now);
                if self.gate.standing(now) == Standing::Gone {
                    return Err(Unanswered::Late);
                }
                if let Some(answer) = self.without_grants(ask) {
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
        self.understood(ask, response, deadline).await
    }

    /// What the response means, if it can be carried out here.
    async fn understood(
        &self,
        ask: &Ask,
        response: DecideResponse,
        deadline: Instant,
    ) -> Result<Answer, Unanswered> {
        let wanted = response.configuration_version;
        let answer = match translate::answer(ask, response) {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(error = %error, "the control plane's answer is not understood");
                self.metrics.decide_unusable.inc();
                return Err(Unanswered::Unusable);
            }
        };
        self.usable(answer, wanted, deadline).await
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
        mut answer: Answer,
        wanted: u64,
        deadline: Instant,
    ) -> Result<Answer, Unanswered> {
        let Step::Dispatch(dispatch) = &mut answer.decision else {
            return Ok(answer);
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
            return Ok(answer);
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

    /// Decides without the control plane. Also says whether anything was passed over for want of a permit or a probe.
    fn decide_here(&self, ask: &Ask, grants_here: GrantsHere) -> (Answer, bool) {
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
            grants_here,
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
