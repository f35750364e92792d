//! `failure-state.md` §8, vectors 1 to 20.

use rstest::rstest;
use tidegate_core::breaker::{BreakerStatus, Phase};
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::outcome::{AttemptOutcome, LocalFault, Outcome, TransportFault};
use tidegate_core::settings::ProviderClass;
use tidegate_core::settings::ProviderClass::{Apikey, Local, Oauth};
use tidegate_core::state::Event;
use tidegate_core::state::apply::{Judged, Subject, apply_classified};
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status};

fn world(class: ProviderClass, state: BreakerStatus, count: u32) -> World {
    let mut world = World::new(class);
    world.state.breaker.status = state;
    world.state.breaker.failure_count = count;
    world
}

fn open(class: ProviderClass, count: u32, cycles: u32, last_failure_at: u64) -> World {
    let mut world = world(class, BreakerStatus::Open, count);
    world.state.breaker.open_cycles = cycles;
    world.state.breaker.last_failure_at = Some(Timestamp(last_failure_at));
    world
}

fn take_probe(world: &mut World, attempt: AttemptId, now: u64) -> bool {
    world
        .event(None, &Event::TakeProbe { attempt }, Timestamp(now))
        .probe_granted
}

/// Opens `world` by time, sends the probe at `now` and ends it there.
fn probe(world: &mut World, now: u64, outcome: Outcome) {
    let mut attempt = world.send("c1");
    attempt.probe = true;
    assert!(take_probe(world, attempt.id, now));
    world.end(&attempt, now, outcome);
}

#[rstest]
#[case::vector_failure_01(Oauth, BreakerStatus::Closed, 4, 503, ("DEGRADED", 5), 0)]
#[case::vector_failure_02(Oauth, BreakerStatus::Degraded, 7, 500, ("OPEN", 8), 60_000)]
#[case::vector_failure_03(Apikey, BreakerStatus::Closed, 6, 408, ("DEGRADED", 7), 0)]
#[case::vector_failure_04(Apikey, BreakerStatus::Degraded, 11, 504, ("OPEN", 12), 30_000)]
#[case::vector_failure_05(Local, BreakerStatus::Closed, 1, 502, ("OPEN", 2), 15_000)]
#[case::vector_failure_19(Oauth, BreakerStatus::Closed, 4, 503, ("DEGRADED", 5), 0)]
fn a_failure_counts_up(
    #[case] class: ProviderClass,
    #[case] state: BreakerStatus,
    #[case] count: u32,
    #[case] failing: u16,
    #[case] expected: (&str, u32),
    #[case] retry_after_ms: u64,
) {
    let at = 7 * 86_400_000;
    let mut world = world(class, state, count);
    world.state.breaker.last_failure_at = Some(Timestamp(0));
    let applied = world.fail(at, status(failing));
    assert_eq!(world.breaker(at), expected);
    assert_eq!(world.retry_after_ms(at), retry_after_ms);
    assert_eq!(
        world
            .state
            .breaker
            .phase(Timestamp(at), &world.policy.breaker)
            .admits(),
        retry_after_ms == 0
    );
    assert!(!applied.transitions.is_empty());
}

#[rstest]
#[case::vector_failure_12(Oauth, &[(5, 480_000), (9, 480_000), (2, 60_000)])]
#[case::vector_failure_13(Apikey, &[(4, 60_000), (5, 120_000), (9, 120_000)])]
#[case::local_class(Local, &[(3, 15_000), (4, 30_000), (7, 240_000), (8, 240_000)])]
#[case::beyond_any_number(Oauth, &[(u32::MAX, 480_000)])]
fn the_wait_grows_with_failed_probes_up_to_the_cap(
    #[case] class: ProviderClass,
    #[case] table: &[(u32, u64)],
) {
    for (cycles, wait_ms) in table {
        let world = open(class, 20, *cycles, 0);
        assert_eq!(world.retry_after_ms(0), *wait_ms, "after {cycles} cycles");
    }
}

#[rstest]
#[case::vector_failure_10(Oauth, 8, 0, 503, ("OPEN", 9), 1, 60_000)]
#[case::vector_failure_11(Oauth, 8, 2, 502, ("OPEN", 9), 3, 120_000)]
#[case::vector_failure_13(Apikey, 12, 3, 503, ("OPEN", 13), 4, 60_000)]
fn a_failed_probe_opens_again(
    #[case] class: ProviderClass,
    #[case] count: u32,
    #[case] cycles: u32,
    #[case] failing: u16,
    #[case] expected: (&str, u32),
    #[case] cycles_after: u32,
    #[case] wait_ms: u64,
) {
    let mut world = open(class, count, cycles, 0);
    probe(&mut world, 900_000, status(failing));
    assert_eq!(world.breaker(900_000), expected);
    assert_eq!(world.state.breaker.open_cycles, cycles_after);
    assert_eq!(world.retry_after_ms(900_000), wait_ms);
}

#[rstest]
#[case::vector_failure_06(statuses_that_are_no_trip_codes_leave_the_count)]
#[case::vector_failure_07(an_open_breaker_becomes_half_open_by_time_alone)]
#[case::vector_failure_08(one_of_two_admissions_gets_the_probe)]
#[case::vector_failure_09(a_good_probe_closes_and_forgets)]
#[case::vector_failure_14(a_success_counts_down)]
#[case::vector_failure_15(a_failure_while_open_does_not_prolong)]
#[case::vector_failure_16(a_late_success_does_not_close)]
#[case::vector_failure_17(failures_of_one_connection_within_five_seconds_count_once)]
#[case::vector_failure_18(network_faults_of_one_provider_within_ten_seconds_count_once)]
#[case::vector_failure_20(faults_that_are_not_the_providers_do_not_count)]
#[case::epoch(outcomes_of_an_earlier_epoch_change_nothing)]
#[case::holder(only_the_holder_of_the_probe_gives_its_verdict)]
#[case::expiry(a_lost_probe_comes_back_by_expiry)]
#[case::no_verdict(a_probe_without_verdict_comes_back)]
#[case::order(an_older_failure_does_not_bring_the_probe_forward)]
#[case::mark(a_success_ends_the_five_seconds)]
#[case::older_success(a_success_seen_before_a_failure_does_not_end_the_five_seconds)]
#[case::private_copy(a_judged_failure_counts_like_its_outcome)]
#[case::sibling(a_combo_that_stays_with_the_provider_is_not_counted)]
#[case::proxy(an_unreachable_proxy_counts_for_combos_only)]
#[case::coalesced(coalesced_successes_count_each)]
#[case::synthetic(synthetic_traffic_changes_nothing)]
#[case::readiness(a_stream_that_never_became_ready_does_not_count)]
fn breaker(#[case] run: fn()) {
    run();
}

fn statuses_that_are_no_trip_codes_leave_the_count() {
    let mut world = world(Apikey, BreakerStatus::Degraded, 11);
    for (connection, at, code) in [("c2", 0, 429), ("c3", 10_000, 403), ("c4", 20_000, 401)] {
        world.add(connection);
        let attempt = world.send(connection);
        world.end(&attempt, at, status(code));
    }
    assert_eq!(world.breaker(20_000), ("DEGRADED", 11));
}

fn an_open_breaker_becomes_half_open_by_time_alone() {
    let world = open(Oauth, 8, 0, 0);
    assert_eq!(world.breaker(59_999), ("OPEN", 8));
    assert_eq!(world.retry_after_ms(59_999), 1);
    assert_eq!(world.breaker(60_000), ("HALF_OPEN", 8));
    assert_eq!(world.retry_after_ms(60_000), 0);
    assert_eq!(
        world.state.breaker.status,
        BreakerStatus::Open,
        "reading writes nothing"
    );
}

fn one_of_two_admissions_gets_the_probe() {
    let mut world = open(Oauth, 8, 0, 0);
    let (first, second) = (world.send("c1").id, world.send("c1").id);
    assert!(take_probe(&mut world, first, 60_000));
    assert!(!take_probe(&mut world, second, 60_000));
    assert!(
        world.retry_after_ms(60_000) >= 1_000,
        "rejected for at least a second"
    );
    assert!(
        take_probe(&mut world, first, 60_001),
        "asking twice is no second probe"
    );
}

fn a_good_probe_closes_and_forgets() {
    let mut world = open(Oauth, 8, 1, 0);
    probe(&mut world, 60_000, Outcome::Success);
    assert_eq!(world.breaker(60_000), ("CLOSED", 0));
    assert_eq!(world.state.breaker.open_cycles, 0);
}

fn a_success_counts_down() {
    for (count, expected) in [(7, ("DEGRADED", 6)), (6, ("CLOSED", 5))] {
        let mut world = world(Oauth, BreakerStatus::Degraded, count);
        world.fail(0, Outcome::Success);
        assert_eq!(world.breaker(0), expected);
    }
}

fn a_failure_while_open_does_not_prolong() {
    let mut world = open(Oauth, 8, 0, 0);
    world.fail(20_000, status(503));
    assert_eq!(world.breaker(59_999), ("OPEN", 8));
    assert_eq!(world.breaker(60_000), ("HALF_OPEN", 8));
}

fn a_late_success_does_not_close() {
    let mut world = world(Oauth, BreakerStatus::Degraded, 7);
    let slow = world.send("c1");
    world.fail(0, status(503));
    assert_eq!(world.breaker(0), ("OPEN", 8));
    world.end(&slow, 1_000, Outcome::Success);
    assert_eq!(world.breaker(1_000), ("OPEN", 8));
}

fn failures_of_one_connection_within_five_seconds_count_once() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    for at in [0, 4_999, 5_000] {
        world.fail(at, status(503));
    }
    assert_eq!(world.breaker(5_000), ("CLOSED", 2));
}

fn network_faults_of_one_provider_within_ten_seconds_count_once() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    for (connection, at) in [("c1", 0), ("c2", 1_500), ("c3", 3_000)] {
        world.add(connection);
        let attempt = world.send(connection);
        let fault = Outcome::Transport(TransportFault::ProxyUnreachable);
        world.end_combo(&attempt, at, fault);
    }
    assert_eq!(world.breaker(3_000), ("CLOSED", 1));
}

fn faults_that_are_not_the_providers_do_not_count() {
    let mut world = world(Apikey, BreakerStatus::Closed, 3);
    let overflow = r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#;
    for (at, outcome) in [
        (0, Outcome::ClientAbort),
        (10_000, status(499)),
        (20_000, Outcome::Local(LocalFault::QueueFull)),
        (30_000, Outcome::Local(LocalFault::ExecutionExpired)),
        (40_000, answer(502, overflow)),
    ] {
        world.fail(at, outcome);
        assert_eq!(world.breaker(at), ("CLOSED", 3));
    }
}

fn outcomes_of_an_earlier_epoch_change_nothing() {
    let mut world = world(Oauth, BreakerStatus::Closed, 3);
    let early = world.send("c1");
    world.event(None, &Event::ResetBreaker, Timestamp(0));
    assert_eq!(world.breaker(0), ("CLOSED", 0));
    world.end(&early, 1_000, status(503));
    assert_eq!(world.breaker(1_000), ("CLOSED", 0));
    world.add("c2");
    let later = world.send("c2");
    world.end(&later, 1_000, status(503));
    assert_eq!(world.breaker(1_000), ("CLOSED", 1));
}

fn only_the_holder_of_the_probe_gives_its_verdict() {
    let mut world = open(Oauth, 8, 0, 0);
    let holder = world.send("c1");
    let other = world.send("c1");
    assert!(take_probe(&mut world, holder.id, 60_000));
    world.end(&other, 60_100, Outcome::Success);
    world.end(&other, 60_100, status(503));
    assert_eq!(world.breaker(60_100), ("HALF_OPEN", 8));
    world.end(&holder, 60_200, Outcome::Success);
    assert_eq!(world.breaker(60_200), ("CLOSED", 0));
}

fn a_lost_probe_comes_back_by_expiry() {
    let mut world = open(Oauth, 8, 0, 0);
    let lost = world.send("c1");
    let next = world.send("c1");
    assert!(take_probe(&mut world, lost.id, 60_000));
    assert!(!take_probe(&mut world, next.id, 119_999));
    assert!(take_probe(&mut world, next.id, 120_000));
    world.end(&lost, 120_001, Outcome::Success);
    assert_eq!(
        world.breaker(120_001),
        ("HALF_OPEN", 8),
        "another attempt holds it now"
    );
}

fn a_probe_without_verdict_comes_back() {
    for outcome in [
        Outcome::ClientAbort,
        Outcome::Local(LocalFault::PermitRefused),
        status(429),
        status(400),
    ] {
        let mut world = open(Oauth, 8, 0, 0);
        probe(&mut world, 60_000, outcome);
        let next = world.send("c1").id;
        assert!(take_probe(&mut world, next, 60_001));
    }
    let mut world = open(Oauth, 8, 0, 0);
    let unsent = world.send("c1").id;
    assert!(take_probe(&mut world, unsent, 60_000));
    let event = Event::ReturnProbe { attempt: unsent };
    world.event(None, &event, Timestamp(60_000));
    let next = world.send("c1").id;
    assert!(take_probe(&mut world, next, 60_000));
}

#[test]
fn a_renewed_probe_lasts_until_another_took_it() {
    let mut world = open(Oauth, 8, 0, 0);
    let (long, other) = (world.send("c1").id, world.send("c1").id);
    let renew = |world: &mut World, attempt, at| {
        let event = Event::RenewProbe { attempt };
        world.event(None, &event, Timestamp(at)).changed
    };
    assert!(!renew(&mut world, long, 60_000), "it holds none");
    assert!(take_probe(&mut world, long, 60_000));
    assert!(renew(&mut world, long, 110_000));
    // Its first time would be over at 120,000.
    assert!(!take_probe(&mut world, other, 169_999));
    assert!(!renew(&mut world, other, 169_999));
    assert!(take_probe(&mut world, other, 170_000));
    assert!(!renew(&mut world, long, 170_001));
}

#[test]
fn a_probe_that_is_withheld_is_out() {
    let mut world = open(Oauth, 8, 0, 0);
    let policy = world.policy.breaker;
    for (at, phase) in [
        (59_999, Phase::Open { retry_after_ms: 1 }),
        (60_000, Phase::HalfOpen { probe_out: true }),
    ] {
        let breaker = &mut world.state.breaker;
        breaker.withhold_probe(Timestamp(at), &policy);
        assert_eq!(breaker.phase(Timestamp(at), &policy), phase);
    }
}

fn an_older_failure_does_not_bring_the_probe_forward() {
    let mut world = world(Local, BreakerStatus::Closed, 0);
    world.add("c2");
    let (one, other) = (world.send("c1"), world.send("c2"));
    world.end(&one, 20_000, status(503));
    world.end(&other, 5_000, status(503));
    assert_eq!(world.breaker(20_000), ("OPEN", 2));
    assert_eq!(world.retry_after_ms(20_000), 15_000);
}

fn a_success_ends_the_five_seconds() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    world.fail(1_000, status(503));
    world.fail(2_000, Outcome::Success);
    world.fail(3_000, status(503));
    assert_eq!(world.breaker(3_000), ("CLOSED", 1));
    let report = AttemptOutcome {
        attempt: world.send("c1"),
        outcome: status(503),
        occurred_at: Timestamp(3_500),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    };
    assert!(
        !world.report(report).changed,
        "within five seconds of the second"
    );
}

fn a_success_seen_before_a_failure_does_not_end_the_five_seconds() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    let slow = world.send("c1");
    world.fail(2_000, status(503));
    world.end(&slow, 1_000, Outcome::Success);
    world.fail(3_000, status(503));
    assert_eq!(
        world.breaker(3_000),
        ("CLOSED", 0),
        "the second one is a duplicate"
    );
}

fn a_judged_failure_counts_like_its_outcome() {
    let mut by_outcome = world(Apikey, BreakerStatus::Closed, 6);
    let attempt = by_outcome.send("c1");
    let report = AttemptOutcome {
        attempt: attempt.clone(),
        outcome: status(503),
        occurred_at: Timestamp(9_000),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    };
    let event = Event::Outcome(Box::new(report));
    let applied = by_outcome.event(Some("c1"), &event, Timestamp(1_000));

    let copy = world(Apikey, BreakerStatus::Closed, 6);
    let (mut provider, mut connection) = (copy.state.clone(), copy.c1().clone());
    let judged = apply_classified(
        Subject {
            provider: &mut provider,
            connection: Some((by_outcome.config("c1"), &mut connection)),
        },
        &Judged {
            attempt: &attempt,
            classification: &applied.classification.unwrap(),
            at: Timestamp(9_000),
            next_target_same_provider: false,
            combo: false,
            count: 1,
        },
        Timestamp(1_000),
        &copy.policy,
        &copy.provider,
    );
    assert_eq!(judged.transitions, applied.transitions);
    assert_eq!(provider.breaker.failure_count, 7);
    assert_eq!(provider.breaker.last_failure_at, Some(Timestamp(1_000)));
    assert_eq!(connection.cooldown.until, by_outcome.c1().cooldown.until);
}

fn a_combo_that_stays_with_the_provider_is_not_counted() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    let mut report = AttemptOutcome {
        attempt: world.send("c1"),
        outcome: status(503),
        occurred_at: Timestamp(0),
        next_target_same_provider: true,
        combo: true,
        count: 1,
    };
    world.report(report.clone());
    assert_eq!(world.breaker(0), ("CLOSED", 0));
    report.attempt = world.send("c1");
    report.next_target_same_provider = false;
    world.report(report);
    assert_eq!(world.breaker(0), ("CLOSED", 1));
}

fn an_unreachable_proxy_counts_for_combos_only() {
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    let unreachable = || Outcome::Transport(TransportFault::ProxyUnreachable);
    world.fail(0, unreachable());
    assert_eq!(world.breaker(0), ("CLOSED", 0));
    let report = AttemptOutcome {
        attempt: world.send("c1"),
        outcome: unreachable(),
        occurred_at: Timestamp(1),
        next_target_same_provider: true,
        combo: true,
        count: 1,
    };
    world.report(report);
    assert_eq!(world.breaker(1), ("CLOSED", 1), "whatever comes next");
}

fn coalesced_successes_count_each() {
    let mut world = world(Oauth, BreakerStatus::Degraded, 7);
    let report = AttemptOutcome {
        attempt: world.send("c1"),
        outcome: Outcome::Success,
        occurred_at: Timestamp(0),
        next_target_same_provider: false,
        combo: false,
        count: 4,
    };
    world.report(report);
    assert_eq!(world.breaker(0), ("CLOSED", 3));
}

fn synthetic_traffic_changes_nothing() {
    let mut world = world(Local, BreakerStatus::Closed, 1);
    let mut attempt = world.send("c1");
    attempt.synthetic = true;
    for outcome in [status(503), status(401), Outcome::Success] {
        let applied = world.end(&attempt, 0, outcome);
        assert!(!applied.changed && applied.classification.is_some());
    }
    assert_eq!(world.breaker(0), ("CLOSED", 1));
}

fn a_stream_that_never_became_ready_does_not_count() {
    use tidegate_core::outcome::StreamFault;
    let mut world = world(Apikey, BreakerStatus::Closed, 0);
    world.fail(0, Outcome::Stream(StreamFault::ReadinessTimeout));
    world.fail(100_000, Outcome::Stream(StreamFault::DeadlineExceeded));
    assert_eq!(world.breaker(100_000), ("CLOSED", 0));
    world.fail(200_000, Outcome::Stream(StreamFault::EarlyEof));
    world.fail(300_000, Outcome::Stream(StreamFault::Truncated));
    assert_eq!(world.breaker(300_000), ("CLOSED", 2));
}

#[test]
fn names_on_the_wire() {
    let attempt = AttemptId {
        plane: PlaneIncarnation(1),
        number: 1,
    };
    let mut world = open(Local, 2, 0, 0);
    assert_eq!(world.state.breaker.status.wire_name(), "OPEN");
    assert!(take_probe(&mut world, attempt, 15_000));
    assert_eq!(world.state.breaker.status.wire_name(), "HALF_OPEN");
    let degraded = BreakerStatus::Degraded.wire_name();
    assert_eq!(
        (BreakerStatus::Closed.wire_name(), degraded),
        ("CLOSED", "DEGRADED")
    );
}
