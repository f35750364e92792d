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
    let holdback = Holdback::begin(5_000);
    assert_eq!(holdback.is_over(held, after_ms.saturating_add(5_000)), over);
}

#[test]
fn a_clock_that_goes_back_ends_nothing() {
    assert!(!Holdback::begin(5_000).is_over(0, 10));
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
