use serde_json::{Value, json};

use super::*;

fn document(value: Value) -> Document {
    serde_json::from_value(value).unwrap()
}

fn whole() -> Document {
    document(json!({
        "providers": [
            {"id": "one", "protocol": "openai", "baseUrl": "https://one.example/v1"},
            {"id": "two", "protocol": "openai", "baseUrl": "https://two.example/v1"},
        ],
        "connections": [
            {"id": "a", "provider": "one", "priority": 1, "enabled": false},
            {"id": "b", "provider": "one", "priority": 2},
        ],
        "combos": [{"name": "main", "steps": ["one/m"]}],
        "modelMappings": [{"pattern": "gpt-*", "combo": "main"}],
        "models": [{"model": "one/m"}],
        "keys": [{"id": "k", "sha256": "1".repeat(64)}],
        "settings": {"modelLockout": {"enabled": true}, "providerBreaker": {"dedupProviderMs": 7}},
    }))
}

#[test]
fn what_is_named_takes_its_place_and_everything_else_stays() {
    let part = document(json!({
        "connections": [
            {"id": "c", "provider": "two"},
            {"id": "a", "provider": "two"},
        ],
    }));
    let merged = whole().merged_with(part).unwrap();
    let untouched: Vec<String> = merged.untouched.iter().map(ToString::to_string).collect();
    assert_eq!(
        untouched,
        [
            "key k",
            "connection b",
            "combo main",
            "provider one",
            "provider two"
        ]
    );
    let mut expected = whole();
    // The whole entry is replaced, so that it is switched on and has the usual priority again.
    let new = document(json!({"connections": [
        {"id": "a", "provider": "two"},
        {"id": "b", "provider": "one", "priority": 2},
        {"id": "c", "provider": "two"},
    ]}));
    expected.connections = new.connections;
    assert_eq!(merged.document, expected);
}

#[test]
fn a_whole_document_put_into_itself_changes_nothing() {
    let merged = whole().merged_with(whole()).unwrap();
    assert_eq!((merged.document, merged.untouched), (whole(), Vec::new()));
    let nothing = whole().merged_with(Document::default()).unwrap();
    assert_eq!((nothing.document, nothing.untouched.len()), (whole(), 6));
}

#[test]
fn settings_are_merged_by_member_and_lists_without_names_replaced() {
    let part = document(json!({
        "settings": {"modelLockout": {"enabled": null}, "streams": {"idleTimeoutMs": 300000}},
        "modelMappings": [{"pattern": "x", "combo": "main"}],
        "models": [{"model": "one/m", "contextWindow": 8}, {"model": "two/m"}],
    }));
    let merged = whole().merged_with(part).unwrap().document;
    let settings = Value::Object(merged.settings.members().clone());
    assert_eq!(settings["providerBreaker"]["dedupProviderMs"], 7);
    assert_eq!(settings["streams"]["idleTimeoutMs"], 300_000);
    // It is gone; a null that is stored would be another thing.
    assert_eq!(settings["modelLockout"].get("enabled"), None);
    assert_eq!(merged.model_mappings.len(), 1);
    assert_eq!(merged.model_mappings[0].pattern, "x");
    assert_eq!(merged.models.len(), 2);
    assert_eq!(merged.combos, whole().combos);
}

#[test]
fn what_is_named_twice_and_wrong_settings_are_refused_together() {
    let part = document(json!({
        "connections": [{"id": "n", "provider": "one"}, {"id": "n", "provider": "two"}],
        "settings": {"nothing": {"of": "the kind"}},
    }));
    let wrong = whole().merged_with(part).unwrap_err();
    let fields: Vec<&str> = wrong.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(fields, ["connections[n]", "settings.nothing"]);
}

#[test]
fn places_are_told_by_name_where_there_are_names() {
    let whole = whole();
    for (place, named) in [
        ("connections[1].provider", "connections[b].provider"),
        ("combos[0].steps[1]", "combos[main].steps[1]"),
        ("models[0]", "models[one/m]"),
        ("modelMappings[0].combo", "modelMappings[0].combo"),
        ("connections[2].provider", "connections[2].provider"),
        ("credentials[1]", "credentials[1]"),
        ("settings.streams", "settings.streams"),
        ("keys", "keys"),
    ] {
        assert_eq!(whole.place_by_name(place), named);
    }
}
