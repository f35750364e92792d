//! Quota pools and the combos they make.

use super::*;

/// Accounts `a1` and `a2` of `a`, shared for two models.
fn pooled(group: &str) -> Value {
    let mut value = setting(json!([]));
    value["quotaPools"] = json!([{
        "group": group,
        "provider": "a",
        "models": ["glm-4.6", "zai/glm"],
        "connections": [{"connection": "a1", "weight": 3}, {"connection": "a2"}],
    }]);
    value
}

#[test]
fn each_model_of_a_pool_is_a_hidden_combo_over_its_accounts() {
    let config = build(pooled("Pool Principal 2")).unwrap();
    let name = "qtSd/poolprincipal2/a/zai/glm";
    let entry = config.combo_for(name).unwrap();
    assert!(entry.hidden);
    assert_eq!(entry.combo.strategy, crate::config::Strategy::QuotaShare);
    let accounts: Vec<_> = entry
        .targets
        .iter()
        .map(|it| {
            (
                it.connection.as_ref().unwrap().as_str(),
                it.weight.get(),
                it.group,
            )
        })
        .collect();
    assert_eq!(accounts, [("a1", 3.0, 0), ("a2", 1.0, 1)]);
    assert!(config.combo("qtSd/poolprincipal2/a/glm-4.6").is_some());
    assert!(config.combo("qtSd/poolprincipal2/a/glm").is_none());
}

#[test]
fn a_key_may_be_limited_to_a_pool() {
    let mut value = pooled("p");
    value["keys"] = json!([{"id": "k", "sha256": "0".repeat(64), "allowedModels": ["qtSd/p/a/glm-4.6", "auto/fast"]}]);
    assert!(build(value.clone()).is_ok());
    value["keys"][0]["allowedModels"] = json!(["qtSd/p/a/other"]);
    let violations = build(value).unwrap_err();
    assert_eq!(violations[0].field, "keys[0].allowedModels[0]");
}

#[rstest]
#[case::group("group", json!("\u{fc}-!"), "group")]
#[case::long_group("group", json!("x".repeat(129)), "group")]
#[case::provider("provider", json!("nobody"), "provider")]
#[case::no_models("models", json!([]), "models")]
#[case::models("models", json!(vec!["m"; 1_001]), "models")]
#[case::model_twice("models", json!(["m", "m"]), "models[1]")]
#[case::long_name("models", json!(["m".repeat(200)]), "models[0]")]
#[case::no_connections("connections", json!([]), "connections")]
#[case::connection_elsewhere("connections", json!([{"connection": "l1"}]), "connections[0].connection")]
#[case::connection_twice("connections", json!([{"connection": "a1"}, {"connection": "a1"}]), "connections[1].connection")]
#[case::weight("connections", json!([{"connection": "a1", "weight": 101}]), "connections[0].weight")]
fn a_bad_pool_is_refused_and_in_the_store_left_out(
    #[case] member: &str,
    #[case] value: Value,
    #[case] field: &str,
) {
    let mut document = pooled("p");
    document["quotaPools"][0][member] = value;
    document["combos"] = json!([{"name": "good", "steps": ["a/1"]}]);
    let violations = build(document.clone()).unwrap_err();
    let expected = format!("quotaPools[0].{field}");
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, [expected.as_str()], "{violations:?}");
    let config = stored(document);
    assert_eq!(config.mended[0].field, expected);
    assert!(
        !config
            .combos
            .keys()
            .any(|name| name.as_str().starts_with("qtSd/"))
    );
    assert_eq!(targets(&config, "good"), ["a/1"]);
}

#[test]
fn two_pools_must_not_make_the_same_combo() {
    let mut value = pooled("A b");
    let pool = value["quotaPools"][0].clone();
    value["quotaPools"] = json!([pool, pool]);
    value["quotaPools"][1]["group"] = json!("ab");
    let violations = build(value).unwrap_err();
    assert_eq!(violations[0].field, "quotaPools[1].models[0]");
}

#[test]
fn what_pools_come_to_is_bounded() {
    let mut value = pooled("p");
    let models: Vec<String> = (0..1_000).map(|number| format!("m{number}")).collect();
    let pools: Vec<Value> = (0..101)
        .map(|number| {
            json!({"group": format!("g{number}"), "provider": "a", "models": models,
                "connections": [{"connection": "a1"}, {"connection": "a2"}]})
        })
        .collect();
    value["quotaPools"] = json!(pools);
    let violations = build(value).unwrap_err();
    assert_eq!(violations[0].field, "quotaPools[100]");
}

/// What a reference to such a combo would cost its accounts, nobody would pay.
#[test]
fn no_other_combo_refers_to_one_of_a_pool() {
    let name = "qtSd/team/a/glm-4.6";
    for step in [json!(name), json!({"combo": name})] {
        let mut value = pooled("team");
        let combo =
            json!({"name": "c", "config": {"nestedComboMode": "execute"}, "steps": [step, "b/m"]});
        value["combos"] = json!([combo]);
        let violations = build(value).unwrap_err();
        let [violation] = &violations[..] else {
            panic!("{violations:?}")
        };
        assert!(violation.field.starts_with("combos[0].steps[0]"));
    }
}
