//! Quotas of an account: who tells them, and what is known when several did (decision 39).

mod headers;

use std::cmp::Reverse;

use crate::time::Timestamp;

use super::QuotaSnapshot;

pub use headers::{is_quota_header, read as of_headers};

/// Who told a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaSource {
    /// Headers of an answer.
    Headers,
    /// Somebody who asked the provider for it: a fetcher, or our poll of an endpoint.
    Fetched,
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
        known.session = known.session.or(older.session);
        known.weekly = known.weekly.or(older.weekly);
        known.monthly = known.monthly.or(older.monthly);
        if known.weekly_by_model.is_empty() {
            known.weekly_by_model = older.weekly_by_model;
        }
        if known.used.is_none() && known.resets_at.is_none() {
            known.used = older.used;
            known.resets_at = older.resets_at;
        }
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Finite;
    use crate::telemetry::QuotaWindow;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn window(used: f64) -> QuotaWindow {
        QuotaWindow {
            used: Finite::new(used).unwrap(),
            resets_at: Some(NOW.plus_ms(1_000)),
        }
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
