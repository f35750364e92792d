//! Who stands in line for an account that runs one request at a time, and for how long.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::{Gate, Mode};
use tidegate_test_support::{RespValue, eventually};

use super::permits::{Sent, held_at, one_a, reaches, send, stream, with_cap};
use super::rotation::patient;

/// Plain requests for a model of a provider; the account runs one at a time, and nothing says how long they wait.
async fn plain() -> Result<(World, Gate)> {
    // Who must wait is not sent away because a busy machine decides late.
    let world = with_cap(World::start_with(patient()).await?, 1, "priority", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    Ok((world, gate))
}

/// Long enough that a request which need not wait would have been sent.
const A_WHILE: Duration = Duration::from_millis(300);
/// How long what a replica said of those who wait there is believed (decision 44).
const WORD: Duration = Duration::from_secs(3);
/// How often it is looked whether this machine lets us run.
const TICK: Duration = Duration::from_millis(20);

/// What comes of something, and how long this machine stood still meanwhile.
async fn standing_still<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let mut work = std::pin::pin!(work);
    let mut stood_still = Duration::ZERO;
    loop {
        let began = Instant::now();
        tokio::select! {
            done = work.as_mut() => return (done, stood_still),
            () = tokio::time::sleep(TICK) => {
                stood_still += began.elapsed().saturating_sub(TICK);
            }
        }
    }
}

#[tokio::test]
async fn vector_sessions_39_the_second_of_two_requests_waits_for_the_first() -> Result<()> {
    let (world, gate) = plain().await?;
    let first = send(&world, 0, "one/m")?;
    reaches(&world, 1).await?;
    let second = send(&world, 1, "one/m")?;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.one.log().count(&one_a()), 1);
    gate.open();
    assert_eq!(first.answer().await?.status, 200);
    assert_eq!(second.answer().await?.status, 200);
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_39_what_is_given_back_twice_is_one_place() -> Result<()> {
    let (world, _gate) = plain().await?;
    world.one.set(one_a(), Mode::Stall { events: 2 });
    // The end of the body gives the permit back, and the next message of the data plane says again that it ended.
    drop(stream(&world, 0).await?);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let before = world.one.log().count(&one_a());
    let sent: Vec<Sent> = (0..3)
        .map(|plane| send(&world, plane % 2, "one/m"))
        .collect::<Result<_>>()?;
    reaches(&world, before + 1).await?;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(world.one.log().count(&one_a()), before + 1);
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    Ok(())
}

/// One runs and twenty wait, half of them through each data plane.
async fn one_and_twenty() -> Result<(World, Gate, Vec<Sent>)> {
    let (world, gate) = plain().await?;
    let mut sent = vec![send(&world, 0, "one/m")?];
    reaches(&world, 1).await?;
    for number in 0..20 {
        sent.push(send(&world, number % 2, "one/m")?);
    }
    eventually(LIMIT, "all of them stand in line", || async {
        (waiting(&world).await.ok()? == 20).then_some(())
    })
    .await?;
    assert_eq!(world.one.log().count(&one_a()), 1);
    Ok((world, gate, sent))
}

/// How many wait for the account in the whole fleet, as its pool says.
async fn waiting(world: &World) -> Result<u64> {
    let redis = &world.fleet.redis;
    let keys = redis.command(&["KEYS", "tidegate:1:{s*}:o:m:one/one-a"]);
    let keys = keys.await?;
    let key = keys.as_array().and_then(|keys| keys.first());
    let key = key.and_then(RespValue::as_text).context("no pool")?;
    let value = redis.command(&["GET", key]).await?;
    let pool = value.as_text().and_then(|text| text.split_once('\n'));
    let (_, pool) = pool.context("no pool")?;
    let pool: Value = serde_json::from_str(pool)?;
    let replicas = pool["waiting"].as_object().context("a map")?;
    let counts = replicas
        .values()
        .map(|replica| replica["count"].as_u64().unwrap_or_default());
    Ok(counts.sum())
}

#[tokio::test]
async fn vector_sessions_40_one_too_many_at_an_accounts_gate_is_told_that_it_is_full() -> Result<()>
{
    let (world, gate, sent) = one_and_twenty().await?;
    let extra = chat(world.data_plane(1)?, "one/m").await?;
    assert_eq!(extra.status, 429, "{extra:?}");
    assert_eq!(extra.json()["error"]["code"], "SEMAPHORE_QUEUE_FULL");
    assert_eq!(extra.headers["retry-after"], "1");
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    Ok(())
}

#[tokio::test]
async fn a_killed_control_plane_with_twenty_waiters_blocks_nobody_longer_than_its_word_is_true()
-> Result<()> {
    let (world, gate, sent) = one_and_twenty().await?;
    let log = world.one.log();
    let served = async {
        world.fleet.control_planes[0].process.kill().await?;
        let killed = log.started().elapsed();
        gate.open();
        // Nobody was told that the line is full because it stood there before.
        for sent in sent {
            let answer = sent.answer().await?;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        anyhow::Ok(killed)
    };
    let (killed, stood_still) = standing_still(served).await;
    let killed = killed?;
    assert_eq!(log.most_at_once(&one_a()), 1);
    // How long the account was free, each time while somebody waited for it.
    let requests = log.requests(&one_a());
    assert_eq!(requests.len(), 21);
    let free = requests.iter().zip(requests.iter().skip(1));
    let free = free.map(|(before, next)| {
        let since = before.ended_at.unwrap_or_default().max(killed);
        next.at.saturating_sub(since)
    });
    let longest = free.max().context("no hand-over")?;
    let allowed = WORD + A_WHILE + stood_still;
    assert!(longest <= allowed, "{longest:?} of {allowed:?}");
    Ok(())
}
