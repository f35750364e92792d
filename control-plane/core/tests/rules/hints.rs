//! How long an upstream asks to wait (`failure-state.md` §3.5, decisions 4 and 13).

use rstest::rstest;
use tidegate_core::classify::{ClassifyContext, HintSource, RetryHint, classify};
use tidegate_core::ids::ModelId;
use tidegate_core::outcome::{Outcome, UpstreamError};
use tidegate_core::settings::ProviderClass;
use tidegate_core::time::Timestamp;

use super::world::World;

/// Sun, 06 Nov 1994 08:49:37 GMT.
const NOW: u64 = 784_111_777_000;
const MONTH_MS: u64 = 30 * 86_400_000;

fn hint(headers: &[(&str, &str)]) -> Option<RetryHint> {
    read(headers, "")
}

/// The hint of a body, in ms and where it was found.
fn of_body(body: &str) -> Option<(u64, HintSource)> {
    read(&[], body).map(|hint| (hint.wait_ms, hint.source))
}

fn read(headers: &[(&str, &str)], body: &str) -> Option<RetryHint> {
    let world = World::new(ProviderClass::Apikey);
    let model = ModelId::new("m").unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(NOW));
    let outcome = Outcome::Response(UpstreamError {
        status: 429,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        body: body.to_owned(),
        ..UpstreamError::default()
    });
    classify(&outcome, &context).hint
}

#[rstest]
#[case::seconds("retry-after", "120", Some(120_000))]
#[case::fraction("retry-after", "1.5", Some(1_500))]
#[case::unit("retry-after", "60s", Some(60_000))]
#[case::small_unit("retry-after", "1500ms", Some(1_500))]
#[case::large_unit("retry-after", "1h", Some(3_600_000))]
#[case::spaces("retry-after", " 7 ", Some(7_000))]
#[case::date("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT", Some(60_000))]
#[case::past_date("retry-after", "Sun, 06 Nov 1994 08:49:36 GMT", None)]
#[case::zero("retry-after", "0", None)]
#[case::negative("retry-after", "-5", None)]
#[case::empty("retry-after", "", None)]
#[case::words("retry-after", "soon", None)]
#[case::compound("retry-after", "1h2m3s", Some(3_723_000))]
#[case::upper_case_unit("retry-after", "60S", Some(60_000))]
#[case::unknown_unit("retry-after", "5w", None)]
#[case::unit_without_number("retry-after", "s", None)]
#[case::exponent("retry-after", "1e3", None)]
#[case::words_after("retry-after", "5s or so", None)]
#[case::two_points("retry-after", "1.2.3", None)]
#[case::bare_point("retry-after", ".", None)]
#[case::not_ascii("retry-after", "５", None)]
#[case::too_long("retry-after", "99999999999999999999999999999999", Some(MONTH_MS))]
#[case::month("retry-after", "2592001", Some(MONTH_MS))]
#[case::milliseconds("retry-after-ms", "2500", Some(2_500))]
#[case::epoch_seconds("x-ratelimit-reset", "784111822", Some(45_000))]
#[case::epoch_milliseconds("x-ratelimit-reset", "20000000000", None)]
#[case::relative_seconds("x-ratelimit-reset", "30", None)]
#[case::huge_epoch("x-ratelimit-reset", "18446744073709551616", Some(MONTH_MS))]
#[case::window("x-ratelimit-reset-requests", "30", Some(30_000))]
#[case::window_as_length("x-ratelimit-reset-tokens", "6m0s", Some(360_000))]
#[case::window_in_ms("x-ratelimit-reset-tokens", "12ms", Some(12))]
#[case::window_as_epoch("x-ratelimit-reset-tokens", "784111822", Some(45_000))]
#[case::window_as_moment(
    "anthropic-ratelimit-requests-reset",
    "1994-11-06T08:50:37Z",
    Some(60_000)
)]
#[case::past_window("anthropic-ratelimit-requests-reset", "1994-11-06T08:49:37Z", None)]
#[case::another_header("x-ratelimit-limit-requests", "30", None)]
#[case::another_name("x-retry-after", "30", None)]
fn a_header_is_read(#[case] name: &str, #[case] value: &str, #[case] wait_ms: Option<u64>) {
    let expected = wait_ms.map(|wait_ms| RetryHint {
        wait_ms,
        source: HintSource::Header,
    });
    assert_eq!(hint(&[(name, value)]), expected);
}

#[rstest]
#[case::openai("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "6m0s")]
#[case::anthropic(
    "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-input-tokens-reset",
    "1994-11-06T08:55:37Z"
)]
fn only_a_window_that_is_used_up_is_waited_for(
    #[case] remaining: &str,
    #[case] reset: &str,
    #[case] value: &str,
) {
    let wait_ms = |left: &str| hint(&[(reset, value), (remaining, left)]).map(|hint| hint.wait_ms);
    assert_eq!(wait_ms("0"), Some(360_000));
    assert_eq!(wait_ms("7"), None);
    let other = hint(&[(reset, value), ("x-ratelimit-remaining-images", "7")]);
    assert!(
        other.is_some(),
        "what is left of another window is no matter"
    );
}

#[test]
fn of_two_headers_the_longer_counts() {
    let both = hint(&[("retry-after", "10"), ("x-ratelimit-reset", "784111822")]);
    assert_eq!(both.map(|hint| hint.wait_ms), Some(45_000));
    let twice = hint(&[("retry-after", "10"), ("retry-after", "20")]);
    assert_eq!(twice.map(|hint| hint.wait_ms), Some(20_000));
    let one_is_nonsense = hint(&[("retry-after", "soon"), ("retry-after-ms", "20")]);
    assert_eq!(one_is_nonsense.map(|hint| hint.wait_ms), Some(20));
}

const DAY_MS: u64 = 86_400_000;

/// `error.details` with one detail of this type and delay.
fn retry_info(kind: &str, delay: &str) -> String {
    format!(
        r#"{{"error":{{"code":429,"details":[{{"@type":"x/QuotaFailure"}},
        {{"@type":"{kind}","retryDelay":{delay}}}]}}}}"#
    )
}

#[rstest]
#[case::seconds(r#""26s""#, Some(26_000))]
#[case::fraction(r#""26.66s""#, Some(26_660))]
#[case::milliseconds(r#""1500ms""#, Some(1_500))]
#[case::minutes(r#""2m""#, Some(120_000))]
#[case::hour(r#""1h""#, Some(3_600_000))]
#[case::bare("7", Some(7_000))]
#[case::bare_text(r#""7""#, Some(7_000))]
#[case::cut(r#""48h""#, Some(DAY_MS))]
#[case::huge("1e30", Some(DAY_MS))]
#[case::zero(r#""0s""#, None)]
#[case::negative(r#""-5s""#, None)]
#[case::negative_number("-5", None)]
#[case::nonsense(r#""soon""#, None)]
#[case::long(&format!(r#""{}s""#, "1".repeat(100)), None)]
fn a_retry_info_is_read(#[case] delay: &str, #[case] wait_ms: Option<u64>) {
    let body = retry_info("type.googleapis.com/google.rpc.RetryInfo", delay);
    let expected = wait_ms.map(|wait_ms| (wait_ms, HintSource::GoogleRetryInfo));
    assert_eq!(of_body(&body), expected);
    assert_eq!(of_body(&format!("[{body}]")), expected, "in a list");
    assert_eq!(of_body(&retry_info("x/Help", delay)), None);
}

#[rstest]
#[case::ms(r#"{"error":{"retry_after_ms":1500}}"#, Some(1_500))]
#[case::ms_on_top(r#"{"error":"x","retryAfterMs":1500.9}"#, Some(1_500))]
#[case::ms_zero(r#"{"retry_after_ms":0}"#, None)]
#[case::ms_negative(r#"{"retry_after_ms":-1}"#, None)]
#[case::ms_huge(r#"{"retry_after_ms":99999999999999999999}"#, Some(MONTH_MS))]
#[case::not_a_number(r#"{"retry_after_ms":[1]}"#, None)]
#[case::iso(r#"{"error":{"retryAfter":"1994-11-06T08:50:37Z"}}"#, Some(60_000))]
#[case::iso_on_top(r#"{"retryAfter":"1994-11-06T09:50:37.500+01:00"}"#, Some(60_500))]
#[case::iso_past(r#"{"retryAfter":"1994-11-06T08:49:37Z"}"#, None)]
#[case::iso_far(r#"{"retryAfter":"2094-11-06T08:49:37Z"}"#, Some(MONTH_MS))]
#[case::iso_impossible(r#"{"retryAfter":"1994-13-46T28:49:37Z"}"#, None)]
#[case::seconds(r#"{"error":{"retry_after":2}}"#, Some(2_000))]
#[case::seconds_fraction(r#"{"error":{"retry_after":0.25}}"#, Some(250))]
#[case::seconds_text(r#"{"error":{"retry_after":"2.5"}}"#, Some(2_500))]
#[case::reset_seconds(r#"{"error":{"reset_seconds":90}}"#, Some(90_000))]
#[case::reset_at(r#"{"error":{"reset_at":"1994-11-06 08:50:37"}}"#, Some(60_000))]
#[case::reset_at_epoch(r#"{"error":{"reset_at":784111837}}"#, Some(60_000))]
#[case::resets_in(r#"{"error":{"resets_in_seconds":3600}}"#, Some(3_600_000))]
#[case::nothing(r#"{"error":{"message":"no"}}"#, None)]
#[case::empty_list("[]", None)]
#[case::member_of_a_number("7", None)]
fn a_structured_error_is_read(#[case] body: &str, #[case] wait_ms: Option<u64>) {
    let expected = wait_ms.map(|wait_ms| (wait_ms, HintSource::Body));
    assert_eq!(of_body(body), expected);
}

#[rstest]
#[case::google("Please retry in 26.66s.", Some(26_660))]
#[case::google_cut("Please retry in 48h", Some(DAY_MS))]
#[case::again_short("Please try again in 12s.", Some(12_000))]
#[case::again_compact("try again in 6m0s. Visit us", Some(360_000))]
#[case::again_long("Try again in 1h2m3s", Some(3_723_000))]
#[case::again_words("try again in 20 seconds", Some(20_000))]
#[case::again_two_words("try again in 1 hour and 5 minutes", Some(3_900_000))]
#[case::again_unit_unknown("try again in 5 months", None)]
#[case::again_bare("try again in 5 business days", None)]
#[case::again_zero("try again in 0s", None)]
#[case::again_negative("try again in -5s", None)]
#[case::retry_after("retry after 20 seconds", Some(20_000))]
#[case::retry_after_moment("Retry after 1994-11-06T08:50:37Z", Some(60_000))]
#[case::again_at("try again at 1994-11-06 08:50:37", Some(60_000))]
#[case::again_at_end("try again at 1994-11-06 08:50:37.", Some(60_000))]
#[case::wait_until("wait until 1994-11-06T08:50:37.000+0000 please", Some(60_000))]
#[case::resets_at_zone("resets at 1994-11-06 16:50:37 +08:00", Some(60_000))]
#[case::available("available at 1994-11-06T08:50Z", Some(23_000))]
#[case::bad_zone("available at 1994-11-06T08:50:37+1", None)]
#[case::past("resets at 1994-11-06 08:49:37", None)]
#[case::reset_after("quota will reset after 1h2m3s.", Some(3_723_000))]
#[case::reset_in("It resets in 164h27m24s", Some(592_044_000))]
#[case::days("reset in 13 days", Some(13 * DAY_MS))]
#[case::days_cut("resets in 90 days", Some(MONTH_MS))]
#[case::saturates("resets in 99999999999999999999999999 days", Some(MONTH_MS))]
#[case::month_day("reset at 11-06 08:50 UTC", Some(23_000))]
#[case::month_day_seconds("resets at 11-06 08:50:37", Some(60_000))]
#[case::month_day_next_year("resets at 01-01 00:00", None)]
#[case::month_day_past("resets at 11-06 08:49", None)]
#[case::leap_day("resets at 02-29 08:49", None)]
#[case::impossible_day("resets at 11-66 08:49", None)]
#[case::json(r#"{"error":{"message":"Limit.\nPlease retry in \"5s\""}}"#, None)]
#[case::json_newline(r#"{"error":{"message":"Limit.\nPlease retry in 5s"}}"#, Some(5_000))]
#[case::escaped(r#"{"error":{"message":"\u8bf7 try again in\u0020 7s"}}"#, Some(7_000))]
#[case::first_that_is_one("try again in a while, resets in 3s, resets in 9s", Some(3_000))]
#[case::far_away(
    "try again in                                                                    5s",
    None
)]
#[case::nothing_follows("try again in", None)]
fn prose_is_read(#[case] body: &str, #[case] wait_ms: Option<u64>) {
    let expected = wait_ms.map(|wait_ms| (wait_ms, HintSource::Body));
    assert_eq!(of_body(body), expected);
}

/// Years turn: December sees a date of January as the next one.
#[test]
fn a_date_without_a_year_is_the_next_one() {
    let world = World::new(ProviderClass::Apikey);
    let model = ModelId::new("m").unwrap();
    let december = Timestamp(788_910_000_000);
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, december);
    let outcome = super::world::answer(429, "resets at 01-01 00:00");
    let wait_ms = classify(&outcome, &context).hint.map(|hint| hint.wait_ms);
    assert_eq!(wait_ms, Some(8_400_000));
}

#[test]
fn headers_come_first_then_members_then_prose() {
    let body = r#"{"error":{"retry_after":5,"message":"try again in 3s"}}"#;
    let wait_ms = |headers: &[(&str, &str)]| read(headers, body).map(|hint| hint.wait_ms);
    assert_eq!(wait_ms(&[("retry-after", "9")]), Some(9_000));
    assert_eq!(wait_ms(&[("retry-after", "never")]), Some(5_000));
    assert_eq!(of_body("try again in 3s").map(|hint| hint.0), Some(3_000));
}
