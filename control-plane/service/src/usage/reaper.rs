//! Finds data planes that were lost, and records the answers that they had under way as unknown.
//!
//! Every replica looks; the durable store gives each lost data plane to one of them. What a data plane held otherwise ends
//! by itself: permits, probes and registrations of leases by their horizon, what it told of sessions and of requests under
//! way with its last message of telemetry.
//!
//! **When it is lost.** It was not heard of for the limit, by the durable store's clock, though it could have been: a
//! replica that has just started listens for as long first, and one whose durable store was away for as long as it was
//! ([`SilenceWatch`]). One that was only cut off goes on serving, and what it tells later replaces what is recorded here.
//!
//! **Stance:** fail-open; without the durable store nobody is looked for. **Bound:** so many attempts in a round, the rest
//! in the next.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::usage::SilenceWatch;
use tidegate_store::durable::{DurableStore, DurableStoreError, Reaped};
use tokio::time::{Instant, MissedTickBehavior};

use crate::telemetry::metrics::Metrics;

use super::{NotKept, limited, millis};

/// Looks in the time that a data plane may be silent.
const LOOKS: u32 = 6;
/// Bounds of the time between two looks.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Most parts of lost data planes in a round, of [`tidegate_store::durable::MAX_REAPED_ATTEMPTS`] at most.
const MAX_PARTS: u32 = 32;

/// Looks for lost data planes.
#[derive(Debug)]
pub(crate) struct Reaper {
    durable: Arc<dyn DurableStore>,
    metrics: Arc<Metrics>,
    silence_limit: Duration,
    every: Duration,
    began: Instant,
    watch: SilenceWatch,
}

impl Reaper {
    pub(crate) fn new(
        durable: Arc<dyn DurableStore>,
        metrics: Arc<Metrics>,
        silence_limit: Duration,
    ) -> Self {
        let (least, most) = LOOK_EVERY;
        let every = (silence_limit / LOOKS).clamp(least, most);
        Self {
            durable,
            metrics,
            silence_limit,
            every,
            began: Instant::now(),
            watch: SilenceWatch::new(millis(silence_limit), millis(every)),
        }
    }

    /// For ever.
    pub(crate) async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        match self.round().await {
            Ok(()) => {}
            // Somebody else was at it, so it answers.
            Err(NotKept::Store(DurableStoreError::Contended(_))) => self.hears(),
            Err(error) => {
                self.watch.failed();
                self.metrics.usage.look_failed();
                tracing::debug!(%error, "lost data planes were not looked for");
            }
        }
    }

    /// The durable store answered just now.
    fn hears(&mut self) {
        self.watch.answered(self.now_ms());
    }

    fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }

    async fn round(&mut self) -> Result<(), NotKept> {
        if !self.watch.proves(self.now_ms()) {
            limited(self.durable.ping()).await?;
            self.hears();
            return Ok(());
        }
        let (durable, silence_limit) = (Arc::clone(&self.durable), self.silence_limit);
        self.reaps(|| durable.reap_open_attempts(silence_limit))
            .await
    }

    async fn reaps<F>(&mut self, part: impl Fn() -> F) -> Result<(), NotKept>
    where
        F: Future<Output = Result<Reaped, DurableStoreError>>,
    {
        for _ in 0..MAX_PARTS {
            let Reaped { found, unknown } = limited(part()).await?;
            // After each part: a round takes longer than there may be between two answers.
            self.hears();
            if !found {
                break;
            }
            self.metrics.usage.lost(unknown);
            if unknown > 0 {
                tracing::warn!(
                    unknown,
                    "a data plane was lost with answers under way; their usage is not known"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use crate::telemetry::metrics::SharedRegistry;
    use crate::test_durable;

    use super::*;

    /// It is much longer than two looks are apart.
    #[tokio::test]
    async fn a_long_round_is_not_taken_for_deafness() {
        let directory = tempfile::tempdir().unwrap();
        let durable = test_durable::open(directory.path()).await;
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let mut reaper = Reaper::new(Arc::new(durable), metrics, Duration::from_secs(15));
        tokio::time::pause();
        reaper.hears();
        while !reaper.watch.proves(reaper.now_ms()) {
            sleep(reaper.every).await;
            reaper.hears();
        }
        let part = || async {
            sleep(Duration::from_millis(400)).await;
            Ok(Reaped {
                found: true,
                unknown: 0,
            })
        };
        reaper.reaps(part).await.unwrap();
        assert!(reaper.watch.proves(reaper.now_ms()));
    }
}
