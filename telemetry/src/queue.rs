//! Spans that wait to be sent: so many and no more. One that finds no room is dropped and counted, so whoever ends a span
//! never waits.
//!
//! ```text
//! ended --room--> queued --a batch is full, or the delay has passed--> under way --accepted--> exported
//!   '----none---> dropped (queue_full)                                     '------refused----> dropped (not_delivered, rejected)
//! ```

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

use crate::families::FamilyRegistry;

/// Why a span did not reach the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lost {
    /// As many waited as may.
    QueueFull,
    /// The collector did not take it in time.
    NotDelivered,
    /// The collector took the message and not all of its spans.
    Rejected,
}

impl Lost {
    const ALL: [Self; 3] = [Self::QueueFull, Self::NotDelivered, Self::Rejected];
}

impl EncodeLabelValue for Lost {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let word = match self {
            Self::QueueFull => "queue_full",
            Self::NotDelivered => "not_delivered",
            Self::Rejected => "rejected",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostLabels {
    reason: Lost,
}

/// What became of spans. Clones count together.
#[derive(Clone, Debug)]
pub struct SpanMetrics {
    exported: Counter,
    lost: Family<LostLabels, Counter>,
}

impl Default for SpanMetrics {
    /// All at zero.
    fn default() -> Self {
        let metrics = Self {
            exported: Counter::default(),
            lost: Family::default(),
        };
        for reason in Lost::ALL {
            metrics.lost(reason, 0);
        }
        metrics
    }
}

impl SpanMetrics {
    /// Names them, under whatever prefix `registry` has.
    pub fn name_in(&self, registry: &mut Registry) {
        let mut families = FamilyRegistry::of(registry);
        families.register(
            "spans_exported",
            "Spans that the collector of traces took",
            self.exported.clone(),
        );
        families.register(
            "spans_dropped",
            "Spans that did not reach the collector of traces, by reason",
            self.lost.clone(),
        );
    }

    pub(crate) fn exported(&self, count: u64) {
        self.exported.inc_by(count);
    }

    pub(crate) fn lost(&self, reason: Lost, count: u64) {
        self.lost
            .get_or_create(&LostLabels { reason })
            .inc_by(count);
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// Written ([`crate::written`]).
    spans: Vec<Vec<u8>>,
    /// Nobody takes them any more.
    is_closed: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    /// Most that wait.
    limit: usize,
    /// So many are worth a message of their own.
    batch: usize,
    /// A batch is full.
    full: Notify,
    metrics: SpanMetrics,
}

impl Queue {
    pub(crate) fn new(limit: usize, batch: usize, metrics: SpanMetrics) -> Self {
        Self {
            waiting: Mutex::default(),
            limit,
            batch,
            full: Notify::new(),
            metrics,
        }
    }

    pub(crate) fn push(&self, span: Vec<u8>) {
        let lost = {
            let mut waiting = self.waiting.lock();
            if waiting.is_closed {
                Some(Lost::NotDelivered)
            } else if waiting.spans.len() >= self.limit {
                Some(Lost::QueueFull)
            } else {
                waiting.spans.push(span);
                if waiting.spans.len() == self.batch {
                    self.full.notify_one();
                }
                None
            }
        };
        if let Some(reason) = lost {
            self.metrics.lost(reason, 1);
        }
    }

    /// All that wait.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        if waiting.spans.is_empty() {
            return Vec::new();
        }
        let room = Vec::with_capacity(self.batch.min(waiting.spans.len()));
        std::mem::replace(&mut waiting.spans, room)
    }

    /// All that wait, and the last that do.
    pub(crate) fn close(&self) -> Vec<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.spans)
    }

    /// Returns when a batch is full.
    pub(crate) async fn filled(&self) {
        self.full.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_counted() {
        let metrics = SpanMetrics::default();
        let queue = Queue::new(3, 2, metrics.clone());
        let lost = |reason| metrics.lost.get_or_create(&LostLabels { reason }).get();
        for _ in 0..5 {
            queue.push(vec![1]);
        }
        queue.filled().await;
        assert_eq!(queue.take().len(), 3);
        assert_eq!(queue.take().len(), 0);
        assert_eq!(lost(Lost::QueueFull), 2);
        queue.push(vec![1]);
        assert_eq!(queue.close().len(), 1);
        queue.push(vec![1]);
        assert_eq!(queue.take().len(), 0);
        assert_eq!(lost(Lost::NotDelivered), 1);
    }
}
