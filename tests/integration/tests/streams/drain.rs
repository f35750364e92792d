//! SIGTERM while many streams are open (`sessions-and-streams.md` §4.8).
//!
//! The delay of the drain is long and a second SIGTERM ends it, so that each stage lasts as long as the test looks at it.

use anyhow::{Context as _, Result, ensure};
use tidegate_integration::streams::{
    Multiplexed, all_are_told, all_end_well, ask_to_end, open, open_many, paused,
};
use tidegate_integration::{LIMIT, World, metric};
use tidegate_test_support::upstream::Selector;
use tidegate_test_support::{FleetOptions, eventually};

/// Streams over HTTP/1.1, a connection each.
const ALONE: usize = 150;
/// Streams on one HTTP/2 connection.
const TOGETHER: usize = 50;
const ALL: usize = ALONE + TOGETHER;

/// A fleet of which the first data plane is going to end. One account serves, with as many permits as there are streams
/// and nobody waiting for one: a permit that does not come back is missed.
async fn world(grace: &str) -> Result<World> {
    let world = World::start_with(FleetOptions {
        control_planes: 1,
        env: [
            ("TIDEGATE_DRAIN_DELAY", "10m"),
            ("TIDEGATE_GRACE", grace),
            // On a busy machine a permit that comes late is no permit that is not there.
            ("TIDEGATE_SLOW_DECIDE_LIMIT", "20s"),
            ("TIDEGATE_DECIDE_LIMIT", "10s"),
            ("TIDEGATE_DECISION_LIMIT", "9s"),
            ("TIDEGATE_DECISION_STORE_LIMIT", "5s"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        ..FleetOptions::default()
    })
    .await?;
    let document = world
        .document()
        .replace(
            "{id: one-a,",
            &format!("{{id: one-a, maxConcurrent: {ALL},"),
        )
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "keys:",
            "  - {name: only, steps: [one/m], config: {queueDepth: 0}}\nkeys:",
        );
    world.fleet.apply(&document).await?;
    Ok(world)
}

/// Records of usage, those of them that hold what the provider told, and those that hold an estimate of what came out.
async fn usage(world: &World) -> Result<[u64; 3]> {
    let sql = "SELECT count(*), count(CASE WHEN source = 'provider' THEN 1 END), \
               count(CASE WHEN source = 'estimated' AND output_tokens > 0 THEN 1 END) FROM usage";
    let rows = world.fleet.postgres.execute(&world.fleet.database, sql);
    let rows = rows.await?;
    let mut counts = rows.iter().flatten().flatten().map(|count| count.parse());
    let mut next = || -> Result<u64> { Ok(counts.next().context("no count")??) };
    Ok([next()?, next()?, next()?])
}

#[tokio::test]
async fn no_stream_is_lost_that_ends_within_the_grace() -> Result<()> {
    let world = world("10m").await?;
    let gate = paused(&world.one);
    let plane = world.fleet.data_planes.first().context("a data plane")?;
    let together = Multiplexed::connect(plane.http).await?;
    let mut streams = open_many(plane.http, "only", ALONE).await?;
    for _ in 0..TOGETHER {
        streams.push(together.open("only").await?);
    }
    ask_to_end(&plane.process, plane.http, plane.admin).await?;
    eventually(LIMIT, "the clients of HTTP/2 are told to go", || async {
        together.is_told_to_go().await.then_some(())
    })
    .await?;
    // Nothing has ended: not a stream, not the process.
    let requests = world.one.log().requests(&Selector::any());
    let running = requests.iter().filter(|request| request.ending.is_none());
    assert_eq!(running.count(), ALL);
    ensure!(plane.process.exit_status()?.is_none());
    gate.open();
    all_end_well(streams).await?;
    let ended = plane.process.wait(LIMIT).await?;
    assert!(ended.success(), "{ended}");

    let records = ALL as u64;
    assert_eq!(usage(&world).await?, [records, records, 0]);
    // Every permit is back: the other data plane gets them all.
    let other = world.data_plane(1)?;
    let gate = paused(&world.one);
    let again = open_many(other, "only", ALL).await?;
    let full = open(other, "only").await;
    assert!(full.is_err(), "there are not more permits than before");
    gate.open();
    all_end_well(again).await
}

#[tokio::test]
async fn streams_that_outlive_the_grace_are_told_so_and_finalised() -> Result<()> {
    const FEW: usize = 30;
    let world = world("1s").await?;
    let _never = paused(&world.one);
    let plane = world.fleet.data_planes.first().context("a data plane")?;
    let together = Multiplexed::connect(plane.http).await?;
    let mut streams = open_many(plane.http, "only", FEW).await?;
    for _ in 0..FEW {
        streams.push(together.open("only").await?);
    }
    ask_to_end(&plane.process, plane.http, plane.admin).await?;
    all_are_told(streams).await?;
    let ended = plane.process.wait(LIMIT).await?;
    assert!(ended.success(), "{ended}");
    // The upstream did not come to telling what it used. It bills what it had written, so that is estimated.
    let records = 2 * FEW as u64;
    assert_eq!(usage(&world).await?, [records, 0, records]);
    let gate = paused(&world.one);
    let again = open_many(world.data_plane(1)?, "only", ALL).await?;
    gate.open();
    all_end_well(again).await?;
    let other = world.fleet.data_planes.get(1).context("a data plane")?;
    eventually(LIMIT, "no permit is held", || async {
        let held = metric(other.admin, "tidegate_dp_permits_held").await.ok()?;
        (held < 0.5).then_some(())
    })
    .await
}
