//! Transitions on their way to the durable store.
//!
//! **Stance:** fail-open. The queue is bounded; when it is full, transitions are dropped and counted, and traffic
//! goes on. Each has an id made of the write that caused it, so that writing it twice keeps it once.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::Shard;
use tidegate_core::state::Transition;
use tidegate_core::version::Version;
use tidegate_store::durable::DurableStore;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::telemetry::metrics::{Dropped, Metrics};

/// Most transitions that wait.
const QUEUE: usize = 8_192;
/// Most transitions in one call.
const BATCH: usize = 256;
/// Limit of one call (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The way into history.
#[derive(Debug)]
pub(crate) struct History {
    queue: mpsc::Sender<(String, Transition)>,
    metrics: Arc<Metrics>,
}

/// The other end, to be run.
#[derive(Debug)]
pub(crate) struct HistoryWriter {
    queue: mpsc::Receiver<(String, Transition)>,
    durable: Arc<dyn DurableStore>,
    metrics: Arc<Metrics>,
}

/// Both ends.
pub(crate) fn history(
    durable: Arc<dyn DurableStore>,
    metrics: Arc<Metrics>,
) -> (History, HistoryWriter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let history = History {
        queue: sender,
        metrics: Arc::clone(&metrics),
    };
    let writer = HistoryWriter {
        queue: receiver,
        durable,
        metrics,
    };
    (history, writer)
}

impl History {
    /// Queues the transitions of a write.
    pub(crate) fn append(&self, shard: Shard, version: Version, transitions: &[Transition]) {
        for (index, transition) in transitions.iter().enumerate() {
            let Version {
                incarnation,
                revision,
            } = version;
            let id = format!("{shard}-{}-{}-{index}", incarnation.0, revision.0);
            self.append_one(id, transition.clone());
        }
    }

    /// Queues a transition that no write of the hot state caused, under an id of its own.
    pub(crate) fn append_one(&self, id: String, transition: Transition) {
        if self.queue.try_send((id, transition)).is_err() {
            self.metrics.dropped(Dropped::HistoryQueueFull, 1);
        }
    }
}

impl HistoryWriter {
    /// Writes until `stop`, then what still waits, once.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                received = self.queue.recv_many(&mut batch, BATCH) => if received == 0 { return },
                () = stop.cancelled() => break,
            }
            while !batch.is_empty() && !stop.is_cancelled() {
                if self.write(&batch).await {
                    batch.clear();
                } else {
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
        while let Ok(transition) = self.queue.try_recv() {
            batch.push(transition);
        }
        for part in batch.chunks(BATCH) {
            if !self.write(part).await {
                return;
            }
        }
    }

    /// Whether the batch is settled: written, or refused for good.
    async fn write(&self, batch: &[(String, Transition)]) -> bool {
        let append = self.durable.append_transitions(batch);
        match tokio::time::timeout(LIMIT, append).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) if error.is_certainly_not_applied() => {
                let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
                self.metrics.dropped(Dropped::HistoryRefused, count);
                tracing::error!(count, %error, "history was refused");
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot write history");
                false
            }
            Err(_elapsed) => {
                tracing::warn!("history was not written in time");
                false
            }
        }
    }
}
