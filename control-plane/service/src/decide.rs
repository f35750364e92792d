//! Where an attempt may go.
//!
//! A decision is one pure function of configuration, view, request and time ([`tidegate_core::routing`]); this module
//! feeds it and takes what is counted fleet-wide: permits and the half-open probe. Nothing is recorded, so a request that asks again,
//! here or elsewhere, with the same attempt id gets the same answer and the same probe.
//!
//! **The probe.** It is taken with one compare-and-set on the provider's value. Who loses the race decides again with
//! that provider's probe out. While the store does not answer, this replica gives one probe of its own and counts it
//! (`architecture.md` §4, 2). All of it together stays within [`DecisionLimits::decide`]; when that has passed, the provider
//! counts as not admitting and the decision is made from memory alone, so there always is an answer in time.
//!
//! **Leases.** A request whose key may lease is first placed on the connection of its lease (`managed`), which takes a call to
//! the durable store; the limit begins after it.

mod grants;
mod managed;
mod permit;
mod probe;
mod turn;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::affinity::AttemptEnd;
use tidegate_core::classify::{Classification, ClassifyContext, classify};
use tidegate_core::config::{Config, ProviderEntry};
use tidegate_core::ids::{AttemptId, EgressId, KeyId};
use tidegate_core::outcome::{Attempt, Outcome};
use tidegate_core::pace::LinePace;
use tidegate_core::routing::{
    AttemptsSoFar, Decision, Dispatch, PriorAttempt, RequestFacts, next_target_same_provider,
    pin_key, resolve_request,
};
use tidegate_core::settings::AttemptLimits;
use tidegate_core::time::Timestamp;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, local_now};
use crate::config::{Current, Published};
use crate::fleet::Gatherer;
use crate::hot::Hot;
use crate::lease::Leases;
use crate::permits::Permits;
use crate::pins::{Limits, Pins};
use crate::record::Recorder;
use crate::telemetry::metrics::{Metrics, Step};
use crate::view::{Age, View};

pub(crate) use permit::{Awaited, MAX_WAITED, PermitPast, Ticket};

use grants::Question;
use permit::Granted;

/// Time limits of decisions (decision 54). The defaults nest in the data planes' 50 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionLimits {
    /// A whole decision, 35 ms unless set.
    pub decide: Duration,
    /// Each call to the hot store within it, 15 ms unless set.
    pub store_call: Duration,
}

impl DecisionLimits {
    /// For data planes in the same process, which wait longer as well: there is no store that could be away, so a limit
    /// that passes only says that the machine is busy.
    #[must_use]
    pub fn same_process() -> Self {
        Self {
            decide: Duration::from_millis(1_500),
            store_call: Duration::from_millis(500),
        }
    }
}

impl Default for DecisionLimits {
    fn default() -> Self {
        Self {
            decide: Duration::from_millis(35),
            store_call: Duration::from_millis(15),
        }
    }
}

/// The part of it that may pass while a newer configuration is fetched, which the data plane has already.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(15);
/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) attempt: AttemptId,
    pub(crate) key: Option<KeyId>,
    /// The request; its key is filled in here.
    pub(crate) facts: RequestFacts,
    pub(crate) so_far: AttemptsSoFar,
    pub(crate) last_failure: Option<LastFailure>,
    pub(crate) egress: Option<EgressId>,
    pub(crate) permits: PermitPast,
    /// Version of the configuration that whoever asks has.
    pub(crate) configuration_version: u64,
}

/// The failure that led to the question.
#[derive(Clone, Debug)]
pub(crate) struct LastFailure {
    pub(crate) attempt: Attempt,
    pub(crate) outcome: Outcome,
    pub(crate) age_ms: u64,
    pub(crate) pass: u32,
    pub(crate) target: u32,
}

/// The answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) decision: Decision,
    /// The attempt as it must be reported, for a dispatch.
    pub(crate) attempt: Option<Attempt>,
    /// It holds a permit of its connection.
    pub(crate) permit: bool,
    /// For a wait for a permit: what to wait for.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) deadlines: AttemptLimits,
    /// What the last failure meant, and when it happened.
    pub(crate) judged: Option<(Classification, Timestamp)>,
    pub(crate) next_target_same_provider: bool,
    pub(crate) combo: bool,
    pub(crate) age: Age,
    pub(crate) now: Timestamp,
    pub(crate) configuration_version: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// This replica has no configuration or no view yet.
    #[error("this replica is not ready to decide")]
    NotReady,
    /// The key is not in the configuration in force here.
    #[error("the key is not known")]
    UnknownKey,
    /// The failed attempt names a provider that is not configured.
    #[error("the provider of the failed attempt is not known")]
    UnknownProvider,
}

/// Decides.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) hot: Arc<Hot>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) pins: Arc<Pins>,
    pub(crate) fleet: Arc<Gatherer>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: DecisionLimits,
    /// How often a line tells of attempts that are sent without a permit.
    pub(crate) unheld_lines: Mutex<LinePace>,
    /// What is given back after the answer.
    pub(crate) afterwards: TaskTracker,
}

impl Decider {
    /// Answers within the limit.
    pub(crate) async fn decide(self: &Arc<Self>, ask: Ask) -> Result<Answer, NoAnswer> {
        let began = local_now();
        let answer = self.answer(ask, began).await;
        let step = match &answer {
            Ok(answer) => match answer.decision {
                Decision::Dispatch(_) => Step::Dispatch,
                Decision::Wait(_) => Step::Wait,
                Decision::Reject(_) => Step::Reject,
                // Taken before a decision is an answer.
                Decision::TakeTurn(_) | Decision::ReadPin(_) => Step::Invalid,
                Decision::Plan(_) => Step::Plan,
            },
            Err(_) => Step::Invalid,
        };
        let took = local_now().saturating_duration_since(began);
        self.metrics.decision(step, took);
        answer
    }

    async fn answer(self: &Arc<Self>, ask: Ask, began: Instant) -> Result<Answer, NoAnswer> {
        let current = self
            .config
            .at_least(ask.configuration_version, began + CATCH_UP_LIMIT)
            .await
            .ok_or(NoAnswer::NotReady)?;
        if !self.view.is_filled() {
            return Err(NoAnswer::NotReady);
        }
        let config = &*current.config;
        let Ask {
            attempt,
            key,
            mut facts,
            mut so_far,
            last_failure,
            egress,
            permits,
            configuration_version: _,
        } = ask;
        facts.key = match key {
            Some(key) => Some(Arc::clone(
                current.keys.get(&key).ok_or(NoAnswer::UnknownKey)?,
            )),
            None => None,
        };
        let now = self.clock.now();
        let deadline = began + self.limits.decide;
        let judged = match last_failure {
            None => None,
            Some(failure) => {
                let outcome = failure.outcome.clone();
                let judged = judge(config, failure, now)?;
                let end = AttemptEnd::of(&outcome, &judged.classification);
                self.break_pin(config, &facts, &judged, end, deadline).await;
                Some(judged)
            }
        };
        so_far.last_is_new = judged.is_some();
        so_far.attempts.extend(judged.clone());
        let fleet = self.fleet.fleet();
        let question = Question {
            current: &current,
            fleet: &fleet,
            attempt,
            facts: &facts,
            so_far: &so_far,
            egress: egress.as_ref(),
            permits: &permits,
            deadline,
        };
        let Granted {
            decision,
            permit,
            ticket,
        } = match &facts.key {
            Some(key) if key.may_lease() => self.managed(question, key).await,
            Some(_) | None => self.with_grants(question).await,
        };
        let route = resolve_request(config, &facts);
        let attempt = match &decision {
            Decision::Dispatch(dispatch) => Some(attempt_of(&current, attempt, dispatch, egress)),
            Decision::Wait(_)
            | Decision::Reject(_)
            | Decision::TakeTurn(_)
            | Decision::ReadPin(_)
            | Decision::Plan(_) => None,
        };
        Ok(Answer {
            next_target_same_provider: route
                .as_ref()
                .zip(judged.as_ref())
                .is_some_and(|(route, last)| next_target_same_provider(route, last, &decision)),
            combo: route.is_some_and(|route| route.combo.is_some()),
            judged: judged.map(|judged| (judged.classification, judged.failed_at)),
            decision,
            attempt,
            permit,
            ticket,
            deadlines: config.settings.attempt_limits(),
            age: self.view.age(local_now()),
            now: self.clock.now(),
            configuration_version: config.version,
        })
    }
}

impl Decider {
    /// The pin of a session goes at once when an attempt on its connection failed over.
    async fn break_pin(
        &self,
        config: &Config,
        facts: &RequestFacts,
        failed: &PriorAttempt,
        end: AttemptEnd,
        deadline: Instant,
    ) {
        let Attempt {
            provider,
            connection,
            ..
        } = &failed.attempt;
        // Where there is nothing to choose from, nothing is pinned.
        let has_choice = |it: &ProviderEntry| it.connections.len() > 1;
        if !config.provider(provider).is_some_and(has_choice) {
            return;
        }
        if let Some(key) = pin_key(config, facts, provider) {
            let limits = self.pin_limits(deadline);
            self.pins.after_attempt(&key, connection, end, limits).await;
        }
    }

    fn pin_limits(&self, deadline: Instant) -> Limits {
        Limits {
            call: self.limits.store_call,
            deadline,
        }
    }
}

fn judge(config: &Config, failure: LastFailure, now: Timestamp) -> Result<PriorAttempt, NoAnswer> {
    let LastFailure {
        attempt,
        outcome,
        age_ms,
        pass,
        target,
    } = failure;
    let failed_at = now.minus_ms(age_ms);
    let context = ClassifyContext::of_attempt(config, &attempt, failed_at)
        .ok_or(NoAnswer::UnknownProvider)?;
    Ok(PriorAttempt {
        classification: classify(&outcome, &context),
        attempt,
        failed_at,
        pass,
        target,
    })
}

fn attempt_of(
    current: &Current,
    id: AttemptId,
    dispatch: &Dispatch,
    egress: Option<EgressId>,
) -> Attempt {
    Attempt {
        id,
        provider: dispatch.provider.clone(),
        connection: dispatch.connection.clone(),
        model: dispatch.model.clone(),
        decided_on: dispatch.decided_on,
        epoch: dispatch.epoch,
        credential_version: current
            .credentials
            .get(&dispatch.connection)
            .map_or(0, |credential| credential.version),
        egress,
        probe: dispatch.needs_probe,
        synthetic: false,
    }
}
