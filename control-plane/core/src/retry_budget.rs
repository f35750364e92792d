//! How many requests may be retries (decision 49), so that a provider in trouble is not also flooded.
//!
//! A budget is a share of the requests in flight, with a floor below which nobody is held back. Each data plane keeps its
//! own: shares add up to the share of the fleet, and the floor is divided by the live data planes. An attempt after a
//! request's first one is a retry, whichever target or account it goes to; it counts while it is in flight.

use crate::number::Finite;

/// What may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Share of the requests in flight, 0..=1; 0 = no limit.
    pub ratio: Finite,
    /// Retries in flight that the whole fleet may always have.
    pub floor: u32,
}

impl RetryBudget {
    /// No further retry may begin. `in_flight` requests and `retries` among them are this data plane's; of the floor it
    /// has its part among `live_planes`, rounded up.
    #[must_use]
    pub fn is_spent(&self, in_flight: u32, retries: u32, live_planes: u32) -> bool {
        let ratio = self.ratio.get();
        if ratio <= 0.0 {
            return false;
        }
        let floor = self.floor.div_ceil(live_planes.max(1));
        retries >= floor && f64::from(retries) >= ratio * f64::from(in_flight)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::below_the_floor(10, 9, 1, false)]
    #[case::at_the_floor(10, 10, 1, true)]
    #[case::above_the_floor_within_the_share(100, 19, 1, false)]
    #[case::at_the_share(100, 20, 1, true)]
    #[case::part_of_the_floor(5, 2, 4, false)]
    #[case::part_of_the_floor_rounded_up(5, 3, 4, true)]
    #[case::nobody_lives(10, 9, 0, false)]
    #[case::nothing_in_flight(0, 0, u32::MAX, false)]
    fn a_budget_is_spent(
        #[case] in_flight: u32,
        #[case] retries: u32,
        #[case] live_planes: u32,
        #[case] expected: bool,
    ) {
        let budget = RetryBudget {
            ratio: Finite::new(0.2).unwrap(),
            floor: 10,
        };
        assert_eq!(budget.is_spent(in_flight, retries, live_planes), expected);
    }

    #[test]
    fn a_share_of_nothing_is_no_limit() {
        let budget = RetryBudget {
            ratio: Finite::ZERO,
            floor: 0,
        };
        assert!(!budget.is_spent(1, u32::MAX, 1));
    }
}
