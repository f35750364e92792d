//! `reset-aware`, `reset-window` and `headroom` (`routing.md` §8.10 to §8.12).

use rstest::rstest;

use super::super::headroom;
use super::*;
use crate::config::ResetWindow;

fn quota(
    session: impl Into<Option<QuotaWindow>>,
    weekly: impl Into<Option<QuotaWindow>>,
) -> QuotaSnapshot {
    QuotaSnapshot {
        session: session.into(),
        weekly: weekly.into(),
        ..seen()
    }
}

fn limit_reached() -> QuotaSnapshot {
    QuotaSnapshot {
        limit_reached: true,
        ..seen()
    }
}

/// The accounts A to E of §8.10.
fn five() -> Stage {
    let mut stage = Stage::of("ABCDE");
    stage.set_quota('A', of_a());
    stage.set_quota(
        'B',
        quota(window(0.6, HOUR_MS / 2), window(0.8, DAY_MS / 2)),
    );
    stage.set_quota('C', quota(window(0.95, HOUR_MS), window(0.4, 3 * DAY_MS)));
    stage.set_quota('E', limit_reached());
    stage
}

fn of_a() -> QuotaSnapshot {
    quota(window(0.2, 4 * HOUR_MS), window(0.3, 6 * DAY_MS))
}

fn model() -> ModelId {
    ModelId::new("m").unwrap()
}

fn score(quota: Option<&QuotaSnapshot>) -> f64 {
    reset_aware::score(quota, &model(), &ComboConfig::default(), NOW)
}

fn assert_score(quota: &QuotaSnapshot, expected: f64) {
    let score = score(Some(quota));
    assert!((score - expected).abs() < 0.000_05, "{score}");
}

#[test]
fn vector_routing_v_rsa1() {
    let mut stage = five();
    for (letter, expected) in [('A', 0.2683), ('B', 0.5616), ('C', 0.1816)] {
        assert_score(stage.actor(letter).quota.as_ref().unwrap(), expected);
    }
    assert!((score(None) - 0.5).abs() < f64::EPSILON);
    assert!(score(Some(&limit_reached())).is_infinite());
    assert_eq!(stage.heads(Strategy::ResetAware, 3), "BBB");
    assert_eq!(stage.written(Strategy::ResetAware), "BDACE");
    assert_eq!(stage.next_turn(TurnPurpose::Tie), 0, "no turn was needed");
}

#[test]
fn vector_routing_v_rsa2() {
    let monthly = QuotaSnapshot {
        monthly: Some(window(0.5, 15 * DAY_MS)),
        ..of_a()
    };
    assert_score(&monthly, 0.2794);
}

#[test]
fn vector_routing_v_rsa3() {
    // Only the weekly window counts, and it just began: the score is a quarter of what is left, plus what is overdue.
    let mut stage = Stage::of("ABC");
    stage.config.reset_aware_session_weight = Some(Finite::ZERO);
    for (letter, score) in [('A', 0.56), ('B', 0.53), ('C', 0.30)] {
        // Begun anew already: 0.25·(1 − used) + 0.75·used.
        let used = (score - 0.25) / 0.5;
        stage.set_quota(letter, quota(None, past_window(used, 1)));
    }
    let orders: Vec<String> = (0..4)
        .map(|_| stage.written(Strategy::ResetAware))
        .collect();
    assert_eq!(orders, ["ABC", "BAC", "ABC", "BAC"]);
}

#[rstest]
#[case::both_windows_just_began(quota(window(0.0, 5 * HOUR_MS), window(0.0, 7 * DAY_MS)), 0.32)]
#[case::a_used_up_week_that_ends_now(quota(window(0.0, 5 * HOUR_MS), window(1.0, 0)), 0.645)]
#[case::nothing_but_the_overall_share(
    QuotaSnapshot { used: Some(finite(0.2)), ..seen() },
    0.35 * (0.45 * 0.8 + 0.55 * 0.1) + 0.65 * (0.25 * 0.8 + 0.75 * 0.1)
)]
#[case::one_window_of_two(quota(None, window(0.0, 7 * DAY_MS)), 0.35 * 0.3625 + 0.65 * 0.25)]
#[case::a_snapshot_that_says_nothing(seen(), 0.5)]
#[case::a_guarded_account_keeps_a_twentieth(
    quota(window(1.0, 5 * HOUR_MS), window(0.0, 7 * DAY_MS)),
    0.05 * 0.65 * 0.25
)]
fn scores(#[case] quota: QuotaSnapshot, #[case] expected: f64) {
    assert_score(&quota, expected);
}

#[test]
fn weights_are_brought_to_one_and_both_zero_is_the_default() {
    let weighted = |session: f64, weekly: f64| {
        let config = ComboConfig {
            reset_aware_session_weight: Some(finite(session)),
            reset_aware_weekly_weight: Some(finite(weekly)),
            ..ComboConfig::default()
        };
        reset_aware::score(Some(&of_a()), &model(), &config, NOW)
    };
    assert!((weighted(35.0, 65.0) - score(Some(&of_a()))).abs() < 1e-12);
    assert!((weighted(f64::MAX, f64::MAX) - weighted(1.0, 1.0)).abs() < 1e-12);
    assert!((weighted(0.0, 0.0) - score(Some(&of_a()))).abs() < 1e-12);
}

#[test]
fn an_excluded_account_takes_no_turn_from_its_equals() {
    let mut stage = Stage::of("ABCD");
    stage.exclude('A');
    assert_eq!(stage.heads(Strategy::ResetAware, 6), "BCDBCD");
    let end = quota(None, window(0.5, HOUR_MS));
    for letter in ['A', 'B', 'C'] {
        stage.set_quota(letter, end.clone());
    }
    stage.set_turn(TurnPurpose::Tie, 0);
    let orders: Vec<String> = (0..3)
        .map(|_| stage.written(Strategy::ResetWindow))
        .collect();
    assert_eq!(orders, ["BCDA", "CBDA", "BCDA"]);
}

/// The weekly windows of these accounts end after so many ms.
fn weekly(ends: &[(char, u64)]) -> Stage {
    let mut stage = Stage::of("ABC");
    for (letter, left_ms) in ends {
        stage.set_quota(*letter, quota(None, window(0.5, *left_ms)));
    }
    stage
}

#[test]
fn vector_routing_v_rw1() {
    let stage = weekly(&[('A', 3 * DAY_MS), ('B', 5 * HOUR_MS)]);
    assert_eq!(stage.written(Strategy::ResetWindow), "BAC");
}

#[test]
fn vector_routing_v_rw2() {
    let mut stage = weekly(&[('A', HOUR_MS), ('B', HOUR_MS + 30_000), ('C', 2 * DAY_MS)]);
    let orders: Vec<String> = (0..4)
        .map(|_| stage.written(Strategy::ResetWindow))
        .collect();
    assert_eq!(orders, ["ABC", "BAC", "ABC", "BAC"]);
    stage.config.reset_window_tie_band_ms = Some(0);
    assert_eq!(stage.heads(Strategy::ResetWindow, 2), "AA");
}

#[test]
fn vector_routing_v_rw3() {
    let mut stage = Stage::of("AB");
    stage.set_quota('A', quota(None, past_window(0.5, 3 * DAY_MS)));
    stage.set_quota('B', quota(None, past_window(0.5, 1_000)));
    assert_eq!(stage.heads(Strategy::ResetWindow, 4), "ABAB");
}

#[test]
fn vector_routing_v_rw4() {
    let mut stage = Stage::of("AB");
    let mut reached = quota(None, window(1.0, 60_000));
    reached.limit_reached = true;
    stage.set_quota('A', reached);
    stage.set_quota('B', quota(None, window(0.5, 2 * DAY_MS)));
    assert_eq!(stage.written(Strategy::ResetWindow), "BA");
}

#[rstest]
#[case::weekly_by_default(None, None, "BA")]
#[case::the_session_too(None, Some(true), "AB")]
#[case::the_session_alone(Some(vec![ResetWindow::Session]), None, "AB")]
#[case::the_month_which_nobody_has(Some(vec![ResetWindow::Monthly]), None, "AB")]
#[case::none_named_but_the_session(Some(vec![]), Some(true), "AB")]
fn windows_that_count(
    #[case] windows: Option<Vec<ResetWindow>>,
    #[case] include_session: Option<bool>,
    #[case] expected: &str,
) {
    let mut stage = Stage::of("AB");
    stage.config.reset_windows = windows;
    stage.config.reset_window_include_session = include_session;
    stage.set_quota('A', quota(window(0.5, HOUR_MS), window(0.5, 3 * DAY_MS)));
    stage.set_quota('B', quota(window(0.5, 2 * HOUR_MS), window(0.5, DAY_MS)));
    assert_eq!(stage.written(Strategy::ResetWindow), expected);
}

#[test]
fn without_a_named_window_any_end_counts_and_then_the_overall_one() {
    let mut stage = Stage::of("ABC");
    let overall = QuotaSnapshot {
        resets_at: Some(NOW.plus_ms(3 * HOUR_MS)),
        ..seen()
    };
    stage.set_quota('A', overall);
    let of_model = QuotaSnapshot {
        weekly_by_model: vec![
            (ModelId::new("another").unwrap(), window(0.5, 1)),
            (stage.actor('B').model.clone(), window(0.5, HOUR_MS)),
        ],
        ..seen()
    };
    stage.set_quota('B', of_model);
    stage.set_quota('C', quota(window(0.5, 2 * HOUR_MS), None));
    assert_eq!(stage.written(Strategy::ResetWindow), "BCA");
}

#[test]
fn vector_routing_v_hr1() {
    let mut stage = Stage::of("ABCD");
    stage.set_quota('A', quota(window(0.30, HOUR_MS), window(0.60, DAY_MS)));
    stage.set_quota('B', quota(window(0.50, HOUR_MS), window(0.20, DAY_MS)));
    stage.set_quota('D', quota(window(0.90, HOUR_MS), window(0.10, DAY_MS)));
    for (actor, expected) in stage.actors.iter().zip([0.4, 0.5, 1.0, 0.1]) {
        let left = headroom::left(actor.quota.as_ref(), NOW);
        assert!((left - expected).abs() < 1e-12, "{}", actor.key);
    }
    assert_eq!(stage.written(Strategy::Headroom), "CBAD");
}

#[test]
fn vector_routing_v_hr2() {
    let mut stage = Stage::of("BCA");
    assert_eq!(stage.written(Strategy::Headroom), "BCA");
    for letter in ['A', 'B', 'C'] {
        stage.set_quota(letter, quota(window(0.5, HOUR_MS), None));
    }
    assert_eq!(stage.written(Strategy::Headroom), "BCA");
}

#[rstest]
#[case::more_than_everything(quota(window(7.0, HOUR_MS), None), 0.0)]
#[case::less_than_nothing(quota(window(-7.0, HOUR_MS), None), 1.0)]
#[case::began_anew_since(quota(past_window(0.9, 1), window(0.2, DAY_MS)), 0.8)]
#[case::limit_reached(limit_reached(), 0.0)]
#[case::the_overall_share(
    QuotaSnapshot { used: Some(finite(0.3)), ..seen() },
    0.7
)]
#[case::of_the_window_that_is_full(
    QuotaSnapshot { limit_reached: true, ..quota(past_window(1.0, 1), window(0.5, DAY_MS)) },
    0.5
)]
#[case::a_full_week(
    QuotaSnapshot { limit_reached: true, ..quota(past_window(0.5, 1), window(1.0, DAY_MS)) },
    0.0
)]
fn what_is_left(#[case] quota: QuotaSnapshot, #[case] expected: f64) {
    assert!((headroom::left(Some(&quota), NOW) - expected).abs() < 1e-12);
}

/// The snapshot was taken so long ago.
fn ago(quota: QuotaSnapshot, ms: u64) -> QuotaSnapshot {
    QuotaSnapshot {
        observed_at: NOW.minus_ms(ms),
        ..quota
    }
}

fn endless(used: f64) -> QuotaWindow {
    QuotaWindow {
        used: finite(used),
        resets_at: None,
        observed_at: None,
    }
}

#[rstest]
#[case::a_session(quota(endless(1.0), None), 5 * HOUR_MS)]
#[case::a_week(quota(None, endless(1.0)), 7 * DAY_MS)]
#[case::a_month(
    QuotaSnapshot { monthly: Some(endless(1.0)), limit_reached: true, ..seen() },
    30 * DAY_MS
)]
#[case::a_limit_of_no_window(limit_reached(), DAY_MS)]
#[case::a_limit_of_a_window_that_is_not_full(
    QuotaSnapshot { limit_reached: true, ..quota(endless(0.5), endless(0.5)) },
    7 * DAY_MS
)]
#[case::a_limit_of_the_window_that_is_full(
    QuotaSnapshot { limit_reached: true, ..quota(endless(1.0), endless(0.0)) },
    5 * HOUR_MS
)]
#[case::everything(QuotaSnapshot { used: Some(finite(1.0)), ..seen() }, DAY_MS)]
fn without_an_end_what_was_seen_is_over_after_the_length_of_the_window(
    #[case] quota: QuotaSnapshot,
    #[case] length_ms: u64,
) {
    let left = |age_ms| headroom::left(Some(&ago(quota.clone(), age_ms)), NOW);
    assert!(left(length_ms - 1) < 1e-9);
    assert!(left(length_ms) > 0.4);
    // By now the account is not the last any more.
    let worst = score(Some(&ago(quota.clone(), length_ms - 1)));
    assert!(score(Some(&ago(quota.clone(), length_ms))) > worst.max(0.1));
}

#[test]
fn a_limit_of_a_window_ends_with_it() {
    let mut stage = Stage::of("AB");
    stage.set_quota('A', ago(limit_reached(), DAY_MS - 1));
    stage.set_quota(
        'B',
        quota(window(0.9, 5 * HOUR_MS), window(0.9, 7 * DAY_MS)),
    );
    assert_eq!(stage.written(Strategy::ResetAware), "BA");
    stage.set_quota('A', ago(limit_reached(), DAY_MS));
    assert_eq!(stage.written(Strategy::ResetAware), "AB");
}

#[test]
fn a_session_that_began_anew_is_not_guarded() {
    // As vector C, but the session began anew a second ago: nothing is taken off.
    let guarded = quota(window(0.95, 1), window(0.4, 3 * DAY_MS));
    let free = quota(past_window(0.95, 1_000), window(0.4, 3 * DAY_MS));
    assert!((score(Some(&free)) - 2.0 * score(Some(&guarded))).abs() < 0.000_1);
}

#[test]
fn who_may_not_use_the_model_this_week_is_last() {
    let mut stage = Stage::of("ABC");
    let of_model = |model: &ModelId, left_ms| QuotaSnapshot {
        weekly_by_model: vec![(model.clone(), window(1.0, left_ms))],
        ..quota(window(0.0, 5 * HOUR_MS), window(0.0, 7 * DAY_MS))
    };
    let (a, b) = (
        stage.actor('A').model.clone(),
        stage.actor('B').model.clone(),
    );
    stage.set_quota('A', of_model(&a, HOUR_MS));
    stage.set_quota(
        'C',
        quota(window(1.0, 5 * HOUR_MS), window(0.9, 7 * DAY_MS)),
    );
    assert_eq!(stage.written(Strategy::ResetAware), "BCA");
    // That of another model does not matter.
    stage.set_quota('A', of_model(&b, HOUR_MS));
    assert_eq!(stage.written(Strategy::ResetAware), "BAC");
    stage.set_quota('A', of_model(&a, 0));
    assert_eq!(stage.written(Strategy::ResetAware), "BAC");
}
