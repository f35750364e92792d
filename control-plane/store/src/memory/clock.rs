//! The clock of a store that has no server to ask.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::time::Timestamp;

/// Tells the store its time.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time now. It may step; who needs a clock that does not uses [`crate::clock::StoreClock`].
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands until it is moved, for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self {
            now_ms: AtomicU64::new(start.0),
        }
    }

    /// Shows `now` from here on.
    pub fn set(&self, now: Timestamp) {
        self.now_ms.store(now.0, Ordering::Relaxed);
    }

    /// Moves it forward.
    pub fn advance_ms(&self, by_ms: u64) {
        self.now_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now_ms.load(Ordering::Relaxed))
    }
}
