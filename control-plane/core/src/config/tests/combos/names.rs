//! Which combo a name means, and the built-in ones.

use super::*;

#[rstest]
#[case("best", Some("best"))]
#[case("combo/best", Some("best"))]
#[case("combo/gone", None)]
#[case("gpt-4o", Some("small"))]
#[case("gpt-4", Some("best"))]
#[case("auto", Some("auto"))]
#[case("auto/fast", Some("auto/fast"))]
#[case("auto/smart", Some("auto/smart"))]
#[case("auto/nothing", None)]
#[case("other", None)]
fn a_name_means_a_combo(#[case] name: &str, #[case] combo: Option<&str>) {
    let mut value = setting(json!([
        {"name": "best", "steps": ["a/1"]},
        {"name": "small", "steps": ["a/1"]},
    ]));
    value["modelMappings"] = json!([
        {"pattern": "gpt-4?", "combo": "small"},
        {"pattern": "gpt-*", "combo": "best"},
        {"pattern": "auto*", "combo": "best"},
    ]);
    let config = build(value).unwrap();
    let found = config
        .combo_for(name)
        .map(|entry| entry.combo.name.as_str());
    assert_eq!(found, combo);
}

#[test]
fn auto_is_over_models_that_some_connection_serves() {
    let mut value = setting(json!([]));
    value["providers"][0]["models"] = json!(["m1", "m2", "m3"]);
    let config = build(value).unwrap();
    let mut models = targets(&config, "auto/cheap");
    // Each stands for two accounts.
    assert_eq!(models.len(), 10);
    models.dedup();
    assert_eq!(
        models,
        ["a/m1", "listed/gpt-4", "a/m2", "listed/o3", "a/m3"]
    );
    let cheap = config.combo("auto/cheap").unwrap();
    assert!(cheap.hidden);
    let pack = cheap.config.auto.as_ref().unwrap().mode_pack.as_deref();
    assert_eq!(pack, Some("cost-saver"));
}

#[test]
fn auto_has_as_many_targets_as_any_combo_may() {
    let mut value = setting(json!([{"name": "auto/", "steps": []}]));
    value["combos"] = json!([]);
    let models: Vec<String> = (0..2_000).map(|number| format!("m{number}")).collect();
    value["providers"][0]["models"] = json!(models);
    let targets = targets(&build(value).unwrap(), "auto");
    assert_eq!(targets.len(), MAX_TARGETS);
    assert!(targets.contains(&"listed/o3".to_owned()));
}

#[test]
fn a_combo_called_auto_replaces_the_built_in_one() {
    let config = build(setting(json!([{"name": "auto", "steps": ["a/1"]}]))).unwrap();
    assert_eq!(targets(&config, "auto"), ["a/1"]);
    assert!(!config.combo("auto").unwrap().hidden);
}

#[test]
fn a_combo_named_like_a_model_is_told() {
    let config = build(setting(json!([
        {"name": "gpt-4o", "steps": ["a/1"]},
        {"name": "best", "steps": ["a/1"]},
        {"name": "listed/o3", "steps": ["a/1"]},
        {"name": "listed/o4", "steps": ["a/1"]},
        {"name": "a/anything", "steps": ["a/1"]},
    ])))
    .unwrap();
    let warnings = config.warnings();
    let fields: Vec<_> = warnings.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(
        fields,
        ["combos[0].name", "combos[2].name", "combos[4].name"]
    );
    assert!(
        warnings
            .iter()
            .all(|it| it.code == "COMBO_NAME_SHADOWS_MODEL")
    );
}

#[test]
fn a_member_that_has_no_effect_is_told_wherever_it_is_set() {
    let mut document = setting(json!([
        {"name": "one", "steps": ["a/1"], "config": {"handoffProviders": ["codex"]}},
        {"name": "two", "steps": ["a/1"],
         "config": {"concurrencyPerModel": 1, "handoffProviders": ["codex", "a"]}},
    ]));
    document["settings"] = json!({
        "comboDefaults": {"concurrencyPerModel": 2},
        "comboProviderOverrides": {"a": {"concurrencyPerModel": 3}},
    });
    let warnings = build(document).unwrap().warnings();
    let fields: Vec<_> = warnings.iter().map(|it| it.field.as_str()).collect();
    let expected = [
        "settings.comboDefaults.concurrencyPerModel",
        "settings.comboProviderOverrides.a.concurrencyPerModel",
        "combos[1].config.concurrencyPerModel",
        "combos[1].config.handoffProviders",
    ];
    assert_eq!(fields, expected);
    assert!(warnings.iter().all(|it| it.code == "NO_EFFECT"));
}
