//! The settings that the contract names (`sessions-and-streams.md` §3.3), row by row: each is one of ours, or has another
//! name here. `UPDATE_DOCS=1` writes the table of the documentation that names the latter, and whose bounds differ.

use std::collections::BTreeSet;

use super::schema::{agrees, between, documented_members};

/// Rows whose members are here under the same name.
const KEPT: &[&str] = &[
    "requestQueue.autoEnableApiKeyProviders",
    "requestQueue.requestsPerMinute",
    "requestQueue.minTimeBetweenRequestsMs",
    "requestQueue.concurrentRequests",
    "requestQueue.globalConcurrentRequests",
    "requestQueue.maxWaitMs",
    "requestQueue.maxQueueDepth",
    "connectionCooldown.<class>.baseCooldownMs",
    "connectionCooldown.<class>.useUpstreamRetryHints",
    "connectionCooldown.<class>.useUpstream429BreakerHints",
    "connectionCooldown.<class>.maxBackoffSteps",
    "providerBreaker.<class>.failureThreshold",
    "providerBreaker.<class>.degradationThreshold",
    "providerBreaker.<class>.resetTimeoutMs",
    "providerBreaker.dedupConnectionMs",
    "providerBreaker.dedupProviderMs",
    "providerBreaker.probeTtlMs",
    "tokenRefreshBreaker.scope",
    "tokenRefreshBreaker.failureThreshold",
    "tokenRefreshBreaker.cooldownMs",
    "credentialHealthCheck.intervalMinutes",
    "waitForCooldown.enabled",
    "waitForCooldown.maxRetries",
    "waitForCooldown.maxRetryWaitSec",
    "waitForCooldown.budgetMs",
    "comboCooldownWait.enabled",
    "comboCooldownWait.maxWaitMs",
    "comboCooldownWait.maxAttempts",
    "comboCooldownWait.budgetMs",
    "quotaShareConcurrencyLimit.enabled",
    "providerCooldown.enabled",
    "providerCooldown.minRetryCooldownMs",
    "providerCooldown.maxRetryCooldownMs",
    "providerCooldown.<class>.providerFailureThreshold",
    "providerCooldown.<class>.providerFailureWindowMs",
    "providerCooldown.<class>.providerCooldownMs",
    "quotaPreflight.enabled",
    "quotaPreflight.defaultThresholdPercent",
    "quotaPreflight.warnThresholdPercent",
    "quotaPreflight.providerWindowDefaults",
    "streamRecovery.enabled",
    "streamRecovery.continueMidStream",
    "streamRecovery.attemptDeadlineMs",
    "streamRecovery.throughputWatchdog.enabled",
    "streamRecovery.throughputWatchdog.warmupMs",
    "streamRecovery.throughputWatchdog.windowMs",
    "streamRecovery.throughputWatchdog.minUsefulBytesPerSecond",
    "streamRecovery.throughputWatchdog.minUsefulBytes",
    "providerQuotaOverrides",
    "modelLockout.enabled",
    "modelLockout.errorCodes",
    "modelLockout.baseCooldownMs",
    "modelLockout.maxCooldownMs",
    "modelLockout.maxBackoffSteps",
    "modelLockout.useExponentialBackoff",
    "banDetection.extraPhrases",
    "banDetection.autoDisable",
    "providerErrorRules",
    "errorRules.fullTextProviders",
    "errorRules.scopeProviders",
    "errorRules.egressBucketedProviders",
    "dailyReset",
    "leases.reservePool",
    "leases.horizonMs",
    "leases.drainMs",
    "leases.guardMs",
    "permits.ttlMs",
    "permits.heartbeatMs",
    "retryBudget.ratio",
    "retryBudget.minConcurrent",
    "streams.earlyKeepaliveMs",
    "routing.maxWaitingPerDataPlane",
    "emergencyFallback.provider",
    "emergencyFallback.model",
    "emergencyFallback.maxOutputTokens",
    "emergencyFallback.phrases",
    "sessionAffinityTtlMs",
];

/// The contract's name, the member here, and where that one stands.
const RENAMED: &[(&str, &str, &str)] = &[
    (
        "routing.messageStickiness",
        "sessionStickiness",
        "of a combo's `config`, or of `comboDefaults`",
    ),
    (
        "routing.promptCacheAffinity",
        "promptCacheAffinity",
        "of a combo's `config`, or of `comboDefaults`",
    ),
    (
        "routing.affinityBodyKeys",
        "sessionAffinityBodyKeys",
        "of the settings",
    ),
    ("accountStrategy", "accountStrategy", "of a provider"),
    ("max_concurrent", "maxConcurrent", "of a connection"),
    ("disableCooling", "disableCooling", "of a connection"),
];

/// Rows with other bounds than the contract's, and why.
const BOUNDED: &[(&str, &str)] = &[(
    "permits.ttlMs",
    "at least 5 000, not 1 000: one renewal may hang for 1 s at each of two control planes and be tried again after the \
     pause, and what it renews has not lapsed",
)];

#[test]
fn every_row_of_the_contract_is_a_setting_in_the_schema() {
    let documented = documented_members();
    let missing: Vec<_> = KEPT
        .iter()
        .filter(|it| !documented.contains(**it))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    for (_, member, _) in RENAMED {
        assert!(documented.contains(*member), "{member}");
    }
    let rows: BTreeSet<&str> = KEPT
        .iter()
        .chain(RENAMED.iter().map(|(row, ..)| row))
        .copied()
        .collect();
    let count = KEPT.len() + RENAMED.len();
    assert_eq!(rows.len(), count, "a row has one fate");
    let mut table = String::from("| contract | here |\n|---|---|\n");
    for (row, member, place) in RENAMED {
        table.push_str(&format!("| `{row}` | `{member}` {place} |\n"));
    }
    for (row, reason) in BOUNDED {
        assert!(KEPT.contains(row), "{row}");
        table.push_str(&format!("| `{row}` | {reason} |\n"));
    }
    let page = between("<!-- contract: begin -->", "<!-- contract: end -->", &table);
    agrees("configuration.md", &page);
}
