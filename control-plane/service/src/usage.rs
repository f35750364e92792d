//! Tokens of attempts: told by data planes, counted once for the whole fleet, and marked as unknown where a data plane was
//! lost (`sessions-and-streams.md` §4.7).
//!
//! **Stance:** fail-open. Who cannot be heard because the durable store is away tells it again, here or elsewhere; what was
//! recorded all the same does not count again, here or elsewhere.

pub(crate) mod reaper;

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::PlaneIncarnation;
use tidegate_core::usage::{OpenAttempt, UsageRecord, again_within_ms};
use tidegate_store::durable::{DurableStore, DurableStoreError};

use crate::telemetry::metrics::Metrics;

/// Limit of a call (decision 54).
const LIMIT: Duration = Duration::from_millis(500);

/// Takes what data planes tell.
#[derive(Debug)]
pub(crate) struct Usages {
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) metrics: Arc<Metrics>,
    /// A data plane that is silent for so long is lost.
    pub(crate) silence_limit: Duration,
}

/// Why it was not taken. It may be told again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("the durable store did not answer in time")]
    Timeout,
}

impl Usages {
    /// Records tokens, each attempt once.
    pub(crate) async fn record(&self, records: &[UsageRecord]) -> Result<(), NotKept> {
        if records.is_empty() {
            return Ok(());
        }
        let counted = limited(self.durable.record_usage(records)).await?;
        self.metrics.usage.recorded(records, &counted);
        Ok(())
    }

    /// A data plane lives and has these answers under way. Returns within what time it must be heard again.
    pub(crate) async fn open(
        &self,
        plane: PlaneIncarnation,
        attempts: &[OpenAttempt],
    ) -> Result<Duration, NotKept> {
        limited(self.durable.open_attempts(plane, attempts)).await?;
        let silence_ms = millis(self.silence_limit);
        Ok(Duration::from_millis(again_within_ms(silence_ms)))
    }
}

async fn limited<T>(
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, NotKept> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(NotKept::Timeout),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
