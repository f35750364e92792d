use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// 2025-08-29T15:00:00Z
const NOW: Timestamp = Timestamp(1_756_479_600_000);

fn of(headers: &[(&str, &str)]) -> Option<QuotaSnapshot> {
    read(headers.iter().copied(), NOW)
}

#[rstest]
#[case::openai(
    &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "45"),
      ("x-ratelimit-reset-requests", "6m0s")],
    0.25, Some(360_000))]
#[case::the_fullest_counts(
    &[("x-ratelimit-limit-requests", "60"), ("x-ratelimit-remaining-requests", "60"),
      ("x-ratelimit-limit-tokens", "1000"), ("x-ratelimit-remaining-tokens", "100"),
      ("x-ratelimit-reset-requests", "1s"), ("x-ratelimit-reset-tokens", "17ms")],
    0.9, Some(17))]
#[case::bare(
    &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")],
    1.0, Some(30_000))]
#[case::epoch(
    &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "1756479660")],
    0.5, Some(60_000))]
#[case::anthropic(
    &[("anthropic-ratelimit-requests-limit", "50"), ("anthropic-ratelimit-requests-remaining", "40"),
      ("anthropic-ratelimit-requests-reset", "2025-08-29T15:01:00Z"),
      ("anthropic-ratelimit-input-tokens-limit", "100"), ("anthropic-ratelimit-input-tokens-remaining", "90")],
    0.2, Some(60_000))]
#[case::more_left_than_there_is(
    &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", "99999999999999999999")], 0.0, Some(60_000))]
#[case::no_end_is_a_minute(
    &[("x-ratelimit-limit-tokens", "10"), ("x-ratelimit-remaining-tokens", "0")], 1.0, Some(60_000))]
fn short_windows_are_the_share_that_is_used(
    #[case] headers: &[(&str, &str)],
    #[case] used: f64,
    #[case] resets_in_ms: Option<u64>,
) {
    let quota = of(headers).unwrap();
    assert!((quota.used.unwrap().get() - used).abs() < 1e-9);
    assert_eq!(quota.resets_at, resets_in_ms.map(|ms| NOW.plus_ms(ms)));
    assert_eq!(quota.observed_at, NOW);
    assert!(!quota.limit_reached);
}

#[test]
fn a_subscription_has_named_windows() {
    let quota = of(&[
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("anthropic-ratelimit-unified-reset", "1756483200"),
        ("anthropic-ratelimit-unified-5h-utilization", "1.02"),
        ("anthropic-ratelimit-unified-5h-reset", "1756483200"),
        ("anthropic-ratelimit-unified-7d-utilization", "0.27"),
    ])
    .unwrap();
    let hour = Some(NOW.plus_ms(3_600_000));
    assert_eq!(
        quota.session,
        Some(QuotaWindow {
            used: Finite::ONE,
            resets_at: hour,
            observed_at: None,
        })
    );
    assert_eq!(quota.weekly.unwrap().used, Finite::new(0.27).unwrap());
    assert_eq!((quota.limit_reached, quota.resets_at), (true, hour));
}

#[rstest]
#[case::nothing(&[])]
#[case::a_wait_is_no_quota(&[("retry-after", "20")])]
#[case::a_limit_alone(&[("x-ratelimit-limit-requests", "60")])]
#[case::a_limit_of_nothing(&[("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0")])]
#[case::no_number(&[("x-ratelimit-limit", "-1"), ("x-ratelimit-remaining", "many")])]
#[case::codex_without_a_share(&[("x-codex-primary-window-minutes", "300"), ("x-codex-primary-reset-at", "1756483200")])]
#[case::codex_without_the_window(&[("x-codex-secondary-used-percent", "0"), ("x-codex-secondary-window-minutes", "0")])]
#[case::codex_of_one_model(&[("x-codex-bengalfox-primary-used-percent", "90")])]
#[case::no_share(&[("anthropic-ratelimit-unified-5h-utilization", "NaN")])]
fn what_tells_nothing_is_nothing(#[case] headers: &[(&str, &str)]) {
    assert_eq!(of(headers), None);
}

#[test]
fn an_end_too_far_away_is_not_believed() {
    let quota = of(&[
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "5"),
        ("x-ratelimit-reset", "9999999999"),
    ]);
    assert_eq!(quota.unwrap().resets_at, Some(NOW.plus_ms(60_000)));
}

const NAMES: [&str; 19] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-",
    "anthropic-ratelimit-unified-",
    "anthropic-ratelimit-unified-5h-utilization",
    "anthropic-ratelimit-unified-7d-utilization",
    "anthropic-ratelimit-unified-5h-reset",
    "x-codex-primary-used-percent",
    "x-codex-primary-window-minutes",
    "x-codex-primary-reset-at",
    "x-codex-secondary-used-percent",
    "x-codex-secondary-reset-after-seconds",
];

proptest! {
    #[test]
    fn any_headers_give_shares_between_0_and_1(
        headers in prop::collection::vec(
            (
                prop::sample::select(NAMES.to_vec()),
                prop_oneof![
                    any::<u32>().prop_map(|number| number.to_string()),
                    any::<f64>().prop_map(|number| number.to_string()),
                    any::<String>(),
                ],
            ),
            0..80,
        ),
    ) {
        let pairs = headers.iter().map(|(name, value)| (*name, value.as_str()));
        if let Some(quota) = read(pairs, NOW) {
            let windows = [quota.session, quota.weekly, quota.monthly].into_iter().flatten();
            for used in windows.map(|window| window.used).chain(quota.used) {
                prop_assert!((0.0..=1.0).contains(&used.get()));
            }
        }
    }
}
