//! The strict reading, the stored reading, and patches.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Map, Value, json};

use super::super::member::{Bounds, Member, Reach, Shape};
use super::super::members::SECTIONS;
use super::super::*;
use crate::config::{Config, Document};

fn written(value: Value) -> WrittenSettings {
    serde_json::from_value(value).unwrap()
}

fn map(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn fields(violations: &[crate::config::Violation]) -> Vec<&str> {
    violations.iter().map(|one| one.field.as_str()).collect()
}

/// What one member of `providerBreaker.apikey` is read as from the store.
fn breaker(members: Value) -> BreakerClassSettings {
    let stored = written(json!({"providerBreaker": {"apikey": members}})).stored();
    stored.settings.provider_breaker.apikey
}

#[rstest]
#[case::number(json!(20), Some(20))]
#[case::text(json!("20"), Some(20))]
#[case::text_with_space(json!(" 20 "), Some(20))]
#[case::fraction(json!(12.9), Some(12))]
#[case::fraction_as_text(json!("12.9"), Some(12))]
#[case::toward_zero(json!(-0.9), Some(1))]
#[case::scientific(json!("1e2"), Some(100))]
#[case::above(json!(1_001), Some(1_000))]
#[case::far_above(json!(1e300), Some(1_000))]
#[case::below(json!(-5), Some(1))]
#[case::far_below(json!("-1e300"), Some(1))]
#[case::blank(json!("  "), None)]
#[case::infinite(json!("inf"), None)]
#[case::nan(json!("NaN"), None)]
#[case::words(json!("many"), None)]
#[case::boolean(json!(true), None)]
#[case::list(json!([3]), None)]
#[case::null(json!(null), None)]
fn a_stored_number(#[case] value: Value, #[case] expected: Option<u32>) {
    assert_eq!(
        breaker(json!({"failureThreshold": value})).failure_threshold,
        expected
    );
}

#[rstest]
#[case::real(json!(true), true)]
#[case::text(json!("true"), false)]
#[case::number(json!(1), false)]
#[case::null(json!(null), false)]
fn a_stored_boolean_must_be_a_real_one(#[case] value: Value, #[case] expected: bool) {
    let stored = written(json!({"modelLockout": {"enabled": value}})).stored();
    assert_eq!(stored.settings.model_lockout.enabled, expected);
}

#[test]
fn vector_sessions_41_degradation_is_refused_by_the_api_and_normalised_when_stored() {
    let both = json!({"degradationThreshold": 8, "failureThreshold": 8});
    let refused = written(json!({"providerBreaker": {"oauth": both}})).strict();
    assert_eq!(
        fields(&refused.unwrap_err()),
        ["providerBreaker.oauth.degradationThreshold"]
    );
    assert_eq!(breaker(both).degradation_threshold, Some(7));
}

#[test]
fn stored_thresholds_are_made_to_fit() {
    let fit = |members: Value| {
        let read = breaker(members);
        (read.degradation_threshold, read.failure_threshold)
    };
    assert_eq!(
        fit(json!({"degradationThreshold": 900, "failureThreshold": "3.7"})),
        (Some(2), Some(3))
    );
    // 12 is what is built in for the class.
    assert_eq!(fit(json!({"degradationThreshold": 12})), (Some(11), None));
    // Nothing fits below 1; unset is resolved to 1.
    let one = json!({"degradationThreshold": 1, "failureThreshold": 0});
    assert_eq!(fit(one), (None, Some(1)));
    let local = json!({"degradationThreshold": 2, "failureThreshold": 2});
    let stored = written(json!({"providerBreaker": {"local": local}})).stored();
    assert_eq!(
        stored.settings.provider_breaker.local.degradation_threshold,
        Some(2)
    );
}

#[test]
fn a_stored_maximum_is_raised_to_the_base() {
    let stored = written(json!({"modelLockout": {"baseCooldownMs": 60_000, "maxCooldownMs": 1}}));
    let stored = stored.stored();
    assert_eq!(stored.settings.model_lockout.max_cooldown_ms, 60_000);
    assert_eq!(
        fields(&stored.warnings),
        ["modelLockout.maxCooldownMs", "modelLockout.maxCooldownMs"]
    );
}

#[test]
fn the_guard_of_a_refresh_is_refused_by_the_api_and_cut_to_half_of_the_lease_when_stored() {
    let written = written(json!({"tokenRefresh": {"leaseMs": 9_001, "guardMs": 9_000}}));
    let refused = written.strict().unwrap_err();
    assert_eq!(fields(&refused), ["tokenRefresh.guardMs"]);
    let stored = written.stored();
    assert_eq!(stored.settings.token_refresh.guard_ms, 4_500);
    assert_eq!(fields(&stored.warnings), ["tokenRefresh.guardMs"]);
}

#[test]
fn of_a_stored_list_the_good_entries_stay() {
    let stored = written(json!({
        "modelLockout": {"errorCodes": [503, "504", 99, 600, "x", null]},
        "errorRules": {"scopeProviders": ["good", "NOT GOOD", 3]},
        "providerErrorRules": {
            "one": [{"status": 429, "match": "x", "scope": "model"}, {"status": "soon"}],
            "two": 3,
        },
    }))
    .stored();
    let settings = stored.settings;
    assert_eq!(settings.model_lockout.error_codes, [503, 504]);
    let scope: Vec<String> = settings
        .error_rules
        .scope_providers
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(scope, ["good"]);
    assert_eq!(settings.provider_error_rules.len(), 1);
    assert_eq!(
        fields(&stored.warnings),
        [
            "errorRules.scopeProviders[1]",
            "errorRules.scopeProviders[2]",
            "modelLockout.errorCodes[2]",
            "modelLockout.errorCodes[3]",
            "modelLockout.errorCodes[4]",
            "modelLockout.errorCodes[5]",
            "providerErrorRules.one[1]",
            "providerErrorRules.two",
        ]
    );
}

#[test]
fn a_long_map_with_one_bad_entry_is_read_without_it() {
    let mut zones: Map<String, Value> = (0..5_000)
        .map(|number| (format!("p{number}"), json!({"hour": number % 24})))
        .collect();
    zones.insert("bad".to_owned(), json!({"hour": 24}));
    let stored = written(json!({"dailyReset": zones})).stored();
    assert_eq!(stored.settings.daily_reset.len(), 5_000);
    assert_eq!(fields(&stored.warnings), ["dailyReset.bad"]);
}

#[test]
fn a_document_of_a_newer_release_or_of_a_hand_is_no_reason_not_to_start() {
    let document: Document = serde_json::from_value(json!({"settings": {
        "quantumBreaker": {"entangled": true},
        "providerBreaker": {"apikey": {"failureThreshold": 3, "mood": "good"}, "oauth": 7},
        "streams": "fast",
    }}))
    .unwrap();
    let overrides = Overrides::default();
    let refused = Config::build(document.clone(), 1, &overrides).unwrap_err();
    let expected = [
        "settings.providerBreaker.apikey.mood",
        "settings.providerBreaker.oauth",
        "settings.quantumBreaker",
        "settings.streams",
    ];
    assert_eq!(fields(&refused), expected);
    let config = Config::build_stored(document.clone(), 1, &overrides).unwrap();
    let apikey = &config.settings.provider_breaker.apikey;
    assert_eq!(apikey.failure_threshold, Some(3));
    assert_eq!(
        config.settings.attempt_limits(),
        Settings::default().attempt_limits()
    );
    assert_eq!(config.mended.len(), expected.len());
    // What this release does not know is not lost.
    assert_eq!(config.document.settings, document.settings);
}

#[rstest]
#[case::fraction(json!({"streams": {"idleTimeoutMs": 1.5}}), "streams.idleTimeoutMs")]
#[case::text(json!({"streams": {"idleTimeoutMs": "1"}}), "streams.idleTimeoutMs")]
#[case::negative(json!({"streams": {"idleTimeoutMs": -1}}), "streams.idleTimeoutMs")]
#[case::flag(json!({"modelLockout": {"enabled": "true"}}), "modelLockout.enabled")]
#[case::section(json!({"modelLockout": []}), "modelLockout")]
#[case::unknown_section(json!({"modelLocks": {}}), "modelLocks")]
#[case::list(json!({"modelLockout": {"errorCodes": 503}}), "modelLockout.errorCodes")]
#[case::entry(json!({"modelLockout": {"errorCodes": [503, "x"]}}), "modelLockout.errorCodes[1]")]
#[case::rule(json!({"providerErrorRules": {"one": [{"status": 1}]}}), "providerErrorRules.one[0]")]
#[case::rule_member(json!({"providerErrorRules": {"one": [{"status": 99, "match": "x", "scope": "model"}]}}), "providerErrorRules.one[0].status")]
#[case::map(json!({"dailyReset": {"one": {"hours": 3}}}), "dailyReset.one")]
fn the_strict_reading_names_what_is_wrong(#[case] value: Value, #[case] field: &str) {
    let faults = written(value).strict().unwrap_err();
    assert_eq!(fields(&faults), [field], "{faults:?}");
}

#[test]
fn null_is_unset() {
    let nulls = json!({"modelLockout": {"enabled": null}, "streams": null});
    assert_eq!(written(nulls).strict(), Ok(Settings::default()));
}

#[test]
fn a_hostile_document_makes_no_larger_answer() {
    let unknown: Map<String, Value> = (0..10_000)
        .map(|number| (format!("x{number}"), json!({})))
        .collect();
    let settings = WrittenSettings::from(unknown);
    let told = crate::config::MAX_VIOLATIONS + 1;
    assert_eq!(settings.strict().unwrap_err().len(), told);
    assert_eq!(settings.stored().warnings.len(), told);
    let large = json!({"banDetection": {"extraPhrases": ["x".repeat(MAX_SETTINGS_BYTES)]}});
    assert_eq!(fields(&written(large).strict().unwrap_err()), [""]);
}

#[rstest]
#[case::nothing(json!({}), &[""])]
#[case::unknown_section(json!({"modelLocks": {"enabled": true}}), &["modelLocks"])]
#[case::unknown_member(json!({"modelLockout": {"enabledd": null}}), &["modelLockout.enabledd"])]
#[case::two(json!({"modelLockout": {"enabled": 1, "maxBackoffSteps": 21}}), &["modelLockout.enabled", "modelLockout.maxBackoffSteps"])]
#[case::does_not_fit(json!({"providerBreaker": {"oauth": {"failureThreshold": 4}}}), &["providerBreaker.oauth.degradationThreshold"])]
fn vector_sessions_58_a_bad_patch_is_refused(#[case] patch: Value, #[case] expected: &[&str]) {
    let settings = written(json!({"providerBreaker": {"oauth": {"degradationThreshold": 6}}}));
    let faults = settings.patched(&map(patch)).unwrap_err();
    assert_eq!(fields(&faults), expected, "{faults:?}");
}

#[test]
fn vector_sessions_58_a_patch_of_one_section_leaves_the_others_unchanged() {
    let settings = written(json!({
        "newSection": {"of": "a newer release"},
        "streams": {"idleTimeoutMs": "12.9", "connectTimeoutMs": 3_000},
        "modelLockout": {"enabled": true, "maxBackoffSteps": 3, "newMember": 1},
    }));
    let patch = json!({"modelLockout": {"enabled": null, "baseCooldownMs": 9_000}});
    assert_eq!(
        settings.patched(&map(patch)).unwrap(),
        written(json!({
            "newSection": {"of": "a newer release"},
            "streams": {"idleTimeoutMs": "12.9", "connectTimeoutMs": 3_000},
            "modelLockout": {"maxBackoffSteps": 3, "newMember": 1, "baseCooldownMs": 9_000},
        }))
    );
}

#[test]
fn what_a_newer_release_left_can_be_removed_and_not_set() {
    let settings = written(json!({"modelLockout": {"newMember": 1}}));
    let set = settings.patched(&map(json!({"modelLockout": {"newMember": 2}})));
    assert_eq!(fields(&set.unwrap_err()), ["modelLockout.newMember"]);
    let removed = settings.patched(&map(json!({"modelLockout": {"newMember": null}})));
    assert_eq!(removed.unwrap(), written(json!({"modelLockout": {}})));
}

#[test]
fn a_fault_that_stood_there_before_does_not_refuse_a_patch_and_can_be_mended_by_one() {
    let settings = written(json!({"streams": {"idleTimeoutMs": "12.9"}}));
    let beside = settings.patched(&map(json!({"streams": {"connectTimeoutMs": 5}})));
    assert_eq!(
        beside.unwrap(),
        written(json!({"streams": {"idleTimeoutMs": "12.9", "connectTimeoutMs": 5}}))
    );
    let mended = settings.patched(&map(json!({"streams": {"idleTimeoutMs": 12}})));
    assert!(mended.unwrap().strict().is_ok());
}

/// Anything that JSON can say in one place.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0_u64..2_000).prop_map(Value::from),
        any::<f64>().prop_map(|number| Value::from(number.to_string())),
        "[a-z0-9. -]{0,12}".prop_map(Value::from),
        Just(json!({"status": 429, "match": "quota", "scope": "connection"})),
        Just(json!({"timeZone": "Asia/Shanghai", "hour": 5})),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|members| json!(members)),
        ]
    })
}

/// Members by their names, each with what `leaf` makes for its shape, and now and then one that is unknown.
fn members(
    known: &'static [Member],
    leaf: fn(Shape) -> BoxedStrategy<Value>,
) -> BoxedStrategy<Value> {
    let each: Vec<BoxedStrategy<(String, Option<Value>)>> = known
        .iter()
        .map(|member| {
            let value = match member.shape {
                Shape::Members(inner) => members(inner, leaf),
                other => leaf(other),
            };
            let name = member.name.to_owned();
            prop::option::of(value)
                .prop_map(move |value| (name.clone(), value))
                .boxed()
        })
        .collect();
    each.prop_map(|members| {
        let present = members
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        Value::Object(present.collect())
    })
    .boxed()
}

fn any_leaf(_: Shape) -> BoxedStrategy<Value> {
    anything().boxed()
}

fn good_leaf(shape: Shape) -> BoxedStrategy<Value> {
    let within = |bounds: Bounds| {
        let (least, most) = bounds.of(Reach::Api);
        prop_oneof![Just(least), Just(most), least..=most].prop_map(Value::from)
    };
    match shape {
        Shape::Flag => any::<bool>().prop_map(Value::from).boxed(),
        Shape::Whole(bounds) => within(bounds).boxed(),
        Shape::Numbers { each, .. } => prop::collection::vec(within(each), 0..4)
            .prop_map(Value::from)
            .boxed(),
        Shape::Share => (0.0..=1.0).prop_map(Value::from).boxed(),
        Shape::Text => "[a-z]{1,8}".prop_map(Value::from).boxed(),
        Shape::Entries | Shape::Members(_) => Just(Value::Null).boxed(),
    }
}

/// Settings of which any part may be nonsense.
fn any_settings() -> impl Strategy<Value = Value> {
    let nonsense = prop::collection::btree_map("[a-zA-Z.]{0,8}", anything(), 0..3);
    (members(SECTIONS, any_leaf), nonsense).prop_map(|(mut settings, nonsense)| {
        if let Value::Object(members) = &mut settings {
            members.extend(nonsense);
        }
        settings
    })
}

proptest! {
    #[test]
    fn whatever_is_stored_gives_settings_that_can_be_run(value in any_settings()) {
        let settings = written(value);
        let reading = settings.stored();
        prop_assert_eq!(reading.settings.violations_within(Reach::Stored), []);
        // What was mended is read as it is.
        let again = WrittenSettings::from(reading.members.clone()).stored();
        prop_assert_eq!(&again.settings, &reading.settings);
        for class in ["oauth", "apikey", "local"] {
            let provider = super::provider(Some(class), "https://x.example");
            let policy = ProviderPolicy::resolve(&reading.settings, &provider, &Overrides::default());
            prop_assert!(policy.breaker.failure_threshold >= 1);
            prop_assert!(policy.breaker.reset_timeout_ms >= 1_000);
        }
        let listed = effective(&reading, &Overrides::default());
        prop_assert!(listed.len() > 40);
    }

    #[test]
    fn what_the_strict_reading_accepts_is_read_unchanged(value in members(SECTIONS, good_leaf)) {
        let settings = written(value);
        match settings.strict() {
            Ok(strict) => {
                let reading = settings.stored();
                prop_assert_eq!(reading.settings, strict);
                prop_assert_eq!(reading.warnings, []);
                prop_assert_eq!(&reading.members, settings.members());
            }
            // Within bounds each, so it can only be that they do not fit together.
            Err(faults) => for fault in faults {
                let misfits = [
                    "must be below",
                    "must be at least",
                    "must be at most half",
                    "must be at most a third",
                    "must be `provider` or `connection`",
                ];
                prop_assert!(misfits.iter().any(|misfit| fault.message.contains(misfit)), "{:?}", fault);
            },
        }
    }

    #[test]
    fn a_patch_touches_only_what_it_names(
        value in any_settings(),
        patch in members(SECTIONS, good_leaf),
    ) {
        let settings = written(value);
        let patch = map(patch);
        if let Ok(patched) = settings.patched(&patch) {
            for (section, value) in settings.members() {
                if !patch.contains_key(section) {
                    prop_assert_eq!(patched.members().get(section), Some(value));
                }
            }
            prop_assert_eq!(patched.patched(&patch), Ok(patched));
        }
    }
}
