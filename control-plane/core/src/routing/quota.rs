//! When an account's quota counts as used up before it is (`routing.md` §3, gate 6).

use crate::ids::ModelId;
use crate::telemetry::{QuotaSnapshot, QuotaWindow};
use crate::time::Timestamp;

/// Shares that differ by less are equal.
const ROUNDING: f64 = 1e-9;

/// Too little is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOff {
    /// When enough is left again; `None` when nobody knows.
    pub(super) until: Option<Timestamp>,
}

/// Whether at most the share `cutoff` (0..=1) is left of any window that a model uses, and until when: all such windows
/// must have begun anew. A window whose end passed is full again. Where no window is known, what is known of the whole
/// counts. Nothing known is no reason.
pub(super) fn cut_off(
    snapshot: &QuotaSnapshot,
    model: &ModelId,
    cutoff: f64,
    at: Timestamp,
) -> Option<CutOff> {
    let of_model = snapshot
        .weekly_by_model
        .iter()
        .filter(|(named, _)| named == model)
        .map(|(_, window)| *window);
    let mut windows: Vec<QuotaWindow> = [snapshot.session, snapshot.weekly, snapshot.monthly]
        .into_iter()
        .flatten()
        .chain(of_model)
        .collect();
    if windows.is_empty()
        && let Some(used) = snapshot.used
    {
        windows.push(QuotaWindow {
            used,
            resets_at: snapshot.resets_at,
        });
    }
    let is_over = |end: Option<Timestamp>| end.is_some_and(|end| end <= at);
    let spent: Vec<QuotaWindow> = windows
        .into_iter()
        .filter(|window| window.used.get() + ROUNDING >= 1.0 - cutoff && !is_over(window.resets_at))
        .collect();
    if spent.is_empty() {
        return (snapshot.limit_reached && !is_over(snapshot.resets_at)).then_some(CutOff {
            until: snapshot.resets_at,
        });
    }
    let ends: Option<Vec<Timestamp>> = spent.iter().map(|window| window.resets_at).collect();
    Some(CutOff {
        until: ends.and_then(|ends| ends.into_iter().max()),
    })
}
