//! The store's time as a data plane knows it (`architecture.md` §3, Time).
//!
//! Answers and heartbeats carry the store's time. An answer's is anchored at the moment the question was
//! *sent*: the result is never behind the store, so a remaining time computed here never outlives the one
//! meant there. A heartbeat has no question; it is anchored at its arrival and only used while no answer is
//! younger than half a minute. Of several, the one with the shortest round trip counts.
//!
//! The result never runs back, except at the very first reading: what was shown before rested on this
//! machine's own clock, which nobody calibrated.

use std::time::Duration;
use std::time::SystemTime;

use parking_lot::Mutex;
use tidegate_core::time::Timestamp;
use tokio::time::Instant;

/// How long a reading is preferred over ones with a longer round trip.
const READING_LIFETIME: Duration = Duration::from_secs(30);
/// What a heartbeat's unknown way is counted as.
const PUSHED_ROUND_TRIP: Duration = Duration::from_secs(1);
/// A correction beyond this is a step, in ms.
const STEP_MS: u64 = 1_000;

/// Shows the store's time. Cheap to read.
#[derive(Debug)]
pub(crate) struct PlaneClock {
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Used until the first reading: this machine's own time at `origin`, in ms.
    own_ms: u64,
    best: Option<Reading>,
    shown_ms: u64,
    steps: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    received: Instant,
    round_trip: Duration,
    /// Store time in ms less ms since `origin`.
    offset_ms: i128,
}

impl PlaneClock {
    pub(crate) fn new(own: SystemTime, now: Instant) -> Self {
        let own_ms = own.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis);
        Self {
            origin: now,
            state: Mutex::new(State {
                own_ms,
                best: None,
                shown_ms: own_ms,
                steps: 0,
            }),
        }
    }

    /// A question sent at `sent` was answered at `received` with the store's time.
    pub(crate) fn answered(&self, sent: Instant, received: Instant, time: Timestamp) {
        let round_trip = received.saturating_duration_since(sent);
        self.take(sent, received, round_trip, time);
    }

    /// The store's time was told unasked.
    pub(crate) fn told(&self, received: Instant, time: Timestamp) {
        self.take(received, received, PUSHED_ROUND_TRIP, time);
    }

    fn take(&self, anchor: Instant, received: Instant, round_trip: Duration, time: Timestamp) {
        if time.0 == 0 {
            // The replica has not heard from its store yet.
            return;
        }
        let local = i128::from(millis(anchor.saturating_duration_since(self.origin)));
        let offset_ms = i128::from(time.0) - local;
        let mut state = self.state.lock();
        let Some(best) = state.best else {
            // Not held back by what this machine's own clock had shown.
            state.shown_ms = 0;
            state.best = Some(Reading {
                received,
                round_trip,
                offset_ms,
            });
            return;
        };
        let moved = offset_ms.saturating_sub(best.offset_ms).unsigned_abs();
        let error = u128::from(millis(round_trip.max(best.round_trip)));
        // A heartbeat that was held up says nothing about the store's clock, so it moves ours forward only.
        let delayed = round_trip == PUSHED_ROUND_TRIP && offset_ms < best.offset_ms;
        let stepped = moved > u128::from(STEP_MS) + error && !delayed;
        let outlived = received.saturating_duration_since(best.received) > READING_LIFETIME;
        if stepped {
            state.steps = state.steps.saturating_add(1);
        }
        if stepped || outlived || round_trip <= best.round_trip {
            state.best = Some(Reading {
                received,
                round_trip,
                offset_ms,
            });
        }
    }

    /// The store's time at the local moment `now`; never less than shown before.
    pub(crate) fn at(&self, now: Instant) -> Timestamp {
        let local = millis(now.saturating_duration_since(self.origin));
        let mut state = self.state.lock();
        let estimate = match state.best {
            Some(best) => u64::try_from(i128::from(local) + best.offset_ms).unwrap_or(0),
            None => state.own_ms.saturating_add(local),
        };
        state.shown_ms = state.shown_ms.max(estimate);
        Timestamp(state.shown_ms)
    }

    /// The same; `None` as long as nobody has told the store's time.
    pub(crate) fn heard_at(&self, now: Instant) -> Option<Timestamp> {
        let is_heard = self.state.lock().best.is_some();
        is_heard.then(|| self.at(now))
    }

    /// How often the store's clock stepped.
    pub(crate) fn steps(&self) -> u64 {
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

    fn clock(origin: Instant, own_ms: u64) -> PlaneClock {
        PlaneClock::new(SystemTime::UNIX_EPOCH + ms(own_ms), origin)
    }

    #[test]
    fn an_answer_is_anchored_where_its_question_was_sent() {
        let origin = Instant::now();
        let clock = clock(origin, 0);
        clock.answered(origin + ms(10), origin + ms(50), Timestamp(10_030));
        // Behind would be dangerous; ahead by at most the round trip is not.
        assert_eq!(clock.at(origin + ms(50)), Timestamp(10_070));
        clock.answered(origin + ms(60), origin + ms(62), Timestamp(10_061));
        assert_eq!(clock.at(origin + ms(100)), Timestamp(10_101));
    }

    #[test]
    fn a_heartbeat_counts_only_while_no_answer_is_recent() {
        let origin = Instant::now();
        let clock = clock(origin, 0);
        clock.told(origin, Timestamp(9_000));
        assert_eq!(clock.at(origin), Timestamp(9_000));
        clock.answered(origin, origin + ms(1), Timestamp(9_500));
        clock.told(origin + ms(10), Timestamp(9_600));
        assert_eq!(clock.at(origin + ms(10)), Timestamp(9_510));
        let later = origin + READING_LIFETIME + ms(2);
        clock.told(later, Timestamp(40_000));
        assert_eq!(clock.at(later), Timestamp(40_000));
    }

    #[test]
    fn the_first_reading_corrects_this_machines_own_clock_and_later_ones_never_run_back() {
        let origin = Instant::now();
        let clock = clock(origin, 1_000_000);
        assert_eq!(clock.at(origin), Timestamp(1_000_000));
        assert_eq!(clock.heard_at(origin), None);
        clock.answered(origin, origin, Timestamp(50_000));
        assert_eq!(clock.at(origin), Timestamp(50_000));
        assert_eq!(clock.heard_at(origin), Some(Timestamp(50_000)));
        clock.answered(origin, origin, Timestamp(20_000));
        assert_eq!(clock.at(origin), Timestamp(50_000));
        assert_eq!(clock.steps(), 1);
        clock.told(origin, Timestamp(0));
        assert_eq!(clock.at(origin + ms(40_000)), Timestamp(60_000));
    }
}
