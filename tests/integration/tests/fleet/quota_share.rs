//! Accounts that quota pools share: never more requests at once than they allow, and never a request refused for it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rstest::rstest;
use tidegate_integration::{World, chat};
use tidegate_test_support::upstream::{Gate, Mode};

use crate::permits::{held_at, one_a, reaches, send};
use crate::rotation::patient;

/// Two pools over the same account.
const POOLS: [&str; 2] = ["qtSd/a/one/m", "qtSd/b/one/m"];
/// Long enough that a request which waits would have been sent.
const A_WHILE: Duration = Duration::from_millis(500);

/// A fleet whose account `one-a` two pools share. `cap` is its `maxConcurrent`, `settings` are added as they are.
async fn shared(cap: &str, settings: &str) -> Result<World> {
    let world = World::start_with(patient()).await?;
    let document = world
        .document()
        .replace(
            "{id: one-a,",
            &format!("{{id: one-a, maxConcurrent: {cap},"),
        )
        .replace(
            "keys:",
            "quotaPools:
  - {group: A, provider: one, models: [m], connections: [{connection: one-a}]}
  - {group: B, provider: one, models: [m], connections: [{connection: one-a}]}
keys:",
        )
        .replace("settings:", &format!("settings:\n  {settings}"));
    world.fleet.apply(&document).await?;
    Ok(world)
}

fn seen(world: &World) -> u64 {
    world.one.log().count(&one_a())
}

/// The first request of one pool is under way when the second, of this pool, is sent through the other data plane.
async fn second_waits(pool: &'static str) -> Result<()> {
    let world = shared("1", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, POOLS[0])?;
    reaches(&world, 1).await?;
    let second = send(&world, 1, pool)?;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(seen(&world), 1);
    gate.open();
    for sent in [first, second] {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    Ok(())
}

#[tokio::test]
async fn vector_routing_v_sm1() -> Result<()> {
    second_waits(POOLS[0]).await
}

#[tokio::test]
async fn vector_routing_v_sm2() -> Result<()> {
    let world = shared("1", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let mut sent = Vec::new();
    for number in 0..22 {
        sent.push(send(&world, number % 2, POOLS[0])?);
    }
    // One runs, twenty wait, and one goes without a permit.
    reaches(&world, 2).await?;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(seen(&world), 2);
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(seen(&world), 22);
    Ok(())
}

/// The numbers of the vector are those of the rule's own test; here a wait is shorter.
#[tokio::test]
async fn vector_routing_v_sm3() -> Result<()> {
    let world = shared("1", "comboDefaults: {queueTimeoutMs: 900}").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, POOLS[0])?;
    reaches(&world, 1).await?;
    let began = Instant::now();
    let second = send(&world, 1, POOLS[0])?;
    reaches(&world, 2).await?;
    assert!(began.elapsed() >= Duration::from_millis(900));
    gate.open();
    for sent in [first, second] {
        assert_eq!(sent.answer().await?.status, 200);
    }
    Ok(())
}

/// Nothing keeps the second request waiting.
async fn nobody_waits(cap: &str, settings: &str) -> Result<()> {
    let world = shared(cap, settings).await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let mut sent = Vec::new();
    for pool in POOLS {
        sent.push(send(&world, 0, pool)?);
    }
    reaches(&world, 2).await?;
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 2);
    Ok(())
}

#[rstest]
#[case::vector_routing_v_sm4("0", "")]
#[case::vector_routing_v_sm6("1", "quotaShareConcurrencyLimit: {enabled: false}")]
#[tokio::test]
async fn without_a_limit_nobody_waits(#[case] cap: &str, #[case] settings: &str) -> Result<()> {
    nobody_waits(cap, settings).await
}

#[tokio::test]
async fn vector_routing_v_sm5() -> Result<()> {
    second_waits(POOLS[1]).await
}

#[tokio::test]
async fn the_cap_holds_for_all_pools_and_control_planes_under_load() -> Result<()> {
    const CLIENTS: usize = 12;
    const EACH: usize = 8;
    let world = shared("2", "").await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(15),
    };
    world.one.set(one_a(), latency);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let addr = world.data_plane(client % 2)?;
        let pool = POOLS[client / 2 % 2];
        clients.spawn(async move {
            for _ in 0..EACH {
                let answer = chat(addr, pool).await?;
                ensure!(answer.status == 200, "{answer:?}");
            }
            Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    assert_eq!(seen(&world), (CLIENTS * EACH) as u64);
    assert_eq!(world.one.log().most_at_once(&one_a()), 2);
    Ok(())
}
