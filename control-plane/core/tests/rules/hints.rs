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
    let world = World::new(ProviderClass::Apikey);
    let model = ModelId::new("m").unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(NOW));
    let outcome = Outcome::Response(UpstreamError {
        status: 429,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
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
#[case::unknown_unit("retry-after", "5d", None)]
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
#[case::another_header("x-ratelimit-reset-requests", "30", None)]
fn a_header_is_read(#[case] name: &str, #[case] value: &str, #[case] wait_ms: Option<u64>) {
    let expected = wait_ms.map(|wait_ms| RetryHint {
        wait_ms,
        source: HintSource::Header,
    });
    assert_eq!(hint(&[(name, value)]), expected);
}

#[test]
fn of_two_headers_the_longer_counts() {
    let both = hint(&[("retry-after", "10"), ("x-ratelimit-reset", "784111822")]);
    assert_eq!(both.map(|hint| hint.wait_ms), Some(45_000));
    let one_is_nonsense = hint(&[("retry-after", "soon"), ("retry-after-ms", "20")]);
    assert_eq!(one_is_nonsense.map(|hint| hint.wait_ms), Some(20));
}
