//! Members of combos that come from the settings, and what the catalogue knows.

use super::*;

fn with_settings(combos: Value) -> Value {
    let mut value = setting(combos);
    value["settings"] = json!({
        "comboDefaults": {"maxRetries": 4, "queueDepth": 7, "stickyWeightedLimit": 9},
        "comboProviderOverrides": {"b": {"maxRetries": 5, "queueDepth": 8}},
    });
    value
}

#[rstest]
#[case::defaults("other", [Some(4), Some(7), Some(9)])]
#[case::provider("at-b", [Some(5), Some(8), Some(9)])]
#[case::provider_of_a_reference("by-reference", [Some(5), Some(8), Some(9)])]
#[case::own("own", [Some(0), Some(8), Some(9)])]
#[case::built_in("auto/fast", [Some(4), Some(7), Some(9)])]
#[case::pool("qtSd/g/b/m", [Some(5), Some(8), Some(9)])]
fn what_names_a_member_last_counts(#[case] combo: &str, #[case] expected: [Option<u32>; 3]) {
    let mut value = with_settings(json!([
        {"name": "other", "steps": ["a/1", "b/1"]},
        {"name": "at-b", "steps": ["b/*", "a/1"], "config": {"maxRetries": null}},
        {"name": "by-reference", "steps": ["at-b"]},
        {"name": "own", "steps": ["b/1"], "config": {"maxRetries": 0}},
    ]));
    value["models"] = json!([{"model": "b/m"}]);
    value["connections"]
        .as_array_mut()
        .unwrap()
        .push(json!({"id": "b1", "provider": "b"}));
    value["quotaPools"] = json!([{"group": "g", "provider": "b", "models": ["m"],
        "connections": [{"connection": "b1"}]}]);
    let config = build(value).unwrap();
    let config = &config.combo(combo).unwrap().config;
    let found = [
        config.max_retries,
        config.queue_depth,
        config.sticky_weighted_limit,
    ];
    assert_eq!(found, expected);
}

#[test]
fn how_deep_references_are_followed_may_be_a_default() {
    let mut value = setting(json!([
        {"name": "top", "steps": ["mid"]},
        {"name": "mid", "steps": ["low"]},
        {"name": "low", "steps": ["a/1"]},
    ]));
    assert!(build(value.clone()).is_ok());
    value["settings"] = json!({"comboDefaults": {"maxComboDepth": 1}});
    let violations = build(value).unwrap_err();
    assert_eq!(violations[0].field, "combos[0].steps[0]");
}

#[test]
fn members_of_earlier_releases_have_no_effect() {
    let config =
        json!({"timeoutMs": 5, "healthCheckEnabled": {"x": [1]}, "healthCheckTimeoutMs": null});
    let built = build(setting(
        json!([{"name": "c", "steps": ["a/1"], "config": config}]),
    ))
    .unwrap();
    assert!(built.combo("c").unwrap().config.is_empty());
    let written = serde_json::to_value(&built.document.combos[0]).unwrap();
    assert_eq!(written.get("config"), None);
}

#[rstest]
#[case::default(json!({"comboDefaults": {"maxRetries": 11}}), "settings.comboDefaults.maxRetries")]
#[case::of_provider(json!({"comboProviderOverrides": {"b": {"queueDepth": 101}}}), "settings.comboProviderOverrides.b.queueDepth")]
fn defaults_have_the_bounds_of_combos(#[case] settings: Value, #[case] field: &str) {
    let mut value = setting(json!([{"name": "c", "steps": ["a/1"]}]));
    value["settings"] = settings;
    let violations = build(value.clone()).unwrap_err();
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, [field]);
    let config = stored(value);
    assert_eq!(config.mended.len(), 1, "{:?}", config.mended);
    assert!(config.combo("c").unwrap().config.is_empty());
}

fn known(config: &Config, provider: &str, model: &str) -> crate::catalogue::ModelInfo {
    let (provider, model) = (ProviderId::new(provider), ModelId::new(model));
    config
        .catalogue
        .get(&provider.unwrap(), &model.unwrap())
        .clone()
}

#[test]
fn the_table_of_the_document_wins_over_the_one_that_ships() {
    let mut value = setting(json!([{"name": "c", "steps": ["openai/gpt-4o*"]}]));
    value["providers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"id": "openai", "protocol": "openai", "baseUrl": "https://x.example/v1"}));
    value["models"] = json!([
        {"model": "openai/gpt-4o", "inputPrice": 9.5, "tools": false},
        {"model": "openai/gpt-4o-own", "contextWindow": 1_000},
    ]);
    let config = build(value).unwrap();
    let shipped = known(&config, "openai", "gpt-4o");
    assert_eq!(shipped.input_price, Finite::new(9.5).ok());
    assert_eq!(shipped.tools, Some(false));
    assert_eq!(shipped.output_price, Some(Finite::from(10)), "as shipped");
    assert_eq!(
        known(&config, "openai", "gpt-4o-own").context_window,
        Some(1_000)
    );
    assert_eq!(
        known(&config, "a", "gpt-4o"),
        crate::catalogue::ModelInfo::default()
    );
    assert_eq!(
        targets(&config, "c"),
        ["openai/gpt-4o", "openai/gpt-4o-mini", "openai/gpt-4o-own"]
    );
}

#[rstest]
#[case::no_provider(json!([{"model": "gpt-4o"}]), "models[0].model")]
#[case::nobody(json!([{"model": "nobody/gpt-4o"}]), "models[0].model")]
#[case::twice(json!([{"model": "a/1"}, {"model": "a/1"}]), "models[1].model")]
#[case::price(json!([{"model": "a/1", "inputPrice": -1}]), "models[0].inputPrice")]
#[case::dear(json!([{"model": "a/1", "outputPrice": 1_000_001}]), "models[0].outputPrice")]
#[case::window(json!([{"model": "a/1", "contextWindow": 0}]), "models[0].contextWindow")]
#[case::tools(json!([{"model": "a/1", "toolLimit": 10_001}]), "models[0].toolLimit")]
#[case::fitness(json!([{"model": "a/1", "coding": 1.5}]), "models[0].coding")]
fn a_bad_row_is_told(#[case] models: Value, #[case] field: &str) {
    let mut value = setting(json!([]));
    value["models"] = models;
    let violations = build(value).unwrap_err();
    let fields: Vec<_> = violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, [field], "{violations:?}");
}

#[rstest]
#[case(json!({"inputPrice": 1}), "model")]
#[case(json!({"model": "a/1", "price": 1}), "price")]
fn a_row_that_cannot_be_read_names_the_reason(#[case] row: Value, #[case] expected: &str) {
    let error = serde_json::from_value::<Document>(json!({"models": [row]})).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
}
