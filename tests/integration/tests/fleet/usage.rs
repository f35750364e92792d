//! Tokens of attempts: recorded once, whatever is delivered twice and whoever dies.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_integration::{CLIENT_KEY, LIMIT, World, chat, metric};
use tidegate_test_support::upstream::Mode;
use tidegate_test_support::{Direction, FaultProxy, FleetOptions, eventually};

/// How long these fleets take a silent data plane for a living one: the shortest there is.
const SILENCE_LIMIT: &str = "15s";
/// How long a test waits until a data plane is taken for lost.
const LOST_LIMIT: Duration = Duration::from_secs(60);

async fn fleet() -> Result<World> {
    World::start_with(FleetOptions {
        env: vec![(
            "TIDEGATE_SILENCE_LIMIT".to_owned(),
            SILENCE_LIMIT.to_owned(),
        )],
        ..FleetOptions::default()
    })
    .await
}

/// A stream of provider `one` whose first piece has come.
async fn stream(world: &World, plane: usize) -> Result<Incoming> {
    let addr = world.data_plane(plane)?;
    let body = r#"{"model":"one/m","stream":true,"messages":[{"role":"user","content":"ahoy"}]}"#;
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"))
        .body(Full::new(Bytes::from_static(body.as_bytes())))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let mut body = response.into_body();
    body.frame().await.context("an empty stream")??;
    Ok(body)
}

async fn streams(world: &World, plane: usize, count: usize) -> Result<Vec<Incoming>> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(stream(world, plane).await?);
    }
    Ok(streams)
}

/// What a query about the durable store gives: one number.
async fn number(world: &World, sql: &str) -> Result<u64> {
    let rows = world
        .fleet
        .postgres
        .execute(&world.fleet.database, sql)
        .await?;
    let value = rows.concat().into_iter().flatten().next();
    Ok(value.context("no rows")?.parse()?)
}

async fn recorded(world: &World, source: &str) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM usage WHERE source = '{source}'");
    number(world, &sql).await
}

async fn under_way(world: &World) -> Result<u64> {
    number(world, "SELECT count(*) FROM open_attempts").await
}

/// Waits until so many rows are of a source.
async fn until_recorded(world: &World, source: &str, count: u64) -> Result<()> {
    let waited = eventually(LOST_LIMIT, "usage is recorded", || async {
        (recorded(world, source).await.ok()? == count).then_some(())
    });
    match waited.await {
        Ok(()) => Ok(()),
        Err(error) => {
            let found = recorded(world, source).await?;
            Err(error.context(format!("{found} of {count} are {source}")))
        }
    }
}

async fn until_under_way(world: &World, count: u64) -> Result<()> {
    eventually(LIMIT, "the durable store knows what is open", || async {
        (under_way(world).await.ok()? == count).then_some(())
    })
    .await
}

async fn until_ready(world: &World, replica: usize) -> Result<()> {
    let replica = &world.fleet.control_planes[replica];
    let limit = Duration::from_secs(30);
    let ready = replica
        .process
        .wait_for_http(replica.http, "/readyz", limit);
    ready.await
}

/// A sum over both replicas.
async fn counted(world: &World, sample: &str) -> Result<f64> {
    let mut sum = 0.0;
    for replica in &world.fleet.control_planes {
        sum += metric(replica.http, sample).await?;
    }
    Ok(sum)
}

#[tokio::test]
async fn vector_sessions_56_a_record_whose_answer_is_lost_counts_once() -> Result<()> {
    let mut world = fleet().await?;
    let mut network = Vec::new();
    for replica in &world.fleet.control_planes {
        network.push(FaultProxy::start(replica.grpc).await?);
    }
    let addresses: Vec<_> = network.iter().map(FaultProxy::addr).collect();
    world.fleet.add_data_plane_over(&addresses).await?;
    let plane = world.fleet.data_planes.len() - 1;
    // What is sent to the control plane arrives, and nobody hears that it did. The request is decided here then.
    for proxy in &network {
        proxy.freeze_direction(Direction::ToClient);
    }
    let answer = chat(world.data_plane(plane)?, "one/m").await?;
    ensure!(answer.status == 200, "{answer:?}");
    let repeated = "tidegate_cp_usage_records_repeated_total";
    eventually(LIMIT, "it was delivered twice", || async {
        (counted(&world, repeated).await.ok()? > 0.0).then_some(())
    })
    .await?;
    for proxy in &network {
        proxy.resume();
    }
    let admin = world.fleet.data_planes[plane].admin;
    let taken = "tidegate_dp_usage_recorded_total";
    eventually(LIMIT, "the data plane heard that it is taken", || async {
        (metric(admin, taken).await.ok()? > 0.0).then_some(())
    })
    .await?;
    assert_eq!(number(&world, "SELECT count(*) FROM usage").await?, 1);
    let of_provider = "tidegate_cp_usage_records_total{source=\"provider\"}";
    assert!((counted(&world, of_provider).await? - 1.0).abs() < 0.5);
    let tokens = number(&world, "SELECT sum(output_tokens) FROM usage").await?;
    let sample = "tidegate_cp_usage_tokens_total{source=\"provider\",direction=\"output\"}";
    let sum = counted(&world, sample).await?;
    let sample = "tidegate_dp_tokens_total{source=\"provider\",direction=\"output\"}";
    let sent = metric(admin, sample).await?;
    assert!(tokens > 0);
    assert_eq!(format!("{sum:.0} {sent:.0}"), format!("{tokens} {tokens}"));
    let log = world.fleet.data_planes[plane].process.log()?;
    let told: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("tidegate::access"))
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("\"usage\":\"provider\""), "{told:?}");
    Ok(())
}

/// One fleet for all ways to be lost, since each of them takes the whole silence limit to be noticed.
#[tokio::test]
async fn what_lost_data_planes_had_under_way_is_recorded_once() -> Result<()> {
    let mut world = World::start_with(FleetOptions {
        data_planes: 4,
        env: vec![
            (
                "TIDEGATE_SILENCE_LIMIT".to_owned(),
                SILENCE_LIMIT.to_owned(),
            ),
            ("TIDEGATE_GRACE".to_owned(), "2s".to_owned()),
        ],
        ..FleetOptions::default()
    })
    .await?;
    world.one.set_default(Mode::Stall { events: 3 });
    let killed = streams(&world, 0, 20).await?;
    let kept = streams(&world, 1, 3).await?;
    let cut_off = streams(&world, 2, 5).await?;
    let ended = streams(&world, 3, 5).await?;
    until_under_way(&world, 33).await?;

    // One that ends in order leaves nothing unknown.
    let plane = world.fleet.data_planes.remove(3);
    let status = plane.process.terminate(Duration::from_secs(20)).await?;
    ensure!(status.success(), "{status}");
    until_recorded(&world, "estimated", 5).await?;
    assert_eq!(under_way(&world).await?, 28);

    // Of one that is killed, and of one that is only cut off, nobody knows. Whoever was told is not there either for a
    // while; the other one goes on.
    world.fleet.data_planes[0].process.kill().await?;
    let paused = &world.fleet.data_planes[2].process;
    paused.pause()?;
    world.fleet.control_planes[0].process.kill().await?;
    world.fleet.control_planes[0].process.start_again()?;
    until_recorded(&world, "unknown", 25).await?;
    until_ready(&world, 0).await?;
    world.fleet.control_planes[1].process.kill().await?;
    world.fleet.control_planes[1].process.start_again()?;
    until_ready(&world, 1).await?;
    // Both begin to look anew, and find no more than there was; what lives goes on. The one that ended is forgotten as
    // the lost ones are, and there was nothing of it to record.
    assert_eq!(under_way(&world).await?, 3);
    let planes = "SELECT count(*) FROM open_attempt_planes";
    eventually(LOST_LIMIT, "it is forgotten", || async {
        (number(&world, planes).await.ok()? == 1).then_some(())
    })
    .await?;

    // What was only cut off tells what it was.
    paused.resume()?;
    drop(cut_off);
    until_recorded(&world, "estimated", 10).await?;
    drop((killed, kept, ended));
    until_recorded(&world, "estimated", 13).await?;
    until_under_way(&world, 0).await?;
    assert_eq!(number(&world, "SELECT count(*) FROM usage").await?, 33);
    assert_eq!(recorded(&world, "unknown").await?, 20);
    let empty = "SELECT count(*) FROM usage WHERE source = 'unknown'
                 AND (input_tokens IS NOT NULL OR output_tokens IS NOT NULL OR key_id <> 'client')";
    assert_eq!(number(&world, empty).await?, 0);
    Ok(())
}
