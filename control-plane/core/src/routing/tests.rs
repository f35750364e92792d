//! Whole requests against the driver: each test walks one to its end with a script of outcomes.

mod affinity;
mod cooldown_waits;
mod driver_vectors;
mod egress;
mod emergency;
mod filters;
mod final_answers;
mod gates;
mod leases;
mod limits;
mod naming;
mod nested;
mod occupied;
mod orders;
mod own_failures;
mod permits;
mod plans;
mod properties;
mod reordered;
mod rule_scopes;
mod ruled_out;
mod selection;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::breaker::BreakerStatus;
use crate::catalogue::{Catalogue, ModelInfo};
use crate::classify::{ClassifyContext, classify};
use crate::config::Document;
use crate::ids::{AttemptId, ComboName, PlaneIncarnation};
use crate::outcome::{Outcome, UpstreamError};
use crate::settings::Overrides;
use crate::telemetry::{LastKnownGood, NoTelemetry, Performance, QuotaSnapshot};

/// The store's time at which every test begins.
const START: Timestamp = Timestamp(1_000_000);
/// More steps than any request of these tests may take.
const MAX_STEPS: usize = 1_000;

/// Hot state that a test writes by hand.
#[derive(Default)]
struct FixedView {
    providers: BTreeMap<ProviderId, Arc<ProviderState>>,
    connections: BTreeMap<ConnectionId, Arc<ConnectionState>>,
    full: BTreeSet<ConnectionId>,
    pins: BTreeMap<PinKey, PinReading>,
}

impl View for FixedView {
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

    fn version(&self, shard: Shard) -> Version {
        Version::new(7, u64::from(shard.number()).saturating_add(1))
    }

    fn is_full(&self, connection: &ConnectionId) -> bool {
        self.full.contains(connection)
    }

    fn pin(&self, key: &PinKey) -> PinReading {
        let known = self.pins.get(key).cloned();
        known.unwrap_or(PinReading::Read(None))
    }
}

/// Telemetry that a test writes by hand: quotas, tool limits and who served last.
#[derive(Debug, Default)]
struct Known {
    quotas: BTreeMap<ConnectionId, Arc<QuotaSnapshot>>,
    tool_limits: BTreeMap<ProviderId, u32>,
    last_known_good: Option<LastKnownGood>,
}

impl Telemetry for Known {
    fn target_requests(&self, combo: &ComboName, key: &str) -> Option<u64> {
        NoTelemetry.target_requests(combo, key)
    }

    fn of_combo(
        &self,
        combo: &ComboName,
        provider: &ProviderId,
        model: &ModelId,
    ) -> Option<Performance> {
        NoTelemetry.of_combo(combo, provider, model)
    }

    fn of_connection(&self, connection: &ConnectionId, model: &ModelId) -> Option<Performance> {
        NoTelemetry.of_connection(connection, model)
    }

    fn connection_requests(&self, connection: &ConnectionId) -> u64 {
        NoTelemetry.connection_requests(connection)
    }

    fn in_flight(&self, connection: &ConnectionId) -> u32 {
        NoTelemetry.in_flight(connection)
    }

    fn quota(&self, connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        self.quotas.get(connection).cloned()
    }

    fn last_known_good(&self, _combo: &ComboName) -> Option<LastKnownGood> {
        self.last_known_good.clone()
    }

    fn tool_limit(&self, provider: &ProviderId) -> Option<u32> {
        self.tool_limits.get(provider).copied()
    }

    fn session_connection(&self, session: &str) -> Option<ConnectionId> {
        NoTelemetry.session_connection(session)
    }

    fn adaptation_until(&self, combo: &ComboName, key: &str) -> Option<Timestamp> {
        NoTelemetry.adaptation_until(combo, key)
    }
}

/// A configuration, hot state and one request on its way.
struct World {
    config: Config,
    view: FixedView,
    facts: RequestFacts,
    so_far: AttemptsSoFar,
    now: Timestamp,
    random: u64,
    without_credential: BTreeSet<ConnectionId>,
    egress: Option<EgressId>,
    telemetry: Known,
    counters: Counters,
}

/// How a request went.
#[derive(Debug)]
struct Journey {
    /// `provider/connection/model` of each attempt.
    attempts: Vec<String>,
    /// Waits in order.
    waits: Vec<Wait>,
    /// The final answer; `None` when an attempt succeeded.
    rejection: Option<Rejection>,
}

impl World {
    /// Connections are written `provider/connection`; the combo `c` has the steps as given, those written
    /// `provider/connection/model` pinned. All providers speak OpenAI's protocol and are of class `apikey`.
    fn combo(connections: &[&str], steps: &[&str], combo: Value, settings: Value) -> Self {
        let split = |text: &str| {
            let mut parts = text.splitn(3, '/').map(str::to_owned);
            let mut next = || parts.next();
            (next().unwrap(), next().unwrap(), next())
        };
        let mut providers: Vec<String> = Vec::new();
        let mut connection_entries = Vec::new();
        for text in connections {
            let (provider, id, _) = split(text);
            if !providers.contains(&provider) {
                providers.push(provider.clone());
            }
            connection_entries.push(json!({"id": id, "provider": provider}));
        }
        let steps: Vec<Value> = steps
            .iter()
            .map(|text| match split(text) {
                (provider, connection, Some(model)) => {
                    json!({"model": format!("{provider}/{model}"), "connection": connection})
                }
                (provider, model, None) => json!(format!("{provider}/{model}")),
            })
            .collect();
        let providers: Vec<Value> = providers
            .iter()
            .map(|id| json!({"id": id, "protocol": "openai", "baseUrl": "https://x.example/v1"}))
            .collect();
        Self::of(
            json!({
                "providers": providers,
                "connections": connection_entries,
                "combos": [{"name": "c", "steps": steps, "config": combo}],
                "settings": settings,
            }),
            "c",
        )
    }

    fn of(document: Value, model: &str) -> Self {
        let document: Document = serde_json::from_value(document).unwrap();
        Self {
            config: Config::build(document, 1, &Overrides::default()).unwrap(),
            view: FixedView::default(),
            facts: RequestFacts::new(model, Protocol::Openai),
            so_far: AttemptsSoFar::default(),
            now: START,
            random: 0,
            without_credential: BTreeSet::new(),
            egress: None,
            telemetry: Known::default(),
            counters: Counters::default(),
        }
    }

    /// Failures do not cool any connection.
    fn without_cooling(mut self) -> Self {
        let mut document = Document::clone(&self.config.document);
        for connection in &mut document.connections {
            connection.disable_cooling = true;
        }
        self.config = Config::build(document, 1, &Overrides::default()).unwrap();
        self
    }

    fn with_input<T>(&self, use_input: impl FnOnce(&Input<'_>) -> T) -> T {
        let has_credential =
            |connection: &ConnectionId| !self.without_credential.contains(connection);
        use_input(&Input {
            config: &self.config,
            view: &self.view,
            facts: &self.facts,
            so_far: &self.so_far,
            egress: self.egress.as_ref(),
            telemetry: &self.telemetry,
            turns: &DecisionTurns::alone(&self.counters),
            now: self.now,
            random: self.random,
            has_credential: &has_credential,
        })
    }

    fn decide(&self) -> Decision {
        self.with_input(decide)
    }

    fn dispatch(&self) -> Dispatch {
        match self.decide() {
            Decision::Dispatch(dispatch) => *dispatch,
            other => panic!("expected a dispatch, got {other:?}"),
        }
    }

    fn reject(&self) -> Rejection {
        match self.decide() {
            Decision::Reject(rejection) => *rejection,
            other => panic!("expected a rejection, got {other:?}"),
        }
    }

    /// The attempt of this dispatch failed with this outcome.
    fn fail(&mut self, dispatch: &Dispatch, outcome: &Outcome) {
        let policy = &self.config.provider(&dispatch.provider).unwrap().policy;
        let context = ClassifyContext::of(&dispatch.provider, policy, &dispatch.model, self.now);
        let classification = classify(outcome, &context);
        let order = dispatch.order.clone();
        self.so_far.follow(order, self.config.version);
        self.so_far.attempts.push(prior(
            dispatch,
            classification,
            self.now,
            self.so_far.attempts.len(),
        ));
        self.so_far.last_is_new = true;
    }

    /// Walks the request to its end. The script gets the attempt as text and how many there were before.
    fn run(&mut self, script: impl Fn(&str, usize) -> Reply) -> Journey {
        let mut journey = Journey {
            attempts: Vec::new(),
            waits: Vec::new(),
            rejection: None,
        };
        for _ in 0..MAX_STEPS {
            match self.decide() {
                Decision::Dispatch(dispatch) => {
                    let (provider, connection) = (&dispatch.provider, &dispatch.connection);
                    let name = format!("{provider}/{connection}/{}", dispatch.model);
                    let before = journey.attempts.len();
                    journey.attempts.push(name.clone());
                    match script(&name, before) {
                        Reply::Failure(outcome) => self.fail(&dispatch, &outcome),
                        Reply::Success => return journey,
                    }
                }
                Decision::Wait(wait) => {
                    journey.waits.push(wait);
                    self.so_far.last_is_new = false;
                    self.now = self.now.plus_ms(wait.wait_ms);
                    if wait.kind == WaitKind::Cooldown {
                        self.so_far.waits += 1;
                        self.so_far.waited_ms += wait.wait_ms;
                    }
                    self.so_far.elapsed_ms += wait.wait_ms;
                }
                Decision::Reject(rejection) => {
                    journey.rejection = Some(*rejection);
                    return journey;
                }
                other @ (Decision::TakeTurn(_) | Decision::ReadPin(_) | Decision::Plan(_)) => {
                    panic!("neither sends nor ends: {other:?}")
                }
            }
        }
        panic!("the request does not end: {journey:?}");
    }

    /// What is known of models, by `provider/model`.
    fn catalogue(&mut self, rows: &[(&str, ModelInfo)]) {
        let rows = rows.iter().map(|(name, info)| {
            let (provider, model) = name.split_once('/').unwrap();
            let provider = ProviderId::new(provider).unwrap();
            (provider, ModelId::new(model).unwrap(), info.clone())
        });
        self.config.catalogue = Catalogue::new(rows);
    }

    /// Changes the targets of the combo `c`.
    fn change_targets(&mut self, change: impl FnOnce(&mut Vec<crate::config::ComboTarget>)) {
        let name = ComboName::new("c").unwrap();
        let entry = self.config.combos.get_mut(&name).unwrap();
        let mut targets = entry.targets.to_vec();
        change(&mut targets);
        entry.targets = targets.into();
    }

    fn connection_state(&mut self, connection: &str, state: ConnectionState) {
        self.view
            .connections
            .insert(ConnectionId::new(connection).unwrap(), Arc::new(state));
    }

    /// The provider's breaker opened so long ago that `left_ms` are left.
    fn open_breaker(&mut self, provider: &str, left_ms: u64) {
        let provider = ProviderId::new(provider).unwrap();
        let policy = &self.config.provider(&provider).unwrap().policy.breaker;
        let mut state = ProviderState::default();
        state.breaker.status = BreakerStatus::Open;
        state.breaker.failure_count = policy.failure_threshold;
        state.breaker.last_failure_at =
            Some(self.now.plus_ms(left_ms).minus_ms(policy.reset_timeout_ms));
        self.view.providers.insert(provider, Arc::new(state));
    }
}

impl Journey {
    fn rejection(&self) -> &Rejection {
        self.rejection.as_ref().expect("the request failed")
    }

    fn cooldown_waits(&self) -> Vec<u64> {
        self.waits
            .iter()
            .filter(|wait| wait.kind == WaitKind::Cooldown)
            .map(|wait| wait.wait_ms)
            .collect()
    }
}

fn prior(
    dispatch: &Dispatch,
    classification: Classification,
    failed_at: Timestamp,
    before: usize,
) -> PriorAttempt {
    PriorAttempt {
        attempt: Attempt {
            id: AttemptId {
                plane: PlaneIncarnation(1),
                number: u64::try_from(before).unwrap() + 1,
            },
            provider: dispatch.provider.clone(),
            connection: dispatch.connection.clone(),
            model: dispatch.model.clone(),
            decided_on: dispatch.decided_on,
            epoch: dispatch.epoch,
            credential_version: 1,
            egress: None,
            probe: dispatch.needs_probe,
            synthetic: false,
        },
        classification,
        failed_at,
        pass: dispatch.pass,
        target: dispatch.target,
    }
}

/// A state that cools until `left_ms` after the start.
fn cooling(left_ms: u64, reason: Reason) -> ConnectionState {
    let mut state = ConnectionState::default();
    state.cooldown.until = Some(START.plus_ms(left_ms));
    state.cooldown.reason = Some(reason);
    state.cooldown.backoff_level = 1;
    state
}

/// What a scripted upstream does with an attempt.
#[derive(Clone)]
enum Reply {
    Success,
    Failure(Outcome),
}

fn status(status: u16) -> Reply {
    Reply::Failure(upstream_error(status, "", None))
}

fn answer(status: u16, body: &str, retry_after: Option<&str>) -> Reply {
    Reply::Failure(upstream_error(status, body, retry_after))
}

fn upstream_error(status: u16, body: &str, retry_after: Option<&str>) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        headers: retry_after
            .map(|value| ("retry-after".to_owned(), value.to_owned()))
            .into_iter()
            .collect(),
        body: body.to_owned(),
        embedded: false,
    })
}

/// No waits for cooldowns, so that a test sees one pass.
fn no_waits() -> Value {
    json!({"comboCooldownWait": {"enabled": false}, "waitForCooldown": {"enabled": false}})
}
