//! `routing.md` §6 and §7, decisions 27 and 50.

use rstest::rstest;

use super::*;

/// Two targets that fail as told, without retries and waits.
fn outcomes(first: Reply, second: Reply) -> Rejection {
    let mut world = World::combo(
        &["p1/c1", "p2/c2"],
        &["p1/a", "p2/b"],
        json!({"maxRetries": 0}),
        no_waits(),
    );
    let journey = world.run(|name, _| {
        if name.starts_with("p1/") {
            first.clone()
        } else {
            second.clone()
        }
    });
    journey.rejection().clone()
}

fn status_and_retry_after(rejection: &Rejection) -> (u16, Option<u64>) {
    (rejection.status, rejection.retry_after_secs)
}

#[test]
fn vector_routing_e1() {
    let rejection = outcomes(answer(429, "", Some("60")), answer(429, "", Some("30")));
    assert_eq!(status_and_retry_after(&rejection), (429, Some(30)));
    assert_eq!(rejection.error_type, "rate_limit_error");
}

#[test]
fn vector_routing_e2() {
    let rejection = outcomes(answer(429, "", Some("60")), answer(503, "", Some("30")));
    assert_eq!(status_and_retry_after(&rejection), (502, None));
}

#[test]
fn vector_routing_e3() {
    let rejection = outcomes(status(401), status(401));
    assert_eq!(status_and_retry_after(&rejection), (401, None));
}

#[test]
fn vector_routing_e4() {
    let empty = r#"{"error":{"code":"upstream_empty_response"}}"#;
    let rejection = outcomes(answer(502, empty, None), status(401));
    assert_eq!(status_and_retry_after(&rejection), (502, None));
}

#[test]
fn vector_routing_e5() {
    let rejection = outcomes(status(408), answer(503, "", Some("30")));
    assert_eq!(status_and_retry_after(&rejection), (504, None));
}

#[test]
fn vector_routing_e6() {
    let unsupported = r#"{"error":{"message":"unsupported model"}}"#;
    let rejection = outcomes(answer(400, unsupported, None), status(422));
    assert_eq!(status_and_retry_after(&rejection), (422, None));
}

#[test]
fn vector_routing_e7() {
    let rejection = outcomes(answer(503, "", Some("30")), status(500));
    assert_eq!(status_and_retry_after(&rejection), (500, None));
}

#[test]
fn vector_routing_e8() {
    let rejection = outcomes(status(500), answer(503, "", Some("30")));
    assert_eq!(status_and_retry_after(&rejection), (503, Some(30)));
}

#[test]
fn the_message_names_what_failed() {
    let rejection = outcomes(status(500), status(429));
    assert_eq!(
        rejection.message,
        "every attempt failed: p1/a provider server_error 500; p2/b rate_limit rate_limit_exceeded 429"
    );
    assert_eq!((rejection.pool_size, rejection.attempted), (2, 2));
    assert_eq!(rejection.terminal_reason, "all_models_failed");
}

#[rstest]
#[case::payload_too_large(413)]
#[case::unprocessable(422)]
#[case::bad_request(400)]
fn a_fault_of_the_client_is_tried_once_and_passed_through(#[case] code: u16) {
    let mut world = World::combo(&["p1/c1", "p1/c2"], &["p1/a"], json!({}), json!({}));
    let journey = world.run(|_, _| answer(code, r#"{"error":{"message":"bad field x"}}"#, None));
    assert_eq!(journey.attempts.len(), 1);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (code, true));
    assert_eq!(rejection.code, "client_error");
}

#[test]
fn a_client_that_left_gets_no_further_attempt() {
    let mut world = World::combo(&["p1/c1", "p1/c2"], &["p1/a"], json!({}), json!({}));
    let journey = world.run(|_, _| Reply::Failure(Outcome::ClientAbort));
    assert_eq!(journey.attempts.len(), 1);
    assert_eq!(journey.rejection().status, 499);
    assert!(!journey.rejection().pass_through);
}

fn locked(model: &str, left_ms: u64) -> ConnectionState {
    let model = ModelId::new(model).unwrap();
    let mut locks = Vec::new();
    crate::lockout::lock(
        &mut locks,
        &crate::lockout::LockingFailure {
            key: crate::lockout::LockKey::Model(model),
            length: crate::classify::LockLength::Exact {
                ms: left_ms,
                authoritative: true,
            },
            reason: Reason::QuotaExhausted,
            origin: None,
            at: START,
            decided_on: Version::default(),
        },
        &openai_and_claude()
            .config
            .provider(&ProviderId::new("openai").unwrap())
            .unwrap()
            .policy
            .lockout,
    );
    ConnectionState {
        locks,
        ..ConnectionState::default()
    }
}

fn openai_and_claude() -> World {
    World::combo(
        &["openai/o", "claude/k"],
        &["openai/a", "claude/b"],
        json!({}),
        json!({}),
    )
}

/// The cases of §7.3, which are stated for `weighted`; decision 27 extends them to every strategy.
fn weighted(connections: &[&str], steps: &[&str]) -> World {
    let mut world = World::combo(connections, steps, json!({}), no_waits());
    let name = ComboName::new("c").unwrap();
    let entry = world.config.combos.get_mut(&name).unwrap();
    entry.combo.strategy = crate::config::Strategy::Weighted;
    world.change_targets(|targets| {
        for target in targets {
            target.weight = crate::number::Finite::ONE;
        }
    });
    world
}

fn openai_and_claude_weighted() -> World {
    weighted(&["openai/o", "claude/k"], &["openai/a", "claude/b"])
}

#[test]
fn vector_routing_c1() {
    let mut world = openai_and_claude_weighted();
    world.connection_state("o", locked("a", 60_000));
    world.connection_state("k", locked("b", 120_000));
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (503, Some(60)));
    assert_eq!(rejection.code, "all_targets_cooling_down");
    assert_eq!(rejection.error_type, "service_unavailable");
    assert_eq!((rejection.pool_size, rejection.attempted), (2, 0));
    let reasons: Vec<_> = rejection.excluded.iter().map(|one| one.reason).collect();
    assert_eq!(reasons, [ExclusionReason::ModelLockout; 2]);
}

#[test]
fn vector_routing_c2() {
    let mut world = openai_and_claude_weighted();
    world.connection_state("o", locked("a", 60_000));
    world
        .without_credential
        .insert(ConnectionId::new("k").unwrap());
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (503, Some(60)));
    assert_eq!(rejection.excluded.len(), 2);
    assert_eq!(
        rejection.message,
        "all targets are cooling down: openai/a model_lockout"
    );
}

#[test]
fn vector_routing_c3() {
    let mut world = openai_and_claude_weighted();
    for connection in ["o", "k"] {
        world
            .without_credential
            .insert(ConnectionId::new(connection).unwrap());
    }
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (404, None));
    assert_eq!(rejection.code, "no_executable_targets");
    assert_eq!(rejection.terminal_reason, "no_executable_targets");
    assert_eq!(rejection.error_type, "invalid_request_error");
}

#[test]
fn vector_routing_c4() {
    let mut world = weighted(&["p1/k1"], &["p1/m"]);
    world.open_breaker("p1", 500);
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (503, Some(1)));
    assert_eq!(rejection.excluded.len(), 1);
    assert_eq!(rejection.excluded[0].connection, None);
}

#[test]
fn vector_routing_c5() {
    let mut world = weighted(&["p1/k1"], &["p1/m"]);
    world.change_targets(Vec::clear);
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (404, None));
    assert_eq!(rejection.code, "no_executable_targets");
    assert_eq!(rejection.pool_size, 0);
}

/// A step that stands for two targets, of which one is locked, takes part in the draw: whatever the draw, it is the
/// healthy one that is used.
#[test]
fn vector_routing_c6() {
    let mut world = weighted(
        &["openai/o", "openai/p", "claude/k"],
        &["openai/o/a", "openai/p/a", "claude/k/b"],
    );
    world.change_targets(|targets| {
        targets[1].group = 0;
        targets[2].group = 2;
        targets[2].weight = crate::number::Finite::ZERO;
    });
    world.connection_state("o", locked("a", 60_000));
    for random in 0..100 {
        world.random = random;
        assert_eq!(world.dispatch().connection.as_str(), "p");
    }
}

#[test]
fn an_unknown_name_is_404_and_not_echoed_whole() {
    let mut world = openai_and_claude();
    world.facts.model = format!("nobody/{}", "x".repeat(10_000));
    let rejection = world.reject();
    assert_eq!(status_and_retry_after(&rejection), (404, None));
    assert_eq!(rejection.code, "model_not_found");
    assert!(rejection.message.len() < 200, "{}", rejection.message);
}

#[test]
fn thousands_of_cooling_accounts_are_told_in_short() {
    let names: Vec<String> = (0..2_000).map(|number| format!("p1/k{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::combo(&names, &["p1/m"], json!({}), no_waits());
    for number in 0..2_000 {
        let left_ms = if number == 1_999 { 1_500 } else { 60_000 };
        world.connection_state(&format!("k{number}"), cooling(left_ms, Reason::ServerError));
    }
    let rejection = world.reject();
    assert_eq!(rejection.excluded.len(), MAX_EXCLUSIONS);
    assert_eq!(rejection.retry_after_secs, Some(2));
}
