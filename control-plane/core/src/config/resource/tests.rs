use rstest::rstest;
use serde_json::json;

use super::*;

/// Everything in it refers to everything else in every way there is.
fn document() -> Document {
    serde_json::from_value(json!({
        "providers": [
            {"id": "one", "protocol": "openai", "baseUrl": "https://one.example/v1"},
            {"id": "two", "protocol": "openai", "baseUrl": "https://two.example/v1"},
        ],
        "connections": [
            {"id": "a", "provider": "one"},
            {"id": "b", "provider": "one"},
            {"id": "c", "provider": "two"},
        ],
        "combos": [
            {"name": "inner", "steps": [
                "one/m",
                {"model": "one/gpt-*", "connection": "a"},
                {"model": "one/m", "allowedConnections": ["b", "a"], "id": "third"},
                "two/m",
            ]},
            {"name": "outer", "steps": [{"combo": "inner"}, "inner", "two/m"], "config": {
                "handoffModel": "one/h",
                "fusion": {"judgeModel": "one/j"},
                "auto": {"candidatePool": ["two", "one"]},
            }},
        ],
        "modelMappings": [{"pattern": "gpt-*", "combo": "outer"}, {"pattern": "x", "combo": "inner"}],
        "quotaPools": [{"group": "team", "provider": "one", "models": ["m"],
            "connections": [{"connection": "b"}, {"connection": "a"}]}],
        "models": [{"model": "two/m"}, {"model": "one/m"}],
        "keys": [
            {"id": "k", "sha256": "1".repeat(64), "allowedConnections": ["b", "a"], "allowedModels": ["inner", "one/m"]},
            {"id": "free", "sha256": "2".repeat(64)},
        ],
    }))
    .unwrap()
}

#[rstest]
#[case::a_provider(Resource::Provider("one".to_owned()), &[
    "connections[0].provider: connection a",
    "connections[1].provider: connection b",
    "combos[0].steps[0]: combo inner",
    "combos[0].steps[1]: combo inner",
    "combos[0].steps[2]: combo inner",
    "combos[1].config.handoffModel: combo outer",
    "combos[1].config.fusion.judgeModel: combo outer",
    "combos[1].config.auto.candidatePool[1]: combo outer",
    "quotaPools[0].provider: the quota pool of team",
    "models[1].model: the row of one/m",
    "keys[0].allowedModels[1]: key k",
])]
#[case::a_connection(Resource::Connection("a".to_owned()), &[
    "combos[0].steps[1].connection: combo inner",
    "combos[0].steps[2].allowedConnections[1]: combo inner",
    "quotaPools[0].connections[1]: the quota pool of team",
    "keys[0].allowedConnections[1]: key k",
])]
#[case::a_combo(Resource::Combo("inner".to_owned()), &[
    "combos[1].steps[0]: combo outer",
    "combos[1].steps[1]: combo outer",
    "modelMappings[1].combo: the mapping of x",
    "keys[0].allowedModels[0]: key k",
])]
#[case::what_nothing_refers_to(Resource::Key("k".to_owned()), &[])]
#[case::what_is_not_there(Resource::Provider("three".to_owned()), &[])]
fn everything_that_refers_is_named_with_its_place(
    #[case] resource: Resource,
    #[case] expected: &[&str],
) {
    let found = document().referrers(&resource);
    let told: Vec<String> = found
        .iter()
        .map(|it| format!("{}: {}", it.field, it.message))
        .collect();
    let expected: Vec<String> = expected
        .iter()
        .map(|it| format!("{it} refers to {resource}"))
        .collect();
    assert_eq!(told, expected);
}

#[test]
fn the_combo_of_a_name_that_begins_like_a_provider_is_no_model() {
    let mut document = document();
    document.combos[0].name = crate::ids::ComboName::new("three/m").unwrap();
    document.keys[0].allowed_models = vec!["three/m".to_owned()];
    let of = |resource| document.referrers(&resource).len();
    assert_eq!(of(Resource::Combo("three/m".to_owned())), 1);
    assert_eq!(of(Resource::Provider("three".to_owned())), 0);
}

#[test]
fn what_is_taken_out_is_gone_and_nothing_else() {
    let mut document = document();
    assert!(document.take_out(&Resource::Connection("b".to_owned())));
    assert!(!document.take_out(&Resource::Connection("b".to_owned())));
    assert_eq!(document.connections.len(), 2);
    assert!(document.take_out(&Resource::Provider("two".to_owned())));
    assert!(document.take_out(&Resource::Combo("outer".to_owned())));
    assert!(document.take_out(&Resource::Key("free".to_owned())));
    assert!(!document.take_out(&Resource::Key("inner".to_owned())));
}
