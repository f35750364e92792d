//! What a decision costs in this process: for a combo of five targets with 10 and with 100,000 configured connections,
//! in turns, for `auto` with 50 candidates, and for an unpinned target at a provider with 100,000 accounts, by the
//! strategies that choose among so many without looking at all of them.
//!
//! The first two differ in nothing but the connections that the combo has no business with.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tidegate_core::config::{Config, Document, Protocol};
use tidegate_core::ids::{ConnectionId, ProviderId, Shard};
use tidegate_core::routing::{
    AttemptsSoFar, Counters, Decision, DecisionTurns, Input, RequestFacts, View, decide,
};
use tidegate_core::settings::Overrides;
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;

use crate::ROUNDS;
use crate::load::median;
use crate::summary::Summary;
use crate::telemetry;

/// How long each side is measured in a round.
const TURN: Duration = Duration::from_millis(100);
const NOW: Timestamp = Timestamp(1_800_000_000_000);
const FEW: usize = 10;
const MANY: usize = 100_000;
const CANDIDATES: usize = 50;
/// Strategies that choose among many accounts by looking at a few.
const ACCOUNT_STRATEGIES: [&str; 5] = ["fill-first", "round-robin", "p2c", "random", "least-used"];

/// Nothing ever happened.
struct Quiet;

impl View for Quiet {
    fn provider(&self, _provider: &ProviderId) -> Option<Arc<ProviderState>> {
        None
    }

    fn connection(
        &self,
        _provider: &ProviderId,
        _connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        None
    }

    fn version(&self, _shard: Shard) -> Version {
        Version::new(1, 1)
    }
}

/// A configuration and a request for its combo.
struct World {
    config: Config,
    counters: Counters,
    facts: RequestFacts,
    so_far: AttemptsSoFar,
    telemetry: Fleet,
}

/// Measures and notes the figures.
pub(crate) fn measure(summary: &mut Summary) -> Result<()> {
    let few = World::with_five_targets(FEW)?;
    let many = World::with_five_targets(MANY)?;
    let auto = World::with_candidates(CANDIDATES)?;
    let (mut of_few, mut of_many, mut of_auto) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_few.push(few.time()?);
        of_many.push(many.time()?);
        of_auto.push(auto.time()?);
    }
    let (few, many) = (median(of_few), median(of_many));
    summary.set("routing.five_targets.ns", few);
    summary.set("routing.five_targets.many_connections_ratio", many / few);
    summary.set("routing.auto50.us", median(of_auto) / 1_000.0);
    for strategy in ACCOUNT_STRATEGIES {
        let mut world = World::with_accounts(MANY, strategy)?;
        let (mut times, mut ranking) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            ranking.push(world.renew(u64::try_from(round)?)?);
            times.push(world.time()?);
        }
        if strategy == "least-used" {
            summary.set("routing.many_accounts.ranking.ms", median(ranking));
        }
        let name = format!("routing.many_accounts.{}.us", strategy.replace('-', "_"));
        summary.set(name, median(times) / 1_000.0);
    }
    Ok(())
}

impl World {
    /// A combo of five pinned targets; with the connections of another provider there are `connections` in all.
    fn with_five_targets(connections: usize) -> Result<Self> {
        let mut providers: Vec<Value> = (0..5)
            .map(|number| provider(&format!("p{number}")))
            .collect();
        providers.push(provider("others"));
        let mut entries: Vec<Value> = (0..5)
            .map(|number| json!({"id": format!("c{number}"), "provider": format!("p{number}")}))
            .collect();
        entries.extend(
            (entries.len()..connections)
                .map(|number| json!({"id": format!("o{number}"), "provider": "others"})),
        );
        let steps: Vec<Value> = (0..5)
            .map(|number| json!({"model": format!("p{number}/m"), "connection": format!("c{number}")}))
            .collect();
        Self::of(json!({
            "providers": providers,
            "connections": entries,
            "combos": [{"name": "c", "steps": steps}],
        }))
    }

    /// A combo of one target that is not pinned, at a provider with so many accounts.
    fn with_accounts(accounts: usize, strategy: &str) -> Result<Self> {
        let mut many = provider("p");
        if let Some(members) = many.as_object_mut() {
            members.insert("accountStrategy".to_owned(), json!(strategy));
        }
        let entries: Vec<Value> = (0..accounts)
            .map(|number| json!({"id": format!("c{number}"), "provider": "p"}))
            .collect();
        Self::of(json!({
            "providers": [many],
            "connections": entries,
            "combos": [{"name": "c", "steps": ["p/m"]}],
        }))
    }

    /// An `auto` combo with this many accounts to choose from.
    fn with_candidates(candidates: usize) -> Result<Self> {
        let entries: Vec<Value> = (0..candidates)
            .map(|number| json!({"id": format!("c{number}"), "provider": format!("p{}", number % 5)}))
            .collect();
        let providers: Vec<Value> = (0..5)
            .map(|number| provider(&format!("p{number}")))
            .collect();
        let steps: Vec<Value> = (0..5).map(|number| json!(format!("p{number}/m"))).collect();
        Self::of(json!({
            "providers": providers,
            "connections": entries,
            "combos": [{"name": "c", "strategy": "auto", "steps": steps}],
        }))
    }

    fn of(document: Value) -> Result<Self> {
        let document: Document = serde_json::from_value(document)?;
        let config = match Config::build(document, 1, &Overrides::default()) {
            Ok(config) => config,
            Err(violations) => bail!("{violations:?}"),
        };
        Ok(Self {
            counters: Counters::of(&config, None, 1),
            config,
            facts: RequestFacts::new("c", Protocol::Openai),
            so_far: AttemptsSoFar::default(),
            telemetry: Fleet::default(),
        })
    }

    fn decide(&self, random: u64) -> Decision {
        decide(&Input {
            config: &self.config,
            view: &Quiet,
            facts: &self.facts,
            so_far: &self.so_far,
            egress: None,
            telemetry: &self.telemetry,
            turns: &DecisionTurns::alone(&self.counters),
            now: NOW,
            random,
            has_credential: &|_connection| true,
        })
    }

    /// Nanoseconds for each decision.
    fn time(&self) -> Result<f64> {
        ensure!(
            matches!(self.decide(0), Decision::Dispatch(_)),
            "nothing to dispatch to"
        );
        let started = Instant::now();
        let mut calls: u64 = 0;
        while started.elapsed() < TURN {
            for _ in 0..64 {
                black_box(self.decide(calls));
                calls += 1;
            }
        }
        Ok(started.elapsed().as_nanos() as f64 / calls.max(1) as f64)
    }

    /// Half a second has passed: telemetry is renewed and accounts are ranked by it, off the way of decisions. Returns
    /// milliseconds for ranking.
    fn renew(&mut self, rounds: u64) -> Result<f64> {
        self.telemetry = telemetry::of_one(NOW.plus_ms(rounds * 500))?;
        let started = Instant::now();
        self.counters.rank(&self.config, &self.telemetry);
        Ok(started.elapsed().as_secs_f64() * 1_000.0)
    }
}

fn provider(id: &str) -> Value {
    json!({"id": id, "protocol": "openai", "baseUrl": "https://upstream.example/v1"})
}
