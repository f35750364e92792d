//! Settings of the token refresh (`failure-state.md` §3.9, decision 15). The numbers the schedule of
//! [`crate::refresh`] runs on.

use serde::{Deserialize, Serialize};

use crate::config::Violations;

use super::member::{Bounds, Member};

/// Members of `tokenRefresh`.
pub(super) const MEMBERS: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("sweepIntervalMs", Bounds::same(100, 3_600_000)),
    Member::whole("marginMs", Bounds::same(0, 86_400_000)),
    Member::whole("retryBaseMs", Bounds::same(100, 86_400_000)),
    Member::whole("leaseMs", Bounds::same(2_000, 600_000)),
    // Half of the shortest lease is the least, so that a guard that fits can always be found.
    Member::whole("guardMs", Bounds::same(1_000, 300_000)),
    Member::whole("concurrency", Bounds::same(1, 256)),
];

/// Members of `tokenRefreshBreaker`.
pub(super) const BREAKER: &[Member] = &[
    Member::text("scope"),
    Member::whole("failureThreshold", Bounds::same(1, 100)),
    Member::whole("cooldownMs", Bounds::same(60_000, 86_400_000)),
];

/// What `tokenRefreshBreaker.scope` may be; the first is the default.
const BREAKER_SCOPES: [&str; 2] = ["provider", "connection"];

/// `tokenRefreshBreaker`: a section of a later release of the contract, accepted and kept without effect
/// (`sessions-and-streams.md` §3.3). What a failed refresh comes to is the connection's own, see `tokenRefresh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TokenRefreshBreakerSettings {
    /// Accepted and kept without effect: `provider` or `connection`.
    pub scope: String,
    /// Accepted and kept without effect.
    pub failure_threshold: u32,
    /// Accepted and kept without effect.
    pub cooldown_ms: u64,
}

impl Default for TokenRefreshBreakerSettings {
    fn default() -> Self {
        Self {
            scope: BREAKER_SCOPES[0].to_owned(),
            failure_threshold: 5,
            cooldown_ms: 1_800_000,
        }
    }
}

impl TokenRefreshBreakerSettings {
    /// Adds what does not fit together.
    pub(super) fn conflicts(&self, found: &mut Violations) {
        if !BREAKER_SCOPES.contains(&self.scope.as_str()) {
            found.push(
                "tokenRefreshBreaker.scope",
                format!("must be `{}` or `{}`", BREAKER_SCOPES[0], BREAKER_SCOPES[1]),
            );
        }
    }

    /// Makes it fit.
    pub(super) fn reconcile(&mut self) {
        if !BREAKER_SCOPES.contains(&self.scope.as_str()) {
            self.scope = Self::default().scope;
        }
    }
}

/// `tokenRefresh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TokenRefreshSettings {
    /// Refresh at all.
    pub enabled: bool,
    /// Between two sweeps. Also the first pause after a refresh failed whose token still works.
    pub sweep_interval_ms: u64,
    /// A token is renewed this long before it runs out, but not before half of its life has passed.
    pub margin_ms: u64,
    /// First pause after a refresh of an `expired` connection failed, before it is doubled.
    pub retry_base_ms: u64,
    /// How long one replica may hold a refresh.
    pub lease_ms: u64,
    /// How long before its end a lease is not used any more; at most half of `leaseMs`. The answer of a token
    /// endpoint is waited for during lease less guard.
    pub guard_ms: u64,
    /// Refreshes at the same time of one replica.
    pub concurrency: u32,
}

impl Default for TokenRefreshSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            sweep_interval_ms: 60_000,
            margin_ms: 300_000,
            retry_base_ms: 300_000,
            lease_ms: 30_000,
            guard_ms: 10_000,
            concurrency: 8,
        }
    }
}

impl TokenRefreshSettings {
    /// How long the answer of a token endpoint is waited for, in ms.
    #[must_use]
    pub fn answer_limit_ms(&self) -> u64 {
        self.lease_ms.saturating_sub(self.guard_ms)
    }

    /// Adds what does not fit together.
    pub(super) fn conflicts(&self, found: &mut Violations) {
        let (guard, longest) = (self.guard_ms, self.longest_guard_ms());
        if guard > longest {
            found.push(
                "tokenRefresh.guardMs",
                format!("must be at most half of leaseMs ({longest}), is {guard}"),
            );
        }
    }

    /// Makes it fit.
    pub(super) fn reconcile(&mut self) {
        self.guard_ms = self.guard_ms.min(self.longest_guard_ms());
    }

    fn longest_guard_ms(&self) -> u64 {
        self.lease_ms / 2
    }
}
