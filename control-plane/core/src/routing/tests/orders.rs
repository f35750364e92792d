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
