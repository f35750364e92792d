//! Measures Tidegate against its limits and prints ratios.
//!
//! Each figure compares two sides in one run: ours and the least that could do the same job (a tonic service that does
//! nothing, a hyper proxy that only hands bytes on). The sides alternate, five rounds each, and medians are compared, so
//! that what else the machine does meets both. Nothing here passes or fails; `target/bench/summary.json` holds the
//! figures, named as in `docs/benchmarks.md`.
#![expect(
    clippy::cast_precision_loss,
    reason = "figures are for people; counts stay far below 2^52"
)]

mod decide;
mod load;
mod process;
mod proxy;
mod setting;
mod summary;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::setting::Setting;
use crate::summary::Summary;

/// How often the sides alternate.
const ROUNDS: usize = 5;
/// How long each side is driven in each round.
const ROUND_TIME: Duration = Duration::from_secs(2);
/// Where the figures go.
const SUMMARY: &str = "target/bench/summary.json";

#[tokio::main]
async fn main() -> Result<()> {
    let mut summary = Summary::default();
    let setting = Setting::start().await?;
    setting.memory("idle", &mut summary)?;
    decide::measure(&setting, &mut summary).await?;
    proxy::measure(&setting, &mut summary).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    setting.memory("after", &mut summary)?;
    summary.finish(Path::new(SUMMARY))
}
