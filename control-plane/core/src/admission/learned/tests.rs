use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::admission::{Admitted, Pace, PaceLimits};
use crate::ids::{AttemptId, ModelId, PlaneIncarnation};
use crate::permit::PERMIT_TTL_MS;

const FREE: PaceLimits = PaceLimits {
    per_minute: None,
    apart_ms: 0,
    concurrent: None,
    ttl_ms: PERMIT_TTL_MS,
};

fn at(ms: u64) -> Timestamp {
    Timestamp(1_000_000).plus_ms(ms)
}

fn model(name: &str) -> ModelId {
    ModelId::new(name).unwrap()
}

fn left(limit: Option<u32>, remaining: u32, resets_at: Timestamp) -> Told {
    Told {
        requests: Some(ToldRequests {
            limit,
            remaining,
            resets_at,
        }),
        tokens: None,
    }
}

fn tokens(tokens: ToldTokens) -> Told {
    Told {
        requests: None,
        tokens: Some(tokens),
    }
}

fn attempt(plane: u64, number: u64) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(plane),
        number,
    }
}

/// Requests of one data plane to one model, one after the other.
struct Line {
    pace: Pace,
    limits: PaceLimits,
    number: u64,
}

impl Line {
    fn taught(told: Told) -> Self {
        let mut pace = Pace::default();
        pace.learn(&model("m"), told, None, at(0));
        Self {
            pace,
            limits: FREE,
            number: 0,
        }
    }

    fn admit(&mut self, now: Timestamp) -> (Admitted, Option<Place>) {
        self.number += 1;
        let attempt = attempt(1, self.number);
        let (admitted, standing) = self
            .pace
            .admit(attempt, Some(&model("m")), self.limits, now);
        (admitted, standing.and_then(|standing| standing.place))
    }

    fn goes(&mut self, now: Timestamp) -> Option<Place> {
        let (admitted, place) = self.admit(now);
        assert_eq!(admitted, Admitted::Now);
        place
    }

    fn learn(&mut self, told: Told, place: Option<Place>, now: Timestamp) {
        self.pace.learn(&model("m"), told, place, now);
    }

    fn is_watched(&self, now: Timestamp) -> bool {
        let plane = PlaneIncarnation(1);
        let mut pace = self.pace.clone();
        pace.look(plane, Some(&model("m")), self.limits, now)
            .1
            .is_some()
    }
}

#[test]
fn an_account_with_plenty_left_teaches_nothing() {
    let line = Line::taught(left(Some(100), 11, at(10_000)));
    assert_eq!(line.pace, Pace::default());
}

#[test]
fn what_is_left_goes_evenly_spread_and_then_nobody_before_the_window_begins_anew() {
    let mut line = Line::taught(left(Some(30), 3, at(8_000)));
    line.goes(at(0));
    assert_eq!(line.admit(at(1)).0, Admitted::Spent(at(2_666)));
    line.goes(at(2_666));
    assert_eq!(line.admit(at(2_666)).0, Admitted::Spent(at(5_333)));
    line.goes(at(5_333));
    assert_eq!(line.admit(at(5_333)).0, Admitted::Spent(at(8_000)));
    assert_eq!(line.admit(at(7_999)).0, Admitted::Spent(at(8_000)));
    line.goes(at(8_000));
}

#[test]
fn without_a_limit_nothing_is_known_of_the_next_window() {
    let mut line = Line::taught(left(None, 0, at(5_000)));
    assert_eq!(line.admit(at(0)).0, Admitted::Spent(at(5_000)));
    for _ in 0..100 {
        assert_eq!(line.goes(at(5_000)), None);
    }
    assert!(!line.is_watched(at(5_000)));
}

#[test]
fn the_next_windows_are_counted_for_a_while() {
    let mut line = Line::taught(left(Some(10), 0, at(2_000)));
    // The next one is there whole, and lasts as long as was told.
    for window in [2_000, 4_000] {
        for number in 0..9 {
            line.goes(at(window + number));
        }
        // The last one is spread over what is left.
        assert_eq!(
            line.admit(at(window + 9)).0,
            Admitted::Spent(at(window + 1_004))
        );
        line.goes(at(window + 1_004));
        assert_eq!(
            line.admit(at(window + 1_999)).0,
            Admitted::Spent(at(window + 2_000))
        );
    }
    assert!(line.is_watched(at(6_000 + WATCH_MS - 1)));
    assert!(!line.is_watched(at(6_000 + WATCH_MS)));
}

#[rstest]
#[case::short_is_taken_for_a_second(100, 1_000)]
#[case::as_told(3_000, 3_000)]
fn a_window_that_nobody_tells_of_lasts_as_long_as_one_did(#[case] told: u64, #[case] lasts: u64) {
    let mut line = Line::taught(left(Some(10), 0, at(told)));
    for number in 0..9 {
        line.goes(at(told + number));
    }
    line.goes(at(told + lasts - 1));
    let spent = line.admit(at(told + lasts - 1)).0;
    assert_eq!(spent, Admitted::Spent(at(told + lasts)));
    // Windows that passed unused do not add up.
    line.goes(at(told + 10 * lasts));
    for number in 1..9 {
        line.goes(at(told + 10 * lasts + number));
    }
    assert!(matches!(
        line.admit(at(told + 10 * lasts + 9)).0,
        Admitted::Spent(_)
    ));
}

#[test]
fn a_bucket_that_fills_up_is_used_again() {
    // Sixty a minute, nearly empty.
    let mut line = Line::taught(left(Some(60), 6, at(54_000)));
    line.goes(at(0));
    let Admitted::Spent(then) = line.admit(at(1)).0 else {
        panic!("it is not spread");
    };
    let place = line.goes(then);
    // Nine seconds later there are nine more.
    line.learn(
        left(Some(60), 13, at(then.0 - 1_000_000 + 47_000)),
        place,
        then.plus_ms(50),
    );
    for _ in 0..6 {
        line.goes(then.plus_ms(60));
    }
}

#[test]
fn an_answer_leaves_less_by_all_that_went_after_its_request() {
    let mut line = Line::taught(left(Some(100), 10, at(60_000)));
    line.learn(left(Some(100), 0, at(1_000)), None, at(0));
    let first = line.goes(at(1_000));
    for number in 1..80 {
        line.goes(at(1_000 + number));
    }
    // Somebody else uses the account as well.
    line.learn(left(Some(100), 85, at(59_000)), first, at(1_100));
    // Six are left, evenly spread.
    assert_eq!(line.admit(at(1_101)).0, Admitted::Spent(at(9_353)));
}

#[test]
fn of_several_answers_the_newest_one_counts() {
    let mut line = Line::taught(left(Some(10), 0, at(1_000)));
    let one = line.goes(at(1_000));
    let two = line.goes(at(5_000));
    line.learn(left(Some(10), 8, at(9_000)), two, at(5_010));
    line.learn(left(Some(10), 0, at(9_000)), one, at(5_020));
    line.goes(at(5_030));
}

#[test]
fn an_answer_of_nobody_knows_which_can_only_hold_back() {
    let mut line = Line::taught(left(Some(10), 1, at(8_000)));
    line.learn(left(Some(10), 9, at(9_000)), None, at(10));
    line.goes(at(10));
    assert_eq!(line.admit(at(7_999)).0, Admitted::Spent(at(8_000)));
    line.learn(left(Some(10), 0, at(9_000)), None, at(8_000));
    assert_eq!(line.admit(at(8_001)).0, Admitted::Spent(at(9_000)));
}

#[rstest]
#[case::of_an_earlier_pace(Place { number: 5, settled: 4 })]
#[case::that_never_went(Place { number: u64::MAX, settled: 4 })]
#[case::without_sense(Place { number: 1_000_000, settled: 1_000_000 })]
fn a_place_that_is_none_raises_nothing(#[case] place: Place) {
    let mut line = Line::taught(left(Some(10), 0, at(8_000)));
    line.learn(left(Some(10), 9, at(8_000)), Some(place), at(10));
    assert_eq!(line.admit(at(20)).0, Admitted::Spent(at(8_000)));
}

#[test]
fn without_tokens_nobody_goes_until_an_answer_tells_of_some() {
    let mut line = Line::taught(left(Some(10), 1, at(30_000)));
    let place = line.goes(at(0));
    line.learn(tokens(ToldTokens::NoneUntil(at(20_000))), None, at(1));
    line.learn(tokens(ToldTokens::Left), None, at(2));
    assert_eq!(line.admit(at(3)).0, Admitted::Spent(at(30_000)));
    let mut line = Line::taught(tokens(ToldTokens::NoneUntil(at(20_000))));
    assert_eq!(line.admit(at(3)).0, Admitted::Spent(at(20_000)));
    assert!(place.is_some());
    line.goes(at(20_000));
    assert!(!line.is_watched(at(20_000)));
}

#[test]
fn an_answer_of_a_counted_request_gives_tokens_back() {
    let mut line = Line::taught(left(Some(100), 10, at(60_000)));
    let place = line.goes(at(0));
    line.learn(tokens(ToldTokens::NoneUntil(at(20_000))), None, at(1));
    assert_eq!(line.admit(at(10_000)).0, Admitted::Spent(at(20_000)));
    line.learn(tokens(ToldTokens::Left), place, at(10_001));
    line.goes(at(10_001));
}

#[test]
fn the_stricter_of_what_is_set_and_what_is_learned_holds() {
    let mut line = Line::taught(left(Some(10), 0, at(1_000)));
    line.limits.apart_ms = 3_000;
    assert_eq!(line.admit(at(0)).0, Admitted::Spent(at(1_000)));
    line.goes(at(1_000));
    assert_eq!(line.admit(at(1_001)).0, Admitted::NotBefore(at(4_000)));
    line.learn(left(Some(10), 0, at(9_000)), None, at(1_002));
    assert_eq!(line.admit(at(1_003)).0, Admitted::Spent(at(9_000)));
}

#[test]
fn another_model_is_not_held_back() {
    let mut pace = Pace::default();
    pace.learn(&model("m"), left(Some(10), 0, at(8_000)), None, at(0));
    for number in 1..100 {
        let (admitted, standing) =
            pace.admit(attempt(1, number), Some(&model("other")), FREE, at(number));
        assert_eq!((admitted, standing), (Admitted::Now, None));
    }
    let held = pace
        .admit(attempt(1, 200), Some(&model("m")), FREE, at(200))
        .0;
    assert_eq!(held, Admitted::Spent(at(8_000)));
}

#[test]
fn only_so_many_models_are_learned() {
    let mut pace = Pace::default();
    for number in 0..1_000 {
        let name = model(&format!("{}{number}", "m".repeat(200)));
        pace.learn(&name, left(Some(10), 0, at(8_000)), None, at(0));
    }
    let bytes = serde_json::to_vec(&pace).unwrap().len();
    assert!(bytes < 16 * 1_024, "{bytes}");
    pace.prune(at(8_000 + WATCH_MS));
    assert_eq!(pace, Pace::default());
}

#[test]
fn who_asks_again_is_counted_once() {
    let mut line = Line::taught(left(Some(20), 2, at(8_000)));
    line.goes(at(0));
    for ms in [1, 2_000] {
        line.number -= 1;
        assert_eq!(line.admit(at(ms)), (Admitted::Now, None));
    }
    line.goes(at(4_000));
}

#[test]
fn a_stored_pace_is_read_back_and_one_of_an_earlier_release_too() {
    let mut line = Line::taught(left(Some(10), 1, at(8_000)));
    line.goes(at(0));
    let text = serde_json::to_string(&line.pace).unwrap();
    assert_eq!(serde_json::from_str::<Pace>(&text).unwrap(), line.pace);
    assert_eq!(line.pace.ends_at(FREE), at(8_000 + WATCH_MS));
    let earlier = r#"{"bucket":null,"last":5,"running":{"holders":{},"waiting":{}}}"#;
    let mut earlier: Pace = serde_json::from_str(earlier).unwrap();
    let found = earlier.admit(attempt(1, 1), Some(&model("m")), FREE, at(0));
    assert_eq!(found, (Admitted::Now, None));
}

/// What one of many data planes does next.
#[derive(Clone, Debug)]
enum Step {
    /// Asks, and sends if it may.
    Sends(u64),
    /// The upstream takes the request that is under way for so long.
    Arrives(usize),
    /// An answer comes and is told.
    Tells(usize),
    /// So many ms pass.
    Passes(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..4).prop_map(Step::Sends),
        4 => (0_usize..4).prop_map(Step::Arrives),
        3 => (0_usize..8).prop_map(Step::Tells),
        2 => (0_u64..400).prop_map(Step::Passes),
    ]
}

proptest! {
    /// A window that is filled up at its end, used by data planes that all ask. In whatever order requests arrive and
    /// answers are told, none is refused.
    #[test]
    fn no_more_go_in_a_window_than_it_takes(
        limit in 1_u32..40,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        const WINDOW_MS: u64 = 10_000;
        let mut pace = Pace::default();
        pace.learn(&model("m"), left(Some(limit), 0, at(WINDOW_MS)), None, at(0));
        let mut now = 0_u64;
        let mut number = 0;
        let mut used: std::collections::BTreeMap<u64, u32> = std::collections::BTreeMap::new();
        let mut under_way: Vec<(Option<Place>, u64)> = Vec::new();
        let mut answers: Vec<(Option<Place>, Told)> = Vec::new();
        for step in steps {
            match step {
                Step::Sends(plane) => {
                    number += 1;
                    let asked = pace.admit(attempt(plane, number), Some(&model("m")), FREE, at(now));
                    if let (Admitted::Now, standing) = asked {
                        under_way.push((standing.and_then(|it| it.place), now));
                    }
                }
                Step::Arrives(which) if !under_way.is_empty() => {
                    let (place, _) = under_way.remove(which % under_way.len());
                    let window = now / WINDOW_MS;
                    let used = used.entry(window).or_default();
                    *used += 1;
                    // It is watched only for so long.
                    if place.is_some() {
                        prop_assert!(*used <= limit, "{used} of {limit} in window {window}");
                    }
                    let resets_at = at((window + 1) * WINDOW_MS);
                    let told = left(Some(limit), limit.saturating_sub(*used), resets_at);
                    answers.push((place, told));
                }
                Step::Tells(which) if !answers.is_empty() => {
                    let (place, told) = answers.remove(which % answers.len());
                    pace.learn(&model("m"), told, place, at(now));
                }
                Step::Passes(ms) => {
                    now += ms;
                    // A request is on its way for less than a second, and for no window's end.
                    let ends = now / WINDOW_MS;
                    for (place, sent) in std::mem::take(&mut under_way) {
                        if now - sent < IN_ORDER_MS && sent / WINDOW_MS == ends {
                            under_way.push((place, sent));
                            continue;
                        }
                        let window = sent / WINDOW_MS;
                        let used = used.entry(window).or_default();
                        *used += 1;
                        if place.is_some() {
                            prop_assert!(*used <= limit, "{used} of {limit} in window {window}");
                        }
                        let resets_at = at((window + 1) * WINDOW_MS);
                        answers.push((place, left(Some(limit), limit.saturating_sub(*used), resets_at)));
                    }
                }
                Step::Arrives(_) | Step::Tells(_) => {}
            }
        }
    }

    /// Never more than were left go before the window begins anew, and who is told to come back then may go then.
    #[test]
    fn never_more_than_were_left_go(
        limit in prop::option::of(1_u32..1_000),
        remaining in 0_u32..50,
        resets_in in 1_u64..=MAX_AHEAD_MS,
        passes in prop::collection::vec((0_u64..5_000, 1_u64..4), 1..200),
    ) {
        let told = left(limit, remaining, at(resets_in));
        let mut pace = Pace::default();
        pace.learn(&model("m"), told, None, at(0));
        if !told.holds_back() {
            prop_assert_eq!(&pace, &Pace::default());
            return Ok(());
        }
        let (mut now, mut went) = (0, 0);
        for (number, (ms, plane)) in (1..).zip(passes) {
            now += ms;
            if now >= resets_in {
                break;
            }
            let asks = attempt(plane, number);
            match pace.admit(asks, Some(&model("m")), FREE, at(now)).0 {
                Admitted::Now => went += 1,
                Admitted::Spent(then) => {
                    prop_assert!(then > at(now) && then <= at(resets_in));
                    let mut later = pace.clone();
                    let found = later.admit(asks, Some(&model("m")), FREE, then).0;
                    prop_assert_eq!(found, Admitted::Now);
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert!(went <= remaining);
    }

    /// Nothing lasts longer than it may, whatever is told and whoever goes.
    #[test]
    fn nothing_outlives_its_bound(
        told in prop::collection::vec(
            (0_u64..3_000, prop::option::of(0_u32..20), 0_u32..20, any::<u64>(), any::<bool>()),
            1..40,
        ),
    ) {
        let mut pace = Pace::default();
        let mut now = 0;
        for (number, (ms, limit, remaining, resets_in, of_tokens)) in (1..).zip(told) {
            now += ms;
            let then = at(now).plus_ms(resets_in);
            let told = if of_tokens {
                tokens(ToldTokens::NoneUntil(then))
            } else {
                left(limit, remaining, then)
            };
            pace.learn(&model("m"), told, None, at(now));
            let (admitted, standing) =
                pace.admit(attempt(1, number), Some(&model("m")), FREE, at(now));
            if let Admitted::Spent(then) = admitted {
                prop_assert!(then <= at(now + MAX_AHEAD_MS));
            }
            if let Some(standing) = standing {
                prop_assert!(standing.until <= at(now + MAX_AHEAD_MS + WATCH_MS));
            }
        }
        let end = at(now + MAX_AHEAD_MS + WATCH_MS);
        prop_assert!(pace.ends_at(FREE) <= end);
        pace.prune(end);
        let found = pace.admit(attempt(1, 999), Some(&model("m")), FREE, end);
        prop_assert_eq!(found, (Admitted::Now, None));
    }
}

#[test]
fn one_that_waits_for_its_models_window_takes_no_turn_from_others_of_its_data_plane() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let (one, other) = (PlaneIncarnation(1), PlaneIncarnation(2));
    let mut pace = Pace::default();
    pace.learn(&model("m"), left(Some(10), 0, at(8_000)), None, at(0));
    assert_eq!(
        pace.admit(attempt(3, 1), None, limits, at(0)).0,
        Admitted::Now
    );
    for (plane, ms) in [(one, 1), (other, 2)] {
        assert_eq!(pace.look(plane, None, limits, at(ms)).0, Admitted::Full);
    }
    let spent = pace.look(one, Some(&model("m")), limits, at(3)).0;
    assert_eq!(spent, Admitted::Spent(at(8_000)));
    pace.running().release(attempt(3, 1));
    assert_eq!(pace.look(other, None, limits, at(4)).0, Admitted::Full);
    assert_eq!(pace.look(one, None, limits, at(4)).0, Admitted::Now);
}
