//! What is read off a quota snapshot, the same for every strategy that looks at quotas.
//!
//! Snapshots often come from answers (decision 39), so those of an account that gets no requests grow old. What they
//! say of a window is over when the window begins anew; otherwise an account that was used up once would never be
//! tried again.

use std::sync::Arc;

use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

use super::{Candidate, Question};

/// Length of the session window.
pub(super) const SESSION_MS: u64 = 5 * 3_600_000;
/// Length of the weekly window.
pub(super) const WEEKLY_MS: u64 = 7 * 86_400_000;
/// Length of the monthly window.
pub(super) const MONTHLY_MS: u64 = 30 * 86_400_000;

/// What is known of the quota of the candidate's account. Nothing where the account is not known yet.
pub(super) fn of(question: &Question<'_>, candidate: &Candidate<'_>) -> Option<Arc<QuotaSnapshot>> {
    question.telemetry.quota(candidate.connection?)
}

/// Share of the window that is used, 0..=1, as it was seen.
pub(super) fn used(window: &QuotaWindow) -> f64 {
    window.used.get().clamp(0.0, 1.0)
}

/// Share of the window that is used now, 0..=1: none of one that began anew since it was seen.
pub(super) fn used_now(window: &QuotaWindow, now: Timestamp) -> f64 {
    if window.resets_at.is_some_and(|end| end <= now) {
        0.0
    } else {
        used(window)
    }
}

/// The provider said that the limit is reached, and none of the windows it may have meant began anew since: those that
/// are full, or all where none is.
pub(super) fn limit_stands(quota: &QuotaSnapshot, now: Timestamp) -> bool {
    if !quota.limit_reached {
        return false;
    }
    let windows = || {
        [&quota.session, &quota.weekly, &quota.monthly]
            .into_iter()
            .flatten()
    };
    let full = windows()
        .filter(|window| used(window) >= 1.0)
        .filter_map(|window| window.resets_at)
        .max();
    let any = || {
        windows()
            .filter_map(|window| window.resets_at)
            .chain(quota.resets_at)
            .max()
    };
    full.or_else(any).is_none_or(|end| end > now)
}
