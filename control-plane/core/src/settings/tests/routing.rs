//! Settings of routing: earlier names, thresholds of quota windows, and members without effect.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use crate::telemetry::quota::window::WindowName;

fn written(value: Value) -> WrittenSettings {
    serde_json::from_value(value).unwrap()
}

#[rstest]
#[case::earlier_name(json!({"floor": 3}), 3)]
#[case::name_of_now(json!({"minConcurrent": 4}), 4)]
#[case::both(json!({"floor": 3, "minConcurrent": 4}), 4)]
#[case::neither(json!({"ratio": 0.5}), 10)]
fn the_least_of_the_retry_budget_is_read_under_either_name(
    #[case] section: Value,
    #[case] least: u32,
) {
    let written = written(json!({"retryBudget": section}));
    assert_eq!(written.strict().unwrap().retry_budget.min_concurrent, least);
    assert_eq!(written.stored().settings.retry_budget.min_concurrent, least);
    assert_eq!(written.stored().warnings, []);
}

#[rstest]
#[case::earlier_name(json!({"cutoffPercent": 3}), 3)]
#[case::name_of_now(json!({"defaultThresholdPercent": 4}), 4)]
#[case::both(json!({"cutoffPercent": 3, "defaultThresholdPercent": 4}), 4)]
#[case::neither(json!({"enabled": true}), 2)]
#[case::as_it_was_allowed_before(json!({"cutoffPercent": 100}), 99)]
fn the_threshold_of_quotas_is_read_under_either_name(#[case] section: Value, #[case] percent: u32) {
    let written = written(json!({"quotaPreflight": section}));
    assert_eq!(
        written
            .stored()
            .settings
            .quota_preflight
            .default_threshold_percent,
        percent
    );
}

#[rstest]
#[case::named("codex", WindowName::Session, 90)]
#[case::zero_is_a_number("codex", WindowName::Weekly, 0)]
#[case::unset("codex", WindowName::Monthly, 5)]
#[case::no_window("codex", WindowName::Unnamed, 5)]
#[case::another_provider("glm", WindowName::Session, 5)]
fn a_window_may_have_a_threshold_of_its_own(
    #[case] provider: &str,
    #[case] window: WindowName,
    #[case] percent: u32,
) {
    let settings = written(json!({"quotaPreflight": {
        "defaultThresholdPercent": 5,
        "providerWindowDefaults": {"codex": {"session": 90, "weekly": 0}},
    }}));
    let settings = settings.strict().unwrap().quota_preflight;
    let provider = ProviderId::new(provider).unwrap();
    assert_eq!(settings.threshold_percent(&provider, window), percent);
}

#[rstest]
#[case::as_set("glm", WindowName::Session, 5)]
#[case::above_what_is_too_little("codex", WindowName::Session, 91)]
#[case::never_more_than_all("codex", WindowName::Weekly, 100)]
fn a_quota_is_low_before_it_is_too_little(
    #[case] provider: &str,
    #[case] window: WindowName,
    #[case] percent: u32,
) {
    let settings = written(json!({"quotaPreflight": {
        "warnThresholdPercent": 5,
        "providerWindowDefaults": {"codex": {"session": 90, "weekly": 100}},
    }}));
    let settings = settings.strict().unwrap().quota_preflight;
    let provider = ProviderId::new(provider).unwrap();
    assert_eq!(settings.warn_percent(&provider, window), percent);
}

#[test]
fn of_stored_thresholds_of_windows_the_good_ones_stay() {
    let stored = written(json!({"quotaPreflight": {"providerWindowDefaults": {
        "good": {"session": 50}, "high": {"session": 101}, "odd": {"yearly": 3}, "none": 4,
    }}}));
    let reading = stored.stored();
    let kept = &reading.settings.quota_preflight.provider_window_defaults;
    let kept: Vec<&str> = kept.keys().map(ProviderId::as_str).collect();
    assert_eq!(kept, ["good"]);
    assert_eq!(reading.warnings.len(), 3);
}

#[test]
fn members_without_effect_are_accepted_and_kept() {
    let settings = written(json!({
        "requestQueue": {"globalConcurrentRequests": 7},
        "credentialHealthCheck": {"intervalMinutes": 1_440},
        "providerQuotaOverrides": {"glm": {"providerConcurrency": 100_000}},
        "tokenRefreshBreaker": {"scope": "connection", "failureThreshold": 1, "cooldownMs": 60_000},
    }));
    let strict = settings.strict().unwrap();
    assert_eq!(strict.request_queue.global_concurrent_requests, 7);
    assert_eq!(strict.token_refresh_breaker.scope, "connection");
    assert_eq!(strict.credential_health_check.interval_minutes, 1_440);
    let told = serde_json::to_value(&strict.provider_quota_overrides).unwrap();
    assert_eq!(told["glm"]["providerConcurrency"], 100_000);
    let off = written(json!({"credentialHealthCheck": {"intervalMinutes": 0}}));
    assert_eq!(
        off.strict()
            .unwrap()
            .credential_health_check
            .interval_minutes,
        0
    );
    let unset = written(json!({})).strict().unwrap();
    assert_eq!(unset.credential_health_check.interval_minutes, 60);
    let odd = written(json!({"tokenRefreshBreaker": {"scope": "planet"}})).stored();
    assert_eq!(odd.settings.token_refresh_breaker.scope, "provider");
    assert_eq!(odd.warnings.len(), 1);
}

/// Unset is a value of its own: `null` says so, like nothing does.
#[rstest]
#[case::on(json!(true), Some(true))]
#[case::off(json!(false), Some(false))]
#[case::unset(json!(null), None)]
fn hints_for_the_breaker_are_kept_in_all_three_states(
    #[case] told: Value,
    #[case] kept: Option<bool>,
) {
    for class in ["oauth", "apikey", "local"] {
        let settings =
            written(json!({"connectionCooldown": {class: {"useUpstream429BreakerHints": told}}}));
        let strict = serde_json::to_value(settings.strict().unwrap()).unwrap();
        let stored = serde_json::to_value(settings.stored().settings).unwrap();
        for read in [strict, stored] {
            let hints = &read["connectionCooldown"][class]["useUpstream429BreakerHints"];
            assert_eq!(hints.as_bool(), kept, "{class}: {hints}");
        }
    }
}
