//! Limits of the walk: times, delays, retry budgets, protected targets, the turn of the next (`routing.md` §5, decision 49).

use rstest::rstest;

use super::*;
use crate::config::Strategy;
use crate::outcome::LocalFault;

fn three(combo: Value) -> World {
    World::combo(
        &["p1/c1", "p2/c2", "p3/c3"],
        &["p1/c1/m", "p2/c2/m", "p3/c3/m"],
        combo,
        no_waits(),
    )
}

#[test]
fn an_attempt_is_limited_by_the_target_and_by_what_is_left_of_the_request() {
    let mut world = three(json!({"comboTimeoutMs": 130_000}));
    assert_eq!(world.dispatch().timeout_ms, Some(120_000));
    world.so_far.elapsed_ms = 100_000;
    assert_eq!(world.dispatch().timeout_ms, Some(30_000));
    let world = three(json!({"targetTimeoutMs": 5_000}));
    assert_eq!(world.dispatch().timeout_ms, Some(5_000));
    let mut world = three(json!({}));
    world.facts.model = "p1/m".to_owned();
    world.so_far.elapsed_ms = 700_000;
    assert_eq!(world.dispatch().timeout_ms, None);
}

#[rstest]
#[case::own_limit(json!({"comboTimeoutMs": 5_000}), 5_000)]
#[case::safety(json!({}), 600_000)]
#[case::safety_where_it_is_off(json!({"comboTimeoutMs": 0}), 600_000)]
fn a_request_whose_time_is_up_ends(#[case] combo: Value, #[case] limit_ms: u64) {
    let mut world = three(combo);
    world.so_far.elapsed_ms = limit_ms - 1;
    let first = world.dispatch();
    world.fail(&first, &upstream_error(503, "", None));
    world.so_far.elapsed_ms = limit_ms;
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (504, "COMBO_TIMEOUT")
    );
    assert_eq!(rejection.attempted, 1);
}

#[test]
fn nothing_is_waited_for_that_comes_after_the_end() {
    let mut world = three(json!({"comboTimeoutMs": 2_000})).without_cooling();
    let journey = world.run(|_, _| status(503));
    // The retry would come exactly when the time is up.
    assert_eq!(journey.attempts.len(), 1);
    assert_eq!(journey.rejection().code, "COMBO_TIMEOUT");

    let mut world = World::combo(
        &["p1/k1"],
        &["p1/m"],
        json!({"comboTimeoutMs": 20_000}),
        json!({}),
    );
    let journey = world.run(|_, _| answer(429, "", Some("20")));
    assert_eq!(journey.attempts.len(), 1);
    let rejection = journey.rejection();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (429, Some(20))
    );
}

#[rstest]
#[case::no_longer_than_the_cooldown(json!({"fallbackDelayMs": 60_000}), status(503), &[5_000])]
#[case::no_longer_than_set(json!({"fallbackDelayMs": 700}), status(502), &[700])]
#[case::default(json!({}), status(503), &[])]
#[case::another_status(json!({"fallbackDelayMs": 700}), status(500), &[])]
#[case::a_long_cooldown(json!({"fallbackDelayMs": 700}), answer(503, "", Some("6")), &[])]
fn the_next_target_is_kept_waiting(
    #[case] combo: Value,
    #[case] reply: Reply,
    #[case] expected: &[u64],
) {
    let mut settings = no_waits();
    settings["connectionCooldown"] = json!({"apikey": {"baseCooldownMs": 5_000}});
    let mut world = World::combo(&["p1/k1", "p2/k2"], &["p1/a", "p2/b"], combo, settings);
    let journey = world.run(|name, _| {
        if name.starts_with("p1") {
            reply.clone()
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/a", "p2/k2/b"]);
    let waits: Vec<u64> = journey.waits.iter().map(|wait| wait.wait_ms).collect();
    assert_eq!(waits, expected);
}

/// Who cannot wait gets what comes without a wait (decision 28).
#[rstest]
#[case::retry(json!({"maxRetries": 1}), &["p1/c1/m", "p2/c2/m", "p3/c3/m"])]
#[case::next_target(
    json!({"maxRetries": 0, "fallbackDelayMs": 700}),
    &["p1/c1/m", "p2/c2/m", "p3/c3/m"]
)]
#[case::repeat_of_the_list(
    json!({"maxRetries": 0, "maxSetRetries": 1}),
    &["p1/c1/m", "p2/c2/m", "p3/c3/m"]
)]
fn without_room_to_wait_nothing_is_delayed(#[case] combo: Value, #[case] expected: &[&str]) {
    let mut world = three(combo.clone());
    if combo.get("fallbackDelayMs").is_none() {
        world = world.without_cooling();
    }
    world.so_far.no_wait = true;
    let journey = world.run(|_, _| status(503));
    assert_eq!(journey.attempts, expected);
    assert!(journey.waits.is_empty());
    assert_eq!(journey.rejection().status, 503);
}

#[test]
fn without_room_to_wait_a_cooldown_ends_the_request_with_its_real_answer() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    world.so_far.no_wait = true;
    let journey = world.run(|_, _| answer(429, "", Some("20")));
    assert_eq!((journey.attempts.len(), journey.waits.len()), (1, 0));
    let rejection = journey.rejection();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (429, Some(20))
    );
}

#[test]
fn a_target_without_a_cooldown_keeps_nobody_waiting() {
    let combo = json!({"fallbackDelayMs": 700, "maxRetries": 0});
    let journey = three(combo).without_cooling().run(|_, _| status(503));
    assert_eq!((journey.attempts.len(), journey.waits.len()), (3, 0));
}

const BAD_PARAMETER: &str = r#"{"error":{"message":"parameter is illegal"}}"#;

#[test]
fn the_same_fault_at_three_targets_in_a_row_is_believed() {
    let connections = ["p1/c1", "p2/c2", "p3/c3", "p4/c4"];
    let steps = ["p1/a", "p2/b", "p3/c", "p4/d"];
    let mut world = World::combo(
        &connections,
        &steps,
        json!({"maxSetRetries": 1}),
        no_waits(),
    );
    let journey = world.run(|_, _| answer(400, BAD_PARAMETER, None));
    assert_eq!(journey.attempts.len(), 3);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (400, true));

    let mut world = World::combo(&connections, &steps, json!({}), no_waits()).without_cooling();
    let journey = world.run(|_, before| {
        if before == 1 {
            status(401)
        } else {
            answer(400, BAD_PARAMETER, None)
        }
    });
    assert_eq!(journey.attempts.len(), 4);
}

#[test]
fn three_models_that_are_too_small_do_not_keep_the_input_from_a_larger_one() {
    let models = ["24k", "32k", "64k", "1m"];
    let connections = ["p1/c1", "p2/c2", "p3/c3", "p4/c4"];
    let steps = ["p1/24k", "p2/32k", "p3/64k", "p4/1m"];
    let mut world = World::combo(&connections, &steps, json!({}), no_waits());
    let names: Vec<String> = (1..)
        .zip(models)
        .map(|(n, m)| format!("p{n}/{m}"))
        .collect();
    let rows: Vec<(&str, ModelInfo)> = names
        .iter()
        .zip([24_000, 32_000, 64_000, 1_000_000])
        .map(|(name, tokens)| {
            let info = ModelInfo {
                context_window: Some(tokens),
                ..ModelInfo::default()
            };
            (name.as_str(), info)
        })
        .collect();
    world.catalogue(&rows);
    let overflow = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
    let journey = world.run(|name, _| {
        if name.ends_with("1m") {
            Reply::Success
        } else {
            answer(400, overflow, None)
        }
    });
    assert_eq!(journey.attempts.len(), 4);
    assert!(journey.rejection.is_none());
}

/// `p1` accepts connections and never answers.
#[test]
fn a_target_that_hangs_takes_its_time_limit_once_whatever_accounts_it_has() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2", "p2/k3"],
        &["p1/m", "p2/m"],
        json!({"maxRetries": 1}),
        no_waits(),
    );
    let hangs = Outcome::Local(LocalFault::ExecutionExpired);
    let journey = world.run(|name, _| {
        if name.starts_with("p1") {
            Reply::Failure(hangs.clone())
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/k1/m", "p2/k3/m"]);
}

/// Our own limit passed.
fn expired() -> Reply {
    Reply::Failure(Outcome::Local(LocalFault::ExecutionExpired))
}

/// An upstream says in our words that its own limit passed.
fn own_504() -> Reply {
    let body = r#"{"error": {"code": "RATE_LIMIT_EXECUTION_TIMEOUT"}}"#;
    answer(504, body, None)
}

#[rstest]
#[case::alone([expired(), expired(), expired()], "RATE_LIMIT_EXECUTION_TIMEOUT")]
#[case::among_others([expired(), status(503), expired()], "all_models_failed")]
#[case::an_upstreams_own([own_504(), own_504(), own_504()], "all_models_failed")]
fn executions_that_expired_count_as_timeouts(#[case] ends: [Reply; 3], #[case] code: &str) {
    let journey = three(json!({"maxRetries": 0})).run(|_, before| ends[before].clone());
    let rejection = journey.rejection.unwrap();
    assert_eq!((rejection.status, rejection.code.as_str()), (504, code));
}

/// Targets that took their whole time are not asked again as a list, others are.
#[rstest]
#[case::all([expired(), expired(), expired()], 3)]
#[case::one_failed([expired(), status(503), expired()], 6)]
#[case::an_upstreams_own([own_504(), own_504(), own_504()], 6)]
fn a_list_that_only_expired_is_not_repeated(#[case] ends: [Reply; 3], #[case] attempts: usize) {
    let combo = json!({"maxRetries": 0, "maxSetRetries": 1});
    let mut world = three(combo).without_cooling();
    let journey = world.run(|_, before| ends[before % 3].clone());
    assert_eq!(journey.attempts.len(), attempts);
}

/// Nor is an account after a wait for somebody else's: it would take its whole time after each.
#[test]
fn an_account_that_took_its_whole_time_is_not_asked_again_after_a_wait() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2", "p2/k3"],
        &["p1/m", "p2/m"],
        json!({"maxRetries": 0}),
        json!({}),
    );
    let journey = world.run(|name, _| {
        if name.starts_with("p1") {
            expired()
        } else {
            answer(429, "", Some("20"))
        }
    });
    // Each account of `p1` once; five waits are all for `p2`.
    let mut expected = vec!["p1/k1/m", "p2/k3/m", "p1/k2/m"];
    expected.extend(["p2/k3/m"; 5]);
    assert_eq!(journey.attempts, expected);
    assert_eq!(journey.rejection().status, 429);
}

/// A single model: another account that comes free is asked, once, and nobody waits for the one that was slow.
#[rstest]
#[case::alone(&[], &["k1"], 0)]
#[case::another_cools(&["k2"], &["k1", "k2"], 1)]
#[case::both_cool(&["k1", "k2"], &["k1", "k2"], 2)]
fn a_model_that_takes_its_whole_time_is_asked_once_of_each_account(
    #[case] cool: &[&str],
    #[case] expected: &[&str],
    #[case] waits: usize,
) {
    let document = json!({
        "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
        "connections": [{"id": "k1", "provider": "p1"}, {"id": "k2", "provider": "p1"}],
    });
    let mut world = World::of(document, "p1/m");
    for (account, left_ms) in cool.iter().zip([3_000, 9_000]) {
        world.connection_state(account, cooling(left_ms, Reason::RateLimitExceeded));
    }
    let journey = world.run(|_, _| expired());
    let expected: Vec<String> = expected.iter().map(|it| format!("p1/{it}/m")).collect();
    assert_eq!(journey.attempts, expected);
    assert_eq!(journey.cooldown_waits().len(), waits);
    let rejection = journey.rejection();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (504, "RATE_LIMIT_EXECUTION_TIMEOUT")
    );
}

/// A wait that came first is no reason to wait once more.
#[test]
fn an_account_that_expires_after_a_wait_ends_the_request() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    let journey = world.run(|_, before| {
        if before == 0 {
            answer(429, "", Some("20"))
        } else {
            expired()
        }
    });
    assert_eq!(journey.attempts.len(), 2);
    assert_eq!(journey.cooldown_waits().len(), 1);
    assert_eq!(journey.rejection().status, 504);
}

fn protected() -> World {
    let mut world = three(json!({"maxRetries": 1})).without_cooling();
    world.change_targets(|targets| targets[0].fallback_only_on_quota_exhaustion = true);
    world
}

const QUOTA: &str = r#"{"error":{"message":"monthly quota exceeded"}}"#;

#[test]
fn a_protected_target_is_left_only_when_its_quota_is_used_up() {
    let journey = protected().run(|_, before| {
        if before == 0 {
            answer(429, QUOTA, None)
        } else {
            Reply::Success
        }
    });
    assert_eq!(journey.attempts, ["p1/c1/m", "p2/c2/m"]);

    let journey = protected().run(|_, before| {
        if before == 0 {
            status(503)
        } else {
            answer(429, QUOTA, None)
        }
    });
    // Retried on the same target; one of its failures was no quota.
    assert_eq!(journey.attempts, ["p1/c1/m", "p1/c1/m"]);
    let rejection = journey.rejection();
    assert_eq!((rejection.status, rejection.pass_through), (429, true));

    // What was skipped before anything was sent does not stop the walk.
    let mut world = protected();
    world.connection_state("c1", cooling(60_000, Reason::ServerError));
    assert_eq!(world.dispatch().provider.as_str(), "p2");
}

#[test]
fn only_priority_protects() {
    let mut world = protected();
    let name = ComboName::new("c").unwrap();
    world.config.combos.get_mut(&name).unwrap().combo.strategy = Strategy::FillFirst;
    let journey = world.run(|_, _| status(401));
    assert_eq!(journey.attempts.len(), 3);
}

#[test]
fn a_spent_budget_of_the_combo_ends_the_request_with_its_last_failure() {
    let mut world = three(json!({})).without_cooling();
    world.so_far.budget_spent = true;
    let first = world.dispatch();
    world.fail(&first, &upstream_error(503, "busy", Some("7")));
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (503, "retry_budget_spent")
    );
    assert_eq!(rejection.retry_after_secs, Some(7));
    assert!(rejection.pass_through);
}

#[test]
fn a_spent_budget_of_a_provider_keeps_retries_from_it() {
    let mut world = three(json!({})).without_cooling();
    world.so_far.spent_providers = vec![
        ProviderId::new("p1").unwrap(),
        ProviderId::new("p2").unwrap(),
    ];
    let journey = world.run(|_, _| status(503));
    // The first attempt is no retry.
    assert_eq!(journey.attempts, ["p1/c1/m", "p3/c3/m", "p3/c3/m"]);
    assert_eq!(journey.rejection().status, 503);
}

#[test]
fn a_spent_budget_is_waited_for_by_nobody() {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), json!({}));
    world.so_far.spent_providers = vec![ProviderId::new("p1").unwrap()];
    let journey = world.run(|_, _| answer(429, "", Some("20")));
    assert_eq!((journey.attempts.len(), journey.waits.len()), (1, 0));
    assert_eq!(journey.rejection().status, 429);
}

/// A combo of this strategy of A, B and C, whose failures cool nothing.
fn three_by(strategy: Strategy, config: Value) -> World {
    let mut world = three(config).without_cooling();
    let mut document = Document::clone(&world.config.document);
    document.combos[0].strategy = strategy;
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    world
}

/// A `round-robin` combo of A, B and C whose turn is A's.
fn rotating(limit: u32) -> World {
    let config = json!({"stickyRoundRobinLimit": limit, "maxRetries": 0});
    let mut world = three_by(Strategy::RoundRobin, config);
    // A replica starts anywhere; this one starts at A.
    world.counters = (0..)
        .map(|seed| Counters::of(&world.config, None, seed))
        .find(|counters| {
            let key = strategy::TurnKey {
                scope: strategy::Scope::Combo(ComboName::new("c").unwrap()),
                purpose: strategy::TurnPurpose::RoundRobin,
            };
            let next = strategy::Turns::peek(&DecisionTurns::peeking(counters), &key);
            next.is_multiple_of(u64::from(3 * limit))
        })
        .unwrap();
    world
}

/// Heads and, after a failure, the target that served, of requests. `fails` says which of them fail at their head.
fn served(world: &mut World, requests: usize, fails: &[usize]) -> Vec<String> {
    (0..requests)
        .map(|request| {
            world.so_far = AttemptsSoFar::default();
            let mut served = String::new();
            for _ in 0..2 {
                let dispatch = world.dispatch();
                let turns = DecisionTurns::alone(&world.counters);
                assert!(turns.settle(&dispatch, world.now));
                served.push(
                    ["A", "B", "C"][usize::try_from(dispatch.target).unwrap()]
                        .chars()
                        .next()
                        .unwrap(),
                );
                if served.len() > 1 || !fails.contains(&request) {
                    break;
                }
                world.fail(&dispatch, &upstream_error(503, "", None));
                world.so_far.order = dispatch.order;
            }
            served
        })
        .collect()
}

#[rstest]
#[case::each_in_turn(1, &[], &["A", "B", "C", "A", "B"])]
#[case::three_at_a_time(3, &[], &["A", "A", "A", "B", "B", "B", "C", "C", "C", "A"])]
#[case::vector_routing_v_rr3(3, &[2], &["A", "A", "AB", "B", "B", "C"])]
#[case::vector_routing_v_rr4(1, &[0], &["AB", "C", "A"])]
fn the_rotation_goes_on_from_the_target_that_served(
    #[case] limit: u32,
    #[case] fails: &[usize],
    #[case] expected: &[&str],
) {
    assert_eq!(
        served(&mut rotating(limit), expected.len(), fails),
        expected
    );
}

#[test]
fn vector_routing_v_rr5() {
    let mut world = rotating(3);
    assert_eq!(served(&mut world, 2, &[]), ["A", "A"]);
    // The counter still stands at A, which the gates skip; B serves, and its block begins.
    world.open_breaker("p1", 60_000);
    assert_eq!(served(&mut world, 4, &[]), ["B", "B", "B", "C"]);
}

#[test]
fn vector_routing_v_lk3() {
    let mut world = three_by(Strategy::Lkgp, json!({"maxRetries": 0}));
    let record = |provider: &str, account: &str| LastKnownGood {
        provider: ProviderId::new(provider).unwrap(),
        connection: Some(ConnectionId::new(account).unwrap()),
        at: START,
    };
    world.telemetry.last_known_good = Some(record("p2", "c2"));
    let head = world.dispatch();
    assert_eq!(head.connection.as_str(), "c2");
    world.fail(&head, &upstream_error(500, "", None));
    let second = world.dispatch();
    assert_eq!(second.connection.as_str(), "c1");
    world.fail(&second, &upstream_error(500, "", None));
    let third = world.dispatch();
    let served = record(third.provider.as_str(), third.connection.as_str());
    world.telemetry.last_known_good = Some(served);
    world.so_far = AttemptsSoFar::default();
    assert_eq!(world.dispatch().connection.as_str(), "c3");
}
