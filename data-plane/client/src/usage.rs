//! Token records on their way to the durable store: a queue of their own, in batches, repeated until taken.
//! Each attempt is recorded once whatever is repeated, so repeating is safe. When there is no room the oldest
//! go, counted. A record that the control plane refuses as malformed would be refused for ever; it is dropped,
//! counted and named, it alone: a control plane of an earlier release refuses a batch for the sake of one, which
//! is found by halving. Of answers that take longer, [`open`] tells while they are under way.

pub(crate) mod open;

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::usage::UsageRecord;
use tidegate_proto::report::v1 as proto;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_wire::usage::to_proto;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::backoff::Backoff;
use crate::metrics::ClientMetrics;
use crate::replicas::{Asked, Replicas};

/// Most records in one call (the contract allows 1,000).
const BATCH: usize = 500;
/// How long records wait for company.
const LINGER: Duration = Duration::from_secs(1);
/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// The queue.
#[derive(Debug)]
pub(crate) struct UsageQueue {
    waiting: Mutex<VecDeque<UsageRecord>>,
    capacity: usize,
    flush: Duration,
    changed: Notify,
    metrics: ClientMetrics,
}

impl UsageQueue {
    pub(crate) fn new(capacity: usize, flush: Duration, metrics: ClientMetrics) -> Self {
        Self {
            waiting: Mutex::default(),
            capacity: capacity.max(1),
            flush,
            changed: Notify::new(),
            metrics,
        }
    }

    /// Takes a record. Never waits.
    pub(crate) fn push(&self, record: UsageRecord) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.capacity {
            waiting.pop_front();
            self.metrics.usage_dropped.inc();
        }
        waiting.push_back(record);
        drop(waiting);
        self.changed.notify_one();
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Delivers until told to stop, and then what is left, within the limit.
    pub(crate) async fn run(&self, replicas: &Replicas, stop: &CancellationToken) {
        let limit = async {
            stop.cancelled().await;
            sleep(self.flush).await;
        };
        tokio::select! {
            () = self.deliver(replicas, stop) => {}
            () = limit => {}
        }
        let lost = self.len();
        if lost > 0 {
            tracing::warn!(lost, "ended with token records that no control plane took");
            self.metrics
                .usage_dropped
                .inc_by(u64::try_from(lost).unwrap_or(u64::MAX));
        }
    }

    async fn deliver(&self, replicas: &Replicas, stop: &CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
        let mut size = BATCH;
        loop {
            while self.len() == 0 {
                if stop.is_cancelled() {
                    return;
                }
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = stop.cancelled() => {}
                }
            }
            if self.len() < BATCH {
                tokio::select! {
                    () = sleep(LINGER) => {}
                    () = stop.cancelled() => {}
                }
            }
            let batch: Vec<UsageRecord> = {
                let waiting = self.waiting.lock();
                waiting.iter().take(size).cloned().collect()
            };
            match record(replicas, &batch).await {
                Recorded::But(refused) => {
                    let taken = self.take_off(&batch);
                    let dropped = taken.min(refused);
                    self.metrics.usage_dropped.inc_by(dropped);
                    self.metrics
                        .usage_recorded
                        .inc_by(taken.saturating_sub(dropped));
                    backoff.reset();
                    size = size.saturating_mul(2).min(BATCH);
                }
                Recorded::Refused(error) if batch.len() <= 1 => {
                    let attempt = batch.first().map(|record| record.attempt);
                    tracing::error!(?attempt, %error, "a token record was refused");
                    self.metrics.usage_dropped.inc_by(self.take_off(&batch));
                }
                Recorded::Refused(_error) => size = batch.len() / 2,
                Recorded::No => sleep(backoff.next()).await,
            }
        }
    }

    /// Takes a delivered batch off the queue. Its front may have been dropped for room meanwhile.
    fn take_off(&self, batch: &[UsageRecord]) -> u64 {
        let Some(last) = batch.last() else {
            return 0;
        };
        let mut waiting = self.waiting.lock();
        let end = waiting
            .iter()
            .take(batch.len())
            .position(|usage| usage.attempt == last.attempt);
        let Some(end) = end else {
            return 0;
        };
        let count = waiting.drain(..=end).count();
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

enum Recorded {
    /// All but so many that never will be.
    But(u64),
    /// None, for the sake of one.
    Refused(tonic::Status),
    No,
}

async fn record(replicas: &Replicas, batch: &[UsageRecord]) -> Recorded {
    let request = proto::RecordUsageRequest {
        usages: batch.iter().map(to_proto).collect(),
    };
    let mut asked = Asked::default();
    while let Some(replica) = replicas.choose(Instant::now(), asked) {
        asked.add(replica.index);
        let mut client = ReportServiceClient::new(replica.channel());
        match timeout(CALL_LIMIT, client.record_usage(request.clone())).await {
            Ok(Ok(response)) => {
                let refused = response.into_inner().refused;
                for it in &refused {
                    let place = usize::try_from(it.index).ok();
                    let attempt = place.and_then(|place| batch.get(place));
                    let attempt = attempt.map(|record| record.attempt);
                    tracing::error!(?attempt, error = %it.reason, "a token record was refused");
                }
                return Recorded::But(u64::try_from(refused.len()).unwrap_or(u64::MAX));
            }
            Ok(Err(status)) if status.code() == Code::InvalidArgument => {
                return Recorded::Refused(status);
            }
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "usage was not taken");
            }
            Err(_) => tracing::debug!(replica = %replica.name, "usage took too long"),
        }
    }
    Recorded::No
}
