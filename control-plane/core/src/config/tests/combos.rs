//! What the steps of combos come to.

mod cascade;
mod expansion;
mod names;
mod pools;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::index::nesting::depth_limit;
use super::*;

/// Providers `a` to `d`, `p` and `listed` with models and a connection each, and these combos.
fn setting(combos: Value) -> Value {
    let provider = |id: &str, models: Value| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1", "models": models});
    let mut providers: Vec<Value> = ["a", "b", "c", "d", "p"]
        .iter()
        .map(|id| provider(id, json!([])))
        .collect();
    providers.push(provider(
        "listed",
        json!(["gpt-4o", "gpt-4", "o3", "gpt-4", "gpt-4o-mini"]),
    ));
    json!({
        "providers": providers,
        "connections": [
            {"id": "a1", "provider": "a"},
            {"id": "a2", "provider": "a"},
            {"id": "l1", "provider": "listed", "models": ["gpt-4", "o3"]},
            {"id": "l2", "provider": "listed", "enabled": false},
        ],
        "combos": combos,
    })
}

fn stored(value: Value) -> Config {
    Config::build_stored(document(value), 3, &crate::settings::Overrides::default()).unwrap()
}

fn targets(config: &Config, combo: &str) -> Vec<String> {
    let targets = config.combo(combo).unwrap().targets.iter();
    targets
        .map(|target| format!("{}/{}", target.provider, target.model))
        .collect()
}

fn keys(config: &Config, combo: &str) -> Vec<String> {
    let targets = config.combo(combo).unwrap().targets.iter();
    targets.map(|target| target.key.to_string()).collect()
}

/// `c0` to `c4`, each with a reference to the next one before a model.
fn chain() -> Value {
    let combos: Vec<Value> = (0..5)
        .map(|number| {
            let steps = json!([{"combo": format!("c{}", number + 1)}, format!("p/{number}")]);
            json!({"name": format!("c{number}"), "steps": steps, "config": {"maxComboDepth": 3}})
        })
        .chain([json!({"name": "c5", "steps": ["p/5"]})])
        .collect();
    json!(combos)
}

#[rstest]
#[case::vector_routing_n1(
    json!([
        {"name": "top", "steps": ["a/1", {"combo": "mid"}, "b/9"]},
        {"name": "mid", "steps": ["c/2", "d/3"]},
    ]),
    "top",
    &["a/1", "c/2", "d/3", "b/9"],
    &[],
)]
#[case::vector_routing_n2(
    json!([
        {"name": "x", "steps": ["a/1", {"combo": "y"}]},
        {"name": "y", "steps": ["b/2", {"combo": "x"}]},
    ]),
    "x",
    &["a/1", "b/2"],
    &["combos[0].steps[1]", "combos[1].steps[1]"],
)]
// `c4` is deeper than 3: its own model counts, its reference to `c5` does not.
#[case::vector_routing_n3(chain(), "c0", &["p/4", "p/3", "p/2", "p/1", "p/0"], &["combos[0].steps[0]", "combos[1].steps[0]"])]
fn references_are_followed(
    #[case] combos: Value,
    #[case] combo: &str,
    #[case] expected: &[&str],
    #[case] faults: &[&str],
) {
    let config = stored(setting(combos.clone()));
    assert_eq!(targets(&config, combo), expected);
    let mended: Vec<_> = config.mended.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(mended, faults);
    match build(setting(combos)) {
        Ok(_) => assert!(faults.is_empty()),
        Err(violations) => {
            let fields: Vec<_> = violations.iter().map(|it| it.field.as_str()).collect();
            assert_eq!(fields, faults);
        }
    }
}

#[rstest]
#[case::vector_routing_n4(&[(json!(0), 3), (json!("x"), 3), (json!(99), 10), (json!(null), 3), (json!(1), 1), (json!(10), 10)])]
fn depth_has_limits(#[case] cases: &[(Value, u32)]) {
    for (written, expected) in cases {
        let number = serde_json::from_value::<Option<u32>>(written.clone());
        assert_eq!(
            depth_limit(number.unwrap_or_default()),
            *expected,
            "{written}"
        );
    }
}

#[test]
fn steps_have_ids_that_tell_them_apart() {
    let config = build(setting(json!([
        {"name": "Über/Best", "steps": [
            "a/GPT 5".replace(' ', ":"),
            {"model": "a/gpt", "connection": "a1"},
            {"model": "a/gpt", "id": "mine"},
            "other",
            "listed/gpt-4*",
        ]},
        {"name": "other", "steps": ["b/x", {"combo": "third", "id": "way"}]},
        {"name": "third", "steps": ["c/y"]},
    ])))
    .unwrap();
    assert_eq!(
        keys(&config, "Über/Best"),
        [
            "ber-best-model-1-a-gpt-5",
            "ber-best-model-2-a-gpt-a1",
            "mine",
            "ber-best-ref-4-other>other-model-1-b-x",
            "ber-best-ref-4-other>way>third-model-1-c-y",
            "ber-best-model-5-listed-gpt-4/gpt-4",
            "ber-best-model-5-listed-gpt-4/gpt-4o",
            "ber-best-model-5-listed-gpt-4/gpt-4o-mini",
        ]
    );
}

#[test]
fn a_long_id_is_cut_off_behind_its_number() {
    let (combo, model) = ("c".repeat(128), format!("a/{}", "m".repeat(200)));
    let config = build(setting(json!([{"name": combo, "steps": [model, model]}]))).unwrap();
    let keys = keys(&config, &combo);
    assert_eq!(keys[0].len(), 200);
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn a_plain_text_is_a_combo_unless_it_begins_with_a_provider() {
    let config = build(setting(json!([
        {"name": "top", "steps": ["team/best", "a/best"]},
        {"name": "team/best", "steps": ["b/x"]},
        {"name": "a/best", "steps": ["c/y"]},
    ])))
    .unwrap();
    assert_eq!(targets(&config, "top"), ["b/x", "a/best"]);
}

#[test]
fn members_of_a_step_reach_its_targets() {
    let config = build(setting(json!([
        {"name": "top", "strategy": "weighted", "steps": [
            {"model": "a/m", "connection": null, "allowedConnections": ["a1"], "weight": 12.5,
             "tags": ["eu"], "label": "first", "prompt": "Be brief.",
             "fallbackOnlyOnQuotaExhaustion": true},
            {"combo": "low", "weight": 30},
        ]},
        {"name": "low", "steps": [{"model": "b/m", "weight": 99}, {"model": "c/m", "tags": ["us"]}]},
    ])))
    .unwrap();
    let [first, second, third] = config.combo("top").unwrap().targets.as_ref() else {
        panic!("not three targets");
    };
    assert!(
        first
            .allowed_connections
            .iter()
            .map(ConnectionId::as_str)
            .eq(["a1"])
    );
    assert_eq!((first.group, first.weight), (0, Finite::new(12.5).unwrap()));
    assert_eq!(first.tags, ["eu"]);
    assert!(first.fallback_only_on_quota_exhaustion);
    // All that a reference stands for shares its place and weight.
    for target in [second, third] {
        assert_eq!((target.group, target.weight), (1, Finite::from(30)));
        assert!(!target.fallback_only_on_quota_exhaustion);
    }
    assert_eq!(third.tags, ["us"]);
}

#[test]
fn tiers_order_the_steps_of_the_combo_alone() {
    let tiers = json!({"defaultTier": "good", "tiers": {
        "good": {"stepId": "third", "fallbackTier": "cheap"},
        "cheap": {"stepId": "first"},
        "any": {"stepId": "last"},
    }});
    let steps = json!([
        {"model": "a/1", "id": "first"},
        {"model": "b/2", "id": "second"},
        {"combo": "low", "id": "third"},
        {"model": "d/4", "id": "last"},
    ]);
    let low = json!({"name": "low", "steps": [{"model": "c/5", "id": "x"}, {"model": "c/6", "id": "y"}],
        "config": {"compositeTiers": {"defaultTier": "y", "tiers": {"y": {"stepId": "y"}}}}});
    let mut top = json!({"name": "top", "steps": steps, "config": {"compositeTiers": tiers}});
    let config = build(setting(json!([top, low]))).unwrap();
    assert_eq!(
        targets(&config, "top"),
        ["c/5", "c/6", "a/1", "d/4", "b/2"],
        "a flattened combo keeps its steps as written"
    );
    let groups: Vec<u32> = config
        .combo("top")
        .unwrap()
        .targets
        .iter()
        .map(|it| it.group)
        .collect();
    assert_eq!(groups, [2, 2, 0, 3, 1]);
    top["config"]["nestedComboMode"] = json!("execute");
    let config = build(setting(json!([top, low]))).unwrap();
    assert_eq!(targets(&config, "top"), ["c/6", "c/5", "a/1", "d/4", "b/2"]);
}

#[rstest]
#[case::flatten("priority", json!({}), 0)]
#[case::not_by_this_strategy("p2c", json!({"nestedComboMode": "execute"}), 0)]
#[case::execute("weighted", json!({"nestedComboMode": "execute"}), 3)]
#[case::panel("fusion", json!({}), 3)]
fn a_reference_may_be_a_unit(#[case] strategy: &str, #[case] config: Value, #[case] units: usize) {
    let config = build(setting(json!([
        {"name": "top", "strategy": strategy, "config": config,
         "steps": [{"model": "a/1", "weight": 5}, {"combo": "low", "weight": 7}, "d/9"]},
        {"name": "low", "strategy": "random", "config": {"maxRetries": 3},
         "steps": ["b/2", {"combo": "deep"}, "b/4"]},
        {"name": "deep", "steps": ["c/3", "c/4"]},
    ])))
    .unwrap();
    let entry = config.combo("top").unwrap();
    assert_eq!(
        targets(&config, "top"),
        ["a/1", "b/2", "c/3", "c/4", "b/4", "d/9"]
    );
    assert_eq!(entry.units.len(), units);
    let Some(unit) = entry.units.get(1) else {
        return;
    };
    assert_eq!((unit.start, unit.end, unit.group), (1, 5, 1));
    assert_eq!(unit.weight, Finite::from(7));
    assert_eq!(unit.key.as_ref(), "top-ref-2-low");
    let nested = unit.nested.as_ref().unwrap();
    assert_eq!(nested.name.as_str(), "low");
    assert_eq!(nested.strategy, crate::config::Strategy::Random);
    assert_eq!(nested.config.max_retries, Some(3));
    // `low` flattens `deep`, whose targets stand for the step that refers to it.
    let inner: Vec<_> = nested.units.iter().map(|it| (it.start, it.group)).collect();
    assert_eq!(inner, [(1, 0), (2, 1), (3, 1), (4, 2)]);
}

#[test]
fn a_bad_combo_in_the_store_harms_no_other() {
    let config = stored(setting(json!([
        {"name": "good", "steps": ["a/1", "bad", {"combo": "gone"}, "nobody/x", {"model": "b/2", "connection": "a1"}]},
        {"name": "bad", "steps": ["a/2"], "config": {"maxRetries": 99}},
        {"name": "good", "steps": ["b/3"]},
        {"name": "auto/mine", "steps": ["b/3"]},
    ])));
    assert_eq!(targets(&config, "good"), ["a/1"]);
    assert_eq!(targets(&config, "bad"), [""; 0]);
    let mended: Vec<_> = config.mended.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(
        mended,
        [
            "combos[0].steps[2].combo",
            "combos[0].steps[3]",
            "combos[0].steps[4].connection",
            "combos[1].config.maxRetries",
            "combos[2].name",
            "combos[3].name",
        ]
    );
}

#[rstest]
#[case::too_many_targets(&[("x", 1_000, "y"), ("y", 1, "a/1"), ("z", 2, "x")], "combos[2].steps")]
#[case::too_many_steps_without_targets(
    &[("a0", 100, "a1"), ("a1", 100, "a2"), ("a2", 100, "a3"), ("a3", 1, "listed/gpt-5*")],
    "combos[0].steps"
)]
fn what_a_combo_comes_to_is_bounded(#[case] combos: &[(&str, usize, &str)], #[case] field: &str) {
    let combos: Vec<Value> = combos
        .iter()
        .map(|(name, count, step)| json!({"name": name, "steps": vec![*step; *count]}))
        .collect();
    let config = stored(setting(json!(combos)));
    assert!(
        config.mended.iter().any(|it| it.field == field),
        "{:?}",
        config.mended
    );
    let index = field.trim_matches(|character: char| !character.is_ascii_digit());
    let combo = &config.document.combos[index.parse::<usize>().unwrap()];
    assert_eq!(targets(&config, combo.name.as_str()), [""; 0]);
    assert!(build(setting(json!(combos))).is_err());
}

#[test]
fn targets_of_all_combos_are_bounded() {
    let mut combos = vec![json!({"name": "base", "steps": vec!["a/1"; 1_000]})];
    combos.extend((0..250).map(|number| json!({"name": format!("n{number}"), "steps": ["base"]})));
    let config = stored(setting(json!(combos)));
    let total: usize = config
        .combos
        .values()
        .map(|entry| entry.targets.len())
        .sum();
    assert!(total <= 200_100, "{total}");
    assert_eq!(config.combo("n100").unwrap().targets.len(), 1_000);
    assert!(config.combo("n249").unwrap().targets.is_empty());
}

/// Any combos that refer to each other and to models in any way.
fn tangles() -> impl Strategy<Value = Value> {
    let step = prop_oneof![
        3 => prop::sample::select(vec!["a/1", "b/2", "listed/gpt-4*", "listed/*", "nobody/1", "text"])
            .prop_map(|text| json!(text)),
        3 => (0..6_u32, 0..100_u32).prop_map(|(number, weight)| json!({"combo": format!("c{number}"), "weight": weight})),
    ];
    let strategies = vec!["priority", "weighted", "fusion", "p2c", "round-robin"];
    let combo = (
        prop::collection::vec(step, 1..5),
        prop::sample::select(strategies),
        any::<bool>(),
        1..5_u32,
    );
    prop::collection::vec(combo, 1..6).prop_map(|combos| {
        let combos = combos.into_iter().enumerate();
        combos
            .map(|(number, (steps, strategy, executes, depth))| {
                let mode = if executes { "execute" } else { "flatten" };
                json!({"name": format!("c{number}"), "steps": steps, "strategy": strategy,
                    "config": {"nestedComboMode": mode, "maxComboDepth": depth}})
            })
            .collect()
    })
}

/// The targets that units cover, in order.
fn covered(units: &[Unit]) -> Vec<u32> {
    let each = units.iter().flat_map(|unit| match &unit.nested {
        None => (unit.start..unit.end).collect(),
        Some(nested) => {
            let inner = covered(&nested.units);
            assert_eq!(inner, (unit.start..unit.end).collect::<Vec<_>>());
            inner
        }
    });
    each.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn following_ends_and_gives_every_target_a_key_of_its_own(combos in tangles()) {
        let config = stored(setting(combos.clone()));
        for entry in config.combos.values().filter(|entry| !entry.hidden) {
            let keys: BTreeSet<&str> = entry.targets.iter().map(|it| it.key.as_ref()).collect();
            prop_assert_eq!(keys.len(), entry.targets.len());
            if !entry.units.is_empty() {
                let all: Vec<u32> = (0..).take(entry.targets.len()).collect();
                prop_assert_eq!(covered(&entry.units), all);
            }
        }
        // The same document always comes to the same, so positions mean the same everywhere.
        let again = stored(setting(combos));
        for (name, entry) in &config.combos {
            prop_assert_eq!(&again.combos[name].targets, &entry.targets);
            prop_assert_eq!(&again.combos[name].units, &entry.units);
        }
    }
}
