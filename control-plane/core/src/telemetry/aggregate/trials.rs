//! Failures in a row of a target, told by several and counted once (`routing.md` §9.1 step 5).
//!
//! Each replica hears of a part of them, and how long a target is left alone depends on all of them in their order. So
//! what is kept is not the count but the failures themselves since the last success; the fleet's are merged and the
//! count is made of them anew. When there are many, those that do not count leave, and then the oldest steps: from the
//! ninth failure on each step is as long as the one before.

use crate::routing::strategy::auto::Adaptation;
use crate::time::Timestamp;

use super::TargetPast;

/// Most failures that are kept.
pub const MAX_FAILURES: usize = 15;
/// So many of the oldest leave when there are more: the failures of one step.
const STEP: usize = 3;

/// A failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// When it failed.
    pub at: Timestamp,
    /// When it had begun.
    pub began_at: Timestamp,
}

impl TargetPast {
    /// Takes in failures.
    pub(super) fn fail(&mut self, failures: Vec<Failure>) {
        self.failures.extend(failures);
        self.failures.sort_unstable();
        self.failures.dedup();
        // What failed before a success began is over.
        let began_at = self.good_began_at;
        self.failures.retain(|failure| failure.at > began_at);
        if self.failures.len() > MAX_FAILURES {
            let mut adaptation = Adaptation::default();
            self.failures
                .retain(|failure| adaptation.failed(failure.began_at, failure.at));
        }
        while self.failures.len() > MAX_FAILURES {
            self.failures.drain(..STEP);
        }
    }

    /// Until when `auto` leaves the target alone.
    pub(in crate::telemetry) fn adaptation_until(&self) -> Option<Timestamp> {
        let mut adaptation = Adaptation::default();
        let good_at = self.good.as_ref().map(|good| good.at);
        let (before, after): (Vec<Failure>, Vec<Failure>) = self
            .failures
            .iter()
            .partition(|failure| good_at.is_some_and(|good_at| failure.at <= good_at));
        for failure in before {
            adaptation.failed(failure.began_at, failure.at);
        }
        if good_at.is_some() {
            adaptation.succeeded(self.good_began_at);
        }
        for failure in after {
            adaptation.failed(failure.began_at, failure.at);
        }
        adaptation.until()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::ProviderId;
    use crate::telemetry::LastKnownGood;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);
    const MINUTE_MS: u64 = 60_000;

    fn failed(began_ms: u64, at_ms: u64) -> TargetPast {
        let mut target = TargetPast::default();
        target.fail(vec![Failure {
            at: NOW.plus_ms(at_ms),
            began_at: NOW.plus_ms(began_ms),
        }]);
        target
    }

    fn served(began_ms: u64, at_ms: u64) -> TargetPast {
        TargetPast {
            good: Some(LastKnownGood {
                provider: ProviderId::new("p").unwrap(),
                connection: None,
                at: NOW.plus_ms(at_ms),
            }),
            good_began_at: NOW.plus_ms(began_ms),
            ..TargetPast::default()
        }
    }

    fn sum(parts: impl IntoIterator<Item = TargetPast>) -> TargetPast {
        parts
            .into_iter()
            .fold(TargetPast::default(), |mut sum, part| {
                sum.absorb(part);
                sum
            })
    }

    fn minutes(target: &TargetPast) -> Option<u64> {
        let last = target.failures.last().map(|failure| failure.at)?;
        Some(target.adaptation_until()?.ms_since(last) / MINUTE_MS)
    }

    #[test]
    fn failures_that_replicas_heard_of_count_together() {
        let one = sum([failed(10, 11), failed(30, 31)]);
        let two = failed(20, 21);
        assert_eq!((minutes(&one), minutes(&two)), (None, None));
        assert_eq!(minutes(&sum([one, two])), Some(5));
    }

    #[test]
    fn each_third_failure_makes_it_longer_up_to_an_hour() {
        let of = |count: u64| sum((0..count).map(|number| failed(number * 10, number * 10 + 1)));
        let steps = [2, 3, 6, 9, 12, 15, 18, 300].map(|count| minutes(&of(count)));
        let expected = [
            None,
            Some(5),
            Some(15),
            Some(60),
            Some(60),
            Some(60),
            Some(60),
            Some(60),
        ];
        assert_eq!(steps, expected);
        assert!(of(300).failures.len() <= MAX_FAILURES);
    }

    #[test]
    fn thirty_at_once_are_one_incident() {
        let target = sum((0..30).map(|number| failed(0, 100 + number)));
        assert!(target.failures.len() <= MAX_FAILURES);
        let until = target.adaptation_until();
        assert_eq!(until, Some(NOW.plus_ms(102 + 5 * MINUTE_MS)));
    }

    #[test]
    fn a_success_ends_it_unless_it_was_under_way() {
        let failures = || (1..=3).map(|number| failed(number * 10, number * 10 + 1));
        let ended = sum(failures().chain([served(40, 50)]));
        assert_eq!((ended.adaptation_until(), ended.failures.len()), (None, 0));
        let stands = sum(failures().chain([served(5, 50)]));
        assert!(stands.adaptation_until().is_some());
    }

    proptest! {
        #[test]
        fn it_makes_no_difference_who_heard_of_what_first(
            parts in prop::collection::btree_map(0_u64..2_000, (0_u64..500, any::<bool>()), 1..14),
            rotation in 0_usize..14,
            split in 0_usize..14,
        ) {
            let mut parts: Vec<TargetPast> = parts
                .iter()
                .map(|(at, (took, good))| {
                    let at = 1_000 + at;
                    if *good { served(at - took, at) } else { failed(at - took, at) }
                })
                .collect();
            let one = sum(parts.clone());
            let count = parts.len();
            parts.rotate_left(rotation % count);
            let rest = parts.split_off(split % count);
            let two = sum([sum(rest), sum(parts)]);
            prop_assert_eq!(one.adaptation_until(), two.adaptation_until());
            prop_assert_eq!(one.failures, two.failures);
        }
    }
}
