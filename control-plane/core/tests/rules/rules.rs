//! Status restatement, provider rules, operator rules and ban phrases (`failure-state.md` §3.7, §5).

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::classify::{
    Classification, ClassifyContext, Consequence, CooldownLength, LockLength, Reason, TerminalKind,
    classify,
};
use tidegate_core::ids::ModelId;
use tidegate_core::lockout::LockKey;
use tidegate_core::outcome::{Outcome, UpstreamError};
use tidegate_core::settings::ProviderClass::{Apikey, Oauth};
use tidegate_core::settings::{RuleScope, Settings};
use tidegate_core::state::{Event, TransitionKind};
use tidegate_core::time::Timestamp;

use crate::world::{MODEL, World, answer, with_header};

const QUOTA: &str = "用户额度不足";
const NO_ACCESS: &str = "无权访问模型 m";

fn settings(value: Value) -> Settings {
    let settings: Settings = serde_json::from_value(value).unwrap();
    assert_eq!(settings.violations(), []);
    settings
}

/// Rules of an operator about one provider.
fn rules(provider: &str, rules: Value) -> Settings {
    settings(json!({"providerErrorRules": {provider: rules}}))
}

fn judge(world: &World, outcome: &Outcome) -> Classification {
    let model = ModelId::new(MODEL).unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(0));
    classify(outcome, &context)
}

fn rule(classification: &Classification) -> Option<&str> {
    let origin = classification.origin.as_ref()?;
    Some(origin.rule.as_str())
}

fn error(status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        body: body.to_owned(),
        embedded: false,
    })
}

fn embedded(body: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status: 200,
        body: body.to_owned(),
        embedded: true,
        ..UpstreamError::default()
    })
}

#[rstest]
#[case::forbidden(403)]
#[case::bad_request(400)]
fn vector_failure_64(#[case] sent: u16) {
    let mut world = World::named("agentrouter", Apikey);
    let applied = world.fail(0, answer(sent, QUOTA));
    let classification = applied.classification.unwrap();
    assert_eq!(classification.status, 429);
    assert_eq!(classification.client_wait_ms(), Some(60_000));
    assert_eq!(
        classification.hint, None,
        "told to the client, never read back"
    );
    assert_eq!(classification.reason, Reason::QuotaExhausted);
    assert_eq!(
        rule(&classification),
        Some("agentrouter-user-quota-exhausted")
    );
    assert_eq!(
        classification.origin.unwrap().original_status,
        Some(sent),
        "what was sent is kept for people"
    );
    assert_eq!(world.cooldown(), (Some(3_000), 1));
    assert!(world.c1().terminal.is_none() && world.c1().locks.is_empty());
    let [transition] = applied.transitions.as_slice() else {
        panic!("one transition, not {:?}", applied.transitions);
    };
    let origin = transition.origin.as_ref().unwrap();
    assert_eq!(
        (origin.rule.as_str(), origin.original_status),
        ("agentrouter-user-quota-exhausted", Some(sent))
    );
}

/// §5.6, flow 1: the ladder goes on while the answer stays the same.
#[test]
fn a_restated_quota_climbs_the_ladder_and_never_ends_the_account() {
    let mut world = World::named("agentrouter", Apikey);
    let mut at = 0;
    for (step, length) in [3_000, 6_000, 12_000, 24_000, 48_000, 96_000, 96_000]
        .into_iter()
        .enumerate()
    {
        world.fail(at, answer(403, QUOTA));
        assert_eq!(world.cooldown().0, Some(at + length), "step {step}");
        assert!(world.c1().terminal.is_none());
        at += length;
    }
}

#[test]
fn vector_failure_65() {
    let mut world = World::named("agentrouter", Apikey);
    let applied = world.fail(0, answer(403, NO_ACCESS));
    let classification = applied.classification.unwrap();
    assert_eq!(classification.status, 403, "not restated");
    assert_eq!(
        rule(&classification),
        Some("agentrouter-model-access-denied")
    );
    assert_eq!(classification.origin.unwrap().original_status, None);
    let [lock] = world.c1().locks.as_slice() else {
        panic!("one lock");
    };
    assert_eq!(lock.key, LockKey::Model(ModelId::new(MODEL).unwrap()));
    assert_eq!(lock.until, Timestamp(1_800_000), "6 h within the cap");
    assert_eq!(lock.reason, Reason::AuthError);
    assert_eq!(world.cooldown(), (None, 0), "the connection stays active");
    assert!(world.c1().terminal.is_none());
}

#[test]
fn vector_failure_66() {
    let mut world = World::named("agentrouter", Apikey);
    let outcome = error(403, &[("retry-after", "5")], QUOTA);
    let classification = world.fail(0, outcome).classification.unwrap();
    assert_eq!(classification.client_wait_ms(), Some(5_000));
    assert_eq!(
        classification.advertised_ms, None,
        "the upstream's own comes first"
    );
    let nothing = error(403, &[("retry-after", "0")], QUOTA);
    assert_eq!(judge(&world, &nothing).client_wait_ms(), Some(60_000));
}

#[test]
fn vector_failure_73() {
    let mut world = World::named("cloudflare-ai", Apikey);
    let body = "you have used up your daily free allocation of neurons";
    let classification = world.fail(0, answer(429, body)).classification.unwrap();
    assert_eq!(classification.reason, Reason::RateLimitExceeded);
    assert_eq!(classification.origin, None);
    assert_eq!(world.cooldown(), (Some(3_000), 1));
}

#[test]
fn vector_failure_74() {
    let other = json!([{"status": 418, "match": "teapot", "scope": "model"}]);
    let settings = rules("cloudflare-ai", other);
    let mut world = World::under("cloudflare-ai", Apikey, &settings);
    let body = "you have used up your DAILY free allocation of neurons";
    let classification = world.fail(0, answer(429, body)).classification.unwrap();
    assert_eq!(classification.reason, Reason::QuotaExhausted);
    assert_eq!(classification.scope, Some(RuleScope::Connection));
    assert_eq!(
        rule(&classification),
        Some("cloudflare-ai-daily-neuron-allocation")
    );
    assert!(classification.is_connection_quota());
    assert_eq!(world.cooldown(), (Some(3_000), 1));
}

#[rstest]
#[case::client_fault("you sent a Bad Field")]
#[case::throttle("too many requests, bad field")]
#[case::malformed("improperly formed request: bad field")]
#[case::model_access("no access to model because of bad field")]
#[case::overflow("prompt is too long for bad field")]
fn vector_failure_75(#[case] body: &str) {
    let written = json!([
        {"status": 400, "match": "bad field", "scope": "connection",
         "reason": "rate_limit_exceeded", "cooldownMs": 45_000},
    ]);
    let mut world = World::under("acme", Apikey, &rules("acme", written));
    let classification = world.fail(0, answer(400, body)).classification.unwrap();
    assert_eq!(rule(&classification), Some("operator:acme:0"));
    assert_eq!(classification.reason, Reason::RateLimitExceeded);
    assert!(classification.account_fallback && !classification.request_scoped);
    assert_eq!(world.cooldown(), (Some(45_000), 0));
}

/// A status written as text counts as one inside a stream.
#[test]
fn an_error_inside_a_stream_tells_its_status_in_text() {
    let mut world = World::named("agentrouter", Apikey);
    let body = r#"{"error":{"message":"无权访问模型 m1","type":"new_api_error","code":"403"}}"#;
    let classification = world.fail(0, embedded(body)).classification.unwrap();
    assert_eq!(classification.status, 403);
    assert_eq!(
        rule(&classification),
        Some("agentrouter-model-access-denied")
    );
    assert_eq!(world.c1().locks.len(), 1);
    assert_eq!(world.cooldown(), (None, 0));
}

#[test]
fn vector_failure_77() {
    let mut world = World::named("agentrouter", Apikey);
    let body = format!("{QUOTA}; {NO_ACCESS}");
    let classification = world.fail(0, answer(403, &body)).classification.unwrap();
    assert_eq!(classification.status, 403, "not restated");
    assert_eq!(
        rule(&classification),
        Some("agentrouter-model-access-denied")
    );
    assert_eq!(world.c1().locks.len(), 1);
    assert_eq!(world.cooldown(), (None, 0));
}

#[rstest]
#[case::without_a_status(r#"{"error":{"message":"用户额度不足"}}"#)]
#[case::with_a_type(r#"{"error":{"type":"permission_error","message":"用户额度不足"}}"#)]
#[case::with_a_number(r#"{"error":{"code":403,"message":"用户额度不足"}}"#)]
#[case::escaped(r#"{"error":{"message":"\u7528\u6237\u989d\u5ea6\u4e0d\u8db3"}}"#)]
fn an_error_inside_a_stream_is_restated(#[case] body: &str) {
    let mut world = World::named("agentrouter", Apikey);
    let classification = world.fail(0, embedded(body)).classification.unwrap();
    assert_eq!(classification.status, 429);
    assert_eq!(classification.advertised_ms, Some(60_000));
    assert_eq!(classification.origin.unwrap().original_status, Some(200));
    assert_eq!(world.cooldown(), (Some(3_000), 1));
}

#[test]
fn an_error_inside_a_stream_with_another_status_is_not_restated() {
    let world = World::named("agentrouter", Apikey);
    let body = r#"{"error":{"code":500,"message":"用户额度不足"}}"#;
    assert_eq!(judge(&world, &embedded(body)).status, 500);
}

#[rstest]
#[case::quota(403, QUOTA)]
#[case::quota_400(400, QUOTA)]
#[case::quota_429(429, QUOTA)]
#[case::access(403, NO_ACCESS)]
#[case::cloudflare(429, "daily free allocation")]
#[case::opencode(429, "monthly usage limit reached, resets in 5 days")]
#[case::openrouter(402, "")]
fn other_providers_are_not_concerned(#[case] status: u16, #[case] body: &str) {
    let outcome = error(
        status,
        &[
            ("x-ratelimit-remaining-requests", "0"),
            ("x-model-quota-remaining", "m=0"),
        ],
        body,
    );
    let nobody = judge(&World::named("nobody", Apikey), &outcome);
    let other = judge(&World::named("openai", Apikey), &outcome);
    assert_eq!(
        serde_json::to_vec(&nobody).unwrap(),
        serde_json::to_vec(&other).unwrap()
    );
    assert_eq!((nobody.status, nobody.origin), (status, None));
}

#[test]
fn a_status_that_is_right_already_keeps_its_own_wait() {
    let world = World::named("agentrouter", Apikey);
    let outcome = error(429, &[("retry-after", "7")], QUOTA);
    let classification = judge(&world, &outcome);
    assert_eq!(classification.client_wait_ms(), Some(7_000));
    assert_eq!(classification.origin.unwrap().original_status, None);
    assert_eq!(judge(&world, &answer(429, QUOTA)).client_wait_ms(), None);
}

/// Where the scope is a label, reason and number are the rule's and the rest is as without it.
#[rstest]
#[case::opencode_header(
    "opencode",
    with_header(429, "x-ratelimit-remaining-tokens", "0"),
    "opencode-quota-exhausted-headers",
    CooldownLength::Ladder
)]
#[case::opencode_cli_code(
    "opencode-cli",
    answer(429, r#"{"error":{"code":"plan_limit_reached"}}"#),
    "opencode-quota-exhausted-body",
    CooldownLength::Ladder
)]
#[case::minimax(
    "minimax",
    with_header(429, "x-model-quota-remaining", "a=3, b=0"),
    "minimax-per-model-quota",
    CooldownLength::Ladder
)]
fn a_rule_whose_scope_is_a_label_gives_its_reason(
    #[case] provider: &str,
    #[case] outcome: Outcome,
    #[case] expected: &str,
    #[case] length: CooldownLength,
) {
    let classification = judge(&World::named(provider, Apikey), &outcome);
    assert_eq!(rule(&classification), Some(expected));
    assert_eq!(classification.reason, Reason::QuotaExhausted);
    assert_eq!(classification.scope, None);
    assert_eq!(
        classification.consequence,
        Consequence::CoolConnection(length)
    );
}

#[rstest]
#[case::minimax_has_some_left("minimax", with_header(429, "x-model-quota-remaining", "a=3, b=10"))]
#[case::minimax_says_nonsense("minimax", with_header(429, "x-model-quota-remaining", "=,0,b"))]
#[case::opencode_has_some_left("opencode", with_header(429, "x-ratelimit-remaining-tokens", "10"))]
#[case::opencode_text_is_not_seen(
    "opencode",
    answer(429, "monthly usage limit reached, resets in 5 days")
)]
#[case::another_status("opencode", with_header(503, "x-ratelimit-remaining-tokens", "0"))]
fn a_rule_that_does_not_match_is_silent(#[case] provider: &str, #[case] outcome: Outcome) {
    let classification = judge(&World::named(provider, Apikey), &outcome);
    assert_eq!(classification.origin, None);
}

#[rstest]
#[case::days("Monthly usage limit reached. Resets in 5 days.", 5 * 86_400_000)]
#[case::one_hour("monthly usage limit reached; resets in 1 hour", 3_600_000)]
#[case::minutes("monthly usage limit reached, resets in 30minutes", 1_800_000)]
#[case::seconds("monthly usage limit reached, resets in 9 seconds", 9_000)]
#[case::capped("monthly usage limit reached, resets in 99999999999999999 days", 30 * 86_400_000)]
fn a_rule_reads_when_a_quota_resets(#[case] body: &str, #[case] ms: u64) {
    let settings = settings(json!({"errorRules": {
        "fullTextProviders": ["opencode-go"], "scopeProviders": ["opencode-go"],
    }}));
    let world = World::under("opencode-go", Apikey, &settings);
    let classification = judge(&world, &answer(429, body));
    assert_eq!(
        classification.consequence,
        Consequence::CoolConnection(CooldownLength::Flat(ms))
    );
    for silent in [
        "monthly usage limit reached",
        "monthly usage limit reached, resets in soon",
        "monthly usage limit reached, resets in 0 days",
        "monthly usage limit reached, resets in 5 moons",
        "monthly usage limit reached, resets in ",
    ] {
        assert_eq!(judge(&world, &answer(429, silent)).origin, None, "{silent}");
    }
}

#[test]
fn a_quota_of_one_model_locks_it_where_scopes_are_honoured() {
    let settings = settings(json!({"errorRules": {"scopeProviders": ["minimax"]}}));
    let mut world = World::under("minimax", Apikey, &settings);
    world.fail(0, with_header(429, "x-model-quota-remaining", "m=0"));
    assert_eq!(world.c1().locks.len(), 1);
    assert_eq!(world.cooldown(), (None, 0));
}

#[test]
fn an_account_without_credits_is_not_saved_by_a_rule() {
    let written = json!([
        {"status": 429, "match": "insufficient_quota", "scope": "connection"},
        {"status": 403, "match": "deactivated", "scope": "connection"},
    ]);
    let world = World::under("acme", Apikey, &rules("acme", written));
    assert_eq!(
        judge(&world, &answer(429, "insufficient_quota")).consequence,
        Consequence::EndConnection(TerminalKind::CreditsExhausted)
    );
    let banned = judge(&world, &answer(403, "your account has been deactivated"));
    assert_eq!(
        banned.consequence,
        Consequence::EndConnection(TerminalKind::Banned)
    );
}

/// §5.4: the rule acts before the states that a status alone would set.
#[rstest]
#[case::unauthorized(401)]
#[case::payment_required(402)]
#[case::not_found(404)]
fn a_quota_rule_comes_before_what_the_status_says(#[case] status: u16) {
    let written = json!([{"status": status, "match": "come back", "scope": "connection"}]);
    let mut world = World::under("acme", Apikey, &rules("acme", written));
    world.fail(0, answer(status, "Come back later"));
    assert!(world.c1().terminal.is_none());
    assert_eq!(world.cooldown(), (Some(120_000), 0));
}

#[test]
fn an_oauth_account_is_not_banned_by_what_a_rule_explains() {
    let written = json!([{"status": 403, "match": "come back", "scope": "connection"}]);
    let mut world = World::under("acme", Oauth, &rules("acme", written));
    world.fail(0, answer(403, "come back later"));
    assert!(world.c1().terminal.is_none());
    assert_eq!(world.cooldown(), (Some(5_000), 1));
}

#[test]
fn scope_connection_wins_over_models_and_the_lockout_switch() {
    let mut written = rules(
        "acme",
        json!([{"status": 429, "match": "weekly", "scope": "connection"}]),
    );
    written.model_lockout.enabled = true;
    let mut world = World::under("acme", Apikey, &written);
    world.policy.per_model_quota = true;
    world.fail_combo(0, answer(429, "weekly quota"));
    assert_eq!(world.c1().locks, [], "the whole connection cools");
    assert_eq!(world.cooldown(), (Some(3_000), 1));
}

#[test]
fn scope_model_keeps_its_own_length_in_a_combo() {
    let mut written = rules(
        "acme",
        json!([{"status": 403, "match": "tier", "scope": "model", "cooldownMs": 600_000}]),
    );
    written.model_lockout.enabled = true;
    let mut world = World::under("acme", Apikey, &written);
    world.fail_combo(0, answer(403, "not in your tier"));
    let [lock] = world.c1().locks.as_slice() else {
        panic!("one lock");
    };
    assert_eq!((lock.until, lock.failure_count), (Timestamp(600_000), 1));
    assert_eq!(lock.reason, Reason::QuotaExhausted, "the rule's default");
}

/// Decision 21.
#[test]
fn a_connection_that_does_not_cool_only_records_what_a_rule_says() {
    let mut world = World::named("agentrouter", Apikey);
    world.config("c1").disable_cooling = true;
    world.fail_combo(0, answer(403, QUOTA));
    assert_eq!(world.cooldown().0, None);
    assert_eq!(world.c1().locks, []);
    let error = world.c1().last_error.clone().unwrap();
    assert_eq!((error.status, error.reason), (429, Reason::QuotaExhausted));
    assert_eq!(error.origin.unwrap().original_status, Some(403));
}

#[test]
fn of_several_rules_the_first_speaks() {
    let written = json!([
        {"status": 429, "match": "quota", "scope": "model", "reason": "unknown"},
        {"status": 429, "match": "QUOTA", "scope": "connection"},
        {"status": 429, "match": "a quota", "scope": "connection"},
    ]);
    let world = World::under("acme", Apikey, &rules("acme", written));
    let classification = judge(&world, &answer(429, "a quota"));
    assert_eq!(rule(&classification), Some("operator:acme:0"));
    assert_eq!(classification.scope, Some(RuleScope::Model));
    assert!(matches!(
        classification.consequence,
        Consequence::LockModel(LockLength::Ladder { .. })
    ));
}

#[rstest]
#[case::ascii("Quota Over", "QUOTA OVER", true)]
#[case::cyrillic("Квота исчерпана", "КВОТА ИСЧЕРПАНА", true)]
#[case::german("Straße", "STRASSE", true)]
#[case::greek("τέλος", "ΤΈΛΟΣ", true)]
#[case::expression("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa!", false)]
#[case::expression_as_text("(a+)+$", "see (A+)+$ here", true)]
#[case::any(".*", "anything", false)]
#[case::empty_body("x", "", false)]
fn a_rule_is_plain_text_without_regard_to_case(
    #[case] text: &str,
    #[case] body: &str,
    #[case] matches: bool,
) {
    let written = json!([{"status": 429, "match": text, "scope": "connection"}]);
    let world = World::under("acme", Apikey, &rules("acme", written));
    let classification = judge(&world, &answer(429, body));
    assert_eq!(classification.origin.is_some(), matches);
}

#[rstest]
#[case::ok_status(500)]
#[case::forbidden(403)]
#[case::rate_limit(429)]
fn a_phrase_of_the_operators_is_a_ban_whatever_the_status(#[case] status: u16) {
    let settings = settings(json!({"banDetection": {
        "extraPhrases": ["never seen", "Compte Bloqué"], "autoDisable": false,
    }}));
    for provider in ["acme", "agentrouter"] {
        let mut world = World::under(provider, Apikey, &settings);
        let outcome = answer(status, "votre COMPTE BLOQUÉ par nous");
        let classification = world.fail(0, outcome).classification.unwrap();
        assert_eq!(rule(&classification), Some("operator:ban-phrase:1"));
        let terminal = world.c1().terminal.clone().unwrap();
        assert_eq!(terminal.kind, TerminalKind::Banned);
        assert!(!terminal.switched_off);
    }
}

#[test]
fn a_ban_may_switch_the_connection_off_until_it_is_reset() {
    let settings = settings(json!({"banDetection": {"autoDisable": true}}));
    let mut world = World::under("acme", Apikey, &settings);
    world.fail(0, answer(500, "your account has been deactivated"));
    assert!(world.c1().terminal.as_ref().unwrap().switched_off);
    assert!(world.config("c1").enabled, "the document is the operator's");
    let reset = Event::ResetConnection {
        connection: world.config("c1").id.clone(),
        terminal_too: true,
    };
    let applied = world.event(Some("c1"), &reset, Timestamp(1));
    assert_eq!(applied.transitions.len(), 1);
    assert_eq!(applied.transitions[0].kind, TransitionKind::Cleared);
    assert!(world.c1().terminal.is_none());
    world.fail(2, answer(401, "no"));
    assert!(
        !world.c1().terminal.as_ref().unwrap().switched_off,
        "only a ban does"
    );
}

/// Fifty near misses in a body that is nothing but their common beginning. Were a text looked for step by step, this
/// would run into the limit of the test runner.
#[test]
fn many_rules_and_a_hostile_body_are_no_match() {
    let texts = (0..50).map(|number| {
        let text = "a".repeat(150 + number);
        json!({"status": 429, "match": format!("{text}b"), "scope": "model"})
    });
    let world = World::under("acme", Apikey, &rules("acme", texts.collect()));
    let near = "a".repeat(8 * 1024 - 1);
    assert_eq!(judge(&world, &answer(429, &near)).origin, None);
    let hit = judge(&world, &answer(429, &format!("{near}b")));
    assert_eq!(rule(&hit), Some("operator:acme:0"));
}
