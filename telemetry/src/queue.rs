//! Spans that wait to be sent: so many and no more. One that finds no room is dropped and counted, so whoever ends a span
//! never waits.
//!
//! ```text
//! ended --room--> queued --a batch is full, or the delay has passed--> under way --accepted--> exported
//!   '----none---> dropped (queue_full)                                     '------refused----> dropped (not_delivered, rejected)
//! ```

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

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
        registry.register(
            "spans_exported",
            "Spans that the collector of traces took",
            self.exported.clone(),
        );
        registry.register(
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

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Queue {
    spans: Mutex<Vec<SpanData>>,
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
            spans: Mutex::default(),
            limit,
            batch,
            full: Notify::new(),
            metrics,
        }
    }

    fn push(&self, span: SpanData) {
        let waiting = {
            let mut spans = self.spans.lock();
            if spans.len() >= self.limit {
                drop(spans);
                self.metrics.lost(Lost::QueueFull, 1);
                return;
            }
            spans.push(span);
            spans.len()
        };
        if waiting == self.batch {
            self.full.notify_one();
        }
    }

    /// All that wait.
    pub(crate) fn take(&self) -> Vec<SpanData> {
        let mut spans = self.spans.lock();
        if spans.is_empty() {
            return Vec::new();
        }
        let room = Vec::with_capacity(self.batch.min(spans.len()));
        std::mem::replace(&mut *spans, room)
    }

    /// Returns when a batch is full.
    pub(crate) async fn filled(&self) {
        self.full.notified().await;
    }
}

/// Hands the spans that have ended to a queue.
#[derive(Debug)]
pub(crate) struct IntoQueue(pub(crate) Arc<Queue>);

impl SpanProcessor for IntoQueue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _limit: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_counted() {
        let metrics = SpanMetrics::default();
        let queue = Arc::new(Queue::new(3, 2, metrics.clone()));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(IntoQueue(Arc::clone(&queue)))
            .build();
        let tracer = provider.tracer("test");
        for _ in 0..5 {
            drop(tracer.start("a"));
        }
        queue.filled().await;
        assert_eq!(queue.take().len(), 3);
        assert_eq!(queue.take().len(), 0);
        let full = LostLabels {
            reason: Lost::QueueFull,
        };
        assert_eq!(metrics.lost.get_or_create(&full).get(), 2);
        drop(tracer.start("a"));
        assert_eq!(queue.take().len(), 1);
    }
}
