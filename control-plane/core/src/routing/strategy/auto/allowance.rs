//! What an account may still use (`routing.md` §9.2, quota).

use crate::ids::ModelId;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
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
    /// When the tightest window begins anew.
    pub(super) returns_at: Option<Timestamp>,
    /// Length of the shortest window, in seconds.
    pub(super) interval_secs: f64,
}

impl Allowance {
    pub(super) fn of(snapshot: Option<&QuotaSnapshot>, model: &ModelId, now: Timestamp) -> Self {
        let Some(snapshot) = snapshot else {
            return Self {
                left: 1.0,
                unreadable: false,
                returns_at: None,
                interval_secs: UNKNOWN_INTERVAL_SECS,
            };
        };
        let of_model = snapshot
            .weekly_by_model
            .iter()
            .filter(|(of, _)| of == model)
            .map(|(_, window)| window);
        let everything = snapshot.used.map(|used| QuotaWindow {
            used,
            resets_at: snapshot.resets_at,
        });
        let tightest = snapshot
            .session
            .iter()
            .chain(&snapshot.weekly)
            .chain(&snapshot.monthly)
            .chain(of_model)
            .max_by(|one, other| quota::used_now(one, now).total_cmp(&quota::used_now(other, now)))
            .or(everything.as_ref());
        let used_up = snapshot.unreadable || quota::limit_stands(snapshot, now);
        Self {
            left: match tightest {
                _ if used_up => 0.0,
                Some(window) => 1.0 - quota::used_now(window, now),
                None => 1.0,
            },
            unreadable: snapshot.unreadable,
            returns_at: tightest
                .and_then(|window| window.resets_at)
                .or(snapshot.resets_at),
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
