//! A stage on which everything that strategies look at is laid out by hand, for tests.
//!
//! Candidates have names, mostly letters: `A` has the key `A`, the provider `pa`, the model `ma` and the account `ca`, and
//! is a step of its own. An order is written as the names in it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::breaker::Phase;
use crate::catalogue::{Catalogue, ModelInfo};
use crate::config::{ComboConfig, Protocol, Strategy};
use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::number::Finite;
use crate::random::Random;
use crate::routing::RequestFacts;
use crate::telemetry::{LastKnownGood, Performance, QuotaSnapshot, Telemetry};
use crate::time::Timestamp;

use super::seed::Seed;
use super::{
    Candidate, Candidates, Charge, Conditions, Deficits, Halt, Ordered, Question, Ranking, Scope,
    TurnKey, TurnPurpose, Turns, of,
};

/// When everything happens: far enough from the epoch for windows that are long over.
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
    pub(super) group: u32,
    pub(super) weight: Finite,
    pub(super) eligible: bool,
    pub(super) cools: bool,
    pub(super) phase: Phase,
    pub(super) cap: Option<u32>,
    pub(super) accounts: usize,
    pub(super) in_flight: u32,
    pub(super) target_requests: Option<u64>,
    pub(super) connection_requests: u64,
    pub(super) left_out: bool,
    pub(super) quota: Option<QuotaSnapshot>,
    pub(super) performance: Option<Performance>,
    pub(super) combo_performance: Option<Performance>,
    pub(super) adaptation_until: Option<Timestamp>,
    pub(super) info: ModelInfo,
}

impl Actor {
    /// An account at a provider and with a model of its own, of which nothing else is known.
    pub(super) fn new(name: &str) -> Self {
        let of = name.to_lowercase();
        Self {
            key: name.to_owned(),
            provider: ProviderId::new(format!("p{of}")).unwrap(),
            model: ModelId::new(format!("m{of}")).unwrap(),
            connection: Some(ConnectionId::new(format!("c{of}")).unwrap()),
            group: 0,
            weight: Finite::ZERO,
            eligible: true,
            cools: false,
            phase: Phase::Closed,
            cap: None,
            accounts: 1,
            in_flight: 0,
            target_requests: None,
            connection_requests: 0,
            left_out: false,
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
    pub(super) sessions: BTreeMap<String, ConnectionId>,
    pub(super) last_known_good: Option<LastKnownGood>,
    pub(super) counters: Counters,
}

/// Numbers that are counted in one place.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) turns: RefCell<BTreeMap<TurnKey, u64>>,
    deficits: RefCell<Arc<Deficits>>,
    /// Requests that were sent to an account just now.
    pub(super) sent: BTreeMap<ConnectionId, u32>,
    /// The same of targets, by key.
    pub(super) sent_to_targets: BTreeMap<String, u32>,
    /// Counters that all replicas share have to be fetched first.
    pub(super) shared_are_elsewhere: bool,
}

impl Stage {
    /// A combo with these targets; each is a step of its own.
    pub(super) fn new(mut actors: Vec<Actor>) -> Self {
        for (actor, group) in actors.iter_mut().zip(0..) {
            actor.group = group;
        }
        Self {
            actors,
            scope: Scope::Combo(ComboName::new("team").unwrap()),
            config: ComboConfig::default(),
            facts: RequestFacts::new("team", Protocol::Openai),
            seed: 0,
            now: NOW,
            sessions: BTreeMap::new(),
            last_known_good: None,
            counters: Counters::default(),
        }
    }

    /// A combo with a target per letter.
    pub(super) fn of(letters: &str) -> Self {
        let actors = letters.chars();
        Self::new(
            actors
                .map(|letter| Actor::new(&letter.to_string()))
                .collect(),
        )
    }

    /// The same as accounts of one provider for one model.
    pub(super) fn accounts(letters: &str) -> Self {
        let mut stage = Self::of(letters);
        let first = stage.actors[0].clone();
        stage.scope = Scope::Accounts(first.provider.clone());
        for actor in &mut stage.actors {
            actor.provider = first.provider.clone();
            actor.model = first.model.clone();
        }
        stage
    }

    /// The same with another name.
    pub(super) fn named(self, combo: &str) -> Self {
        Self {
            scope: Scope::Combo(ComboName::new(combo).unwrap()),
            ..self
        }
    }

    pub(super) fn position(&self, letter: char) -> usize {
        let is_meant = |actor: &Actor| actor.key == letter.to_string();
        self.actors.iter().position(is_meant).unwrap()
    }

    pub(super) fn actor(&mut self, letter: char) -> &mut Actor {
        let position = self.position(letter);
        &mut self.actors[position]
    }

    pub(super) fn exclude(&mut self, letter: char) {
        self.actor(letter).eligible = false;
    }

    /// A seed whose random numbers, as a strategy gets them, are like this.
    pub(super) fn seed_where(&self, holds: impl Fn(&mut Random) -> bool) -> u64 {
        (0..100_000)
            .find(|seed| holds(&mut Seed::of(&self.scope).with_number(*seed).random()))
            .expect("such a seed")
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
            .map(|actor| Candidate {
                key: &actor.key,
                provider: &actor.provider,
                model: &actor.model,
                connection: actor.connection.as_ref(),
                group: actor.group,
                weight: actor.weight,
            })
            .collect();
        ask(&Question {
            scope: &self.scope,
            candidates: Candidates::Targets(&candidates),
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

    /// The order as it is walked.
    pub(super) fn walked(&self, strategy: Strategy) -> Vec<usize> {
        let walk = self.ask(|question| of(strategy).walk(question));
        walk.unwrap().collect()
    }

    /// The order as it is written.
    pub(super) fn written(&self, strategy: Strategy) -> String {
        self.names(&self.order(strategy).unwrap().order)
    }

    /// The names of these positions.
    pub(super) fn names(&self, order: &[usize]) -> String {
        let keys = order.iter().map(|index| self.actors[*index].key.as_str());
        keys.collect()
    }

    /// The order without what the gates skip.
    pub(super) fn tried(&self, strategy: Strategy) -> String {
        let mut order = self.order(strategy).unwrap().order;
        order.retain(|index| self.actors[*index].eligible);
        self.names(&order)
    }

    /// The first of the order.
    pub(super) fn head(&self, strategy: Strategy) -> usize {
        self.order(strategy).unwrap().order[0]
    }

    /// The first of each of so many requests.
    pub(super) fn heads(&self, strategy: Strategy, requests: usize) -> String {
        (0..requests)
            .map(|_| self.actors[self.head(strategy)].key.as_str())
            .collect()
    }

    /// The next turn for this purpose is that one.
    pub(super) fn set_turn(&self, purpose: TurnPurpose, turn: u64) {
        let mut turns = self.counters.turns.borrow_mut();
        turns.insert(self.turn_key(purpose), turn);
    }

    pub(super) fn next_turn(&self, purpose: TurnPurpose) -> u64 {
        self.counters.peek(&self.turn_key(purpose))
    }

    pub(super) fn turn_key(&self, purpose: TurnPurpose) -> TurnKey {
        TurnKey {
            scope: self.scope.clone(),
            purpose,
        }
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
        if self.shared_are_elsewhere && key.purpose.is_shared() {
            return None;
        }
        let mut turns = self.turns.borrow_mut();
        let next = turns.entry(key.clone()).or_default();
        let turn = *next;
        *next = turn.wrapping_add(1);
        Some(turn)
    }

    fn peek(&self, key: &TurnKey) -> u64 {
        self.turns.borrow().get(key).copied().unwrap_or_default()
    }

    fn deficits(&self, _combo: &ComboName) -> Arc<Deficits> {
        Self::deficits(self)
    }

    fn sent_just_now(&self, connection: &ConnectionId, _now: Timestamp) -> u32 {
        self.sent.get(connection).copied().unwrap_or(0)
    }

    fn sent_to_target(&self, _combo: &ComboName, key: &str, _now: Timestamp) -> u32 {
        self.sent_to_targets.get(key).copied().unwrap_or(0)
    }

    fn ranking(
        &self,
        _provider: &ProviderId,
        _as_of: Timestamp,
        make: &dyn Fn() -> Ranking,
    ) -> Arc<Ranking> {
        Arc::new(make())
    }
}

impl Conditions for Stage {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.actors[candidate].eligible
    }

    fn cools(&self, candidate: usize) -> bool {
        self.actors[candidate].cools
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
    fn target_requests(&self, _combo: &ComboName, key: &str) -> Option<u64> {
        let actor = self.actors.iter().find(|actor| actor.key == key)?;
        actor.target_requests
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

    fn connection_requests(&self, connection: &ConnectionId) -> u64 {
        self.of_connection(connection)
            .map_or(0, |actor| actor.connection_requests)
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

    fn session_connection(&self, session: &str) -> Option<ConnectionId> {
        self.sessions.get(session).cloned()
    }

    fn leaves_out_target(&self, _combo: &ComboName, key: &str) -> bool {
        let mut actors = self.actors.iter();
        actors.any(|actor| actor.key == key && actor.left_out)
    }

    fn leaves_out_connection(&self, connection: &ConnectionId) -> bool {
        self.of_connection(connection)
            .is_some_and(|actor| actor.left_out)
    }

    fn adaptation_until(&self, _combo: &ComboName, key: &str) -> Option<Timestamp> {
        self.actors
            .iter()
            .find(|actor| actor.key == key)
            .and_then(|actor| actor.adaptation_until)
    }
}
