//! When a panel proceeds, and what is said when nobody of it answers.

use rstest::rstest;

use super::super::*;
use super::{fusion, three};
use crate::outcome::{LocalFault, Outcome, StreamFault, TransportFault};

/// A panel of three with the defaults, to which things happen: seconds, member, answered.
fn panel(events: &[(u64, usize, bool)]) -> Panel {
    let mut panel = Panel::new(&fusion(&three("fusion", json!({}))));
    for (seconds, member, answered) in events {
        if *answered {
            panel.answers(*member, seconds * 1_000);
        } else {
            panel.fails(*member, Shortfall::Status(429));
        }
    }
    panel
}

#[test]
fn vector_routing_v_fu1() {
    let mut panel = panel(&[(1, 0, true), (2, 2, true)]);
    // The third would answer at 20 s.
    assert_eq!(panel.waits_until_ms(), Some(10_000));
    assert_eq!(panel.close(), PanelResult::Judge(vec![0, 2]));
}

#[test]
fn vector_routing_v_fu2() {
    assert_eq!(
        panel(&[(1, 0, true), (2, 1, true)]).waits_until_ms(),
        Some(10_000)
    );
    let mut panel = panel(&[(1, 0, true), (2, 1, true), (4, 2, true)]);
    assert_eq!(panel.waits_until_ms(), None, "at 4 s");
    assert_eq!(panel.close(), PanelResult::Judge(vec![0, 1, 2]));
}

#[test]
fn vector_routing_v_fu3() {
    let plan = fusion(&three("fusion", json!({})));
    let mut panel = panel(&[(1, 0, false), (2, 1, false), (3, 2, false)]);
    assert_eq!(panel.waits_until_ms(), None);
    assert_eq!(panel.close(), PanelResult::Nothing);
    let rejection = panel.failure(&plan, &[refused(429, Some(7)), refused(429, Some(9))], 3);
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(7))
    );
    assert_eq!(
        rejection.message,
        "no member of the panel answered: p1/a status_429; p2/b status_429; p3/c status_429"
    );
}

#[test]
fn vector_routing_v_fu4() {
    let mut world = three("fusion", json!({}));
    world.facts.tools = 1;
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.attempts, ["p1/c1/a"]);
}

#[test]
fn a_single_answer_is_returned_as_it_is() {
    let mut panel = panel(&[(1, 0, false), (2, 1, true)]);
    assert_eq!(panel.waits_until_ms(), Some(90_000));
    panel.fails(2, Shortfall::EmptyContent);
    assert_eq!(panel.waits_until_ms(), None);
    assert_eq!(panel.close(), PanelResult::Single(1));
}

#[test]
fn the_time_of_a_panel_ends_whoever_is_missing() {
    let mut late = panel(&[(89, 0, true), (89, 1, true)]);
    assert_eq!(
        late.waits_until_ms(),
        Some(90_000),
        "the grace would end later"
    );
    assert_eq!(late.close(), PanelResult::Judge(vec![0, 1]));
    let plan = fusion(&three("fusion", json!({})));
    let mut silent = panel(&[(1, 1, false)]);
    assert_eq!(silent.close(), PanelResult::Nothing);
    assert_eq!(
        silent.failure(&plan, &[], 3).message,
        "no member of the panel answered: p1/a timeout; p2/b status_429; p3/c timeout"
    );
}

#[test]
fn a_member_is_settled_once() {
    let mut panel = panel(&[(1, 0, true), (1, 0, true), (2, 0, false), (3, 9, true)]);
    assert_eq!(panel.waits_until_ms(), Some(90_000));
    assert_eq!(panel.close(), PanelResult::Single(0));
    panel.answers(1, 5_000);
    assert_eq!(panel.close(), PanelResult::Single(0), "too late");
}

/// How a member's request ended that sent something.
fn refused(status: u16, retry_after_secs: Option<u64>) -> Rejection {
    unsent(status, "all_models_failed", retry_after_secs, &[])
}

/// How a member's request ended, for these reasons.
fn unsent(
    status: u16,
    code: &str,
    retry_after_secs: Option<u64>,
    reasons: &[ExclusionReason],
) -> Rejection {
    let excluded = reasons.iter().map(|reason| Exclusion {
        provider: ProviderId::new("p").unwrap(),
        connection: None,
        model: ModelId::new("m").unwrap(),
        reason: *reason,
        until: None,
        cause: None,
        origin: None,
    });
    Rejection {
        status,
        code: code.to_owned(),
        error_type: String::new(),
        message: String::new(),
        retry_after_secs,
        pass_through: false,
        terminal_reason: code.to_lowercase(),
        pool_size: 3,
        attempted: 0,
        excluded: excluded.collect(),
        lease: None,
    }
}

fn cooling() -> Rejection {
    unsent(
        503,
        "all_targets_cooling_down",
        Some(9),
        &[ExclusionReason::ConnectionCooldown],
    )
}

fn mismatched() -> Rejection {
    unsent(
        404,
        "no_executable_targets",
        None,
        &[ExclusionReason::ProtocolMismatch],
    )
}

fn incapable() -> Rejection {
    unsent(
        400,
        "capability_mismatch",
        None,
        &[ExclusionReason::CapabilityMismatch],
    )
}

fn timed_out() -> Rejection {
    unsent(504, "COMBO_TIMEOUT", None, &[])
}

#[rstest]
#[case::nobody_can_be_asked([mismatched(), mismatched(), mismatched()], 0, (404, "no_executable_targets"), None)]
#[case::all_cool([cooling(), cooling(), cooling()], 0, (503, "all_targets_cooling_down"), Some(9))]
#[case::one_cools([mismatched(), cooling(), incapable()], 0, (503, "all_targets_cooling_down"), Some(9))]
#[case::none_takes_it([incapable(), incapable(), incapable()], 0, (400, "capability_mismatch"), None)]
#[case::mixed([incapable(), mismatched(), mismatched()], 0, (404, "no_executable_targets"), None)]
#[case::one_was_asked([mismatched(), mismatched(), refused(500, None)], 1, (503, "panel_failed"), None)]
#[case::the_time_is_up([timed_out(), cooling(), refused(429, Some(3))], 1, (504, "COMBO_TIMEOUT"), None)]
fn a_panel_of_which_nothing_was_sent_is_told_so(
    #[case] ends: [Rejection; 3],
    #[case] attempted: u32,
    #[case] expected: (u16, &str),
    #[case] retry_after_secs: Option<u64>,
) {
    let plan = fusion(&three("fusion", json!({})));
    let mut panel = Panel::new(&plan);
    for (member, end) in ends.iter().enumerate() {
        panel.fails(member, Shortfall::of(end, None));
    }
    let failure = panel.failure(&plan, &ends, attempted);
    assert_eq!((failure.status, failure.code.as_str()), expected);
    assert_eq!(failure.retry_after_secs, retry_after_secs);
    assert_eq!((failure.pool_size, failure.attempted), (3, attempted));
    let excluded: usize = ends.iter().map(|end| end.excluded.len()).sum();
    assert_eq!(failure.excluded.len(), excluded);
}

#[rstest]
#[case::nothing_was_sent(refused(503, None), None, "status_503")]
#[case::not_its_protocol(mismatched(), None, "protocol_mismatch")]
#[case::cooling(cooling(), None, "connection_cooldown")]
#[case::a_timer_goes_first(
    unsent(503, "x", Some(1), &[ExclusionReason::Disabled, ExclusionReason::ModelLockout]),
    None,
    "model_lockout"
)]
#[case::our_time_is_up(
    timed_out(),
    Some(Outcome::Local(LocalFault::ExecutionExpired)),
    "timeout"
)]
#[case::an_error(
    refused(503, None),
    Some(Outcome::Response(Default::default())),
    "status_503"
)]
#[case::sent_and_excluded(cooling(), Some(Outcome::Response(Default::default())), "status_503")]
#[case::ours(
    refused(503, None),
    Some(Outcome::Local(LocalFault::Internal)),
    "status_503"
)]
#[case::no_headers(
    refused(503, None),
    Some(Outcome::Transport(TransportFault::HeadersTimeout)),
    "timeout"
)]
#[case::too_long(
    refused(503, None),
    Some(Outcome::Stream(StreamFault::DeadlineExceeded)),
    "timeout"
)]
#[case::too_slow(
    refused(503, None),
    Some(Outcome::Stream(StreamFault::ThroughputTooLow)),
    "timeout"
)]
#[case::no_connection(
    refused(503, None),
    Some(Outcome::Transport(TransportFault::Connect)),
    "threw"
)]
#[case::broken(
    refused(503, None),
    Some(Outcome::Stream(StreamFault::EarlyEof)),
    "threw"
)]
fn a_member_without_an_answer_says_why(
    #[case] rejection: Rejection,
    #[case] last: Option<Outcome>,
    #[case] word: &str,
) {
    assert_eq!(Shortfall::of(&rejection, last.as_ref()).word(), word);
}
