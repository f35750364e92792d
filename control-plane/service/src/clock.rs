//! The store's time as this replica sees it, and this process's own clock.
//!
//! Both are read here and nowhere else. The process's clock is tokio's, so that a test or a simulation
//! which moves that one moves everything.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::time::Timestamp;
use tidegate_store::clock::{Observed, StoreClock};

/// What the wall clock of this machine is trusted as: a reading with this round trip, so that the first answer
/// of the store replaces it.
const WALL_CLOCK_ROUND_TRIP: Duration = Duration::from_secs(2);

/// This process's monotonic clock.
#[must_use]
pub(crate) fn local_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Until when something may be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// By this process's clock, which stands still while the machine sleeps.
    pub(crate) local: Instant,
    /// By the store's clock too: the store refuses what comes later, however long it was on its way.
    pub(crate) store: Option<Timestamp>,
}

impl Deadline {
    /// This or `local`, whichever is first.
    pub(crate) fn at_most(self, local: Instant) -> Self {
        Self {
            local: self.local.min(local),
            ..self
        }
    }

    /// The time that is left at this moment.
    pub(crate) fn left(self, now: Instant) -> Duration {
        self.local.saturating_duration_since(now)
    }
}

impl From<Instant> for Deadline {
    fn from(local: Instant) -> Self {
        Self { local, store: None }
    }
}

/// The store's time in this process; starts from the wall clock until the store has answered once.
#[derive(Debug)]
pub(crate) struct Clock {
    store: StoreClock,
}

impl Clock {
    /// A clock that shows the wall clock until the first reading of the store.
    pub(crate) fn new() -> Self {
        let now = local_now();
        let clock = Self {
            store: StoreClock::new(Timestamp(0), now),
        };
        // A reading counts as taken in the middle of its round trip.
        let half_ms = u64::try_from(WALL_CLOCK_ROUND_TRIP.as_millis() / 2).unwrap_or(0);
        clock.store.observe(
            now,
            now + WALL_CLOCK_ROUND_TRIP,
            wall_clock().plus_ms(half_ms),
        );
        clock
    }

    /// The store's time now.
    pub(crate) fn now(&self) -> Timestamp {
        self.store.at(local_now())
    }

    /// Takes a reading of the store's time from a call that was sent at `sent` and is answered now.
    pub(crate) fn observe(&self, sent: Instant, time: Timestamp) {
        if let Observed::Stepped(moved_ms) = self.store.observe(sent, local_now(), time) {
            tracing::warn!(moved_ms, "clock of the hot store stepped");
        }
    }

    /// How many steps of the store's clock were seen.
    pub(crate) fn steps(&self) -> u64 {
        self.store.steps()
    }
}

/// What this machine takes for the time.
pub(crate) fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }))
}
