//! Measures Tidegate against its limits and prints ratios.
//!
//! Each figure compares two sides in one run: ours and the least that could do the same job (a tonic service that does
//! nothing, a hyper proxy that only hands bytes on). The sides alternate, five rounds each, and medians are compared, so
//! that what else the machine does meets both. Nothing here passes or fails; `target/bench/summary.json` holds the
//! figures, named as in `docs/benchmarks.md`. Some parts have no other side: `classify`, `transitions` and `routing`
//! measure the rules by themselves, and `outage` a fleet under reports of failures, where what must hold is a bound (nothing falls behind).
//!
//! Without arguments all parts run; otherwise those that are named.
#![expect(
    clippy::cast_precision_loss,
    reason = "figures are for people; counts stay far below 2^52"
)]

mod classify;
mod decide;
mod leases;
mod lists;
mod load;
mod outage;
mod permits;
mod process;
mod proxy;
mod routing;
mod rules;
mod setting;
mod streams;
mod summary;
mod telemetry;
mod traces;
mod transitions;
mod watchers;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::setting::Setting;
use crate::summary::Summary;

/// How often the sides alternate.
const ROUNDS: usize = 5;
/// How long each side is driven in each round.
const ROUND_TIME: Duration = Duration::from_secs(2);
/// Where the figures go.
const SUMMARY: &str = "target/bench/summary.json";

/// The parts, in their order.
const PARTS: [&str; 12] = [
    "classify",
    "transitions",
    "routing",
    "decide",
    "proxy",
    "watchers",
    "traces",
    "lists",
    "streams",
    "permits",
    "leases",
    "outage",
];

#[tokio::main]
async fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = named.iter().find(|name| !PARTS.contains(&name.as_str())) {
        bail!("there is no part {unknown:?}; there are {PARTS:?}");
    }
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let mut summary = Summary::default();
    if wanted("classify") {
        classify::measure(&mut summary)?;
    }
    if wanted("transitions") {
        transitions::measure(&mut summary)?;
    }
    if wanted("routing") {
        routing::measure(&mut summary)?;
        telemetry::measure(&mut summary)?;
    }
    if ["decide", "proxy", "watchers"].into_iter().any(wanted) {
        let setting = Setting::start().await?;
        setting.memory("idle", &mut summary)?;
        if wanted("decide") {
            decide::measure(&setting, &mut summary).await?;
        }
        if wanted("proxy") {
            proxy::measure(&setting, &mut summary).await?;
        }
        if wanted("watchers") {
            watchers::measure(&setting, &mut summary).await?;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        setting.memory("after", &mut summary)?;
    }
    if wanted("traces") {
        traces::measure(&mut summary).await?;
    }
    if wanted("lists") {
        lists::measure(&mut summary).await?;
    }
    if wanted("streams") {
        streams::measure(&mut summary).await?;
    }
    if wanted("permits") {
        permits::measure(&mut summary).await?;
    }
    if wanted("leases") {
        leases::measure(&mut summary).await?;
    }
    if wanted("outage") {
        outage::measure(&mut summary).await?;
    }
    summary.finish(Path::new(SUMMARY))
}
