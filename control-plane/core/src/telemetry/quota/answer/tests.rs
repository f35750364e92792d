use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::super::MAX_RESET_MS;
use super::*;

/// 2025-08-29T15:00:00Z
const NOW: Timestamp = Timestamp(1_756_479_600_000);

fn endpoint(members: Value) -> QuotaEndpoint {
    let mut endpoint = json!({"url": "https://example.test/usage"});
    let all = endpoint.as_object_mut().unwrap();
    all.extend(members.as_object().unwrap().clone());
    serde_json::from_value(endpoint).unwrap()
}

fn told(members: Value, answer: &Value) -> Result<QuotaSnapshot, NotUnderstood> {
    read(&endpoint(members), answer.to_string().as_bytes(), NOW)
}

fn of_session(place: Value, answer: &Value) -> Result<Option<QuotaWindow>, NotUnderstood> {
    let members = json!({"windows": {"session": place}, "limitReached": "/full"});
    let mut answer = answer.clone();
    answer["full"] = json!(false);
    told(members, &answer).map(|quota| quota.session)
}

#[rstest]
#[case::share(json!({"usedShare": "/a"}), 0.25)]
#[case::percent(json!({"usedPercent": "/b"}), 0.06)]
#[case::percent_left(json!({"remainingPercent": "/b"}), 0.94)]
#[case::of_a_limit(json!({"used": "/c/0", "limit": "/c/1"}), 0.75)]
#[case::left_of_a_limit(json!({"remaining": "/c/0", "limit": "/c/1"}), 0.25)]
#[case::text(json!({"used": "/d/x~1y", "limit": "/c/1"}), 0.125)]
#[case::more_than_all(json!({"usedPercent": "/e"}), 1.0)]
#[case::less_than_nothing(json!({"remaining": "/e", "limit": "/c/1"}), 0.0)]
fn what_is_used_is_said_in_several_ways(#[case] place: Value, #[case] used: f64) {
    let answer = json!({"a": 0.25, "b": 6.0, "c": [30, 40], "d": {"x/y": " 5 "}, "e": 106});
    let window = of_session(place, &answer).unwrap().unwrap();
    assert!((window.used.get() - used).abs() < 1e-9, "{window:?}");
    assert_eq!(window.resets_at, None);
}

#[rstest]
#[case::absent(json!({"usedShare": "/gone"}))]
#[case::null(json!({"usedShare": "/null"}))]
#[case::below_null(json!({"usedShare": "/null/x"}))]
#[case::limit_absent(json!({"used": "/a", "limit": "/gone"}))]
#[case::limit_of_nothing(json!({"used": "/a", "limit": "/zero"}))]
#[case::unlimited(json!({"remaining": "/a", "limit": "/minus"}))]
fn what_is_not_there_is_not_known(#[case] place: Value) {
    let answer = json!({"a": 1, "null": null, "zero": 0, "minus": -1});
    assert_eq!(of_session(place, &answer), Ok(None));
}

#[rstest]
#[case::moment("rfc3339", json!("2025-08-29T16:00:00Z"), Some(3_600_000))]
#[case::moment_with_zone("rfc3339", json!("2025-08-29T18:00:00.500+02:00"), Some(3_600_500))]
#[case::seconds("epoch-seconds", json!(1_756_479_660), Some(60_000))]
#[case::seconds_with_a_fraction("epoch-seconds", json!(1_756_479_600.5), Some(500))]
#[case::seconds_as_text("epoch-seconds", json!("1756479660"), Some(60_000))]
#[case::milliseconds("epoch-milliseconds", json!(1_756_479_600_001_u64), Some(1))]
#[case::from_now("seconds-from-now", json!(90), Some(90_000))]
#[case::a_clock_that_is_behind("epoch-seconds", json!(1_756_479_541), Some(-59_000))]
#[case::past("epoch-seconds", json!(1_756_479_540), None)]
#[case::zero("epoch-seconds", json!(0), None)]
#[case::zero_from_now("seconds-from-now", json!(0), None)]
#[case::less_than_nothing("seconds-from-now", json!(-5), None)]
#[case::before_the_epoch("rfc3339", json!("1969-01-01T00:00:00Z"), None)]
#[case::too_far("seconds-from-now", json!(31 * 86_400 + 1), None)]
#[case::absurd("epoch-seconds", json!(1e300), None)]
#[case::never("rfc3339", json!(null), None)]
fn a_window_begins_anew(
    #[case] format: &str,
    #[case] value: Value,
    #[case] resets_in_ms: Option<i64>,
) {
    let place = json!({"usedShare": "/used", "resetsAt": "/at"});
    let members = json!({"resetFormat": format, "windows": {"weekly": place}});
    let quota = told(members, &json!({"used": 0.5, "at": value})).unwrap();
    let expected = resets_in_ms.map(|ms| Timestamp(NOW.0.checked_add_signed(ms).unwrap()));
    assert_eq!(quota.weekly.unwrap().resets_at, expected);
}

#[test]
fn all_windows_and_the_limit_are_found() {
    let members = json!({
        "windows": {
            "session": {"usedPercent": "/five_hour/utilization", "resetsAt": "/five_hour/resets_at"},
            "weekly": {"usedPercent": "/seven_day/utilization"},
            "monthly": {"remaining": "/left", "limit": "/all"},
            "weeklyByModel": {
                "opus": {"usedPercent": "/seven_day_opus/utilization"},
                "sonnet": {"usedPercent": "/seven_day_sonnet/utilization"},
            },
        },
        "limitReached": "/rate_limit/limit_reached",
    });
    let answer = json!({
        "five_hour": {"utilization": 6.0, "resets_at": "2025-08-29T15:59:59.943648+00:00"},
        "seven_day": {"utilization": 35.0},
        "seven_day_opus": {"utilization": 100},
        "seven_day_sonnet": null,
        "left": 10, "all": 40,
        "rate_limit": {"limit_reached": true},
    });
    let quota = told(members, &answer).unwrap();
    let window = |used, resets_in_ms: Option<u64>| QuotaWindow {
        used: Finite::new(used).unwrap(),
        resets_at: resets_in_ms.map(|ms| NOW.plus_ms(ms)),
        observed_at: None,
    };
    let expected = QuotaSnapshot {
        session: Some(window(0.06, Some(3_599_943))),
        weekly: Some(window(0.35, None)),
        monthly: Some(window(0.75, None)),
        weekly_by_model: vec![(crate::ids::ModelId::new("opus").unwrap(), window(1.0, None))],
        limit_reached: true,
        observed_at: NOW,
        ..QuotaSnapshot::default()
    };
    assert_eq!(quota, expected);
}

#[rstest]
#[case::no_json("<html>", NotUnderstood::NoJson)]
#[case::half(r#"{"a":"#, NotUnderstood::NoJson)]
#[case::nested_too_deep(&"[".repeat(100_000), NotUnderstood::NoJson)]
#[case::nothing("{}", NotUnderstood::Nothing)]
#[case::another_shape("[1]", NotUnderstood::Nothing)]
#[case::no_number(r#"{"a": "much"}"#, NotUnderstood::NoNumber("session"))]
#[case::not_finite(r#"{"a": "inf"}"#, NotUnderstood::NoNumber("session"))]
#[case::object(r#"{"a": {}}"#, NotUnderstood::NoNumber("session"))]
#[case::no_moment(r#"{"a": 1, "at": "soon"}"#, NotUnderstood::NoMoment("session"))]
#[case::epoch(r#"{"a": 1, "at": 1756479660}"#, NotUnderstood::NoMoment("session"))]
#[case::no_flag(r#"{"a": 1, "full": "yes"}"#, NotUnderstood::NoFlag)]
fn what_is_not_as_configured_is_not_understood(#[case] body: &str, #[case] why: NotUnderstood) {
    let endpoint = endpoint(json!({
        "windows": {"session": {"usedShare": "/a", "resetsAt": "/at"}},
        "limitReached": "/full",
    }));
    assert_eq!(read(&endpoint, body.as_bytes(), NOW), Err(why));
}

#[test]
fn a_number_that_should_be_a_moment_is_none() {
    let place = json!({"usedShare": "/a", "resetsAt": "/at"});
    let members = json!({"windows": {"monthly": place}, "resetFormat": "epoch-seconds"});
    let answer = json!({"a": 1, "at": "2025-08-29T16:00:00Z"});
    assert_eq!(
        told(members, &answer),
        Err(NotUnderstood::NoMoment("monthly"))
    );
}

proptest! {
    #[test]
    fn any_answer_gives_shares_between_0_and_1_and_ends_within_a_month(
        part in any::<f64>(), limit in any::<f64>(), at in any::<f64>(),
        format in prop::sample::select(vec!["epoch-seconds", "epoch-milliseconds", "seconds-from-now"]),
    ) {
        let place = json!({"remaining": "/part", "limit": "/limit", "resetsAt": "/at"});
        let members = json!({"windows": {"session": place}, "resetFormat": format});
        let answer = json!({"part": part, "limit": limit, "at": at});
        if let Ok(quota) = told(members, &answer) {
            let window = quota.session.unwrap();
            prop_assert!((0.0..=1.0).contains(&window.used.get()));
            let resets_in = window.resets_at.map_or(0, |at| at.remaining_ms(NOW));
            prop_assert!(resets_in <= MAX_RESET_MS);
        }
    }
}
