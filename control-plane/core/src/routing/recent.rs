//! How many requests were sent to an account just now, which telemetry may not tell of yet.
//!
//! Telemetry counts requests under way in the whole fleet, and tells of them about a second late (decision 37). A burst
//! within that second would find every account idle. So who sends a request counts it here at once (`routing.md` §11.3
//! step 5), until telemetry must have it. From then on telemetry knows better, also when it ends, so nothing has to
//! be given back here, and a process that dies leaves nothing behind.

use crate::time::Timestamp;

const SECOND_MS: u64 = 1_000;
const BITS: u32 = 16;
const MASK: u64 = 0xffff;

/// What was sent in one second and in the one before, in one number, so that it changes at once.
///
/// From the low end: 16 bits for the later second, 16 for the earlier one, 32 for the number of the later second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent(u64);

impl Recent {
    /// From [`Self::to_bits`].
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// As one number.
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    /// One more is sent.
    #[must_use]
    pub(super) fn sent(self, now: Timestamp) -> Self {
        let (second, earlier, later) = self.at(now);
        let later = later.saturating_add(1).min(MASK);
        Self((second << (2 * BITS)) | (earlier << BITS) | later)
    }

    /// How many were sent in this second and the one before.
    pub(super) fn count(self, now: Timestamp) -> u32 {
        let (_, earlier, later) = self.at(now);
        u32::try_from(earlier.saturating_add(later)).unwrap_or(u32::MAX)
    }

    /// The second of `now` with what was sent in the one before and in it. A clock that steps back stands still.
    fn at(self, now: Timestamp) -> (u64, u64, u64) {
        let known = self.0 >> (2 * BITS);
        let (earlier, later) = ((self.0 >> BITS) & MASK, self.0 & MASK);
        // Ends in the year 2106, when everything counts as sent in the last second.
        let second = now
            .0
            .checked_div(SECOND_MS)
            .unwrap_or(0)
            .min(u64::from(u32::MAX));
        match second.saturating_sub(known) {
            0 => (known, earlier, later),
            1 => (second, later, 0),
            _ => (second, 0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    #[test]
    fn what_is_sent_counts_until_telemetry_has_it() {
        let sent = Recent::default().sent(NOW).sent(NOW.plus_ms(900));
        assert_eq!(sent.count(NOW.plus_ms(900)), 2);
        assert_eq!(sent.count(NOW.plus_ms(1_999)), 2);
        assert_eq!(sent.count(NOW.plus_ms(2_000)), 0);
        let more = sent.sent(NOW.plus_ms(1_500));
        assert_eq!(more.count(NOW.plus_ms(1_500)), 3);
        assert_eq!(more.count(NOW.plus_ms(2_500)), 1);
        assert_eq!(Recent::from_bits(more.to_bits()), more);
    }

    #[test]
    fn a_clock_that_steps_back_forgets_nothing() {
        let sent = Recent::default().sent(NOW);
        assert_eq!(sent.count(NOW.minus_ms(5_000)), 1);
        assert_eq!(sent.sent(NOW.minus_ms(5_000)).count(NOW), 2);
    }

    #[test]
    fn counts_end_at_their_limit() {
        let full = (0..70_000).fold(Recent::default(), |recent, _| recent.sent(NOW));
        assert_eq!(full.count(NOW), 65_535);
        assert_eq!(
            full.sent(NOW.plus_ms(1_000)).count(NOW.plus_ms(1_000)),
            65_536
        );
        let late = Timestamp(u64::MAX);
        assert_eq!(Recent::default().sent(late).count(late), 1);
    }
}
