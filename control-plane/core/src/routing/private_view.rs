//! The view with the request's own failures in it, so that a request sees them at once, whichever replica
//! answers and however far behind its view is (`architecture.md` §2, Decide).
//!
//! A failure that the view knows already is applied a second time here. For cooldowns and locks that is harmless: the
//! episode rule makes the second time change nothing that matters (decision 9). The breaker and the window of the gate
//! only count, and their de-duplication (decision 10) looks back for seconds, while a request may wait for minutes. So
//! neither is told again of a failure when it has counted one of the same connection as late: the request would find open
//! what is closed to everybody else. The failure that is asked about is always counted, since it is reported only after
//! the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::breaker::Breaker;
use crate::gate::ProviderGate;
use crate::ids::{ConnectionId, ProviderId};
use crate::state::apply::{Judged, Subject, apply_classified};
use crate::state::{ConnectionState, ProviderState};
use crate::time::Timestamp;

use super::resolve::Route;
use super::{AttemptsSoFar, Input, PriorAttempt, View};

/// A view for one decision. Without earlier attempts it copies nothing.
pub(super) struct PrivateView<'a> {
    base: &'a dyn View,
    providers: BTreeMap<&'a ProviderId, Arc<ProviderState>>,
    connections: BTreeMap<&'a ConnectionId, Arc<ConnectionState>>,
}

impl<'a> PrivateView<'a> {
    /// Applies every earlier attempt of the request, in order.
    pub(super) fn new(input: &Input<'a>, route: &Route<'_>) -> Self {
        let mut view = Self {
            base: input.view,
            providers: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        let attempts = &input.so_far.attempts;
        for (index, prior) in attempts.iter().enumerate() {
            let next = attempts.get(index.saturating_add(1));
            let vetoed = vetoes_breaker(input.so_far, prior, next, route);
            let is_new = next.is_none() && input.so_far.last_is_new;
            view.apply(input, prior, is_new, vetoed, route);
        }
        view
    }

    /// The provider's value.
    pub(super) fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        match self.providers.get(provider) {
            Some(state) => Some(Arc::clone(state)),
            None => self.base.provider(provider),
        }
    }

    /// A connection's value.
    pub(super) fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        match self.connections.get(connection) {
            Some(state) => Some(Arc::clone(state)),
            None => self.base.connection(provider, connection),
        }
    }

    fn apply(
        &mut self,
        input: &Input<'a>,
        prior: &'a PriorAttempt,
        is_new: bool,
        next_target_same_provider: bool,
        route: &Route<'_>,
    ) {
        let (provider, connection) = (&prior.attempt.provider, &prior.attempt.connection);
        let Some(entry) = input.config.provider(provider) else {
            return;
        };
        // The verdict of a probe is counted once, whatever else was.
        let known = self
            .base
            .provider(provider)
            .filter(|_| !is_new && !prior.attempt.probe)
            .map(|known| {
                let of_connection = self.base.connection(provider, connection);
                Knowledge::of(&known, of_connection.as_deref(), prior)
            });
        let mut provider_state = self
            .provider(provider)
            .map_or_else(ProviderState::default, Arc::unwrap_or_clone);
        let mut connection_state = self
            .connection(provider, connection)
            .map_or_else(ConnectionState::default, Arc::unwrap_or_clone);
        let counts = known.map(|known| Counts::before(known, &provider_state, &connection_state));
        // A connection that was taken out of the configuration has no target any more.
        let configured = input.config.connection(connection);
        apply_classified(
            Subject {
                provider: &mut provider_state,
                connection: configured
                    .map(|configured| (configured.as_ref(), &mut connection_state)),
            },
            &Judged {
                attempt: &prior.attempt,
                classification: &prior.classification,
                at: prior.failed_at,
                next_target_same_provider,
                combo: route.combo.is_some(),
                count: 1,
            },
            input.now,
            &entry.policy,
            provider,
        );
        if let Some(counts) = counts {
            counts.put_back(&mut provider_state, &mut connection_state);
        }
        self.providers.insert(provider, Arc::new(provider_state));
        self.connections
            .insert(connection, Arc::new(connection_state));
    }
}

/// Moments of one failure in a report and in a question may be so far apart: the question takes its time, and clocks
/// are not quite the same. In ms.
const SAME_FAILURE_MS: u64 = 1_000;

/// Who has counted a failure already, going by the view.
#[derive(Clone, Copy)]
struct Knowledge {
    breaker: bool,
    gate: bool,
}

impl Knowledge {
    fn of(
        provider: &ProviderState,
        connection: Option<&ConnectionState>,
        prior: &PriorAttempt,
    ) -> Self {
        let (breaker, gate) = (&provider.breaker, &provider.gate);
        Self {
            breaker: has_counted(
                prior,
                connection.and_then(|state| state.last_counted_failure_at),
                breaker.last_failure_at,
                breaker.last_network_failure_at,
            ),
            gate: has_counted(
                prior,
                connection.and_then(|state| state.gate.last_counted_at),
                gate.failures.newest(),
                gate.last_network_failure_at,
            ),
        }
    }
}

/// Whether a failure has been counted, or found to be told by another, going by when the last failures were that were
/// counted: of its connection, of the provider and of the network.
fn has_counted(
    prior: &PriorAttempt,
    of_connection: Option<Timestamp>,
    of_provider: Option<Timestamp>,
    of_network: Option<Timestamp>,
) -> bool {
    let is_as_late = |last: Timestamp| last.plus_ms(SAME_FAILURE_MS) >= prior.failed_at;
    if prior.classification.network && of_network.is_some_and(is_as_late) {
        return true;
    }
    match of_connection {
        Some(last) => is_as_late(last),
        // A success has ended it since, or another's failure stood for it; or the view is behind.
        None => of_provider.is_some_and(|last| last >= prior.failed_at),
    }
}

/// What was counted before a failure that the view has counted.
struct Counts {
    breaker: Option<(Breaker, Option<Timestamp>)>,
    gate: Option<(ProviderGate, Option<Timestamp>)>,
}

impl Counts {
    fn before(known: Knowledge, provider: &ProviderState, connection: &ConnectionState) -> Self {
        Self {
            breaker: known.breaker.then(|| {
                let mark = connection.last_counted_failure_at;
                (provider.breaker.clone(), mark)
            }),
            gate: known
                .gate
                .then(|| (provider.gate.clone(), connection.gate.last_counted_at)),
        }
    }

    /// As if the failure had not been counted here. What a rule asked for stays.
    fn put_back(self, provider: &mut ProviderState, connection: &mut ConnectionState) {
        if let Some((breaker, mark)) = self.breaker {
            provider.breaker = breaker;
            connection.last_counted_failure_at = mark;
        }
        if let Some((gate, mark)) = self.gate {
            provider.gate = ProviderGate {
                held: provider.gate.held,
                held_for_ms: provider.gate.held_for_ms,
                ..gate
            };
            connection.gate.last_counted_at = mark;
        }
    }
}

/// Whether the breaker leaves this failure uncounted because a combo goes on to a target of the same provider
/// (`failure-state.md` §1.6). For the last failure, where the request goes is what is being decided; the next target of
/// the request's order stands for it.
fn vetoes_breaker(
    so_far: &AttemptsSoFar,
    prior: &PriorAttempt,
    next: Option<&PriorAttempt>,
    route: &Route<'_>,
) -> bool {
    if route.combo.is_none() {
        return false;
    }
    match next {
        Some(next) => super::driver::moved_on_at_provider(
            prior,
            &next.attempt.provider,
            next.pass,
            next.target,
        ),
        None => successor(&so_far.order, prior.target)
            .and_then(|target| route.targets.get(usize::try_from(target).ok()?))
            .is_some_and(|target| target.provider == prior.attempt.provider),
    }
}

/// Which target is tried after this one; an empty order is that of the list.
fn successor(order: &[u32], target: u32) -> Option<u32> {
    if order.is_empty() {
        return target.checked_add(1);
    }
    let rank = order.iter().position(|listed| *listed == target)?;
    order.get(rank.checked_add(1)?).copied()
}
