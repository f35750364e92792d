//! What breaks beside single answers (`sessions-and-streams.md` §6): a provider that fails in one way and no other, and
//! stores that stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rstest::rstest;
use serde_json::json;
use tidegate_integration::{Answer, LIMIT, World, post};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};

/// Failures that open the breaker.
const THRESHOLD: u64 = 3;

/// A fleet whose breakers alone keep requests away: nothing cools and nothing locks.
async fn world(reset_ms: u64) -> Result<World> {
    with_limits(reset_ms, 500).await
}

/// The same with another limit for headers, which come at once in some tests and never in others.
async fn with_limits(reset_ms: u64, headers_ms: u64) -> Result<World> {
    let world = World::start().await?;
    let document = world
        .document()
        .replace("{id: one-a,", "{id: one-a, disableCooling: true,")
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "modelLockout: {enabled: true}",
            &format!(
                "modelLockout: {{enabled: false}}\n  \
                 streams: {{headersTimeoutMs: {headers_ms}, readinessTimeoutMs: 500, idleTimeoutMs: 500}}"
            ),
        )
        .replace(
            "resetTimeoutMs: 600000",
            &format!("resetTimeoutMs: {reset_ms}"),
        );
    world.fleet.apply(&document).await?;
    Ok(world)
}

async fn ask(world: &World, plane: usize, stream: bool) -> Result<Answer> {
    let body = json!({"model": "one/m", "stream": stream, "messages": []});
    let addr = world.data_plane(plane)?;
    post(addr, "/v1/chat/completions", body.to_string()).await
}

async fn wait_for_breaker(world: &World, wanted: &str) -> Result<()> {
    for replica in 0..2 {
        eventually(LIMIT, "the replica shows the breaker's state", || async {
            let breaker = world.breaker(replica, "one").await.ok()?;
            (breaker["state"] == wanted).then_some(())
        })
        .await
        .with_context(|| format!("replica {replica}, {wanted}"))?;
    }
    Ok(())
}

#[rstest]
#[case::timeout(Mode::Hang)]
#[case::reset(Mode::Reset)]
#[case::unavailable(Mode::status(503))]
#[case::cut_before_it_is_ready(Mode::CutInEvent { events: 0 })]
#[tokio::test]
async fn failures_seen_by_one_data_plane_open_the_breaker_for_both(
    #[case] mode: Mode,
) -> Result<()> {
    let world = world(600_000).await?;
    world.one.set_default(mode);
    for _ in 0..THRESHOLD {
        let failed = ask(&world, 0, true).await?;
        let text = String::from_utf8_lossy(&failed.body);
        ensure!(text.contains("error") && !text.contains("[DONE]"), "{text}");
    }
    wait_for_breaker(&world, "OPEN").await?;
    let sent = world.one.log().count(&Selector::any());
    for plane in [0, 1] {
        let refused = ask(&world, plane, true).await?;
        assert_eq!(refused.status, 503, "{refused:?}");
    }
    assert_eq!(world.one.log().count(&Selector::any()), sent);
    assert_eq!(sent, THRESHOLD);
    Ok(())
}

/// An upstream that takes requests and says nothing of use is left alone for a while, but its provider is not said to be
/// down (`failure-state.md` §1.6).
#[tokio::test]
async fn answers_that_never_begin_do_not_count_for_the_breaker() -> Result<()> {
    // Headers that came late would count.
    let world = with_limits(600_000, 15_000).await?;
    let drip = Mode::ByteDrip {
        gap: Duration::from_millis(400),
    };
    let beats = Mode::HeartbeatOnly {
        every: Duration::from_millis(50),
    };
    let down = Mode::status(503);
    let nothing = Mode::Stall { events: 0 };
    let script = [drip, beats, nothing, down.clone(), down.clone(), down];
    world.one.set(Selector::any(), script);
    for _ in 0..2 * THRESHOLD {
        ask(&world, 0, true).await?;
    }
    wait_for_breaker(&world, "OPEN").await?;
    assert_eq!(world.one.log().count(&Selector::any()), 2 * THRESHOLD);
    Ok(())
}

#[tokio::test]
async fn a_provider_that_recovers_is_found_out_by_a_probe() -> Result<()> {
    let world = world(1_000).await?;
    world.one.set_default(Mode::Reset);
    for _ in 0..THRESHOLD {
        ask(&world, 0, false).await?;
    }
    wait_for_breaker(&world, "HALF_OPEN").await?;
    world.one.heal();
    eventually(LIMIT, "the other data plane is served", || async {
        let answer = ask(&world, 1, false).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await?;
    wait_for_breaker(&world, "CLOSED").await
}

#[tokio::test]
async fn stores_that_stop_cost_ordinary_traffic_nothing() -> Result<()> {
    let world = World::start().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
        let addr = world.data_plane(client % 2)?;
        let stream = client < 2;
        clients.spawn(async move {
            let body = json!({"model": "main", "stream": stream, "messages": []}).to_string();
            while !stop.load(Ordering::Relaxed) {
                let answer = post(addr, "/v1/chat/completions", body.clone()).await?;
                ensure!(answer.status == 200, "{answer:?}");
                let whole = !stream || answer.body.ends_with(b"data: [DONE]\n\n");
                ensure!(whole, "{answer:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let more = async || {
        let wanted = served.load(Ordering::Relaxed) + 100;
        eventually(LIMIT, "requests are served", || async {
            (served.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await
    };
    more().await?;
    world.fleet.redis.pause()?;
    more().await?;
    world.fleet.redis.resume()?;
    more().await?;
    world.fleet.postgres.stop_immediately().await?;
    more().await?;
    // Both at once, and one replica less.
    world.fleet.redis.kill().await?;
    let replica = world.fleet.control_planes.first().context("a replica")?;
    replica.process.kill().await?;
    more().await?;
    world.fleet.redis.start_again().await?;
    world.fleet.postgres.start_again().await?;
    replica.process.start_again()?;
    more().await?;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(())
}
