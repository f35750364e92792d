//! The view with the request's own failures in it, so that a request sees them at once, whichever replica
//! answers and however far behind its view is (`architecture.md` §2, Decide).
//!
//! A failure that the view knows already is applied a second time here. That is harmless: the episode rule and
//! the de-duplication marks make the second time change nothing that matters (decisions 9 and 10).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{ConnectionId, ProviderId};
use crate::state::apply::{Judged, Subject, apply_classified};
use crate::state::{ConnectionState, ProviderState};

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
            view.apply(input, prior, vetoed, route);
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
        next_target_same_provider: bool,
        route: &Route<'_>,
    ) {
        let (provider, connection) = (&prior.attempt.provider, &prior.attempt.connection);
        let Some(entry) = input.config.provider(provider) else {
            return;
        };
        let mut provider_state = self
            .provider(provider)
            .map_or_else(ProviderState::default, Arc::unwrap_or_clone);
        let mut connection_state = self
            .connection(provider, connection)
            .map_or_else(ConnectionState::default, Arc::unwrap_or_clone);
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
        self.providers.insert(provider, Arc::new(provider_state));
        self.connections
            .insert(connection, Arc::new(connection_state));
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
