//! What an order by `auto` or `quota-share` costs: telemetry is asked once per candidate, and nothing is allocated per
//! candidate.

use std::cell::Cell;
use std::sync::Arc;

use tidegate_core::breaker::Phase;
use tidegate_core::catalogue::{Catalogue, ModelInfo};
use tidegate_core::config::{ComboConfig, Protocol, Strategy};
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::number::Finite;
use tidegate_core::routing::RequestFacts;
use tidegate_core::routing::strategy::{
    Candidate, Conditions, Deficits, Ordered, Question, Ranking, Scope, TurnKey, Turns, of,
};
use tidegate_core::telemetry::{LastKnownGood, Performance, QuotaSnapshot, Telemetry};
use tidegate_core::time::Timestamp;

/// As many accounts of one provider and model, of each of which everything is known.
#[derive(Debug)]
struct World {
    names: Vec<String>,
    connections: Vec<ConnectionId>,
    provider: ProviderId,
    model: ModelId,
    scope: Scope,
    config: ComboConfig,
    facts: RequestFacts,
    catalogue: Catalogue,
    quota: Arc<QuotaSnapshot>,
    owed: Arc<Deficits>,
    asked: Cell<u32>,
}

#[cfg(test)]
impl World {
    fn new(count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|number| format!("step@c{number}")).collect();
        let provider = ProviderId::new("acme").unwrap();
        let model = ModelId::new("large").unwrap();
        let info = ModelInfo {
            input_price: Some(Finite::ONE),
            output_price: Some(Finite::ONE),
            ..ModelInfo::default()
        };
        Self {
            connections: (0..count)
                .map(|number| ConnectionId::new(format!("c{number}")).unwrap())
                .collect(),
            catalogue: Catalogue::new([(provider.clone(), model.clone(), info)]),
            provider,
            model,
            scope: Scope::Combo(ComboName::new("team").unwrap()),
            config: ComboConfig::default(),
            facts: RequestFacts::new("team", Protocol::Openai),
            quota: Arc::default(),
            owed: Arc::new(names.iter().map(|name| (name.clone(), 0)).collect()),
            asked: Cell::new(0),
            names,
        }
    }

    fn order(&self, strategy: Strategy) -> (Ordered, u64) {
        let candidates: Vec<Candidate<'_>> = self
            .connections
            .iter()
            .zip(&self.names)
            .zip(0..)
            .map(|((connection, name), group)| Candidate {
                key: name,
                provider: &self.provider,
                model: &self.model,
                connection: Some(connection),
                group,
                weight: Finite::ONE,
            })
            .collect();
        let question = Question {
            scope: &self.scope,
            candidates: candidates.as_slice().into(),
            config: &self.config,
            catalogue: &self.catalogue,
            facts: &self.facts,
            conditions: self,
            telemetry: self,
            turns: self,
            seed: 7,
            now: Timestamp(1_800_000_000_000),
        };
        let mut ordered = None;
        let info = allocation_counter::measure(|| {
            ordered = of(strategy).order(&question).ok();
        });
        (ordered.unwrap(), info.count_total)
    }
}

impl Turns for World {
    fn take(&self, _key: &TurnKey) -> Option<u64> {
        Some(1)
    }

    fn peek(&self, _key: &TurnKey) -> u64 {
        1
    }

    fn deficits(&self, _combo: &ComboName) -> Arc<Deficits> {
        Arc::clone(&self.owed)
    }

    fn sent_just_now(&self, _connection: &ConnectionId, _now: Timestamp) -> u32 {
        0
    }

    fn sent_to_target(&self, _combo: &ComboName, _key: &str, _now: Timestamp) -> u32 {
        0
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

impl Conditions for World {
    fn is_eligible(&self, _candidate: usize) -> bool {
        true
    }

    fn cools(&self, _candidate: usize) -> bool {
        false
    }

    fn phase(&self, _candidate: usize) -> Phase {
        Phase::Closed
    }

    fn max_concurrent(&self, _candidate: usize) -> Option<u32> {
        Some(3)
    }

    fn accounts(&self, _candidate: usize) -> usize {
        self.connections.len()
    }
}

impl Telemetry for World {
    fn target_requests(&self, _combo: &ComboName, _key: &str) -> Option<u64> {
        None
    }

    fn of_combo(
        &self,
        _combo: &ComboName,
        _provider: &ProviderId,
        _model: &ModelId,
    ) -> Option<Performance> {
        None
    }

    fn of_connection(&self, _connection: &ConnectionId, _model: &ModelId) -> Option<Performance> {
        self.asked.set(self.asked.get() + 1);
        Some(Performance {
            requests: 100,
            success_rate: Some(0.99),
            mean_latency_ms: 900.0,
            p95_latency_ms: 1_500.0 + f64::from(self.asked.get() % 7),
            latency_std_dev_ms: 80.0,
        })
    }

    fn connection_requests(&self, _connection: &ConnectionId) -> u64 {
        0
    }

    fn in_flight(&self, _connection: &ConnectionId) -> u32 {
        0
    }

    fn quota(&self, _connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        Some(Arc::clone(&self.quota))
    }

    fn last_known_good(&self, _combo: &ComboName) -> Option<LastKnownGood> {
        None
    }

    fn tool_limit(&self, _provider: &ProviderId) -> Option<u32> {
        None
    }

    fn session_connection(&self, _session: &str) -> Option<ConnectionId> {
        None
    }

    fn adaptation_until(&self, _combo: &ComboName, _key: &str) -> Option<Timestamp> {
        None
    }
}

#[test]
fn auto_allocates_nothing_per_candidate() {
    let (_, few) = World::new(50).order(Strategy::Auto);
    let (_, many) = World::new(800).order(Strategy::Auto);
    // Lists that grow double their room: four times more from 50 to 800, in each of a handful of lists.
    assert!(few <= 40, "{few}");
    assert!(many <= few + 6 * 4, "{few} {many}");
}

#[test]
fn auto_asks_telemetry_once_per_candidate() {
    let world = World::new(50);
    let (ordered, _) = world.order(Strategy::Auto);
    assert_eq!(ordered.order.len(), 50);
    assert_eq!(world.asked.get(), 50);
}

#[test]
fn quota_share_allocates_no_more_than_the_names_of_debts() {
    let allocations = |count| World::new(count).order(Strategy::QuotaShare).1;
    let (few, many) = (allocations(50), allocations(800));
    // Each debt is copied with its name; the map adds a node for every few of them.
    assert!(few <= 50 * 3 / 2 + 20, "{few}");
    assert!(many <= 800 * 3 / 2 + 20, "{many}");
}
