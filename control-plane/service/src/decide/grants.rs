//! Decides again until everything that a decision needs is taken: a permit, a probe, a turn.
//!
//! What could not be taken is seen like that by the next decision: the connection as full, the provider with its probe
//! out. The permit comes first, since it is the one that may be waited for, and nobody waits with a probe in hand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tidegate_core::affinity::{PinKey, PinReading};
use tidegate_core::config::Config;
use tidegate_core::ids::{AttemptId, ConnectionId, EgressId, ProviderId, Shard};
use tidegate_core::permit;
use tidegate_core::routing::{
    AttemptsSoFar, Decision, DecisionTurns, Dispatch, Input, PermitPolicy, RequestFacts,
    View as RoutingView, WithFull, decide, remaining_ms,
};
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::version::Version;

use crate::clock::local_now;
use crate::config::Current;
use crate::permits::Taken;
use crate::pins::ReadPins;
use crate::view::View;

use super::Decider;
use super::permit::{Granted, Passed, PermitPast};
use super::probe::Probe;

/// Probes lost or refused in one decision after which it is made without any.
const MAX_PROBES: u32 = 4;
/// Pins that somebody else changed first in one decision after which it goes where it would.
const MAX_LOST_PINS: u32 = 2;

/// What one decision is about.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) current: &'a Current,
    /// The past, the same for all of the decision.
    pub(super) fleet: &'a Fleet,
    pub(super) attempt: AttemptId,
    pub(super) facts: &'a RequestFacts,
    pub(super) so_far: &'a AttemptsSoFar,
    pub(super) egress: Option<&'a EgressId>,
    pub(super) permits: &'a PermitPast,
    /// Nothing is taken after it.
    pub(super) deadline: Instant,
}

/// The view with what this decision knows better.
pub(super) struct Corrected<'a> {
    pub(super) view: &'a View,
    pub(super) config: &'a Config,
    /// Who asks: a probe that this attempt holds already does not stand in its own way.
    pub(super) attempt: AttemptId,
    /// There is no time left to ask for permits.
    pub(super) no_permits: bool,
    pub(super) pins: ReadPins,
}

impl RoutingView for Corrected<'_> {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        let state = self.view.provider(provider)?;
        if state.breaker.probe_holder() != Some(self.attempt) {
            return Some(state);
        }
        let mut state = Arc::unwrap_or_clone(state);
        state.breaker.return_probe(self.attempt);
        Some(Arc::new(state))
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.view.connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        self.view.version(shard)
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        let has_cap = || {
            let connection = self.config.connection(connection);
            connection.is_some_and(|connection| permit::cap(connection).is_some())
        };
        self.no_permits && has_cap()
    }

    fn pin(&self, key: &PinKey) -> PinReading {
        self.pins.reading(key)
    }
}

impl Decider {
    /// Decides, and takes what the decision needs. Before anything else, an attempt that was granted a permit is sent
    /// where it holds it, if that may still be used.
    pub(super) async fn with_grants(self: &Arc<Self>, question: Question<'_>) -> Granted {
        if let Some(granted) = &question.permits.granted {
            let facts = RequestFacts {
                granted: Some(granted.clone()),
                ..question.facts.clone()
            };
            let there = Question {
                facts: &facts,
                ..question
            };
            let answer = self.take_grants(there).await;
            if matches!(answer.decision, Decision::Dispatch(_)) {
                return answer;
            }
        }
        self.take_grants(question).await
    }

    /// Decides until everything that a decision needs is taken.
    async fn take_grants(self: &Arc<Self>, question: Question<'_>) -> Granted {
        let Question {
            current,
            attempt,
            permits,
            deadline,
            ..
        } = question;
        let corrected = Corrected {
            view: &self.view,
            config: &current.config,
            attempt,
            no_permits: false,
            pins: ReadPins::default(),
        };
        let mut view = WithFull::new(corrected, BTreeSet::new());
        // Who waited for a permit took its turn before.
        let turns = if permits.has_waited() {
            DecisionTurns::peeking(&current.counters)
        } else {
            DecisionTurns::new(&current.counters)
        };
        let random = rand::random();
        let mut passed = Passed::default();
        // Once an account is full, all of its provider are looked at together, and those that are full are not asked.
        let mut looked_at = BTreeSet::new();
        let mut full = BTreeSet::new();
        let mut probes: u32 = 0;
        let mut lost_pins: u32 = 0;
        loop {
            let mut unheld = false;
            let dispatch = match self.decide_on(&question, &view, &turns, random) {
                Decision::Dispatch(dispatch) => dispatch,
                Decision::TakeTurn(key) => {
                    let turn = self.shared_turn(&key, deadline).await;
                    turns.fetched(key, turn);
                    continue;
                }
                Decision::ReadPin(key) => {
                    let standing = self.pins.read(&key, self.pin_limits(deadline)).await;
                    view.beneath.pins.insert(key, standing);
                    continue;
                }
                decision @ (Decision::Wait(_) | Decision::Reject(_) | Decision::Plan(_)) => {
                    if passed.is_empty() {
                        return Granted::without(decision);
                    }
                    let left_ms = remaining_ms(&current.config, question.facts, question.so_far);
                    match passed.instead(decision, permits, left_ms) {
                        Granted {
                            decision: Decision::Dispatch(dispatch),
                            ..
                        } => {
                            unheld = true;
                            dispatch
                        }
                        answer => return answer,
                    }
                }
            };
            let mut permit = false;
            if let Some(demand) = dispatch.permit.filter(|_| !unheld) {
                let taken = if full.contains(&dispatch.connection) {
                    // Nothing else gives others a turn.
                    tokio::task::consume_budget().await;
                    Taken::Refused
                } else {
                    self.take_permit(&dispatch, demand, attempt, permits, deadline)
                        .await
                };
                if taken == Taken::Held {
                    permit = true;
                } else {
                    view.fill(dispatch.connection.clone());
                    if looked_at.insert(dispatch.provider.clone()) {
                        full.append(
                            &mut self.full_connections(&question, &dispatch.provider).await,
                        );
                    }
                    let one_to_wait_for = match demand.policy {
                        PermitPolicy::Skip => true,
                        PermitPolicy::WaitThenRefuse(_) => {
                            !permits.waited_for(&dispatch.connection)
                        }
                        PermitPolicy::WaitThenSkip(_) | PermitPolicy::WaitThenSend(_) => false,
                    };
                    if one_to_wait_for {
                        // Nobody waits for the others, so nothing need be known of them.
                        view.fill_all(std::mem::take(&mut full));
                    }
                    view.beneath.no_permits = local_now() >= deadline;
                    let unknown = taken == Taken::Unknown || view.beneath.no_permits;
                    passed.push(dispatch, demand, unknown);
                    continue;
                }
            }
            let probe = dispatch.needs_probe;
            if probe {
                probes = probes.saturating_add(1);
                if let Some(state) = self.probe_refused(&question, &dispatch, probes).await {
                    view.see(dispatch.provider.clone(), state);
                    if permit {
                        self.return_permit(&dispatch, attempt);
                    }
                    continue;
                }
            }
            if let Some(write) = &dispatch.pin {
                let limits = self.pin_limits(deadline);
                let read = &mut view.beneath.pins;
                let written = self.pins.write(write, read, limits).await;
                // A probe is not given up for it, nor what goes out of turn.
                if written.is_err() && !(probe || unheld) && lost_pins < MAX_LOST_PINS {
                    lost_pins = lost_pins.saturating_add(1);
                    if permit {
                        self.return_permit(&dispatch, attempt);
                    }
                    continue;
                }
            }
            if !(permit || probe || unheld) {
                if turns.settle(&dispatch, self.clock.now()) {
                    return Granted::dispatch(dispatch, false);
                }
                continue;
            }
            let mut dispatch = dispatch;
            while !turns.settle(&dispatch, self.clock.now()) {
                match self.decide_on(&question, &view, &turns, random) {
                    Decision::Dispatch(again) if again.connection == dispatch.connection => {
                        dispatch = again;
                    }
                    // Going elsewhere would cost what was taken; being a little unfair does not.
                    _ => {
                        turns.settle_anyway(&dispatch, self.clock.now());
                        break;
                    }
                }
            }
            if unheld {
                self.goes_unheld(&dispatch, attempt);
            }
            return Granted::dispatch(dispatch, permit);
        }
    }

    pub(super) fn decide_on(
        &self,
        question: &Question<'_>,
        view: &dyn RoutingView,
        turns: &DecisionTurns<'_>,
        random: u64,
    ) -> Decision {
        let credentials = &question.current.credentials;
        let has_credential = |connection: &ConnectionId| credentials.contains_key(connection);
        decide(&Input {
            config: &question.current.config,
            view,
            facts: question.facts,
            so_far: question.so_far,
            egress: question.egress,
            telemetry: question.fleet,
            turns,
            now: self.clock.now(),
            random,
            has_credential: &has_credential,
        })
    }

    /// Takes the probe that a dispatch needs; without it, how its provider is to be seen from now on.
    async fn probe_refused(
        self: &Arc<Self>,
        question: &Question<'_>,
        dispatch: &Dispatch,
        probes: u32,
    ) -> Option<Arc<ProviderState>> {
        let (current, provider) = (question.current, &dispatch.provider);
        let taken = if probes > MAX_PROBES {
            Probe::Refused(self.probe_out(current, provider))
        } else {
            self.take_probe(current, provider, question.attempt, question.deadline)
                .await
        };
        match taken {
            Probe::Taken => None,
            Probe::Refused(state) => Some(state),
        }
    }
}
