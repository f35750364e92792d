//! Strategies against a desk on which everything they look at is laid out by hand.
//!
//! Candidates are named by letters: `A` has the key `A`, the provider `pa`, the model `ma` and the account `ca`, and is
//! a step of its own. An order is written as the letters in it.

mod catalogue;
mod chance;
mod layers;
mod memory;
mod page;
mod performance;
mod properties;
mod quotas;
mod rotation;
mod weighted;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::catalogue::ModelInfo;
use crate::config::Protocol;
use crate::telemetry::{LastKnownGood, Performance, QuotaSnapshot, QuotaWindow};

pub(super) use super::stage::{NOW, seen};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// One candidate and what holds of it.
#[derive(Clone, Debug)]
struct Place {
    key: String,
    provider: ProviderId,
    model: ModelId,
    connection: Option<ConnectionId>,
    group: u32,
    weight: Finite,
    eligible: bool,
    phase: Phase,
}

/// Everything a strategy looks at.
#[derive(Debug)]
struct Desk {
    scope: Scope,
    places: Vec<Place>,
    config: ComboConfig,
    prices: BTreeMap<(ProviderId, ModelId), ModelInfo>,
    facts: RequestFacts,
    target_requests: BTreeMap<String, u64>,
    connection_requests: BTreeMap<ConnectionId, u64>,
    of_model: BTreeMap<ModelId, Performance>,
    of_connection: BTreeMap<ConnectionId, Performance>,
    quotas: BTreeMap<ConnectionId, Arc<QuotaSnapshot>>,
    last_known_good: Option<LastKnownGood>,
    sessions: BTreeMap<String, ConnectionId>,
    turns: RefCell<BTreeMap<TurnKey, u64>>,
    /// Counters that all replicas share have to be fetched first.
    shared_turns_are_elsewhere: bool,
    seed: u64,
}

impl Desk {
    /// A combo `c` with a target per letter.
    fn of(letters: &str) -> Self {
        let places = letters.chars().zip(0..).map(|(letter, group)| {
            let name = letter.to_ascii_lowercase();
            Place {
                key: letter.to_string(),
                provider: ProviderId::new(format!("p{name}")).unwrap(),
                model: ModelId::new(format!("m{name}")).unwrap(),
                connection: Some(connection(&format!("c{name}"))),
                group,
                weight: Finite::ZERO,
                eligible: true,
                phase: Phase::Closed,
            }
        });
        Self {
            scope: Scope::Combo(ComboName::new("c").unwrap()),
            places: places.collect(),
            config: ComboConfig::default(),
            prices: BTreeMap::new(),
            facts: RequestFacts::new("c", Protocol::Openai),
            target_requests: BTreeMap::new(),
            connection_requests: BTreeMap::new(),
            of_model: BTreeMap::new(),
            of_connection: BTreeMap::new(),
            quotas: BTreeMap::new(),
            last_known_good: None,
            sessions: BTreeMap::new(),
            turns: RefCell::default(),
            shared_turns_are_elsewhere: false,
            seed: 0,
        }
    }

    /// The same as accounts of one provider for one model.
    fn accounts(letters: &str) -> Self {
        let mut desk = Self::of(letters);
        let provider = desk.places[0].provider.clone();
        let model = desk.places[0].model.clone();
        desk.scope = Scope::Accounts(provider.clone());
        for place in &mut desk.places {
            place.provider = provider.clone();
            place.model = model.clone();
        }
        desk
    }

    fn position(&self, letter: char) -> usize {
        self.places
            .iter()
            .position(|place| place.key == letter.to_string())
            .unwrap()
    }

    fn place(&mut self, letter: char) -> &mut Place {
        let position = self.position(letter);
        &mut self.places[position]
    }

    fn exclude(&mut self, letter: char) {
        self.place(letter).eligible = false;
    }

    fn set_quota(&mut self, letter: char, quota: QuotaSnapshot) {
        let connection = self.place(letter).connection.clone().unwrap();
        self.quotas.insert(connection, Arc::new(quota));
    }

    fn info(&mut self, letter: char, info: ModelInfo) {
        let place = self.place(letter);
        let of = (place.provider.clone(), place.model.clone());
        self.prices.insert(of, info);
    }

    /// A seed whose random numbers, as a strategy gets them, are like this.
    fn seed_where(&self, holds: impl Fn(&mut Random) -> bool) -> u64 {
        (0..100_000)
            .find(|seed| holds(&mut Seed::of(&self.scope).with_number(*seed).random()))
            .expect("such a seed")
    }

    /// Asks as one decision does, with what else `ask` wants of the question.
    fn ask<T>(&self, ask: impl FnOnce(&Question<'_>) -> T) -> T {
        let candidates: Vec<Candidate<'_>> = self
            .places
            .iter()
            .map(|place| Candidate {
                key: &place.key,
                provider: &place.provider,
                model: &place.model,
                connection: place.connection.as_ref(),
                group: place.group,
                weight: place.weight,
            })
            .collect();
        let rows = self.prices.iter();
        let catalogue = Catalogue::new(
            rows.map(|((provider, model), info)| (provider.clone(), model.clone(), info.clone())),
        );
        ask(&Question {
            scope: &self.scope,
            candidates: &candidates,
            config: &self.config,
            catalogue: &catalogue,
            facts: &self.facts,
            conditions: self,
            telemetry: self,
            turns: self,
            seed: self.seed,
            now: NOW,
        })
    }

    fn positions(&self, strategy: Strategy) -> Vec<usize> {
        let ordered = self.ask(|question| of(strategy).order(question)).unwrap();
        assert_eq!(ordered.charge, None);
        ordered.order
    }

    /// The order as letters.
    fn order(&self, strategy: Strategy) -> String {
        self.letters(&self.positions(strategy))
    }

    fn letters(&self, order: &[usize]) -> String {
        let keys = order.iter().map(|index| self.places[*index].key.as_str());
        keys.collect()
    }

    /// The order without what the gates skip.
    fn tried(&self, strategy: Strategy) -> String {
        let mut order = self.positions(strategy);
        order.retain(|index| self.places[*index].eligible);
        self.letters(&order)
    }

    /// The first of each of so many requests.
    fn heads(&self, strategy: Strategy, requests: usize) -> String {
        (0..requests)
            .map(|_| self.order(strategy).chars().next().unwrap())
            .collect()
    }

    /// The next turn for this purpose is that one.
    fn set_turn(&self, purpose: TurnPurpose, turn: u64) {
        let key = TurnKey {
            scope: self.scope.clone(),
            purpose,
        };
        self.turns.borrow_mut().insert(key, turn);
    }

    fn next_turn(&self, purpose: TurnPurpose) -> u64 {
        self.peek(&TurnKey {
            scope: self.scope.clone(),
            purpose,
        })
    }
}

impl Conditions for Desk {
    fn is_eligible(&self, candidate: usize) -> bool {
        self.places[candidate].eligible
    }

    fn phase(&self, candidate: usize) -> Phase {
        self.places[candidate].phase
    }

    fn max_concurrent(&self, _candidate: usize) -> Option<u32> {
        None
    }

    fn accounts(&self, _candidate: usize) -> usize {
        1
    }
}

impl Turns for Desk {
    fn take(&self, key: &TurnKey) -> Option<u64> {
        if self.shared_turns_are_elsewhere && key.purpose.is_shared() {
            return None;
        }
        let mut turns = self.turns.borrow_mut();
        let next = turns.entry(key.clone()).or_default();
        let taken = *next;
        *next = taken.wrapping_add(1);
        Some(taken)
    }

    fn peek(&self, key: &TurnKey) -> u64 {
        self.turns.borrow().get(key).copied().unwrap_or(0)
    }

    fn deficits(&self, _combo: &ComboName) -> Arc<Deficits> {
        Arc::default()
    }

    fn sent_just_now(&self, _connection: &ConnectionId, _now: Timestamp) -> u32 {
        0
    }
}

impl Telemetry for Desk {
    fn target_requests(&self, _combo: &ComboName, key: &str) -> Option<u64> {
        self.target_requests.get(key).copied()
    }

    fn of_combo(
        &self,
        _combo: &ComboName,
        _provider: &ProviderId,
        model: &ModelId,
    ) -> Option<Performance> {
        self.of_model.get(model).copied()
    }

    fn of_connection(&self, connection: &ConnectionId, _model: &ModelId) -> Option<Performance> {
        self.of_connection.get(connection).copied()
    }

    fn connection_requests(&self, connection: &ConnectionId) -> u64 {
        self.connection_requests
            .get(connection)
            .copied()
            .unwrap_or(0)
    }

    fn in_flight(&self, _connection: &ConnectionId) -> u32 {
        0
    }

    fn quota(&self, connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        self.quotas.get(connection).cloned()
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

    fn adaptation_until(&self, _combo: &ComboName, _key: &str) -> Option<Timestamp> {
        None
    }
}

fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn finite(number: f64) -> Finite {
    Finite::new(number).unwrap()
}

/// A window that is used to this share and begins anew after so long.
fn window(used: f64, left_ms: u64) -> QuotaWindow {
    QuotaWindow {
        used: finite(used),
        resets_at: Some(NOW.plus_ms(left_ms)),
    }
}

/// A window that began anew so long ago.
fn past_window(used: f64, ago_ms: u64) -> QuotaWindow {
    QuotaWindow {
        used: finite(used),
        resets_at: Some(NOW.minus_ms(ago_ms)),
    }
}
