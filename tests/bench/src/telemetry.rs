//! What it costs to make the past of the fleet of what replicas told: of 64 replicas, each at its bounds, as a control plane
//! does twice a second when so many names published within a day.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::telemetry::aggregate::{Aggregate, BoundedSum, Bounds, End, Verdict};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::time::Timestamp;

use crate::ROUNDS;
use crate::load::median;
use crate::summary::Summary;

const NOW: Timestamp = Timestamp(1_800_000_000_000);
const REPLICAS: u64 = 64;
/// As many targets, connections and conversations as there is room for.
const ENTRIES: u64 = 5_000;

/// Measures and notes the figures.
pub(crate) fn measure(summary: &mut Summary) -> Result<()> {
    let parts = (0..REPLICAS)
        .map(|replica| part(replica, NOW))
        .collect::<Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let parts = parts.clone();
        let started = Instant::now();
        black_box(Fleet::of(parts, &Bounds::default(), NOW));
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    summary.set("telemetry.fleet_of_64.ms", median(times));
    Ok(())
}

/// What one replica knows when as many accounts as there is room for served once.
pub(crate) fn of_one(now: Timestamp) -> Result<Fleet> {
    Ok(Fleet::of([part(0, now)?], &Bounds::default(), now))
}

/// The targets and connections are the same for each replica, the conversations are its own.
fn part(replica: u64, at: Timestamp) -> Result<Aggregate> {
    let mut sum = BoundedSum::default();
    for number in 0..ENTRIES {
        let name = format!("c{number}");
        let end = End {
            target: Some((ComboName::new("combo")?, name.clone())),
            provider: ProviderId::new("p")?,
            connection: ConnectionId::new(name)?,
            model: ModelId::new("m")?,
            verdict: Verdict::Served { ready_ms: 1 },
            began_at: at,
            at: at.minus_ms(number),
            session: Some(format!("s{replica}-{number}")),
        };
        // What there is no room for is left out, as it would be.
        let _refused = sum.absorb(Aggregate::of_end(end));
    }
    Ok(sum.take())
}
