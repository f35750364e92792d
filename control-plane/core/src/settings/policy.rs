//! From settings and class to the numbers of one provider's state machines.
//!
//! Precedence, low to high: built in for the class, environment, document (`failure-state.md` §1.1,
//! `sessions-and-streams.md` §3.3).

use crate::breaker::BreakerPolicy;
use crate::classify::RuleBooks;
use crate::config::{Provider, base_url};
use crate::cooldown::CooldownPolicy;
use crate::daily_reset::DailyReset;
use crate::egress;
use crate::ids::ProviderId;
use crate::lockout::LockoutPolicy;

use super::{
    BreakerClassSettings, CooldownClassSettings, ModelLockoutSettings, Overrides, ProviderClass,
    ProviderPolicy, Settings, per_model_quota,
};

/// What is built in for one class (`failure-state.md` §1.1, §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassDefaults {
    /// Unset = derived from the failure threshold.
    degradation_threshold: Option<u32>,
    pub(super) failure_threshold: u32,
    reset_timeout_ms: u64,
    escalate_after_cycles: u32,
    max_backoff_multiplier: u32,
    base_cooldown_ms: u64,
    max_backoff_steps: u32,
    trust_hints: bool,
}

/// The table of `failure-state.md` §1.1 and §3.2.
pub(super) fn class_defaults(class: ProviderClass) -> ClassDefaults {
    match class {
        ProviderClass::Oauth => ClassDefaults {
            degradation_threshold: Some(5),
            failure_threshold: 8,
            reset_timeout_ms: 60_000,
            escalate_after_cycles: 2,
            max_backoff_multiplier: 8,
            base_cooldown_ms: 5_000,
            max_backoff_steps: 8,
            trust_hints: false,
        },
        ProviderClass::Apikey => ClassDefaults {
            degradation_threshold: Some(7),
            failure_threshold: 12,
            reset_timeout_ms: 30_000,
            escalate_after_cycles: 3,
            max_backoff_multiplier: 4,
            base_cooldown_ms: 3_000,
            max_backoff_steps: 5,
            trust_hints: true,
        },
        ProviderClass::Local => ClassDefaults {
            degradation_threshold: None,
            failure_threshold: 2,
            reset_timeout_ms: 15_000,
            escalate_after_cycles: 3,
            max_backoff_multiplier: 16,
            base_cooldown_ms: 2_000,
            max_backoff_steps: 3,
            trust_hints: false,
        },
    }
}

impl ProviderClass {
    /// The class of a provider: as declared, else `oauth` when it has a token endpoint, else `local` when its base
    /// URL names this machine or a private network, else `apikey` (decision 7).
    #[must_use]
    pub fn of(provider: &Provider) -> Self {
        match provider.class {
            Some(class) => class,
            None if provider.oauth.is_some() => Self::Oauth,
            None if base_url::is_local(&provider.base_url) => Self::Local,
            None => Self::Apikey,
        }
    }
}

impl ProviderPolicy {
    /// The numbers that hold for a provider.
    #[must_use]
    pub fn resolve(settings: &Settings, provider: &Provider, overrides: &Overrides) -> Self {
        Self::resolve_with(settings, provider, overrides, &RuleBooks::new(settings))
    }

    /// The same with the rule books of these settings, which one configuration makes once.
    pub(crate) fn resolve_with(
        settings: &Settings,
        provider: &Provider,
        overrides: &Overrides,
        books: &RuleBooks<'_>,
    ) -> Self {
        let class = ProviderClass::of(provider);
        let (breaker, cooldown) = class_policies(settings, class, overrides);
        Self {
            class,
            renews_tokens: provider.oauth.is_some(),
            per_model_quota: provider
                .per_model_quota
                .unwrap_or_else(|| per_model_quota::by_default(&provider.id, class)),
            egress_family: egress::family_of(
                &provider.id,
                &settings.error_rules.egress_bucketed_providers,
            )
            .into(),
            gate: settings.provider_cooldown.policy(class, overrides),
            cooldown,
            lockout: LockoutPolicy {
                daily_reset: daily_reset(settings, &provider.id),
                ..lockout_policy(&settings.model_lockout, breaker.reset_timeout_ms)
            },
            breaker,
            rules: books.of(&provider.id),
        }
    }
}

/// What the class alone decides, whichever provider it is.
pub(super) fn class_policies(
    settings: &Settings,
    class: ProviderClass,
    overrides: &Overrides,
) -> (BreakerPolicy, CooldownPolicy) {
    let (breaker, cooldown) = class_settings(settings, class);
    let defaults = class_defaults(class);
    let breaker = breaker_policy(class, &defaults, breaker, settings, overrides);
    let cooldown = CooldownPolicy {
        base_ms: cooldown
            .base_cooldown_ms
            .unwrap_or(defaults.base_cooldown_ms),
        max_backoff_steps: cooldown
            .max_backoff_steps
            .unwrap_or(defaults.max_backoff_steps),
        cap_ms: settings.model_lockout.max_cooldown_ms,
        trust_hints: cooldown
            .use_upstream_retry_hints
            .unwrap_or(defaults.trust_hints),
    };
    (breaker, cooldown)
}

fn class_settings(
    settings: &Settings,
    class: ProviderClass,
) -> (&BreakerClassSettings, &CooldownClassSettings) {
    let (breaker, cooldown) = (&settings.provider_breaker, &settings.connection_cooldown);
    match class {
        ProviderClass::Oauth => (&breaker.oauth, &cooldown.oauth),
        ProviderClass::Apikey => (&breaker.apikey, &cooldown.apikey),
        ProviderClass::Local => (&breaker.local, &cooldown.local),
    }
}

fn breaker_policy(
    class: ProviderClass,
    defaults: &ClassDefaults,
    stored: &BreakerClassSettings,
    settings: &Settings,
    overrides: &Overrides,
) -> BreakerPolicy {
    let environment = overrides.of(class);
    let failure_threshold = stored
        .failure_threshold
        .or(environment.failure_threshold)
        .unwrap_or(defaults.failure_threshold);
    let degradation = stored
        .degradation_threshold
        .or(environment.degradation_threshold)
        .or(defaults.degradation_threshold)
        .unwrap_or_else(|| derived_degradation(failure_threshold));
    BreakerPolicy {
        // A threshold that was lowered alone must not leave the degraded state behind the open one. A local
        // provider is never seen degraded (`failure-state.md` §1.1), so there is nothing to keep apart.
        degradation_threshold: match class {
            ProviderClass::Local => degradation,
            ProviderClass::Oauth | ProviderClass::Apikey => {
                degradation.min(failure_threshold.saturating_sub(1)).max(1)
            }
        },
        failure_threshold,
        reset_timeout_ms: stored
            .reset_timeout_ms
            .or(environment.reset_timeout_ms)
            .unwrap_or(defaults.reset_timeout_ms),
        escalate_after_cycles: environment
            .escalate_after_cycles
            .unwrap_or(defaults.escalate_after_cycles),
        max_backoff_multiplier: environment
            .max_backoff_multiplier
            .unwrap_or(defaults.max_backoff_multiplier),
        probe_ttl_ms: settings.provider_breaker.probe_ttl_ms,
        dedup_connection_ms: settings.provider_breaker.dedup_connection_ms,
        dedup_provider_ms: settings.provider_breaker.dedup_provider_ms,
    }
}

/// ceil(0.6 × threshold) in whole numbers.
fn derived_degradation(failure_threshold: u32) -> u32 {
    failure_threshold.saturating_mul(3).div_ceil(5).max(1)
}

/// `window_ms` is the class breaker's reset timeout (`failure-state.md` §4.3).
fn lockout_policy(settings: &ModelLockoutSettings, window_ms: u64) -> LockoutPolicy {
    let error_codes = if settings.error_codes.is_empty() {
        ModelLockoutSettings::default().error_codes
    } else {
        settings.error_codes.clone()
    };
    LockoutPolicy {
        enabled: settings.enabled,
        error_codes,
        base_ms: settings.base_cooldown_ms,
        max_ms: settings.max_cooldown_ms.max(settings.base_cooldown_ms),
        max_backoff_steps: settings.max_backoff_steps,
        exponential: settings.use_exponential_backoff,
        window_ms,
        daily_reset: DailyReset::default(),
    }
}

/// As stated for the provider. Settings that were checked hold no other than good ones; should one be read
/// unchecked, the default serves.
fn daily_reset(settings: &Settings, provider: &ProviderId) -> DailyReset {
    settings
        .daily_reset
        .get(provider)
        .and_then(|stated| DailyReset::stated(&stated.time_zone, stated.hour).ok())
        .unwrap_or_default()
}
