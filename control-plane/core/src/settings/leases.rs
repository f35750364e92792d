//! Settings of exclusive leases (decisions 41 and 42, `sessions-and-streams.md` §3.3). The numbers that [`crate::lease`] runs on.

use serde::{Deserialize, Serialize};

use crate::config::Violations;

use super::member::{Bounds, Member};

/// Members of `leases`.
pub(super) const MEMBERS: &[Member] = &[
    Member::whole("horizonMs", Bounds::same(5_000, 600_000)),
    // Far below the life of a lease, which would else have no time in which something may start.
    Member::whole("guardMs", Bounds::same(0, 10_000)),
    Member::whole("drainMs", Bounds::same(0, 600_000)),
    Member::flag("reservePool"),
];

/// `leases`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaseSettings {
    /// How long a data plane may use a leased connection without asking again.
    pub horizon_ms: u64,
    /// How long before the end of lease or horizon nothing is started any more, and how long after a horizon its
    /// connection is not given to others; at most a third of `horizonMs`. A data plane that stands still for longer, or a
    /// clock of the database that steps forward by more, may let owners overlap.
    pub guard_ms: u64,
    /// How long what is in flight when its lease ends may go on; 0 = not at all.
    pub drain_ms: u64,
    /// Requests without a lease never use a connection that some key may lease, leased or not.
    pub reserve_pool: bool,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            horizon_ms: 30_000,
            guard_ms: 500,
            drain_ms: 30_000,
            reserve_pool: false,
        }
    }
}

impl LeaseSettings {
    /// Adds what does not fit together.
    pub(super) fn conflicts(&self, found: &mut Violations) {
        let (guard, longest) = (self.guard_ms, self.longest_guard_ms());
        if guard > longest {
            found.push(
                "leases.guardMs",
                format!("must be at most a third of horizonMs ({longest}), is {guard}"),
            );
        }
    }

    /// Makes it fit.
    pub(super) fn reconcile(&mut self) {
        self.guard_ms = self.guard_ms.min(self.longest_guard_ms());
    }

    fn longest_guard_ms(&self) -> u64 {
        self.horizon_ms / 3
    }
}
