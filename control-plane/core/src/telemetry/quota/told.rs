//! What is asked of a quota that somebody tells (`ReportQuota`). What headers and endpoints tell comes from the provider
//! and is mended; a caller is told what is wrong.

use std::collections::BTreeSet;

use crate::ids::ModelId;
use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::{MAX_MODEL_WINDOWS, MAX_RESET_MS, counts};

/// How far ahead of the store's clock a caller's may be, in ms.
const MAX_AHEAD_MS: u64 = 60_000;

/// Why a quota that was told makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSense {
    /// There is no window in it, no share and no limit that is reached.
    #[error("it tells nothing")]
    Nothing,
    /// It is older than a quota counts.
    #[error("observed more than 24 hours ago")]
    TooOld,
    /// It is of the future.
    #[error("observed more than a minute ahead")]
    Ahead,
    /// A window has begun anew already.
    #[error("the window has begun anew already")]
    Over(&'static str),
    /// A window begins anew too late.
    #[error("the window begins anew in more than 31 days")]
    TooFar(&'static str),
    /// A model has two windows.
    #[error("{0} has two windows")]
    Twice(ModelId),
    /// Too many models.
    #[error("there are more than 64 models")]
    TooManyModels,
}

impl NoSense {
    /// The member that is wrong, as messages name it.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Nothing => "quota",
            Self::TooOld | Self::Ahead => "observed_at_unix_ms",
            Self::Over(window) | Self::TooFar(window) => window,
            Self::Twice(_) | Self::TooManyModels => "weekly_by_model",
        }
    }
}

/// Checks a quota that is told at `now`. That shares lie within 0 and 1 is not asked here.
///
/// # Errors
/// [`NoSense`], the first that is found.
pub fn check(quota: &QuotaSnapshot, now: Timestamp) -> Result<(), NoSense> {
    let tells = quota.used.is_some() || quota.limit_reached || quota.unreadable;
    if quota.names_no_window() && !tells {
        return Err(NoSense::Nothing);
    }
    if quota.observed_at > now.plus_ms(MAX_AHEAD_MS) {
        return Err(NoSense::Ahead);
    }
    if !counts(quota, now) {
        return Err(NoSense::TooOld);
    }
    if quota.weekly_by_model.len() > MAX_MODEL_WINDOWS {
        return Err(NoSense::TooManyModels);
    }
    let mut models = BTreeSet::new();
    for (model, _) in &quota.weekly_by_model {
        if !models.insert(model) {
            return Err(NoSense::Twice(model.clone()));
        }
    }
    let of_all = [
        ("session", &quota.session),
        ("weekly", &quota.weekly),
        ("monthly", &quota.monthly),
    ];
    let of_all = of_all
        .into_iter()
        .filter_map(|(name, window)| Some((name, window.as_ref()?.resets_at?)));
    let of_models = quota.weekly_by_model.iter();
    let of_models =
        of_models.filter_map(|(_, window)| Some(("weekly_by_model", window.resets_at?)));
    let unnamed = quota.resets_at.map(|at| ("resets_at_unix_ms", at));
    for (name, resets_at) in of_all.chain(of_models).chain(unnamed) {
        if resets_at <= now {
            return Err(NoSense::Over(name));
        }
        if resets_at.remaining_ms(now) > MAX_RESET_MS {
            return Err(NoSense::TooFar(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::QUOTA_MS;
    use super::*;
    use crate::number::Finite;
    use crate::telemetry::QuotaWindow;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn window(resets_at: Timestamp) -> QuotaWindow {
        QuotaWindow {
            used: Finite::ONE,
            resets_at: Some(resets_at),
            observed_at: None,
        }
    }

    fn quota() -> QuotaSnapshot {
        QuotaSnapshot {
            session: Some(window(NOW.plus_ms(1))),
            monthly: Some(window(NOW.plus_ms(MAX_RESET_MS))),
            observed_at: NOW,
            ..QuotaSnapshot::default()
        }
    }

    fn of_models(count: usize) -> QuotaSnapshot {
        let models = (0..count).map(|number| {
            let model = ModelId::new(format!("m{number}")).unwrap();
            (model, window(NOW.plus_ms(1)))
        });
        QuotaSnapshot {
            weekly_by_model: models.collect(),
            observed_at: NOW,
            ..QuotaSnapshot::default()
        }
    }

    #[rstest]
    #[case::windows(quota())]
    #[case::a_minute_ahead(QuotaSnapshot { observed_at: NOW.plus_ms(MAX_AHEAD_MS), ..quota() })]
    #[case::just_not_too_old(QuotaSnapshot { observed_at: NOW.minus_ms(QUOTA_MS - 1), ..quota() })]
    #[case::limit(QuotaSnapshot { limit_reached: true, observed_at: NOW, ..QuotaSnapshot::default() })]
    #[case::unreadable(QuotaSnapshot { unreadable: true, observed_at: NOW, ..QuotaSnapshot::default() })]
    #[case::share(QuotaSnapshot { used: Some(Finite::ZERO), observed_at: NOW, ..QuotaSnapshot::default() })]
    #[case::most_models(of_models(MAX_MODEL_WINDOWS))]
    fn a_quota_that_makes_sense_is_taken(#[case] quota: QuotaSnapshot) {
        assert_eq!(check(&quota, NOW), Ok(()));
    }

    #[rstest]
    #[case::nothing(QuotaSnapshot { observed_at: NOW, ..QuotaSnapshot::default() }, NoSense::Nothing)]
    #[case::end_alone(
        QuotaSnapshot { resets_at: Some(NOW.plus_ms(1)), observed_at: NOW, ..QuotaSnapshot::default() },
        NoSense::Nothing)]
    #[case::ahead(QuotaSnapshot { observed_at: NOW.plus_ms(MAX_AHEAD_MS + 1), ..quota() }, NoSense::Ahead)]
    #[case::too_old(QuotaSnapshot { observed_at: NOW.minus_ms(QUOTA_MS), ..quota() }, NoSense::TooOld)]
    #[case::over(QuotaSnapshot { session: Some(window(NOW)), ..quota() }, NoSense::Over("session"))]
    #[case::unnamed_over(
        QuotaSnapshot { resets_at: Some(NOW.minus_ms(1)), ..quota() }, NoSense::Over("resets_at_unix_ms"))]
    #[case::too_far(
        QuotaSnapshot { weekly: Some(window(NOW.plus_ms(MAX_RESET_MS + 1))), ..quota() }, NoSense::TooFar("weekly"))]
    #[case::too_many_models(of_models(MAX_MODEL_WINDOWS + 1), NoSense::TooManyModels)]
    fn what_makes_none_is_refused(#[case] quota: QuotaSnapshot, #[case] why: NoSense) {
        assert_eq!(check(&quota, NOW), Err(why));
    }

    #[test]
    fn windows_of_models_are_looked_at_too() {
        let mut quota = of_models(2);
        quota.weekly_by_model[1].1 = window(NOW);
        assert_eq!(check(&quota, NOW), Err(NoSense::Over("weekly_by_model")));
        let (model, _) = quota.weekly_by_model[0].clone();
        quota.weekly_by_model[1].0 = model.clone();
        assert_eq!(check(&quota, NOW), Err(NoSense::Twice(model)));
    }
}
