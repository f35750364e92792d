//! The store's time in this process (`architecture.md` §3, Time).
//!
//! Every reply of the store carries its time. The reply with the shortest round trip of the last 30 s sets
//! the offset to this process's monotonic clock. The result never runs back; a correction of more than a
//! second is reported as a step.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::time::Timestamp;

/// How long a calibration is preferred over ones with a longer round trip.
const CALIBRATION_LIFETIME: Duration = Duration::from_secs(30);
/// A correction beyond this is a step.
const STEP_MS: u64 = 1_000;

/// Stands for an offset before the first observation. No real offset comes near it.
const UNCALIBRATED: i64 = i64::MIN;

/// A clock that shows the store's time. It never runs back. Reading takes no lock: decisions read it.
#[derive(Debug)]
pub struct StoreClock {
    origin: Instant,
    /// Store time in ms less ms since `origin`, or [`UNCALIBRATED`].
    offset_ms: AtomicI64,
    /// The latest time shown so far, in ms.
    shown: AtomicU64,
    steps: AtomicU64,
    /// What the offset was taken from. Only observations need it.
    best: Mutex<Option<Calibration>>,
}

#[derive(Clone, Copy, Debug)]
struct Calibration {
    at: Instant,
    round_trip: Duration,
    offset_ms: i64,
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
        Self {
            origin: now,
            offset_ms: AtomicI64::new(UNCALIBRATED),
            shown: AtomicU64::new(start.0),
            steps: AtomicU64::new(0),
            best: Mutex::new(None),
        }
    }

    /// Takes a reading: a call sent at `sent` was answered at `received` with the store's time.
    pub fn observe(&self, sent: Instant, received: Instant, time: Timestamp) -> Observed {
        let round_trip = received.saturating_duration_since(sent);
        let middle = sent + round_trip / 2;
        let local = millis(middle.saturating_duration_since(self.origin));
        let offset_ms = signed(time.0).saturating_sub(signed(local));
        let mut best = self.best.lock();
        let moved = best.map_or(0, |best| offset_ms.saturating_sub(best.offset_ms));
        let stepped = moved.unsigned_abs() > STEP_MS.saturating_add(millis(round_trip));
        let better = best.is_none_or(|best| {
            round_trip <= best.round_trip
                || received.saturating_duration_since(best.at) > CALIBRATION_LIFETIME
        });
        if better || stepped {
            *best = Some(Calibration {
                at: received,
                round_trip,
                offset_ms,
            });
            // Under the lock, so that the offset in force is that of `best`.
            self.offset_ms.store(offset_ms, Ordering::Relaxed);
        }
        if stepped {
            self.steps.fetch_add(1, Ordering::Relaxed);
            return Observed::Stepped(moved);
        }
        Observed::Usual
    }

    /// The store's time at the local moment `now`; never less than shown before, by any thread whose reading
    /// this one can know of.
    pub fn at(&self, now: Instant) -> Timestamp {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        if offset_ms == UNCALIBRATED {
            return Timestamp(self.shown.load(Ordering::Relaxed));
        }
        let local = millis(now.saturating_duration_since(self.origin));
        let estimate = u64::try_from(signed(local).saturating_add(offset_ms)).unwrap_or(0);
        // Mostly another reader has shown this millisecond already, and a load leaves its cache line shared.
        let shown = self.shown.load(Ordering::Relaxed);
        if estimate <= shown {
            return Timestamp(shown);
        }
        Timestamp(
            self.shown
                .fetch_max(estimate, Ordering::Relaxed)
                .max(estimate),
        )
    }

    /// How many steps were seen.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Times in ms fit a signed number for the next 292 million years.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
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

    #[test]
    fn an_uncalibrated_clock_stands_at_its_start() {
        let origin = Instant::now();
        let clock = StoreClock::new(Timestamp(7), origin);
        assert_eq!(clock.at(origin + ms(500)), Timestamp(7));
        // A store whose time is absurd moves nothing out of range.
        clock.observe(origin, origin, Timestamp(u64::MAX));
        assert!(clock.at(origin + ms(1)) >= Timestamp(7));
    }

    #[test]
    fn readers_on_many_threads_see_no_time_run_back_while_it_is_corrected() {
        let origin = Instant::now();
        let clock = StoreClock::new(Timestamp(0), origin);
        // Readers pass what they saw on, so each must see at least what any other saw before.
        let latest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for step in 0..20_000 {
                        let seen_before = latest.load(Ordering::SeqCst);
                        let seen = clock.at(origin + ms(step / 10)).0;
                        assert!(seen >= seen_before, "{seen} after {seen_before}");
                        latest.fetch_max(seen, Ordering::SeqCst);
                    }
                });
            }
            // The last one is forward, so that the end is known whatever the readers came to see.
            for correction in 0..2_001 {
                let time = if correction % 2 == 0 { 90_000 } else { 10_000 };
                clock.observe(origin, origin, Timestamp(time));
            }
        });
        assert!(clock.steps() > 0);
        assert!(clock.at(origin) >= Timestamp(90_000));
    }
}
