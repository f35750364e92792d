//! The client itself: one cheap handle on everything that talks to the control plane.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tidegate_core::config::ComboEntry;
use tidegate_core::ids::{
    AttemptId, ComboName, ConnectionId, ModelId, PlaneIncarnation, ProviderId,
};
use tidegate_core::outcome::AttemptOutcome;
use tidegate_core::pace::LinePace;
use tidegate_core::permit::RENEW_EVERY_MS;
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, UsageRecord};
use tidegate_proto::config::v1 as proto;
use tidegate_wire::attempt::id_to_proto;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::abandon::{self, Abandoned};
use crate::admission::LocalPace;
use crate::clock::PlaneClock;
use crate::config::{Limits, PlaneClientConfig};
use crate::decide::{Gate, Patience, Standing, followed, patient};
use crate::learned::LearnedPaces;
use crate::lease::Leases;
use crate::metrics::ClientMetrics;
use crate::notices::Notices;
use crate::permits::{Kind, Permits};
use crate::port::{
    Admission, AdmissionAsk, Answer, Ask, Lesson, Observation, PermitWait, PermitWaited, Snapshot,
};
use crate::replicas::{ReplicaStatus, Replicas, ReplicasError};
use crate::report::queue::{QueueLimits, ReportQueue};
use crate::report::stream::Reports;
use crate::shadow::{Scene, Shadow};
use crate::snapshot_file;
use crate::telemetry::TelemetryQueue;
use crate::usage::UsageQueue;
use crate::usage::open::OpenAttempts;
use crate::view::LocalView;

/// The only door of a data plane to the control plane. Clones are handles on the same client.
#[derive(Clone)]
pub struct PlaneClient {
    pub(crate) inner: Arc<Inner>,
}

/// Where a configuration came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The file of an earlier run.
    Disk,
    /// A control plane of this run.
    ControlPlane,
}

/// Everything behind the handle.
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) incarnation: PlaneIncarnation,
    pub(crate) limits: Limits,
    pub(crate) replicas: Replicas,
    pub(crate) clock: PlaneClock,
    pub(crate) view: LocalView,
    pub(crate) shadow: Arc<Shadow>,
    pub(crate) snapshot: ArcSwapOption<Snapshot>,
    /// Version of the snapshot in force, for whoever waits for one.
    pub(crate) installed: watch::Sender<u64>,
    /// Version of a configuration that came after it and could not be used; 0 for none.
    pub(crate) refused: watch::Sender<u64>,
    /// What is to be kept on disk.
    pub(crate) newest_snapshot: watch::Sender<Option<proto::Snapshot>>,
    pub(crate) gate: Gate,
    pub(crate) followed: Arc<Semaphore>,
    /// Requests that wait for a slow control plane.
    pub(crate) patient: Semaphore,
    pub(crate) unheld_lines: Mutex<LinePace>,
    pub(crate) abandoned: Notices<Abandoned>,
    pub(crate) permits: Permits,
    pub(crate) leases: Arc<Leases>,
    /// Requests that were admitted to connections with a limited pace.
    pub(crate) admissions: Permits,
    pub(crate) local_pace: LocalPace,
    pub(crate) learned: LearnedPaces,
    pub(crate) telemetry: TelemetryQueue,
    pub(crate) metrics: ClientMetrics,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    reports: Reports,
    usages: UsageQueue,
    under_way: OpenAttempts,
    ready_without_configuration: bool,
    confirmed: AtomicBool,
    following: AtomicBool,
    live_data_planes: AtomicU32,
}

/// How the client stands, for readiness and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneStatus {
    /// Version of the configuration in force; `None` without one.
    pub configuration_version: Option<u64>,
    /// The configuration came from a control plane of this run, not from disk.
    pub configuration_confirmed: bool,
    /// A control plane is followed whose view is fresh.
    pub following: bool,
    /// Decisions are made here because the control plane does not answer, or not in time.
    pub deciding_locally: bool,
    /// The replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// How many data planes are live, this one included, as last heard.
    pub live_data_planes: u32,
    /// Reports that wait to be sent.
    pub reports_waiting: usize,
    /// Reports sent and not acknowledged.
    pub reports_under_way: usize,
    /// Token records that wait.
    pub usages_waiting: usize,
}

impl PlaneClient {
    /// Starts the client's tasks on `tracker`. When `stop` is cancelled they deliver what waits, within
    /// [`Limits::flush`], and end. Must be called within a Tokio runtime; reads the snapshot file, if one is
    /// named.
    ///
    /// # Errors
    /// When addresses, certificates or token cannot be used at all.
    pub fn start(
        config: PlaneClientConfig,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, ReplicasError> {
        let incarnation = PlaneIncarnation(rand::random::<u64>().max(1));
        let replicas = Replicas::new(
            &config.addresses,
            &config.channel,
            config.tls.as_ref(),
            config.token.as_ref(),
            incarnation,
        )?;
        let limits = config.limits;
        let metrics = ClientMetrics::default();
        let shadow = Arc::new(Shadow::default());
        let queue_limits = QueueLimits {
            max_waiting: limits.max_reports.max(1),
            max_bytes: limits.max_report_bytes,
            max_age: limits.max_report_age,
            batch: limits.batch,
        };
        let queue = ReportQueue::new(incarnation, queue_limits);
        let inner = Arc::new(Inner {
            name: config.name,
            incarnation,
            replicas,
            clock: PlaneClock::new(SystemTime::now(), Instant::now()),
            view: LocalView::new(),
            snapshot: ArcSwapOption::empty(),
            installed: watch::Sender::new(0),
            refused: watch::Sender::new(0),
            newest_snapshot: watch::Sender::new(None),
            gate: Gate::new(
                Patience {
                    threshold: limits.timeouts_until_local,
                    every: limits.retry_decide_every,
                    silence: limits.silence,
                },
                metrics.clone(),
            ),
            followed: followed(),
            patient: patient(),
            unheld_lines: Mutex::default(),
            abandoned: Notices::new(metrics.abandons_dropped.clone()),
            leases: Arc::new(Leases::new(incarnation, metrics.clone())),
            permits: Permits::new(Kind::Permits, incarnation, metrics.clone()),
            admissions: Permits::new(Kind::Admissions, incarnation, metrics.clone()),
            local_pace: LocalPace::default(),
            learned: LearnedPaces::new(metrics.clone()),
            reports: Reports::new(
                queue,
                limits.urgent,
                limits.flush,
                metrics.clone(),
                Arc::clone(&shadow),
            ),
            telemetry: TelemetryQueue::new(incarnation, limits.flush, metrics.clone()),
            usages: UsageQueue::new(limits.max_usages, limits.flush, metrics.clone()),
            under_way: OpenAttempts::new(incarnation, limits.max_usages, metrics.clone()),
            shadow,
            limits,
            metrics,
            tracker: tracker.clone(),
            stop,
            ready_without_configuration: config.ready_without_configuration,
            confirmed: AtomicBool::new(false),
            following: AtomicBool::new(false),
            live_data_planes: AtomicU32::new(1),
        });
        if let Some(path) = config.snapshot_file {
            inner.start_from(&path);
            tracker.spawn(snapshot_file::keep(
                path,
                inner.newest_snapshot.subscribe(),
                inner.metrics.clone(),
                inner.stop.clone(),
            ));
        }
        tracker.spawn(Arc::clone(&inner).watch());
        tracker.spawn(Arc::clone(&inner).tell_configuration());
        let delivering = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                reports,
                replicas,
                stop,
                ..
            } = &*delivering;
            reports.run(replicas, stop).await;
        });
        let recording = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                usages,
                under_way,
                replicas,
                stop,
                ..
            } = &*recording;
            tokio::join!(usages.run(replicas, stop), under_way.run(replicas, stop));
        });
        let observing = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                telemetry,
                replicas,
                clock,
                stop,
                ..
            } = &*observing;
            telemetry.run(replicas, clock, stop).await;
        });
        let telling = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                abandoned,
                replicas,
                stop,
                ..
            } = &*telling;
            abandon::tell_forever(abandoned, replicas, stop).await;
        });
        let keeping = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                permits,
                admissions,
                learned,
                replicas,
                clock,
                stop,
                ..
            } = &*keeping;
            let every = || keeping.heartbeat();
            tokio::join!(
                permits.keep(replicas, every, stop),
                admissions.keep(replicas, every, stop),
                learned.tidy(|| clock.at(Instant::now()), stop),
            );
        });
        let returning = Arc::clone(&inner);
        tracker.spawn(async move {
            let Inner {
                permits,
                admissions,
                replicas,
                stop,
                ..
            } = &*returning;
            tokio::join!(
                permits.give_back_forever(replicas, stop),
                admissions.give_back_forever(replicas, stop),
            );
        });
        tracker.spawn(Arc::clone(&inner).watch_leases());
        tracker.spawn(Arc::clone(&inner).tell_ends());
        Ok(Self { inner })
    }

    /// The id of the next attempt: this run's incarnation and a number that grows by one.
    #[must_use]
    pub fn next_attempt(&self) -> AttemptId {
        AttemptId {
            plane: self.inner.incarnation,
            number: self.inner.permits.next_number(),
        }
    }

    /// The id of an attempt that nobody is asked about: a request goes once more to where it went.
    #[must_use]
    pub fn next_unasked_attempt(&self) -> AttemptId {
        AttemptId {
            plane: self.inner.incarnation,
            number: self.inner.permits.next_unasked_number(),
        }
    }

    /// Configuration and credentials in force; `None` until there are any.
    #[must_use]
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.inner.snapshot.load_full()
    }

    /// The store's time as known here; never runs back once a control plane was heard.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.inner.clock.at(Instant::now())
    }

    /// This run of this data plane.
    #[must_use]
    pub fn incarnation(&self) -> PlaneIncarnation {
        self.inner.incarnation
    }

    /// Where an attempt may go. Never fails: without an answer within [`Limits::decide`], or [`Limits::decide_slow`] when it
    /// takes a permit or a probe, it is decided here. Each question is asked with an attempt of its own.
    pub async fn decide(&self, ask: Ask) -> Answer {
        self.inner.decide(ask).await
    }

    /// Waits for a permit with an attempt of its own, for as long as the control plane allowed.
    pub async fn await_permit(&self, attempt: AttemptId, wait: &PermitWait) -> PermitWaited {
        self.inner.await_permit(attempt, wait).await
    }

    /// Asks whether a request may go to its connection now, for a connection with a limited pace or a model that
    /// [`Self::is_learned`].
    pub async fn admit(&self, ask: &AdmissionAsk) -> Admission {
        self.inner.admit(ask).await
    }

    /// Takes what an answer told of its upstream's limits; one that tells of plenty costs nothing.
    pub fn learn(&self, lesson: &Lesson) {
        self.inner.learned.learn(lesson, self.now());
    }

    /// Whether requests to this model on this connection ask before they go, because its upstream told that little is
    /// left.
    #[must_use]
    pub fn is_learned(&self, connection: &ConnectionId, model: &ModelId) -> bool {
        self.inner.learned.is_learned(connection, model, self.now())
    }

    /// Takes the report of an attempt and never waits. `urgent` ones are sent at once, and again elsewhere when
    /// they are not acknowledged soon. Synthetic attempts change no state and are not reported (decision 6).
    pub fn report(&self, report: AttemptOutcome, urgent: bool) {
        let inner = &self.inner;
        inner.permits.probe_is_over(report.attempt.id.number);
        if report.attempt.synthetic {
            return;
        }
        let moment = Instant::now();
        inner.with_scene(moment, |scene| inner.shadow.record(&report, scene));
        inner.reports.push(report, urgent, moment);
    }

    /// The answer of an attempt begins, so a record of its tokens is due. Never waits. Where this data plane is lost
    /// before, the control plane knows what it was that nobody recorded.
    pub fn opens(&self, open: OpenAttempt) {
        self.inner.under_way.opens(open);
    }

    /// Takes the tokens of an attempt and never waits.
    pub fn record_usage(&self, record: UsageRecord) {
        self.inner.under_way.ends(record.attempt);
        self.inner.usages.push(record);
    }

    /// Takes what strategies want to know of and never waits.
    pub fn observe(&self, observation: Observation) {
        let snapshot = self.inner.snapshot.load();
        let follows = |combo: &ComboName| {
            let combos = snapshot.as_ref().map(|snapshot| &snapshot.config.combos);
            let entry = combos.and_then(|combos| combos.get(combo));
            entry.and_then(ComboEntry::follows_last_served)
        };
        self.inner.telemetry.take(observation, follows);
    }

    /// The attempt will not be sent: gives back what it was granted. `provider` is whose probe it may hold.
    pub fn abandon(&self, attempt: AttemptId, provider: Option<ProviderId>) {
        let inner = &self.inner;
        let moment = Instant::now();
        inner.permits.answered(attempt.number);
        inner.permits.probe_is_over(attempt.number);
        inner.permits.release(attempt.number);
        if let Some(provider) = &provider {
            inner.with_scene(moment, |scene| {
                inner.shadow.return_probe(provider, attempt, scene, moment);
            });
        }
        inner.abandoned.push(Abandoned {
            attempt: Some(id_to_proto(attempt)),
            provider: provider
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
        });
    }

    /// The attempt's body has ended, or a later attempt took its place: gives back its permit, if it holds one.
    pub fn release(&self, attempt: AttemptId) {
        self.inner.permits.release(attempt.number);
    }

    /// This data plane can serve: it has a configuration, or was told that there is none yet and may be ready all the same
    /// (`PlaneClientConfig::ready_without_configuration`). Whether a control plane answers is not the question
    /// (decision 55).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let snapshot = self.inner.snapshot.load();
        snapshot.as_ref().is_some_and(|snapshot| {
            snapshot.config.version > 0 || self.inner.ready_without_configuration
        })
    }

    /// How many data planes are live, this one included, at least 1: what fleet-wide floors are divided by.
    #[must_use]
    pub fn live_data_planes(&self) -> u32 {
        self.inner.live_data_planes()
    }

    /// How the client stands.
    #[must_use]
    pub fn status(&self) -> PlaneStatus {
        let inner = &self.inner;
        let (reports_waiting, reports_under_way) = inner.reports.counts();
        PlaneStatus {
            configuration_version: self.snapshot().map(|snapshot| snapshot.config.version),
            configuration_confirmed: inner.confirmed.load(Ordering::Acquire),
            following: inner.is_following(),
            deciding_locally: inner.gate.standing(Instant::now()) != Standing::Well,
            replicas: inner.replicas.status(Instant::now()),
            live_data_planes: self.live_data_planes(),
            reports_waiting,
            reports_under_way,
            usages_waiting: inner.usages.len(),
        }
    }

    /// What the client counts, to be registered.
    #[must_use]
    pub fn metrics(&self) -> &ClientMetrics {
        &self.inner.metrics
    }
}

impl fmt::Debug for PlaneClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PlaneClient")
            .field("incarnation", &self.inner.incarnation)
            .field("replicas", &self.inner.replicas)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// How often it is told what is held (`permits.heartbeatMs`).
    fn heartbeat(&self) -> Duration {
        let snapshot = self.snapshot.load();
        let configured = snapshot
            .as_ref()
            .map(|snapshot| snapshot.config.settings.heartbeat_ms());
        Duration::from_millis(configured.unwrap_or(RENEW_EVERY_MS))
    }

    /// Version of the configuration in force, wherever it came from; 0 without one.
    pub(crate) fn configuration_version(&self) -> u64 {
        *self.installed.borrow()
    }

    /// Version of the configuration that a control plane of this run sent; 0 without one.
    pub(crate) fn confirmed_version(&self) -> u64 {
        if self.confirmed.load(Ordering::Acquire) {
            self.configuration_version()
        } else {
            0
        }
    }

    pub(crate) fn set_origin(&self, origin: Origin) {
        self.confirmed
            .store(origin == Origin::ControlPlane, Ordering::Release);
    }

    pub(crate) fn newest_attempt(&self) -> u64 {
        self.permits.newest()
    }

    pub(crate) fn is_following(&self) -> bool {
        self.following.load(Ordering::Relaxed)
    }

    pub(crate) fn set_following(&self, following: bool) {
        self.following.store(following, Ordering::Relaxed);
    }

    pub(crate) fn live_data_planes(&self) -> u32 {
        self.live_data_planes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_live_data_planes(&self, count: u32) {
        let count = count.max(1);
        self.live_data_planes.store(count, Ordering::Relaxed);
        self.metrics.live_data_planes.set(i64::from(count));
    }

    /// Runs something that needs the configuration, if there is one.
    fn with_scene(&self, moment: Instant, run: impl FnOnce(Scene<'_>)) {
        if let Some(snapshot) = self.snapshot.load().as_ref() {
            run(Scene {
                config: &snapshot.config,
                view: &self.view,
                now: self.clock.at(moment),
                newest_attempt: self.newest_attempt(),
            });
        }
    }

    /// Starts from what an earlier run kept. A file that cannot be used is no reason not to start.
    fn start_from(&self, path: &std::path::Path) {
        let read = match snapshot_file::read(path) {
            Ok(Some(snapshot)) if snapshot.version > 0 => snapshot,
            // Kept by an earlier release: nothing to start from.
            Ok(Some(_) | None) => return,
            Err(error) => {
                self.metrics.snapshot_file_errors.inc();
                tracing::error!(error = %error, path = %path.display(), "the kept snapshot is of no use");
                return;
            }
        };
        if self.install(read, Origin::Disk).is_err() {
            // Said where it was found; we wait for the control plane.
            self.metrics.snapshot_file_errors.inc();
        }
    }
}
