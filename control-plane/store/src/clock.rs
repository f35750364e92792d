//! The store's time in this process (`architecture.md` §3, Time).
//!
//! Every reply of the store carries its time. The reply with the shortest round trip of the last 30 s sets
//! the offset to this process's monotonic clock. The result never runs back; a correction of more than a
//! second is reported as a step.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::time::Timestamp;

/// How long a calibration is preferred over ones with a longer round trip.
const CALIBRATION_LIFETIME: Duration = Duration::from_secs(30);
/// A correction beyond this is a step.
const STEP_MS: u64 = 1_000;

/// A clock that shows the store's time. Cheap to read, never runs back.
#[derive(Debug)]
pub struct StoreClock {
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    best: Option<Calibration>,
    shown: u64,
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Calibration {
    at: Instant,
    round_trip: Duration,
    /// Store time in ms less ms since `origin`.
    offset_ms: i128,
}

/// What an observation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// Nothing worth telling.
    Usual,
    /// The store's clock moved by this many ms against ours (saturated).
    Stepped(i64),
}

impl StoreClock {
    /// A clock that shows `start` until the first observation; `now` is this process's clock.
    #[must_use]
    pub fn new(start: Timestamp, now: Instant) -> Self {
        let clock = Self {
            origin: now,
            state: Mutex::default(),
        };
        clock.state.lock().shown = start.0;
        clock
    }

    /// Takes a reading: a call sent at `sent` was answered at `received` with the store's time.
    pub fn observe(&self, sent: Instant, received: Instant, time: Timestamp) -> Observed {
        let round_trip = received.saturating_duration_since(sent);
        let middle = sent + round_trip / 2;
        let local = millis(middle.saturating_duration_since(self.origin));
        let offset_ms = i128::from(time.0) - i128::from(local);
        let mut state = self.state.lock();
        let moved = state
            .best
            .map_or(0, |best| offset_ms.saturating_sub(best.offset_ms));
        let error = i128::from(millis(round_trip));
        let stepped = moved.unsigned_abs() > u128::from(STEP_MS) + error.unsigned_abs();
        let better = state.best.is_none_or(|best| {
            round_trip <= best.round_trip
                || received.saturating_duration_since(best.at) > CALIBRATION_LIFETIME
        });
        if better || stepped {
            state.best = Some(Calibration {
                at: received,
                round_trip,
                offset_ms,
            });
        }
        if stepped {
            state.steps = state.steps.saturating_add(1);
            return Observed::Stepped(i64::try_from(moved).unwrap_or(i64::MAX));
        }
        Observed::Usual
    }

    /// The store's time at the local moment `now`; never less than shown before.
    pub fn at(&self, now: Instant) -> Timestamp {
        let local = i128::from(millis(now.saturating_duration_since(self.origin)));
        let mut state = self.state.lock();
        if let Some(best) = state.best {
            let estimate = u64::try_from(local + best.offset_ms).unwrap_or(0);
            state.shown = state.shown.max(estimate);
        }
        Timestamp(state.shown)
    }

    /// How many steps were seen.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn shortest_round_trip_sets_the_clock() {
        let origin = Instant::now();
        let clock = StoreClock::new(Timestamp(0), origin);
        clock.observe(origin, origin + ms(100), Timestamp(10_000));
        assert_eq!(clock.at(origin + ms(100)), Timestamp(10_050));
        clock.observe(origin + ms(200), origin + ms(202), Timestamp(10_171));
        assert_eq!(clock.at(origin + ms(202)), Timestamp(10_172));
        clock.observe(origin + ms(300), origin + ms(400), Timestamp(10_500));
        assert_eq!(clock.at(origin + ms(402)), Timestamp(10_372));
    }

    #[test]
    fn time_never_runs_back_and_a_step_is_reported() {
        let origin = Instant::now();
        let clock = StoreClock::new(Timestamp(0), origin);
        clock.observe(origin, origin, Timestamp(100_000));
        assert_eq!(clock.at(origin), Timestamp(100_000));
        let later = origin + ms(10);
        assert_eq!(
            clock.observe(later, later, Timestamp(50_000)),
            Observed::Stepped(-50_010)
        );
        assert_eq!(clock.at(later), Timestamp(100_000));
        assert_eq!(clock.steps(), 1);
    }
}
