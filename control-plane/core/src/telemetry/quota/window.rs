//! Windows of a quota, as everything that looks at quotas reads them.
//!
//! Snapshots often come from answers (decision 39), so those of an account that gets no requests grow old. What they
//! say of a window is over when the window begins anew; otherwise an account that was used up once would never be
//! tried again. Where the end of a window is not known, it is over when it has lasted for its whole length since it was
//! seen.

use crate::ids::ModelId;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

/// Length of the session window.
pub(crate) const SESSION_MS: u64 = 5 * 3_600_000;
/// Length of the weekly window.
pub(crate) const WEEKLY_MS: u64 = 7 * 86_400_000;
/// Length of the monthly window.
pub(crate) const MONTHLY_MS: u64 = 30 * 86_400_000;
/// How long what is said of no window holds, where no window is known.
const NO_WINDOW_MS: u64 = 86_400_000;

/// What begins anew within this time is no quota that lasts, in ms: one hour.
const SHORT_MS: u64 = 3_600_000;

/// Which window it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowName {
    /// Of 5 hours.
    Session,
    /// Of 7 days, for all models or for one.
    Weekly,
    /// Of 30 days.
    Monthly,
    /// The provider names no window.
    Unnamed,
}

/// A window as it was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) name: WindowName,
    /// Share that was used, 0..=1.
    pub(crate) used: f64,
    /// When it begins anew, where the provider said so.
    pub(crate) resets_at: Option<Timestamp>,
    /// When what was seen of it is over at the latest.
    pub(crate) over_at: Timestamp,
}

impl Window {
    fn of(name: WindowName, window: &QuotaWindow, length_ms: u64, quota: &QuotaSnapshot) -> Self {
        let seen_at = window.observed_at.unwrap_or(quota.observed_at);
        let lapses_at = seen_at.plus_ms(length_ms);
        Self {
            name,
            used: window.used.get().clamp(0.0, 1.0),
            resets_at: window.resets_at,
            over_at: window.resets_at.unwrap_or(lapses_at),
        }
    }

    /// It began anew since it was seen.
    pub(crate) fn is_over(self, now: Timestamp) -> bool {
        self.over_at <= now
    }

    /// Share of it that is used now, 0..=1: none of one that began anew.
    pub(crate) fn used_now(self, now: Timestamp) -> f64 {
        if self.is_over(now) { 0.0 } else { self.used }
    }
}

/// The window of 5 hours.
pub(crate) fn session(quota: &QuotaSnapshot) -> Option<Window> {
    let window = quota.session.as_ref()?;
    Some(Window::of(WindowName::Session, window, SESSION_MS, quota))
}

/// The window of 7 days.
pub(crate) fn weekly(quota: &QuotaSnapshot) -> Option<Window> {
    let window = quota.weekly.as_ref()?;
    Some(Window::of(WindowName::Weekly, window, WEEKLY_MS, quota))
}

/// The window of 30 days.
pub(crate) fn monthly(quota: &QuotaSnapshot) -> Option<Window> {
    let window = quota.monthly.as_ref()?;
    Some(Window::of(WindowName::Monthly, window, MONTHLY_MS, quota))
}

/// The windows of 7 days that are this model's alone.
pub(crate) fn weekly_of_model<'a>(
    quota: &'a QuotaSnapshot,
    model: &'a ModelId,
) -> impl Iterator<Item = Window> + 'a {
    quota
        .weekly_by_model
        .iter()
        .filter(move |(of, _)| of == model)
        .map(|(_, window)| Window::of(WindowName::Weekly, window, WEEKLY_MS, quota))
}

/// Everything together, where the provider names no window of it.
pub(crate) fn everything(quota: &QuotaSnapshot) -> Option<Window> {
    let window = QuotaWindow {
        used: quota.used?,
        resets_at: quota.resets_at,
        observed_at: quota.unnamed_observed_at,
    };
    Some(Window::of(
        WindowName::Unnamed,
        &window,
        longest_ms(quota),
        quota,
    ))
}

/// The windows that a model draws on; where none is known, everything together.
pub(crate) fn windows<'a>(
    quota: &'a QuotaSnapshot,
    model: &'a ModelId,
) -> impl Iterator<Item = Window> + 'a {
    let mut named = named(quota, model).peekable();
    let unnamed = match named.peek() {
        Some(_) => None,
        None => everything(quota),
    };
    named.chain(unnamed)
}

/// The same without what lasts for minutes: what has no name and begins anew within [`SHORT_MS`] is the limit of a
/// minute or so, as headers tell it.
pub(crate) fn lasting<'a>(
    quota: &'a QuotaSnapshot,
    model: &'a ModelId,
    now: Timestamp,
) -> impl Iterator<Item = Window> + 'a {
    let is_named = named(quota, model).next().is_some();
    windows(quota, model)
        .filter(move |window| is_named || window.over_at.remaining_ms(now) >= SHORT_MS)
}

/// Every window there is; where none is known, everything together.
pub(super) fn every(quota: &QuotaSnapshot) -> impl Iterator<Item = Window> + use<'_> {
    let of_models = quota.weekly_by_model.iter();
    let of_models =
        of_models.map(|(_, window)| Window::of(WindowName::Weekly, window, WEEKLY_MS, quota));
    let mut named = of_all_models(quota).chain(of_models).peekable();
    let unnamed = match named.peek() {
        Some(_) => None,
        None => everything(quota),
    };
    named.chain(unnamed)
}

/// The provider said that the limit is reached, and none of the windows it may have meant began anew since: those that
/// are full, or all where none is.
pub(crate) fn limit_stands(quota: &QuotaSnapshot, now: Timestamp) -> bool {
    limit_until(quota).is_some_and(|end| end > now)
}

/// Until when a limit that was reached stands; `None` where none was.
pub(crate) fn limit_until(quota: &QuotaSnapshot) -> Option<Timestamp> {
    if !quota.limit_reached {
        return None;
    }
    let full = of_all_models(quota).filter(|window| window.used >= 1.0);
    let full = full.map(|window| window.over_at).max();
    let any = || {
        of_all_models(quota)
            .map(|window| window.over_at)
            .chain(quota.resets_at)
            .max()
    };
    full.or_else(any)
        .or_else(|| Some(quota.observed_at.plus_ms(NO_WINDOW_MS)))
}

/// When all of these windows are over at the latest; `None` when there is none.
pub(crate) fn latest_end(windows: impl Iterator<Item = Window>) -> Option<Timestamp> {
    windows.map(|window| window.over_at).max()
}

fn named<'a>(quota: &'a QuotaSnapshot, model: &'a ModelId) -> impl Iterator<Item = Window> + 'a {
    of_all_models(quota).chain(weekly_of_model(quota, model))
}

fn of_all_models(quota: &QuotaSnapshot) -> impl Iterator<Item = Window> + use<'_> {
    [session(quota), weekly(quota), monthly(quota)]
        .into_iter()
        .flatten()
}

/// Length of the longest window that is known.
fn longest_ms(quota: &QuotaSnapshot) -> u64 {
    if quota.monthly.is_some() {
        MONTHLY_MS
    } else if quota.weekly.is_some() || !quota.weekly_by_model.is_empty() {
        WEEKLY_MS
    } else if quota.session.is_some() {
        SESSION_MS
    } else {
        NO_WINDOW_MS
    }
}
