//! Rules that no bound of one member can say: between members, and of entries of lists and maps. Over the API
//! they are refused; in what is stored they are made to fit, or left out (`sessions-and-streams.md` §3.3).

mod error_rules;

use std::collections::BTreeMap;

use crate::config::{MAX_ENTRIES, Violations, check_combo_config};
use crate::daily_reset::{DailyReset, DailyResetError};
use crate::ids::ProviderId;

use super::{
    BreakerClassSettings, DailyResetSettings, ProviderClass, Settings, policy, quota_overrides,
    routing,
};

/// Everything that does not fit together, with fields such as `providerBreaker.apikey.degradationThreshold`.
pub(super) fn conflicts(settings: &Settings, found: &mut Violations) {
    for (class, name, breaker) in breakers(settings) {
        let failure = failure_threshold(class, breaker);
        if let Some(degradation) = breaker.degradation_threshold
            && class != ProviderClass::Local
            && degradation >= failure
        {
            found.push(
                format!("providerBreaker.{name}.degradationThreshold"),
                format!("must be below failureThreshold ({failure}), is {degradation}"),
            );
        }
    }
    let lockout = &settings.model_lockout;
    let (base, longest) = (lockout.base_cooldown_ms, lockout.max_cooldown_ms);
    if longest < base {
        found.push(
            "modelLockout.maxCooldownMs",
            format!("must be at least baseCooldownMs ({base}), is {longest}"),
        );
    }
    settings.provider_cooldown.conflicts(found);
    settings.token_refresh.conflicts(found);
    settings.token_refresh_breaker.conflicts(found);
    settings.leases.conflicts(found);
    settings.permits.conflicts(found);
    quota_overrides::conflicts(&settings.provider_quota_overrides, found);
    daily_reset(&settings.daily_reset, found);
    error_rules::error_rules(settings, found);
    routing::conflicts(settings, found);
    check_combo_config("comboDefaults", &settings.combo_defaults, found);
    let overrides = &settings.combo_provider_overrides;
    if found.at_most("comboProviderOverrides", overrides.len(), MAX_ENTRIES) {
        for (provider, config) in overrides {
            let path = format!("comboProviderOverrides.{provider}");
            check_combo_config(&path, config, found);
        }
    }
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

/// Makes everything fit that [`conflicts`] finds.
pub(super) fn reconcile(settings: &mut Settings, warnings: &mut Violations) {
    conflicts(settings, warnings);
    let breaker = &mut settings.provider_breaker;
    let classes = [
        (ProviderClass::Oauth, &mut breaker.oauth),
        (ProviderClass::Apikey, &mut breaker.apikey),
    ];
    for (class, breaker) in classes {
        let failure = failure_threshold(class, breaker);
        if breaker
            .degradation_threshold
            .is_some_and(|degradation| degradation >= failure)
        {
            // A breaker that opens at the first failure has no degraded state; unset is resolved so.
            breaker.degradation_threshold = failure
                .checked_sub(1)
                .filter(|degradation| *degradation > 0);
        }
    }
    let lockout = &mut settings.model_lockout;
    lockout.max_cooldown_ms = lockout.max_cooldown_ms.max(lockout.base_cooldown_ms);
    settings.provider_cooldown.reconcile();
    settings.token_refresh.reconcile();
    settings.token_refresh_breaker.reconcile();
    settings.leases.reconcile();
    settings.permits.reconcile();
}

fn failure_threshold(class: ProviderClass, breaker: &BreakerClassSettings) -> u32 {
    breaker
        .failure_threshold
        .unwrap_or_else(|| policy::class_defaults(class).failure_threshold)
}

fn breakers(settings: &Settings) -> [(ProviderClass, &'static str, &BreakerClassSettings); 3] {
    let breaker = &settings.provider_breaker;
    [
        (ProviderClass::Oauth, "oauth", &breaker.oauth),
        (ProviderClass::Apikey, "apikey", &breaker.apikey),
        (ProviderClass::Local, "local", &breaker.local),
    ]
}
