//! Settings of exclusive leases (decisions 41 and 42). The numbers that [`crate::lease`] runs on.

use serde::{Deserialize, Serialize};

/// `leases`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeaseSettings {
    /// How long a data plane may use a leased connection without asking again.
    pub horizon_ms: u64,
    /// How long before the end of lease or horizon nothing is started any more, and how long after a horizon its
    /// connection is not given to others; at most a third of `horizonMs`. A data plane that stands still for longer may
    /// overlap with the next owner.
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
            guard_ms: 2_000,
            drain_ms: 30_000,
            reserve_pool: false,
        }
    }
}
