//! How often something that may happen with every request is told.

use crate::time::Timestamp;

/// Pause between two lines, in ms (decision 54).
pub const LINE_PAUSE_MS: u64 = 1_000;

/// One line a second at most, with the number of those that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinePace {
    told_at: Option<Timestamp>,
    left_out: u64,
}

impl LinePace {
    /// Something happened: `None` when it is not told, else how many before it were not.
    pub fn tell(&mut self, now: Timestamp) -> Option<u64> {
        let is_soon = self
            .told_at
            .is_some_and(|told_at| now.ms_since(told_at) < LINE_PAUSE_MS);
        if is_soon {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.told_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_in_a_second_and_the_others_are_counted() {
        let mut pace = LinePace::default();
        let told: Vec<Option<u64>> = [5_000, 5_001, 5_999, 6_000, 9_000, 9_999]
            .map(|now| pace.tell(Timestamp(now)))
            .to_vec();
        assert_eq!(told, [Some(0), None, None, Some(2), Some(0), None]);
    }
}
