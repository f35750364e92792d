//! Who takes a turn, and what is counted of what is sent (`routing.md` §8, §11.3).

use rstest::rstest;

use super::strategy::{Scope, TurnKey, TurnPurpose};
use super::*;
use crate::config::Strategy;

/// Providers `a` and `b` with two accounts each that take turns, and the combo `c` over both.
fn world(strategy: &str, config: Value) -> World {
    let providers = ["a", "b"].map(|id| {
        json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1", "accountStrategy": "round-robin"})
    });
    let connections = [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")]
        .map(|(id, provider)| json!({"id": id, "provider": provider}));
    let mut world = World::of(
        json!({
            "providers": providers,
            "connections": connections,
            "combos": [{"name": "c", "strategy": strategy, "steps": ["a/m", "b/m"], "config": config}],
            "settings": no_waits(),
        }),
        "c",
    );
    world.counters = Counters::of(&world.config, None, 7);
    world
}

/// The next turn of the combo, and of the accounts of `a` and of `b`.
fn next_turns(world: &World) -> [u64; 3] {
    let combo = Scope::Combo(ComboName::new("c").unwrap());
    let accounts = |id: &str| Scope::Accounts(ProviderId::new(id).unwrap());
    [combo, accounts("a"), accounts("b")].map(|scope| {
        DecisionTurns::peeking(&world.counters).peek(&TurnKey {
            scope,
            purpose: TurnPurpose::RoundRobin,
        })
    })
}

/// What these decisions took of each.
fn taken(world: &mut World, decide: impl FnOnce(&mut World)) -> [u64; 3] {
    let before = next_turns(world);
    decide(world);
    let after = next_turns(world);
    [0, 1, 2].map(|which| after[which] - before[which])
}

#[test]
fn who_sends_takes_a_turn_of_the_combo_and_of_the_accounts() {
    let mut world = world("round-robin", json!({"stickyRoundRobinLimit": 1}));
    let [combo, a, b] = taken(&mut world, |world| {
        world.dispatch();
        world.dispatch();
    });
    assert_eq!((combo, a, b), (2, 1, 1));
}

#[test]
fn who_can_send_nothing_takes_none() {
    let mut world = world("round-robin", json!({}));
    world.open_breaker("a", 60_000);
    world.open_breaker("b", 60_000);
    let took = taken(&mut world, |world| {
        assert_eq!(world.reject().status, 503);
    });
    assert_eq!(took, [0, 0, 0]);
    let mut cooling_down = self::world("round-robin", json!({}));
    for account in ["a1", "a2", "b1", "b2"] {
        let state = cooling(60_000, Reason::RateLimitExceeded);
        cooling_down.connection_state(account, state);
    }
    let took = taken(&mut cooling_down, |world| {
        assert_eq!(world.reject().status, 503);
    });
    assert_eq!(took, [0, 0, 0]);
}

#[test]
fn behind_an_open_breaker_no_account_has_a_turn() {
    let mut world = world("priority", json!({}));
    world.open_breaker("a", 60_000);
    let took = taken(&mut world, |world| {
        assert_eq!(world.dispatch().provider.as_str(), "b");
    });
    assert_eq!(took, [0, 0, 1]);
}

#[rstest]
#[case::before_a_retry(
    json!({"maxRetries": 1, "retryDelayMs": 1_000}),
    2,
    WaitKind::RetryDelay
)]
#[case::before_the_next_target(
    json!({"maxRetries": 0, "fallbackDelayMs": 1_000}),
    2,
    WaitKind::FallbackDelay
)]
#[case::before_a_repeat_of_the_list(
    json!({"maxRetries": 0, "maxSetRetries": 1, "setRetryDelayMs": 1_000}),
    4,
    WaitKind::FallbackDelay
)]
fn who_waits_takes_none(#[case] config: Value, #[case] failures: usize, #[case] kind: WaitKind) {
    let cools_down = config.get("fallbackDelayMs").is_some();
    let mut world = world("priority", config);
    if !cools_down {
        world = world.without_cooling();
        world.counters = Counters::of(&world.config, None, 7);
    }
    for _ in 0..failures {
        let dispatch = world.dispatch();
        world.fail(&dispatch, &upstream_error(503, "", None));
    }
    let took = taken(&mut world, |world| {
        let decision = world.decide();
        let Decision::Wait(wait) = decision else {
            panic!("{decision:?}");
        };
        assert_eq!(wait.kind, kind);
        world.now = world.now.plus_ms(wait.wait_ms);
    });
    assert_eq!(took, [0, 0, 0]);
    let took = taken(&mut world, |world| {
        world.dispatch();
    });
    assert_eq!(took.iter().sum::<u64>(), 1);
}

/// `quota-share` over accounts of `a` with these weights.
fn shared(weights: [u32; 2]) -> World {
    let steps = [("a1", weights[0]), ("a2", weights[1])]
        .map(|(account, weight)| json!({"model": "a/m", "connection": account, "weight": weight}));
    let mut world = World::of(
        json!({
            "providers": [{"id": "a", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [{"id": "a1", "provider": "a"}, {"id": "a2", "provider": "a"}],
            "combos": [{"name": "c", "steps": steps}],
            "settings": no_waits(),
        }),
        "c",
    );
    // Nobody writes such a combo; quota pools make them.
    let name = ComboName::new("c").unwrap();
    world.config.combos.get_mut(&name).unwrap().combo.strategy = Strategy::QuotaShare;
    world.counters = Counters::of(&world.config, None, 7);
    world
}

/// Who serves each of so many requests, one every `gap_ms`.
fn heads(world: &mut World, requests: usize, gap_ms: u64) -> String {
    (0..requests)
        .map(|_| {
            let turns = DecisionTurns::alone(&world.counters);
            let decision = world.with_input(|input| {
                decide(&Input {
                    turns: &turns,
                    ..*input
                })
            });
            let Decision::Dispatch(dispatch) = decision else {
                panic!("{decision:?}");
            };
            assert!(turns.settle(&dispatch, world.now));
            world.now = world.now.plus_ms(gap_ms);
            if dispatch.connection.as_str() == "a1" {
                'A'
            } else {
                'B'
            }
        })
        .collect()
}

#[test]
fn vector_routing_v_qs4() {
    // Telemetry tells of none of them.
    assert_eq!(heads(&mut shared([3, 1]), 3, 0), "ABB");
    assert_eq!(heads(&mut shared([3, 1]), 3, 900), "ABB");
}

#[test]
fn what_telemetry_would_know_of_by_now_is_not_counted_twice() {
    assert_eq!(heads(&mut shared([3, 1]), 4, 2_000), "AABA");
}

#[test]
fn what_was_sent_is_not_forgotten_with_a_new_configuration() {
    let mut world = shared([3, 1]);
    assert_eq!(heads(&mut world, 1, 0), "A");
    world.counters = Counters::of(&world.config, Some(&world.counters), 8);
    assert_eq!(heads(&mut world, 2, 0), "BB");
}

#[test]
fn what_is_owed_has_one_answer_per_decision_until_others_were_faster() {
    let mut world = shared([1, 1]);
    let combo = ComboName::new("c").unwrap();
    let (first, second) = (world.dispatch(), world.dispatch());
    let turns = DecisionTurns::alone(&world.counters);
    let before = turns.deficits(&combo);
    let other = DecisionTurns::alone(&world.counters);
    assert!(other.settle(&first, world.now));
    assert!(Arc::ptr_eq(&turns.deficits(&combo), &before));
    assert!(!turns.settle(&second, world.now));
    assert!(!Arc::ptr_eq(&turns.deficits(&combo), &before));
    assert_eq!(turns.deficits(&combo).values().sum::<i64>(), 0);
    world.now = world.now.plus_ms(5_000);
    assert_eq!(heads(&mut world, 2, 5_000), "BA");
}

#[test]
fn who_is_overtaken_again_and_again_sends_all_the_same() {
    let mut world = shared([1, 1]);
    let overtaken = world.dispatch();
    assert_eq!(heads(&mut world, 1, 0), "A");
    let turns = DecisionTurns::alone(&world.counters);
    for _ in 0..16 {
        assert!(!turns.settle(&overtaken, world.now));
    }
    assert!(turns.settle(&overtaken, world.now));
    // It was sent to A, as the one before it, so two go to B.
    assert_eq!(heads(&mut world, 2, 0), "BB");
}

#[test]
fn who_holds_a_probe_sends_whoever_was_faster() {
    let mut world = shared([1, 1]);
    let overtaken = world.dispatch();
    assert_eq!(heads(&mut world, 1, 0), "A");
    let turns = DecisionTurns::alone(&world.counters);
    turns.settle_anyway(&overtaken, world.now);
    assert_eq!(heads(&mut world, 2, 0), "BB");
}

/// Telemetry is a moment old, and a moment is a thousand requests.
#[rstest]
#[case::targets("least-used", json!(["a/m", "b/m", "c/m"]), "fill-first")]
#[case::accounts("priority", json!(["a/m"]), "least-used")]
fn what_is_sent_between_two_states_of_telemetry_is_spread_evenly(
    #[case] strategy: &str,
    #[case] steps: Value,
    #[case] account_strategy: &str,
) {
    let providers = ["a", "b", "c"].map(|id| {
        json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1", "accountStrategy": account_strategy})
    });
    let connections = [
        ("a1", "a"),
        ("a2", "a"),
        ("a3", "a"),
        ("b1", "b"),
        ("c1", "c"),
    ]
    .map(|(id, provider)| json!({"id": id, "provider": provider}));
    let mut world = World::of(
        json!({
            "providers": providers,
            "connections": connections,
            "combos": [{"name": "c", "strategy": strategy, "steps": steps}],
        }),
        "c",
    );
    world.counters = Counters::of(&world.config, None, 7);
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..1_000 {
        let dispatch = world.dispatch();
        assert!(DecisionTurns::alone(&world.counters).settle(&dispatch, world.now));
        *used.entry(dispatch.connection.to_string()).or_default() += 1;
    }
    assert_eq!(used.len(), 3);
    assert!(
        used.values().all(|times| (333..=334).contains(times)),
        "{used:?}"
    );
}

/// A draw is in force for 50 requests. When its step cannot serve, the one that does keeps the requests, also when the
/// first can serve again.
#[test]
fn requests_stay_with_the_step_that_stood_in_for_the_drawn_one() {
    let mut world = world("weighted", json!({"stickyWeightedLimit": 50}));
    let send = |world: &World| {
        let dispatch = world.dispatch();
        assert!(DecisionTurns::alone(&world.counters).settle(&dispatch, world.now));
        dispatch.provider
    };
    let drawn = send(&world);
    world.open_breaker(drawn.as_str(), 60_000);
    let other = send(&world);
    assert_ne!(other, drawn);
    world.view.providers.clear();
    for _ in 0..49 {
        assert_eq!(send(&world), other);
    }
}
