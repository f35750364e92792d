//! Requests to a combo of the strategy `auto` that rules targets out (`routing.md` §9.1, §9.4).

use crate::catalogue::{Catalogue, ModelInfo};
use crate::config::BudgetFallback;
use crate::number::Finite;

use super::*;

/// A combo of two accounts: a token costs little at `cheap/c1` and much at `dear/c2`.
fn world(settings: Value) -> World {
    let providers = ["cheap", "dear"]
        .map(|id| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1"}));
    let mut world = World::of(
        json!({
            "providers": providers,
            "connections": [{"id": "c1", "provider": "cheap"}, {"id": "c2", "provider": "dear"}],
            "combos": [
                {"name": "c", "strategy": "auto", "steps": ["dear/m", "cheap/m"], "config": {"maxRetries": 0}},
                {"name": "one", "strategy": "auto", "steps": ["dear/m"]},
            ],
            "settings": settings,
        }),
        "c",
    )
    .without_cooling();
    let rows = [("cheap", 1.0), ("dear", 100.0)].map(|(provider, price)| {
        let info = ModelInfo {
            input_price: Some(Finite::new(price).unwrap()),
            ..ModelInfo::default()
        };
        let provider = ProviderId::new(provider).unwrap();
        (provider, ModelId::new("m").unwrap(), info)
    });
    world.config.catalogue = Catalogue::new(rows);
    world.facts.estimated_tokens = Some(1_000);
    world.facts.budget = Some(Finite::new(0.01).unwrap());
    world
}

fn strict(world: &mut World) {
    world.facts.budget_fallback = Some(BudgetFallback::Strict);
}

#[test]
fn what_the_budget_affords_goes_first() {
    let journey = world(no_waits()).run(|_, _| status(429));
    assert_eq!(journey.attempts, ["cheap/c1/m", "dear/c2/m"]);
}

#[test]
fn a_strict_budget_is_not_exceeded_by_failing_over() {
    let mut world = world(no_waits());
    strict(&mut world);
    let journey = world.run(|_, _| status(429));
    assert_eq!(journey.attempts, ["cheap/c1/m"]);
    assert_eq!(journey.rejection().status, 429);
}

#[test]
fn what_is_ruled_out_is_not_waited_for() {
    let mut world = world(json!({}));
    strict(&mut world);
    world.connection_state("c1", cooling(40_000, Reason::RateLimitExceeded));
    world.connection_state("c2", cooling(2_000, Reason::RateLimitExceeded));
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.attempts, ["cheap/c1/m"]);
    let [wait_ms] = journey.cooldown_waits()[..] else {
        panic!("{journey:?}")
    };
    assert!(wait_ms >= 40_000, "{wait_ms}");
}

#[test]
fn a_combo_of_one_target_is_refused_too() {
    let mut world = world(no_waits());
    world.facts.model = "one".to_owned();
    assert_eq!(world.dispatch().connection.as_str(), "c2");
    strict(&mut world);
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (402, "budget_exceeded")
    );
}

#[test]
fn an_order_that_holds_less_than_all_targets_is_carried_along() {
    let mut world = world(no_waits());
    strict(&mut world);
    let first = world.dispatch();
    assert_eq!(first.order, [1]);
    world.so_far.order.clone_from(&first.order);
    // By now both are affordable; the order of the request stands.
    world.facts.budget = None;
    assert_eq!(world.dispatch().order, [1]);
    // What names no target is no order.
    world.so_far.order = vec![7];
    assert_eq!(world.dispatch().order.len(), 2);
}

#[test]
fn what_a_strict_budget_affords_is_waited_for() {
    // `dear` could be used at once.
    let mut patient = world(json!({}));
    strict(&mut patient);
    patient.connection_state("c1", cooling(40_000, Reason::RateLimitExceeded));
    let journey = patient.run(|_, _| Reply::Success);
    assert_eq!(journey.attempts, ["cheap/c1/m"]);
    assert_eq!(journey.cooldown_waits().len(), 1);

    let mut hurried = world(no_waits());
    strict(&mut hurried);
    hurried.connection_state("c1", cooling(40_000, Reason::RateLimitExceeded));
    let rejection = hurried.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (503, "all_targets_cooling_down")
    );
    assert_eq!(rejection.retry_after_secs, Some(40));
}

#[test]
fn what_a_strict_budget_affords_but_never_comes_back_is_not_waited_for() {
    let mut world = world(json!({}));
    strict(&mut world);
    world.connection_state("c1", cooling(40_000, Reason::RateLimitExceeded));
    world
        .without_credential
        .insert(ConnectionId::new("c1").unwrap());
    assert_eq!(world.reject().code, "budget_exceeded");
}
