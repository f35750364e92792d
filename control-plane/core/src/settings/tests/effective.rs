//! What acts and who said so.

use serde_json::{Value, json};

use super::super::*;

fn listed(value: Value, environment: &[(&str, &str)]) -> Vec<EffectiveSetting> {
    let settings: WrittenSettings = serde_json::from_value(value).unwrap();
    let overrides = Overrides::from_environment(environment.iter().copied());
    effective(&settings.stored(), &overrides)
}

fn one(listed: &[EffectiveSetting], path: &str) -> (Value, Source) {
    let found = listed.iter().find(|setting| setting.path == path);
    found
        .map(|it| (it.value.clone(), it.source.clone()))
        .unwrap()
}

#[test]
fn each_value_has_its_source() {
    let environment = [
        ("PROVIDER_COOLDOWN_ENABLED", "on"),
        ("OMNIROUTE_PROVIDER_BREAKER_LOCAL_COOLDOWN_MS", "70000"),
        ("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD", "20"),
        ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD", "30"),
        ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_RESET_MS", "-5"),
        (
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD",
            "9.9",
        ),
    ];
    let stored = json!({
        "providerBreaker": {"apikey": {"failureThreshold": "15.5"}},
        "connectionCooldown": {"oauth": {"maxBackoffSteps": "none"}},
        "modelLockout": {"enabled": true},
    });
    let all = listed(stored, &environment);
    let environment = |name: &str| Source::Environment(name.to_owned());
    for (path, value, source) in [
        (
            "providerBreaker.apikey.failureThreshold",
            json!(15),
            Source::Stored,
        ),
        (
            "providerBreaker.oauth.failureThreshold",
            json!(20),
            environment("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD"),
        ),
        (
            "providerBreaker.oauth.degradationThreshold",
            json!(9),
            environment("OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD"),
        ),
        (
            "providerBreaker.local.resetTimeoutMs",
            json!(15_000),
            Source::BuiltIn,
        ),
        (
            "providerBreaker.local.degradationThreshold",
            json!(2),
            Source::BuiltIn,
        ),
        (
            "connectionCooldown.oauth.maxBackoffSteps",
            json!(8),
            Source::BuiltIn,
        ),
        (
            "connectionCooldown.oauth.useUpstream429BreakerHints",
            json!(null),
            Source::BuiltIn,
        ),
        (
            "providerCooldown.enabled",
            json!(true),
            environment("PROVIDER_COOLDOWN_ENABLED"),
        ),
        (
            "providerCooldown.local.providerCooldownMs",
            json!(70_000),
            environment("OMNIROUTE_PROVIDER_BREAKER_LOCAL_COOLDOWN_MS"),
        ),
        (
            "providerCooldown.apikey.providerCooldownMs",
            json!(600_000),
            Source::BuiltIn,
        ),
        ("modelLockout.enabled", json!(true), Source::Stored),
        (
            "modelLockout.baseCooldownMs",
            json!(120_000),
            Source::BuiltIn,
        ),
        (
            "errorRules.scopeProviders",
            json!(["agentrouter"]),
            Source::BuiltIn,
        ),
    ] {
        assert_eq!(one(&all, path), (value, source), "{path}");
    }
}

#[test]
fn what_is_listed_is_what_the_state_machines_run_on() {
    // Lowered alone, the failure threshold takes the degradation with it.
    let all = listed(
        json!({"providerBreaker": {"oauth": {"failureThreshold": 3}}}),
        &[],
    );
    assert_eq!(
        one(&all, "providerBreaker.oauth.degradationThreshold"),
        (json!(2), Source::BuiltIn)
    );
}

#[test]
fn the_sections_as_they_act_can_be_sent_back() {
    let written: WrittenSettings = serde_json::from_value(json!({
        "modelLockout": {"enabled": true},
        "requestQueue": {"maxWaitMs": 9_000},
    }))
    .unwrap();
    let overrides = Overrides::from_environment([("RATE_LIMIT_MAX_QUEUE_DEPTH", "7")]);
    let acting = sections(&written.stored().settings, &overrides);
    let acting_value = Value::Object(acting.clone());
    for (pointer, value) in [
        ("/modelLockout/enabled", json!(true)),
        ("/requestQueue/maxWaitMs", json!(9_000)),
        ("/requestQueue/maxQueueDepth", json!(7)),
        ("/providerBreaker/apikey/failureThreshold", json!(12)),
        ("/providerBreaker/oauth/resetTimeoutMs", json!(60_000)),
        ("/sessionAffinityTtlMs", json!(0)),
    ] {
        assert_eq!(acting_value.pointer(pointer), Some(&value), "{pointer}");
    }
    let patched = written.patched(&acting).unwrap();
    assert_eq!(
        sections(&patched.stored().settings, &Overrides::default()),
        acting
    );
}
