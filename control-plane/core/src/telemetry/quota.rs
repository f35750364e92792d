//! Quotas of an account: who tells them, and what is known when several did (decision 39).
//!
//! | room | what it holds |
//! |---|---|
//! | `headers` | what headers of answers tell |
//! | `answer` | what the answer of a quota endpoint tells |
//! | `told` | what is asked of a quota that somebody tells |
//! | `poll` | when a quota endpoint is asked |

mod answer;
mod headers;
mod poll;
mod told;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;

use crate::time::Timestamp;

use super::{QuotaSnapshot, QuotaWindow};

pub use answer::{NotUnderstood, read as of_answer};
pub use headers::{is_quota_header, read as of_headers};
pub use poll::Poll;
pub use told::{NoSense, check};

/// Most windows of single models in a snapshot.
pub const MAX_MODEL_WINDOWS: usize = 64;
/// How long a quota that nobody tells anew counts, in ms: 24 hours.
pub const QUOTA_MS: u64 = 24 * 3_600_000;
/// Latest end of a window that is believed, from now in ms: 31 days.
const MAX_RESET_MS: u64 = 31 * 86_400_000;

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

/// Adds what a source told to what it had told before ([`merged`]).
pub fn add(told: &mut Told, source: QuotaSource, quota: QuotaSnapshot) {
    let held = told.entry(source).or_default();
    *held = merged(mem::take(held), quota);
}

/// What is known at `now` when all of these were told: the newest counts, and of windows that it does not name the
/// newest that does. Answers often tell the limits of a minute and nothing of the week.
#[must_use]
pub fn combined(
    quotas: impl IntoIterator<Item = QuotaSnapshot>,
    now: Timestamp,
) -> Option<QuotaSnapshot> {
    let mut quotas: Vec<QuotaSnapshot> = quotas.into_iter().collect();
    quotas.sort_by_key(|quota| Reverse(quota.observed_at));
    for quota in &mut quotas {
        // A share without a window says nothing once it has begun anew.
        if quota.resets_at.is_some_and(|end| end <= now) && quota.used.is_some() {
            quota.used = None;
            quota.resets_at = None;
        }
    }
    let mut quotas = quotas.into_iter();
    let mut known = quotas.next()?;
    for older in quotas {
        known.fill_in(older);
    }
    Some(known)
}

/// What is kept of two that one source told: the newer one, and of windows that it does not name those of the other one
/// that had not begun anew by then. Where the end of a window is not known, only its own snapshot tells its age.
#[must_use]
pub fn merged(one: QuotaSnapshot, two: QuotaSnapshot) -> QuotaSnapshot {
    let (mut older, mut newer) = if one.observed_at <= two.observed_at {
        (one, two)
    } else {
        (two, one)
    };
    let goes_on = |end: Option<Timestamp>| end.is_some_and(|end| end > newer.observed_at);
    let stands = |window: &QuotaWindow| goes_on(window.resets_at);
    older.session = older.session.filter(stands);
    older.weekly = older.weekly.filter(stands);
    older.monthly = older.monthly.filter(stands);
    older.weekly_by_model.retain(|(_, window)| stands(window));
    if !goes_on(older.resets_at) {
        older.used = None;
        older.resets_at = None;
    }
    newer.fill_in(older);
    newer
}

impl QuotaSnapshot {
    /// Takes from an older one what this one does not name.
    fn fill_in(&mut self, older: Self) {
        self.session = self.session.or(older.session);
        self.weekly = self.weekly.or(older.weekly);
        self.monthly = self.monthly.or(older.monthly);
        for (model, window) in older.weekly_by_model {
            let is_new = self
                .weekly_by_model
                .iter()
                .all(|(named, _)| *named != model);
            if is_new && self.weekly_by_model.len() < MAX_MODEL_WINDOWS {
                self.weekly_by_model.push((model, window));
            }
        }
        if self.used.is_none() && self.resets_at.is_none() {
            self.used = older.used;
            self.resets_at = older.resets_at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ModelId;
    use crate::number::Finite;
    use crate::telemetry::QuotaWindow;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn window(used: f64) -> QuotaWindow {
        QuotaWindow {
            used: Finite::new(used).unwrap(),
            resets_at: Some(NOW.plus_ms(1_000)),
        }
    }

    fn at(observed_ms: u64) -> QuotaSnapshot {
        QuotaSnapshot {
            observed_at: NOW.plus_ms(observed_ms),
            ..QuotaSnapshot::default()
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
            weekly: Some(window(1.0)),
            weekly_by_model: vec![(model, window(0.7))],
            ..minute
        };
        assert_eq!(merged(subscription.clone(), minute.clone()), expected);
        assert_eq!(merged(minute, subscription.clone()), expected);
        let late = at(1_000);
        assert_eq!(merged(subscription, late.clone()), late);
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

    #[test]
    fn the_newest_counts_and_others_fill_in_windows_it_does_not_name() {
        let fetched = QuotaSnapshot {
            session: Some(window(0.2)),
            weekly: Some(window(0.9)),
            limit_reached: true,
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
        let known = combined([fetched.clone(), seen.clone()], NOW).unwrap();
        assert_eq!(known.session, Some(window(0.3)));
        assert_eq!(known.weekly, Some(window(0.9)));
        assert_eq!(known.used, seen.used);
        assert!(!known.limit_reached);
        let later = combined([seen, fetched], NOW.plus_ms(60_000)).unwrap();
        assert_eq!((later.used, later.resets_at), (None, None));
        assert_eq!(combined([], NOW), None);
    }
}
