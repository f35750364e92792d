//! When a stream is too slow.

use proptest::prelude::*;
use rstest::rstest;

use super::Progress::{Nothing, Protected, ProtectedEnds};
use super::*;

/// Limits in the order of the settings: warm-up, window, rate, measurable.
fn watchdog(limits: [u64; 4]) -> Watchdog {
    let [
        warmup_ms,
        window_ms,
        min_useful_bytes_per_second,
        min_useful_bytes,
    ] = limits;
    Watchdog::new(WatchdogLimits {
        warmup_ms,
        window_ms,
        min_useful_bytes_per_second,
        min_useful_bytes,
    })
}

const DEFAULTS: [u64; 4] = [30_000, 30_000, 4, 1];

fn text(text: &str) -> Progress {
    useful(text.len() as u64)
}

fn useful(bytes: u64) -> Progress {
    Progress::Useful { bytes }
}

/// The moment of the first chunk at which the stream is too slow.
fn aborted(limits: [u64; 4], chunks: &[(u64, Progress)]) -> Option<u64> {
    let mut watchdog = watchdog(limits);
    let too_slow = chunks
        .iter()
        .find(|(now_ms, event)| watchdog.sees([*event], *now_ms).is_err());
    too_slow.map(|(now_ms, _)| *now_ms)
}

#[rstest]
#[case::v42_after_warm_up_and_a_window([1_000, 2_000, 10, 1], &[(0, text("x")), (2_999, Nothing), (3_000, Nothing)], Some(3_000))]
#[case::v42_not_a_moment_before([1_000, 2_000, 10, 1], &[(0, text("x")), (2_999, Nothing)], None)]
fn vector_sessions_42_nothing_is_judged_before_warm_up_and_window(
    #[case] limits: [u64; 4],
    #[case] chunks: &[(u64, Progress)],
    #[case] expected: Option<u64>,
) {
    assert_eq!(aborted(limits, chunks), expected);
}

#[rstest]
#[case::at_the_edge(&[(0, text("hello")), (1_000, Nothing)], None)]
#[case::beyond_the_edge(&[(0, text("hello")), (1_000, Nothing), (1_001, Nothing)], Some(1_001))]
fn vector_sessions_43_bytes_at_the_edge_of_the_window_count(
    #[case] chunks: &[(u64, Progress)],
    #[case] expected: Option<u64>,
) {
    assert_eq!(aborted([0, 1_000, 3, 1], chunks), expected);
}

#[rstest]
#[case::as_asked_for(useful(10), None)]
#[case::a_byte_less(useful(9), Some(2_000))]
fn vector_sessions_44_the_least_rate_is_fast_enough(
    #[case] event: Progress,
    #[case] expected: Option<u64>,
) {
    let chunks = [(0, Nothing), (1_000, event), (2_000, Nothing)];
    assert_eq!(aborted([0, 2_000, 5, 1], &chunks), expected);
}

#[rstest]
#[case::too_few_to_measure(text("four"), None)]
#[case::none_at_all(Nothing, Some(1_000))]
#[case::measurable(useful(100), Some(1_000))]
fn vector_sessions_45_a_few_bytes_are_not_measured_and_none_are(
    #[case] event: Progress,
    #[case] expected: Option<u64>,
) {
    let chunks = [(0, event), (1_000, Nothing)];
    assert_eq!(aborted([0, 1_000, 1_000, 100], &chunks), expected);
}

#[test]
fn vector_sessions_46_a_tool_call_is_never_judged_and_text_after_it_is() {
    let mut watchdog = watchdog(DEFAULTS);
    watchdog.sees([Protected], 0).unwrap();
    for now_ms in (0..=600_000).step_by(1_000) {
        watchdog.sees([Nothing], now_ms).unwrap();
    }
    // The window that ends here holds next to no text because of the call.
    watchdog.sees([text("Well")], 600_000).unwrap();
    watchdog.sees([Nothing], 629_999).unwrap();
    let too_slow = TooSlow {
        bytes: 4,
        window_ms: 30_000,
    };
    assert_eq!(watchdog.sees([Nothing], 630_000), Err(too_slow));
}

#[rstest]
#[case::text_and_then_a_call(&[text("x"), Protected], None)]
#[case::a_call_and_then_text(&[Protected, text("x")], Some(60_000))]
#[case::a_call_and_no_text(&[Protected, useful(0)], None)]
#[case::a_whole_call(&[Protected, ProtectedEnds], Some(60_000))]
#[case::the_end_of_what_had_no_beginning(&[ProtectedEnds], Some(60_000))]
fn vector_sessions_47_the_order_of_events_within_a_chunk_counts(
    #[case] events: &[Progress],
    #[case] expected: Option<u64>,
) {
    let mut watchdog = watchdog(DEFAULTS);
    watchdog.sees(events.iter().copied(), 0).unwrap();
    let slow = (0..=120_000)
        .step_by(1_000)
        .find(|now_ms| watchdog.sees([Nothing], *now_ms).is_err());
    assert_eq!(slow, expected);
}

#[rstest]
#[case::usage_or_an_empty_delta(Nothing, Some(60_000))]
#[case::an_empty_text(useful(0), Some(60_000))]
fn vector_sessions_47_what_is_neutral_prevents_nothing(
    #[case] event: Progress,
    #[case] expected: Option<u64>,
) {
    let chunks: Vec<(u64, Progress)> = (0..100).map(|second| (second * 1_000, event)).collect();
    assert_eq!(aborted(DEFAULTS, &chunks), expected);
}

/// Six bytes in a window of a second, however they come.
#[rstest]
#[case::at_once(&[(0, text("你好")), (1_000, Nothing)])]
#[case::the_event_in_two_chunks(&[(0, Nothing), (500, text("你好")), (1_000, Nothing)])]
#[case::an_event_each(&[(0, text("你")), (0, text("好")), (1_000, Nothing)])]
fn vector_sessions_48_bytes_are_those_of_utf8(#[case] chunks: &[(u64, Progress)]) {
    assert_eq!(aborted([0, 1_000, 6, 1], chunks), None);
    assert_eq!(aborted([0, 1_000, 7, 1], chunks), Some(1_000));
}

#[rstest]
#[case::too_few(119, Some(60_000))]
#[case::enough(120, None)]
fn as_built_in_120_bytes_in_30_seconds_are_enough(
    #[case] bytes: u64,
    #[case] expected: Option<u64>,
) {
    let chunks = [
        (0, useful(5_000)),
        (45_000, useful(bytes)),
        (60_000, Nothing),
    ];
    assert_eq!(aborted(DEFAULTS, &chunks), expected);
}

#[test]
fn a_silence_is_judged_with_the_next_chunk() {
    let chunks = [(0, text("Once upon a time")), (3_600_000, Nothing)];
    assert_eq!(aborted(DEFAULTS, &chunks), Some(3_600_000));
}

#[test]
fn a_call_that_ends_after_a_whole_window_leaves_time_for_the_end_of_the_stream() {
    let mut watchdog = watchdog(DEFAULTS);
    watchdog.sees([Protected], 0).unwrap();
    watchdog.sees([ProtectedEnds], 90_000).unwrap();
    watchdog.sees([Nothing], 119_999).unwrap();
    assert!(watchdog.sees([Nothing], 120_000).is_err());
}

#[test]
fn a_clock_that_goes_back_stands_still_instead() {
    let chunks = [
        (0, Nothing),
        (59_999, Nothing),
        (10, Nothing),
        (60_000, Nothing),
    ];
    assert_eq!(aborted(DEFAULTS, &chunks), Some(60_000));
}

#[rstest]
#[case::nothing([0; 4])]
#[case::everything([u64::MAX; 4])]
#[case::no_window([0, 0, 1, 1])]
#[case::no_rate([0, 1_000, 0, 1])]
fn numbers_that_no_setting_can_have_are_harmless(#[case] limits: [u64; 4]) {
    let mut watchdog = watchdog(limits);
    for now_ms in [0, 1, 1_000, u64::MAX] {
        let events = [useful(u64::MAX / 8), Protected, ProtectedEnds];
        let _slow = watchdog.sees(events, now_ms).is_err();
        assert!(watchdog.samples.len() <= 2);
    }
}

/// The rule as it is written in the specification, with every sample kept.
#[derive(Default)]
struct Reference {
    samples: Vec<(u64, u64)>,
    began: Option<u64>,
    judged_from: u64,
    is_protected: bool,
}

impl Reference {
    fn sees(&mut self, limits: [u64; 4], events: &[Progress], now: u64) -> bool {
        let [warmup, window, rate, measurable] = limits;
        let began = *self.began.get_or_insert(now);
        self.judged_from = self.judged_from.max(began + warmup);
        for event in events {
            let ends = match event {
                Progress::Useful { bytes } if *bytes > 0 => {
                    self.samples.push((now, *bytes));
                    true
                }
                ProtectedEnds => true,
                Protected => {
                    self.is_protected = true;
                    false
                }
                Nothing | Progress::Useful { .. } => false,
            };
            if ends && self.is_protected {
                self.is_protected = false;
                self.judged_from = self.judged_from.max(now);
            }
        }
        let bytes = self.bytes_within(window, now);
        now >= self.judged_from + window
            && !self.is_protected
            && (bytes == 0 || bytes >= measurable)
            && bytes * 1_000 < rate * window
    }

    fn bytes_within(&self, window: u64, now: u64) -> u64 {
        let in_window = self.samples.iter().filter(|(at, _)| at + window >= now);
        in_window.map(|(_, bytes)| bytes).sum()
    }
}

fn event() -> impl Strategy<Value = Progress> {
    prop_oneof![
        6 => (0_u64..40).prop_map(useful),
        1 => (0_u64..3_000).prop_map(useful),
        4 => Just(Nothing),
        1 => Just(Protected),
        1 => Just(ProtectedEnds),
    ]
}

/// Chunks with the time since the one before.
fn chunks(longest_ms: u64) -> impl Strategy<Value = Vec<(u64, Vec<Progress>)>> {
    let gap = prop_oneof![3 => 0..=longest_ms / 10, 1 => 0..=longest_ms];
    prop::collection::vec((gap, prop::collection::vec(event(), 0..4)), 1..120)
}

/// Limits with which every sample is exact, though many moments are told apart.
fn exact_limits() -> impl Strategy<Value = [u64; 4]> {
    (0_u64..5_000, 1_000_u64..6_000, 1_u64..160, 1_u64..900).prop_map(<[u64; 4]>::from)
}

proptest! {
    #[test]
    fn it_judges_as_if_every_sample_were_kept(limits in exact_limits(), chunks in chunks(2_000)) {
        let (mut watchdog, mut reference, mut now) = (watchdog(limits), Reference::default(), 0);
        for (gap, events) in chunks {
            now += gap;
            let slow = watchdog.sees(events.iter().copied(), now).is_err();
            prop_assert_eq!(slow, reference.sees(limits, &events, now));
        }
    }

    /// Where moments become one, bytes may count for a thousandth of the window too long, and never too briefly.
    #[test]
    fn with_any_limits_what_counts_is_in_favour_of_the_stream(
        limits in (0_u64..5_000, 1_000_u64..=600_000, 1_u64..=1_000_000, 1_u64..=1_000_000),
        chunks in chunks(100_000),
    ) {
        let limits = <[u64; 4]>::from(limits);
        let (mut watchdog, mut reference, mut now) = (watchdog(limits), Reference::default(), 0);
        let slot = limits[1].div_ceil(1_024);
        for (gap, events) in chunks {
            now += gap;
            let _slow = watchdog.sees(events.iter().copied(), now).is_err();
            reference.sees(limits, &events, now);
            let (least, most) = (reference.bytes_within(limits[1], now), reference.bytes_within(limits[1] + slot, now));
            prop_assert!(watchdog.bytes >= least.min(watchdog.enough()) && watchdog.bytes <= most);
        }
    }

    #[test]
    fn it_never_judges_before_warm_up_and_window(limits in exact_limits(), chunks in chunks(2_000)) {
        let (mut watchdog, mut now) = (watchdog(limits), 7_000);
        for (gap, events) in chunks {
            now += gap;
            if watchdog.sees(events, now).is_err() {
                prop_assert!(now >= 7_000 + limits[0] + limits[1]);
            }
        }
    }

    #[test]
    fn however_events_of_one_moment_are_cut_into_chunks_the_last_judgement_is_the_same(
        limits in exact_limits(),
        chunks in chunks(2_000),
        cuts in prop::collection::vec(0_usize..4, 120),
    ) {
        let (mut whole, mut cut, mut now) = (watchdog(limits), watchdog(limits), 0);
        for ((gap, events), at) in chunks.into_iter().zip(cuts) {
            now += gap;
            let (before, after) = events.split_at(at.min(events.len()));
            // What is seen of half a chunk is judged, too; only the whole can be compared.
            let _slow = cut.sees(before.iter().copied(), now).is_err();
            let last = cut.sees(after.iter().copied(), now);
            prop_assert_eq!(last, whole.sees(events, now));
        }
    }

    #[test]
    fn what_it_keeps_is_bounded_whatever_comes(
        limits in (0_u64..5_000, 1_000_u64..=600_000, 1_u64..=1_000_000, 1_u64..=1_000_000),
        gap in 1_u64..50,
    ) {
        let mut watchdog = watchdog(limits.into());
        for chunk in 0..4_000 {
            let _slow = watchdog.sees([useful(1)], chunk * gap).is_err();
            prop_assert!(watchdog.samples.len() as u64 <= MAX_SAMPLES + 2);
        }
    }
}
