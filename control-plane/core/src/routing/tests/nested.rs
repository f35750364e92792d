//! Combos that leave the order within the combos they refer to, to those (`routing.md` §1.6, `execute`).

use super::*;

/// Providers `a` to `d` with a connection each, `a` with a second one, and these combos.
fn world(combos: &Value) -> World {
    let providers: Vec<Value> = ["a", "b", "c", "d"]
        .iter()
        .map(|id| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1"}))
        .collect();
    let connections: Vec<Value> = ["a", "b", "c", "d"]
        .iter()
        .map(|id| json!({"id": format!("{id}1"), "provider": id}))
        .chain([json!({"id": "a2", "provider": "a"})])
        .collect();
    World::of(
        json!({"providers": providers, "connections": connections, "combos": combos}),
        "top",
    )
}

/// A decision with counters that go on.
fn decide_with(world: &World, counters: &Counters) -> Decision {
    world.with_input(|input| {
        decide(&Input {
            turns: &DecisionTurns::alone(counters),
            ..*input
        })
    })
}

/// The targets in the order of a decision, those with an account as `provider@account`.
fn order(world: &World, counters: &Counters) -> Vec<String> {
    let Decision::Dispatch(dispatch) = decide_with(world, counters) else {
        panic!("expected a dispatch");
    };
    let route = resolve(&world.config, "top").unwrap();
    let name = |position: &u32| {
        let target = &route.targets[usize::try_from(*position).unwrap()];
        match &target.connection {
            Some(connection) => format!("{}@{connection}", target.provider),
            None => target.provider.to_string(),
        }
    };
    dispatch.order.iter().map(name).collect()
}

fn counters(world: &World) -> Counters {
    Counters::of(&world.config, None, 7)
}

fn nested(strategy: &str, steps: &Value) -> World {
    world(&json!([
        {"name": "top", "config": {"nestedComboMode": "execute"}, "steps": steps},
        {"name": "low", "strategy": strategy, "config": {"stickyRoundRobinLimit": 1},
         "steps": ["b/m", "c/m", "d/m"]},
    ]))
}

#[test]
fn a_combo_within_orders_its_targets_and_nothing_else() {
    let world = nested("round-robin", &json!(["low", "a/m"]));
    let counters = counters(&world);
    let orders: BTreeSet<String> = (0..3).map(|_| order(&world, &counters).concat()).collect();
    assert_eq!(orders, ["bcda", "cdba", "dbca"].map(str::to_owned).into());
}

#[test]
fn only_the_combo_that_is_used_takes_a_turn() {
    let mut world = nested("round-robin", &json!(["a/m", "low"]));
    let counters = counters(&world);
    let first = order(&world, &counters);
    assert_eq!(order(&world, &counters), first);
    world.open_breaker("a", 60_000);
    let heads: BTreeSet<String> = (0..3)
        .map(|_| order(&world, &counters)[1].clone())
        .collect();
    assert_eq!(heads.len(), 3, "{heads:?}");
}

#[test]
fn flattened_its_order_is_as_written() {
    let mut world = nested("round-robin", &json!(["low", "a/m"]));
    let mut document = Document::clone(&world.config.document);
    document.combos[0].config.nested_combo_mode = None;
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    assert_eq!(order(&world, &counters(&world)), [""; 0], "as listed");
}

#[test]
fn a_combo_within_that_orders_accounts_gets_them() {
    let world = world(&json!([
        {"name": "top", "strategy": "weighted", "config": {"nestedComboMode": "execute"},
         "steps": [{"model": "b/m", "weight": 0}, {"combo": "low", "weight": 5}, "a/m"]},
        {"name": "low", "strategy": "headroom", "steps": ["c/m", "a/m"]},
    ]));
    assert_eq!(
        order(&world, &counters(&world)),
        ["c@c1", "a@a1", "a@a2", "b", "a"],
        "the step that names a itself is not expanded"
    );
}

#[test]
fn a_combo_is_left_out_of_the_draw_while_nothing_in_it_can_be_used() {
    let mut world = world(&json!([
        {"name": "top", "strategy": "weighted", "config": {"nestedComboMode": "execute"},
         "steps": [{"combo": "low", "weight": 100}, {"model": "a/m", "weight": 1}]},
        {"name": "low", "steps": ["b/m", "c/m"]},
    ]));
    world.open_breaker("b", 60_000);
    assert_eq!(order(&world, &counters(&world)), ["b", "c", "a"]);
    world.open_breaker("c", 60_000);
    assert_eq!(order(&world, &counters(&world)), ["a", "b", "c"]);
}

#[test]
fn a_failed_request_goes_on_within_its_order() {
    let mut world = world(&json!([
        {"name": "top", "config": {"nestedComboMode": "execute", "maxRetries": 0}, "steps": ["low", "a/m"]},
        {"name": "low", "strategy": "round-robin", "steps": ["b/m", "c/m", "d/m"]},
    ]));
    let mut document = Document::clone(&world.config.document);
    document.settings =
        serde_json::from_value(json!({"comboCooldownWait": {"enabled": false}})).unwrap();
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    let journey = world.run(|_, _| status(500));
    let accounts = ["b/b1/m", "c/c1/m", "d/d1/m", "a/a1/m", "a/a2/m"];
    assert_eq!(journey.attempts, accounts);
}

/// `low` may spend next to nothing; the prices of its models are not known.
fn strict(steps: &Value) -> World {
    let auto = json!({"auto": {"budgetCap": 0.000_000_001, "budgetFallback": "strict"}});
    world(&json!([
        {"name": "top", "config": {"nestedComboMode": "execute"}, "steps": steps},
        {"name": "low", "strategy": "auto", "config": auto, "steps": ["b/m", "c/m"]},
        {"name": "single", "strategy": "auto", "config": auto, "steps": ["d/m"]},
    ]))
}

#[test]
fn a_combo_that_refuses_drops_out() {
    let world = strict(&json!(["low", "a/m"]));
    assert_eq!(order(&world, &counters(&world)), ["a"]);
}

#[test]
fn when_all_refuse_the_first_refusal_is_the_answer() {
    let world = strict(&json!(["low", "single"]));
    let Decision::Reject(rejection) = decide_with(&world, &counters(&world)) else {
        panic!("expected a rejection");
    };
    assert_eq!(rejection.status, 402);
}
