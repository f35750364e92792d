//! `reset-aware`: the quota that would be lost soonest first (`routing.md` §8.10).
//!
//! A window scores by what is left of it and, more so, by *pressure*: what is used of a window that is about to begin
//! anew. An account that is nearly used up for this session is held back, until the session begins anew. Accounts whose
//! scores are within a band of the best take turns. Who may not use the model any more this week is last, as is
//! who reached the limit.
//!
//! An account of which nothing is known scores 0.5, more than one whose windows just began (0.32): it has to be used
//! for anything to become known.

use std::cmp::Reverse;

use crate::config::ComboConfig;
use crate::ids::ModelId;
use crate::number::Finite;
use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::quota::Window;
use super::score::{ROUNDING, Score};
use super::{Halt, Order, Ordered, Question, quota, tie};

/// Score of an account of which nothing is known, and what is left of a window of which nothing is known.
const UNKNOWN: f64 = 0.5;
/// Shares of a score that a monthly window has.
const MONTHLY_SHARE: f64 = 0.25;
/// An account that is held back keeps at least this part of its score.
const LEAST_GUARDED: f64 = 0.05;

/// Descending by score, near equals in turn.
#[derive(Debug)]
pub(super) struct ResetAware;

impl Order for ResetAware {
    fn expands_accounts(&self) -> bool {
        true
    }

    fn order(&self, question: &Question<'_>) -> Result<Ordered, Halt> {
        let terms = Terms::of(question.config);
        let order = tie::sorted_with_turns(
            question,
            |candidate| {
                let quota = quota::of(question, &candidate);
                Reverse(terms.score(quota.as_deref(), candidate.model, question.now))
            },
            |Reverse(best), Reverse(other)| {
                best.get().is_finite() && best.get() - other.get() <= terms.band + ROUNDING
            },
        )?;
        Ok(order.into())
    }
}

/// The score of an account for a model; minus infinity where its limit is reached.
#[cfg(test)]
pub(super) fn score(
    quota: Option<&QuotaSnapshot>,
    model: &ModelId,
    config: &ComboConfig,
    now: Timestamp,
) -> f64 {
    Terms::of(config).score(quota, model, now).get()
}

/// The numbers of the configuration, as shares.
#[derive(Clone, Copy, Debug)]
struct Terms {
    session: f64,
    weekly: f64,
    band: f64,
    guard: f64,
}

impl Terms {
    fn of(config: &ComboConfig) -> Self {
        let number = |written: Option<Finite>, default: f64| {
            written.map_or(default, |number| number.get().max(0.0))
        };
        let (session, weekly) = normalised(
            number(config.reset_aware_session_weight, 0.35),
            number(config.reset_aware_weekly_weight, 0.65),
        )
        .unwrap_or((0.35, 0.65));
        Self {
            session,
            weekly,
            band: number(config.reset_aware_tie_band_percent, 5.0) / 100.0,
            guard: number(config.reset_aware_exhaustion_guard_percent, 10.0) / 100.0,
        }
    }

    fn score(&self, quota: Option<&QuotaSnapshot>, model: &ModelId, now: Timestamp) -> Score {
        let Some(quota) = quota else {
            return Score::new(UNKNOWN);
        };
        let of_model_is_used_up =
            || quota::weekly_of_model(quota, model).any(|window| quota::is_used_up(window, now));
        if quota::limit_stands(quota, now) || of_model_is_used_up() {
            return Score::WORST;
        }
        let says_nothing = quota.session.is_none()
            && quota.weekly.is_none()
            && quota.monthly.is_none()
            && quota.used.is_none();
        if says_nothing {
            return Score::new(UNKNOWN);
        }
        let of_session = quota::session(quota);
        let session = Left::of(of_session, quota, quota::SESSION_MS, now);
        let weekly = Left::of(quota::weekly(quota), quota, quota::WEEKLY_MS, now);
        let mut score = self.session * session.score(0.45) + self.weekly * weekly.score(0.25);
        if quota.monthly.is_some() {
            let monthly = Left::of(quota::monthly(quota), quota, quota::MONTHLY_MS, now);
            score = (1.0 - MONTHLY_SHARE) * score + MONTHLY_SHARE * monthly.score(0.25);
        }
        let began_anew = of_session.is_some_and(|window| window.is_over(now));
        if session.remaining < self.guard && !began_anew {
            score *= (session.remaining / self.guard).max(LEAST_GUARDED);
        }
        Score::new(score)
    }
}

/// The two weights so that they add up to 1; `None` where they cannot.
fn normalised(session: f64, weekly: f64) -> Option<(f64, f64)> {
    let largest = session.max(weekly);
    if largest <= 0.0 {
        return None;
    }
    // By the largest first, since the sum of two large numbers may be infinite.
    let (session, weekly) = (session / largest, weekly / largest);
    let total = session + weekly;
    Some((session / total, weekly / total))
}

/// What a window has left, and how soon that is lost, both 0..=1.
#[derive(Clone, Copy, Debug)]
struct Left {
    remaining: f64,
    urgency: f64,
}

impl Left {
    fn of(window: Option<Window>, quota: &QuotaSnapshot, length_ms: u64, now: Timestamp) -> Self {
        let overall = || Some(quota::everything(quota)?.used_now(now));
        let used = window.map(|window| window.used).or_else(overall);
        Self {
            remaining: used.map_or(UNKNOWN, |used| 1.0 - used),
            urgency: urgency(window, length_ms, now),
        }
    }

    /// `share` for what is left, the rest of it for pressure.
    fn score(self, share: f64) -> f64 {
        let pressure = self.urgency * (1.0 - self.remaining);
        share * self.remaining + (1.0 - share) * pressure
    }
}

/// How soon the windows of 5 hours and 7 days begin anew, by their weights, 0..=1.
pub(super) fn windows_urgency(
    config: &ComboConfig,
    quota: Option<&QuotaSnapshot>,
    now: Timestamp,
) -> f64 {
    let terms = Terms::of(config);
    let session = quota.and_then(quota::session);
    let weekly = quota.and_then(quota::weekly);
    terms.session * urgency(session, quota::SESSION_MS, now)
        + terms.weekly * urgency(weekly, quota::WEEKLY_MS, now)
}

/// 0 where the window just began, 1 where it begins anew now or did since it was seen, in the middle where its end is not
/// known.
#[expect(
    clippy::cast_precision_loss,
    reason = "lengths of windows are far below 2^53 ms, and longer times are cut off"
)]
fn urgency(window: Option<Window>, length_ms: u64, now: Timestamp) -> f64 {
    match window {
        Some(window) if window.is_over(now) => 1.0,
        Some(Window {
            resets_at: Some(end),
            ..
        }) => {
            let left_ms = end.remaining_ms(now).min(length_ms);
            1.0 - left_ms as f64 / length_ms as f64
        }
        Some(_) | None => UNKNOWN,
    }
}
