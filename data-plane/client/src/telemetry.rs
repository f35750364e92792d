//! What attempts came to, added up and on its way to the control plane (decisions 37 and 51).
//!
//! Every half second one message goes out with what was added since the last one and what is under way; at once when
//! another target of a combo serves than the one before, since `lkgp` follows that. A message that is not taken keeps
//! its number and is sent again as it is, while new things are added up behind it; so a control plane that took it and
//! could not say so adds it once. Everything is bounded; what has no room is dropped and counted.
//!
//! The sum of this process's own is kept too, for decisions that are made here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::ids::{ComboName, ConnectionId, PlaneIncarnation};
use tidegate_core::telemetry::aggregate::{Aggregate, Bounds, End, PlaneLoad, Refused, Verdict};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::telemetry::quota::QuotaSource;
use tidegate_core::time::Timestamp;
use tidegate_proto::report::v1 as proto;
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_wire::telemetry::{load_to_proto, to_proto};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::clock::PlaneClock;
use crate::metrics::ClientMetrics;
use crate::port::Observation;
use crate::replicas::{Asked, Replicas};

/// Between two messages.
const EVERY: Duration = Duration::from_millis(500);
/// Between two messages when something is urgent.
const EVERY_URGENT: Duration = Duration::from_millis(50);
/// How long one replica may take.
const CALL_LIMIT: Duration = Duration::from_millis(500);

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct TelemetryQueue {
    plane: PlaneIncarnation,
    flush: Duration,
    bounds: Bounds,
    gathered: Mutex<Gathered>,
    urgent: Notify,
    view: ArcSwap<Fleet>,
    metrics: ClientMetrics,
}

#[derive(Debug, Default)]
struct Gathered {
    added: Aggregate,
    under_way: BTreeMap<ConnectionId, u32>,
    /// Which target of a combo served last.
    served: BTreeMap<ComboName, (String, ConnectionId)>,
}

impl TelemetryQueue {
    pub(crate) fn new(plane: PlaneIncarnation, flush: Duration, metrics: ClientMetrics) -> Self {
        Self {
            plane,
            flush,
            bounds: Bounds::default(),
            gathered: Mutex::default(),
            urgent: Notify::new(),
            view: ArcSwap::default(),
            metrics,
        }
    }

    /// What this process saw by itself, as of the last message.
    pub(crate) fn view(&self) -> Arc<Fleet> {
        self.view.load_full()
    }

    /// Takes an observation. Never waits.
    pub(crate) fn take(&self, observation: Observation) {
        let mut gathered = self.gathered.lock();
        let refused = match observation {
            Observation::Began(connection) => {
                gathered.began(connection, self.bounds.plane_connections);
                return;
            }
            Observation::Over(connection) => {
                gathered.over(&connection);
                return;
            }
            Observation::Ended(end) => {
                if gathered.serves_anew(&end, self.bounds.combos) {
                    self.urgent.notify_one();
                }
                gathered.added.absorb(Aggregate::of_end(end), &self.bounds)
            }
            Observation::Quota(connection, quota) => {
                let seen = Aggregate::of_quota(connection, QuotaSource::Headers, quota);
                gathered.added.absorb(seen, &self.bounds)
            }
            Observation::ToolLimit(provider, limit, at) => {
                let learned = Aggregate::of_tool_limit(provider, limit, at);
                gathered.added.absorb(learned, &self.bounds)
            }
        };
        drop(gathered);
        self.count(&refused);
    }

    fn count(&self, refused: &Refused) {
        let dropped = refused.iter().map(|(_, count)| count).sum();
        self.metrics.telemetry_dropped.inc_by(dropped);
    }

    /// Sends until told to stop, and then what is left, within the limit. Runs once.
    pub(crate) async fn run(
        &self,
        replicas: &Replicas,
        clock: &PlaneClock,
        stop: &CancellationToken,
    ) {
        let mut sender = Sender {
            queue: self,
            replicas,
            clock,
            own: Aggregate::default(),
            number: 0,
            unsent: None,
            was_idle: true,
        };
        let limit = async {
            stop.cancelled().await;
            sleep(self.flush).await;
        };
        tokio::select! {
            () = sender.run(stop) => {}
            () = limit => {}
        }
    }
}

impl Gathered {
    fn began(&mut self, connection: ConnectionId, most: usize) {
        if self.under_way.len() < most || self.under_way.contains_key(&connection) {
            let count = self.under_way.entry(connection).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn over(&mut self, connection: &ConnectionId) {
        if let Some(count) = self.under_way.get_mut(connection) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.under_way.remove(connection);
            }
        }
    }

    /// The combo is now served by another target than the last time. Where there is no room to remember that, it waits
    /// for the next message.
    fn serves_anew(&mut self, end: &End, most: usize) -> bool {
        let (Some((combo, key)), Verdict::Served { .. }) = (&end.target, end.verdict) else {
            return false;
        };
        let now = (key.clone(), end.connection.clone());
        let room = self.served.len() < most;
        match self.served.get_mut(combo) {
            Some(before) if *before == now => false,
            Some(before) => {
                *before = now;
                true
            }
            None if room => {
                self.served.insert(combo.clone(), now);
                true
            }
            None => false,
        }
    }
}

/// A message that no control plane took yet.
struct Unsent {
    number: u64,
    telemetry: proto::Telemetry,
}

struct Sender<'a> {
    queue: &'a TelemetryQueue,
    replicas: &'a Replicas,
    clock: &'a PlaneClock,
    /// Everything that was seen here.
    own: Aggregate,
    number: u64,
    unsent: Option<Unsent>,
    /// The control plane knows that nothing is under way.
    was_idle: bool,
}

enum Sent {
    Yes,
    Refused,
    No,
}

impl Sender<'_> {
    async fn run(&mut self, stop: &CancellationToken) {
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

    /// Takes what was added, if there is anything to say.
    fn gather(&mut self, now: Timestamp) -> bool {
        let queue = self.queue;
        let (added, under_way) = {
            let mut gathered = queue.gathered.lock();
            let added = std::mem::take(&mut gathered.added);
            (added, gathered.under_way.clone())
        };
        if added.is_empty() && under_way.is_empty() && self.was_idle {
            return false;
        }
        self.number = self.number.saturating_add(1);
        self.unsent = Some(Unsent {
            number: self.number,
            telemetry: to_proto(&added),
        });
        let load = PlaneLoad {
            number: self.number,
            at: now,
            connections: under_way,
        };
        let here = Aggregate {
            planes: BTreeMap::from([(queue.plane, load)]),
            ..Aggregate::default()
        };
        // What has no room here was counted when it came in.
        for part in [added, here] {
            let _refused = self.own.absorb(part, &queue.bounds);
        }
        self.own.prune(now, &queue.bounds);
        let view = Fleet::of([self.own.clone()], &queue.bounds, now);
        queue.view.store(Arc::new(view));
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
            Err(_) => tracing::debug!(replica = %replica.name, "telemetry took too long"),
        }
    }
    Sent::No
}

#[cfg(test)]
mod tests;
