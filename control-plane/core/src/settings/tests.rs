//! Defaults per class, bounds, and who outranks whom.

mod admission;
mod contract;
mod effective;
mod readings;
mod routing;
mod schema;
mod streams;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::config::{Connection, Provider};
use crate::daily_reset::DailyReset;

fn settings(value: Value) -> Settings {
    serde_json::from_value(value).unwrap()
}

fn provider(class: Option<&str>, base_url: &str) -> Provider {
    serde_json::from_value(json!({
        "id": "p", "protocol": "openai", "baseUrl": base_url, "class": class,
    }))
    .unwrap()
}

fn resolve(value: Value, class: &str, environment: &[(&str, &str)]) -> ProviderPolicy {
    let overrides = Overrides::from_environment(environment.iter().copied());
    let provider = provider(Some(class), "https://x.example");
    ProviderPolicy::resolve(&settings(value), &provider, &overrides)
}

#[rstest]
#[case::oauth("oauth", [5, 8, 2, 8], 60_000, (5_000, 8, false))]
#[case::apikey("apikey", [7, 12, 3, 4], 30_000, (3_000, 5, true))]
#[case::local("local", [2, 2, 3, 16], 15_000, (2_000, 3, false))]
fn defaults_of_a_class(
    #[case] class: &str,
    #[case] counts: [u32; 4],
    #[case] reset_timeout_ms: u64,
    #[case] cooldown: (u64, u32, bool),
) {
    let policy = resolve(json!({}), class, &[]);
    let breaker = policy.breaker;
    assert_eq!(
        [
            breaker.degradation_threshold,
            breaker.failure_threshold,
            breaker.escalate_after_cycles,
            breaker.max_backoff_multiplier
        ],
        counts
    );
    assert_eq!(breaker.reset_timeout_ms, reset_timeout_ms);
    assert_eq!(breaker.probe_ttl_ms, 60_000);
    assert_eq!(
        (breaker.dedup_connection_ms, breaker.dedup_provider_ms),
        (5_000, 10_000)
    );
    let CooldownPolicy {
        base_ms,
        max_backoff_steps,
        trust_hints,
        cap_ms,
    } = policy.cooldown;
    assert_eq!((base_ms, max_backoff_steps, trust_hints), cooldown);
    assert_eq!(cap_ms, 1_800_000);
    assert_eq!(policy.lockout.window_ms, reset_timeout_ms);
    assert_eq!(policy.lockout.error_codes, [403, 404, 429, 502, 503, 504]);
}

#[rstest]
#[case::declared(Some("oauth"), "http://127.0.0.1/v1", ProviderClass::Oauth)]
#[case::loopback(None, "http://127.0.0.1/v1", ProviderClass::Local)]
#[case::private(None, "http://10.1.2.3/v1", ProviderClass::Local)]
#[case::public(None, "https://api.example/v1", ProviderClass::Apikey)]
fn class_of_a_provider(
    #[case] declared: Option<&str>,
    #[case] base_url: &str,
    #[case] expected: ProviderClass,
) {
    assert_eq!(ProviderClass::of(&provider(declared, base_url)), expected);
}

#[test]
fn the_document_outranks_the_environment_which_outranks_what_is_built_in() {
    let environment = [
        ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD", "20"),
        ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_RESET_MS", "45000"),
        (
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_DEGRADATION_THRESHOLD",
            "11",
        ),
        (
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_MAX_BACKOFF_MULTIPLIER",
            "6",
        ),
        (
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_BACKOFF_ESCALATION_COUNT",
            "0",
        ),
    ];
    let stored = json!({"providerBreaker": {"apikey": {"failureThreshold": 15}}});
    let breaker = resolve(stored, "apikey", &environment).breaker;
    assert_eq!(breaker.failure_threshold, 15);
    assert_eq!(breaker.reset_timeout_ms, 45_000);
    assert_eq!(breaker.degradation_threshold, 11);
    assert_eq!(breaker.max_backoff_multiplier, 6);
    assert_eq!(breaker.escalate_after_cycles, 0);
    let oauth = resolve(json!({}), "oauth", &environment).breaker;
    assert_eq!(oauth.failure_threshold, 8);
}

#[rstest]
#[case::no_number("many", 8)]
#[case::empty("", 8)]
#[case::negative("-3", 8)]
#[case::zero("0", 8)]
#[case::infinite("inf", 8)]
#[case::nan("NaN", 8)]
#[case::fraction_is_cut_off("9.9", 9)]
#[case::white_space(" 9 ", 9)]
#[case::scientific("1e2", 100)]
#[case::beyond_the_bound("1000000", 1_000)]
#[case::beyond_every_integer("1e300", 1_000)]
fn a_threshold_in_the_environment(#[case] value: &str, #[case] expected: u32) {
    let environment = [("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD", value)];
    let breaker = resolve(json!({}), "oauth", &environment).breaker;
    assert_eq!(breaker.failure_threshold, expected);
}

#[test]
fn a_local_class_has_only_the_first_family_of_names() {
    let environment = [
        ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_THRESHOLD", "10"),
        ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_RESET_MS", "20000"),
        (
            "OMNIROUTE_PROVIDER_BREAKER_LOCAL_MAX_BACKOFF_MULTIPLIER",
            "2",
        ),
    ];
    let breaker = resolve(json!({}), "local", &environment).breaker;
    assert_eq!(breaker.failure_threshold, 10);
    assert_eq!(breaker.degradation_threshold, 6);
    assert_eq!(breaker.reset_timeout_ms, 20_000);
    assert_eq!(breaker.max_backoff_multiplier, 16);
}

#[test]
fn thresholds_of_the_provider_gate_do_not_touch_the_breaker() {
    let environment = [("OMNIROUTE_PROVIDER_BREAKER_OAUTH_FAILURE_THRESHOLD", "3")];
    let (with, without) = (
        resolve(json!({}), "oauth", &environment),
        resolve(json!({}), "oauth", &[]),
    );
    assert_eq!(with.breaker, without.breaker);
    let thresholds = [with, without].map(|policy| policy.gate.failure_threshold);
    assert_eq!(thresholds, [3, 10]);
}

#[rstest]
#[case("oauth", 10, 900_000, 300_000)]
#[case("apikey", 15, 1_800_000, 600_000)]
#[case("local", 2, 300_000, 60_000)]
fn numbers_of_the_gate_by_class(
    #[case] class: &str,
    #[case] failure_threshold: u32,
    #[case] failure_window_ms: u64,
    #[case] cooldown_ms: u64,
) {
    let built_in = GatePolicy {
        enabled: false,
        failure_threshold,
        failure_window_ms,
        cooldown_ms,
        min_retry_cooldown_ms: 5_000,
        max_retry_cooldown_ms: 300_000,
    };
    assert_eq!(resolve(json!({}), class, &[]).gate, built_in);
    let word = if class == "apikey" { "API_KEY" } else { class };
    let named =
        |member: &str| format!("OMNIROUTE_PROVIDER_BREAKER_{word}_{member}").to_ascii_uppercase();
    let names = ["FAILURE_THRESHOLD", "FAILURE_WINDOW_MS", "COOLDOWN_MS"].map(named);
    let environment = [
        (names[0].as_str(), "20"),
        (names[1].as_str(), "999"),
        (names[2].as_str(), "90000000"),
        ("PROVIDER_COOLDOWN_ENABLED", "on"),
        ("PROVIDER_COOLDOWN_MIN_MS", "7200000"),
        ("PROVIDER_COOLDOWN_MAX_MS", "0"),
    ];
    let overridden = GatePolicy {
        enabled: true,
        failure_threshold: 20,
        failure_window_ms: 1_000,
        cooldown_ms: 86_400_000,
        min_retry_cooldown_ms: 3_600_000,
        max_retry_cooldown_ms: 3_600_000,
    };
    assert_eq!(resolve(json!({}), class, &environment).gate, overridden);
    let members = json!({"providerFailureThreshold": 4, "providerCooldownMs": 5_000});
    let stored = json!({"providerCooldown": {
        "enabled": false, "maxRetryCooldownMs": 3_600_000, "minRetryCooldownMs": 0, class: members,
    }});
    let gate = resolve(stored, class, &environment).gate;
    let document = GatePolicy {
        enabled: false,
        failure_threshold: 4,
        cooldown_ms: 5_000,
        min_retry_cooldown_ms: 0,
        ..overridden
    };
    assert_eq!(gate, document);
}

#[rstest]
#[case("true", true)]
#[case("1", true)]
#[case(" ON ", true)]
#[case("yes", false)]
#[case("0", false)]
#[case("", false)]
fn the_gate_is_switched_on_by_three_words(#[case] value: &str, #[case] enabled: bool) {
    let environment = [("PROVIDER_COOLDOWN_ENABLED", value)];
    let gate = resolve(json!({}), "oauth", &environment).gate;
    assert_eq!(gate.enabled, enabled);
}

#[test]
fn a_failure_threshold_lowered_alone_takes_the_degradation_with_it() {
    let lowered = |threshold: u32| {
        let stored = json!({"providerBreaker": {"apikey": {"failureThreshold": threshold}}});
        resolve(stored, "apikey", &[]).breaker.degradation_threshold
    };
    assert_eq!([lowered(20), lowered(5), lowered(1)], [7, 4, 1]);
}

#[rstest]
#[case::threshold(json!({"providerBreaker": {"oauth": {"failureThreshold": 0}}}), "providerBreaker.oauth.failureThreshold")]
#[case::threshold_high(json!({"providerBreaker": {"local": {"failureThreshold": 1001}}}), "providerBreaker.local.failureThreshold")]
#[case::reset(json!({"providerBreaker": {"apikey": {"resetTimeoutMs": 999}}}), "providerBreaker.apikey.resetTimeoutMs")]
#[case::degradation(json!({"providerBreaker": {"apikey": {"degradationThreshold": 5, "failureThreshold": 5}}}), "providerBreaker.apikey.degradationThreshold")]
#[case::degradation_above_the_default(json!({"providerBreaker": {"apikey": {"degradationThreshold": 12}}}), "providerBreaker.apikey.degradationThreshold")]
#[case::dedup_connection(json!({"providerBreaker": {"dedupConnectionMs": 60_001}}), "providerBreaker.dedupConnectionMs")]
#[case::dedup_provider(json!({"providerBreaker": {"dedupProviderMs": 60_001}}), "providerBreaker.dedupProviderMs")]
#[case::probe(json!({"providerBreaker": {"probeTtlMs": 999}}), "providerBreaker.probeTtlMs")]
#[case::base(json!({"connectionCooldown": {"oauth": {"baseCooldownMs": 86_400_001}}}), "connectionCooldown.oauth.baseCooldownMs")]
#[case::steps(json!({"connectionCooldown": {"local": {"maxBackoffSteps": 33}}}), "connectionCooldown.local.maxBackoffSteps")]
#[case::code(json!({"modelLockout": {"errorCodes": [503, 600]}}), "modelLockout.errorCodes[1]")]
#[case::lock_base(json!({"modelLockout": {"baseCooldownMs": 4_999}}), "modelLockout.baseCooldownMs")]
#[case::lock_max(json!({"modelLockout": {"maxCooldownMs": 3_600_001}}), "modelLockout.maxCooldownMs")]
#[case::lock_max_below_base(json!({"modelLockout": {"maxCooldownMs": 60_000}}), "modelLockout.maxCooldownMs")]
#[case::lock_steps(json!({"modelLockout": {"maxBackoffSteps": 21}}), "modelLockout.maxBackoffSteps")]
#[case::zone(json!({"dailyReset": {"openai": {"timeZone": "Mars/Olympus"}}}), "dailyReset.openai.timeZone")]
#[case::zone_empty(json!({"dailyReset": {"openai": {"timeZone": ""}}}), "dailyReset.openai.timeZone")]
#[case::zone_of_the_machine(json!({"dailyReset": {"openai": {"timeZone": "../../etc/localtime"}}}), "dailyReset.openai.timeZone")]
#[case::hour(json!({"dailyReset": {"openai": {"timeZone": "Asia/Tokyo", "hour": 24}}}), "dailyReset.openai.hour")]
#[case::gate_threshold(json!({"providerCooldown": {"oauth": {"providerFailureThreshold": 0}}}), "providerCooldown.oauth.providerFailureThreshold")]
#[case::gate_window(json!({"providerCooldown": {"apikey": {"providerFailureWindowMs": 999}}}), "providerCooldown.apikey.providerFailureWindowMs")]
#[case::gate_cooldown(json!({"providerCooldown": {"local": {"providerCooldownMs": 86_400_001}}}), "providerCooldown.local.providerCooldownMs")]
#[case::gate_min(json!({"providerCooldown": {"minRetryCooldownMs": 300_001}}), "providerCooldown.minRetryCooldownMs")]
#[case::gate_max(json!({"providerCooldown": {"maxRetryCooldownMs": 3_600_001}}), "providerCooldown.maxRetryCooldownMs")]
#[case::gate_max_below_min(json!({"providerCooldown": {"maxRetryCooldownMs": 4_999}}), "providerCooldown.maxRetryCooldownMs")]
#[case::retries(json!({"waitForCooldown": {"maxRetries": 11}}), "waitForCooldown.maxRetries")]
#[case::retry_wait(json!({"waitForCooldown": {"maxRetryWaitSec": 301}}), "waitForCooldown.maxRetryWaitSec")]
#[case::wait_budget(json!({"waitForCooldown": {"budgetMs": 300_001}}), "waitForCooldown.budgetMs")]
#[case::combo_wait(json!({"comboCooldownWait": {"maxWaitMs": 300_001}}), "comboCooldownWait.maxWaitMs")]
#[case::combo_waits(json!({"comboCooldownWait": {"maxAttempts": 11}}), "comboCooldownWait.maxAttempts")]
#[case::combo_budget(json!({"comboCooldownWait": {"budgetMs": 300_001}}), "comboCooldownWait.budgetMs")]
#[case::global_requests(json!({"requestQueue": {"globalConcurrentRequests": 100_001}}), "requestQueue.globalConcurrentRequests")]
#[case::refresh_scope(json!({"tokenRefreshBreaker": {"scope": "planet"}}), "tokenRefreshBreaker.scope")]
#[case::refresh_failures(json!({"tokenRefreshBreaker": {"failureThreshold": 101}}), "tokenRefreshBreaker.failureThreshold")]
#[case::health_check(json!({"credentialHealthCheck": {"intervalMinutes": 1_441}}), "credentialHealthCheck.intervalMinutes")]
#[case::refresh_cooldown(json!({"tokenRefreshBreaker": {"cooldownMs": 59_999}}), "tokenRefreshBreaker.cooldownMs")]
#[case::threshold_of_a_quota(json!({"quotaPreflight": {"defaultThresholdPercent": 100}}), "quotaPreflight.defaultThresholdPercent")]
#[case::threshold_of_a_window(json!({"quotaPreflight": {"providerWindowDefaults": {"p": {"weekly": 101}}}}), "quotaPreflight.providerWindowDefaults.p.weekly")]
#[case::connect(json!({"streams": {"connectTimeoutMs": 600_001}}), "streams.connectTimeoutMs")]
#[case::headers(json!({"streams": {"headersTimeoutMs": 3_600_001}}), "streams.headersTimeoutMs")]
#[case::body(json!({"streams": {"bodyTimeoutMs": 3_600_001}}), "streams.bodyTimeoutMs")]
#[case::readiness(json!({"streams": {"readinessTimeoutMs": 3_600_001}}), "streams.readinessTimeoutMs")]
#[case::idle(json!({"streams": {"idleTimeoutMs": 3_600_001}}), "streams.idleTimeoutMs")]
#[case::deadline(json!({"streamRecovery": {"attemptDeadlineMs": 3_600_001}}), "streamRecovery.attemptDeadlineMs")]
#[case::early_keepalive(json!({"streams": {"earlyKeepaliveMs": 30_001}}), "streams.earlyKeepaliveMs")]
fn out_of_bounds(#[case] value: Value, #[case] field: &str) {
    let violations = settings(value).violations();
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, [field], "{violations:?}");
}

#[rstest]
#[case::nothing(json!({}))]
#[case::local_degradation_may_equal(json!({"providerBreaker": {"local": {"degradationThreshold": 2, "failureThreshold": 2}}}))]
#[case::dedup_off(json!({"providerBreaker": {"dedupConnectionMs": 0, "dedupProviderMs": 0}}))]
#[case::no_codes_means_the_default(json!({"modelLockout": {"errorCodes": []}}))]
#[case::waits_off(json!({"waitForCooldown": {"maxRetries": 0, "maxRetryWaitSec": 0}, "comboCooldownWait": {"maxWaitMs": 0, "maxAttempts": 0}}))]
#[case::limits_off(json!({"streams": {"headersTimeoutMs": 0, "readinessTimeoutMs": 0, "idleTimeoutMs": 0}, "streamRecovery": {"attemptDeadlineMs": 0}}))]
fn within_bounds(#[case] value: Value) {
    assert_eq!(settings(value).violations(), []);
}

#[rstest]
#[case::ordinary("openai", None, None, false)]
#[case::gemini("gemini", None, None, true)]
#[case::codex("codex", None, None, true)]
#[case::node("openai-compatible-mine", None, None, true)]
#[case::passthrough("minimax-passthrough", None, None, true)]
#[case::local("openai", Some("local"), None, true)]
#[case::said_yes("openai", None, Some(true), true)]
#[case::said_no("gemini", Some("local"), Some(false), false)]
fn a_quota_is_kept_per_model(
    #[case] id: &str,
    #[case] class: Option<&str>,
    #[case] said: Option<bool>,
    #[case] expected: bool,
) {
    let provider: Provider = serde_json::from_value(json!({
        "id": id, "protocol": "openai", "baseUrl": "https://x.example", "class": class, "perModelQuota": said,
    }))
    .unwrap();
    let policy = ProviderPolicy::resolve(&Settings::default(), &provider, &Overrides::default());
    assert_eq!(policy.keeps_quota_per_model(None), expected);
    for says in [true, false] {
        let connection: Connection =
            serde_json::from_value(json!({"id": "c", "provider": id, "perModelQuota": says}))
                .unwrap();
        assert_eq!(policy.keeps_quota_per_model(Some(&connection)), says);
    }
}

#[test]
fn a_daily_reset_holds_for_its_provider_alone() {
    let stated = json!({"dailyReset": {"p": {"timeZone": "Asia/Tokyo", "hour": 4}}});
    let reset = resolve(stated, "apikey", &[]).lockout.daily_reset;
    assert_eq!(reset, DailyReset::stated("Asia/Tokyo", 4).unwrap());
    assert!(reset.is_stated());
    let other = json!({"dailyReset": {"other": {"timeZone": "Asia/Tokyo"}}});
    let unstated = resolve(other, "apikey", &[]).lockout.daily_reset;
    assert_eq!(unstated, DailyReset::default());
    assert!(!unstated.is_stated());
}

#[test]
fn no_codes_means_the_default_list() {
    let policy = resolve(json!({"modelLockout": {"errorCodes": []}}), "apikey", &[]);
    assert_eq!(policy.lockout.error_codes, [403, 404, 429, 502, 503, 504]);
}

#[test]
fn an_unknown_member_is_an_error() {
    let read = serde_json::from_value::<Settings>(json!({"waitForCooldown": {"maxWait": 1}}));
    assert!(read.unwrap_err().to_string().contains("maxWait"));
}

fn rule(members: Value) -> Value {
    let mut rule = json!({"status": 429, "match": "x", "scope": "model"});
    if let (Value::Object(rule), Value::Object(members)) = (&mut rule, members) {
        rule.extend(members);
    }
    json!({"providerErrorRules": {"acme": [rule]}})
}

#[rstest]
#[case::status_low(rule(json!({"status": 99})), "providerErrorRules.acme[0].status")]
#[case::status_high(rule(json!({"status": 600})), "providerErrorRules.acme[0].status")]
#[case::text_empty(rule(json!({"match": ""})), "providerErrorRules.acme[0].match")]
#[case::text_blank(rule(json!({"match": " \t"})), "providerErrorRules.acme[0].match")]
#[case::text_long(rule(json!({"match": "é".repeat(201)})), "providerErrorRules.acme[0].match")]
#[case::cooldown_short(rule(json!({"cooldownMs": 999})), "providerErrorRules.acme[0].cooldownMs")]
#[case::cooldown_long(
    rule(json!({"cooldownMs": 2_592_000_001_u64})),
    "providerErrorRules.acme[0].cooldownMs"
)]
#[case::reason(rule(json!({"reason": "local"})), "providerErrorRules.acme[0].reason")]
#[case::too_many(
    json!({"providerErrorRules": {
        "a": vec![json!({"status": 429, "match": "x", "scope": "model"}); 30],
        "b": vec![json!({"status": 429, "match": "x", "scope": "model"}); 21],
    }}),
    "providerErrorRules"
)]
#[case::phrase_short(
    json!({"banDetection": {"extraPhrases": ["abc", "ab"]}}),
    "banDetection.extraPhrases[1]"
)]
#[case::phrase_long(
    json!({"banDetection": {"extraPhrases": ["x".repeat(201)]}}),
    "banDetection.extraPhrases[0]"
)]
#[case::phrases(
    json!({"banDetection": {"extraPhrases": vec!["abc"; 101]}}),
    "banDetection.extraPhrases"
)]
#[case::providers(
    json!({"errorRules": {"scopeProviders": vec!["p"; 1_001]}}),
    "errorRules.scopeProviders"
)]
fn rules_about_errors_are_bounded(#[case] value: Value, #[case] field: &str) {
    let violations = settings(value).violations();
    let fields: Vec<&str> = violations.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(fields, [field]);
}

#[test]
fn rules_about_errors_at_their_bounds_are_good() {
    let good = json!({"status": 100, "match": "é".repeat(200), "scope": "provider",
        "reason": "unknown", "cooldownMs": 2_592_000_000_u64});
    let value = json!({
        "providerErrorRules": {"acme": vec![good; 50]},
        "banDetection": {"extraPhrases": vec!["abc"; 100]},
    });
    assert_eq!(settings(value).violations(), []);
}
