//! How long a stream is held back, and which is opened again.

use rstest::rstest;

use super::*;
use crate::outcome::{LocalFault, UpstreamError};

#[rstest]
#[case::nothing_yet(0, 0, false)]
#[case::a_moment_before(65_535, 749, false)]
#[case::by_time(0, 750, true)]
#[case::by_bytes(65_536, 0, true)]
#[case::far_beyond(usize::MAX, u64::MAX, true)]
fn a_stream_is_held_for_so_long_and_so_much(
    #[case] held: usize,
    #[case] after_ms: u64,
    #[case] over: bool,
) {
    let holdback = Holdback::begin(5_000, None);
    assert_eq!(holdback.is_over(held, after_ms.saturating_add(5_000)), over);
}

#[test]
fn a_clock_that_goes_back_ends_nothing() {
    assert!(!Holdback::begin(5_000, None).is_over(0, 10));
}

#[rstest]
#[case::no_name(Outcome::Transport(TransportFault::Resolve), true)]
#[case::refused(Outcome::Transport(TransportFault::Connect), true)]
#[case::reset(Outcome::Transport(TransportFault::Reset), true)]
#[case::no_headers(Outcome::Transport(TransportFault::HeadersTimeout), true)]
#[case::no_egress(Outcome::Transport(TransportFault::ProxyUnreachable), true)]
#[case::certificate(Outcome::Transport(TransportFault::Tls), false)]
#[case::no_http(Outcome::Transport(TransportFault::Protocol), false)]
#[case::early_end(Outcome::Stream(StreamFault::EarlyEof), true)]
#[case::truncated(Outcome::Stream(StreamFault::Truncated), true)]
#[case::silent(Outcome::Stream(StreamFault::IdleTimeout), true)]
#[case::slow(Outcome::Stream(StreamFault::ThroughputTooLow), true)]
#[case::never_ready(Outcome::Stream(StreamFault::ReadinessTimeout), false)]
#[case::deadline(Outcome::Stream(StreamFault::DeadlineExceeded), false)]
#[case::good(Outcome::Success, false)]
#[case::an_answer(Outcome::Response(UpstreamError::default()), false)]
#[case::client_gone(Outcome::ClientAbort, false)]
#[case::target_time(Outcome::Local(LocalFault::TargetExpired), false)]
#[case::lease(Outcome::Local(LocalFault::LeaseConflict), false)]
#[case::ours(Outcome::Local(LocalFault::Internal), false)]
fn what_may_go_away_is_opened_again_four_times(#[case] outcome: Outcome, #[case] may: bool) {
    for reopened in 0..4 {
        assert_eq!(may_reopen(&outcome, reopened), may);
    }
    assert!(!may_reopen(&outcome, 4) && !may_reopen(&outcome, u32::MAX));
}

const SILENT: Outcome = Outcome::Stream(StreamFault::IdleTimeout);

#[test]
fn all_attempts_at_a_stream_have_one_time_to_hold_it() {
    let mut holdback = Holdback::begin(1_000, Some(300_000));
    // In time, and held for as long as any.
    assert!(holdback.may_reopen(&SILENT));
    holdback.reopens(300_999);
    holdback.is_ready(300_999);
    assert!(!holdback.is_over(0, 300_999));
    assert!(holdback.is_over(0, 301_000));
    // Its own silence may have used the time up; what comes in its place is the last.
    assert!(holdback.may_reopen(&SILENT));
    holdback.reopens(600_999);
    holdback.is_ready(600_999);
    assert!(holdback.is_over(0, 600_999), "shown at once");
    assert!(!holdback.may_reopen(&SILENT));
}

#[rstest]
#[case::of_no_limit(None, u64::MAX, true)]
#[case::in_time(Some(5), 4, true)]
#[case::at_its_end(Some(5), 5, false)]
fn what_is_opened_late_is_the_last(
    #[case] limit_ms: Option<u64>,
    #[case] at_ms: u64,
    #[case] again: bool,
) {
    let mut holdback = Holdback::begin(0, limit_ms);
    holdback.reopens(at_ms);
    assert_eq!(holdback.may_reopen(&SILENT), again);
}

#[test]
fn a_held_stream_is_opened_again_four_times() {
    let mut holdback = Holdback::begin(0, None);
    for _ in 0..MAX_REOPENS {
        assert!(holdback.may_reopen(&SILENT));
        holdback.reopens(0);
    }
    assert!(!holdback.may_reopen(&SILENT));
}
