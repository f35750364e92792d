//! Settings of permits (decision 44, `sessions-and-streams.md` §3.3). The numbers that [`crate::permit`] runs on.

use serde::{Deserialize, Serialize};

use crate::config::Violations;
use crate::permit::{PERMIT_TTL_MS, RENEW_EVERY_MS};

use super::member::{Bounds, Member};

/// Shortest life of a permit, in ms: one renewal may hang for 1 s at each of two replicas and be tried again after the
/// pause, and the permit has not lapsed.
const MIN_TTL_MS: u64 = 5_000;

/// Members of `permits`.
pub(super) const MEMBERS: &[Member] = &[
    Member::whole("ttlMs", Bounds::same(MIN_TTL_MS, 600_000)),
    Member::whole("heartbeatMs", Bounds::same(100, 200_000)),
];

/// `permits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PermitSettings {
    /// How long a permit, or a place among `requestQueue.concurrentRequests`, stays taken by a data plane that is not heard
    /// of any more.
    pub ttl_ms: u64,
    /// How often data planes tell what they hold; at most a third of `ttlMs`, and never less often than three times in
    /// `providerBreaker.probeTtlMs`.
    pub heartbeat_ms: u64,
}

impl Default for PermitSettings {
    fn default() -> Self {
        Self {
            ttl_ms: PERMIT_TTL_MS,
            heartbeat_ms: RENEW_EVERY_MS,
        }
    }
}

impl PermitSettings {
    /// Adds what does not fit together.
    pub(super) fn conflicts(&self, found: &mut Violations) {
        let (heartbeat, longest) = (self.heartbeat_ms, self.longest_heartbeat_ms());
        if heartbeat > longest {
            found.push(
                "permits.heartbeatMs",
                format!("must be at most a third of ttlMs ({longest}), is {heartbeat}"),
            );
        }
    }

    /// Makes it fit.
    pub(super) fn reconcile(&mut self) {
        self.heartbeat_ms = self.heartbeat_ms.min(self.longest_heartbeat_ms());
    }

    fn longest_heartbeat_ms(&self) -> u64 {
        self.ttl_ms / 3
    }
}
