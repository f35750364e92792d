//! SIGTERM while many streams are open, in one process.

use anyhow::{Context as _, Result, ensure};
use tidegate_integration::LIMIT;
use tidegate_integration::streams::{
    Multiplexed, all_are_told, all_end_well, ask_to_end, open_many, paused,
};
use tidegate_test_support::{ProcessBuilder, eventually};

use super::Standalone;

/// Streams over HTTP/1.1, a connection each.
const ALONE: usize = 150;
/// Streams on one HTTP/2 connection.
const TOGETHER: usize = 50;
/// Prints how many records of usage a database has, how many of them hold what the provider told, and how many an estimate
/// of what came out.
const COUNT: &str = r#"import sqlite3, sys
print(*sqlite3.connect(sys.argv[1]).execute("""
SELECT count(*), count(CASE WHEN source = 'provider' THEN 1 END),
       count(CASE WHEN source = 'estimated' AND output_tokens > 0 THEN 1 END) FROM usage
""").fetchone())"#;

/// With a delay that is ended by asking again.
async fn start(grace: &str) -> Result<Standalone> {
    let arguments = ["--drain-delay", "10m", "--grace", grace];
    Standalone::start_as(&[], &arguments, |document| document).await
}

/// Records of usage, those of them that hold what the provider told, and those that hold an estimate of what came out.
async fn usage(standalone: &Standalone) -> Result<[u64; 3]> {
    let database = standalone.folder.path().join("data/tidegate.sqlite");
    let counted = ProcessBuilder::program("python3", "python3")
        .args(["-c", COUNT])
        .arg(database)
        .run(LIMIT)
        .await?;
    ensure!(counted.status.success(), "{counted:?}");
    let mut counts = counted.stdout.split_whitespace().map(str::parse::<u64>);
    let mut next = || -> Result<u64> { Ok(counts.next().context("no count")??) };
    Ok([next()?, next()?, next()?])
}

#[tokio::test]
async fn no_stream_is_lost_that_ends_within_the_grace() -> Result<()> {
    let standalone = start("10m").await?;
    let gate = paused(&standalone.openai);
    let together = Multiplexed::connect(standalone.http).await?;
    let mut streams = open_many(standalone.http, "one/m", ALONE).await?;
    for _ in 0..TOGETHER {
        streams.push(together.open("one/m").await?);
    }
    ask_to_end(&standalone.process, standalone.http, standalone.http).await?;
    eventually(LIMIT, "the clients of HTTP/2 are told to go", || async {
        together.is_told_to_go().await.then_some(())
    })
    .await?;
    ensure!(standalone.process.exit_status()?.is_none());
    gate.open();
    all_end_well(streams).await?;
    let ended = standalone.process.wait(LIMIT).await?;
    assert!(ended.success(), "{ended}");
    let records = (ALONE + TOGETHER) as u64;
    assert_eq!(usage(&standalone).await?, [records, records, 0]);
    Ok(())
}

#[tokio::test]
async fn streams_that_outlive_the_grace_are_told_so_and_finalised() -> Result<()> {
    const FEW: usize = 30;
    let standalone = start("1s").await?;
    let _never = paused(&standalone.openai);
    let streams = open_many(standalone.http, "one/m", FEW).await?;
    ask_to_end(&standalone.process, standalone.http, standalone.http).await?;
    all_are_told(streams).await?;
    let ended = standalone.process.wait(LIMIT).await?;
    assert!(ended.success(), "{ended}");
    // The upstream did not come to telling what it used. It bills what it had written, so that is estimated.
    let records = FEW as u64;
    assert_eq!(usage(&standalone).await?, [records, 0, records]);
    Ok(())
}
