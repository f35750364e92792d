//! What is known of the quota of a candidate, the same for every strategy and gate that looks at quotas. How windows
//! are read is [`telemetry::quota`](crate::telemetry::quota)'s.

use std::sync::Arc;

use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::score::ROUNDING;
use super::{Candidate, Question};

pub(super) use crate::telemetry::quota::window::{
    MONTHLY_MS, WEEKLY_MS, everything, limit_stands, monthly, session, weekly, weekly_of_model,
};
pub(in crate::routing) use crate::telemetry::quota::window::{
    SESSION_MS, Window, lasting, latest_end, limit_until, windows,
};

/// What is known of the quota of the candidate's account. Nothing where the account is not known yet.
pub(super) fn of(question: &Question<'_>, candidate: &Candidate<'_>) -> Option<Arc<QuotaSnapshot>> {
    question.telemetry.quota(candidate.connection?)
}

/// Nothing is left of the window now.
pub(super) fn is_used_up(window: Window, now: Timestamp) -> bool {
    is_enough(window.used_now(now), 1.0)
}

/// Whether a share that is left is at least the one that is asked for.
pub(in crate::routing) fn is_enough(left: f64, wanted: f64) -> bool {
    left + ROUNDING >= wanted
}
