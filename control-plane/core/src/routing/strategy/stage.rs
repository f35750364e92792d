//! A question of which every answer can be set, for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::breaker::Phase;
use crate::catalogue::{Catalogue, ModelInfo};
use crate::config::{ComboConfig, Protocol, Strategy};
use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::number::Finite;
use crate::routing::RequestFacts;
use crate::telemetry::{LastKnownGood, Performance, QuotaSnapshot, Telemetry};
use crate::time::Timestamp;

use super::{
    Candidate, Charge, Conditions, Deficits, Halt, Ordered, Question, Scope, TurnKey, Turns, of,
};

/// When everything happens.
pub(super) const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// A quota of which nothing is known but that it was looked at just now.
pub(super) fn seen() -> QuotaSnapshot {
    QuotaSnapshot {
        observed_at: NOW,
        ..QuotaSnapshot::default()
    }
}

/// What is true of one candidate.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) key: String,
    pub(super) provider: ProviderId,
    pub(super) model: ModelId,
    pub(super) connection: Option<ConnectionId>,
    pub(super) weight: Finite,
    pub(super) eligible: bool,
    pub(super) phase: Phase,
    pub(super) cap: Option<u32>,
    pub(super) accounts: usize,
    pub(super) in_flight: u32,
    pub(super) quota: Option<QuotaSnapshot>,
    pub(super) performance: Option<Performance>,
    pub(super) combo_performance: Option<Performance>,
    pub(super) adaptation_until: Option<Timestamp>,
    pub(super) info: ModelInfo,
}

impl Actor {
    /// An account at a provider and with a model of its own, of which nothing else is known.
    pub(super) fn new(name: &str) -> Self {
        Self {
            key: name.to_owned(),
            provider: ProviderId::new(format!("p-{}", name.to_lowercase())).unwrap(),
            model: ModelId::new(format!("m-{name}")).unwrap(),
            connection: Some(ConnectionId::new(format!("c-{name}")).unwrap()),
            weight: Finite::ZERO,
            eligible: true,
            phase: Phase::Closed,
            cap: None,
            accounts: 1,
            in_flight: 0,
            quota: None,
            performance: None,
            combo_performance: None,
            adaptation_until: None,
            info: ModelInfo::default(),
        }
    }

    pub(super) fn weight(self, weight: f64) -> Self {
        Self {
            weight: Finite::new(weight).unwrap(),
            ..self
        }
    }
}

/// The candidates of a combo and all that a strategy can ask.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) actors: Vec<Actor>,
    pub(super) scope: Scope,
    pub(super) config: ComboConfig,
    pub(super) facts: RequestFacts,
    pub(super) seed: u64,
    pub(super) now: Timestamp,
    pub(super) session_connection: Option<ConnectionId>,
    pub(super) last_known_good: Option<LastKnownGood>,
    pub(super) counters: Counters,
}

/// Numbers that are counted in one place.
#[derive(Debug, Default)]
pub(super) struct Counters {
    turns: RefCell<BTreeMap<TurnKey, u64>>,
    deficits: RefCell<Arc<Deficits>>,
}

impl Stage {
    pub(super) fn new(actors: Vec<Actor>) -> Self {
        Self {
            actors,
            scope: Scope::Combo(ComboName::new("team").unwrap()),
            config: ComboConfig::default(),
            facts: RequestFacts::new("team", Protocol::Openai),
            seed: 0,
            now: NOW,
            session_connection: None,
            last_known_good: None,
            counters: Counters::default(),
        }
    }

    /// The same with another name.
    pub(super) fn named(self, combo: &str) -> Self {
        Self {
            scope: Scope::Combo(ComboName::new(combo).unwrap()),
            ..self
        }
    }

    /// Asks something of the candidates as they are now.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&Question<'_>) -> T) -> T {
        let rows = self.actors.iter().map(|actor| {
            (
                actor.provider.clone(),
                actor.model.clone(),
                actor.info.clone(),
            )
        });
        let catalogue = Catalogue::new(rows);
        let candidates: Vec<Candidate<'_>> = self
            .actors
            .iter()
            .zip(0..)
            .map(|(actor, group)| Candidate {
                key: &actor.key,
                provider: &actor.provider,
                model: &actor.model,
                connection: actor.connection.as_ref(),
                group,
                weight: actor.weight,
            })
            .collect();
        ask(&Question {
            scope: &self.scope,
            candidates: &candidates,
            config: &self.config,
            catalogue: &catalogue,
            facts: &self.facts,
            conditions: self,
            telemetry: self,
            turns: &self.counters,
            seed: self.seed,
            now: self.now,
        })
    }

    /// The order of a strategy; what it costs is paid.
    pub(super) fn order(&self, strategy: Strategy) -> Result<Ordered, Halt> {
        let ordered = self.ask(|question| of(strategy).order(question))?;
        if let Some(charge) = &ordered.charge {
            self.counters.pay(charge);
        }
        Ok(ordered)
    }

    /// The order by keys.
    pub(super) fn keys(&self, strategy: Strategy) -> Vec<&str> {
        let ordered = self.order(strategy).unwrap();
        ordered
            .order
            .iter()
            .map(|position| self.actors[*position].key.as_str())
            .collect()
    }

    /// The first of the order.
    pub(super) fn head(&self, strategy: Strategy) -> usize {
        self.order(strategy).unwrap().order[0]
    }

    fn of_connection(&self, connection: &ConnectionId) -> Option<&Actor> {
        self.actors
            .iter()
            .find(|actor| actor.connection.as_ref() == Some(connection))
    }
}

impl Counters {
    fn pay(&self, charge: &Charge) {
        let mut deficits = self.deficits.borrow_mut();
        assert!(Arc::ptr_eq(&charge.before, &deficits));
        *deficits = Arc::new(charge.after.clone());
    }

    /// Sets what is owed.
    pub(super) fn owe(&self, deficits: Deficits) {
        *self.deficits.borrow_mut() = Arc::new(deficits);
    }

    pub(super) fn deficits(&self) -> Arc<Deficits> {
        Arc::clone(&self.deficits.borrow())
    }
}

impl Turns for Counters {
    fn take(&self, key: &TurnKey) -> Option<u64> {
        let mut turns = self.turns.borrow_mut();
        let next = turns.entry(key.clone()).or_default();
        let turn = *next;
        *next += 1;
        Some(turn)
    }

    fn peek(&self, key: &TurnKey) -> u64 {
        self.turns.borrow().get(key).copied().unwrap_or_default()
    }

    fn deficits(&self, _combo: &ComboName) -> Arc<Deficits> {
        Self::deficits(self)
    }

    fn sent_just_now(&self, _connection: &ConnectionId, _now: Timestamp) -> u32 {
        0
    }
}

impl Conditions for Stage {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.actors[candidate].eligible
    }

    fn phase(&self, candidate: usize) -> Phase {
        self.actors[candidate].phase
    }

    fn max_concurrent(&self, candidate: usize) -> Option<u32> {
        self.actors[candidate].cap
    }

    fn accounts(&self, candidate: usize) -> usize {
        self.actors[candidate].accounts
    }
}

impl Telemetry for Stage {
    fn target_requests(&self, _combo: &ComboName, _key: &str) -> Option<u64> {
        None
    }

    fn of_combo(
        &self,
        _combo: &ComboName,
        provider: &ProviderId,
        model: &ModelId,
    ) -> Option<Performance> {
        self.actors
            .iter()
            .find(|actor| actor.provider == *provider && actor.model == *model)
            .and_then(|actor| actor.combo_performance)
    }

    fn of_connection(&self, connection: &ConnectionId, _model: &ModelId) -> Option<Performance> {
        self.of_connection(connection)?.performance
    }

    fn connection_requests(&self, _connection: &ConnectionId) -> u64 {
        0
    }

    fn in_flight(&self, connection: &ConnectionId) -> u32 {
        self.of_connection(connection)
            .map_or(0, |actor| actor.in_flight)
    }

    fn quota(&self, connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        self.of_connection(connection)?.quota.clone().map(Arc::new)
    }

    fn last_known_good(&self, _combo: &ComboName) -> Option<LastKnownGood> {
        self.last_known_good.clone()
    }

    fn tool_limit(&self, _provider: &ProviderId) -> Option<u32> {
        None
    }

    fn session_connection(&self, _session: &str) -> Option<ConnectionId> {
        self.session_connection.clone()
    }

    fn adaptation_until(&self, _combo: &ComboName, key: &str) -> Option<Timestamp> {
        self.actors
            .iter()
            .find(|actor| actor.key == key)
            .and_then(|actor| actor.adaptation_until)
    }
}
