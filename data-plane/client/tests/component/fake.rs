//! A control plane that does what a test says, and remembers what it was told.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tidegate_core::outcome::{AttemptOutcome, Outcome};
use tidegate_plane_client::endpoint::{Address, in_process};
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::config::v1::snapshot_service_server::{SnapshotService, SnapshotServiceServer};
use tidegate_proto::lease::v1::lease_service_server::LeaseServiceServer;
use tidegate_proto::management::v1 as management;
use tidegate_proto::management::v1::management_service_server::{
    ManagementService, ManagementServiceServer,
};
use tidegate_proto::report::v1 as report;
use tidegate_proto::report::v1::report_service_server::{ReportService, ReportServiceServer};
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::routing_service_server::{RoutingService, RoutingServiceServer};
use tidegate_wire::attempt::{report_from_proto, to_proto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::{BroadcastStream, ReceiverStream};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use super::fake_leases::Leasing;
use super::setting;

/// A model whose token records are refused.
pub(crate) const BAD_MODEL: &str = "bad";

/// What `Decide` does.
#[derive(Clone, Debug)]
pub(crate) enum Deciding {
    /// Dispatches to this connection.
    To(&'static str),
    /// The same, after this long.
    ToAfter(&'static str, Duration),
    /// Never answers.
    Hangs,
    /// Fails at once.
    Fails,
    /// Is well and says no.
    Refuses,
    /// Dispatches with the probe, after this long.
    ProbeAfter(Duration),
    /// Lets the first question wait for a grant, then dispatches.
    GrantThenTo(&'static str),
}

/// The hot store that replicas share: marks per incarnation and shard, and what was applied.
#[derive(Default)]
pub(crate) struct Store {
    marks: BTreeMap<(u64, u32), u64>,
    pub(crate) applied: Vec<AttemptOutcome>,
    pub(crate) usages: BTreeMap<(u64, u64), u32>,
}

impl Store {
    /// How many successes and other outcomes were applied.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.applied
            .iter()
            .fold((0, 0), |(successes, others), report| {
                if report.outcome == Outcome::Success {
                    (successes + u64::from(report.count), others)
                } else {
                    (successes, others + 1)
                }
            })
    }
}

/// One replica's script and memory.
pub(crate) struct Replica {
    pub(crate) deciding: Mutex<Deciding>,
    pub(crate) stale: AtomicBool,
    /// Reports are applied.
    pub(crate) applies: AtomicBool,
    /// Reports are acknowledged; one may apply and the acknowledgement be lost.
    pub(crate) acknowledges: AtomicBool,
    /// Heartbeats are sent.
    pub(crate) beats: AtomicBool,
    /// Usage records, and answers under way, are taken and refused with an outage.
    pub(crate) usage_fails: AtomicBool,
    /// A batch with a record of [`BAD_MODEL`] is refused whole, as by the release before.
    pub(crate) refuses_batches: AtomicBool,
    /// Messages about answers under way.
    pub(crate) under_way: Mutex<Vec<report::ReportOpenAttemptsRequest>>,
    /// Telemetry is taken and refused with an outage.
    pub(crate) telemetry_fails: AtomicBool,
    pub(crate) observed: Mutex<Vec<report::ReportTelemetryRequest>>,
    pub(crate) decided: Mutex<Vec<Instant>>,
    pub(crate) questions: Mutex<Vec<routing::DecideRequest>>,
    /// What is decided on comes with a permit.
    pub(crate) permits: AtomicBool,
    /// Waits for a permit end with one.
    pub(crate) grants: AtomicBool,
    /// Waits for a permit never end.
    pub(crate) hangs: AtomicBool,
    /// Otherwise they end because the queue is full.
    pub(crate) queue_full: AtomicBool,
    pub(crate) awaited: AtomicUsize,
    /// How long those who wait had waited elsewhere, in ms.
    pub(crate) awaits: Mutex<Vec<u64>>,
    pub(crate) reported: Mutex<Vec<report::ReportRequest>>,
    pub(crate) report_streams: AtomicUsize,
    pub(crate) watched: Mutex<Vec<config::WatchRequest>>,
    pub(crate) told: Mutex<Vec<config::ReportConfigurationRequest>>,
    pub(crate) abandoned: Mutex<Vec<routing::AbandonRequest>>,
    pub(crate) kept: Mutex<Vec<routing::KeepPermitsRequest>>,
    pub(crate) released: Mutex<Vec<routing::ReleasePermitsRequest>>,
    /// What is given back is not heard of.
    pub(crate) release_fails: AtomicBool,
    pub(crate) tokens: Mutex<BTreeSet<String>>,
    pub(crate) leasing: Arc<Leasing>,
    pub(crate) managed: Mutex<Vec<management::CallRequest>>,
    /// What management requests are answered; they hang without.
    pub(crate) managing: Mutex<Option<Result<u32, Status>>>,
    snapshot: Mutex<Option<config::Snapshot>>,
    configuration_version: Mutex<u64>,
    pushed: broadcast::Sender<config::WatchResponse>,
    store: Arc<Mutex<Store>>,
}

impl Replica {
    /// Starts a replica over this store; it hands out the test configuration.
    pub(crate) fn start(name: &str, store: &Arc<Mutex<Store>>) -> (Arc<Self>, Address) {
        let (address, incoming) = in_process(name);
        (Self::serve(store, incoming), address)
    }

    /// Serves whatever connects.
    pub(crate) fn serve<I: Connected + AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        store: &Arc<Mutex<Store>>,
        incoming: impl Stream<Item = io::Result<I>> + Send + 'static,
    ) -> Arc<Self> {
        let replica = Arc::new(Self {
            deciding: Mutex::new(Deciding::To("a1")),
            stale: AtomicBool::new(false),
            applies: AtomicBool::new(true),
            acknowledges: AtomicBool::new(true),
            beats: AtomicBool::new(true),
            usage_fails: AtomicBool::new(false),
            refuses_batches: AtomicBool::new(false),
            under_way: Mutex::default(),
            telemetry_fails: AtomicBool::new(false),
            observed: Mutex::default(),
            decided: Mutex::default(),
            questions: Mutex::default(),
            permits: AtomicBool::new(false),
            grants: AtomicBool::new(true),
            hangs: AtomicBool::new(false),
            queue_full: AtomicBool::new(false),
            awaited: AtomicUsize::new(0),
            awaits: Mutex::default(),
            reported: Mutex::default(),
            report_streams: AtomicUsize::new(0),
            watched: Mutex::default(),
            told: Mutex::default(),
            abandoned: Mutex::default(),
            kept: Mutex::default(),
            released: Mutex::default(),
            release_fails: AtomicBool::new(false),
            tokens: Mutex::default(),
            leasing: Arc::default(),
            managed: Mutex::default(),
            managing: Mutex::default(),
            snapshot: Mutex::new(Some(setting::snapshot(1))),
            configuration_version: Mutex::new(1),
            pushed: broadcast::Sender::new(64),
            store: Arc::clone(store),
        });
        let server = tonic::transport::Server::builder()
            .add_service(RoutingServiceServer::new(Service(Arc::clone(&replica))))
            .add_service(ReportServiceServer::new(Service(Arc::clone(&replica))))
            .add_service(SnapshotServiceServer::new(Service(Arc::clone(&replica))))
            .add_service(ManagementServiceServer::new(Service(Arc::clone(&replica))))
            .add_service(LeaseServiceServer::from_arc(Arc::clone(&replica.leasing)))
            .serve_with_incoming(incoming);
        TaskTracker::new().spawn(async move { server.await.unwrap() });
        replica
    }

    /// One more message for everybody who watches.
    pub(crate) fn push(&self, kind: config::watch_response::Kind) {
        let message = config::WatchResponse { kind: Some(kind) };
        // Nobody may be watching yet; who comes gets the snapshot.
        drop(self.pushed.send(message));
    }

    /// What is sent to whoever begins to watch; nothing if `None`.
    pub(crate) fn set_snapshot(&self, snapshot: Option<config::Snapshot>) {
        *self.snapshot.lock() = snapshot;
    }

    /// The version that decisions claim to rest on.
    pub(crate) fn set_configuration_version(&self, version: u64) {
        *self.configuration_version.lock() = version;
    }

    pub(crate) fn decisions(&self) -> usize {
        self.decided.lock().len()
    }

    fn freshness(&self) -> common::Freshness {
        common::Freshness {
            age_ms: 0,
            stale: self.stale.load(Ordering::Relaxed),
            store_time_unix_ms: setting::STORE_TIME,
        }
    }

    fn dispatch(
        &self,
        request: &routing::DecideRequest,
        connection: &str,
        probe: bool,
    ) -> routing::DecideResponse {
        let attempt = common::Attempt {
            id: request.attempt,
            probe,
            ..to_proto(&setting::attempt(1, connection))
        };
        let classification = request
            .last_failure
            .as_ref()
            .map(|_| setting::classification());
        routing::DecideResponse {
            step: Some(routing::decide_response::Step::Dispatch(
                routing::Dispatch {
                    attempt: Some(attempt),
                    permit: self.permits.load(Ordering::Relaxed),
                    ..routing::Dispatch::default()
                },
            )),
            classification,
            freshness: Some(self.freshness()),
            configuration_version: *self.configuration_version.lock(),
            ..routing::DecideResponse::default()
        }
    }

    fn beat(&self) -> config::WatchResponse {
        config::WatchResponse {
            kind: Some(config::watch_response::Kind::Heartbeat(config::Heartbeat {
                freshness: Some(self.freshness()),
                live_data_planes: 2,
            })),
        }
    }

    fn apply(&self, message: &report::ReportRequest) -> u64 {
        let mut store = self.store.lock();
        let mark = store.marks.get(&(message.plane, message.shard)).copied();
        let mut mark = mark.unwrap_or(0);
        for numbered in &message.reports {
            if numbered.number <= mark {
                continue;
            }
            assert_eq!(numbered.number, mark + 1, "a report is missing");
            mark = numbered.number;
            store
                .applied
                .push(report_from_proto(numbered.report.clone()).unwrap());
        }
        store.marks.insert((message.plane, message.shard), mark);
        mark
    }
}

/// The services of one replica.
struct Service(Arc<Replica>);

#[tonic::async_trait]
impl ManagementService for Service {
    async fn call(
        &self,
        request: Request<management::CallRequest>,
    ) -> Result<Response<management::CallResponse>, Status> {
        self.0.managed.lock().push(request.into_inner());
        let answer = self.0.managing.lock().clone();
        let status = match answer {
            Some(status) => status?,
            None => std::future::pending().await,
        };
        Ok(Response::new(management::CallResponse {
            status,
            ..management::CallResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl RoutingService for Service {
    async fn decide(
        &self,
        request: Request<routing::DecideRequest>,
    ) -> Result<Response<routing::DecideResponse>, Status> {
        let replica = &self.0;
        replica.decided.lock().push(Instant::now());
        if let Some(token) = request.metadata().get("authorization") {
            let token = token.to_str().unwrap().to_owned();
            replica.tokens.lock().insert(token);
        }
        let request = request.into_inner();
        replica.questions.lock().push(request.clone());
        let deciding = replica.deciding.lock().clone();
        Ok(Response::new(match deciding {
            Deciding::To(connection) => replica.dispatch(&request, connection, false),
            Deciding::ToAfter(connection, delay) => {
                sleep(delay).await;
                replica.dispatch(&request, connection, false)
            }
            Deciding::Hangs => std::future::pending().await,
            Deciding::Fails => return Err(Status::unavailable("on demand")),
            Deciding::Refuses => return Err(Status::failed_precondition("on demand")),
            Deciding::ProbeAfter(delay) => {
                sleep(delay).await;
                replica.dispatch(&request, "a1", true)
            }
            Deciding::GrantThenTo(connection) => {
                if replica.awaited.load(Ordering::Relaxed) == 0 {
                    routing::DecideResponse {
                        step: Some(routing::decide_response::Step::Wait(routing::Wait {
                            kind: routing::WaitKind::Permit.into(),
                            wait_ms: 10_000,
                            ticket: b"ticket".to_vec(),
                            provider: "a".to_owned(),
                            connection: "a1".to_owned(),
                            elsewhere: false,
                        })),
                        ..routing::DecideResponse::default()
                    }
                } else {
                    replica.dispatch(&request, connection, false)
                }
            }
        }))
    }

    async fn r#await(
        &self,
        request: Request<routing::AwaitRequest>,
    ) -> Result<Response<routing::AwaitResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(request.ticket, b"ticket");
        self.0.awaits.lock().push(request.waited_ms);
        if self.0.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        sleep(Duration::from_secs(4)).await;
        self.0.awaited.fetch_add(1, Ordering::Relaxed);
        let granted = self.0.grants.load(Ordering::Relaxed);
        Ok(Response::new(routing::AwaitResponse {
            granted,
            queue_full: !granted && self.0.queue_full.load(Ordering::Relaxed),
        }))
    }

    async fn abandon(
        &self,
        request: Request<routing::AbandonRequest>,
    ) -> Result<Response<routing::AbandonResponse>, Status> {
        self.0.abandoned.lock().push(request.into_inner());
        Ok(Response::new(routing::AbandonResponse {}))
    }

    async fn keep_permits(
        &self,
        request: Request<routing::KeepPermitsRequest>,
    ) -> Result<Response<routing::KeepPermitsResponse>, Status> {
        self.0.kept.lock().push(request.into_inner());
        Ok(Response::new(routing::KeepPermitsResponse {}))
    }

    async fn release_permits(
        &self,
        request: Request<routing::ReleasePermitsRequest>,
    ) -> Result<Response<routing::ReleasePermitsResponse>, Status> {
        if self.0.release_fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable("on demand"));
        }
        self.0.released.lock().push(request.into_inner());
        Ok(Response::new(routing::ReleasePermitsResponse {}))
    }
}

#[tonic::async_trait]
impl ReportService for Service {
    type ReportStream = ReceiverStream<Result<report::ReportResponse, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<report::ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let replica = Arc::clone(&self.0);
        replica.report_streams.fetch_add(1, Ordering::Relaxed);
        let mut inbound = request.into_inner();
        let (sender, receiver) = mpsc::channel(64);
        TaskTracker::new().spawn(async move {
            while let Ok(Some(message)) = inbound.message().await {
                replica.reported.lock().push(message.clone());
                if !replica.applies.load(Ordering::Relaxed) {
                    continue;
                }
                let acknowledged = replica.apply(&message);
                if replica.acknowledges.load(Ordering::Relaxed) {
                    let response = report::ReportResponse {
                        shard: message.shard,
                        acknowledged,
                    };
                    if sender.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn record_usage(
        &self,
        request: Request<report::RecordUsageRequest>,
    ) -> Result<Response<report::RecordUsageResponse>, Status> {
        let usages = request.into_inner().usages;
        let is_bad = |usage: &report::Usage| usage.model == BAD_MODEL;
        if self.0.refuses_batches.load(Ordering::Relaxed) && usages.iter().any(is_bad) {
            return Err(Status::invalid_argument("a bad record"));
        }
        // Recorded, and the answer may be lost.
        let mut store = self.0.store.lock();
        let mut refused = Vec::new();
        for (index, usage) in (0..).zip(usages) {
            if is_bad(&usage) {
                let reason = "a bad record".to_owned();
                refused.push(report::RefusedUsage { index, reason });
                continue;
            }
            let attempt = usage.attempt.unwrap();
            *store
                .usages
                .entry((attempt.plane, attempt.number))
                .or_default() += 1;
        }
        if self.0.usage_fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable("on demand"));
        }
        Ok(Response::new(report::RecordUsageResponse { refused }))
    }

    async fn report_open_attempts(
        &self,
        request: Request<report::ReportOpenAttemptsRequest>,
    ) -> Result<Response<report::ReportOpenAttemptsResponse>, Status> {
        // Taken, and the answer may be lost.
        self.0.under_way.lock().push(request.into_inner());
        if self.0.usage_fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable("on demand"));
        }
        Ok(Response::new(report::ReportOpenAttemptsResponse {
            again_within_ms: 5_000,
        }))
    }

    async fn report_telemetry(
        &self,
        request: Request<report::ReportTelemetryRequest>,
    ) -> Result<Response<report::ReportTelemetryResponse>, Status> {
        // Taken, and the answer may be lost.
        self.0.observed.lock().push(request.into_inner());
        if self.0.telemetry_fails.load(Ordering::Relaxed) {
            return Err(Status::unavailable("on demand"));
        }
        Ok(Response::new(report::ReportTelemetryResponse {}))
    }
}

#[tonic::async_trait]
impl SnapshotService for Service {
    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<config::WatchResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<config::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let replica = Arc::clone(&self.0);
        replica.watched.lock().push(request.into_inner());
        let snapshot = replica.snapshot.lock().clone();
        let first = snapshot.map(|snapshot| config::WatchResponse {
            kind: Some(config::watch_response::Kind::Snapshot(snapshot)),
        });
        let pushed = BroadcastStream::new(replica.pushed.subscribe())
            .filter_map(|message| async move { message.ok() });
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        let beats = futures::stream::poll_fn(move |context| ticks.poll_tick(context).map(Some))
            .filter_map(move |_| {
                let beats = replica.beats.load(Ordering::Relaxed);
                let beat = beats.then(|| replica.beat());
                async move { beat }
            });
        let messages = futures::stream::iter(first)
            .chain(futures::stream::select(pushed, beats))
            .map(Ok);
        Ok(Response::new(Box::pin(messages)))
    }

    async fn report_configuration(
        &self,
        request: Request<config::ReportConfigurationRequest>,
    ) -> Result<Response<config::ReportConfigurationResponse>, Status> {
        let request = request.into_inner();
        let watching = {
            let watched = self.0.watched.lock();
            watched.iter().any(|watch| watch.plane == request.plane)
        };
        if watching {
            self.0.told.lock().push(request);
        }
        let response = config::ReportConfigurationResponse { watching };
        Ok(Response::new(response))
    }
}
