use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// 2025-08-29T15:00:00Z
const NOW: Timestamp = Timestamp(1_756_479_600_000);

fn told(status: u16, headers: &[(&str, &str)]) -> Option<Told> {
    read(status, headers.iter().copied(), NOW)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "as it stands beside the other kind of window"
)]
fn requests(limit: Option<u32>, remaining: u32, resets_in_ms: u64) -> Option<ToldRequests> {
    Some(ToldRequests {
        limit,
        remaining,
        resets_at: NOW.plus_ms(resets_in_ms + ROUNDED_MS),
    })
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "as it stands beside the other kind of window"
)]
fn none_for(ms: u64) -> Option<ToldTokens> {
    Some(ToldTokens::NoneUntil(NOW.plus_ms(ms + ROUNDED_MS)))
}

const LEFT: Option<ToldTokens> = Some(ToldTokens::Left);

/// As upstreams' public pages and users' transcripts show them.
#[rstest]
#[case::openai_with_plenty(
    200,
    &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "59"),
      ("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-limit-tokens", "150000"),
      ("x-ratelimit-remaining-tokens", "149984"), ("x-ratelimit-reset-tokens", "6m0s")],
    requests(Some(60), 59, 1_000), LEFT, false)]
#[case::openai_nearly_spent(
    200,
    &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "6"),
      ("x-ratelimit-reset-requests", "54s"), ("x-ratelimit-limit-tokens_usage_based", "160000"),
      ("x-ratelimit-remaining-tokens_usage_based", "0"), ("x-ratelimit-reset-tokens_usage_based", "9ms")],
    requests(Some(60), 6, 54_000), None, true)]
#[case::openai_in_milliseconds(
    200,
    &[("x-ratelimit-limit-requests", "5000"), ("x-ratelimit-remaining-requests", "4999"),
      ("x-ratelimit-reset-requests", "12ms")],
    requests(Some(5_000), 4_999, 12), None, false)]
#[case::openai_without_tokens(
    429,
    &[("x-ratelimit-limit-requests", "500"), ("x-ratelimit-remaining-requests", "499"),
      ("x-ratelimit-reset-requests", "120ms"), ("x-ratelimit-limit-tokens", "30000"),
      ("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "58.2s")],
    requests(Some(500), 499, 120), none_for(58_200), true)]
#[case::anthropic(
    200,
    &[("anthropic-ratelimit-requests-limit", "50"), ("anthropic-ratelimit-requests-remaining", "5"),
      ("anthropic-ratelimit-requests-reset", "2025-08-29T15:00:54Z"),
      ("anthropic-ratelimit-tokens-limit", "100000"), ("anthropic-ratelimit-tokens-remaining", "80000"),
      ("anthropic-ratelimit-tokens-reset", "2025-08-29T15:00:12Z"),
      ("anthropic-ratelimit-input-tokens-limit", "80000"), ("anthropic-ratelimit-input-tokens-remaining", "0"),
      ("anthropic-ratelimit-input-tokens-reset", "2025-08-29T15:00:59Z"),
      ("anthropic-ratelimit-output-tokens-limit", "16000"), ("anthropic-ratelimit-output-tokens-remaining", "0"),
      ("anthropic-ratelimit-output-tokens-reset", "2025-08-29T15:00:30Z")],
    requests(Some(50), 5, 54_000), none_for(59_000), true)]
#[case::groq_counts_requests_of_a_day(
    200,
    &[("x-ratelimit-limit-requests", "14400"), ("x-ratelimit-remaining-requests", "14370"),
      ("x-ratelimit-reset-requests", "2m59.56s"), ("x-ratelimit-limit-tokens", "18000"),
      ("x-ratelimit-remaining-tokens", "17997"), ("x-ratelimit-reset-tokens", "7.66s")],
    None, LEFT, false)]
#[case::azure_tells_only_what_is_left(
    200,
    &[("x-ratelimit-remaining-requests", "79"), ("x-ratelimit-remaining-tokens", "61353")],
    None, LEFT, false)]
#[case::azure_refuses(
    429,
    &[("x-ratelimit-reset-requests", "17"), ("retry-after", "17")],
    requests(None, 0, 17_000), None, true)]
#[case::openrouter(
    429,
    &[("x-ratelimit-limit", "20"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1756479630500")],
    requests(Some(20), 0, 30_500), None, true)]
#[case::an_epoch_in_seconds(
    200,
    &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1756479660")],
    requests(Some(10), 1, 60_000), None, true)]
#[case::by_period(
    200,
    &[("x-ratelimit-limit-requests-minute", "30"), ("x-ratelimit-remaining-requests-minute", "2"),
      ("x-ratelimit-reset-requests-minute", "12.5"), ("x-ratelimit-limit-requests-day", "900"),
      ("x-ratelimit-remaining-requests-day", "1"), ("x-ratelimit-reset-requests-day", "33000"),
      ("x-ratelimit-remaining-tokens-minute", "0"), ("x-ratelimit-reset-tokens-minute", "12.5")],
    requests(Some(30), 2, 12_500), none_for(12_500), true)]
#[case::the_window_that_leaves_least(
    200,
    &[("x-ratelimit-limit-requests", "10"), ("x-ratelimit-remaining-requests", "1"),
      ("x-ratelimit-reset-requests", "2s"), ("x-ratelimit-limit", "1000"), ("x-ratelimit-remaining", "900"),
      ("x-ratelimit-reset", "30")],
    requests(Some(10), 1, 2_000), None, true)]
fn upstreams_tell_what_is_left(
    #[case] status: u16,
    #[case] headers: &[(&str, &str)],
    #[case] requests: Option<ToldRequests>,
    #[case] tokens: Option<ToldTokens>,
    #[case] holds_back: bool,
) {
    let told = told(status, headers).unwrap();
    assert_eq!((told.requests, told.tokens), (requests, tokens));
    assert_eq!(told.holds_back(), holds_back);
}

#[rstest]
#[case::deepseek_sends_none(200, &[("content-type", "application/json")])]
#[case::mistral_tells_no_end(
    200, &[("x-ratelimit-limit-req-minute", "60"), ("x-ratelimit-remaining-req-minute", "0")])]
#[case::limits_that_are_none(
    200, &[("x-ratelimit-limit-tokens", "-1"), ("x-ratelimit-remaining-tokens", "-1"), ("x-ratelimit-reset-tokens", "0")])]
#[case::a_wait_is_no_limit(429, &[("retry-after", "20")])]
#[case::an_end_alone_of_a_success(200, &[("x-ratelimit-reset-requests", "17")])]
#[case::an_end_that_has_passed(
    200, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "2025-08-29T14:59:59Z")])]
#[case::an_end_too_far_ahead(
    429, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "65s")])]
#[case::a_subscription(
    200, &[("anthropic-ratelimit-unified-status", "rejected"), ("anthropic-ratelimit-unified-reset", "1756479610")])]
#[case::something_else(
    200, &[("x-ratelimit-remaining-images", "0"), ("x-ratelimit-reset-images", "10s")])]
#[case::tokens_for_longer(
    200, &[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")])]
fn what_teaches_nothing_is_nothing(#[case] status: u16, #[case] headers: &[(&str, &str)]) {
    assert_eq!(told(status, headers), None);
}

#[rstest]
#[case::a_tenth(Some(100), 10, true)]
#[case::more(Some(100), 11, false)]
#[case::of_few(Some(9), 1, false)]
#[case::none_of_few(Some(9), 0, true)]
#[case::one_of_nobody_knows(None, 1, true)]
#[case::two_of_nobody_knows(None, 2, false)]
fn little_is_a_tenth_or_the_last_one(
    #[case] limit: Option<u32>,
    #[case] left: u32,
    #[case] nearly: bool,
) {
    assert_eq!(is_nearly_spent(limit, left), nearly);
}

#[test]
fn a_part_of_what_is_left_is_at_least_one_request() {
    let whole = |limit, remaining| Told {
        requests: requests(Some(limit), remaining, 5_000),
        tokens: none_for(7_000),
    };
    assert_eq!(whole(100, 9).share(3), whole(33, 3));
    assert_eq!(whole(2, 1).share(3), whole(1, 1));
    assert_eq!(whole(2, 0).share(3), whole(1, 0));
    assert_eq!(whole(2, 0).share(0), whole(2, 0));
    assert_eq!(whole(2, 0).ends_at(), NOW.plus_ms(7_000 + ROUNDED_MS));
}

const NAMES: [&str; 10] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-",
];

proptest! {
    #[test]
    fn whatever_is_told_ends_soon(
        status in prop_oneof![Just(200_u16), Just(429)],
        headers in prop::collection::vec(
            (
                prop::sample::select(NAMES.to_vec()),
                prop_oneof![
                    (0_u32..200).prop_map(|number| number.to_string()),
                    any::<u64>().prop_map(|number| number.to_string()),
                    any::<u16>().prop_map(|number| format!("{number}ms")),
                    any::<String>(),
                ],
            ),
            0..40,
        ),
    ) {
        let pairs = headers.iter().map(|(name, value)| (*name, value.as_str()));
        if let Some(told) = read(status, pairs, NOW) {
            prop_assert!(told.ends_at() <= NOW.plus_ms(MAX_AHEAD_MS));
            prop_assert!(!told.holds_back() || told.ends_at() > NOW);
        }
    }
}
