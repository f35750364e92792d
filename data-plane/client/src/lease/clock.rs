//! The clock that horizons run on: it goes on while the machine sleeps (`architecture.md` §3, Time).
//!
//! The runtime's own clock stands still in a suspended machine. What it misses is the difference that grows between
//! CLOCK_BOOTTIME and CLOCK_MONOTONIC, and is added.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::time::Timestamp;
use tokio::time::Instant;

/// Milliseconds since it was made, those asleep included.
#[derive(Debug)]
pub(super) struct AwakeClock {
    origin: Instant,
    /// What the machine had slept since its start when this was made, in ms.
    slept_before: u64,
    /// The longest sleep seen, since the machine's start, in ms.
    slept: AtomicU64,
}

impl AwakeClock {
    pub(super) fn start() -> Self {
        let slept = slept_ms();
        Self {
            origin: Instant::now(),
            slept_before: slept,
            slept: AtomicU64::new(slept),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        let awake = self.origin.elapsed().as_millis();
        let awake = u64::try_from(awake).unwrap_or(u64::MAX);
        Timestamp(awake.saturating_add(self.asleep(slept_ms())))
    }

    /// Readings are never more than the truth, so the largest is the best.
    fn asleep(&self, reading: u64) -> u64 {
        let known = self.slept.fetch_max(reading, Ordering::Relaxed);
        known.max(reading).saturating_sub(self.slept_before)
    }
}

/// How long the machine has slept since its start, in ms. Not more than it has: the clock that goes on is read first.
#[cfg(target_os = "linux")]
fn slept_ms() -> u64 {
    use nix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    let (Ok(all), Ok(awake)) = (
        clock_gettime(ClockId::CLOCK_BOOTTIME),
        clock_gettime(ClockId::CLOCK_MONOTONIC),
    ) else {
        return 0;
    };
    let slept = Duration::from(all).saturating_sub(Duration::from(awake));
    u64::try_from(slept.as_millis()).unwrap_or(u64::MAX)
}

/// Not known here; the runtime's clock must do.
#[cfg(not(target_os = "linux"))]
fn slept_ms() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_with_the_runtime_and_with_what_the_machine_slept() {
        let clock = AwakeClock::start();
        let start = clock.now();
        tokio::time::advance(Duration::from_millis(40)).await;
        assert_eq!(clock.now(), start.plus_ms(40));
        let slept = clock.slept_before + 9_000;
        assert_eq!(clock.asleep(slept), 9_000);
        assert_eq!(clock.asleep(slept - 1), 9_000, "it never runs back");
        assert_eq!(clock.now(), start.plus_ms(9_040));
    }
}
