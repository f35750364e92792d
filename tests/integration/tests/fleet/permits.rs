//! Never more requests at once on an account than it allows, over the whole fleet, whatever dies.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, World, chat, metric};
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tidegate_test_support::{FleetOptions, eventually};
use tokio_util::task::TaskTracker;

use crate::rotation::patient;

/// Requests for the only account that is asked in these tests.
pub(crate) fn one_a() -> Selector {
    Selector::any().credential("sk-one-a")
}

/// A fleet with `cap` requests at once on the only account of provider one, in which a busy machine does not look like a
/// control plane that is slow.
async fn capped(cap: u32, strategy: &str, config: &str) -> Result<World> {
    let world = World::start_with(patient()).await?;
    with_cap(world, cap, strategy, config).await
}

/// The same with the time limits that decisions have unless set.
async fn capped_with_usual_limits(cap: u32, strategy: &str, config: &str) -> Result<World> {
    with_cap(World::start().await?, cap, strategy, config).await
}

pub(crate) async fn with_cap(
    world: World,
    cap: u32,
    strategy: &str,
    config: &str,
) -> Result<World> {
    let document = world
        .document()
        .replace("{id: one-a,", &format!("{{id: one-a, maxConcurrent: {cap},"))
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "keys:",
            &format!(
                "  - {{name: only, strategy: {strategy}, steps: [one/m], config: {{{config}}}}}\n  \
                 - {{name: also, strategy: {strategy}, steps: [one/m], config: {{{config}}}}}\nkeys:"
            ),
        );
    world.fleet.apply(&document).await?;
    Ok(world)
}

pub(crate) fn held_at(gate: &Gate) -> Mode {
    Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::Ok),
    }
}

/// Sends a request that goes on in the background.
pub(crate) fn send(world: &World, plane: usize, model: &'static str) -> Result<Sent> {
    let addr = world.data_plane(plane)?;
    Ok(Sent(
        TaskTracker::new().spawn(async move { chat(addr, model).await }),
    ))
}

/// A request under way.
pub(crate) struct Sent(tokio::task::JoinHandle<Result<Answer>>);

impl Sent {
    pub(crate) async fn answer(self) -> Result<Answer> {
        self.answer_within(LIMIT).await
    }

    pub(crate) async fn answer_within(self, limit: Duration) -> Result<Answer> {
        tokio::time::timeout(limit, self.0).await??
    }

    /// The client goes away.
    pub(crate) fn leave(self) {
        self.0.abort();
    }
}

/// The account is free again.
async fn serves(world: &World, plane: usize, limit: Duration) -> Result<()> {
    eventually(limit, "the account serves again", || async {
        let answer = chat(world.data_plane(plane).ok()?, "only").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await
}

pub(crate) async fn reaches(world: &World, count: u64) -> Result<()> {
    let reached = world.one.log().wait_for(&one_a(), count, LIMIT).await;
    ensure!(reached, "{count} requests never reached the account");
    Ok(())
}

/// A stream whose first piece has come.
pub(crate) async fn stream(world: &World, plane: usize) -> Result<Incoming> {
    let addr = world.data_plane(plane)?;
    let body = serde_json::json!({
        "model": "only",
        "stream": true,
        "messages": [{"role": "user", "content": "hi"}],
    });
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"))
        .body(Full::new(Bytes::from(body.to_string())))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    ensure!(response.status() == 200, "{}", response.status());
    let mut body = response.into_body();
    body.frame().await.context("an empty stream")??;
    Ok(body)
}

#[tokio::test]
async fn the_cap_holds_over_two_control_planes_under_load() -> Result<()> {
    const CLIENTS: usize = 12;
    const EACH: usize = 8;
    let world = capped(2, "round-robin", "queueDepth: 100").await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(15),
    };
    world.one.set(one_a(), latency);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let addr = world.data_plane(client % 2)?;
        clients.spawn(async move {
            for _ in 0..EACH {
                let answer = chat(addr, "only").await?;
                ensure!(answer.status == 200, "{answer:?}");
            }
            Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let log = world.one.log();
    assert_eq!(log.count(&one_a()), (CLIENTS * EACH) as u64);
    assert_eq!(log.most_at_once(&one_a()), 2);
    Ok(())
}

/// On a busy machine decisions take longer than their limit, which must not look like an outage: a control plane that is
/// gone has left its permits to the data planes, of which each may use one.
#[tokio::test]
async fn a_burst_on_a_busy_machine_keeps_to_the_cap() -> Result<()> {
    const CLIENTS: usize = 60;
    let world = capped_with_usual_limits(1, "round-robin", "queueDepth: 100").await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(5),
    };
    world.one.set(one_a(), latency);
    let sent: Vec<Sent> = (0..CLIENTS)
        .map(|client| send(&world, client % 2, "only"))
        .collect::<Result<_>>()?;
    let mut served = 0;
    for sent in sent {
        let answer = sent.answer().await?;
        if answer.status == 200 {
            served += 1;
        } else {
            assert_eq!(answer.status, 429, "{answer:?}");
            assert_eq!(answer.json()["error"]["code"], "concurrency_cap");
        }
    }
    let log = world.one.log();
    let shares = shares(&world).await?;
    let most = log.most_at_once(&one_a());
    assert!(most == 1 || shares > 0.0, "{most} at once");
    assert_eq!(log.count(&one_a()), served);
    assert!(served > 0);
    Ok(())
}

/// Permits out of shares: what is documented for a store or control planes that were silent for seconds.
async fn shares(world: &World) -> Result<f64> {
    let mut shares = 0.0;
    for plane in &world.fleet.data_planes {
        shares += metric(plane.admin, "tidegate_dp_local_permits_total").await?;
    }
    for replica in &world.fleet.control_planes {
        let sample = "tidegate_cp_permits_total{grant=\"local\"}";
        shares += metric(replica.http, sample).await?;
    }
    Ok(shares)
}

#[tokio::test]
async fn the_cap_holds_while_control_planes_stop_and_go_on() -> Result<()> {
    const CLIENTS: usize = 8;
    const EACH: usize = 10;
    let stopped = Duration::from_millis(150);
    let world = capped_with_usual_limits(1, "round-robin", "queueDepth: 100").await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(20),
    };
    world.one.set(one_a(), latency);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let addr = world.data_plane(client % 2)?;
        clients.spawn(async move {
            let mut served = 0;
            for _ in 0..EACH {
                let answer = chat(addr, "only").await?;
                ensure!([200, 429].contains(&answer.status.as_u16()), "{answer:?}");
                served += u64::from(answer.status == 200);
            }
            Ok(served)
        });
    }
    for replica in world.fleet.control_planes.iter().cycle().take(8) {
        replica.process.pause()?;
        tokio::time::sleep(stopped).await;
        replica.process.resume()?;
        tokio::time::sleep(stopped).await;
    }
    let mut served = 0;
    while let Some(ended) = clients.join_next().await {
        served += ended??;
    }
    let log = world.one.log();
    assert!(served > 0);
    assert_eq!(log.count(&one_a()), served);
    let shares = shares(&world).await?;
    let most = log.most_at_once(&one_a());
    assert!(most == 1 || shares > 0.0, "{most} at once");
    Ok(())
}

#[tokio::test]
async fn a_wait_ends_with_the_time_of_its_request() -> Result<()> {
    let world = capped(1, "round-robin", "comboTimeoutMs: 1000").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    // Not after `queueTimeoutMs`, which is longer than tests wait.
    let second = send(&world, 1, "also")?.answer().await?;
    assert_eq!(second.status, 504, "{second:?}");
    assert_eq!(second.json()["error"]["code"], "COMBO_TIMEOUT");
    gate.open();
    first.answer().await?;
    Ok(())
}

#[tokio::test]
async fn a_full_account_is_passed_over_and_named() -> Result<()> {
    let world = capped(1, "priority", "queueDepth: 0").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    // Through the other data plane, in another combo.
    let full = chat(world.data_plane(1)?, "also").await?;
    assert_eq!(full.status, 429, "{full:?}");
    assert_eq!(full.json()["error"]["code"], "concurrency_cap");
    assert!(
        full.json().to_string().contains("concurrency_cap"),
        "{full:?}"
    );
    let elsewhere = chat(world.data_plane(1)?, "main").await?;
    assert_eq!(elsewhere.status, 200);
    assert_eq!(world.two.log().count(&Selector::any()), 1);
    gate.open();
    assert_eq!(first.answer().await?.status, 200);
    serves(&world, 1, LIMIT).await
}

#[tokio::test]
async fn a_wait_for_an_account_that_was_in_vain_is_told() -> Result<()> {
    let world = capped(1, "priority", "queueTimeoutMs: 300").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let second = chat(world.data_plane(1)?, "also").await?;
    assert_eq!(second.status, 429, "{second:?}");
    assert_eq!(second.json()["error"]["code"], "SEMAPHORE_TIMEOUT");
    assert_eq!(second.headers["retry-after"], "1");
    gate.open();
    assert_eq!(first.answer().await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_39_who_waits_is_served_when_the_first_one_ends() -> Result<()> {
    let world = capped(1, "round-robin", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let second = send(&world, 1, "also")?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.one.log().count(&one_a()), 1);
    gate.open();
    assert_eq!(first.answer().await?.status, 200);
    assert_eq!(second.answer().await?.status, 200);
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    Ok(())
}

#[tokio::test]
async fn round_robin_goes_on_when_the_wait_was_in_vain() -> Result<()> {
    let world = capped(1, "round-robin", "queueTimeoutMs: 300").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let began = Instant::now();
    let second = chat(world.data_plane(1)?, "also").await?;
    assert!(began.elapsed() >= Duration::from_millis(300));
    // There is no other target.
    assert_eq!(second.status, 429, "{second:?}");
    assert_eq!(world.one.log().count(&one_a()), 1);
    gate.open();
    assert_eq!(first.answer().await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_stream_holds_its_permit_to_the_end_and_a_client_that_leaves_gives_it_back() -> Result<()>
{
    let world = capped(1, "priority", "queueDepth: 0").await?;
    world.one.set(one_a(), Mode::Stall { events: 2 });
    let body = stream(&world, 0).await?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let full = chat(world.data_plane(1)?, "only").await?;
        assert_eq!(full.status, 429, "{full:?}");
    }
    drop(body);
    world.one.set(one_a(), Mode::Ok);
    // At once, not only when the permit expires.
    serves(&world, 1, Duration::from_secs(5)).await
}

#[tokio::test]
async fn a_retry_on_the_same_account_takes_the_permit_over() -> Result<()> {
    let config = "maxRetries: 1, retryDelayMs: 50, failoverBeforeRetry: false";
    let world = World::start().await?;
    let document = world
        .document()
        .replace(
            "{id: one-a,",
            "{id: one-a, maxConcurrent: 1, disableCooling: true,",
        )
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "modelLockout: {enabled: true}",
            "modelLockout: {enabled: false}",
        )
        .replace(
            "keys:",
            &format!("  - {{name: only, steps: [one/m], config: {{{config}}}}}\nkeys:"),
        );
    world.fleet.apply(&document).await?;
    world.one.set(one_a(), [Mode::status(503), Mode::Ok]);
    let answer = chat(world.data_plane(0)?, "only").await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(world.one.log().count(&one_a()), 2);
    serves(&world, 1, Duration::from_secs(5)).await
}

#[tokio::test]
async fn vector_sessions_39_a_killed_data_planes_permits_come_back() -> Result<()> {
    let world = capped(1, "priority", "queueDepth: 0").await?;
    world.one.set(one_a(), Mode::Stall { events: 2 });
    let _body = stream(&world, 0).await?;
    world.fleet.data_planes[0].process.kill().await?;
    let killed = Instant::now();
    world.one.set(one_a(), Mode::Ok);
    let full = chat(world.data_plane(1)?, "only").await?;
    assert_eq!(full.status, 429, "{full:?}");
    serves(&world, 1, Duration::from_secs(45)).await?;
    assert!(killed.elapsed() >= Duration::from_secs(15));
    Ok(())
}

#[tokio::test]
async fn a_long_request_keeps_its_permit_past_its_first_end() -> Result<()> {
    let world = capped(1, "priority", "queueDepth: 0").await?;
    world.one.set(one_a(), Mode::Stall { events: 2 });
    let body = stream(&world, 0).await?;
    world.one.set(one_a(), Mode::Ok);
    let end = Instant::now() + Duration::from_secs(34);
    while Instant::now() < end {
        let full = chat(world.data_plane(1)?, "only").await?;
        let shares = shares(&world).await?;
        assert!(full.status == 429 || shares > 0.0, "{full:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    drop(body);
    serves(&world, 1, Duration::from_secs(5)).await
}

#[tokio::test]
async fn permits_forgotten_by_the_store_block_nobody() -> Result<()> {
    let world = capped(1, "round-robin", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let waiting = send(&world, 1, "only")?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.fleet.redis.flush_all().await?;
    // Nobody knows of the first one any more, so the one that waits goes.
    reaches(&world, 2).await?;
    let third = send(&world, 0, "only")?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.one.log().count(&one_a()), 2);
    gate.open();
    for sent in [first, waiting, third] {
        assert_eq!(sent.answer().await?.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn without_the_store_each_data_plane_has_its_share() -> Result<()> {
    let options = FleetOptions {
        data_planes: 1,
        ..patient()
    };
    let world = World::start_with(options).await?;
    let document = world
        .document()
        .replace("{id: one-a,", "{id: one-a, maxConcurrent: 2,")
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "keys:",
            "  - {name: only, steps: [one/m], config: {queueDepth: 0}}\nkeys:",
        );
    world.fleet.apply(&document).await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    world.fleet.redis.stop().await?;
    let mut sent = Vec::new();
    for count in 1..=2 {
        sent.push(send(&world, 0, "only")?);
        reaches(&world, count).await?;
    }
    let full = chat(world.data_plane(0)?, "only").await?;
    assert_eq!(full.status, 429, "{full:?}");
    // Nor without any control plane: what is held counts, whoever gave it out.
    for replica in &world.fleet.control_planes {
        replica.process.kill().await?;
    }
    let full = chat(world.data_plane(0)?, "only").await?;
    assert_eq!(full.status, 429, "{full:?}");
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    let answer = chat(world.data_plane(0)?, "only").await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    Ok(())
}
