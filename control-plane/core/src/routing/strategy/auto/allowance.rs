//! What an account may still use (`routing.md` §9.2, quota).

use crate::ids::ModelId;
use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::super::quota;

/// How often quotas begin anew where it is not known, in seconds.
const UNKNOWN_INTERVAL_SECS: f64 = 86_400.0;
const SESSION_SECS: f64 = 18_000.0;
const WEEKLY_SECS: f64 = 604_800.0;
const MONTHLY_SECS: f64 = 2_592_000.0;

/// What is left of the quotas of an account.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Allowance {
    /// Share that is left of the tightest window, 0..=1; 1 where nothing is known, 0 where it could not be read.
    pub(super) left: f64,
    /// It was asked for and could not be read.
    pub(super) unreadable: bool,
    /// When no window is below the cut-off any more; `None` where none is.
    pub(super) returns_at: Option<Timestamp>,
    /// Length of the shortest window, in seconds.
    pub(super) interval_secs: f64,
}

impl Allowance {
    /// For a model, with a cut-off below this share, 0..=1.
    pub(super) fn of(
        snapshot: Option<&QuotaSnapshot>,
        model: &ModelId,
        cutoff: f64,
        now: Timestamp,
    ) -> Self {
        let Some(snapshot) = snapshot else {
            return Self {
                left: 1.0,
                unreadable: false,
                returns_at: None,
                interval_secs: UNKNOWN_INTERVAL_SECS,
            };
        };
        let left_of = |window: quota::Window| 1.0 - window.used_now(now);
        let windows = || quota::windows(snapshot, model);
        let limit_stands = quota::limit_stands(snapshot, now);
        let left = if snapshot.unreadable || limit_stands {
            0.0
        } else {
            windows().map(left_of).fold(1.0, f64::min)
        };
        let too_little = windows().filter(|window| !quota::is_enough(left_of(*window), cutoff));
        let of_limit = quota::limit_until(snapshot).filter(|_| limit_stands);
        Self {
            left,
            unreadable: snapshot.unreadable,
            returns_at: quota::latest_end(too_little).max(of_limit),
            interval_secs: interval_secs(snapshot),
        }
    }
}

fn interval_secs(snapshot: &QuotaSnapshot) -> f64 {
    if snapshot.session.is_some() {
        SESSION_SECS
    } else if snapshot.weekly.is_some() || !snapshot.weekly_by_model.is_empty() {
        WEEKLY_SECS
    } else if snapshot.monthly.is_some() {
        MONTHLY_SECS
    } else {
        UNKNOWN_INTERVAL_SECS
    }
}
