//! Scores that are compared: a total order over fractions.

use std::cmp::Ordering;

/// What numbers may differ by and still be taken for equal at a limit: decimal fractions are not exact.
pub(in crate::routing) const ROUNDING: f64 = 1e-9;

/// A score. What is no number is less than everything else, so that it never comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Score(f64);

impl Score {
    /// Less than every score that says something.
    pub(super) const WORST: Self = Self(f64::NEG_INFINITY);

    /// The score.
    pub(super) fn new(score: f64) -> Self {
        if score.is_nan() {
            Self::WORST
        } else {
            // One zero, so that equal scores are ties.
            Self(score + 0.0)
        }
    }

    /// The number.
    pub(super) fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
