//! A request sees its own failures in a copy of the view that knows of them, too.

use rstest::rstest;

use super::*;
use crate::cooldown::Cooldown;
use crate::outcome::{AttemptOutcome, TransportFault};
use crate::state::apply::{Subject, apply_outcome};

/// From when a failure happens until it is asked about, in ms: a question tells of it later than its report does.
const ASKED_AFTER_MS: u64 = 3;
/// How long a failure cools the account, in ms: longer than de-duplication looks back.
const COOLS_MS: u64 = 6_000;

/// One target of these accounts, whose provider opens its breaker, and closes its gate, after so many failures.
fn world_of(accounts: &[&str], threshold: u32, dedup_ms: u64) -> World {
    let breaker = json!({"failureThreshold": threshold, "degradationThreshold": 1});
    let gate = json!({"enabled": true, "minRetryCooldownMs": 0,
        "apikey": {"providerFailureThreshold": threshold, "providerFailureWindowMs": 1_800_000}});
    let settings = json!({
        "comboCooldownWait": {"maxWaitMs": 60_000, "maxAttempts": 10},
        "providerBreaker": {"apikey": breaker, "dedupConnectionMs": dedup_ms},
        "providerCooldown": gate,
    });
    World::combo(accounts, &["p1/m"], json!({"maxRetries": 0}), settings)
}

fn world(threshold: u32, dedup_ms: u64) -> World {
    world_of(&["p1/k1"], threshold, dedup_ms)
}

/// The attempt failed, and everybody knows of it when the request asks again, so that it is no news.
fn fails(world: &mut World, dispatch: &Dispatch) {
    let outcome = upstream_error(500, "", None);
    let happened_at = world.now;
    world.now = world.now.plus_ms(ASKED_AFTER_MS);
    world.fail(dispatch, &outcome);
    world.so_far.last_is_new = false;
    let attempt = world.so_far.attempts.last().unwrap().attempt.clone();
    let id = attempt.connection.clone();
    everybody_counts(world, attempt, outcome, happened_at);
    // A store numbers its writes, which makes each of these an episode of its own.
    let known = world.view.connections.get_mut(&id).unwrap();
    Arc::make_mut(known).cooldown = Cooldown {
        until: Some(world.now.plus_ms(COOLS_MS)),
        reason: Some(Reason::ServerError),
        ..Cooldown::default()
    };
}

/// The report of an attempt that ended so is in everybody's view.
fn everybody_counts(world: &mut World, attempt: Attempt, outcome: Outcome, occurred_at: Timestamp) {
    let (provider, connection) = (attempt.provider.clone(), attempt.connection.clone());
    let entry = world.config.provider(&provider).unwrap();
    let config = world.config.connection(&connection).unwrap();
    let known = world.view.providers.get(&provider);
    let mut of_provider = known.map_or_else(ProviderState::default, |it| it.as_ref().clone());
    let known = world.view.connections.get(&connection);
    let mut of_connection = known.map_or_else(ConnectionState::default, |it| it.as_ref().clone());
    let report = AttemptOutcome {
        attempt,
        outcome,
        occurred_at,
        next_target_same_provider: false,
        combo: true,
        count: 1,
    };
    apply_outcome(
        Subject {
            provider: &mut of_provider,
            connection: Some((config, &mut of_connection)),
        },
        &report,
        world.now,
        &entry.policy,
        &provider,
    );
    let views = &mut world.view;
    views.providers.insert(provider, Arc::new(of_provider));
    views
        .connections
        .insert(connection, Arc::new(of_connection));
}

/// What the request waits for, as it sees it itself.
fn excluded_by(world: &World) -> Vec<ExclusionReason> {
    let explanation = world.with_input(explain);
    let hits = explanation.targets[0].exclusions.iter();
    hits.map(|hit| hit.reason).collect()
}

/// Failures that come further apart than de-duplication looks back.
#[rstest]
#[case::with_de_duplication(5_000)]
#[case::without(0)]
fn what_everybody_has_counted_is_not_counted_again(#[case] dedup_ms: u64) {
    let failures = 4;
    let mut world = world(failures + 1, dedup_ms);
    let mut sent = 0;
    while sent < failures {
        match world.decide() {
            Decision::Dispatch(dispatch) => {
                fails(&mut world, &dispatch);
                sent += 1;
                assert_eq!(excluded_by(&world), [ExclusionReason::ConnectionCooldown]);
            }
            Decision::Wait(wait) => {
                assert_eq!(wait.kind, WaitKind::Cooldown);
                world.now = world.now.plus_ms(wait.wait_ms);
                world.so_far.waits += 1;
            }
            other => panic!("{sent} failures, then {other:?}"),
        }
    }
    let provider = ProviderId::new("p1").unwrap();
    assert_eq!(
        world.view.providers[&provider].breaker.failure_count,
        failures
    );
}

/// Where nobody knows yet, the request does, whatever was counted before.
#[test]
fn what_nobody_has_counted_is_counted() {
    let mut world = world(2, 5_000);
    let mut known = ProviderState::default();
    let before = START.minus_ms(60_000);
    known.breaker.failure_count = 1;
    known.breaker.last_failure_at = Some(before);
    known.gate.failures.insert(before, 2);
    let provider = ProviderId::new("p1").unwrap();
    world.view.providers.insert(provider, Arc::new(known));
    let dispatch = world.dispatch();
    world.fail(&dispatch, &upstream_error(500, "", None));
    let seen = excluded_by(&world);
    assert!(seen.contains(&ExclusionReason::CircuitOpen), "{seen:?}");
    assert!(
        seen.contains(&ExclusionReason::ProviderCooldown),
        "{seen:?}"
    );
}

/// The failure that is asked about is not reported yet, however shortly before it another account failed, or the same one.
#[rstest]
#[case::another_account("k2", 100, 5_000)]
#[case::another_account_at_once("k2", 0, 5_000)]
#[case::the_same_account_without_de_duplication("k1", 100, 0)]
fn what_is_asked_about_is_counted_beside_what_is_known(
    #[case] second: &str,
    #[case] apart_ms: u64,
    #[case] dedup_ms: u64,
) {
    let mut world = world_of(&["p1/k1", "p1/k2", "p1/k3"], 2, dedup_ms).without_cooling();
    let mut dispatch = world.dispatch();
    let outcome = upstream_error(500, "", None);
    world.fail(&dispatch, &outcome);
    world.so_far.last_is_new = false;
    let attempt = world.so_far.attempts[0].attempt.clone();
    let now = world.now;
    everybody_counts(&mut world, attempt, outcome.clone(), now);
    world.now = world.now.plus_ms(apart_ms);
    dispatch.connection = ConnectionId::new(second).unwrap();
    world.fail(&dispatch, &outcome);
    let provider = ProviderId::new("p1").unwrap();
    assert_eq!(world.view.providers[&provider].breaker.failure_count, 1);
    let seen = excluded_by(&world);
    assert!(seen.contains(&ExclusionReason::CircuitOpen), "{seen:?}");
}

/// Another request's success, or another account's failure, has taken away what told that a failure was counted.
#[rstest]
#[case::a_success(true)]
#[case::another_account(false)]
fn what_was_counted_long_ago_is_not_counted_again(#[case] succeeds: bool) {
    const FAILURES: u32 = 4;
    let mut world = world_of(&["p1/k1", "p1/k2"], FAILURES + 1, 5_000).without_cooling();
    let mut dispatch = world.dispatch();
    for _ in 0..FAILURES {
        for connection in ["k1", "k2"] {
            dispatch.connection = ConnectionId::new(connection).unwrap();
            let outcome = Outcome::Transport(TransportFault::Connect);
            world.fail(&dispatch, &outcome);
            world.so_far.last_is_new = false;
            let attempt = world.so_far.attempts.last().unwrap().attempt.clone();
            let now = world.now;
            everybody_counts(&mut world, attempt.clone(), outcome, now);
            if succeeds {
                let now = world.now.plus_ms(1);
                world.now = now;
                everybody_counts(&mut world, attempt, Outcome::Success, now);
            }
        }
        world.now = world.now.plus_ms(COOLS_MS);
    }
    let seen = excluded_by(&world);
    assert!(!seen.contains(&ExclusionReason::CircuitOpen), "{seen:?}");
}
