//! The settings document: contract names, defaults and bounds (`sessions-and-streams.md` §3.3).
//!
//! What people wrote is kept as it is ([`WrittenSettings`]) and read in two ways. What they send is read
//! strictly: an unknown member, a wrong type, a number out of bounds is refused with its path, so that a bad
//! document never replaces a good one. What the store holds is read leniently, so that a replica starts whatever
//! stands there. [`ProviderPolicy::resolve`] turns settings, class and environment into the numbers the state
//! machines of one provider run on; [`effective`] tells people what acts and why.

mod bounds;
mod credential_health_check;
mod effective;
mod entries;
mod error_rules;
mod gate;
mod leases;
mod legacy;
mod member;
mod members;
mod number;
mod overrides;
mod patch;
mod per_model_quota;
mod permits;
mod policy;
mod quota_overrides;
mod renamed;
mod request_queue;
mod routing;
mod stored;
mod stream_recovery;
mod streams;
mod strict;
#[cfg(test)]
mod tests;
mod token_refresh;
mod written;

pub use credential_health_check::CredentialHealthCheckSettings;
pub use effective::{EffectiveSetting, Source, effective, sections};
pub use error_rules::{
    BanDetectionSettings, DailyResetSettings, ErrorRulesSettings, ProviderErrorRule, RuleScope,
};
pub use gate::{GateClassSettings, ProviderCooldownSettings};
pub use leases::LeaseSettings;
pub use legacy::{LEGACY, legacy};
pub use members::MAX_COOLDOWN_WAIT_MS;
pub use overrides::{BreakerOverrides, GateClassOverrides, GateOverrides, Overrides};
pub use permits::PermitSettings;
pub use quota_overrides::ProviderQuotaOverride;
pub use request_queue::RequestQueueSettings;
pub use routing::{
    EmergencyFallbackSettings, QuotaPreflightSettings, QuotaWindowThresholds, RetryBudgetSettings,
    RoutingSettings,
};
pub use stored::StoredReading;
pub use stream_recovery::{StreamRecoverySettings, ThroughputWatchdogSettings};
pub use streams::{AttemptLimits, StreamSettings};
pub use token_refresh::{TokenRefreshBreakerSettings, TokenRefreshSettings};
pub use written::{MAX_SETTINGS_BYTES, WrittenSettings};

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::admission::PaceLimits;
use crate::ids::ProviderId;

use crate::breaker::BreakerPolicy;
use crate::classify::RuleBook;
use crate::config::ComboConfig;
use crate::cooldown::CooldownPolicy;
use crate::gate::GatePolicy;
use crate::lockout::LockoutPolicy;

/// Which defaults a provider has (`failure-state.md` §0, provider class).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ProviderClass {
    /// Subscription accounts behind OAuth.
    Oauth,
    /// API keys; also every provider that declares nothing.
    #[default]
    Apikey,
    /// On this machine or network: declared, or its base URL is loopback or private (decision 7).
    Local,
}

/// All resilience settings. Every member has a default; times are in ms. Bounds stand in `settings/members.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Settings {
    /// Provider breaker, per class.
    pub provider_breaker: ProviderBreakerSettings,
    /// Connection cooldown, per class.
    pub connection_cooldown: ConnectionCooldownSettings,
    /// Provider cooldown gate, opt-in (`failure-state.md` §2).
    pub provider_cooldown: ProviderCooldownSettings,
    /// Model lockout.
    pub model_lockout: ModelLockoutSettings,
    /// Which texts and what follows a ban (`failure-state.md` §3.7, §3.8-20).
    pub ban_detection: BanDetectionSettings,
    /// Operator rules by provider, first match first (`failure-state.md` §5.3).
    pub provider_error_rules: BTreeMap<ProviderId, Vec<ProviderErrorRule>>,
    /// Allowlists of the provider rules (decision 18).
    pub error_rules: ErrorRulesSettings,
    /// When daily quotas begin anew, by provider; UTC midnight where nothing is said (decision 22).
    pub daily_reset: BTreeMap<ProviderId, DailyResetSettings>,
    /// Waiting for a cooldown instead of failing, for requests that name no combo (`routing.md` §5.0).
    pub wait_for_cooldown: WaitForCooldownSettings,
    /// The same for combos (`routing.md` §12.1).
    pub combo_cooldown_wait: ComboCooldownWaitSettings,
    /// Leaving accounts out before their quota is used up (`routing.md` §3).
    pub quota_preflight: QuotaPreflightSettings,
    /// How many requests may be retries (decision 49).
    pub retry_budget: RetryBudgetSettings,
    /// Where a request goes when money or quota is used up (`routing.md` §13.4).
    pub emergency_fallback: EmergencyFallbackSettings,
    /// Counting the requests at once of accounts that quota pools share (`routing.md` §11.4).
    pub quota_share_concurrency_limit: QuotaShareConcurrencyLimitSettings,
    /// Members of combos that say nothing of their own (`routing.md` §1.5).
    pub combo_defaults: ComboConfig,
    /// The same for combos whose first step is at a provider, by provider; before `comboDefaults`.
    pub combo_provider_overrides: BTreeMap<ProviderId, ComboConfig>,
    /// Limits of an upstream attempt.
    pub streams: StreamSettings,
    /// Streams that break or crawl.
    pub stream_recovery: StreamRecoverySettings,
    /// Renewal of access tokens (`failure-state.md` §3.9).
    pub token_refresh: TokenRefreshSettings,
    /// Accepted and kept without effect.
    pub token_refresh_breaker: TokenRefreshBreakerSettings,
    /// Accepted and kept without effect.
    pub credential_health_check: CredentialHealthCheckSettings,
    /// What may wait, how fast requests follow each other, how long they take (`sessions-and-streams.md` §3.2).
    pub request_queue: RequestQueueSettings,
    /// Limits of a provider's connections in place of those of `requestQueue`, by provider: `rpm`, requests a minute to a
    /// connection, and `concurrency`, requests to it at once, from 1 on, both in the whole fleet. `providerConcurrency` is
    /// accepted and kept without effect.
    pub provider_quota_overrides: BTreeMap<ProviderId, ProviderQuotaOverride>,
    /// Permits of connections (decision 44).
    pub permits: PermitSettings,
    /// What requests may wait for (decision 28).
    pub routing: RoutingSettings,
    /// How long a session is sent where it went before; 0 = not at all.
    pub session_affinity_ttl_ms: u64,
    /// A session is also known by members of the body, where no header names it. Clients that begin alike may then
    /// share one.
    pub session_affinity_body_keys: bool,
    /// Exclusive leases (decisions 41 and 42).
    pub leases: LeaseSettings,
}

impl Settings {
    /// How fast requests may follow each other on a connection of a provider whose requests pass through a queue.
    #[must_use]
    pub fn pace_of(&self, provider: &ProviderId) -> PaceLimits {
        let ttl_ms = self.permits.ttl_ms;
        let pace = self.request_queue.pace(ttl_ms);
        match self.provider_quota_overrides.get(provider) {
            Some(own) => own.over(pace),
            None => pace,
        }
    }

    /// How often a data plane tells what it holds, in ms: also probes, which must not end before they are renewed.
    #[must_use]
    pub fn heartbeat_ms(&self) -> u64 {
        let for_probes = self.provider_breaker.probe_ttl_ms / 3;
        self.permits.heartbeat_ms.min(for_probes)
    }
}

/// `providerBreaker`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProviderBreakerSettings {
    /// For class `oauth`.
    pub oauth: BreakerClassSettings,
    /// For class `apikey`.
    pub apikey: BreakerClassSettings,
    /// For class `local`.
    pub local: BreakerClassSettings,
    /// A further failure of the same connection within this time is not counted; 0 = off (decision 10).
    pub dedup_connection_ms: u64,
    /// The same for network faults of a provider, whichever the connection; 0 = off.
    pub dedup_provider_ms: u64,
    /// A probe without a verdict is given up after this time (decision 8).
    pub probe_ttl_ms: u64,
}

/// One class of `providerBreaker`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BreakerClassSettings {
    /// Failures at which it shows itself degraded; below `failureThreshold`, but for class `local`. Unset = the
    /// class's default.
    pub degradation_threshold: Option<u32>,
    /// Failures at which it opens. Unset = the class's default.
    pub failure_threshold: Option<u32>,
    /// From opening to the first probe. Unset = the class's default.
    pub reset_timeout_ms: Option<u64>,
}

/// `connectionCooldown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConnectionCooldownSettings {
    /// For class `oauth`.
    pub oauth: CooldownClassSettings,
    /// For class `apikey`.
    pub apikey: CooldownClassSettings,
    /// For class `local`.
    pub local: CooldownClassSettings,
}

/// One class of `connectionCooldown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CooldownClassSettings {
    /// First step of the ladder; each further step doubles it. Unset = the class's default.
    pub base_cooldown_ms: Option<u64>,
    /// A wait that the upstream names is taken in place of the ladder. Unset = the class's default.
    pub use_upstream_retry_hints: Option<bool>,
    /// Accepted and kept without effect.
    #[serde(rename = "useUpstream429BreakerHints")]
    pub use_upstream_429_breaker_hints: Option<bool>,
    /// Steps after which the ladder grows no more. Unset = the class's default.
    pub max_backoff_steps: Option<u32>,
}

/// `modelLockout` (`failure-state.md` §4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelLockoutSettings {
    /// Failures of combo targets lock models.
    pub enabled: bool,
    /// Statuses of failures that lock a model; empty = the default list.
    pub error_codes: Vec<u16>,
    /// First lock of a model.
    pub base_cooldown_ms: u64,
    /// Longest lock of a model and longest cooldown of the ladder; at least `baseCooldownMs`.
    pub max_cooldown_ms: u64,
    /// Steps after which locks grow no more.
    pub max_backoff_steps: u32,
    /// Locks grow with each failure.
    pub use_exponential_backoff: bool,
}

/// `waitForCooldown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WaitForCooldownSettings {
    /// Wait at all.
    pub enabled: bool,
    /// Most waits of a request; 0 switches waiting off.
    pub max_retries: u32,
    /// Longest single wait, in seconds; 0 switches waiting off.
    pub max_retry_wait_sec: u64,
    /// Longest total wait of a request.
    pub budget_ms: u64,
}

/// `comboCooldownWait`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComboCooldownWaitSettings {
    /// Wait at all.
    pub enabled: bool,
    /// Longest single wait; 0 switches waiting off.
    pub max_wait_ms: u64,
    /// Most waits of a request; 0 switches waiting off.
    pub max_attempts: u32,
    /// Longest total wait of a request.
    pub budget_ms: u64,
}

/// `quotaShareConcurrencyLimit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QuotaShareConcurrencyLimitSettings {
    /// Requests of quota pools wait for a permit of an account that has `maxConcurrent`.
    pub enabled: bool,
}

/// Everything the state machines of one provider need, resolved from settings and class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderPolicy {
    /// The provider's class.
    pub class: ProviderClass,
    /// The provider keeps a quota per model: 404, 429 and 5xx lock models (`failure-state.md` §3.4). A connection
    /// may say otherwise: ask [`ProviderPolicy::keeps_quota_per_model`].
    pub per_model_quota: bool,
    /// Access tokens of the provider can be renewed: it has a token endpoint (`failure-state.md` §3.9).
    pub renews_tokens: bool,
    /// Providers whose 429s lock an egress identity for this one too, itself included; empty where the provider
    /// does not limit by address (`failure-state.md` §6).
    pub egress_family: Arc<[ProviderId]>,
    /// Breaker numbers.
    pub breaker: BreakerPolicy,
    /// Numbers of the cooldown gate.
    pub gate: GatePolicy,
    /// Cooldown numbers.
    pub cooldown: CooldownPolicy,
    /// Lockout numbers.
    pub lockout: LockoutPolicy,
    /// What errors of this provider mean, beyond what every provider's do.
    pub rules: Arc<RuleBook>,
}

impl Default for ProviderBreakerSettings {
    fn default() -> Self {
        Self {
            oauth: BreakerClassSettings::default(),
            apikey: BreakerClassSettings::default(),
            local: BreakerClassSettings::default(),
            dedup_connection_ms: 5_000,
            dedup_provider_ms: 10_000,
            probe_ttl_ms: 60_000,
        }
    }
}

impl Default for ModelLockoutSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            error_codes: vec![403, 404, 429, 502, 503, 504],
            base_cooldown_ms: 120_000,
            max_cooldown_ms: 1_800_000,
            max_backoff_steps: 10,
            use_exponential_backoff: true,
        }
    }
}

impl Default for WaitForCooldownSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_retries: 5,
            max_retry_wait_sec: 90,
            budget_ms: 300_000,
        }
    }
}

impl Default for ComboCooldownWaitSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_wait_ms: 90_000,
            max_attempts: 5,
            budget_ms: 300_000,
        }
    }
}

impl Default for QuotaShareConcurrencyLimitSettings {
    fn default() -> Self {
        Self { enabled: true }
    }
}
