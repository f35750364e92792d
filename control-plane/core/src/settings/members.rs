//! One description of every member of the settings: its shape, and its bounds over the API and as stored
//! (`sessions-and-streams.md` §3.3).
//!
//! Types and built-in values are those of the Rust types; this table holds what a type cannot say. The strict
//! reading, the stored reading, the list of effective values, the JSON Schema and the check of the
//! documentation all walk it, so a bound stands in one place. Tests hold it against the types: no member may
//! be missing on either side.

use crate::affinity::MAX_AFFINITY_TTL_MS;

use super::{
    error_rules, gate, leases, permits, request_queue, routing, stream_recovery, streams,
    token_refresh,
};

/// A member and what may stand there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// What may stand at a member.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A real boolean.
    Flag,
    /// A whole number.
    Whole(Bounds),
    /// A number from 0 to 1, fractions included.
    Share,
    /// A text. Its section's rules say which.
    Text,
    /// A list of whole numbers.
    Numbers { each: Bounds, most: usize },
    /// A list or map of entries. Each is judged by its type and by the rules of its section, so one that is no
    /// good can be told from the others.
    Entries,
    /// Members of its own.
    Members(&'static [Member]),
}

/// Smallest and largest value, both allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    api: (u64, u64),
    stored: (u64, u64),
}

/// Which bounds hold. What the API takes is always within what may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Of what people send.
    Api,
    /// Of what stands in the store.
    Stored,
}

impl Bounds {
    /// The same over the API and as stored.
    pub(super) const fn same(least: u64, most: u64) -> Self {
        Self {
            api: (least, most),
            stored: (least, most),
        }
    }

    /// More may be stored than the API takes.
    pub(super) const fn wider_stored(api: (u64, u64), stored: (u64, u64)) -> Self {
        Self { api, stored }
    }

    /// Smallest and largest.
    pub(super) const fn of(self, reach: Reach) -> (u64, u64) {
        match reach {
            Reach::Api => self.api,
            Reach::Stored => self.stored,
        }
    }

    /// Brings a number into the bounds of what is stored.
    pub(super) fn clamp(self, number: i128) -> u64 {
        let (least, most) = self.stored;
        u64::try_from(number.clamp(i128::from(least), i128::from(most))).unwrap_or(most)
    }
}

impl Member {
    pub(super) const fn flag(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Flag,
        }
    }

    pub(super) const fn whole(name: &'static str, bounds: Bounds) -> Self {
        Self {
            name,
            shape: Shape::Whole(bounds),
        }
    }

    pub(super) const fn share(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Share,
        }
    }

    pub(super) const fn text(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Text,
        }
    }

    pub(super) const fn entries(name: &'static str) -> Self {
        Self {
            name,
            shape: Shape::Entries,
        }
    }

    pub(super) const fn members(name: &'static str, members: &'static [Member]) -> Self {
        Self {
            name,
            shape: Shape::Members(members),
        }
    }
}

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
