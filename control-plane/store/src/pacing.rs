//! When a replica may write a provider again (`architecture.md` §3, Writing).
//!
//! A replica near the store can write a value many times within the round trip of one further away, which
//! then never wins a compare-and-set: whatever it read is old when its write arrives. So every replica
//! leaves a pause between the writes of a provider, in which the far one gets through. The first event after
//! a quiet time goes at once, and what arrives during a pause is folded into the next write.
//!
//! A write that was refused for a conflict has written nothing and is tried again at once, with the values
//! that the refusal carried: it belongs to the same turn, so do not call [`Pacing::written`] for it.

use std::time::{Duration, Instant};

/// The pause of a replica near the store.
pub const NEAR_PAUSE: Duration = Duration::from_millis(5);
/// The pause of a replica whose round trip exceeds [`NEAR_ROUND_TRIP`].
pub const FAR_PAUSE: Duration = Duration::from_millis(10);
/// A replica whose round trip is at most this is near.
pub const NEAR_ROUND_TRIP: Duration = Duration::from_millis(1);

/// The pace of one replica's writes to one provider.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacing {
    next: Option<Instant>,
}

impl Pacing {
    /// How long to wait before the next write; zero when it may go now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.next
            .map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// When the next write may go; `None` when no write was ever made.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.next
    }

    /// A write was sent at `sent` and ended its turn at `received`: written, or given up.
    pub fn written(&mut self, sent: Instant, received: Instant) {
        let round_trip = received.saturating_duration_since(sent);
        let pause = if round_trip > NEAR_ROUND_TRIP {
            FAR_PAUSE
        } else {
            NEAR_PAUSE
        };
        self.next = sent.checked_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn first_write_goes_at_once() {
        assert_eq!(Pacing::default().wait(Instant::now()), Duration::ZERO);
    }

    #[test]
    fn near_replica_pauses_five_milliseconds_from_send_to_send() {
        let start = Instant::now();
        let mut pacing = Pacing::default();
        pacing.written(start, start + ms(1));
        assert_eq!(pacing.next_at(), Some(start + ms(5)));
        assert_eq!(pacing.wait(start + ms(1)), ms(4));
        assert_eq!(pacing.wait(start + ms(5)), Duration::ZERO);
        assert_eq!(pacing.wait(start + ms(600)), Duration::ZERO);
    }

    #[test]
    fn far_replica_pauses_ten_milliseconds() {
        let start = Instant::now();
        let mut pacing = Pacing::default();
        pacing.written(start, start + Duration::from_micros(1_001));
        assert_eq!(pacing.wait(start + ms(2)), ms(8));
        // Near again: the last write decides.
        pacing.written(start + ms(10), start + ms(10));
        assert_eq!(pacing.wait(start + ms(10)), ms(5));
    }

    #[test]
    fn clock_readings_out_of_order_do_no_harm() {
        let start = Instant::now();
        let mut pacing = Pacing::default();
        pacing.written(start + ms(3), start);
        assert_eq!(pacing.wait(start), ms(8));
    }
}
