//! The configuration changes while a request is under way.

use rstest::rstest;

use super::*;
use crate::catalogue::{Catalogue, ModelInfo};
use crate::config::BudgetFallback;

/// The combo `c` over these targets, each `provider/account/model` or `provider/model`, as this version of the document.
fn configured(world: &mut World, steps: &[&str], combo: &Value, version: u64) {
    let fresh = World::combo(
        &["p1/k1", "p1/k2", "p2/k3", "p3/k4"],
        steps,
        combo.clone(),
        no_waits(),
    )
    .without_cooling();
    let document = Document::clone(&fresh.config.document);
    world.config = Config::build(document, version, &Overrides::default()).unwrap();
    world.counters = Counters::of(&world.config, Some(&world.counters), 7);
}

fn world(steps: &[&str], combo: &Value) -> World {
    let mut world = World::combo(&["p1/k1"], &["p1/m"], json!({}), no_waits());
    configured(&mut world, steps, combo, 1);
    world
}

/// Sends the next attempt, which fails. Where it went.
fn failed(world: &mut World) -> String {
    let dispatch = world.dispatch();
    world.fail(&dispatch, &upstream_error(500, "", None));
    format!(
        "{}/{}/{}",
        dispatch.provider, dispatch.connection, dispatch.model
    )
}

/// Sends the rest of its attempts, which all fail.
fn rest(world: &mut World) -> Vec<String> {
    world.run(|_, _| status(500)).attempts
}

fn no_retries() -> Value {
    json!({"maxRetries": 0})
}

#[rstest]
#[case::in_another_order(&["p3/k4/m", "p2/k3/m", "p1/k1/m"], &["p3/k4/m", "p2/k3/m"])]
#[case::one_more_in_front(&["p1/k2/m", "p1/k1/m", "p2/k3/m"], &["p1/k2/m", "p2/k3/m"])]
#[case::what_was_tried_is_gone(&["p3/k4/m", "p2/k3/m"], &["p3/k4/m", "p2/k3/m"])]
#[case::another_model_is_another_target(&["p1/k1/n", "p2/k3/m"], &["p1/k1/n", "p2/k3/m"])]
#[case::only_what_was_tried_is_left(&["p1/k1/m"], &[])]
fn what_was_tried_is_not_tried_again_and_everything_else_is(
    #[case] steps: &[&str],
    #[case] expected: &[&str],
) {
    let mut world = world(&["p1/k1/m", "p2/k3/m", "p3/k4/m"], &no_retries());
    assert_eq!(failed(&mut world), "p1/k1/m");
    configured(&mut world, steps, &no_retries(), 2);
    assert_eq!(rest(&mut world), expected);
}

#[test]
fn it_may_change_again_and_again() {
    let mut world = world(&["p1/k1/m", "p2/k3/m", "p3/k4/m"], &no_retries());
    assert_eq!(failed(&mut world), "p1/k1/m");
    configured(
        &mut world,
        &["p3/k4/m", "p1/k1/m", "p2/k3/m"],
        &no_retries(),
        2,
    );
    assert_eq!(failed(&mut world), "p3/k4/m");
    // Within one version positions count, those of the first attempt are found anew.
    assert_eq!(world.so_far.attempts[0].target, UNKNOWN_TARGET);
    assert_eq!(world.so_far.attempts[1].target, 0);
    let undecided = world.dispatch();
    assert_eq!(undecided.connection.as_str(), "k3");
    configured(
        &mut world,
        &["p2/k3/m", "p1/k2/m", "p1/k1/m", "p3/k4/m"],
        &no_retries(),
        3,
    );
    assert_eq!(rest(&mut world), ["p2/k3/m", "p1/k2/m"]);
}

#[test]
fn accounts_of_a_target_that_stands_for_all_go_on() {
    let mut world = world(&["p1/m", "p2/m"], &no_retries());
    assert_eq!(failed(&mut world), "p1/k1/m");
    configured(&mut world, &["p3/m", "p1/m"], &no_retries(), 2);
    // The account loop of p1 is not over; then p3, which nobody tried.
    assert_eq!(rest(&mut world), ["p1/k2/m", "p3/k4/m"]);
}

#[test]
fn a_data_plane_that_tells_no_version_is_believed() {
    let mut world = world(&["p1/k1/m", "p2/k3/m"], &no_retries());
    assert_eq!(failed(&mut world), "p1/k1/m");
    world.so_far.order_version = 0;
    configured(&mut world, &["p2/k3/m", "p1/k1/m"], &no_retries(), 2);
    assert_eq!(rest(&mut world), ["p1/k1/m"]);
}

#[test]
fn what_the_strategy_rules_out_is_not_revived() {
    let auto = |world: &mut World, steps: &[&str], version| {
        configured(world, steps, &no_retries(), version);
        let name = ComboName::new("c").unwrap();
        world.config.combos.get_mut(&name).unwrap().combo.strategy = crate::config::Strategy::Auto;
        let rows = [("p1", 1.0), ("p2", 100.0), ("p3", 1.0)].map(|(provider, price)| {
            let info = ModelInfo {
                input_price: Some(Finite::new(price).unwrap()),
                ..ModelInfo::default()
            };
            let provider = ProviderId::new(provider).unwrap();
            (provider, ModelId::new("m").unwrap(), info)
        });
        world.config.catalogue = Catalogue::new(rows);
    };
    let mut world = world(&["p1/k1/m"], &json!({}));
    world.facts.estimated_tokens = Some(1_000);
    world.facts.budget = Some(Finite::new(0.01).unwrap());
    world.facts.budget_fallback = Some(BudgetFallback::Strict);
    auto(&mut world, &["p2/k3/m", "p1/k1/m"], 1);
    assert_eq!(failed(&mut world), "p1/k1/m");
    auto(&mut world, &["p2/k3/m", "p3/k4/m", "p1/k1/m"], 2);
    assert_eq!(rest(&mut world), ["p3/k4/m"]);
}

#[test]
fn nobody_takes_a_turn_or_pays_twice() {
    let steps = ["p1/k1/m", "p2/k3/m", "p3/k4/m"];
    let mut world = world(&steps, &no_retries());
    let shared = |world: &mut World| {
        let name = ComboName::new("c").unwrap();
        let strategy = crate::config::Strategy::QuotaShare;
        world.config.combos.get_mut(&name).unwrap().combo.strategy = strategy;
        world.counters = Counters::of(&world.config, Some(&world.counters), 7);
    };
    shared(&mut world);
    let first = world.dispatch();
    assert!(first.charge.is_some());
    world.fail(&first, &upstream_error(500, "", None));
    configured(
        &mut world,
        &["p3/k4/m", "p1/k1/m", "p2/k3/m"],
        &no_retries(),
        2,
    );
    shared(&mut world);
    let second = world.dispatch();
    assert_eq!(second.charge, None);
    assert_ne!(second.connection, first.connection);
    assert_eq!(second.order.len(), 3);
}

#[test]
fn the_order_of_the_first_dispatch_stands_within_a_version() {
    let mut so_far = AttemptsSoFar::default();
    so_far.follow(vec![1, 0], 5);
    so_far.follow(vec![0, 1], 5);
    assert_eq!(
        (so_far.order.clone(), so_far.order_version),
        (vec![1, 0], 5)
    );
    so_far.follow(vec![0, 1], 6);
    assert_eq!(
        (so_far.order.clone(), so_far.order_version),
        (vec![0, 1], 6)
    );
    // As listed, from now on.
    so_far.follow(Vec::new(), 7);
    assert_eq!((so_far.order.clone(), so_far.order_version), (vec![], 7));
}
