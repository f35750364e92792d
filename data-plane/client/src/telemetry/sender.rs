//! Messages on their way.

use std::time::Duration;

use tidegate_core::time::Timestamp;
use tidegate_proto::report::v1 as proto;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_wire::telemetry::{load_to_proto, shortened};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::clock::PlaneClock;
use crate::replicas::{Asked, Replicas};

use super::{EVERY, TelemetryQueue};

/// Between two messages when something is urgent.
const EVERY_URGENT: Duration = Duration::from_millis(50);
/// How long one replica may take.
const CALL_LIMIT: Duration = Duration::from_millis(500);
/// Largest message, in bytes; half of what a control plane takes, the rest is for what is under way.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Sends messages, one at a time.
pub(super) struct Sender<'a> {
    queue: &'a TelemetryQueue,
    replicas: &'a Replicas,
    clock: &'a PlaneClock,
    number: u64,
    unsent: Option<Unsent>,
    /// The control plane knows that nothing is under way.
    was_idle: bool,
}

/// A message that no control plane took yet.
struct Unsent {
    number: u64,
    telemetry: proto::Telemetry,
}

enum Sent {
    Yes,
    Refused,
    No,
}

impl<'a> Sender<'a> {
    pub(super) fn new(
        queue: &'a TelemetryQueue,
        replicas: &'a Replicas,
        clock: &'a PlaneClock,
    ) -> Self {
        Self {
            queue,
            replicas,
            clock,
            number: 0,
            unsent: None,
            was_idle: true,
        }
    }

    pub(super) async fn run(&mut self, stop: &CancellationToken) {
        let mut last = Instant::now();
        loop {
            let urgent = async {
                self.queue.urgent.notified().await;
                sleep_until(last + EVERY_URGENT).await;
            };
            tokio::select! {
                () = sleep_until(last + EVERY) => {}
                () = urgent => {}
                () = stop.cancelled() => {}
            }
            let stopping = stop.is_cancelled();
            last = Instant::now();
            self.turn(last).await;
            if stopping {
                return;
            }
        }
    }

    /// Sends what there is, the older message first.
    async fn turn(&mut self, moment: Instant) {
        if self.unsent.is_some() && !self.send().await {
            return;
        }
        if self.gather(self.clock.at(moment)) {
            self.send().await;
        }
    }

    /// Makes a message, if there is anything to say.
    fn gather(&mut self, now: Timestamp) -> bool {
        self.queue.learn(now);
        let waiting = {
            let mut learned = self.queue.learned.lock();
            if learned.waiting.get().is_empty() && !learned.was_busy && self.was_idle {
                return false;
            }
            learned.waiting.take()
        };
        let shortened = shortened(waiting, MAX_MESSAGE_BYTES, 0);
        self.queue.count(&shortened.shed);
        self.number = self.number.saturating_add(1);
        self.unsent = Some(Unsent {
            number: self.number,
            telemetry: shortened.message,
        });
        true
    }

    async fn send(&mut self) -> bool {
        let Some(unsent) = &self.unsent else {
            return true;
        };
        let under_way = self.queue.gathered.lock().under_way.clone();
        let request = proto::ReportTelemetryRequest {
            plane: self.queue.plane.0,
            number: unsent.number,
            telemetry: Some(unsent.telemetry.clone()),
            in_flight: load_to_proto(&under_way),
        };
        let metrics = &self.queue.metrics;
        match send(self.replicas, request).await {
            Sent::Yes => {
                metrics.telemetry_sent.inc();
                self.was_idle = under_way.is_empty();
            }
            Sent::Refused => {
                metrics.telemetry_dropped.inc();
                self.was_idle = true;
            }
            Sent::No => {
                metrics.telemetry_kept.inc();
                return false;
            }
        }
        self.unsent = None;
        true
    }
}

/// Sends to one replica after the other, until one answers. One that was too slow may have taken it all the same.
async fn send(replicas: &Replicas, request: proto::ReportTelemetryRequest) -> Sent {
    let mut asked = Asked::default();
    while let Some(replica) = replicas.choose(Instant::now(), asked) {
        asked.add(replica.index);
        let mut client = ReportServiceClient::new(replica.channel());
        match timeout(CALL_LIMIT, client.report_telemetry(request.clone())).await {
            Ok(Ok(_)) => return Sent::Yes,
            // It would be refused for ever; a replica of an older release knows no telemetry.
            Ok(Err(status))
                if matches!(status.code(), Code::InvalidArgument | Code::Unimplemented) =>
            {
                tracing::debug!(replica = %replica.name, error = %status, "telemetry was refused");
                return Sent::Refused;
            }
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "telemetry was not taken");
            }
            Err(_) => {
                tracing::debug!(replica = %replica.name, "telemetry took too long");
            }
        }
    }
    Sent::No
}
