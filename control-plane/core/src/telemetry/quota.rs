//! Quotas of an account: who tells them, and what is known when several did (decision 39).
//!
//! | room | what it holds |
//! |---|---|
//! | `headers` | what headers of answers tell |
//! | `answer` | what the answer of a quota endpoint tells |
//! | `told` | what is asked of a quota that somebody tells |
//! | `poll` | when a quota endpoint is asked |
//! | `window` | how windows are read, and until when a limit stands |
//! | `low` | when people should look at a quota, and how it stands in a word |

mod answer;
mod headers;
mod low;
mod poll;
mod told;
pub(crate) mod window;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;

use crate::ids::ModelId;
use crate::time::Timestamp;

use super::{QuotaSnapshot, QuotaWindow};

pub use answer::{NotUnderstood, read as of_answer};
pub(crate) use headers::short_windows;
pub use headers::{is_quota_header, read as of_headers};
pub use low::{Standing, is_low, standing};
pub use poll::Poll;
pub use told::{NoSense, check};

/// Most windows of single models in a snapshot.
pub const MAX_MODEL_WINDOWS: usize = 64;
/// How long a quota that nobody tells anew counts, in ms: 24 hours.
pub const QUOTA_MS: u64 = 24 * 3_600_000;
/// Latest end of a window that is believed, from now in ms: 31 days.
const MAX_RESET_MS: u64 = 31 * 86_400_000;

/// How long ago a window that a provider tells of may have begun anew: clocks differ, in ms.
const MAX_BEHIND_MS: u64 = 60_000;

/// Who told a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaSource {
    /// Headers of an answer.
    Headers,
    /// Somebody who asked the provider for it: a fetcher, or our poll of an endpoint.
    Fetched,
}

/// Quotas of one connection, by who told them.
pub type Told = BTreeMap<QuotaSource, QuotaSnapshot>;

/// Whether a quota still counts at `now`.
#[must_use]
pub fn counts(quota: &QuotaSnapshot, now: Timestamp) -> bool {
    now.ms_since(quota.observed_at) < QUOTA_MS
}

/// The moment when a provider says that a window begins anew, unless it is too far away or long past: 0 and the like
/// stand for "not known", and a window that is full is not to be taken for one that begins anew now.
fn believed(moment: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let is_near = moment.remaining_ms(now) <= MAX_RESET_MS && now.ms_since(moment) < MAX_BEHIND_MS;
    is_near.then_some(moment)
}

/// Adds what a source told to what it had told before ([`merged`]).
pub fn add(told: &mut Told, source: QuotaSource, quota: QuotaSnapshot) {
    let held = told.entry(source).or_default();
    *held = merged(mem::take(held), quota);
}

/// What is known at `now` when all of these were told: of each window what was told of it last. Answers often tell the
/// limits of a minute and nothing of the week.
///
/// A limit that a fetched one says is reached stands, whatever headers of later answers say, until it is fetched anew
/// or the window that it may have meant begins anew: few headers say anything of it.
#[must_use]
pub fn combined(
    told: impl IntoIterator<Item = (QuotaSource, QuotaSnapshot)>,
    now: Timestamp,
) -> Option<QuotaSnapshot> {
    let told: Vec<_> = told.into_iter().collect();
    let fetched = told
        .iter()
        .find(|(source, _)| *source == QuotaSource::Fetched);
    let limit_stands = fetched.is_some_and(|(_, quota)| window::limit_stands(quota, now));
    let mut known = told.into_iter().map(|(_, quota)| quota).reduce(merged)?;
    known.forget(now);
    // A share without a window says nothing once it has begun anew.
    if known.resets_at.is_some_and(|end| end <= now) && known.used.is_some() {
        known.used = None;
        known.resets_at = None;
    }
    known.limit_reached |= limit_stands;
    Some(known)
}

/// What is kept of two: of each window what was told of it last, and of the rest what the newer one says. It makes no
/// difference which is which, nor in which order many are merged: so nothing is dropped here that an older one could
/// bring back, also not what has begun anew ([`QuotaSnapshot::forget`]).
#[must_use]
pub fn merged(one: QuotaSnapshot, two: QuotaSnapshot) -> QuotaSnapshot {
    let (older, newer) = if one.observed_at <= two.observed_at {
        (one, two)
    } else {
        (two, one)
    };
    let at = newer.observed_at;
    let (mut older, mut newer) = (older.dated(), newer.dated());
    newer.session = told_last(older.session, newer.session);
    newer.weekly = told_last(older.weekly, newer.weekly);
    newer.monthly = told_last(older.monthly, newer.monthly);
    newer.weekly_by_model = of_models(older.weekly_by_model, newer.weekly_by_model);
    let newer_tells = newer.used.is_some() || newer.resets_at.is_some();
    let older_tells = older.used.is_some() || older.resets_at.is_some();
    let is_last = older_tells && older.unnamed_observed_at > newer.unnamed_observed_at;
    if is_last || (older_tells && !newer_tells) {
        mem::swap(&mut newer.used, &mut older.used);
        mem::swap(&mut newer.resets_at, &mut older.resets_at);
        newer.unnamed_observed_at = older.unnamed_observed_at;
    }
    newer.undated(at)
}

fn told_last(older: Option<QuotaWindow>, newer: Option<QuotaWindow>) -> Option<QuotaWindow> {
    match (older, newer) {
        (Some(older), Some(newer)) if older.observed_at > newer.observed_at => Some(older),
        (older, newer) => newer.or(older),
    }
}

/// The same of the windows of models. Of too many those that were told last stay.
fn of_models(
    older: Vec<(ModelId, QuotaWindow)>,
    newer: Vec<(ModelId, QuotaWindow)>,
) -> Vec<(ModelId, QuotaWindow)> {
    let mut windows: BTreeMap<ModelId, QuotaWindow> = BTreeMap::new();
    for (model, window) in older.into_iter().chain(newer) {
        let last = told_last(windows.get(&model).copied(), Some(window));
        windows.extend(last.map(|last| (model, last)));
    }
    let mut windows: Vec<_> = windows.into_iter().collect();
    if windows.len() > MAX_MODEL_WINDOWS {
        windows.sort_by_key(|(_, window)| Reverse(window.observed_at));
        windows.truncate(MAX_MODEL_WINDOWS);
        windows.sort_by(|(one, _), (two, _)| one.cmp(two));
    }
    windows
}

impl QuotaSnapshot {
    /// Drops what was told of a window too long before `now`.
    pub fn forget_old(&mut self, now: Timestamp) {
        self.retain(|at, _| now.ms_since(at) < QUOTA_MS);
    }

    /// Drops what no longer counts at `now`: what is too old, and of windows that were told before the newest those that
    /// had begun anew by then.
    pub fn forget(&mut self, now: Timestamp) {
        self.forget_old(now);
        let newest = self.observed_at;
        self.retain(|at, end| at >= newest || end.is_none_or(|end| end > newest));
    }

    /// Keeps the windows for which this holds, by the moment they were told at and by their end.
    fn retain(&mut self, stands: impl Fn(Timestamp, Option<Timestamp>) -> bool) {
        let newest = self.observed_at;
        let stands = |at: Option<Timestamp>, end| stands(at.unwrap_or(newest), end);
        let window_stands = |window: &QuotaWindow| stands(window.observed_at, window.resets_at);
        self.session = self.session.filter(window_stands);
        self.weekly = self.weekly.filter(window_stands);
        self.monthly = self.monthly.filter(window_stands);
        self.weekly_by_model
            .retain(|(_, window)| window_stands(window));
        if !stands(self.unnamed_observed_at, self.resets_at) {
            self.used = None;
            self.resets_at = None;
            self.unnamed_observed_at = None;
        }
    }

    /// Takes moments after `latest` for that.
    pub fn end_at(&mut self, latest: Timestamp) {
        self.observed_at = self.observed_at.min(latest);
        for at in self.moments() {
            *at = at.map(|at| at.min(latest));
        }
    }

    /// Each window with the moment that it was told at.
    fn dated(mut self) -> Self {
        let all = self.observed_at;
        for at in self.moments() {
            *at = at.or(Some(all));
        }
        self
    }

    /// The reverse: only what was told before the snapshot's own moment has one of its own.
    fn undated(mut self, all: Timestamp) -> Self {
        let tells = self.used.is_some() || self.resets_at.is_some();
        for at in self.moments() {
            *at = at.filter(|at| *at != all);
        }
        if !tells {
            self.unnamed_observed_at = None;
        }
        self
    }

    fn moments(&mut self) -> impl Iterator<Item = &mut Option<Timestamp>> {
        let of_all = [&mut self.session, &mut self.weekly, &mut self.monthly];
        let of_models = self.weekly_by_model.iter_mut();
        of_all
            .into_iter()
            .flatten()
            .chain(of_models.map(|(_, window)| window))
            .map(|window| &mut window.observed_at)
            .chain([&mut self.unnamed_observed_at])
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::number::Finite;
    use crate::telemetry::QuotaWindow;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn window(used: f64) -> QuotaWindow {
        QuotaWindow {
            used: Finite::new(used).unwrap(),
            resets_at: Some(NOW.plus_ms(1_000)),
            observed_at: None,
        }
    }

    fn at(observed_ms: u64) -> QuotaSnapshot {
        QuotaSnapshot {
            observed_at: NOW.plus_ms(observed_ms),
            ..QuotaSnapshot::default()
        }
    }

    fn told_at(observed_ms: u64, window: QuotaWindow) -> QuotaWindow {
        QuotaWindow {
            observed_at: Some(NOW.plus_ms(observed_ms)),
            ..window
        }
    }

    #[test]
    fn of_one_source_the_newest_counts_and_other_windows_go_on_until_their_end() {
        let model = ModelId::new("m").unwrap();
        let endless = QuotaWindow {
            resets_at: None,
            ..window(0.4)
        };
        let subscription = QuotaSnapshot {
            session: Some(window(0.2)),
            weekly: Some(window(1.0)),
            monthly: Some(endless),
            weekly_by_model: vec![(model.clone(), window(0.7))],
            limit_reached: true,
            ..at(0)
        };
        let minute = QuotaSnapshot {
            session: Some(window(0.3)),
            used: Some(Finite::new(0.5).unwrap()),
            ..at(999)
        };
        let expected = QuotaSnapshot {
            weekly: Some(told_at(0, window(1.0))),
            monthly: Some(told_at(0, endless)),
            weekly_by_model: vec![(model, told_at(0, window(0.7)))],
            ..minute
        };
        assert_eq!(merged(subscription.clone(), minute.clone()), expected);
        assert_eq!(merged(minute, subscription.clone()), expected);
        let mut later = merged(subscription, at(1_000));
        later.forget(NOW.plus_ms(1_000));
        let expected = QuotaSnapshot {
            monthly: Some(told_at(0, endless)),
            ..at(1_000)
        };
        assert_eq!(later, expected, "what has begun anew is over");
        later.forget(NOW.plus_ms(QUOTA_MS));
        assert_eq!(later, at(1_000), "what nobody tells anew is over");
    }

    #[test]
    fn each_window_counts_by_its_own_moment_however_parts_are_merged() {
        let week = |used, observed_ms| QuotaSnapshot {
            weekly: Some(window(used)),
            ..at(observed_ms)
        };
        let parts = [week(0.2, 0), week(0.9, 3), at(5)];
        let expected = QuotaSnapshot {
            weekly: Some(told_at(3, window(0.9))),
            ..at(5)
        };
        for order in [[0, 1, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1]] {
            let parts = order.map(|index: usize| parts[index].clone());
            assert_eq!(parts.into_iter().reduce(merged), Some(expected.clone()));
        }
    }

    #[test]
    fn a_window_that_goes_on_from_old_headers_does_not_hide_what_was_fetched_since() {
        let minute = |observed_ms| QuotaSnapshot {
            used: Some(Finite::new(0.5).unwrap()),
            ..at(observed_ms)
        };
        let monday = QuotaSnapshot {
            weekly: Some(window(0.2)),
            ..at(0)
        };
        let fetched = QuotaSnapshot {
            weekly: Some(window(0.95)),
            ..at(10)
        };
        let headers = merged(monday, minute(20));
        let known = combined(both(&fetched, &headers), NOW.plus_ms(20)).unwrap();
        assert_eq!(known.weekly, Some(told_at(10, window(0.95))));
        assert_eq!(known.used, minute(20).used);
    }

    #[test]
    fn windows_of_models_are_bounded() {
        let named = |from: usize| QuotaSnapshot {
            weekly_by_model: (from..from + MAX_MODEL_WINDOWS)
                .map(|number| (ModelId::new(format!("m{number}")).unwrap(), window(0.1)))
                .collect(),
            ..at(0)
        };
        let known = merged(named(1), named(0));
        assert_eq!(known.weekly_by_model.len(), MAX_MODEL_WINDOWS);
    }

    fn both(fetched: &QuotaSnapshot, seen: &QuotaSnapshot) -> [(QuotaSource, QuotaSnapshot); 2] {
        [
            (QuotaSource::Fetched, fetched.clone()),
            (QuotaSource::Headers, seen.clone()),
        ]
    }

    #[rstest]
    #[case::whatever_later_headers_say(true, None, 1, true)]
    #[case::until_the_full_window_begins_anew(true, Some(1.0), 999, true)]
    #[case::it_began_anew(true, Some(1.0), 1_000, false)]
    #[case::for_a_day_where_no_window_is_told(true, None, 86_399_999, true)]
    #[case::a_day_is_over(true, None, 86_400_000, false)]
    #[case::it_was_never_said(false, Some(1.0), 1, false)]
    fn a_limit_that_was_fetched_stands(
        #[case] limit_reached: bool,
        #[case] session: Option<f64>,
        #[case] after_ms: u64,
        #[case] expected: bool,
    ) {
        let fetched = QuotaSnapshot {
            session: session.map(window),
            limit_reached,
            ..at(0)
        };
        let seen = QuotaSnapshot {
            session: Some(window(0.3)),
            ..at(1)
        };
        let known = combined(both(&fetched, &seen), NOW.plus_ms(after_ms)).unwrap();
        assert_eq!(known.limit_reached, expected);
        assert_eq!(known.session, seen.session);
    }

    #[rstest]
    #[case::fetched_since(true, false, false)]
    #[case::said_since(false, true, true)]
    fn the_newest_says_whether_the_limit_is_reached(
        #[case] before: bool,
        #[case] after: bool,
        #[case] expected: bool,
    ) {
        let seen = QuotaSnapshot {
            limit_reached: before,
            ..at(0)
        };
        let fetched = QuotaSnapshot {
            limit_reached: after,
            ..at(1)
        };
        assert_eq!(
            combined(both(&fetched, &seen), NOW.plus_ms(2))
                .unwrap()
                .limit_reached,
            expected
        );
    }

    #[test]
    fn the_newest_counts_and_others_fill_in_windows_it_does_not_name() {
        let fetched = QuotaSnapshot {
            session: Some(window(0.2)),
            weekly: Some(window(0.9)),
            observed_at: NOW.minus_ms(5_000),
            ..QuotaSnapshot::default()
        };
        let seen = QuotaSnapshot {
            session: Some(window(0.3)),
            used: Some(Finite::new(0.5).unwrap()),
            resets_at: Some(NOW.plus_ms(60_000)),
            observed_at: NOW,
            ..QuotaSnapshot::default()
        };
        let known = combined(both(&fetched, &seen), NOW).unwrap();
        assert_eq!(known.session, Some(window(0.3)));
        let weekly = QuotaWindow {
            observed_at: Some(fetched.observed_at),
            ..window(0.9)
        };
        assert_eq!(known.weekly, Some(weekly));
        assert_eq!(known.used, seen.used);
        let later = combined(both(&fetched, &seen), NOW.plus_ms(60_000)).unwrap();
        assert_eq!((later.used, later.resets_at), (None, None));
        assert_eq!(combined([], NOW), None);
    }
}
