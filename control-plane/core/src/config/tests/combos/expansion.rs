//! Accounts in place of targets (`routing.md` §2, 4d; decision 31).

use super::*;

/// `provider@account` of each target, the provider alone of one without an account.
fn accounts(config: &Config, combo: &str) -> Vec<String> {
    let targets = config.combo(combo).unwrap().targets.iter();
    targets
        .map(|target| match &target.connection {
            Some(account) => format!("{}@{account}", target.provider),
            None => target.provider.to_string(),
        })
        .collect()
}

#[rstest]
#[case::as_written("priority", json!({}), &["a", "b", "a@a2"])]
#[case::asked_for("priority", json!({"connectionAwareExpansion": true}), &["a@a1", "a@a2", "b", "a@a2"])]
#[case::conversations_stay("priority", json!({"sessionStickiness": true}), &["a@a1", "a@a2", "b", "a@a2"])]
#[case::needed("headroom", json!({}), &["a@a1", "a@a2", "b", "a@a2"])]
#[case::needed_whatever_is_asked("headroom", json!({"connectionAwareExpansion": false}), &["a@a1", "a@a2", "b", "a@a2"])]
#[case::not_asked_for("weighted", json!({"connectionAwareExpansion": false}), &["a", "b", "a@a2"])]
fn accounts_stand_for_a_target_where_they_are_ordered(
    #[case] strategy: &str,
    #[case] combo: Value,
    #[case] expected: &[&str],
) {
    let steps = json!(["a/m", "b/m", {"model": "a/m", "connection": "a2"}]);
    let combos = json!([{"name": "c", "strategy": strategy, "steps": steps, "config": combo}]);
    let config = build(setting(combos)).unwrap();
    assert_eq!(accounts(&config, "c"), expected);
}

#[test]
fn a_step_is_expanded_to_the_accounts_it_names() {
    let steps = json!([{"model": "a/m", "allowedConnections": ["a2"]}]);
    let combos = json!([{"name": "c", "strategy": "headroom", "steps": steps}]);
    let config = build(setting(combos)).unwrap();
    assert_eq!(accounts(&config, "c"), ["a@a2"]);
    let keys = keys(&config, "c");
    assert!(keys[0].ends_with("@a2"), "{keys:?}");
}

#[test]
fn expanded_targets_are_bounded() {
    let mut document = setting(json!([]));
    let many = (0..1_500).map(|number| json!({"id": format!("x{number}"), "provider": "b"}));
    document["connections"].as_array_mut().unwrap().extend(many);
    let combos = (0..300).map(
        |number| json!({"name": format!("n{number}"), "strategy": "headroom", "steps": ["b/m", "a/m"]}),
    );
    document["combos"] = combos.collect();
    let config = stored(document);
    // The accounts beyond are reached through the target itself, and no room is left for `a`.
    let first = accounts(&config, "n0");
    assert_eq!(first.len(), 1_000);
    assert_eq!(first[998..], ["b", "a"]);
    let total: usize = config
        .combos
        .values()
        .map(|entry| entry.targets.len())
        .sum();
    assert!(total <= 200_700, "{total}");
    assert_eq!(accounts(&config, "n99"), ["b", "a"]);
}
