//! Stands for a test that is killed: starts servers, stops one of them (SIGSTOP), says so, and waits for its end.

use std::future::pending;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use tidegate_test_support::{Postgres, Redis, ScratchDir};

#[tokio::main]
async fn main() -> Result<()> {
    let scratch = ScratchDir::new("victim")?;
    let root = scratch
        .path()
        .parent()
        .context("the scratch directory lies nowhere")?;
    let redis = Redis::start().await?;
    let postgres = Postgres::start().await?;
    postgres.pause()?;
    writeln!(
        std::io::stdout(),
        "ready {} {} {}",
        redis.addr(),
        postgres.addr(),
        root.display()
    )?;
    pending().await
}
