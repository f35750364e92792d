//! `tidegate.report.v1.ReportService`.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::config::ComboEntry;
use tidegate_core::ids::{ComboName, PlaneIncarnation, SHARDS, Shard};
use tidegate_core::telemetry::aggregate::Aggregate;
use tidegate_core::usage::UsageRecord;
use tidegate_proto::report::v1 as proto;
use tidegate_proto::report::v1::report_service_server::ReportService;
use tidegate_wire as wire;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

use crate::config::Published;
use crate::fleet::Gatherer;
use crate::record::Recorder;
use crate::record::queue::{MAX_UNDER_WAY, Progress, Report};
use crate::telemetry::metrics::{Metrics, ReportFate};
use crate::usage::Usages;

use super::error::{Refusal, invalid};

/// Acknowledgements that wait for a data plane to take them: one per shard is enough, later ones cover earlier ones.
const QUEUE: usize = SHARDS as usize;
/// How long acknowledgements still flow after a data plane has closed its side.
const LINGER: Duration = Duration::from_secs(5);
/// Highest number of a report that a mark can hold.
const MAX_NUMBER: u64 = (1 << 53) - 1;
/// Most usages, and attempts under way, in a call.
const MAX_USAGES: usize = 1_000;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Reports {
    pub(super) recorder: Arc<Recorder>,
    pub(super) fleet: Arc<Gatherer>,
    pub(super) config: Arc<Published>,
    pub(super) usages: Arc<Usages>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: TaskTracker,
    pub(super) drain: CancellationToken,
}

#[tonic::async_trait]
impl ReportService for Reports {
    type ReportStream = ReceiverStream<Result<proto::ReportResponse, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<proto::ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let session = Session {
            reports: self.clone(),
            inbound: request.into_inner(),
            sender,
            reporter: None,
            told: [0; SHARDS as usize],
            awaited: [0; SHARDS as usize],
        };
        let drain = self.drain.clone();
        self.tasks
            .spawn(drain.run_until_cancelled_owned(session.run()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn record_usage(
        &self,
        request: Request<proto::RecordUsageRequest>,
    ) -> Result<Response<proto::RecordUsageResponse>, Status> {
        let usages = request.into_inner().usages;
        if usages.len() > MAX_USAGES {
            return Err(Refusal::InvalidRequest.status("usages: at most 1000 in a call"));
        }
        let (records, refused) = self.readable(usages);
        match self.usages.record(&records).await {
            Ok(()) => Ok(Response::new(proto::RecordUsageResponse { refused })),
            Err(error) => {
                tracing::warn!(%error, "usage was not recorded");
                Err(Refusal::DurableStoreAway.status("usage was not recorded"))
            }
        }
    }

    async fn report_open_attempts(
        &self,
        request: Request<proto::ReportOpenAttemptsRequest>,
    ) -> Result<Response<proto::ReportOpenAttemptsResponse>, Status> {
        let proto::ReportOpenAttemptsRequest { plane, opened } = request.into_inner();
        if plane == 0 {
            return Err(Refusal::InvalidRequest.status("plane must not be 0"));
        }
        if opened.len() > MAX_USAGES {
            return Err(Refusal::InvalidRequest.status("opened: at most 1000 in a call"));
        }
        let plane = PlaneIncarnation(plane);
        let mut attempts = Vec::with_capacity(opened.len());
        for open in opened {
            // One that cannot be read would be told for ever, and keep the others from being told.
            match wire::usage::open_from_proto(plane, open) {
                Ok(open) => attempts.push(open),
                Err(error) => {
                    self.metrics.usage.refused(&error);
                    tracing::warn!(plane = plane.0, %error, "an answer under way is not understood");
                }
            }
        }
        match self.usages.open(plane, &attempts).await {
            Ok(again_within) => Ok(Response::new(proto::ReportOpenAttemptsResponse {
                again_within_ms: u64::try_from(again_within.as_millis()).unwrap_or(u64::MAX),
            })),
            Err(error) => {
                tracing::debug!(%error, "answers under way were not kept");
                Err(Refusal::DurableStoreAway.status("answers under way were not kept"))
            }
        }
    }

    async fn report_telemetry(
        &self,
        request: Request<proto::ReportTelemetryRequest>,
    ) -> Result<Response<proto::ReportTelemetryResponse>, Status> {
        let request = request.into_inner();
        if request.plane == 0 || request.number == 0 {
            return Err(Refusal::InvalidRequest.status("plane and number must not be 0"));
        }
        let under_way =
            wire::telemetry::load_from_proto(request.in_flight).map_err(|error| invalid(&error))?;
        let config = self.config.config();
        let follows = |combo: &ComboName| {
            let entry = config.as_ref().and_then(|config| config.combos.get(combo));
            entry.and_then(ComboEntry::follows_last_served)
        };
        self.fleet.add(
            PlaneIncarnation(request.plane),
            request.number,
            seen(request.telemetry)?,
            under_way,
            follows,
        );
        Ok(Response::new(proto::ReportTelemetryResponse {}))
    }
}

impl Reports {
    /// The records that can be read, and which others there are. Refusing all of them for the sake of one would lose them.
    fn readable(&self, usages: Vec<proto::Usage>) -> (Vec<UsageRecord>, Vec<proto::RefusedUsage>) {
        let mut records = Vec::with_capacity(usages.len());
        let mut refused = Vec::new();
        for (index, usage) in (0_u32..).zip(usages) {
            let attempt = usage.attempt;
            match wire::usage::from_proto(usage) {
                Ok(record) => records.push(record),
                Err(error) => {
                    self.metrics.usage.refused(&error);
                    tracing::warn!(?attempt, %error, "a token record is not understood");
                    let reason = error.to_string();
                    refused.push(proto::RefusedUsage { index, reason });
                }
            }
        }
        (records, refused)
    }
}

/// What a data plane saw.
fn seen(telemetry: Option<proto::Telemetry>) -> Result<Aggregate, Status> {
    let telemetry = telemetry.unwrap_or_default();
    let told_by_others = !telemetry.planes.is_empty()
        || telemetry
            .connections
            .iter()
            .any(|past| past.fetched_quota.is_some());
    if told_by_others {
        let message = "telemetry: planes and fetched quotas are not for data planes to tell";
        return Err(Refusal::InvalidRequest.status(message));
    }
    wire::telemetry::from_proto(telemetry).map_err(|error| invalid(&error))
}

/// One stream of reports.
struct Session {
    reports: Reports,
    inbound: Streaming<proto::ReportRequest>,
    sender: mpsc::Sender<Result<proto::ReportResponse, Status>>,
    reporter: Option<Reporter>,
    /// The number last acknowledged on this stream, by shard.
    told: [u64; SHARDS as usize],
    /// The highest number taken on this stream, by shard.
    awaited: [u64; SHARDS as usize],
}

/// Who reports.
struct Reporter {
    plane: PlaneIncarnation,
    progress: Arc<Progress>,
    changed: watch::Receiver<()>,
}

/// The stream is over.
enum End {
    /// The data plane has gone, or takes nothing any more.
    Gone,
    /// It broke the contract.
    Refused(Status),
}

impl Session {
    async fn run(mut self) {
        if let End::Refused(status) = self.serve().await {
            tracing::warn!(code = ?status.code(), message = status.message(), "a report stream was refused");
            // Whether it still listens makes no difference.
            drop(self.sender.send(Err(status)).await);
        }
    }

    async fn serve(&mut self) -> End {
        loop {
            let message = tokio::select! {
                message = self.inbound.message() => message,
                () = changed(&mut self.reporter) => {
                    if let Err(end) = self.acknowledge().await {
                        return end;
                    }
                    continue;
                }
                () = self.sender.closed() => return End::Gone,
            };
            match message {
                Ok(Some(request)) => {
                    let taken = self.take(request);
                    // What was taken before a refusal is acknowledged all the same.
                    let told = self.acknowledge().await;
                    if let Err(status) = taken {
                        return End::Refused(status);
                    }
                    if let Err(end) = told {
                        return end;
                    }
                }
                Ok(None) => {
                    let rest = tokio::time::timeout(LINGER, self.acknowledge_rest()).await;
                    return rest.unwrap_or(End::Gone);
                }
                Err(_broken) => return End::Gone,
            }
        }
    }

    fn take(&mut self, request: proto::ReportRequest) -> Result<(), Status> {
        let refuse = |message: &str| Refusal::InvalidRequest.status(message);
        let shard = u8::try_from(request.shard)
            .ok()
            .and_then(Shard::new)
            .ok_or_else(|| refuse("shard: there is no such shard"))?;
        if request.reports.len() > MAX_UNDER_WAY {
            return Err(refuse("reports: at most 256 in a message"));
        }
        let reporter = match &self.reporter {
            Some(reporter) if reporter.plane.0 == request.plane => reporter,
            Some(_) => return Err(refuse("plane must not change within a stream")),
            None if request.plane == 0 => return Err(refuse("plane must not be 0")),
            None => {
                let plane = PlaneIncarnation(request.plane);
                let progress = self.reports.recorder.progress(plane)?;
                let changed = progress.subscribe();
                self.reporter.insert(Reporter {
                    plane,
                    progress,
                    changed,
                })
            }
        };
        let mut reports = Vec::with_capacity(request.reports.len());
        let mut before: u64 = 0;
        let mut not_understood: u64 = 0;
        for report in request.reports {
            if report.number <= before || report.number > MAX_NUMBER {
                return Err(refuse(
                    "reports: numbers must ascend from 1, up to 2^53 - 1",
                ));
            }
            before = report.number;
            let outcome = understood(report.report, shard, reporter.plane);
            if outcome.is_none() {
                not_understood = not_understood.saturating_add(1);
            }
            reports.push(Report {
                number: report.number,
                outcome: outcome.map(Arc::new),
            });
        }
        self.reports
            .metrics
            .reports(ReportFate::Invalid, not_understood);
        let first = reports.first().map(|report| report.number);
        self.reports
            .recorder
            .submit(reporter.plane, &reporter.progress, shard, reports)?;
        let index = shard.index();
        self.awaited[index] = self.awaited[index].max(before);
        if first.is_some_and(|first| first <= self.told[index]) {
            // Sent again although it was acknowledged here: the acknowledgement was lost.
            self.told[index] = 0;
        }
        Ok(())
    }

    /// Tells what has been acknowledged since it was last told.
    async fn acknowledge(&mut self) -> Result<(), End> {
        let Some(reporter) = &self.reporter else {
            return Ok(());
        };
        for shard in Shard::all() {
            let acknowledged = reporter.progress.acknowledged(shard);
            let told = &mut self.told[shard.index()];
            if acknowledged > *told {
                *told = acknowledged;
                let response = proto::ReportResponse {
                    shard: u32::from(shard.number()),
                    acknowledged,
                };
                self.sender
                    .send(Ok(response))
                    .await
                    .map_err(|_| End::Gone)?;
            }
        }
        Ok(())
    }

    async fn acknowledge_rest(&mut self) -> End {
        loop {
            if let Err(end) = self.acknowledge().await {
                return end;
            }
            let missing = self
                .awaited
                .iter()
                .zip(&self.told)
                .any(|(awaited, told)| awaited > told);
            if !missing {
                return End::Gone;
            }
            changed(&mut self.reporter).await;
        }
    }
}

/// Ends when a number of the reporter rises; never, while nobody has reported.
async fn changed(reporter: &mut Option<Reporter>) {
    let still = match reporter {
        Some(reporter) => reporter.changed.changed().await.is_ok(),
        None => false,
    };
    if !still {
        std::future::pending::<()>().await;
    }
}

/// A report that can be applied in this shard. One that is not understood holds nothing to apply: refusing it would
/// only have it sent again for ever.
fn understood(
    report: Option<proto::AttemptReport>,
    shard: Shard,
    plane: PlaneIncarnation,
) -> Option<tidegate_core::outcome::AttemptOutcome> {
    match wire::attempt::report_from_proto(report) {
        Ok(outcome) if Shard::of_provider(&outcome.attempt.provider) == shard => Some(outcome),
        Ok(outcome) => {
            tracing::warn!(plane = plane.0, %shard, provider = %outcome.attempt.provider, "a report is in the wrong shard");
            None
        }
        Err(error) => {
            tracing::warn!(plane = plane.0, %shard, %error, "a report is not understood");
            None
        }
    }
}
