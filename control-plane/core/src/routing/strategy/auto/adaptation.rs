//! How long a target that keeps failing is left alone by `auto` (`routing.md` §9.1 step 5, §9.4).
//!
//! Failures in a row keep it away, the third for 5 minutes, the sixth for 15, the ninth and each third after it for 60.
//! A success ends that. A low score is not kept: it is made anew for each request ([`super::healing`]).
//!
//! As with cooldowns (decision 9), what was under way when an exclusion began neither lengthens nor ends it: thirty
//! failures at once are one incident.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// Failures in a row from one exclusion to the next.
const FAILURES_PER_STEP: u32 = 3;
const FIRST_MS: u64 = 5 * 60_000;
const SECOND_MS: u64 = 15 * 60_000;
const LONGEST_MS: u64 = 60 * 60_000;

/// What is kept per target of a combo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adaptation {
    /// Failures in a row.
    failures: u32,
    /// When the last exclusion for failures began.
    escalated_at: Option<Timestamp>,
    /// When it ends.
    failing_until: Option<Timestamp>,
}

impl Adaptation {
    /// An attempt that began at `started_at` failed at `at`. Returns whether that counts.
    pub fn failed(&mut self, started_at: Timestamp, at: Timestamp) -> bool {
        if self.was_under_way(started_at) {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if !self.failures.is_multiple_of(FAILURES_PER_STEP) {
            return true;
        }
        let length_ms = match self.failures / FAILURES_PER_STEP {
            0 | 1 => FIRST_MS,
            2 => SECOND_MS,
            _ => LONGEST_MS,
        };
        self.escalated_at = Some(at);
        self.failing_until = self.failing_until.max(Some(at.plus_ms(length_ms)));
        true
    }

    /// An attempt that began at `started_at` succeeded.
    pub fn succeeded(&mut self, started_at: Timestamp) {
        if !self.was_under_way(started_at) {
            *self = Self::default();
        }
    }

    /// Until when the target is left alone, if it ever was since its last success.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.failing_until
    }

    fn was_under_way(&self, started_at: Timestamp) -> bool {
        self.escalated_at.is_some_and(|began| started_at < began)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const START: Timestamp = Timestamp(1_800_000_000_000);
    const MINUTE_MS: u64 = 60_000;

    fn after_failures(count: u64) -> (Adaptation, Timestamp) {
        let mut adaptation = Adaptation::default();
        let mut at = START;
        for _ in 0..count {
            at = at.plus_ms(1_000);
            adaptation.failed(at, at);
        }
        (adaptation, at)
    }

    #[rstest]
    #[case::two(2, None)]
    #[case::three(3, Some(5))]
    #[case::six(6, Some(15))]
    #[case::nine(9, Some(60))]
    #[case::twelve(12, Some(60))]
    fn every_third_failure_in_a_row_keeps_the_target_away(
        #[case] failures: u64,
        #[case] minutes: Option<u64>,
    ) {
        let (adaptation, at) = after_failures(failures);
        let expected = minutes.map(|minutes| at.plus_ms(minutes * MINUTE_MS));
        assert_eq!(adaptation.until(), expected);
    }

    #[test]
    fn between_two_steps_the_end_stands() {
        let (third, _) = after_failures(3);
        let (fifth, _) = after_failures(5);
        assert_eq!(fifth.until(), third.until());
    }

    #[test]
    fn a_success_starts_over() {
        let (mut adaptation, at) = after_failures(8);
        adaptation.succeeded(at);
        assert_eq!(adaptation, Adaptation::default());
    }

    #[test]
    fn thirty_failures_at_once_are_one_incident() {
        let mut adaptation = Adaptation::default();
        for number in 0..30 {
            adaptation.failed(START, START.plus_ms(1_000 + number));
        }
        let third = START.plus_ms(1_002);
        assert_eq!(adaptation.until(), Some(third.plus_ms(5 * MINUTE_MS)));
    }

    #[test]
    fn a_success_that_was_under_way_ends_nothing() {
        let (mut adaptation, at) = after_failures(3);
        let excluded = adaptation.clone();
        adaptation.succeeded(at.minus_ms(1));
        assert_eq!(adaptation, excluded);
    }

    proptest! {
        #[test]
        fn an_end_is_never_further_than_an_hour_and_never_moves_back_by_failures(
            events in proptest::collection::vec((0..100_000_u64, 0..50_000_u64), 0..100),
        ) {
            let mut adaptation = Adaptation::default();
            let mut at = START;
            for (gap_ms, took_ms) in events {
                at = at.plus_ms(gap_ms);
                let before = adaptation.until();
                adaptation.failed(at.minus_ms(took_ms), at);
                prop_assert!(adaptation.until() >= before);
                prop_assert!(adaptation.until().is_none_or(|end| end <= at.plus_ms(60 * MINUTE_MS)));
            }
        }
    }
}
