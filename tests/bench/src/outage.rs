//! Providers that fail: how fast reports of 5,000 failures a second are applied, and what that costs.
//!
//! Simulated data planes speak `ReportService` as real ones do, but merge nothing, and the attempts they report were
//! decided a moment ago, on what their replica has just shown, so that few are set aside as news of an old episode.
//! That is more than a fleet of real data planes could bring. Mixes:
//! - `full`: failures only;
//! - `half`: as many successes between them, on the same connections. Each clears what the failure before it caused,
//!   so state never comes to rest and every write changes both values.
//!
//! Replicas: `near2`, two beside Redis; `far3`, a third one with 1 ms more each way. Providers: `p1`, one with 50
//! connections, for whose value all replicas compete; `p16`, sixteen with 10 connections each.

mod counters;
mod plane;
mod versions;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tidegate_test_support::{FaultProxy, Fleet, FleetOptions};
use tokio::task::JoinSet;

use crate::load::percentile_ms;
use crate::summary::Summary;

use counters::{Counters, ReplicaCounters};
use plane::{Delivered, Plane};

/// Failures a second, over all data planes.
const FAILURES_PER_SECOND: u32 = 5_000;
/// Simulated data planes; a multiple of the numbers of replicas.
const PLANES: u32 = 12;
/// How long reports come.
const TIME: Duration = Duration::from_secs(15);
/// How much later everything travels between the far replica and Redis, each way.
const FAR: Duration = Duration::from_millis(1);
/// Shards a replica may write, each at most once in 5 ms (`control-plane/store`, pacing).
const MAX_WRITES_PER_SECOND: f64 = 16.0 * 200.0;

/// What fails, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Failures only.
    Full,
    /// As many successes as failures.
    Half,
}

/// What fails.
#[derive(Clone, Debug)]
struct Case {
    /// In the figures' names and in the providers' ids: each case has its own.
    name: String,
    mix: Mix,
    providers: usize,
    connections_each: usize,
}

const MIXES: [(&str, Mix); 2] = [("full", Mix::Full), ("half", Mix::Half)];
const SPREADS: [(&str, usize, usize); 2] = [("p1", 1, 50), ("p16", 16, 10)];
const REPLICAS: [&str; 2] = ["near2", "far3"];

/// Measures all cases and notes the figures.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    let mut fleet = Fleet::start_with(FleetOptions {
        control_planes: 2,
        data_planes: 0,
        ..FleetOptions::default()
    })
    .await?;
    fleet.write_secret("bench.key", "sk-bench")?;
    let all: Vec<Vec<Case>> = REPLICAS.into_iter().map(cases).collect();
    fleet.apply(&document(all.iter().flatten())).await?;
    let proxy = FaultProxy::start(fleet.redis.addr()).await?;
    proxy.set_delay(FAR);
    for (group, replicas) in all.iter().zip(REPLICAS) {
        if replicas == "far3" {
            fleet.add_replica_over(proxy.addr()).await?;
        }
        for case in group {
            run(&fleet, case, summary)
                .await
                .with_context(|| format!("outage {}", case.name))?;
        }
    }
    Ok(())
}

fn cases(replicas: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (mix_name, mix) in MIXES {
        for (spread, providers, connections_each) in SPREADS {
            cases.push(Case {
                name: format!("{replicas}.{mix_name}.{spread}"),
                mix,
                providers,
                connections_each,
            });
        }
    }
    cases
}

impl Case {
    fn provider(&self, number: usize) -> String {
        format!("{}-{number}", self.name.replace('.', "-"))
    }

    fn connection(&self, provider: usize, number: usize) -> String {
        format!("{}-c{number}", self.provider(provider))
    }

    /// Reports a second of each simulated data plane.
    fn reports_per_second(&self) -> u32 {
        let kinds = match self.mix {
            Mix::Full => 1,
            Mix::Half => 2,
        };
        FAILURES_PER_SECOND * kinds / PLANES
    }
}

fn document<'a>(cases: impl Iterator<Item = &'a Case> + Clone) -> String {
    let mut providers = String::from("providers:\n");
    let mut connections = String::from("connections:\n");
    for case in cases {
        for provider in 0..case.providers {
            let id = case.provider(provider);
            providers.push_str(&format!(
                "  - {{id: {id}, protocol: openai, baseUrl: \"http://127.0.0.1:9/v1\", class: apikey}}\n"
            ));
            for number in 0..case.connections_each {
                let connection = case.connection(provider, number);
                connections.push_str(&format!(
                    "  - {{id: {connection}, provider: {id}, credential: {{file: bench.key}}}}\n"
                ));
            }
        }
    }
    providers + &connections
}

/// Drives one case and notes its figures.
async fn run(fleet: &Fleet, case: &Case, summary: &mut Summary) -> Result<()> {
    let replicas: Vec<SocketAddr> = fleet
        .control_planes
        .iter()
        .map(|plane| plane.grpc)
        .collect();
    let started = Instant::now();
    let mut watches = JoinSet::new();
    let mut shown = Vec::new();
    for (number, &replica) in (1..).zip(&replicas) {
        shown.push(versions::follow(replica, number, &mut watches).await?);
    }
    let mut planes = JoinSet::new();
    let places = replicas.iter().zip(&shown).enumerate().cycle();
    for (number, (place, (&replica, shown))) in (0..PLANES).zip(places) {
        let plane = Plane::connect(number, replica, case, shown.clone()).await?;
        planes.spawn(async move { Ok::<_, anyhow::Error>((place, plane.run(TIME).await?)) });
    }
    let before = Counters::read(fleet).await?;
    tokio::time::sleep(TIME.saturating_sub(started.elapsed())).await;
    let after = Counters::read(fleet).await?;
    let mut delivered: Vec<Delivered> = replicas.iter().map(|_| Delivered::default()).collect();
    while let Some(ended) = planes.join_next().await {
        let (place, of_plane) = ended??;
        let of_replica = delivered.get_mut(place).context("no such replica")?;
        of_replica.add(of_plane);
    }
    if let Some(ended) = watches.try_join_next() {
        ended??;
        bail!("a watch ended");
    }
    note(case, &before, &after, delivered, summary)
}

fn note(
    case: &Case,
    before: &Counters,
    after: &Counters,
    delivered: Vec<Delivered>,
    summary: &mut Summary,
) -> Result<()> {
    let prefix = format!("outage.{}", case.name);
    let spent = (after.at - before.at).as_secs_f64();
    let mut all = Delivered::default();
    let mut sum = ReplicaCounters::default();
    let mut slowest_near_ms: f64 = 0.0;
    let mut far_ms = None;
    let pairs = before.replicas.iter().zip(&after.replicas);
    for (number, (mut of_replica, (from, to))) in delivered.into_iter().zip(pairs).enumerate() {
        let moved = to.since(from);
        of_replica.lags.sort_unstable();
        let p99_ms = percentile_ms(&of_replica.lags, 0.99);
        if number < 2 {
            slowest_near_ms = slowest_near_ms.max(p99_ms);
        } else {
            far_ms = Some(p99_ms);
        }
        let mut set =
            |name: &str, figure| summary.set(format!("{prefix}.replica{number}.{name}"), figure);
        set("lag_p99_ms", p99_ms);
        set("conflicts_per_second", moved.conflicts / spent);
        set("cpu_percent", moved.cpu_seconds / spent * 100.0);
        ensure!(
            moved.writes / spent <= MAX_WRITES_PER_SECOND,
            "replica {number} writes more often than its pace allows: {} a second",
            moved.writes / spent
        );
        sum.add(&moved);
        all.add(of_replica);
    }
    ensure!(
        all.acknowledged == all.due,
        "{} of {} reports were never acknowledged",
        all.due - all.acknowledged,
        all.due
    );
    all.lags.sort_unstable();
    let mut set = |name: &str, figure| summary.set(format!("{prefix}.{name}"), figure);
    set("lag_p50_ms", percentile_ms(&all.lags, 0.5));
    set("lag_p99_ms", percentile_ms(&all.lags, 0.99));
    if let Some(far_ms) = far_ms {
        set("far_lag_p99_ratio", far_ms / slowest_near_ms);
    }
    set("reports_per_second", all.due as f64 / TIME.as_secs_f64());
    set("backlog", all.backlog as f64);
    set("backlog_ratio", all.backlog as f64 / all.due as f64);
    set("writes_per_second", sum.writes / spent);
    set("conflicts_per_second", sum.conflicts / spent);
    set(
        "conflict_ratio",
        sum.conflicts / (sum.writes + sum.conflicts).max(1.0),
    );
    set("control_plane_cpu_percent", sum.cpu_seconds / spent * 100.0);
    let redis_seconds = after.redis_cpu_seconds - before.redis_cpu_seconds;
    set("redis_cpu_percent", redis_seconds / spent * 100.0);
    Ok(())
}
