//! When a quota endpoint is asked for a connection.
//!
//! Every interval, a tenth more or less, so that the connections of a provider spread. Who begins to poll goes on from
//! what is known: a quota that was told a moment ago is not asked for again at once, and a new owner does not ask for all
//! of them together. A failure doubles the pause, up to a quarter of an hour or one interval, whichever is longer; an
//! endpoint that says when to come again (`Retry-After`) is left alone until then, an hour at most. A quota is only a hint,
//! so nothing of this counts against a connection.

use crate::random::Random;
use crate::time::Timestamp;

/// Longest pause that failures lead to, in ms, where the interval is not longer.
const MAX_PAUSE_MS: u64 = 15 * 60_000;
/// Longest wait that an endpoint is believed, in ms.
const MAX_WAIT_MS: u64 = 3_600_000;
/// First polls are spread over this time, in ms, or over an interval that is shorter.
const SPREAD_MS: u64 = 5_000;

/// The polls of one connection. Moments are of any clock that does not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    interval_ms: u64,
    due_at: Timestamp,
    /// Failures in a row.
    failures: u32,
}

impl Poll {
    /// Begins at `now`; `age_ms` is how old what is known of the quota is.
    #[must_use]
    pub fn begin(
        interval_ms: u64,
        age_ms: Option<u64>,
        now: Timestamp,
        random: &mut Random,
    ) -> Self {
        let fresh_ms = age_ms.map_or(0, |age_ms| interval_ms.saturating_sub(age_ms));
        let spread_ms = below(SPREAD_MS.min(interval_ms), random);
        Self {
            interval_ms,
            due_at: now.plus_ms(fresh_ms).plus_ms(spread_ms),
            failures: 0,
        }
    }

    /// From when on the endpoint is to be asked.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        self.due_at
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The endpoint told the quota that was asked for at `asked_at`.
    pub fn succeed(&mut self, asked_at: Timestamp, random: &mut Random) {
        self.failures = 0;
        self.due_at = asked_at.plus_ms(spread(self.interval_ms, random));
    }

    /// It did not; `wait_ms` is how long it wants to be left alone.
    pub fn fail(&mut self, wait_ms: Option<u64>, now: Timestamp, random: &mut Random) {
        self.failures = self.failures.saturating_add(1);
        let factor = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let longest_ms = MAX_PAUSE_MS.max(self.interval_ms);
        let pause_ms = self.interval_ms.saturating_mul(factor).min(longest_ms);
        let wait_ms = wait_ms.map_or(0, |wait_ms| wait_ms.min(MAX_WAIT_MS));
        self.due_at = now.plus_ms(spread(pause_ms, random).max(wait_ms));
    }
}

/// A tenth less to a tenth more.
fn spread(ms: u64, random: &mut Random) -> u64 {
    let tenth = ms / 10;
    ms.saturating_sub(tenth)
        .saturating_add(below(tenth.saturating_mul(2).saturating_add(1), random))
}

fn below(bound: u64, random: &mut Random) -> u64 {
    let bound = usize::try_from(bound).unwrap_or(usize::MAX);
    u64::try_from(random.below(bound)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_756_479_600_000);
    const MINUTE_MS: u64 = 60_000;

    fn random() -> impl Iterator<Item = Random> {
        (0..100).map(Random::new)
    }

    /// How long until it is due, in ms.
    fn pause(poll: &Poll) -> u64 {
        poll.due_at().remaining_ms(NOW)
    }

    #[test]
    fn the_first_poll_is_spread_and_goes_on_from_what_is_known() {
        for mut random in random() {
            let fresh = Poll::begin(MINUTE_MS, None, NOW, &mut random);
            assert!(pause(&fresh) < SPREAD_MS);
            let short = Poll::begin(1_000, None, NOW, &mut random);
            assert!(pause(&short) < 1_000);
            let known = Poll::begin(MINUTE_MS, Some(20_000), NOW, &mut random);
            assert!((40_000..45_000).contains(&pause(&known)), "{known:?}");
            let stale = Poll::begin(MINUTE_MS, Some(u64::MAX), NOW, &mut random);
            assert!(pause(&stale) < SPREAD_MS);
        }
    }

    #[test]
    fn failures_double_the_pause_up_to_a_limit_and_a_success_ends_that() {
        for mut random in random() {
            let mut poll = Poll::begin(MINUTE_MS, None, NOW, &mut random);
            poll.succeed(NOW, &mut random);
            assert!((54_000..=66_000).contains(&pause(&poll)), "{poll:?}");
            for minutes in [2, 4, 8, 15, 15] {
                poll.fail(None, NOW, &mut random);
                let about = minutes * 54_000..=minutes * 66_000;
                assert!(about.contains(&pause(&poll)), "{minutes}: {poll:?}");
            }
            poll.failures = u32::MAX;
            poll.fail(None, NOW, &mut random);
            assert!(pause(&poll) <= 15 * 66_000);
            poll.succeed(NOW, &mut random);
            assert!(pause(&poll) <= 66_000);
            let mut rare = Poll::begin(6 * 3_600_000, None, NOW, &mut random);
            rare.fail(None, NOW, &mut random);
            assert!(pause(&rare) >= 6 * 54 * MINUTE_MS, "never more often");
        }
    }

    #[test]
    fn an_endpoint_is_left_alone_as_long_as_it_says() {
        let mut random = Random::new(1);
        let mut after = |value| {
            let mut poll = Poll::begin(1_000, None, NOW, &mut random);
            poll.fail(Some(value), NOW, &mut random);
            pause(&poll)
        };
        assert_eq!(after(120_000), 120_000);
        assert_eq!(after(u64::MAX), MAX_WAIT_MS);
        assert!((1_800..=2_200).contains(&after(1)), "not sooner for that");
    }
}
