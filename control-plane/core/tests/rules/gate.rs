//! The provider cooldown gate: `failure-state.md` §2 and §8, vectors 21 to 24.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::classify::Reason;
use tidegate_core::gate::{FailureTimes, GateEnd, MAX_FAILURE_TIMES, ProviderGate};
use tidegate_core::outcome::{Attempt, LocalFault, Outcome, StreamFault, TransportFault};
use tidegate_core::settings::ProviderClass::{self, Apikey, Oauth};
use tidegate_core::state::{Event, TransitionKind};
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status};

const MINUTE: u64 = 60_000;

/// A provider whose gate counts and whose breaker does not open, with so many connections `c1`, `c2`, ...
fn counting(class: ProviderClass, connections: usize) -> World {
    let mut world = World::new(class);
    world.policy.gate.enabled = true;
    // The rows of §8 assume that no other layer is active: the breaker would open first.
    world.policy.breaker.failure_threshold = 1_000;
    for number in 2..=connections {
        world.add(&format!("c{number}"));
    }
    world
}

/// So many failures, `apart_ms` apart, the first one at `begin`; each of a request decided just before.
fn failures(world: &mut World, count: u64, begin: u64, apart_ms: u64) {
    for number in 0..count {
        world.fail_combo(begin + number * apart_ms, status(503));
    }
}

fn end_at(world: &World, now: u64) -> Option<u64> {
    let end = world.state.gate.end(Timestamp(now), &world.policy.gate);
    end.map(|end| end.until.0)
}

fn in_window(world: &World, now: u64) -> usize {
    let gate = &world.state.gate;
    gate.failures_in_window(Timestamp(now), &world.policy.gate)
}

fn entry_end(world: &World, now: u64) -> Option<u64> {
    let gate = &world.c1().gate;
    gate.end(Timestamp(now), &world.policy.gate)
        .map(|end| end.until.0)
}

#[rstest]
#[case::vector_failure_21(Oauth, 10, 300_000)]
#[case::of_an_api_key(Apikey, 15, 600_000)]
#[case::of_a_local_provider(ProviderClass::Local, 2, 60_000)]
fn the_threshold_failure_cools_the_provider_from_when_it_happened(
    #[case] class: ProviderClass,
    #[case] threshold: u64,
    #[case] cooldown_ms: u64,
) {
    let mut world = counting(class, 1);
    failures(&mut world, threshold - 1, MINUTE, MINUTE);
    let last = threshold * MINUTE;
    assert_eq!(end_at(&world, last), None);
    let applied = world.fail_combo(last, status(503));
    let cooled = TransitionKind::ProviderCooldown {
        until: Timestamp(last + cooldown_ms),
        reason: Reason::ServerError,
    };
    assert!(applied.transitions.iter().any(|it| it.kind == cooled));
    assert_eq!(end_at(&world, last), Some(last + cooldown_ms));
    assert_eq!(end_at(&world, last + cooldown_ms), None);
}

#[rstest]
#[case::vector_failure_22(Apikey)]
fn a_success_empties_the_window(#[case] class: ProviderClass) {
    let mut world = counting(class, 1);
    failures(&mut world, 14, MINUTE, MINUTE);
    world.fail_combo(15 * MINUTE, Outcome::Success);
    assert_eq!(in_window(&world, 15 * MINUTE), 0);
    world.fail_combo(16 * MINUTE, status(503));
    assert_eq!(in_window(&world, 16 * MINUTE), 1);
    assert_eq!(end_at(&world, 16 * MINUTE), None);
}

#[rstest]
#[case::vector_failure_23(Apikey)]
fn the_window_slides(#[case] class: ProviderClass) {
    let mut world = counting(class, 1);
    world.fail_combo(MINUTE, status(503));
    failures(&mut world, 13, 3 * MINUTE, 2 * MINUTE);
    world.fail_combo(32 * MINUTE, status(503));
    assert_eq!(in_window(&world, 32 * MINUTE), 14);
    assert_eq!(end_at(&world, 32 * MINUTE), None);
}

/// A failure exactly one window ago is no longer in it.
#[test]
fn a_failure_leaves_the_window_after_its_length() {
    let mut world = counting(ProviderClass::Local, 1);
    world.fail_combo(1_000, status(503));
    world.fail_combo(301_000, status(503));
    assert_eq!(end_at(&world, 301_000), None);
    world.fail_combo(600_999, status(503));
    assert_eq!(end_at(&world, 600_999), Some(660_999));
}

#[rstest]
#[case::vector_failure_24_first(1, 5_000)]
#[case::vector_failure_24_third(3, 20_000)]
#[case::vector_failure_24_seventh(7, 300_000)]
#[case::eighth(8, 300_000)]
fn a_connection_cools_longer_with_each_failure_in_a_row(
    #[case] failures: u32,
    #[case] cooldown_ms: u64,
) {
    let mut world = counting(Apikey, 1);
    let mut now = MINUTE;
    for number in 1..=failures {
        assert_eq!(entry_end(&world, now), None, "failure {number}");
        world.fail_combo(now, status(503));
        let end = entry_end(&world, now).unwrap();
        if number == failures {
            assert_eq!(end - now, cooldown_ms);
        }
        now = end;
    }
    assert_eq!(world.c1().gate.failures, failures);
    world.fail_combo(now, Outcome::Success);
    assert!(world.c1().gate.is_clean() && world.state.gate.is_clean());
}

#[test]
fn an_entry_is_forgotten_after_half_an_hour_without_a_failure() {
    let mut world = counting(Apikey, 1);
    failures(&mut world, 3, MINUTE, MINUTE);
    assert_eq!(world.c1().gate.failures, 3);
    world.fail_combo(3 * MINUTE + 30 * MINUTE, status(503));
    assert_eq!(world.c1().gate.failures, 1);
}

/// Requests in flight when the failures begin are one incident (decision 9).
#[test]
fn failures_decided_before_the_entry_cooled_are_the_same_episode() {
    let mut world = counting(Apikey, 1);
    let attempts: Vec<_> = (0..5).map(|_| world.send("c1")).collect();
    for (number, attempt) in (0..).zip(&attempts) {
        world.end_combo(attempt, MINUTE + number * 10_000, status(503));
    }
    assert_eq!(world.c1().gate.failures, 1);
    assert_eq!(in_window(&world, 2 * MINUTE), 5);
}

#[rstest]
#[case::trip_status(status(503), 1)]
#[case::request_timeout(status(408), 1)]
#[case::rate_limit(status(429), 1)]
#[case::truncated(Outcome::Stream(StreamFault::Truncated), 1)]
#[case::quota(answer(429, r#"{"error":{"code":"insufficient_quota"}}"#), 0)]
#[case::unauthorized(status(401), 0)]
#[case::payment(status(402), 0)]
#[case::forbidden(status(403), 0)]
#[case::not_found(status(404), 0)]
#[case::client_fault(status(400), 0)]
#[case::not_a_trip_status(status(501), 0)]
#[case::overloaded(answer(503, "overloaded"), 0)]
#[case::our_own_queue(Outcome::Local(LocalFault::QueueFull), 0)]
#[case::client_gone(Outcome::ClientAbort, 0)]
#[case::never_ready(Outcome::Stream(StreamFault::ReadinessTimeout), 0)]
#[case::too_slow(Outcome::Stream(StreamFault::ThroughputTooLow), 0)]
#[case::request_scoped(answer(502, r#"{"error":{"code":"context_length_exceeded"}}"#), 0)]
fn what_counts(#[case] outcome: Outcome, #[case] counted: usize) {
    let mut world = counting(Apikey, 1);
    world.fail_combo(MINUTE, outcome);
    assert_eq!(in_window(&world, MINUTE), counted);
}

#[rstest]
#[case(429, 0)]
#[case(500, 0)]
#[case(502, 1)]
fn where_quotas_are_per_model(#[case] failing: u16, #[case] counted: usize) {
    let mut world = counting(Apikey, 1);
    world.policy.per_model_quota = true;
    world.fail_combo(MINUTE, status(failing));
    assert_eq!(in_window(&world, MINUTE), counted);
}

/// What vetoes the breaker where a combo goes on to the same provider does not veto the gate.
#[test]
fn the_next_target_may_be_of_the_same_provider() {
    let mut world = counting(Apikey, 1);
    let attempt = world.send("c1");
    let mut report = outcome_of(&attempt, MINUTE, status(503));
    report.next_target_same_provider = true;
    world.report(report);
    assert_eq!((in_window(&world, MINUTE), world.breaker(MINUTE).1), (1, 0));
}

#[test]
fn an_unreachable_proxy_counts_for_combos_only() {
    let mut world = counting(Apikey, 1);
    let unreachable = || Outcome::Transport(TransportFault::ProxyUnreachable);
    world.fail(MINUTE, unreachable());
    assert_eq!(in_window(&world, MINUTE), 0);
    world.fail_combo(MINUTE, unreachable());
    assert_eq!(in_window(&world, MINUTE), 1);
}

#[test]
fn one_connection_counts_once_in_five_seconds_and_a_network_fault_once_in_ten() {
    let mut world = counting(Apikey, 3);
    for at in [60_000, 64_999, 65_000] {
        world.fail_combo(at, status(503));
    }
    assert_eq!(in_window(&world, 65_000), 2);
    for (connection, at) in [("c2", 70_000), ("c3", 79_999), ("c3", 80_000)] {
        let attempt = world.send(connection);
        let refused = Outcome::Transport(TransportFault::Connect);
        world.end_combo(&attempt, at, refused);
    }
    assert_eq!(in_window(&world, 80_000), 4);
}

/// A 429 counts whatever a text says of it, unless that is a used-up quota, an overloaded model or the end of the
/// account (§2.1).
#[rstest]
#[case::another_reason("no credentials", 1)]
#[case::used_up("quota exceeded", 0)]
#[case::overloaded("the model is overloaded", 0)]
#[case::terminal("this account has been deactivated", 0)]
fn a_429_of_an_account(#[case] text: &str, #[case] counted: usize) {
    let mut world = counting(Oauth, 1);
    let applied = world.fail_combo(MINUTE, answer(429, text));
    let reason = applied.classification.unwrap().reason;
    assert_ne!(reason, Reason::RateLimitExceeded);
    assert_eq!(in_window(&world, MINUTE), counted);
}

/// Each counts what the other does not, so a failure that one counted hides nothing from the other.
#[test]
fn a_rate_limit_hides_no_failure_from_the_breaker() {
    let mut world = counting(Apikey, 1);
    world.fail_combo(60_000, status(429));
    world.fail_combo(61_000, status(503));
    assert_eq!((in_window(&world, 61_000), world.breaker(61_000).1), (1, 1));
}

/// While it cools, a failure changes nothing; after it, one more in a window still full cools again.
#[test]
fn a_failure_while_cooled_does_not_extend_and_one_after_it_arms_again() {
    let mut world = counting(Oauth, 1);
    failures(&mut world, 10, MINUTE, 10_000);
    let end = 150_000 + 300_000;
    assert_eq!(end_at(&world, 150_000), Some(end));
    world.fail_combo(200_000, status(503));
    assert_eq!(end_at(&world, 200_000), Some(end));
    assert_eq!(in_window(&world, 200_000), 10);
    world.fail_combo(end, status(503));
    assert_eq!(end_at(&world, end), Some(end + 300_000));
}

/// A success proves that the window is over, not that the cooldown was wrong: requests under way when it began
/// would end it at once.
#[test]
fn a_success_does_not_end_a_running_cooldown_but_what_it_was_counted_from() {
    let mut world = counting(Oauth, 1);
    failures(&mut world, 10, MINUTE, 10_000);
    world.fail_combo(160_000, Outcome::Success);
    assert_eq!(end_at(&world, 160_000), Some(450_000));
    world.fail_combo(450_000, status(503));
    assert_eq!(end_at(&world, 450_000), None);
}

fn outcome_of(
    attempt: &Attempt,
    at: u64,
    outcome: Outcome,
) -> tidegate_core::outcome::AttemptOutcome {
    tidegate_core::outcome::AttemptOutcome {
        attempt: attempt.clone(),
        outcome,
        occurred_at: Timestamp(at),
        next_target_same_provider: false,
        combo: true,
        count: 1,
    }
}

/// What ends while the breaker is open says nothing (`failure-state.md` §1.7).
#[test]
fn a_late_success_while_the_breaker_is_open_empties_nothing() {
    let mut world = counting(Oauth, 1);
    world.policy.breaker.failure_threshold = 2;
    let slow = world.send("c1");
    failures(&mut world, 2, MINUTE, 10_000);
    world.end_combo(&slow, 2 * MINUTE, Outcome::Success);
    assert_eq!(in_window(&world, 2 * MINUTE), 2);
}

/// A success and failures around it, reported in any order: what happened before it does not count.
#[test]
fn a_failure_older_than_the_success_that_emptied_the_window_does_not_count() {
    let mut world = counting(Oauth, 3);
    let sent = ["c1", "c2", "c3"].map(|connection| world.send(connection));
    world.end_combo(&sent[0], 60_000, status(503));
    world.end_combo(&sent[1], 90_000, Outcome::Success);
    let attempt = outcome_of(&sent[2], 80_000, status(503));
    world.event(
        Some("c3"),
        &Event::Outcome(Box::new(attempt)),
        Timestamp(95_000),
    );
    assert_eq!(in_window(&world, 95_000), 0);
}

#[test]
fn a_success_reported_late_leaves_the_failures_after_it() {
    let mut world = counting(Oauth, 2);
    let (slow, failing) = (world.send("c1"), world.send("c2"));
    world.end_combo(&failing, 90_000, status(503));
    world.event(
        Some("c1"),
        &Event::Outcome(Box::new(outcome_of(&slow, 80_000, Outcome::Success))),
        Timestamp(95_000),
    );
    assert_eq!(in_window(&world, 95_000), 1);
}

#[test]
fn nothing_is_counted_while_the_gate_is_off() {
    let mut world = World::new(Oauth);
    failures(&mut world, 30, MINUTE, 10_000);
    assert!(world.state.gate.is_clean() && world.c1().gate.is_clean());
}

/// What was counted acts only as long as the gate is on; what a rule asked for acts always (decision 18).
#[test]
fn a_hold_acts_also_where_counting_is_off() {
    let mut world = counting(Oauth, 1);
    failures(&mut world, 10, MINUTE, 10_000);
    world.policy.gate.enabled = false;
    assert_eq!(end_at(&world, 150_000), None);
    let gate = &mut world.state.gate;
    assert!(gate.hold(Timestamp(150_000), 50_000, Reason::QuotaExhausted));
    assert!(!gate.hold(Timestamp(150_000), 40_000, Reason::ServerError));
    let end = gate.end(Timestamp(150_000), &world.policy.gate);
    assert_eq!(
        end,
        Some(GateEnd {
            until: Timestamp(200_000),
            reason: Reason::QuotaExhausted
        })
    );
    assert_eq!(end_at(&world, 200_000), None);
}

/// A rule with scope `provider` holds the provider for as long as it says, else for the class's cooldown, whether or
/// not the gate counts.
#[rstest]
#[case::vector_failure_76(json!({"cooldownMs": 20_000}), 20_000)]
#[case::vector_failure_76_for_the_class(json!({}), 600_000)]
fn a_rule_holds_the_provider(#[case] length: Value, #[case] cooldown_ms: u64) {
    let mut rule = json!({"status": 403, "match": "closed for today", "scope": "provider"});
    rule.as_object_mut()
        .unwrap()
        .extend(length.as_object().unwrap().clone());
    let settings = json!({"providerErrorRules": {"acme": [rule]}});
    let settings = serde_json::from_value(settings).unwrap();
    let mut world = World::under("acme", Apikey, &settings);
    assert!(!world.policy.gate.enabled);
    let applied = world.fail(MINUTE, answer(403, "closed for today"));
    let end = MINUTE + cooldown_ms;
    let held = TransitionKind::ProviderCooldown {
        until: Timestamp(end),
        reason: Reason::QuotaExhausted,
    };
    assert!(applied.transitions.iter().any(|it| it.kind == held));
    assert_eq!(end_at(&world, end - 1), Some(end));
    assert_eq!(end_at(&world, end), None);
    assert!(!world.c1().cooldown.is_running(Timestamp(MINUTE)));
}

/// A failure while the provider is held does not extend it; a rule that asks for longer does (§2.1).
#[test]
fn a_hold_is_moved_by_a_longer_one_only() {
    let settings = json!({"providerErrorRules": {"acme": [
        {"status": 403, "match": "closed for today", "scope": "provider", "cooldownMs": 20_000},
        {"status": 403, "match": "closed for good", "scope": "provider", "cooldownMs": 30_000},
    ]}});
    let settings = serde_json::from_value(settings).unwrap();
    let mut world = World::under("acme", Apikey, &settings);
    world.fail(MINUTE, answer(403, "closed for today"));
    let gate = world.state.gate.clone();
    for later in 1..=100 {
        let applied = world.fail(MINUTE + later, answer(403, "closed for today"));
        let told = |kind: &TransitionKind| matches!(kind, TransitionKind::ProviderCooldown { .. });
        assert!(!applied.transitions.iter().any(|it| told(&it.kind)));
    }
    assert_eq!(world.state.gate, gate);
    world.fail(MINUTE + 101, answer(403, "closed for good"));
    assert_eq!(end_at(&world, MINUTE + 101), Some(MINUTE + 30_101));
    world.fail(MINUTE + 20_000, answer(403, "closed for today"));
    assert_eq!(end_at(&world, MINUTE + 20_000), Some(MINUTE + 30_101));
    world.fail(MINUTE + 30_101, answer(403, "closed for today"));
    assert_eq!(end_at(&world, MINUTE + 30_101), Some(MINUTE + 50_101));
}

#[test]
fn an_operator_ends_it_and_what_was_under_way_does_not_bring_it_back() {
    let mut world = counting(Oauth, 1);
    failures(&mut world, 9, MINUTE, 10_000);
    let under_way = world.send("c1");
    world.fail_combo(150_000, status(503));
    let now = Timestamp(160_000);
    assert!(world.event(None, &Event::ResetGate, now).changed);
    assert_eq!(end_at(&world, 160_000), None);
    world.end_combo(&under_way, 170_000, status(503));
    assert_eq!(in_window(&world, 170_000), 0);
    world.fail_combo(180_000, status(503));
    assert_eq!(in_window(&world, 180_000), 1);
}

#[test]
fn a_connection_that_must_not_cool_has_no_entry_but_counts_for_the_provider() {
    let mut world = counting(Oauth, 1);
    world.config("c1").disable_cooling = true;
    world.fail_combo(MINUTE, status(503));
    assert_eq!(
        (world.c1().gate.failures, in_window(&world, MINUTE)),
        (0, 1)
    );
}

#[test]
fn a_new_credential_begins_anew() {
    let mut world = counting(Oauth, 1);
    world.fail_combo(MINUTE, status(503));
    let replaced = Event::CredentialReplaced {
        connection: tidegate_core::ids::ConnectionId::new("c1").unwrap(),
        credential_version: 1,
    };
    world.event(Some("c1"), &replaced, Timestamp(MINUTE));
    assert!(world.c1().gate.is_clean());
}

/// A burst at the highest threshold stays small, in memory and written down.
#[test]
fn a_burst_at_the_highest_threshold_is_bounded() {
    let mut world = counting(Apikey, 1);
    world.policy.gate.failure_threshold = 1_000;
    world.policy.gate.cooldown_ms = 0;
    let mut gate = ProviderGate::default();
    for number in 0..50_000_u64 {
        let at = Timestamp(1_700_000_000_000 + number / 5);
        gate.record_failure(at, Reason::ServerError, &world.policy.gate);
    }
    assert_eq!(gate.failures.len(), MAX_FAILURE_TIMES);
    let written = serde_json::to_vec(&gate).unwrap();
    assert!(written.len() < 2_500, "{} bytes", written.len());
    let read: ProviderGate = serde_json::from_slice(&written).unwrap();
    assert_eq!(read, gate);
}

proptest! {
    /// The order in which failures are reported does not matter as long as nothing cools in between.
    #[test]
    fn the_window_is_the_same_in_any_order(
        (times, shuffled) in prop::collection::vec(0..2_000_000_u64, 1..14)
            .prop_flat_map(|times| (Just(times.clone()), Just(times).prop_shuffle())),
    ) {
        let policy = counting(Apikey, 1).policy.gate;
        let of = |times: &[u64]| {
            let mut gate = ProviderGate::default();
            for at in times {
                gate.record_failure(Timestamp(*at + 1), Reason::ServerError, &policy);
            }
            gate
        };
        prop_assert_eq!(of(&times), of(&shuffled));
    }

    #[test]
    fn times_are_read_back_as_written(times in prop::collection::vec(any::<u64>(), 0..40)) {
        let times: FailureTimes = times.into_iter().map(Timestamp).collect();
        let written = serde_json::to_string(&times).unwrap();
        prop_assert_eq!(serde_json::from_str::<FailureTimes>(&written).unwrap(), times);
    }
}
