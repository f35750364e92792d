//! One description of every member of the settings: its shape, and its bounds over the API and as stored
//! (`sessions-and-streams.md` §3.3).
//!
//! Types and built-in values are those of the Rust types; this table holds what a type cannot say. The strict
//! reading, the stored reading, the list of effective values, the JSON Schema and the check of the
//! documentation all walk it, so a bound stands in one place. Tests hold it against the types: no member may
//! be missing on either side.

use crate::affinity::MAX_AFFINITY_TTL_MS;

use super::member::{Bounds, Member, Shape};
use super::{
    credential_health_check, error_rules, gate, leases, permits, request_queue, routing,
    stream_recovery, streams, token_refresh,
};

/// Thresholds of a breaker, in failures.
pub(super) const THRESHOLD: Bounds = Bounds::same(1, 1_000);
/// Reset timeout of a breaker, in ms.
pub(super) const RESET_TIMEOUT_MS: Bounds = Bounds::same(1_000, 86_400_000);
/// Longest wait for a cooldown and longest total of such waits, in ms.
pub const MAX_COOLDOWN_WAIT_MS: u64 = 300_000;

const WAITS: Bounds = Bounds::same(0, 10);
const WAIT_MS: Bounds = Bounds::same(0, MAX_COOLDOWN_WAIT_MS);
const DEDUP_MS: Bounds = Bounds::same(0, 60_000);

/// Every section.
pub(super) const SECTIONS: &[Member] = &[
    Member::members("providerBreaker", BREAKER),
    Member::members("connectionCooldown", COOLDOWN),
    Member::members("providerCooldown", gate::MEMBERS),
    Member::members("modelLockout", LOCKOUT),
    Member::members("banDetection", error_rules::BAN_DETECTION),
    Member::entries("providerErrorRules"),
    Member::members("errorRules", error_rules::ALLOWLISTS),
    Member::entries("dailyReset"),
    Member::members("waitForCooldown", WAIT_FOR_COOLDOWN),
    Member::members("comboCooldownWait", COMBO_COOLDOWN_WAIT),
    Member::members("quotaPreflight", routing::QUOTA_PREFLIGHT),
    Member::members("retryBudget", routing::RETRY_BUDGET),
    Member::members("emergencyFallback", routing::EMERGENCY_FALLBACK),
    Member::members("quotaShareConcurrencyLimit", QUOTA_SHARE_CONCURRENCY_LIMIT),
    Member::entries("comboDefaults"),
    Member::entries("comboProviderOverrides"),
    Member::members("streams", streams::MEMBERS),
    Member::members("streamRecovery", stream_recovery::MEMBERS),
    Member::members("tokenRefresh", token_refresh::MEMBERS),
    Member::members("tokenRefreshBreaker", token_refresh::BREAKER),
    Member::members("credentialHealthCheck", credential_health_check::MEMBERS),
    Member::members("requestQueue", request_queue::MEMBERS),
    Member::entries("providerQuotaOverrides"),
    Member::members("permits", permits::MEMBERS),
    Member::members("routing", routing::ROUTING),
    Member::whole("sessionAffinityTtlMs", Bounds::same(0, MAX_AFFINITY_TTL_MS)),
    Member::flag("sessionAffinityBodyKeys"),
    Member::members("leases", leases::MEMBERS),
];

const BREAKER: &[Member] = &[
    Member::members("oauth", BREAKER_CLASS),
    Member::members("apikey", BREAKER_CLASS),
    Member::members("local", BREAKER_CLASS),
    Member::whole("dedupConnectionMs", DEDUP_MS),
    Member::whole("dedupProviderMs", DEDUP_MS),
    Member::whole("probeTtlMs", Bounds::same(1_000, 600_000)),
];

const BREAKER_CLASS: &[Member] = &[
    Member::whole("degradationThreshold", THRESHOLD),
    Member::whole("failureThreshold", THRESHOLD),
    Member::whole("resetTimeoutMs", RESET_TIMEOUT_MS),
];

const COOLDOWN: &[Member] = &[
    Member::members("oauth", COOLDOWN_CLASS),
    Member::members("apikey", COOLDOWN_CLASS),
    Member::members("local", COOLDOWN_CLASS),
];

const COOLDOWN_CLASS: &[Member] = &[
    Member::whole("baseCooldownMs", Bounds::same(0, 86_400_000)),
    Member::flag("useUpstreamRetryHints"),
    Member::flag("useUpstream429BreakerHints"),
    Member::whole("maxBackoffSteps", Bounds::same(0, 32)),
];

const LOCKOUT: &[Member] = &[
    Member::flag("enabled"),
    Member {
        name: "errorCodes",
        shape: Shape::Numbers {
            each: Bounds::same(100, 599),
            // There are no more statuses than this.
            most: 500,
        },
    },
    Member::whole("baseCooldownMs", Bounds::same(5_000, 600_000)),
    Member::whole("maxCooldownMs", Bounds::same(5_000, 3_600_000)),
    Member::whole("maxBackoffSteps", Bounds::same(0, 20)),
    Member::flag("useExponentialBackoff"),
];

const WAIT_FOR_COOLDOWN: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("maxRetries", WAITS),
    Member::whole("maxRetryWaitSec", Bounds::same(0, 300)),
    Member::whole("budgetMs", WAIT_MS),
];

const COMBO_COOLDOWN_WAIT: &[Member] = &[
    Member::flag("enabled"),
    Member::whole("maxWaitMs", WAIT_MS),
    Member::whole("maxAttempts", WAITS),
    Member::whole("budgetMs", WAIT_MS),
];

const QUOTA_SHARE_CONCURRENCY_LIMIT: &[Member] = &[Member::flag("enabled")];
