//! `failure-state.md` §8: cooldown vectors 25 to 33, 37, 38, 44 to 50, and the episode rule.

use rstest::rstest;
use tidegate_core::classify::{Consequence, Reason, TerminalKind};
use tidegate_core::ids::ConnectionId;
use tidegate_core::outcome::Outcome;
use tidegate_core::settings::ProviderClass;
use tidegate_core::settings::ProviderClass::{Apikey, Local, Oauth};
use tidegate_core::state::{Event, TransitionKind};
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status, terminal, with_header};

/// When the events of the tables happen.
const T: u64 = 1_700_000_000_000;

fn at_level(class: ProviderClass, level: u32) -> World {
    let mut world = World::new(class);
    world.connection_mut("c1").cooldown.backoff_level = level;
    world
}

#[rstest]
#[case::vector_failure_25(Apikey, 0, status(503), 3_000, 1)]
#[case::vector_failure_26(Apikey, 5, status(503), 96_000, 5)]
#[case::vector_failure_27(Oauth, 0, status(429), 5_000, 1)]
#[case::oauth_ladder_is_flat_at_the_end(Oauth, 8, status(429), 1_280_000, 8)]
#[case::vector_failure_28(Apikey, 3, with_header(429, "retry-after", "120"), 120_000, 0)]
#[case::vector_failure_29(
    Apikey,
    2,
    with_header(429, "x-ratelimit-reset", "1700000045"),
    45_000,
    0
)]
#[case::vector_failure_30(Apikey, 2, with_header(429, "x-ratelimit-reset", "30"), 12_000, 3)]
#[case::vector_failure_31(Oauth, 0, with_header(429, "retry-after", "120"), 5_000, 1)]
#[case::vector_failure_37(Apikey, 0, answer(403, "Forbidden"), 3_000, 1)]
#[case::vector_failure_44(Apikey, 2, status(404), 120_000, 2)]
#[case::vector_failure_45(Apikey, 2, status(418), 3_000, 2)]
#[case::vector_failure_48(Apikey, 0, answer(400, "too many requests"), 3_000, 1)]
#[case::local_class(Local, 3, status(503), 16_000, 3)]
fn a_failure_cools_for_its_length(
    #[case] class: ProviderClass,
    #[case] level: u32,
    #[case] outcome: Outcome,
    #[case] length_ms: u64,
    #[case] level_after: u32,
) {
    let mut world = at_level(class, level);
    let applied = world.fail(T, outcome);
    assert_eq!(world.cooldown(), (Some(T + length_ms), level_after));
    assert!(world.c1().terminal.is_none());
    assert!(world.c1().last_error.is_some());
    assert!(applied.transitions.iter().any(|transition| matches!(
        transition.kind,
        TransitionKind::Cooldown { until, .. } if until == Timestamp(T + length_ms)
    )));
}

#[rstest]
#[case::vector_failure_37(answer(403, "Forbidden"), Reason::AuthError)]
#[case::vector_failure_48(answer(400, "too many requests"), Reason::RateLimitExceeded)]
#[case::plain_429(status(429), Reason::RateLimitExceeded)]
#[case::server_error(status(503), Reason::ServerError)]
#[case::not_found(status(404), Reason::Unknown)]
fn a_cooldown_says_why(#[case] outcome: Outcome, #[case] reason: Reason) {
    let mut world = World::new(Apikey);
    world.fail(T, outcome);
    assert_eq!(world.c1().cooldown.reason, Some(reason));
}

#[rstest]
#[case::vector_failure_27(both_rows_of_the_oauth_ladder)]
#[case::vector_failure_32(a_running_cooldown_is_one_episode)]
#[case::vector_failure_33(a_terminal_state_is_not_overwritten)]
#[case::vector_failure_38(a_route_that_is_not_authorized_changes_nothing)]
#[case::vector_failure_46(a_prompt_too_long_is_recorded_only)]
#[case::vector_failure_47(a_bad_field_is_the_clients_fault)]
#[case::vector_failure_49(without_cooling_the_level_still_moves)]
#[case::vector_failure_50(a_success_clears_everything)]
#[case::longer(a_longer_stated_end_moves_the_end_only)]
#[case::in_flight(thirty_in_flight_are_one_episode)]
#[case::slow_success(a_slow_success_does_not_erase_a_fresh_cooldown)]
#[case::late_report(the_end_counts_from_the_event_not_from_the_report)]
#[case::future(an_outcome_from_the_future_counts_as_now)]
#[case::operator(an_operator_ends_a_cooldown)]
fn cooldown(#[case] run: fn()) {
    run();
}

fn both_rows_of_the_oauth_ladder() {
    for (level, length_ms, after) in [(0, 5_000, 1), (8, 1_280_000, 8)] {
        let mut world = at_level(Oauth, level);
        world.fail(T, status(429));
        assert_eq!(world.cooldown(), (Some(T + length_ms), after));
    }
}

fn a_running_cooldown_is_one_episode() {
    let mut world = at_level(Apikey, 1);
    world.connection_mut("c1").cooldown.until = Some(Timestamp(T + 2_000));
    world.add("c2");
    let before = world.c1().clone();
    world.fail(T + 500, status(503));
    let mut after = world.c1().clone();
    after.last_counted_failure_at = before.last_counted_failure_at;
    assert_eq!(after, before, "no write but the breaker's mark");
    assert_eq!(after.cooldown.remaining_ms(Timestamp(T + 500)), 1_500);
}

fn a_terminal_state_is_not_overwritten() {
    let mut world = World::new(Apikey);
    world.connection_mut("c1").terminal = Some(terminal(TerminalKind::Banned));
    let applied = world.fail(T, status(429));
    assert!(!applied.changed);
    assert_eq!(world.c1().terminal, Some(terminal(TerminalKind::Banned)));
    assert_eq!(world.cooldown(), (None, 0));
}

fn a_route_that_is_not_authorized_changes_nothing() {
    let mut world = World::new(Apikey);
    let applied = world.fail(T, answer(403, "Key is not authorized for this route"));
    let classification = applied.classification.unwrap();
    assert!(!applied.changed);
    assert!(!classification.account_fallback);
}

/// Decision 50 changes the vector: another account serves the same window, so only other models are tried.
fn a_prompt_too_long_is_recorded_only() {
    let mut world = at_level(Apikey, 2);
    let applied = world.fail(
        T,
        answer(400, r#"{"error":{"message":"prompt is too long"}}"#),
    );
    let classification = applied.classification.unwrap();
    assert_eq!(classification.consequence, Consequence::RecordError);
    assert_eq!(classification.reason, Reason::ModelCapacity);
    assert!(classification.request_scoped && !classification.account_fallback);
    assert_eq!(world.cooldown(), (None, 2));
    assert_eq!(
        world.c1().last_error.as_ref().map(|error| error.status),
        Some(400)
    );
}

fn a_bad_field_is_the_clients_fault() {
    let mut world = World::new(Apikey);
    let applied = world.fail(T, answer(400, "bad field x"));
    let classification = applied.classification.unwrap();
    assert!(!applied.changed, "not even the last error (decision 50)");
    assert_eq!(classification.reason, Reason::ClientFault);
    assert!(!classification.account_fallback);
}

fn without_cooling_the_level_still_moves() {
    let mut world = World::new(Apikey);
    world.config("c1").disable_cooling = true;
    world.fail(T, status(503));
    assert_eq!(world.cooldown(), (None, 1));
    assert_eq!(
        world.c1().last_error.as_ref().map(|error| error.status),
        Some(503)
    );
}

fn a_success_clears_everything() {
    let mut world = World::new(Apikey);
    for (at, expected) in [
        (T, (Some(T + 3_000), 1)),
        (T + 10_000, (Some(T + 16_000), 2)),
        (T + 20_000, (Some(T + 32_000), 3)),
        (T + 40_000, (Some(T + 64_000), 4)),
    ] {
        world.fail(at, status(503));
        assert_eq!(world.cooldown(), expected);
    }
    let applied = world.fail(T + 64_000, Outcome::Success);
    assert!(world.c1().is_clean());
    assert_eq!(
        applied
            .transitions
            .iter()
            .map(|one| &one.kind)
            .collect::<Vec<_>>(),
        [&TransitionKind::Cleared]
    );
}

fn a_longer_stated_end_moves_the_end_only() {
    let mut world = World::new(Apikey);
    world.fail(T, status(503));
    world.fail(T + 1_000, with_header(429, "retry-after", "60"));
    assert_eq!(world.cooldown(), (Some(T + 61_000), 1));
    world.fail(T + 2_000, with_header(429, "retry-after", "10"));
    assert_eq!(world.cooldown(), (Some(T + 61_000), 1), "never earlier");
}

fn thirty_in_flight_are_one_episode() {
    let mut world = World::new(Apikey);
    let attempts: Vec<_> = (0..30).map(|_| world.send("c1")).collect();
    for (number, attempt) in (0..).zip(&attempts) {
        world.end(attempt, T + number * 4_000, status(429));
    }
    assert_eq!(world.cooldown(), (Some(T + 3_000), 1));
    world.fail(T + 200_000, status(429));
    assert_eq!(world.cooldown(), (Some(T + 206_000), 2));
}

fn a_slow_success_does_not_erase_a_fresh_cooldown() {
    let mut world = World::new(Apikey);
    let slow = world.send("c1");
    world.fail(T, status(429));
    let applied = world.end(&slow, T + 100, Outcome::Success);
    assert!(!applied.changed);
    assert_eq!(world.cooldown(), (Some(T + 3_000), 1));
}

fn the_end_counts_from_the_event_not_from_the_report() {
    let mut world = World::new(Apikey);
    let attempt = world.send("c1");
    let report = tidegate_core::outcome::AttemptOutcome {
        attempt,
        outcome: status(503),
        occurred_at: Timestamp(T),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    };
    let event = Event::Outcome(Box::new(report));
    world.event(Some("c1"), &event, Timestamp(T + 2_500));
    assert_eq!(world.cooldown(), (Some(T + 3_000), 1));
}

fn an_outcome_from_the_future_counts_as_now() {
    let mut world = World::new(Local);
    let attempt = world.send("c1");
    let report = tidegate_core::outcome::AttemptOutcome {
        attempt,
        outcome: status(503),
        occurred_at: Timestamp(u64::MAX),
        next_target_same_provider: false,
        combo: false,
        count: 1,
    };
    let event = Event::Outcome(Box::new(report));
    world.event(Some("c1"), &event, Timestamp(T));
    assert_eq!(world.cooldown(), (Some(T + 2_000), 1));
    assert_eq!(world.state.breaker.last_failure_at, Some(Timestamp(T)));
}

fn an_operator_ends_a_cooldown() {
    let mut world = at_level(Apikey, 3);
    world.fail(T, status(503));
    let event = Event::ResetConnection {
        connection: world.config("c1").id.clone(),
        terminal_too: false,
    };
    assert!(world.event(Some("c1"), &event, Timestamp(T)).changed);
    assert!(world.c1().is_clean());
}

/// After an operator's reset only an attempt decided on it cools again (decisions 9 and 24).
#[rstest]
#[case::ladder(status(503))]
#[case::flat(status(404))]
#[case::hint(with_header(429, "retry-after", "60"))]
fn a_reset_is_not_undone_by_what_was_under_way(#[case] outcome: Outcome) {
    let mut world = World::new(Apikey);
    world.fail(0, status(503));
    let under_way = world.send("c1");
    let reset = Event::ResetConnection {
        connection: ConnectionId::new("c1").unwrap(),
        terminal_too: false,
    };
    world.event(Some("c1"), &reset, Timestamp(1_000));
    assert!(world.c1().is_clean());
    world.end(&under_way, 2_000, outcome.clone());
    assert_eq!(world.cooldown(), (None, 0));
    world.fail(3_000, outcome);
    assert!(world.c1().cooldown.is_running(Timestamp(3_000)));
}
