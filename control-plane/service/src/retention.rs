//! Deletes history that is too old.
//!
//! Every replica does it, a little at a time; those at work at once take different rows.
//!
//! **Stance:** fail-open; what was not deleted is deleted later. **Bound:** so many rows in a round, the rest in the next.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::durable::{DurableStore, History};
use tokio::time::MissedTickBehavior;

use crate::clock::{Clock, wall_clock};
use crate::telemetry::metrics::Metrics;

/// Limit of a call (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// Between two rounds.
const EVERY: Duration = Duration::from_secs(600);
/// After a round that left some.
const SOON: Duration = Duration::from_secs(1);
/// Most calls for one kind in a round, of [`tidegate_store::durable::MAX_HISTORY_ROWS`] rows at most.
const MAX_CALLS: u32 = 64;

/// How long history is kept. `None` = for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Tokens of attempts. At least a day: what is repeated after that counts again.
    pub usage: Option<Duration>,
    /// Changes of breakers, cooldowns, locks and terminal states.
    pub transitions: Option<Duration>,
    /// What administrators did.
    pub audit: Option<Duration>,
}

impl Retention {
    /// For ever.
    pub const FOR_EVER: Self = Self {
        usage: None,
        transitions: None,
        audit: None,
    };

    fn of(&self, history: History) -> Option<Duration> {
        match history {
            History::Usage => self.usage,
            History::Transitions => self.transitions,
            History::Audit => self.audit,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        Self {
            usage: days(90),
            transitions: days(90),
            audit: days(365),
        }
    }
}

/// Deletes it.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pub(crate) durable: Arc<dyn DurableStore>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) retention: Retention,
}

impl Cleaner {
    /// For ever.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // A start is busy enough.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            while self.round().await {
                tokio::time::sleep(SOON).await;
            }
        }
    }

    /// Whether there may be more to delete.
    async fn round(&self) -> bool {
        let mut more = false;
        for history in History::ALL {
            if let Some(keep) = self.retention.of(history) {
                more |= self.delete(history, keep).await;
            }
        }
        more
    }

    /// Whether there may be more to delete.
    async fn delete(&self, history: History, keep: Duration) -> bool {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        // What is deleted is gone, so of two clocks the one that says less is believed.
        let now = self.clock.now().min(wall_clock());
        let before = now.minus_ms(keep_ms);
        for _ in 0..MAX_CALLS {
            let call = self.durable.delete_history(history, before);
            match tokio::time::timeout(LIMIT, call).await {
                Ok(Ok(0)) => return false,
                Ok(Ok(rows)) => self.metrics.usage.deleted(history, rows),
                Ok(Err(error)) => {
                    tracing::warn!(?history, %error, "old history was not deleted");
                    return false;
                }
                Err(_elapsed) => {
                    tracing::warn!(?history, "old history was not deleted in time");
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::classify::Reason;
    use tidegate_core::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
    use tidegate_core::state::{Transition, TransitionKind};
    use tidegate_core::time::Timestamp;
    use tidegate_core::usage::{TokenUsage, UsageRecord};
    use tidegate_store::durable::{EventPosition, EventQuery, EventSource};

    use super::*;
    use crate::telemetry::metrics::SharedRegistry;
    use crate::test_durable;

    const DAY_MS: u64 = 86_400_000;

    fn record(number: u64, at: Timestamp) -> UsageRecord {
        UsageRecord {
            attempt: AttemptId {
                plane: PlaneIncarnation(7),
                number,
            },
            at,
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
            model: ModelId::new("m").unwrap(),
            key: None,
            tokens: TokenUsage::UNKNOWN,
        }
    }

    fn transition(at: Timestamp) -> (String, Transition) {
        let transition = Transition {
            at,
            provider: ProviderId::new("p").unwrap(),
            connection: None,
            kind: TransitionKind::Cooldown {
                until: at,
                backoff_level: 1,
                reason: Reason::RateLimitExceeded,
            },
            attempt: None,
            origin: None,
        };
        (at.0.to_string(), transition)
    }

    /// Two transitions and two records, a day and a hundred days old, after a round. Returns how many transitions are
    /// left, and how many of the records count anew.
    async fn left(retention: Retention) -> (usize, usize) {
        let directory = tempfile::tempdir().unwrap();
        let store = test_durable::open(directory.path()).await;
        let durable: Arc<dyn DurableStore> = Arc::new(store);
        let clock = Arc::new(Clock::new());
        let days_ago = |days: u64| clock.now().minus_ms(days * DAY_MS);
        let records = [record(1, days_ago(1)), record(2, days_ago(100))];
        assert_eq!(durable.record_usage(&records).await.unwrap().len(), 2);
        let transitions = [transition(days_ago(1)), transition(days_ago(100))];
        durable.append_transitions(&transitions).await.unwrap();
        let cleaner = Cleaner {
            durable: Arc::clone(&durable),
            clock,
            metrics: Arc::new(Metrics::new(SharedRegistry::default())),
            retention,
        };
        cleaner.round().await;
        let transitions_only = EventQuery {
            provider: None,
            connection: None,
            source: Some(EventSource::Transitions),
            since: Timestamp(0),
            before: EventPosition::END,
        };
        (
            durable
                .list_events(transitions_only, 10)
                .await
                .unwrap()
                .len(),
            durable.record_usage(&records).await.unwrap().len(),
        )
    }

    #[tokio::test]
    async fn what_is_too_old_is_deleted_and_nothing_else() {
        assert_eq!(left(Retention::default()).await, (1, 1));
    }

    #[tokio::test]
    async fn each_kind_has_its_own_time_and_some_have_none() {
        assert_eq!(left(Retention::FOR_EVER).await, (2, 0));
        let usage_alone = Retention {
            usage: Some(Duration::from_secs(86_400 / 2)),
            ..Retention::FOR_EVER
        };
        assert_eq!(left(usage_alone).await, (2, 2));
    }
}
