//! The decision without the control plane: the same rules over the last snapshot, the last view and the
//! shadow of our own failures. Unmanaged traffic only; it never fails.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::config::Config;
use tidegate_core::ids::{ConnectionId, ProviderId, Shard};
use tidegate_core::outcome::Attempt;
use tidegate_core::pace::LinePace;
use tidegate_core::permit;
use tidegate_core::routing::{
    self, AttemptsSoFar, Decision, DecisionTurns, Dispatch as Decided, Input, PermitPolicy,
    PriorAttempt, Rejection, View, WithFull,
};
use tidegate_core::state::ProviderState;
use tidegate_core::telemetry::Telemetry;
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Mark, Version};

use crate::metrics::ClientMetrics;
use crate::permits::{Permits, PoolName};
use crate::port::{Answer, Ask, Deadlines, Dispatch, LastFailure, Snapshot, Step};
use crate::shadow::{Scene, Shadow};
use crate::view::LocalView;

/// Walks of one decision before it gives up. Each excludes all full accounts of a provider or the provider itself, or
/// takes a number, so this is far off.
const MAX_WALKS: usize = 256;

/// What a local decision rests on.
pub(super) struct Local<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) view: &'a LocalView,
    pub(super) shadow: &'a Shadow,
    pub(super) permits: &'a Permits,
    /// What may be done about permits and probes.
    pub(super) grants_here: GrantsHere,
    /// How often a line tells of attempts that are sent without a permit.
    pub(super) unheld_lines: &'a Mutex<LinePace>,
    pub(super) telemetry: &'a dyn Telemetry,
    pub(super) now: Timestamp,
    pub(super) newest_attempt: u64,
    pub(super) metrics: &'a ClientMetrics,
}

/// What is done here with an attempt that needs a permit or a probe. Only when the control plane is gone is either given
/// out here; else others may be granted the same by it (`architecture.md` §4, 2 and 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantsHere {
    /// Its connection, or its provider, is passed over.
    PassOver,
    /// The same, as if none had come free: what a quota pool sends goes without a permit.
    Policy,
    /// It takes one of this data plane's share, of as many data planes as were live when the control plane was last
    /// heard; without one, as with [`GrantsHere::Policy`].
    Shares(u32),
}

/// What an attempt was given here.
#[derive(Clone, Copy, Debug, Default)]
struct Grants {
    permit: bool,
    probe: bool,
}

impl Local<'_> {
    /// Decides, and says whether anything was passed over for want of a permit or a probe. The caller has refreshed the shadow.
    pub(super) fn decide(&self, ask: &Ask) -> (Answer, bool) {
        let config = &self.snapshot.config;
        let prior = ask
            .last_failure
            .as_ref()
            .and_then(|failure| classified(config, failure, self.now));
        let so_far = match &prior {
            None => Arc::clone(&ask.so_far),
            Some(prior) => {
                let mut so_far = AttemptsSoFar::clone(&ask.so_far);
                so_far.attempts.push(prior.clone());
                so_far.last_is_new = true;
                Arc::new(so_far)
            }
        };
        let route = routing::resolve_request(config, &ask.facts);
        let combo = route.as_ref().is_some_and(|route| route.combo.is_some());
        let (decision, grants, full) = self.decide_with_grants(ask, &so_far);
        let next_target_same_provider = match (&route, &prior) {
            (Some(route), Some(prior)) => {
                routing::next_target_same_provider(route, prior, &decision)
            }
            (None, _) | (_, None) => false,
        };
        let answer = Answer {
            decision: self.step(ask, decision, grants),
            classification: prior.as_ref().map(|prior| prior.classification.clone()),
            failed_at: prior.map_or(self.now, |prior| prior.failed_at),
            next_target_same_provider,
            combo,
            local: true,
        };
        (answer, full)
    }

    /// Decides again as long as the permit or the probe that a decision needs is not to be had.
    fn decide_with_grants(&self, ask: &Ask, so_far: &AttemptsSoFar) -> (Decision, Grants, bool) {
        let overlay = self.shadow.over(self.view);
        let has_credential =
            |connection: &ConnectionId| self.snapshot.credentials.contains_key(connection);
        let counters = &self.snapshot.counters;
        let turns = DecisionTurns::alone(counters);
        let mut view = WithFull::new(&overlay, BTreeSet::new());
        // Of a quota pool, which sends also without a permit when nothing else is left.
        let mut unheld = None;
        let random = rand::random();
        for _ in 0..MAX_WALKS {
            let decision = routing::decide_cut_off(&Input {
                config: &self.snapshot.config,
                view: &view,
                facts: &ask.facts,
                so_far,
                egress: ask.egress.as_ref(),
                telemetry: self.telemetry,
                turns: &turns,
                now: self.now,
                random,
                has_credential: &has_credential,
            });
            let (dispatch, permit, is_unheld) = match decision {
                Decision::Dispatch(dispatch) => match self.permit(ask, &dispatch) {
                    Some(permit) => (dispatch, permit, false),
                    None => {
                        view.fill(dispatch.connection.clone());
                        view.fill_all(self.full_connections(ask, &dispatch.provider));
                        let sends = dispatch.permit.is_some_and(|demand| {
                            matches!(demand.policy, PermitPolicy::WaitThenSend(_))
                        });
                        let may_send = self.grants_here != GrantsHere::PassOver;
                        if sends && may_send && unheld.is_none() {
                            unheld = Some(dispatch);
                        }
                        continue;
                    }
                },
                // Nothing is shared here, so every number is known.
                Decision::TakeTurn(key) => {
                    turns.fetched(key, None);
                    continue;
                }
                // No view here has pins to be read.
                decision @ (Decision::Wait(_)
                | Decision::Reject(_)
                | Decision::ReadPin(_)
                | Decision::Plan(_)) => match unheld.take() {
                    Some(dispatch) => {
                        self.goes_unheld(&dispatch);
                        (dispatch, false, true)
                    }
                    None => return (decision, Grants::default(), view.any()),
                },
            };
            let probe = dispatch.needs_probe;
            if !probe || self.takes_probe(ask, &dispatch) {
                if permit {
                    self.metrics.local_permits.inc();
                }
                // Going elsewhere would cost what was taken; being a little unfair does not.
                if probe || permit || is_unheld {
                    turns.settle_anyway(&dispatch, self.now);
                } else if !turns.settle(&dispatch, self.now) {
                    continue;
                }
                let grants = Grants { permit, probe };
                return (Decision::Dispatch(dispatch), grants, view.any());
            }
            if let Some(state) = self.without_probe(&overlay, &dispatch.provider) {
                view.see(dispatch.provider.clone(), state);
            }
            // What the control plane granted is its own to decide on.
            if let GrantsHere::Shares(_) = self.grants_here {
                self.permits.release(ask.attempt.number);
            }
        }
        let rejection = unavailable("no permit or probe of any provider is to be had");
        (
            Decision::Reject(Box::new(rejection)),
            Grants::default(),
            true,
        )
    }

    /// Whether the dispatch has a permit, which it may not need; `None` when our share of its pool is out. The permit of
    /// an attempt that this one replaces is free for it.
    fn permit(&self, ask: &Ask, dispatch: &Decided) -> Option<bool> {
        let Some(demand) = dispatch.permit else {
            return Some(false);
        };
        let share = self.share(demand.cap);
        if let Some(replaced) = ask.replaces.filter(|_| share > 0) {
            self.permits.release(replaced.number);
        }
        let pool = PoolName {
            provider: dispatch.provider.clone(),
            connection: dispatch.connection.clone(),
        };
        self.permits
            .take_share(ask.attempt.number, &pool, share)
            .then_some(true)
    }

    /// How many requests may run at once on a connection with permits given out here.
    fn share(&self, cap: u32) -> u32 {
        match self.grants_here {
            GrantsHere::PassOver | GrantsHere::Policy => 0,
            GrantsHere::Shares(planes) => permit::share(cap, planes),
        }
    }

    /// The connections of a provider whose share is out, so that they are passed over together.
    fn full_connections(&self, ask: &Ask, provider: &ProviderId) -> Vec<ConnectionId> {
        let held = self.permits.held_of(provider);
        let is_full = |connection: &ConnectionId, cap| {
            let numbers = held.get(connection).map(Vec::as_slice).unwrap_or_default();
            let held = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            !numbers.contains(&ask.attempt.number) && held >= self.share(cap)
        };
        let entry = self.snapshot.config.provider(provider);
        let connections = entry.into_iter().flat_map(|entry| &entry.connections);
        connections
            .filter(|it| permit::cap(it).is_some_and(|cap| is_full(&it.id, cap)))
            .map(|connection| connection.id.clone())
            .collect()
    }

    /// Takes the probe that a dispatch needs, if probes are given out here.
    fn takes_probe(&self, ask: &Ask, dispatch: &Decided) -> bool {
        let (provider, scene) = (&dispatch.provider, self.scene());
        let taken = matches!(self.grants_here, GrantsHere::Shares(_))
            && self.shadow.take_probe(provider, ask.attempt, scene);
        if taken {
            self.metrics.local_probes.inc();
        }
        taken
    }

    /// How a provider is seen whose probe is not to be had.
    fn without_probe(&self, view: &impl View, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        let entry = self.snapshot.config.provider(provider)?;
        let mut state = Arc::unwrap_or_clone(view.provider(provider)?);
        state
            .breaker
            .withhold_probe(self.now, &entry.policy.breaker);
        Some(Arc::new(state))
    }

    /// A request of a quota pool goes on without a permit.
    fn goes_unheld(&self, dispatch: &Decided) {
        self.metrics.local_unheld.inc();
        if let Some(left_out) = self.unheld_lines.lock().tell(self.now) {
            tracing::warn!(
                connection = %dispatch.connection,
                left_out,
                "the control plane gave no permit in time; the request goes on without one"
            );
        }
    }

    fn scene(&self) -> Scene<'_> {
        Scene {
            config: &self.snapshot.config,
            view: self.view,
            now: self.now,
            newest_attempt: self.newest_attempt,
        }
    }

    fn step(&self, ask: &Ask, decision: Decision, grants: Grants) -> Step {
        match decision {
            Decision::Wait(wait) => Step::Wait {
                kind: wait.kind,
                wait: Duration::from_millis(wait.wait_ms),
            },
            Decision::Reject(rejection) => Step::Reject(rejection),
            Decision::Plan(plan) => Step::Plan(plan),
            Decision::TakeTurn(_) | Decision::ReadPin(_) => Step::Reject(Box::new(unavailable(
                "what the fleet shares is not to be had",
            ))),
            Decision::Dispatch(dispatch) => {
                let credential_version = self
                    .snapshot
                    .credentials
                    .get(&dispatch.connection)
                    .map_or(0, |credential| credential.version);
                // Versions of the store, never the shadow's own: the control plane will compare them.
                let epoch = match self.view.provider(&dispatch.provider) {
                    Some(state) => match state.breaker.epoch {
                        Mark::At(version) => version,
                        Mark::Never | Mark::ThisWrite => Version::default(),
                    },
                    None => Version::default(),
                };
                Step::Dispatch(Box::new(Dispatch {
                    attempt: Attempt {
                        id: ask.attempt,
                        decided_on: self.view.version(Shard::of_provider(&dispatch.provider)),
                        epoch,
                        credential_version,
                        provider: dispatch.provider,
                        connection: dispatch.connection,
                        model: dispatch.model,
                        egress: ask.egress.clone(),
                        probe: grants.probe,
                        synthetic: false,
                    },
                    pass: dispatch.pass,
                    target: dispatch.target,
                    permit: grants.permit,
                    report_at_readiness: dispatch.report_at_readiness || grants.probe,
                    target_key: dispatch.target_key.as_ref().to_owned(),
                    combo: dispatch.combo,
                    excluded: dispatch.excluded,
                    deadlines: Deadlines {
                        target: dispatch.timeout_ms.map(Duration::from_millis),
                        ..self.snapshot.config.settings.attempt_limits().into()
                    },
                    order: dispatch.order,
                    order_version: self.snapshot.config.version,
                    max_tools: dispatch.max_tools,
                    emergency_max_tokens: dispatch.emergency_max_tokens,
                }))
            }
        }
    }
}

/// The last failure as the rules see it. A provider that left the configuration has no target any more, so
/// what its failure meant matters no longer; it is read with the defaults of another.
fn classified(config: &Config, failure: &LastFailure, now: Timestamp) -> Option<PriorAttempt> {
    let attempt = &failure.attempt;
    let providers = &config.providers;
    let entry = providers
        .get(&attempt.provider)
        .or_else(|| providers.values().next())?;
    let at = failure.occurred_at.min(now);
    let connection = config.connection(&attempt.connection);
    let context = ClassifyContext::of(&attempt.provider, &entry.policy, &attempt.model, at)
        .on(connection.map(AsRef::as_ref));
    Some(PriorAttempt {
        attempt: attempt.clone(),
        classification: classify(&failure.outcome, &context),
        failed_at: at,
        pass: failure.pass,
        target: failure.target,
    })
}

/// The answer of a data plane that has no configuration yet.
pub(super) fn without_configuration(ask: &Ask, now: Timestamp) -> Answer {
    let rejection = unavailable("this data plane has no configuration yet");
    rejected(None, ask, rejection, now)
}

/// An answer that ends the request without a decision.
pub(super) fn rejected(
    snapshot: Option<&Snapshot>,
    ask: &Ask,
    rejection: Rejection,
    now: Timestamp,
) -> Answer {
    let failed = ask.last_failure.as_ref();
    let prior = snapshot
        .zip(failed)
        .and_then(|(snapshot, failure)| classified(&snapshot.config, failure, now));
    Answer {
        decision: Step::Reject(Box::new(rejection)),
        classification: prior.map(|prior| prior.classification),
        failed_at: failed.map_or(now, |failure| failure.occurred_at),
        next_target_same_provider: false,
        combo: false,
        local: true,
    }
}

fn unavailable(message: &str) -> Rejection {
    Rejection {
        status: 503,
        code: "control_plane_unreachable".to_owned(),
        error_type: "server_error".to_owned(),
        message: message.to_owned(),
        retry_after_secs: Some(1),
        pass_through: false,
        terminal_reason: "control_plane_unreachable".to_owned(),
        pool_size: 0,
        attempted: 0,
        excluded: Vec::new(),
        lease: None,
    }
}
