//! Several reports of one attempt.
//!
//! That the same report counts once is the recorder's business: it has a number, and a mark says how far a data plane's
//! are applied. Within a write, reports are sorted by when what they tell happened. What is left are different reports
//! of one attempt, such as its readiness and the break of its stream later on, or a fault that is told in two ways. In
//! whatever order and however often they come, they are one incident.

use proptest::prelude::*;
use tidegate_core::classify::{ClassifyContext, Consequence, classify};
use tidegate_core::ids::ModelId;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_core::settings::ProviderClass;
use tidegate_core::time::Timestamp;

use super::world::{MODEL, World, answer, status, with_header};

fn failures() -> Vec<Outcome> {
    vec![
        status(503),
        status(500),
        status(429),
        status(404),
        status(418),
        status(401),
        status(402),
        answer(403, "Request not allowed"),
        answer(500, "account has been deactivated"),
        with_header(429, "retry-after", "77"),
        Outcome::Transport(TransportFault::Connect),
        Outcome::Transport(TransportFault::Reset),
        Outcome::Stream(StreamFault::EarlyEof),
        Outcome::Stream(StreamFault::Truncated),
        Outcome::Stream(StreamFault::IdleTimeout),
    ]
}

fn classes() -> impl Strategy<Value = ProviderClass> {
    prop_oneof![Just(ProviderClass::Oauth), Just(ProviderClass::Apikey)]
}

/// A world in which something happened before: failures a minute apart.
fn world(class: ProviderClass, refusing: bool, before: &[usize]) -> (World, u64) {
    let mut world = World::named(if refusing { "claude" } else { "acme" }, class);
    world.policy.lockout.enabled = true;
    let kinds = [
        status(503),
        status(429),
        with_header(429, "retry-after", "30"),
    ];
    let mut at = 1_000_000;
    for kind in before {
        world.fail_combo(at, kinds[kind % kinds.len()].clone());
        at += 60_000;
    }
    (world, at)
}

fn is_terminal(world: &World, outcome: &Outcome, at: u64) -> bool {
    let model = ModelId::new(MODEL).unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(at));
    matches!(
        classify(outcome, &context).consequence,
        Consequence::EndConnection(_)
    )
}

proptest! {
    #[test]
    fn failures_told_of_one_attempt_are_one_incident_in_any_order(
        class in classes(),
        refusing in any::<bool>(),
        before in prop::collection::vec(any::<usize>(), 0..6),
        told in prop::collection::vec((any::<prop::sample::Index>(), 0..4_999_u64), 1..8),
    ) {
        let (mut world, at) = world(class, refusing, &before);
        let failures = failures();
        let told: Vec<_> = told
            .iter()
            .map(|(kind, after_ms)| (kind.get(&failures).clone(), at + after_ms))
            .collect();
        let (breaker, connection) = (world.state.breaker.clone(), world.c1().clone());
        let attempt = world.send("c1");
        for (outcome, at) in &told {
            world.end_combo(&attempt, *at, outcome.clone());
        }
        let now = world.c1();
        let ends = told.iter().any(|(outcome, at)| is_terminal(&world, outcome, *at));
        prop_assert_eq!(now.terminal.is_some(), ends, "a verdict counts whenever it comes");
        prop_assert!(now.cooldown.backoff_level <= connection.cooldown.backoff_level + 1);
        prop_assert!(now.refusals.count <= connection.refusals.count + 1);
        prop_assert!(world.state.breaker.failure_count <= breaker.failure_count + 1);
        prop_assert!(ends || now.cooldown.until >= connection.cooldown.until);
        for lock in &now.locks {
            let old = connection.locks.iter().find(|old| old.key == lock.key);
            prop_assert!(lock.failure_count <= old.map_or(0, |old| old.failure_count) + 1);
            prop_assert!(Some(lock.until) >= old.map(|old| old.until));
        }
    }

    /// The readiness of an attempt never undoes what was told of its later break: in either order the connection is left
    /// alone at least as long as the break alone asks of a clean one.
    #[test]
    fn a_break_outlives_the_readiness_of_its_own_attempt(
        class in classes(),
        before in prop::collection::vec(any::<usize>(), 0..6),
        kind in any::<prop::sample::Index>(),
        success_first in any::<bool>(),
        again in any::<bool>(),
    ) {
        let failure = kind.get(&failures()).clone();
        let (mut clean, _) = world(class, false, &[]);
        let (mut world, last) = world(class, false, &before);
        // All of that is over, though levels and counts stand.
        let at = last + 3_600_000;
        let alone = clean.send("c1");
        clean.end_combo(&alone, at + 1_000, failure.clone());

        let attempt = world.send("c1");
        let mut told = vec![(at, Outcome::Success), (at + 1_000, failure)];
        if !success_first {
            told.reverse();
        }
        if again {
            told.extend(told.clone());
        }
        for (at, outcome) in told {
            world.end_combo(&attempt, at, outcome);
        }
        let (now, alone) = (world.c1(), clean.c1());
        prop_assert_eq!(now.terminal.is_some(), alone.terminal.is_some());
        prop_assert!(now.terminal.is_some() || now.cooldown.until >= alone.cooldown.until);
        prop_assert_eq!(now.last_error.is_some(), alone.last_error.is_some());
        for lock in &alone.locks {
            let kept = now.locks.iter().find(|kept| kept.key == lock.key);
            prop_assert!(kept.is_some_and(|kept| kept.until >= lock.until));
        }
    }
}
