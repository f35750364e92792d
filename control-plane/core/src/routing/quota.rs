//! When an account's quota counts as used up before it is (`routing.md` §3, gate 6).

use crate::ids::ModelId;
use crate::telemetry::QuotaSnapshot;
use crate::time::Timestamp;

use super::strategy::quota::{Window, is_enough, latest_end, limit_until, windows};

/// Too little is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutOff {
    /// When enough is left again, or what is known of it counts no more.
    pub(super) until: Timestamp,
}

/// Whether at most the share `cutoff` (0..=1) of it is left of any window that a model uses, and until when: all such windows
/// must have begun anew, or have lasted for their whole length since they were seen. Where no window is known, what is
/// known of the whole counts. Nothing known is no reason.
pub(super) fn cut_off(
    snapshot: &QuotaSnapshot,
    model: &ModelId,
    cutoff: impl Fn(&Window) -> f64,
    at: Timestamp,
) -> Option<CutOff> {
    let is_spent =
        |window: &Window| !window.is_over(at) && is_enough(cutoff(window), 1.0 - window.used);
    let spent = windows(snapshot, model).filter(is_spent);
    let until = latest_end(spent).or_else(|| limit_until(snapshot).filter(|end| *end > at))?;
    Some(CutOff { until })
}
