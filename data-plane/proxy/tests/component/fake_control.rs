//! A control plane in memory: the real rules over a view that reports change at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tidegate_core::admission::{Admitted, Pace, PaceLimits};
use tidegate_core::catalogue::{Catalogue, ModelInfo};
use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::config::Document;
use tidegate_core::ids::{
    AttemptId, ConnectionId, EgressId, KeyId, ModelId, PlaneIncarnation, ProviderId, Shard,
};
use tidegate_core::lease::{LeaseError, LeaseName, Lifecycle};
use tidegate_core::outcome::{Attempt, AttemptOutcome};
use tidegate_core::routing::relay::{HandoffName, Note, Served, Standing, Terms, wanted};
use tidegate_core::routing::{
    self, AttemptsSoFar, Decision, DecisionTurns, Input, ModelAvailability, PriorAttempt,
    RequestFacts, View,
};
use tidegate_core::state::apply::{Subject, apply};
use tidegate_core::state::{ConnectionState, Event, ProviderState};
use tidegate_core::telemetry::NoTelemetry;
use tidegate_core::telemetry::aggregate::Verdict;
use tidegate_core::time::Timestamp;
use tidegate_core::usage::{OpenAttempt, UsageRecord};
use tidegate_core::version::Version;
use tidegate_plane_client::{
    Admission, AdmissionAsk, Answer, Ask, Deadlines, Dispatch, LeaseAnswer, Leased, Lesson,
    ManagementAnswer, ManagementCall, Observation, PermitWait, PermitWaited, Running, Snapshot,
    Step, Success,
};
use tidegate_proxy::ControlPort;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::bench::snapshot;
use crate::fake_leases::{FakeLeases, refused};

/// See the module's documentation.
pub(crate) struct FakeControl {
    snapshot: Option<Arc<Snapshot>>,
    /// Came later.
    newer_snapshot: Mutex<Option<Arc<Snapshot>>>,
    pub(crate) deadlines: Deadlines,
    hot: Mutex<Hot>,
    heard: Mutex<Heard>,
    /// Notes; `None` for one that is being made.
    handoffs: Mutex<BTreeMap<HandoffName, Option<(Note, ConnectionId)>>>,
    attempts: AtomicU64,
    /// How fast requests go to connections.
    paces: Arc<Mutex<BTreeMap<ConnectionId, Pace>>>,
    /// So many admissions find that others were faster.
    pub(crate) lost_races: AtomicU64,
    /// Decisions take for ever.
    pub(crate) silent: AtomicBool,
    /// Notes are looked for, for ever.
    pub(crate) forgets_notes: AtomicBool,
    /// Decisions panic.
    pub(crate) panics: AtomicBool,
    /// Being told that a stream broke panics.
    pub(crate) panics_at_breaks: AtomicBool,
    /// After a failure a permit of `two-a` is to be waited for.
    pub(crate) is_full: AtomicBool,
    /// Something was reported.
    pub(crate) reported: Notify,
    /// Ends a wait for a permit.
    pub(crate) freed: Notify,
    pub(crate) leases: FakeLeases,
    /// What management requests are answered.
    pub(crate) managed: Mutex<Option<ManagementAnswer>>,
    /// Management requests are never answered, and end at their deadline.
    pub(crate) hangs: AtomicBool,
    /// Managed requests are refused by this rule.
    pub(crate) refuses_managed: Mutex<Option<LeaseError>>,
    /// The next wait that ends is broken.
    pub(crate) breaks: AtomicBool,
}

#[derive(Default)]
struct Hot {
    providers: BTreeMap<ProviderId, Arc<ProviderState>>,
    connections: BTreeMap<ConnectionId, Arc<ConnectionState>>,
}

/// Everything the proxy told.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    pub(crate) reports: Vec<(AttemptOutcome, bool)>,
    /// Answers that began.
    pub(crate) opened: Vec<OpenAttempt>,
    pub(crate) usages: Vec<UsageRecord>,
    pub(crate) observed: Vec<Observation>,
    /// With whose probe.
    pub(crate) abandoned: Vec<(AttemptId, Option<ProviderId>)>,
    pub(crate) released: Vec<AttemptId>,
    /// What each question said it replaces.
    pub(crate) replaced: Vec<Option<AttemptId>>,
    /// The attempt of each question, and the connection whose permit it had waited for.
    pub(crate) asked: Vec<(AttemptId, Option<ConnectionId>)>,
    /// The lease that each question is under.
    pub(crate) leases: Vec<Option<LeaseName>>,
    /// The attempt of each wait for a permit.
    pub(crate) awaited: Vec<AttemptId>,
    /// How long each of them had waited elsewhere.
    pub(crate) waited: Vec<Duration>,
    pub(crate) asks: u64,
    /// Notes that were asked for.
    pub(crate) notes_asked: u64,
    /// Requests to management endpoints.
    pub(crate) managed: Vec<ManagementCall>,
}

impl View for Hot {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        self.providers.get(provider).cloned()
    }

    fn connection(
        &self,
        _provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.connections.get(connection).cloned()
    }

    fn version(&self, _shard: Shard) -> Version {
        Version::new(1, 1)
    }
}

impl FakeControl {
    /// With a document, every connection of which has the credential `sk-<connection>`.
    pub(crate) fn new(document: Document, deadlines: Deadlines) -> Self {
        Self {
            snapshot: Some(snapshot(document, 1)),
            ..Self::unconfigured(deadlines)
        }
    }

    /// Another document is in force at the data plane; decisions are made with the first one.
    pub(crate) fn configure(&self, document: Document) {
        *self.newer_snapshot.lock() = Some(snapshot(document, 1));
    }

    /// The data plane was told that nothing was ever applied.
    pub(crate) fn nothing_is_applied(&self) {
        *self.newer_snapshot.lock() = Some(snapshot(Document::default(), 0));
    }

    /// The same, where a model is known to take only so many tools.
    pub(crate) fn with_tool_limit(mut self, provider: &str, model: &str, limit: u32) -> Self {
        let snapshot = Arc::make_mut(self.snapshot.as_mut().unwrap());
        let row = ModelInfo {
            tool_limit: Some(limit),
            ..ModelInfo::default()
        };
        let provider = ProviderId::new(provider).unwrap();
        let model = ModelId::new(model).unwrap();
        Arc::make_mut(&mut snapshot.config).catalogue = Catalogue::new([(provider, model, row)]);
        self
    }

    /// Without any configuration.
    pub(crate) fn unconfigured(deadlines: Deadlines) -> Self {
        Self {
            snapshot: None,
            newer_snapshot: Mutex::default(),
            deadlines,
            hot: Mutex::default(),
            heard: Mutex::default(),
            handoffs: Mutex::default(),
            attempts: AtomicU64::new(0),
            paces: Arc::default(),
            lost_races: AtomicU64::new(0),
            silent: AtomicBool::new(false),
            forgets_notes: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            panics_at_breaks: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            reported: Notify::new(),
            freed: Notify::new(),
            leases: FakeLeases::default(),
            managed: Mutex::default(),
            hangs: AtomicBool::new(false),
            refuses_managed: Mutex::default(),
            breaks: AtomicBool::new(false),
        }
    }

    pub(crate) fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// Outcomes of all reports, in order.
    pub(crate) fn outcomes(&self) -> Vec<tidegate_core::outcome::Outcome> {
        let heard = self.heard.lock();
        heard
            .reports
            .iter()
            .map(|(report, _)| report.outcome.clone())
            .collect()
    }

    fn decide_now(&self, ask: &Ask) -> Answer {
        assert!(!self.panics.load(Ordering::Relaxed), "asked to panic");
        let snapshot = self.snapshot.as_ref().unwrap();
        let config = &snapshot.config;
        let now = self.now();
        let prior = ask.last_failure.as_ref().map(|failure| {
            let attempt = &failure.attempt;
            let policy = &config.provider(&attempt.provider).unwrap().policy;
            let context = ClassifyContext::of(
                &attempt.provider,
                policy,
                &attempt.model,
                failure.occurred_at,
            );
            PriorAttempt {
                attempt: attempt.clone(),
                classification: classify(&failure.outcome, &context),
                failed_at: failure.occurred_at,
                pass: failure.pass,
                target: failure.target,
            }
        });
        let mut so_far = AttemptsSoFar::clone(&ask.so_far);
        so_far.attempts.extend(prior.clone());
        let route = routing::resolve_request(config, &ask.facts);
        let decision = routing::decide(&Input {
            config,
            view: &*self.hot.lock(),
            facts: &ask.facts,
            so_far: &so_far,
            egress: ask.egress.as_ref(),
            telemetry: &NoTelemetry,
            turns: &DecisionTurns::alone(&snapshot.counters),
            now,
            random: 0,
            has_credential: &|connection| snapshot.credentials.contains_key(connection),
        });
        let next_target_same_provider = match (&route, &prior) {
            (Some(route), Some(prior)) => {
                routing::next_target_same_provider(route, prior, &decision)
            }
            _ => false,
        };
        let is_full = self.is_full.load(Ordering::Relaxed) && !so_far.attempts.is_empty();
        let decision = if is_full && ask.waited.granted.is_none() {
            Step::AwaitPermit(Box::new(PermitWait {
                provider: ProviderId::new("two").unwrap(),
                connection: ConnectionId::new("two-a").unwrap(),
                limit: Duration::from_secs(30),
                ticket: Vec::new(),
                waited: Duration::ZERO,
            }))
        } else {
            self.step(ask, decision)
        };
        Answer {
            decision,
            classification: prior.as_ref().map(|prior| prior.classification.clone()),
            failed_at: prior.map_or(now, |prior| prior.failed_at),
            next_target_same_provider,
            combo: route.is_some_and(|route| route.combo.is_some()),
            local: false,
        }
    }

    fn step(&self, ask: &Ask, mut decision: Decision) -> Step {
        if let (Some(error), Some(_)) = (*self.refuses_managed.lock(), ask.facts.lease) {
            decision = Decision::Reject(Box::new(refused(error)));
        }
        match decision {
            Decision::Wait(wait) => Step::Wait {
                kind: wait.kind,
                wait: Duration::from_millis(wait.wait_ms),
            },
            Decision::Reject(rejection) => Step::Reject(rejection),
            Decision::Plan(plan) => Step::Plan(plan),
            Decision::Dispatch(dispatch) => Step::Dispatch(Box::new(Dispatch {
                attempt: Attempt {
                    id: ask.attempt,
                    provider: dispatch.provider,
                    connection: dispatch.connection,
                    model: dispatch.model,
                    decided_on: dispatch.decided_on,
                    epoch: dispatch.epoch,
                    credential_version: 1,
                    egress: None,
                    probe: dispatch.needs_probe,
                    synthetic: false,
                },
                pass: dispatch.pass,
                target: dispatch.target,
                permit: dispatch.permit.is_some(),
                target_key: dispatch.target_key.as_ref().to_owned(),
                combo: dispatch.combo,
                report_at_readiness: dispatch.report_at_readiness,
                excluded: dispatch.excluded,
                deadlines: Deadlines {
                    target: dispatch.timeout_ms.map(Duration::from_millis),
                    ..self.deadlines
                },
                order: dispatch.order,
                order_version: self.snapshot.as_ref().unwrap().config.version,
                max_tools: dispatch.max_tools,
                emergency_max_tokens: dispatch.emergency_max_tokens,
            })),
            Decision::TakeTurn(key) => panic!("nobody counts {key:?}"),
            Decision::ReadPin(key) => panic!("nobody keeps {key:?}"),
        }
    }

    fn apply(&self, report: &AttemptOutcome) {
        let config = &self.snapshot.as_ref().unwrap().config;
        let attempt = &report.attempt;
        let entry = config.provider(&attempt.provider).unwrap();
        let connection = config.connection(&attempt.connection).unwrap();
        let mut hot = self.hot.lock();
        let mut provider_state = hot
            .provider(&attempt.provider)
            .map_or_else(ProviderState::default, Arc::unwrap_or_clone);
        let mut connection_state = hot
            .connection(&attempt.provider, &attempt.connection)
            .map_or_else(ConnectionState::default, Arc::unwrap_or_clone);
        let subject = Subject {
            provider: &mut provider_state,
            connection: Some((connection, &mut connection_state)),
        };
        let event = Event::Outcome(Box::new(report.clone()));
        apply(
            subject,
            &event,
            self.now(),
            &entry.policy,
            &attempt.provider,
        );
        hot.providers
            .insert(attempt.provider.clone(), Arc::new(provider_state));
        hot.connections
            .insert(attempt.connection.clone(), Arc::new(connection_state));
    }
}

impl ControlPort for FakeControl {
    fn next_attempt(&self) -> AttemptId {
        AttemptId {
            plane: PlaneIncarnation(7),
            number: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    fn next_unasked_attempt(&self) -> AttemptId {
        self.next_attempt()
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let newer = self.newer_snapshot.lock().clone();
        newer.or_else(|| self.snapshot.clone())
    }

    fn now(&self) -> Timestamp {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp(elapsed.as_millis().try_into().unwrap())
    }

    async fn decide(&self, ask: Ask) -> Answer {
        self.heard.lock().asks += 1;
        self.heard.lock().replaced.push(ask.replaces);
        self.heard.lock().leases.push(ask.facts.lease);
        let asked = (ask.attempt, ask.waited.granted.clone());
        self.heard.lock().asked.push(asked);
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.decide_now(&ask)
    }

    async fn lease(&self, asked: &Lifecycle, key: &KeyId) -> Result<LeaseAnswer, LeaseError> {
        self.leases.lease(asked, key)
    }

    async fn fence(
        &self,
        lease: LeaseName,
        key: &KeyId,
        connection: &ConnectionId,
    ) -> Result<Leased, LeaseError> {
        self.leases.fence(lease, key, connection).await
    }

    async fn await_permit(&self, attempt: AttemptId, wait: &PermitWait) -> PermitWaited {
        self.heard.lock().awaited.push(attempt);
        self.heard.lock().waited.push(wait.waited);
        self.freed.notified().await;
        if self.breaks.swap(false, Ordering::Relaxed) {
            return PermitWaited::Broken;
        }
        PermitWaited::Granted
    }

    async fn admit(&self, ask: &AdmissionAsk) -> Admission {
        let attempt = AttemptId {
            plane: PlaneIncarnation(8),
            number: self.attempts.fetch_add(1, Ordering::Relaxed),
        };
        let lost = &self.lost_races;
        let (write, read) = (Ordering::Relaxed, Ordering::Relaxed);
        if !ask.look
            && lost
                .fetch_update(write, read, |left| left.checked_sub(1))
                .is_ok()
        {
            return Admission::Full;
        }
        let now = self.now();
        let mut paces = self.paces.lock();
        let pace = paces.entry(ask.connection.clone()).or_default();
        let (admitted, standing) = if ask.look {
            pace.look(attempt.plane, Some(&ask.model), ask.limits, now)
        } else {
            pace.admit(attempt, Some(&ask.model), ask.limits, now)
        };
        let place = standing.and_then(|standing| standing.place);
        match admitted {
            Admitted::Now if ask.look => Admission::Now(Running::uncounted()),
            Admitted::Now => {
                let (paces, connection) = (Arc::clone(&self.paces), ask.connection.clone());
                let running = Running::until(move || {
                    if let Some(pace) = paces.lock().get_mut(&connection) {
                        pace.running().release(attempt);
                    }
                });
                Admission::Now(running.at(place))
            }
            Admitted::NotBefore(then) => {
                Admission::NotBefore(Duration::from_millis(then.remaining_ms(now)))
            }
            Admitted::Spent(then) => {
                Admission::Spent(Duration::from_millis(then.remaining_ms(now)))
            }
            Admitted::Full => Admission::Full,
        }
    }

    fn learn(&self, lesson: &Lesson) {
        let mut paces = self.paces.lock();
        let pace = paces.entry(lesson.connection.clone()).or_default();
        pace.learn(&lesson.model, lesson.told, lesson.place, self.now());
    }

    fn is_learned(&self, connection: &ConnectionId, model: &ModelId) -> bool {
        let pace = self.paces.lock().get(connection).cloned();
        pace.is_some_and(|mut pace| {
            let looked = pace.look(
                PlaneIncarnation(8),
                Some(model),
                PaceLimits::default(),
                self.now(),
            );
            looked.1.is_some()
        })
    }

    fn report(&self, report: AttemptOutcome, urgent: bool) {
        self.apply(&report);
        self.heard.lock().reports.push((report, urgent));
        self.reported.notify_one();
    }

    fn opens(&self, open: OpenAttempt) {
        self.heard.lock().opened.push(open);
    }

    fn record_usage(&self, record: UsageRecord) {
        self.heard.lock().usages.push(record);
    }

    fn observe(&self, observation: Observation) {
        let broke =
            matches!(&observation, Observation::Ended(end) if end.verdict == Verdict::Broke);
        let panics = broke && self.panics_at_breaks.load(Ordering::Relaxed);
        assert!(!panics, "asked to panic");
        self.heard.lock().observed.push(observation);
    }

    async fn manage(&self, call: ManagementCall) -> Option<ManagementAnswer> {
        let deadline = call.deadline;
        self.heard.lock().managed.push(call);
        if self.hangs.load(Ordering::Relaxed) {
            sleep_until(deadline).await;
            return None;
        }
        if self.silent.load(Ordering::Relaxed) {
            return None;
        }
        self.managed.lock().clone()
    }

    fn availability(
        &self,
        facts: &RequestFacts,
        egress: Option<&EgressId>,
    ) -> Option<ModelAvailability> {
        let snapshot = self.snapshot()?;
        Some(routing::availability(&Input {
            config: &snapshot.config,
            view: &*self.hot.lock(),
            facts,
            so_far: &AttemptsSoFar::default(),
            egress,
            telemetry: &NoTelemetry,
            turns: &DecisionTurns::peeking(&snapshot.counters),
            now: self.now(),
            random: 0,
            has_credential: &|connection: &ConnectionId| {
                snapshot.credentials.contains_key(connection)
            },
        }))
    }

    async fn fetch_handoff(&self, name: &HandoffName) -> Option<(Note, ConnectionId)> {
        self.heard.lock().notes_asked += 1;
        if self.forgets_notes.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.handoffs.lock().get(name).cloned()?
    }

    async fn begin_handoff(&self, name: &HandoffName, success: &Success) -> Option<Terms> {
        let config = &self.snapshot.as_ref().unwrap().config;
        let route = routing::resolve(config, name.combo.as_str()).unwrap();
        let served = Served {
            provider: &success.provider,
            model: &success.model,
            quota: success.quota.as_ref(),
        };
        let terms = wanted(&route, served, self.now()).ok()?;
        let mut handoffs = self.handoffs.lock();
        let standing = match handoffs.get(name) {
            None => Standing::Nothing,
            Some(None) => Standing::Running,
            Some(Some(_)) => Standing::Active,
        };
        let terms = terms.unless(standing).ok()?;
        handoffs.insert(name.clone(), None);
        Some(terms)
    }

    async fn save_handoff(
        &self,
        name: &HandoffName,
        note: &Note,
        made_on: &ConnectionId,
        _expires_at: Timestamp,
    ) -> bool {
        let note = (note.clone(), made_on.clone());
        self.handoffs.lock().insert(name.clone(), Some(note));
        true
    }

    fn abandon(&self, attempt: AttemptId, provider: Option<ProviderId>) {
        self.heard.lock().abandoned.push((attempt, provider));
    }

    fn release(&self, attempt: AttemptId) {
        self.heard.lock().released.push(attempt);
    }

    fn is_ready(&self) -> bool {
        self.snapshot.is_some()
    }

    fn live_data_planes(&self) -> u32 {
        1
    }
}
