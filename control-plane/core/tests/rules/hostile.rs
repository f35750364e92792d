//! Whatever an upstream sends is judged: cut off, broken, huge, nested or nonsense (`failure-state.md` §11.18, 19).

use proptest::prelude::*;
use rstest::rstest;
use tidegate_core::classify::{
    Classification, ClassifyContext, Consequence, CooldownLength, HintSource, LockLength, Reason,
    classify,
};
use tidegate_core::ids::ModelId;
use tidegate_core::outcome::{
    MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, Outcome, UpstreamError,
};
use tidegate_core::settings::ProviderClass::{self, Apikey, Local, Oauth};
use tidegate_core::time::Timestamp;

use super::world::World;

const DAY_MS: u64 = 86_400_000;
const MONTH_MS: u64 = 30 * DAY_MS;

fn judge(class: ProviderClass, provider: &str, error: UpstreamError) -> Classification {
    let world = World::named(provider, class);
    let model = ModelId::new("m").unwrap();
    let now = Timestamp(1_700_000_000_000);
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, now);
    classify(&Outcome::Response(error), &context)
}

fn of_body(body: impl Into<String>) -> Classification {
    let error = UpstreamError {
        status: 429,
        body: body.into(),
        ..UpstreamError::default()
    };
    judge(Apikey, "acme", error)
}

fn of_headers(headers: Vec<(String, String)>) -> Option<u64> {
    let error = UpstreamError {
        status: 429,
        headers,
        ..UpstreamError::default()
    };
    judge(Apikey, "acme", error).hint.map(|hint| hint.wait_ms)
}

const PHRASE: &str = "weekly usage limit";

fn is_found(classification: &Classification) -> bool {
    classification.reason == Reason::QuotaExhausted
}

#[test]
fn a_body_is_read_to_its_bound_and_not_further() {
    let ending_at = |end: usize| "x".repeat(end - PHRASE.len()) + PHRASE + &"y".repeat(100);
    assert!(is_found(&of_body(ending_at(MAX_BODY_BYTES))));
    assert!(!is_found(&of_body(ending_at(MAX_BODY_BYTES + 1))));
    let at_bound = "é".repeat((MAX_BODY_BYTES - PHRASE.len()) / 2);
    assert!(is_found(&of_body(at_bound + PHRASE + "é")));
    assert!(!is_found(&of_body("é".repeat(MAX_BODY_BYTES) + PHRASE)));
}

#[rstest]
#[case::nested_objects(r#"{"error":"#.repeat(400) + PHRASE)]
#[case::nested_lists("[".repeat(4_000) + PHRASE)]
#[case::nested_and_closed("[".repeat(300) + "\"weekly usage limit\"" + &"]".repeat(300))]
#[case::number_too_large(format!(r#"{{"error":{{"message":"{PHRASE}","n":1e999}}}}"#))]
#[case::cut_off(format!(r#"{{"error":{{"message":"{PHRASE}"#))]
#[case::nul(format!("\0{PHRASE}\0"))]
#[case::bom(format!("\u{feff}{PHRASE}"))]
#[case::not_utf_8(String::from_utf8_lossy(b"\xff\xfeweekly usage limit\xc3").into_owned())]
#[case::repeated_member(format!(r#"{{"error":"a","error":"{PHRASE}"}}"#))]
fn what_is_no_good_json_is_still_text(#[case] body: String) {
    assert!(is_found(&of_body(body)));
}

#[test]
fn numbers_that_are_no_status_are_none() {
    for number in [
        "-1",
        "65536",
        "99999999999999999999",
        "404.5",
        "\"404.5\"",
        "700",
    ] {
        let error = UpstreamError {
            status: 200,
            body: format!(r#"{{"error":{{"code":{number}}}}}"#),
            embedded: true,
            ..UpstreamError::default()
        };
        assert_eq!(judge(Apikey, "acme", error).status, 502, "{number}");
    }
}

#[rstest]
#[case::negative("-1", None)]
#[case::plus("+5", None)]
#[case::ten_to_the_20("100000000000000000000", Some(MONTH_MS))]
#[case::fraction("0.5", Some(500))]
#[case::tiny_fraction("0.0001", None)]
#[case::long_fraction("1.99999999999999999999999999999999", Some(1_999))]
#[case::not_a_number("NaN", None)]
#[case::infinity("inf", None)]
#[case::hex("0x10", None)]
#[case::separated("1_000", None)]
#[case::date_far("Fri, 31 Dec 9999 23:59:59 GMT", Some(MONTH_MS))]
#[case::date_before_the_epoch("Thu, 01 Jan 1601 00:00:00 GMT", None)]
#[case::date_impossible("Mon, 32 Foo 2024 99:99:99 GMT", None)]
#[case::nul("5\0", None)]
fn a_retry_after_of_any_kind(#[case] value: &str, #[case] wait_ms: Option<u64>) {
    assert_eq!(
        of_headers(vec![("retry-after".to_owned(), value.to_owned())]),
        wait_ms
    );
}

#[test]
fn headers_beyond_the_bounds_are_not_looked_at() {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut many = vec![header("x-a", "1"); MAX_HEADERS];
    many.push(header("retry-after", "5"));
    assert_eq!(of_headers(many), None);
    let padded = |bytes: usize| "0".repeat(bytes - 1) + "5";
    let retry_after = |value: &str| of_headers(vec![header("retry-after", value)]);
    assert_eq!(retry_after(&padded(MAX_HEADER_BYTES + 1)), None);
    assert_eq!(retry_after(&padded(MAX_HEADER_BYTES)), Some(5_000));
}

/// Text with words that rules look for, and anything between.
fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        2 => prop::sample::select(vec![
            "please retry in ", "try again in ", "resets at ", "retry after ", "reset in ",
            "usage limit reached", "weekly", "quota", "exceed", "daily quota", "tpd rate limit",
            "perday", "perminute", "model", "unsupported", "retry_after_ms\":", "{\"error\":{\"",
            "retryDelay\":\"", "\"}", "RetryInfo", "2033-11-06 08:49:37", "11-06 08:50", "\\u8bf7",
        ])
        .prop_map(str::to_owned),
        2 => "[0-9]{1,25}(s|ms|m|h| days|\\.5s|)",
        1 => "\\PC{0,12}",
    ];
    prop::collection::vec(word, 0..20).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn every_wait_is_positive_and_capped(
        status in prop::sample::select(vec![200_u16, 400, 401, 402, 403, 404, 429, 432, 500, 503, 529]),
        embedded in any::<bool>(),
        class in prop::sample::select(vec![Apikey, Oauth, Local]),
        provider in prop::sample::select(vec!["acme", "gemini", "claude", "codex"]),
        per_model in any::<bool>(),
        name in prop::sample::select(vec![
            "retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-tokens",
            "anthropic-ratelimit-requests-reset",
        ]),
        value in words(),
        body in words(),
    ) {
        let mut world = World::named(provider, class);
        world.policy.per_model_quota = per_model;
        let model = ModelId::new("m").unwrap();
        let now = Timestamp(1_700_000_000_000);
        let context = ClassifyContext::of(&world.provider, &world.policy, &model, now);
        let outcome = Outcome::Response(UpstreamError {
            status,
            headers: vec![(name.to_owned(), value)],
            body,
            embedded,
        });
        let classification = classify(&outcome, &context);
        prop_assert_eq!(&classification, &classify(&outcome, &context));
        if let Some(hint) = classification.hint {
            let cap_ms = if hint.source == HintSource::GoogleRetryInfo { DAY_MS } else { MONTH_MS };
            prop_assert!((1..=cap_ms).contains(&hint.wait_ms));
        }
        match classification.consequence {
            Consequence::CoolConnection(CooldownLength::Hint(ms) | CooldownLength::Flat(ms))
            | Consequence::LockModel(LockLength::Exact { ms, .. }) => {
                prop_assert!((1..=MONTH_MS).contains(&ms));
            }
            _ => {}
        }
    }
}
