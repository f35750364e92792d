//! `routing.md` §4.4 (exhaustion), §5.0 (accounts), §5.6 (retries) and §8.1 (`priority`).

use rstest::rstest;

use super::*;

/// The vectors of §5.6: three pinned targets on different connections, no cooldown is kept.
fn three_pinned(combo: Value, settings: Value) -> World {
    World::combo(
        &["p1/c1", "p2/c2", "p3/c3"],
        &["p1/c1/m", "p2/c2/m", "p3/c3/m"],
        combo,
        settings,
    )
    .without_cooling()
}

fn targets(journey: &Journey) -> Vec<&str> {
    journey
        .attempts
        .iter()
        .map(|attempt| attempt.split('/').next().unwrap_or_default())
        .collect()
}

#[test]
fn vector_routing_v_p1() {
    let mut world = three_pinned(json!({"maxRetries": 0}), no_waits());
    assert_eq!(world.run(|_, _| Reply::Success).attempts, ["p1/c1/m"]);
    let journey = three_pinned(json!({"maxRetries": 0}), no_waits()).run(|_, _| status(503));
    assert_eq!(targets(&journey), ["p1", "p2", "p3"]);
}

#[test]
fn vector_routing_v_p2() {
    let mut world = three_pinned(json!({}), no_waits());
    world.open_breaker("p1", 10_000);
    let dispatch = world.dispatch();
    assert_eq!((dispatch.provider.as_str(), dispatch.target), ("p2", 1));
    let skipped: Vec<_> = dispatch.excluded.iter().map(|one| one.reason).collect();
    assert_eq!(skipped, [ExclusionReason::CircuitOpen]);
    assert_eq!(dispatch.excluded[0].until, Some(START.plus_ms(10_000)));
}

#[test]
fn vector_routing_x1() {
    let mut world = World::combo(
        &["p1/c1", "p1/c2", "p2/c9"],
        &["p1/c1/m1", "p1/c1/m2", "p1/c2/m1", "p2/c9/m3"],
        json!({"maxRetries": 0}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, before| {
        if before == 0 {
            status(503)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/c1/m1", "p1/c2/m1"]);
}

#[test]
fn vector_routing_x2() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/m1", "p1/m2", "p2/m3"],
        json!({"maxRetries": 0}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, before| {
        if before == 0 {
            status(503)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/m1", "p2/k2/m3"]);
}

#[test]
fn vector_routing_x3() {
    let mut world = World::combo(&["p1/k1"], &["p1/m1", "p1/m2"], json!({}), no_waits());
    let journey = world.run(|_, before| {
        if before == 0 {
            status(429)
        } else {
            Reply::Success
        }
    });
    // The account cools down after the 429, and the second target may use it all the same.
    assert_eq!(journey.attempts, ["p1/k1/m1", "p1/k1/m2"]);
}

#[test]
fn vector_routing_x4() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/m1", "p1/m2", "p2/m3"],
        json!({}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, before| {
        let quota = r#"{"error":{"message":"monthly quota exceeded"}}"#;
        if before == 0 {
            answer(429, quota, None)
        } else {
            Reply::Success
        }
    });
    assert_eq!(
        world.so_far.attempts[0].classification.reason,
        Reason::QuotaExhausted
    );
    assert_eq!(journey.attempts, ["p1/k1/m1", "p2/k2/m3"]);
}

#[test]
fn vector_routing_x6() {
    let mut world = World::combo(&["p1/c1"], &["p1/c1/m1", "p1/c1/m2"], json!({}), no_waits());
    let journey = world.run(|_, before| {
        let empty = r#"{"error":{"code":"upstream_empty_response","message":"empty content"}}"#;
        if before == 0 {
            answer(502, empty, None)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/c1/m1", "p1/c1/m2"]);
}

#[test]
fn vector_routing_x7() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/m1", "p1/m2", "p2/m3"],
        json!({}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, before| {
        if before == 0 {
            status(403)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/m1", "p2/k2/m3"]);
}

#[test]
fn vector_routing_x8() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/m1", "p1/m2", "p2/m3"],
        json!({"maxRetries": 0, "maxSetRetries": 1}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, _| status(503));
    assert_eq!(
        journey.attempts,
        ["p1/k1/m1", "p2/k2/m3", "p1/k1/m1", "p2/k2/m3"]
    );
    assert_eq!(
        journey.waits,
        [Wait {
            wait_ms: 2_000,
            kind: WaitKind::FallbackDelay
        }]
    );
    assert_eq!(journey.rejection().attempted, 4);
}

#[test]
fn vector_routing_x9() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2"],
        &["p1/m", "p1/other"],
        json!({}),
        no_waits(),
    );
    let journey = world.run(|_, before| {
        if before == 0 {
            status(401)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/m", "p1/k2/m"]);
    let classification = &world.so_far.attempts[0].classification;
    assert_eq!(
        classification.consequence,
        crate::classify::Consequence::EndConnection(crate::classify::TerminalKind::Expired)
    );
}

#[test]
fn vector_routing_x10() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2", "p2/k3"],
        &["p1/m", "p2/m", "p1/other"],
        json!({"maxRetries": 0}),
        no_waits(),
    )
    .without_cooling();
    let journey = world.run(|_, _| status(503));
    assert_eq!(journey.attempts, ["p1/k1/m", "p1/k2/m", "p2/k3/m"]);
}

#[test]
fn vector_routing_r1() {
    let journey = three_pinned(json!({}), no_waits()).run(|_, _| status(503));
    assert_eq!(targets(&journey), ["p1", "p1", "p2", "p2", "p3", "p3"]);
    assert!(journey.waits.iter().all(|wait| wait.wait_ms == 2_000));
    assert_eq!(journey.waits.len(), 3);
}

#[test]
fn a_cooldown_that_outlasts_the_delay_drops_the_retry() {
    let mut world = World::combo(
        &["p1/c1", "p2/c2", "p3/c3"],
        &["p1/c1/m", "p2/c2/m", "p3/c3/m"],
        json!({}),
        no_waits(),
    );
    assert_eq!(targets(&world.run(|_, _| status(503))), ["p1", "p2", "p3"]);
}

#[test]
fn vector_routing_r2() {
    let mut settings = no_waits();
    settings["modelLockout"] = json!({"enabled": true});
    let journey = three_pinned(json!({}), settings).run(|_, _| status(503));
    assert_eq!(targets(&journey), ["p1", "p2", "p3"]);
}

#[test]
fn vector_routing_r3() {
    let journey = three_pinned(json!({}), no_waits()).run(|_, before| {
        if before == 0 {
            status(401)
        } else {
            Reply::Success
        }
    });
    assert_eq!(targets(&journey), ["p1", "p2"]);
}

#[test]
fn vector_routing_r4() {
    let journey =
        three_pinned(json!({"failoverBeforeRetry": true}), no_waits()).run(|_, _| status(503));
    assert_eq!(targets(&journey), ["p1", "p2", "p3", "p3"]);
}

#[test]
fn vector_routing_r5() {
    let journey = three_pinned(json!({}), no_waits()).run(|_, before| {
        let body = r#"{"error":{"message":"unsupported model"}}"#;
        if before == 0 {
            answer(400, body, None)
        } else {
            Reply::Success
        }
    });
    assert_eq!(targets(&journey), ["p1", "p2"]);
}

#[test]
fn vector_routing_r6() {
    let journey = three_pinned(json!({}), no_waits())
        .run(|_, _| answer(400, r#"{"error":{"message":"malformed JSON body"}}"#, None));
    assert_eq!(targets(&journey), ["p1"]);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (400, true));
}

const OVERFLOW: &str = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;

#[test]
fn vector_routing_r7() {
    let journey = three_pinned(json!({}), no_waits()).run(|_, _| answer(400, OVERFLOW, None));
    assert_eq!(targets(&journey), ["p1"]);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (400, true));
}

#[test]
fn vector_routing_r8() {
    let mut world = World::combo(
        &["p1/c1", "p1/c2", "p2/c3"],
        &["p1/small", "p2/small", "p2/large"],
        json!({}),
        no_waits(),
    );
    world.catalogue(&[("p2/large", window(1_000_000))]);
    let overflow_then_success = |_: &str, before| {
        if before == 0 {
            answer(400, OVERFLOW, None)
        } else {
            Reply::Success
        }
    };
    let journey = world.run(overflow_then_success);
    // Neither another account nor another target of the same model is asked.
    assert_eq!(journey.attempts, ["p1/c1/small", "p2/c3/large"]);

    // Decision 50: the other model must be known to have a larger window.
    for rows in [
        vec![],
        vec![("p1/small", window(1_000)), ("p2/large", window(1_000))],
    ] {
        world.catalogue(&rows);
        world.so_far = AttemptsSoFar::default();
        let journey = world.run(overflow_then_success);
        assert_eq!(journey.attempts, ["p1/c1/small"], "{rows:?}");
        assert!(journey.rejection().pass_through);
    }
}

fn window(tokens: u64) -> ModelInfo {
    ModelInfo {
        context_window: Some(tokens),
        ..ModelInfo::default()
    }
}

#[test]
fn attempts_of_a_request_are_capped() {
    let journey = three_pinned(json!({"maxGlobalAttempts": 2}), no_waits()).run(|_, _| status(503));
    assert_eq!(targets(&journey), ["p1", "p1"]);
    let rejection = journey.rejection();
    assert_eq!(
        (
            rejection.status,
            rejection.code.as_str(),
            rejection.attempted
        ),
        (503, "max_attempts_exceeded", 2)
    );
}

#[test]
fn an_account_that_comes_free_during_the_delay_continues_the_loop() {
    let mut world =
        World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits()).without_cooling();
    world.connection_state("k2", cooling(1_000, Reason::ServerError));
    let journey = world.run(|_, _| status(503));
    assert_eq!(
        journey.attempts,
        ["p1/k1/m", "p1/k2/m", "p1/k1/m", "p1/k2/m"]
    );
}

#[test]
fn a_request_sees_its_own_failures_at_once() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    let first = world.dispatch();
    assert!(!first.report_at_readiness);
    world.fail(&first, &upstream_error(429, "", None));
    assert_eq!(world.dispatch().connection.as_str(), "k2");
    let exclusion = &world.dispatch().excluded[0];
    assert_eq!(exclusion.reason, ExclusionReason::ConnectionCooldown);
    assert_eq!(exclusion.cause, Some(Reason::RateLimitExceeded));
    assert!(world.view.connections.is_empty());
}

#[test]
fn whether_a_combo_goes_on_at_the_same_provider_is_what_the_decision_says() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2"],
        &["p1/m1", "p1/m2", "p2/m3"],
        json!({"maxRetries": 0}),
        no_waits(),
    );
    let same = |world: &World| {
        let route = resolve(&world.config, "c").unwrap();
        let last = world.so_far.attempts.last().unwrap();
        next_target_same_provider(&route, last, &world.decide())
    };
    let first = world.dispatch();
    world.fail(&first, &upstream_error(503, "", None));
    assert!(!same(&world), "p1 is exhausted, so p2 is next");
    world.so_far.attempts.clear();
    world.fail(&first, &upstream_error(429, "", None));
    assert!(same(&world), "p1/m2 is next");
}

/// One failure more opens the breaker of `p1`, unless `p1` is asked next. In the list it is not, in the order it is.
#[rstest]
#[case::in_the_order_of_the_list(vec![], "p2")]
#[case::in_an_order_of_its_own(vec![0, 2, 1], "p1")]
fn the_next_target_of_the_requests_order_vetoes_the_breaker(
    #[case] order: Vec<u32>,
    #[case] expected: &str,
) {
    let mut world = World::combo(
        &["p1/k1", "p2/k2", "p1/k3"],
        &["p1/k1/m1", "p2/k2/m", "p1/k3/m2"],
        json!({"maxRetries": 0}),
        no_waits(),
    );
    let provider = ProviderId::new("p1").unwrap();
    let policy = &world.config.provider(&provider).unwrap().policy.breaker;
    let mut state = ProviderState::default();
    state.breaker.failure_count = policy.failure_threshold - 1;
    world.view.providers.insert(provider, Arc::new(state));
    let first = world.dispatch();
    world.fail(&first, &upstream_error(503, "", None));
    world.so_far.order = order;
    assert_eq!(world.dispatch().provider.as_str(), expected);
}
