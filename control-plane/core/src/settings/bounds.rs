//! Bounds of the settings as the API enforces them: strict, with no silent clamping
//! (`sessions-and-streams.md` §3.3).
//!
//! A member that is unset takes its default, so only what is written is looked at.

mod error_rules;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::config::{MAX_ENTRIES, Violation, Violations};
use crate::daily_reset::{DailyReset, DailyResetError};
use crate::ids::ProviderId;

use super::{
    BreakerClassSettings, ComboCooldownWaitSettings, ConnectionCooldownSettings,
    DailyResetSettings, ModelLockoutSettings, ProviderBreakerSettings, ProviderClass, Settings,
    StreamSettings, WaitForCooldownSettings, policy,
};

/// Thresholds of a breaker, in failures.
pub(super) const THRESHOLD: RangeInclusive<u32> = 1..=1_000;
/// Reset timeout of a breaker, in ms.
pub(super) const RESET_TIMEOUT_MS: RangeInclusive<u64> = 1_000..=86_400_000;
/// Longest wait for a cooldown and longest total of such waits, in ms.
pub const MAX_COOLDOWN_WAIT_MS: u64 = 300_000;

const DEDUP_MS: RangeInclusive<u64> = 0..=60_000;
const PROBE_TTL_MS: RangeInclusive<u64> = 1_000..=600_000;
const BASE_COOLDOWN_MS: RangeInclusive<u64> = 0..=86_400_000;
const COOLDOWN_STEPS: RangeInclusive<u32> = 0..=32;
const LOCK_BASE_MS: RangeInclusive<u64> = 5_000..=600_000;
const LOCK_MAX_MS: RangeInclusive<u64> = 5_000..=3_600_000;
const LOCK_STEPS: RangeInclusive<u32> = 0..=20;
const STATUS: RangeInclusive<u16> = 100..=599;
/// There are no more statuses than this.
const MAX_ERROR_CODES: usize = 500;
const WAITS: RangeInclusive<u32> = 0..=10;
const WAIT_SECS: RangeInclusive<u64> = 0..=300;
const WAIT_MS: RangeInclusive<u64> = 0..=MAX_COOLDOWN_WAIT_MS;
const CONNECT_MS: RangeInclusive<u64> = 1..=600_000;
const STREAM_MS: RangeInclusive<u64> = 0..=3_600_000;

impl Settings {
    /// Everything that is out of bounds, with fields such as `providerBreaker.apikey.failureThreshold`.
    /// Empty when the settings may be applied.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Violations::default();
        breaker(&self.provider_breaker, &mut found);
        cooldown(&self.connection_cooldown, &mut found);
        self.provider_cooldown.check(&mut found);
        lockout(&self.model_lockout, &mut found);
        daily_reset(&self.daily_reset, &mut found);
        error_rules::error_rules(self, &mut found);
        wait_for_cooldown(&self.wait_for_cooldown, &mut found);
        combo_cooldown_wait(&self.combo_cooldown_wait, &mut found);
        streams(&self.streams, &mut found);
        found.into_vec()
    }
}

fn breaker(settings: &ProviderBreakerSettings, found: &mut Violations) {
    let classes = [
        (ProviderClass::Oauth, "oauth", &settings.oauth),
        (ProviderClass::Apikey, "apikey", &settings.apikey),
        (ProviderClass::Local, "local", &settings.local),
    ];
    for (class, name, settings) in classes {
        breaker_class(class, &format!("providerBreaker.{name}"), settings, found);
    }
    found.within(
        "providerBreaker.dedupConnectionMs",
        settings.dedup_connection_ms,
        &DEDUP_MS,
    );
    found.within(
        "providerBreaker.dedupProviderMs",
        settings.dedup_provider_ms,
        &DEDUP_MS,
    );
    found.within(
        "providerBreaker.probeTtlMs",
        settings.probe_ttl_ms,
        &PROBE_TTL_MS,
    );
}

fn breaker_class(
    class: ProviderClass,
    path: &str,
    settings: &BreakerClassSettings,
    found: &mut Violations,
) {
    if let Some(threshold) = settings.failure_threshold {
        found.within(format!("{path}.failureThreshold"), threshold, &THRESHOLD);
    }
    if let Some(timeout) = settings.reset_timeout_ms {
        found.within(format!("{path}.resetTimeoutMs"), timeout, &RESET_TIMEOUT_MS);
    }
    let Some(degradation) = settings.degradation_threshold else {
        return;
    };
    let field = format!("{path}.degradationThreshold");
    found.within(field.as_str(), degradation, &THRESHOLD);
    let failure = settings
        .failure_threshold
        .unwrap_or_else(|| policy::class_defaults(class).failure_threshold);
    if class != ProviderClass::Local && degradation >= failure {
        found.push(
            field,
            format!("must be below failureThreshold ({failure}), is {degradation}"),
        );
    }
}

fn cooldown(settings: &ConnectionCooldownSettings, found: &mut Violations) {
    let classes = [
        ("oauth", &settings.oauth),
        ("apikey", &settings.apikey),
        ("local", &settings.local),
    ];
    for (name, class) in classes {
        if let Some(base) = class.base_cooldown_ms {
            found.within(
                format!("connectionCooldown.{name}.baseCooldownMs"),
                base,
                &BASE_COOLDOWN_MS,
            );
        }
        if let Some(steps) = class.max_backoff_steps {
            found.within(
                format!("connectionCooldown.{name}.maxBackoffSteps"),
                steps,
                &COOLDOWN_STEPS,
            );
        }
    }
}

fn lockout(settings: &ModelLockoutSettings, found: &mut Violations) {
    if settings.error_codes.len() > MAX_ERROR_CODES {
        found.push(
            "modelLockout.errorCodes",
            format!("must not have more than {MAX_ERROR_CODES} entries"),
        );
    } else {
        for (index, code) in settings.error_codes.iter().enumerate() {
            found.within(format!("modelLockout.errorCodes[{index}]"), *code, &STATUS);
        }
    }
    let (base, longest) = (settings.base_cooldown_ms, settings.max_cooldown_ms);
    found.within("modelLockout.baseCooldownMs", base, &LOCK_BASE_MS);
    found.within("modelLockout.maxCooldownMs", longest, &LOCK_MAX_MS);
    if longest < base {
        found.push(
            "modelLockout.maxCooldownMs",
            format!("must be at least baseCooldownMs ({base}), is {longest}"),
        );
    }
    found.within(
        "modelLockout.maxBackoffSteps",
        settings.max_backoff_steps,
        &LOCK_STEPS,
    );
}

fn daily_reset(settings: &BTreeMap<ProviderId, DailyResetSettings>, found: &mut Violations) {
    if !found.at_most("dailyReset", settings.len(), MAX_ENTRIES) {
        return;
    }
    for (provider, stated) in settings {
        let Err(error) = DailyReset::stated(&stated.time_zone, stated.hour) else {
            continue;
        };
        let member = match error {
            DailyResetError::UnknownZone => "timeZone",
            DailyResetError::UnknownHour => "hour",
        };
        found.push(format!("dailyReset.{provider}.{member}"), error.to_string());
    }
}

fn wait_for_cooldown(settings: &WaitForCooldownSettings, found: &mut Violations) {
    found.within("waitForCooldown.maxRetries", settings.max_retries, &WAITS);
    found.within(
        "waitForCooldown.maxRetryWaitSec",
        settings.max_retry_wait_sec,
        &WAIT_SECS,
    );
    found.within("waitForCooldown.budgetMs", settings.budget_ms, &WAIT_MS);
}

fn combo_cooldown_wait(settings: &ComboCooldownWaitSettings, found: &mut Violations) {
    found.within(
        "comboCooldownWait.maxWaitMs",
        settings.max_wait_ms,
        &WAIT_MS,
    );
    found.within(
        "comboCooldownWait.maxAttempts",
        settings.max_attempts,
        &WAITS,
    );
    found.within("comboCooldownWait.budgetMs", settings.budget_ms, &WAIT_MS);
}

fn streams(settings: &StreamSettings, found: &mut Violations) {
    found.within(
        "streams.connectTimeoutMs",
        settings.connect_timeout_ms,
        &CONNECT_MS,
    );
    let optional = [
        ("streams.headersTimeoutMs", settings.headers_timeout_ms),
        ("streams.readinessTimeoutMs", settings.readiness_timeout_ms),
        ("streams.idleTimeoutMs", settings.idle_timeout_ms),
        ("streams.attemptDeadlineMs", settings.attempt_deadline_ms),
    ];
    for (field, value) in optional {
        found.within(field, value, &STREAM_MS);
    }
}
