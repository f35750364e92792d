//! What ordering costs: no more allocations for many candidates than for few, so no text is made and nothing is kept
//! per candidate.
//!
//! Counted in allocations, which are the same in every run. `make bench` shows the times.

use std::sync::Arc;

use serde_json::json;
use tidegate_core::breaker::Phase;
use tidegate_core::catalogue::Catalogue;
use tidegate_core::config::{ComboConfig, Connection, Protocol, Strategy};
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::number::Finite;
use tidegate_core::routing::RequestFacts;
use tidegate_core::routing::strategy::{
    Candidate, Candidates, Conditions, Deficits, Question, Ranking, Scope, TurnKey, Turns, of,
};
use tidegate_core::telemetry::NoTelemetry;
use tidegate_core::time::Timestamp;

/// Most allocations of one order: a few lists, and what sorting them takes.
const MOST: u64 = 6;

const STRATEGIES: [Strategy; 13] = [
    Strategy::Weighted,
    Strategy::RoundRobin,
    Strategy::P2c,
    Strategy::Random,
    Strategy::LeastUsed,
    Strategy::CostOptimized,
    Strategy::ResetAware,
    Strategy::ResetWindow,
    Strategy::Headroom,
    Strategy::StrictRandom,
    Strategy::Lkgp,
    Strategy::ContextOptimized,
    Strategy::CacheOptimized,
];

/// Everything can be used, and every turn is the seventh.
struct Open;

impl Conditions for Open {
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
        None
    }

    fn accounts(&self, _candidate: usize) -> usize {
        1
    }
}

impl Turns for Open {
    fn take(&self, _key: &TurnKey) -> Option<u64> {
        Some(7)
    }

    fn peek(&self, _key: &TurnKey) -> u64 {
        7
    }

    fn deficits(&self, _combo: &ComboName) -> Arc<Deficits> {
        Arc::default()
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

/// Calls `ask` with a question about so many accounts of a provider.
#[cfg(test)]
fn with_accounts<T>(count: usize, ask: impl FnOnce(&Question<'_>) -> T) -> T {
    let accounts: Vec<Arc<Connection>> = (0..count)
        .map(|number| {
            let account = json!({"id": format!("account-{number}"), "provider": "acme"});
            Arc::new(serde_json::from_value(account).unwrap())
        })
        .collect();
    let provider = ProviderId::new("acme").unwrap();
    let model = ModelId::new("large").unwrap();
    ask(&Question {
        scope: &Scope::Accounts(provider.clone()),
        candidates: Candidates::Accounts {
            of: Candidate {
                key: "acme/large",
                provider: &provider,
                model: &model,
                connection: None,
                group: 0,
                weight: Finite::ONE,
            },
            accounts: &accounts,
        },
        config: &ComboConfig::default(),
        catalogue: &Catalogue::default(),
        facts: &RequestFacts::new("main", Protocol::Openai),
        conditions: &Open,
        telemetry: &NoTelemetry,
        turns: &Open,
        seed: 11,
        now: Timestamp(1_800_000_000_000),
    })
}

/// Calls `ask` with a question about so many candidates.
#[cfg(test)]
fn with_candidates<T>(count: usize, ask: impl FnOnce(&Question<'_>) -> T) -> T {
    let keys: Vec<String> = (0..count)
        .map(|number| format!("main-model-{number}"))
        .collect();
    let connections: Vec<ConnectionId> = (0..count)
        .map(|number| ConnectionId::new(format!("account-{number}")).unwrap())
        .collect();
    let provider = ProviderId::new("acme").unwrap();
    let model = ModelId::new("large").unwrap();
    let candidates: Vec<Candidate<'_>> = keys
        .iter()
        .zip(&connections)
        .zip(0..)
        .map(|((key, connection), group)| Candidate {
            key,
            provider: &provider,
            model: &model,
            connection: Some(connection),
            group,
            weight: Finite::from(group),
        })
        .collect();
    let mut facts = RequestFacts::new("main", Protocol::Openai);
    facts.cache_key = Some("prefix".repeat(20));
    ask(&Question {
        scope: &Scope::Combo(ComboName::new("main").unwrap()),
        candidates: candidates.as_slice().into(),
        config: &ComboConfig::default(),
        catalogue: &Catalogue::default(),
        facts: &facts,
        conditions: &Open,
        telemetry: &NoTelemetry,
        turns: &Open,
        seed: 11,
        now: Timestamp(1_800_000_000_000),
    })
}

#[test]
fn an_order_allocates_no_more_for_many_candidates_than_for_few() {
    for strategy in STRATEGIES {
        let allocations = [50, 500].map(|count| {
            with_candidates(count, |question| {
                let info = allocation_counter::measure(|| {
                    let ordered = of(strategy).order(question).unwrap();
                    assert_eq!(ordered.order.len(), count);
                });
                info.count_total
            })
        });
        let [few, many] = allocations;
        assert!(few <= MOST && many <= MOST, "{strategy:?}: {allocations:?}");
    }
}

/// Who is first of the accounts of a provider is found without looking at all of them, where the strategy allows it. For
/// `least-used` the ranking is made once for each state of telemetry, which is not counted here.
#[test]
fn the_first_of_many_accounts_is_found_with_a_few_bytes() {
    for strategy in [Strategy::RoundRobin, Strategy::P2c, Strategy::Random] {
        let bytes = [50, 50_000].map(|count| {
            with_accounts(count, |question| {
                let mut first = None;
                let info = allocation_counter::measure(|| {
                    first = of(strategy).walk(question).unwrap().next();
                });
                assert!(first.is_some());
                info.bytes_total
            })
        });
        assert!(bytes[1] <= bytes[0] + 1_024, "{strategy:?}: {bytes:?}");
    }
}
