//! Decisions where leases cannot be seen (decision 42b).
//!
//! Whoever is cut off from the control plane hears of no new lease. What some key may lease may be leased by now, so for
//! requests without a lease it comes last: after every other account of every target, and before anything is waited for
//! or given up. What was heard of a lease before holds until its end all the same.

use std::sync::Arc;

use crate::ids::{ConnectionId, ProviderId, Shard};
use crate::state::{ConnectionState, ProviderState};
use crate::version::Version;

use super::driver::decide;
use super::{Decision, Input, View};

/// Decides like [`decide`], but what some key may lease comes last for requests without a lease.
#[must_use]
pub fn decide_cut_off(input: &Input<'_>) -> Decision {
    if input.config.lease_pool.is_empty() || input.facts.is_managed() {
        return decide(input);
    }
    let view = Reserving(input.view);
    let without_pool = decide(&Input {
        view: &view,
        ..*input
    });
    match without_pool {
        Decision::Reject(_) => decide(input),
        other => other,
    }
}

/// The view beneath, with the pool reserved.
struct Reserving<'a>(&'a dyn View);

impl View for Reserving<'_> {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        self.0.provider(provider)
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.0.connection(provider, connection)
    }

    fn version(&self, shard: Shard) -> Version {
        self.0.version(shard)
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        self.0.is_full(connection)
    }

    fn reserves_pool(&self) -> bool {
        true
    }
}
