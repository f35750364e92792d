//! Empties the report queue: one ordered stream to one replica at a time.
//!
//! A stream begins with everything under way, in order, and goes on with what becomes due. It is left when it
//! ends, when an urgent report goes without acknowledgement for the limit, or when any report does for much
//! longer. Then all that is not acknowledged goes to another replica, or, where there is none, over a new
//! connection to the same one. Waiting for an acknowledgement doubles with each stream that brought none: with
//! the hot store away no replica can acknowledge, and carrying everything around helps nobody.
//!
//! The stream follows home, so that what was reported is in the view that decides; it moves when nothing is
//! under way.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::ids::Shard;
use tidegate_core::outcome::AttemptOutcome;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_proto::report::v1::{ReportRequest, ReportResponse};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::queue::ReportQueue;
use crate::backoff::Backoff;
use crate::endpoint::PlaneChannel;
use crate::metrics::ClientMetrics;
use crate::replicas::{Asked, Replica, Replicas};
use crate::shadow::Shadow;

/// Messages between us and the transport. A resend is at most one message per shard, so it always fits.
const STREAM_BUFFER: usize = 32;
/// How long opening a stream may take.
const OPEN_LIMIT: Duration = Duration::from_secs(2);
/// Longest patience for an acknowledgement.
const MAX_PATIENCE: Duration = Duration::from_secs(5);
/// How much longer than urgent ones other reports may go without acknowledgement.
const PATIENCE_WITH_OTHERS: u32 = 8;
/// How often limits are looked at while something is under way.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How often the stream looks whether home has moved and what expired.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// The queue with who waits for it. Reports are pushed by requests and taken by [`Reports::run`].
#[derive(Debug)]
pub(crate) struct Reports {
    queue: Mutex<ReportQueue>,
    changed: Notify,
    urgent: Duration,
    flush: Duration,
    metrics: ClientMetrics,
    shadow: Arc<Shadow>,
}

/// Why a stream was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It could not be opened, or ended.
    Broken,
    /// Acknowledgements did not come in time.
    Unacknowledged,
    /// Home is elsewhere now.
    Moved,
    /// We end, and everything is delivered.
    Delivered,
}

/// One stream.
struct Session<'a> {
    sender: mpsc::Sender<ReportRequest>,
    inbound: Streaming<ReportResponse>,
    replica: &'a Replica,
    /// How long an urgent report may go unacknowledged on this stream.
    patience: Duration,
    acknowledged_any: bool,
}

impl Reports {
    pub(crate) fn new(
        queue: ReportQueue,
        urgent: Duration,
        flush: Duration,
        metrics: ClientMetrics,
        shadow: Arc<Shadow>,
    ) -> Self {
        Self {
            queue: Mutex::new(queue),
            changed: Notify::new(),
            urgent,
            flush,
            metrics,
            shadow,
        }
    }

    /// Takes a report. Never waits.
    pub(crate) fn push(&self, report: AttemptOutcome, urgent: bool, now: Instant) {
        let pushed = {
            let mut queue = self.queue.lock();
            let pushed = queue.push(report, urgent, now);
            self.show(&queue);
            pushed
        };
        if pushed.coalesced {
            self.metrics.reports_coalesced.inc();
        }
        self.metrics
            .reports_dropped_success
            .inc_by(pushed.dropped_successes);
        self.metrics
            .reports_dropped_failure
            .inc_by(pushed.dropped_failures);
        if urgent || !pushed.coalesced {
            self.changed.notify_one();
        }
    }

    /// How many reports wait and how many are under way.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.waiting_count(), queue.under_way_count())
    }

    /// Delivers until told to stop, and then what is left, within the limit.
    pub(crate) async fn run(&self, replicas: &Replicas, stop: &CancellationToken) {
        let delivering = self.deliver(replicas, stop);
        let limit = async {
            stop.cancelled().await;
            tokio::time::sleep(self.flush).await;
        };
        tokio::select! {
            () = delivering => {}
            () = limit => {}
        }
        let (waiting, under_way) = self.counts();
        let lost = waiting.saturating_add(under_way);
        if lost > 0 {
            tracing::warn!(lost, "ended with reports that no control plane took");
            self.metrics
                .reports_dropped_shutdown
                .inc_by(u64::try_from(lost).unwrap_or(u64::MAX));
        }
    }

    async fn deliver(&self, replicas: &Replicas, stop: &CancellationToken) {
        let mut last: Option<usize> = None;
        let mut patience = self.urgent;
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            if !self.wait_for_work(stop).await {
                return;
            }
            let Some((replica, channel)) = next(replicas, last) else {
                return;
            };
            let mut worked = false;
            let left = match self.open(replica, channel, patience).await {
                Ok(mut session) => {
                    let left = self.carry(&mut session, replicas, stop).await;
                    worked = session.acknowledged_any;
                    left
                }
                Err(status) => {
                    tracing::debug!(replica = %replica.name, error = %status, "no report stream");
                    Left::Broken
                }
            };
            if worked {
                patience = self.urgent;
                backoff.reset();
            }
            last = Some(replica.index);
            match left {
                Left::Delivered => return,
                Left::Moved => last = None,
                // Connections are closed for age; that says nothing against the replica.
                Left::Broken if worked => last = None,
                Left::Unacknowledged => {
                    patience = patience.saturating_mul(2).min(MAX_PATIENCE);
                }
                Left::Broken => {
                    replicas.failed(replica, Instant::now());
                    // The others are tried at once, then there is a pause.
                    let pause = backoff.next_after(replicas.len());
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Waits until there is something to deliver; false when we end and there is nothing.
    async fn wait_for_work(&self, stop: &CancellationToken) -> bool {
        loop {
            if !self.queue.lock().is_empty() {
                return true;
            }
            if stop.is_cancelled() {
                return false;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    async fn open<'a>(
        &self,
        replica: &'a Replica,
        channel: PlaneChannel,
        patience: Duration,
    ) -> Result<Session<'a>, Status> {
        let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
        let again = self.queue.lock().resend(Instant::now());
        for message in again {
            let reports = u64::try_from(message.reports.len()).unwrap_or(u64::MAX);
            self.metrics.reports_resent.inc_by(reports);
            sender
                .try_send(message)
                .map_err(|_| Status::internal("the stream's buffer is too small"))?;
        }
        let mut client = ReportServiceClient::new(channel);
        let opening = client.report(ReceiverStream::new(receiver));
        let response = timeout(OPEN_LIMIT, opening)
            .await
            .map_err(|_| Status::deadline_exceeded("opening took too long"))??;
        self.metrics.report_streams.inc();
        Ok(Session {
            sender,
            inbound: response.into_inner(),
            replica,
            patience,
            acknowledged_any: false,
        })
    }

    /// Carries reports and acknowledgements until the stream is to be left.
    async fn carry(
        &self,
        session: &mut Session<'_>,
        replicas: &Replicas,
        stop: &CancellationToken,
    ) -> Left {
        loop {
            let ending = stop.is_cancelled();
            let wake = self.send_due(session, ending);
            if let Some(left) = self.judge(session, replicas, ending) {
                return left;
            }
            tokio::select! {
                message = session.inbound.message() => match message {
                    Ok(Some(message)) => self.acknowledged(session, &message),
                    Ok(None) => return Left::Broken,
                    Err(status) => {
                        tracing::debug!(
                            replica = %session.replica.name, error = %status, "report stream ended"
                        );
                        return Left::Broken;
                    }
                },
                () = self.changed.notified() => {}
                () = sleep_until(wake) => {}
                () = stop.cancelled(), if !ending => {}
            }
        }
    }

    /// Sends what is due as far as there is room; says when to look again.
    fn send_due(&self, session: &Session<'_>, all: bool) -> Instant {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let expired = queue.expire(now);
        self.metrics.reports_dropped_age.inc_by(expired);
        while let Ok(room) = session.sender.try_reserve() {
            match queue.take(now, all) {
                Some(message) => room.send(message),
                None => break,
            }
        }
        self.show(&queue);
        let look = if queue.under_way_count() > 0 {
            LOOK_EVERY
        } else {
            IDLE_LOOK
        };
        match queue.next_due() {
            // Due and not taken: the transport has no room.
            Some(due) if due <= now => now + LOOK_EVERY,
            Some(due) => due.min(now + look),
            None => now + look,
        }
    }

    fn judge(&self, session: &Session<'_>, replicas: &Replicas, ending: bool) -> Option<Left> {
        let now = Instant::now();
        let queue = self.queue.lock();
        if ending && queue.is_empty() {
            return Some(Left::Delivered);
        }
        let is_late = |sent: Option<Instant>, patience: Duration| {
            sent.is_some_and(|sent| now.saturating_duration_since(sent) >= patience)
        };
        let others = session.patience.saturating_mul(PATIENCE_WITH_OTHERS);
        if is_late(queue.oldest_urgent(), session.patience)
            || is_late(queue.oldest_under_way(), others)
        {
            return Some(Left::Unacknowledged);
        }
        let is_home = replicas
            .choose(now, Asked::default())
            .is_none_or(|home| home.index == session.replica.index);
        (!is_home && queue.under_way_count() == 0).then_some(Left::Moved)
    }

    fn acknowledged(&self, session: &mut Session<'_>, message: &ReportResponse) {
        let Some(shard) = u8::try_from(message.shard).ok().and_then(Shard::new) else {
            return;
        };
        let acknowledged = {
            let mut queue = self.queue.lock();
            let acknowledged = queue.acknowledge(shard, message.acknowledged);
            self.show(&queue);
            acknowledged
        };
        session.acknowledged_any |= acknowledged.reports > 0;
        if acknowledged.reports > 0 {
            session.patience = self.urgent;
        }
        self.metrics
            .reports_acknowledged
            .inc_by(acknowledged.reports);
        let now = Instant::now();
        for provider in &acknowledged.settled {
            self.shadow.settled(provider, now);
        }
    }

    fn show(&self, queue: &ReportQueue) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics
            .reports_waiting
            .set(gauge(queue.waiting_count()));
        self.metrics
            .reports_under_way
            .set(gauge(queue.under_way_count()));
    }
}

/// Where the next stream goes: home, or, after a stream was left, another replica; where there is none, the
/// same one over a connection of its own.
fn next(replicas: &Replicas, last: Option<usize>) -> Option<(&Replica, PlaneChannel)> {
    let now = Instant::now();
    let mut asked = Asked::default();
    if let Some(index) = last {
        asked.add(index);
    }
    if let Some(replica) = replicas.choose(now, asked) {
        return Some((replica, replica.channel()));
    }
    let replica = replicas.choose(now, Asked::default())?;
    let channel = replica.fresh_channel().unwrap_or_else(|error| {
        tracing::debug!(error = %error, "no fresh channel");
        replica.channel()
    });
    Some((replica, channel))
}
