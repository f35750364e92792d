//! Each gate, the order they are asked in, and what an explanation shows.

use rstest::rstest;

use super::*;
use crate::classify::TerminalKind;
use crate::cooldown::Terminal;
use crate::number::Finite;
use crate::telemetry::QuotaWindow;

fn one_target() -> World {
    World::combo(&["p1/k1"], &["p1/m"], json!({}), no_waits())
}

fn terminal(kind: TerminalKind) -> ConnectionState {
    ConnectionState {
        terminal: Some(Terminal {
            kind,
            since: START,
            credential_version: 1,
            switched_off: false,
        }),
        ..ConnectionState::default()
    }
}

/// The only account of `p1/m`, as it is excluded.
fn only_exclusion(world: &World) -> Exclusion {
    let rejection = world.reject();
    assert_eq!(rejection.excluded.len(), 1, "{rejection:?}");
    rejection.excluded[0].clone()
}

#[rstest]
#[case(ExclusionReason::TagMismatch, "tag_mismatch", false)]
#[case(ExclusionReason::CapabilityMismatch, "capability_mismatch", false)]
#[case(ExclusionReason::ContextWindow, "context_window", false)]
#[case(ExclusionReason::RetryBudget, "retry_budget", false)]
#[case(ExclusionReason::QuotaCutoff, "quota_cutoff", true)]
#[case(ExclusionReason::OverBudget, "over_budget", false)]
#[case(ExclusionReason::NotAllowed, "not_allowed", false)]
#[case(ExclusionReason::ProtocolMismatch, "protocol_mismatch", false)]
#[case(
    ExclusionReason::Terminal(TerminalKind::Banned),
    "terminal:banned",
    false
)]
#[case(
    ExclusionReason::Terminal(TerminalKind::Expired),
    "terminal:expired",
    false
)]
#[case(
    ExclusionReason::Terminal(TerminalKind::CreditsExhausted),
    "terminal:credits_exhausted",
    false
)]
#[case(ExclusionReason::Disabled, "disabled", false)]
#[case(ExclusionReason::CircuitOpen, "circuit_open", true)]
#[case(ExclusionReason::ProviderCooldown, "provider_cooldown", true)]
#[case(ExclusionReason::EgressLocked, "egress_locked", true)]
#[case(ExclusionReason::ConnectionCooldown, "connection_cooldown", true)]
#[case(ExclusionReason::Reserved, "reserved", false)]
#[case(ExclusionReason::Leased, "leased", true)]
#[case(ExclusionReason::RequestExhaustion, "request_exhaustion", false)]
#[case(ExclusionReason::ModelLockout, "model_lockout", true)]
#[case(ExclusionReason::Unavailable, "unavailable", false)]
#[case(ExclusionReason::ConcurrencyCap, "concurrency_cap", false)]
fn words_of_the_wire(#[case] reason: ExclusionReason, #[case] word: &str, #[case] is_timer: bool) {
    assert_eq!((reason.as_str(), reason.is_timer()), (word, is_timer));
    assert_eq!(ExclusionReason::of_word(word), Some(reason));
}

#[test]
fn another_protocol_excludes_the_target() {
    let mut world = one_target();
    world.facts.protocol = Protocol::Anthropic;
    let exclusion = only_exclusion(&world);
    assert_eq!(exclusion.reason, ExclusionReason::ProtocolMismatch);
    assert_eq!(exclusion.connection, None);
}

#[test]
fn a_terminal_connection_is_never_used_not_even_when_cooldowns_are_relaxed() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2"],
        &["p1/m1", "p1/m2"],
        json!({}),
        no_waits(),
    );
    world.connection_state("k1", terminal(TerminalKind::Banned));
    let journey = world.run(|_, _| status(429));
    assert_eq!(journey.attempts, ["p1/k2/m1", "p1/k2/m2"]);
}

#[test]
fn a_connection_without_credential_counts_as_switched_off() {
    let mut world = one_target();
    world
        .without_credential
        .insert(ConnectionId::new("k1").unwrap());
    assert_eq!(only_exclusion(&world).reason, ExclusionReason::Disabled);
}

#[test]
fn a_half_open_breaker_asks_for_the_probe_and_admits_one() {
    let mut world = one_target();
    world.open_breaker("p1", 0);
    let dispatch = world.dispatch();
    assert!(dispatch.needs_probe && dispatch.report_at_readiness);

    let provider = ProviderId::new("p1").unwrap();
    let policy = world.config.provider(&provider).unwrap().policy.breaker;
    let mut state = ProviderState::clone(&world.view.providers[&provider]);
    let other = AttemptId {
        plane: PlaneIncarnation(9),
        number: 1,
    };
    assert!(state.breaker.take_probe(other, START, &policy));
    world.view.providers.insert(provider, Arc::new(state));
    let rejection = world.reject();
    assert_eq!(rejection.excluded[0].reason, ExclusionReason::CircuitOpen);
    assert_eq!(rejection.retry_after_secs, Some(1));
}

#[test]
fn models_that_provider_or_connection_do_not_serve_are_unavailable() {
    let document = |provider: Value, connection: Value| {
        json!({
            "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example",
                           "models": provider}],
            "connections": [{"id": "k1", "provider": "p1", "models": connection}],
        })
    };
    let world = World::of(document(json!(["other"]), json!([])), "p1/m");
    let exclusion = only_exclusion(&world);
    assert_eq!(exclusion.reason, ExclusionReason::Unavailable);
    assert_eq!(exclusion.connection, None);
    let world = World::of(document(json!(["m"]), json!(["other"])), "p1/m");
    let exclusion = only_exclusion(&world);
    assert_eq!(exclusion.reason, ExclusionReason::Unavailable);
    assert!(exclusion.connection.is_some());
    assert_eq!(
        World::of(document(json!([]), json!([])), "p1/m")
            .dispatch()
            .target,
        0
    );
}

#[test]
fn a_provider_without_connections_is_unavailable() {
    let document = json!({
        "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example"}],
    });
    let exclusion = only_exclusion(&World::of(document, "p1/m"));
    assert_eq!(exclusion.reason, ExclusionReason::Unavailable);
}

#[test]
fn the_forced_connection_is_the_only_one() {
    let mut world = World::combo(
        &["p1/k1", "p1/k2", "p2/k3"],
        &["p1/k1/m", "p1/m", "p2/m"],
        json!({}),
        no_waits(),
    );
    world.facts.forced_connection = Some(ConnectionId::new("k2").unwrap());
    let dispatch = world.dispatch();
    assert_eq!((dispatch.connection.as_str(), dispatch.target), ("k2", 1));
    assert_eq!(dispatch.excluded[0].reason, ExclusionReason::NotAllowed);
    world.facts.forced_connection = Some(ConnectionId::new("nobody").unwrap());
    assert_eq!(world.reject().code, "connection_not_found");
}

#[test]
fn the_lowest_priority_number_goes_first_then_the_order_written() {
    let connection =
        |id: &str, priority: u32| json!({"id": id, "provider": "p1", "priority": priority});
    let document = json!({
        "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example"}],
        "connections": [connection("a", 20), connection("b", 10), connection("c", 10)],
        "settings": no_waits(),
    });
    let journey = World::of(document, "p1/m").run(|_, _| status(503));
    assert_eq!(journey.attempts, ["p1/b/m", "p1/c/m", "p1/a/m"]);
}

#[test]
fn an_unclean_connection_reports_at_readiness() {
    let mut world = one_target();
    assert!(!world.dispatch().report_at_readiness);
    world.connection_state("k1", cooling(0, Reason::ServerError));
    let dispatch = world.dispatch();
    assert!(dispatch.report_at_readiness && !dispatch.needs_probe);
    assert_eq!(dispatch.decided_on.incarnation.0, 7);
}

#[test]
fn an_explanation_shows_every_gate_that_excludes_in_their_order() {
    let mut world = World::combo(
        &["p1/k1", "p2/k2", "p3/k3"],
        &["p1/m", "p2/m", "p3/m"],
        json!({}),
        no_waits(),
    );
    world.open_breaker("p1", 7_000);
    let mut state = cooling(60_000, Reason::ServerError);
    state.terminal = terminal(TerminalKind::Expired).terminal;
    world.connection_state("k1", state);
    let explanation = world.with_input(explain);
    let told: Vec<_> = explanation
        .targets
        .iter()
        .map(|target| {
            let reasons: Vec<_> = target
                .exclusions
                .iter()
                .map(|exclusion| exclusion.reason.as_str())
                .collect();
            (target.provider.as_str(), target.chosen, reasons.join(" "))
        })
        .collect();
    let all = "terminal:expired circuit_open connection_cooldown".to_owned();
    assert_eq!(
        told,
        [
            ("p1", false, all),
            ("p2", true, String::new()),
            ("p3", false, String::new())
        ]
    );
    assert_eq!(explanation.decision, world.decide());
    let cooldown = &explanation.targets[0].exclusions[2];
    assert_eq!(cooldown.until, Some(START.plus_ms(60_000)));
    assert_eq!(cooldown.cause, Some(Reason::ServerError));
}

#[test]
fn an_explanation_is_bounded() {
    let names: Vec<String> = (0..1_500).map(|number| format!("p1/k{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::combo(&names, &["p1/m"], json!({}), no_waits());
    let explanation = world.with_input(explain);
    assert_eq!(explanation.targets.len(), MAX_EXPLAINED);
    assert_eq!(explanation.omitted, 500);
}

#[test]
fn whether_a_model_can_be_had_is_told_of_every_account() {
    let names: Vec<String> = (0..1_500)
        .map(|number| format!("p1/k{number:04}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::combo(&names, &["p1/m"], json!({}), no_waits());
    // Only the last one is not cooling.
    for name in names.iter().rev().skip(1) {
        let (_, connection) = name.split_once('/').unwrap();
        world.connection_state(connection, cooling(60_000, Reason::ServerError));
    }
    let told = world.with_input(availability);
    assert_eq!(told.availability, Availability::Ok);
    let [target] = &*told.targets else {
        panic!("{told:?}");
    };
    assert_eq!((target.accounts, target.available), (1_500, 1));
    assert_eq!(target.excluded["connection_cooldown"], 1_499);
}

/// The combo `c` of two accounts of `p1`, with the gate as given and the provider held.
fn held_for(left_ms: u64) -> World {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    let mut state = ProviderState::default();
    state.gate.hold(START, left_ms, Reason::ServerError);
    let provider = ProviderId::new("p1").unwrap();
    world.view.providers.insert(provider, Arc::new(state));
    world
}

/// Gate 2 skips the whole target and tells when to come back.
#[test]
fn a_provider_that_is_held_is_skipped_whole_and_is_a_timer() {
    let world = held_for(30_000);
    let exclusion = only_exclusion(&world);
    assert_eq!(exclusion.reason, ExclusionReason::ProviderCooldown);
    assert_eq!(exclusion.connection, None);
    assert_eq!(exclusion.until, Some(START.plus_ms(30_000)));
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(30))
    );
}

/// The gate is looked at when a combo's targets are resolved, not for a model named directly.
#[test]
fn only_combos_look_at_the_gate() {
    let mut world = held_for(30_000);
    world.facts.model = "p1/m".to_owned();
    assert_eq!(world.dispatch().connection.as_str(), "k1");
}

#[test]
fn an_entry_of_the_gate_skips_its_account_only_and_only_while_the_gate_is_on() {
    let settings = |enabled| {
        let mut settings = no_waits();
        settings["providerCooldown"] = json!({ "enabled": enabled });
        settings
    };
    for (enabled, expected) in [(true, "k2"), (false, "k1")] {
        let accounts = ["p1/k1", "p1/k2"];
        let mut world = World::combo(&accounts, &["p1/m"], json!({}), settings(enabled));
        let mut state = ConnectionState::default();
        state.gate.failures = 1;
        state.gate.cooled = Some(crate::gate::GateEnd {
            until: START.plus_ms(5_000),
            reason: Reason::RateLimitExceeded,
        });
        world.connection_state("k1", state);
        assert_eq!(world.dispatch().connection.as_str(), expected);
    }
}

/// A wait for the gate is a wait for a cooldown.
#[test]
fn a_combo_waits_for_the_gate() {
    let waits = json!({"comboCooldownWait": {"maxWaitMs": 30_000}});
    let mut world = held_for(2_000);
    let mut document = crate::config::Document::clone(&world.config.document);
    document.settings = serde_json::from_value(waits).unwrap();
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.cooldown_waits(), [2_050]);
    assert_eq!(journey.attempts, ["p1/k1/m"]);
}

#[test]
fn a_step_uses_only_its_accounts() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    world.change_targets(|targets| {
        targets[0].allowed_connections = [ConnectionId::new("k2").unwrap()].into();
    });
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "k2");
    assert_eq!(dispatch.excluded[0].reason, ExclusionReason::NotAllowed);
}

fn used(share: f64, resets_in_ms: Option<u64>) -> QuotaWindow {
    QuotaWindow {
        used: Finite::new(share).unwrap(),
        resets_at: resets_in_ms.map(|ms| START.plus_ms(ms)),
        observed_at: None,
    }
}

fn quota(world: &mut World, connection: &str, snapshot: QuotaSnapshot) {
    let connection = ConnectionId::new(connection).unwrap();
    world
        .telemetry
        .quotas
        .insert(connection, Arc::new(snapshot));
}

/// `fill-first` over two pinned accounts, of which the first has used so much of its week.
fn cut_off_at(first_used: f64, enabled: bool) -> World {
    let mut settings = no_waits();
    settings["quotaPreflight"] = json!({"enabled": enabled});
    let steps = ["p1/a/m", "p1/b/m"];
    let mut world = World::combo(&["p1/a", "p1/b"], &steps, json!({}), settings);
    let name = ComboName::new("c").unwrap();
    world.config.combos.get_mut(&name).unwrap().combo.strategy = crate::config::Strategy::FillFirst;
    let snapshot = QuotaSnapshot {
        session: Some(used(0.5, Some(1_000))),
        weekly: Some(used(first_used, Some(9_000))),
        ..QuotaSnapshot::default()
    };
    quota(&mut world, "a", snapshot);
    world
}

#[test]
fn vector_routing_v_ff2() {
    let dispatch = cut_off_at(0.98, true).dispatch();
    assert_eq!(dispatch.connection.as_str(), "b");
    let exclusion = &dispatch.excluded[0];
    assert_eq!(exclusion.reason, ExclusionReason::QuotaCutoff);
    assert_eq!(exclusion.until, Some(START.plus_ms(9_000)));
    assert_eq!(cut_off_at(0.97, true).dispatch().connection.as_str(), "a");
    assert_eq!(cut_off_at(0.98, false).dispatch().connection.as_str(), "a");
}

#[rstest]
#[case::nothing_known(QuotaSnapshot::default(), None)]
#[case::reset_passed(
    QuotaSnapshot { weekly: Some(used(1.0, Some(0))), ..QuotaSnapshot::default() },
    None
)]
#[case::the_longest_counts(
    QuotaSnapshot {
        session: Some(used(1.0, Some(3_000))),
        weekly: Some(used(0.99, Some(8_000))),
        monthly: Some(used(0.5, Some(99_000))),
        ..QuotaSnapshot::default()
    },
    Some(8_000)
)]
#[case::one_without_an_end_lasts_for_its_length(
    QuotaSnapshot {
        session: Some(used(1.0, Some(3_000))),
        weekly: Some(used(1.0, None)),
        observed_at: START,
        ..QuotaSnapshot::default()
    },
    Some(7 * 86_400_000)
)]
#[case::of_this_model(
    QuotaSnapshot {
        weekly_by_model: vec![(ModelId::new("m").unwrap(), used(1.0, Some(4_000)))],
        ..QuotaSnapshot::default()
    },
    Some(4_000)
)]
#[case::of_another_model(
    QuotaSnapshot {
        weekly_by_model: vec![(ModelId::new("n").unwrap(), used(1.0, Some(4_000)))],
        ..QuotaSnapshot::default()
    },
    None
)]
#[case::of_the_whole(
    QuotaSnapshot {
        used: Some(Finite::ONE),
        resets_at: Some(START.plus_ms(5_000)),
        ..QuotaSnapshot::default()
    },
    Some(5_000)
)]
#[case::the_provider_says_so(
    QuotaSnapshot { limit_reached: true, observed_at: START, ..QuotaSnapshot::default() },
    Some(86_400_000)
)]
fn an_account_is_cut_off_until(#[case] snapshot: QuotaSnapshot, #[case] expected: Option<u64>) {
    let mut settings = json!({"quotaPreflight": {"enabled": true}});
    settings["comboCooldownWait"] = json!({"enabled": false});
    let mut world = World::combo(&["p1/a"], &["p1/m"], json!({}), settings);
    quota(&mut world, "a", snapshot);
    match expected {
        None => assert_eq!(world.dispatch().connection.as_str(), "a"),
        Some(ends_in_ms) => {
            let exclusion = only_exclusion(&world);
            assert_eq!(exclusion.reason, ExclusionReason::QuotaCutoff);
            assert_eq!(exclusion.until, Some(START.plus_ms(ends_in_ms)));
            assert_eq!(exclusion.cause, Some(Reason::QuotaExhausted));
        }
    }
}

#[rstest]
#[case::of_this_window(json!({"p1": {"session": 40}}), "b")]
#[case::just_not(json!({"p1": {"session": 39}}), "a")]
#[case::of_another_window(json!({"p1": {"weekly": 90}}), "a")]
#[case::of_another_provider(json!({"p2": {"session": 90}}), "a")]
fn a_window_may_be_cut_off_earlier(#[case] thresholds: serde_json::Value, #[case] served_by: &str) {
    let mut settings = no_waits();
    settings["quotaPreflight"] = json!({"enabled": true, "providerWindowDefaults": thresholds});
    let steps = ["p1/a/m", "p1/b/m"];
    let mut world = World::combo(&["p1/a", "p1/b"], &steps, json!({}), settings);
    let snapshot = QuotaSnapshot {
        session: Some(used(0.6, Some(5_000))),
        ..QuotaSnapshot::default()
    };
    quota(&mut world, "a", snapshot);
    assert_eq!(world.dispatch().connection.as_str(), served_by);
}

/// A provider that tells how much of a minute is left and not when the next begins.
#[test]
fn a_full_minute_without_an_end_keeps_an_account_out_for_a_minute() {
    let mut settings = no_waits();
    settings["quotaPreflight"] = json!({"enabled": true});
    let mut world = World::combo(&["p1/a"], &["p1/m"], json!({}), settings);
    let headers = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "0"),
    ];
    let snapshot = crate::telemetry::quota::of_headers(headers, START).unwrap();
    quota(&mut world, "a", snapshot);
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(60))
    );
    world.now = START.plus_ms(60_000);
    assert_eq!(world.dispatch().connection.as_str(), "a");
}

#[test]
fn an_account_whose_quota_ends_nobody_knows_when_is_tried_again_after_the_length_of_the_window() {
    let mut settings = no_waits();
    settings["quotaPreflight"] = json!({"enabled": true});
    let mut world = World::combo(&["p1/a"], &["p1/m"], json!({}), settings);
    let snapshot = QuotaSnapshot {
        session: Some(used(1.0, None)),
        observed_at: START,
        ..QuotaSnapshot::default()
    };
    quota(&mut world, "a", snapshot);
    world.now = START.plus_ms(5 * 3_600_000 - 1);
    assert_eq!(only_exclusion(&world).reason, ExclusionReason::QuotaCutoff);
    world.now = START.plus_ms(5 * 3_600_000);
    assert_eq!(world.dispatch().connection.as_str(), "a");
}
