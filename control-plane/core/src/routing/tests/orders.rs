//! Requests walk the order that the strategy and the layers behind it make (`routing.md` §8.17, §10.2).
//!
//! The key `pk-123` orders the accounts `acc-1` to `acc-3` the other way round.

use rstest::rstest;

use super::*;

fn world(strategy: &str, steps: Value, config: Value) -> World {
    let connections: Vec<Value> = ["acc-1", "acc-2", "acc-3"]
        .map(|id| json!({"id": id, "provider": "p"}))
        .into();
    let mut world = World::of(
        json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": connections,
            "combos": [{"name": "c", "strategy": strategy, "steps": steps, "config": config}],
            "settings": no_waits(),
        }),
        "c",
    )
    .without_cooling();
    world.facts.cache_key = Some("pk-123".to_owned());
    world
}

fn pinned() -> Value {
    json!(["acc-1", "acc-2", "acc-3"].map(|account| json!({"model": "p/m", "connection": account})))
}

#[rstest]
#[case::affinity_reorders_a_kept_order("priority", pinned(), json!({"promptCacheAffinity": true}), "321")]
#[case::affinity_is_off_unless_switched_on("priority", pinned(), json!({}), "123")]
#[case::accounts_of_one_target_are_ordered("cache-optimized", json!(["p/m"]), json!({}), "321")]
fn accounts_are_tried_in_this_order(
    #[case] strategy: &str,
    #[case] steps: Value,
    #[case] mut config: Value,
    #[case] expected: &str,
) {
    config["maxRetries"] = json!(0);
    let journey = world(strategy, steps, config).run(|_, _| status(429));
    let tried: String = journey
        .attempts
        .iter()
        .filter_map(|attempt| attempt.strip_prefix("p/acc-")?.strip_suffix("/m"))
        .collect();
    assert_eq!(tried, expected);
}

#[test]
fn what_is_drawn_for_a_combo_says_nothing_of_what_is_drawn_for_accounts() {
    let providers: Vec<Value> = ["a", "b", "c"]
        .map(|id| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1", "accountStrategy": "random"}))
        .into();
    let connections: Vec<Value> = ["a", "b", "c"]
        .iter()
        .flat_map(|id| [0, 1].map(|number| json!({"id": format!("{id}{number}"), "provider": id})))
        .collect();
    let steps = [("a", 70), ("b", 20), ("c", 10)]
        .map(|(id, weight)| json!({"model": format!("{id}/m"), "weight": weight}));
    let combos = json!([
        {"name": "c", "strategy": "weighted", "steps": steps},
        {"name": "top", "strategy": "random", "steps": [{"combo": "low"}, {"combo": "high"}],
         "config": {"nestedComboMode": "execute"}},
        {"name": "low", "strategy": "random", "steps": ["a/m", "b/m"]},
        {"name": "high", "strategy": "random", "steps": ["c/m", "c/n"]},
    ]);
    let mut world = World::of(
        json!({"providers": providers, "connections": connections, "combos": combos}),
        "c",
    );
    let mut drawn = |model: &str, name: &dyn Fn(&Dispatch) -> String| {
        model.clone_into(&mut world.facts.model);
        let mut drawn: BTreeMap<String, u32> = BTreeMap::new();
        for random in 0..4_000 {
            world.random = random;
            *drawn.entry(name(&world.dispatch())).or_default() += 1;
        }
        drawn
    };
    let by_weight = drawn("c", &|dispatch| dispatch.connection.to_string());
    for (account, expected) in [("a", 1_400), ("b", 400), ("c", 200)]
        .into_iter()
        .flat_map(|(id, count)| [0, 1].map(|number| (format!("{id}{number}"), count)))
    {
        let times = by_weight[&account];
        assert!(times.abs_diff(expected) < 100, "{account}: {times}");
    }
    let nested = drawn("top", &|dispatch| {
        format!("{}/{}", dispatch.connection, dispatch.model)
    });
    for (way, times) in &nested {
        // Two combos, two targets in each and two accounts of each.
        assert!(times.abs_diff(500) < 120, "{way}: {times}");
    }
    assert_eq!(nested.len(), 8);
}
