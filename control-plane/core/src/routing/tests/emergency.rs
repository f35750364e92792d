//! The last resort when money or quota is used up (`routing.md` §13.4, decisions 34 and 50).

use rstest::rstest;

use super::*;

/// A request for `p1/m`, with these settings of the emergency fallback, and an account at its provider.
fn world(emergency_fallback: Value) -> World {
    let mut settings = no_waits();
    settings["emergencyFallback"] = emergency_fallback;
    let mut world = World::combo(&["p1/k1", "nvidia/n1"], &["p1/m"], json!({}), settings);
    world.facts.model = "p1/m".to_owned();
    world
}

const EMERGENCY: &str = "nvidia/n1/openai/gpt-oss-120b";

fn fails_with(reply: Reply) -> impl Fn(&str, usize) -> Reply {
    move |name, _| {
        if name == EMERGENCY {
            Reply::Success
        } else {
            reply.clone()
        }
    }
}

#[test]
fn vector_routing_v_ef1() {
    let mut world = world(json!({}));
    let journey = world.run(fails_with(status(402)));
    assert_eq!(journey.attempts, ["p1/k1/m", EMERGENCY]);
    let dispatch = world.dispatch();
    assert_eq!(dispatch.target, EMERGENCY_TARGET);
    assert_eq!(dispatch.emergency_max_tokens, Some(4_096));
}

#[test]
fn vector_routing_v_ef2() {
    let mut world = world(json!({}));
    world.facts.tools = 1;
    let journey = world.run(fails_with(status(402)));
    assert_eq!(journey.attempts, ["p1/k1/m"]);
    assert_eq!(journey.rejection().status, 402);
}

#[rstest]
#[case::vector_routing_v_ef3(json!({"enabled": false}))]
#[case::provider_without_account(json!({"provider": "nobody"}))]
#[case::what_just_failed(json!({"provider": "p1", "model": "m"}))]
fn without_it_the_answer_is_that_of_the_upstream(#[case] settings: Value) {
    let journey = world(settings).run(fails_with(status(402)));
    assert_eq!(journey.attempts, ["p1/k1/m"]);
    assert_eq!(journey.rejection().status, 402);
}

/// Decisions 34 and 50 change this vector: a 400 that no rule claims is the client's own fault.
#[test]
fn vector_routing_v_ef4() {
    let journey = world(json!({})).run(fails_with(answer(400, "Billing hard limit", None)));
    assert_eq!(journey.attempts, ["p1/k1/m"]);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (400, true));
}

#[rstest]
#[case::phrase(
    answer(429, r#"{"error":{"message":"Spending LIMIT reached"}}"#, None),
    true
)]
#[case::ordinary_429(status(429), false)]
#[case::outage(status(503), false)]
#[case::phrase_in_an_outage(answer(503, "billing system says no", None), true)]
fn texts_speak_of_a_budget(#[case] reply: Reply, #[case] expected: bool) {
    let journey = world(json!({})).run(fails_with(reply));
    assert_eq!(journey.attempts.contains(&EMERGENCY.to_owned()), expected);
}

#[test]
fn an_ordinary_limit_is_waited_for_first() {
    let mut world = world(json!({}));
    let settings = json!({"maxRetries": 1});
    let mut document = crate::config::Document::clone(&world.config.document);
    document.settings = serde_json::from_value(json!({"waitForCooldown": settings})).unwrap();
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    let limit = answer(429, "rate limited: no credits per second", Some("20"));
    let journey = world.run(fails_with(limit));
    assert_eq!(journey.attempts, ["p1/k1/m", "p1/k1/m", EMERGENCY]);
    assert_eq!(journey.cooldown_waits(), [20_050]);
}

#[test]
fn a_failure_for_another_reason_is_not_hidden() {
    let mut settings = no_waits();
    settings["emergencyFallback"] = json!({});
    let mut world = World::combo(
        &["p1/k1", "p2/k2", "nvidia/n1"],
        &["p1/m", "p2/m"],
        json!({"maxRetries": 0}),
        settings,
    );
    let journey = world.run(|name, _| status(if name.starts_with("p1") { 402 } else { 503 }));
    assert_eq!(journey.attempts, ["p1/k1/m", "p2/k2/m"]);
}

#[test]
fn an_account_without_credits_leads_there_before_anything_is_sent() {
    let mut world = world(json!({}));
    world.connection_state(
        "k1",
        ConnectionState {
            terminal: Some(crate::cooldown::Terminal {
                kind: crate::classify::TerminalKind::CreditsExhausted,
                since: START,
                credential_version: 1,
                switched_off: false,
            }),
            ..ConnectionState::default()
        },
    );
    assert_eq!(world.dispatch().target, EMERGENCY_TARGET);
    world.connection_state("k1", cooling(5_000, Reason::ServerError));
    assert_eq!(world.reject().code, "all_targets_cooling_down");
}

/// More accounts than exclusions are told of: what is behind those counts all the same.
#[test]
fn every_account_counts_however_many_there_are() {
    let names: Vec<String> = (0..MAX_EXCLUSIONS + 2)
        .map(|n| format!("p1/k{n:02}"))
        .collect();
    let mut connections: Vec<&str> = names.iter().map(String::as_str).collect();
    connections.push("nvidia/n1");
    let mut settings = no_waits();
    settings["emergencyFallback"] = json!({});
    let mut world = World::combo(&connections, &["p1/m"], json!({}), settings);
    for name in &names {
        let state = cooling(600_000, Reason::Credits);
        world.connection_state(name.strip_prefix("p1/").unwrap(), state);
    }
    assert_eq!(world.dispatch().target, EMERGENCY_TARGET);
    let last = names.last().unwrap().strip_prefix("p1/").unwrap();
    world.connection_state(last, cooling(600_000, Reason::RateLimitExceeded));
    assert_eq!(world.reject().code, "all_targets_cooling_down");
}

#[test]
fn it_is_tried_once_and_its_failure_is_not_the_answer() {
    let journey = world(json!({})).run(|name, _| status(if name == EMERGENCY { 500 } else { 402 }));
    assert_eq!(journey.attempts, ["p1/k1/m", EMERGENCY]);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.attempted), (402, 2));
    assert!(
        !rejection.message.contains("gpt-oss"),
        "{}",
        rejection.message
    );
}

#[test]
fn a_key_that_may_not_use_it_is_not_sent_there() {
    let key = |allowed: &[&str]| {
        Arc::new(
            serde_json::from_value(json!({
                "id": "k", "sha256": "0".repeat(64), "allowedModels": allowed,
            }))
            .unwrap(),
        )
    };
    let mut world = world(json!({}));
    world.facts.key = Some(key(&["p1/m"]));
    let journey = world.run(fails_with(status(402)));
    assert_eq!(journey.attempts, ["p1/k1/m"]);
    world.so_far = AttemptsSoFar::default();
    world.facts.key = Some(key(&["p1/m", "nvidia/openai/gpt-oss-120b"]));
    let journey = world.run(fails_with(status(402)));
    assert_eq!(journey.attempts, ["p1/k1/m", EMERGENCY]);
}

#[test]
fn the_environment_switches_it_off_and_the_document_back_on() {
    let build = |document: Value, value: &str| {
        let document: Document = serde_json::from_value(document).unwrap();
        let overrides = Overrides::from_environment([("OMNIROUTE_EMERGENCY_FALLBACK", value)]);
        let config = Config::build(document, 1, &overrides).unwrap();
        config.settings.emergency_fallback.enabled
    };
    let on = json!({"settings": {"emergencyFallback": {"enabled": true}}});
    assert_eq!(build(json!({}), "0"), Some(false));
    assert_eq!(build(json!({}), "False"), Some(false));
    assert_eq!(build(json!({}), "anything"), Some(true));
    assert_eq!(build(on, "false"), Some(true));
}
