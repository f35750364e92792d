//! `routing.md` §1.4: what a name stands for.

use rstest::rstest;

use super::*;

fn document() -> Value {
    json!({
        "providers": [
            {"id": "openai", "protocol": "openai", "baseUrl": "https://a.example/v1",
             "models": ["gpt-5", "shadowed"]},
            {"id": "nvidia", "protocol": "openai", "baseUrl": "https://b.example/v1",
             "models": ["gpt-5", "meta/llama", "openai/gpt-oss"]},
        ],
        "combos": [
            {"name": "shadowed", "steps": ["nvidia/meta/llama"]},
            {"name": "team/fast", "steps": ["openai/gpt-5"]},
        ],
    })
}

#[rstest]
#[case::combo("team/fast", Some("openai/gpt-5"))]
#[case::combo_with_prefix("combo/team/fast", Some("openai/gpt-5"))]
#[case::combo_shadows_a_model("shadowed", Some("nvidia/meta/llama"))]
#[case::provider_and_model("nvidia/gpt-5", Some("nvidia/gpt-5"))]
#[case::slash_in_the_model("nvidia/meta/llama", Some("nvidia/meta/llama"))]
#[case::provider_before_a_bare_model("openai/gpt-oss", Some("openai/gpt-oss"))]
#[case::bare_model_of_the_first_provider("gpt-5", Some("openai/gpt-5"))]
#[case::bare_model_with_a_slash("meta/llama", Some("nvidia/meta/llama"))]
#[case::unknown_bare_model("gpt-6", None)]
#[case::unknown_combo("combo/nothing", None)]
#[case::unknown_provider("nobody/gpt-5", None)]
#[case::no_model("openai/", None)]
#[case::white_space("openai/gpt 5", None)]
#[case::empty("", None)]
#[case::prefix_alone("combo/", None)]
fn a_name_stands_for(#[case] name: &str, #[case] expected: Option<&str>) {
    let world = World::of(document(), name);
    let route = resolve(&world.config, name);
    let first = route.map(|route| {
        let target = &route.targets[0];
        format!("{}/{}", target.provider, target.model)
    });
    assert_eq!(first.as_deref(), expected);
}

fn key(allowed_models: &[&str], allowed_connections: &[&str]) -> Arc<ApiKey> {
    Arc::new(
        serde_json::from_value(json!({
            "id": "k",
            "sha256": "0".repeat(64),
            "allowedModels": allowed_models,
            "allowedConnections": allowed_connections,
        }))
        .unwrap(),
    )
}

#[rstest]
#[case::combo("team/fast", &["team/fast"], true)]
#[case::combo_by_prefix("combo/team/fast", &["team/fast"], true)]
#[case::model_of_an_allowed_combo("openai/gpt-5", &["team/fast"], false)]
#[case::combo_of_an_allowed_model("team/fast", &["openai/gpt-5"], false)]
#[case::model("openai/gpt-5", &["openai/gpt-5"], true)]
#[case::bare_model("gpt-5", &["openai/gpt-5"], true)]
#[case::other_model("openai/gpt-5", &["openai/gpt-4"], false)]
#[case::everything("openai/gpt-5", &[], true)]
fn a_key_may_ask_for(#[case] name: &str, #[case] allowed: &[&str], #[case] expected: bool) {
    let mut document = document();
    document["connections"] = json!([{"id": "o", "provider": "openai"}]);
    let mut world = World::of(document, name);
    world.facts.key = Some(key(allowed, &[]));
    match world.decide() {
        Decision::Dispatch(_) => assert!(expected),
        Decision::Reject(rejection) => {
            assert!(!expected);
            assert_eq!(rejection.code, "no_executable_targets");
            assert_eq!(rejection.excluded[0].reason, ExclusionReason::NotAllowed);
        }
        other @ (Decision::Wait(_)
        | Decision::TakeTurn(_)
        | Decision::ReadPin(_)
        | Decision::Plan(_)) => {
            panic!("unexpected {other:?}")
        }
    }
}

#[test]
fn a_key_uses_only_its_connections() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    world.facts.key = Some(key(&[], &["k2"]));
    assert_eq!(world.dispatch().connection.as_str(), "k2");
}
