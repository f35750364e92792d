//! Queues and the pace of connections, over the whole fleet.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rstest::rstest;
use tidegate_integration::{LIMIT, World, chat, metric};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Gate, Mode, Selector, Window};

use super::permits::{Sent, held_at, one_a, reaches, send};
use super::rotation::patient;

/// The fleet with these members of `requestQueue`; only one account is asked, in `only`, or in `both` before provider two.
async fn queued(queue: &str) -> Result<World> {
    let world = World::start_with(patient()).await?;
    apply(&world, queue, "").await?;
    Ok(world)
}

async fn apply(world: &World, queue: &str, connection: &str) -> Result<()> {
    let document = world
        .document()
        .replace("{id: one-a,", &format!("{{id: one-a, {connection}"))
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "keys:",
            "  - {name: only, steps: [one/m], config: {maxRetries: 2}}\n  \
             - {name: both, steps: [one/m, two/m], config: {maxRetries: 0}}\nkeys:",
        )
        .replace(
            "settings:",
            &format!("settings:\n  requestQueue: {{{queue}}}"),
        );
    world.fleet.apply(&document).await?;
    Ok(())
}

/// How many requests wait in the queues of a data plane.
async fn waiting(world: &World, plane: usize) -> Result<f64> {
    let plane = world.fleet.data_planes.get(plane).context("a plane")?;
    metric(plane.admin, "tidegate_dp_queued").await
}

async fn until_waiting(world: &World, plane: usize, count: u32) -> Result<()> {
    eventually(LIMIT, "requests wait", || async {
        let waiting = waiting(world, plane).await.ok()?;
        ((waiting - f64::from(count)).abs() < 0.5).then_some(())
    })
    .await
}

/// Requests that were admitted by a data plane's part of the limits.
const LOCAL: &str = "tidegate_dp_local_admissions_total";

#[tokio::test]
async fn never_more_at_once_than_the_queue_lets_go_over_two_data_planes_under_load() -> Result<()> {
    const CLIENTS: usize = 8;
    const EACH: usize = 5;
    let world = queued("concurrentRequests: 1").await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(10),
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
    assert_eq!(log.most_at_once(&one_a()), 1);
    for plane in &world.fleet.data_planes {
        assert!(metric(plane.admin, LOCAL).await? < 0.5);
    }
    Ok(())
}

#[tokio::test]
async fn requests_keep_their_distance_over_two_data_planes() -> Result<()> {
    let world = queued("minTimeBetweenRequestsMs: 250").await?;
    let began = Instant::now();
    let sent: Vec<Sent> = (0..6)
        .map(|number| send(&world, number % 2, "only"))
        .collect::<Result<_>>()?;
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert!(began.elapsed() >= Duration::from_millis(5 * 250));
    Ok(())
}

#[tokio::test]
async fn so_many_a_minute_over_two_data_planes() -> Result<()> {
    let world = queued("requestsPerMinute: 4, maxQueueDepth: 1").await?;
    for number in 0..4 {
        let answer = chat(world.data_plane(number % 2)?, "only").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    // The next one could go after 15 s, whichever data plane it asks.
    for plane in 0..2 {
        let waits = send(&world, plane, "only")?;
        until_waiting(&world, plane, 1).await?;
        let full = chat(world.data_plane(plane)?, "only").await?;
        assert_eq!(full.json()["error"]["code"], "RATE_LIMIT_QUEUE_FULL");
        drop(waits);
    }
    assert_eq!(world.one.log().count(&one_a()), 4);
    Ok(())
}

/// The upstream takes ten requests in a window and tells so; nobody set a limit.
#[tokio::test]
async fn what_an_upstream_tells_of_its_limit_is_kept_over_two_data_planes() -> Result<()> {
    const CLIENTS: usize = 8;
    const EACH: usize = 3;
    let world = queued("").await?;
    let window = Window::new(10, Duration::from_secs(6));
    world.one.set_window(&window);
    // Both data planes see the first window end; the one that saw the last answer is the first to tell.
    for number in 0..10 {
        let answer = chat(world.data_plane(number % 2)?, "only").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let first = send(&world, 1, "only")?;
    until_waiting(&world, 1, 1).await?;
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
    assert_eq!(first.answer().await?.status, 200);
    assert_eq!(window.refused(), 0);
    let went = 10 + 1 + CLIENTS * EACH;
    assert_eq!(world.one.log().count(&one_a()), went as u64);
    let mut waits = 0.0;
    for plane in &world.fleet.data_planes {
        waits += metric(plane.admin, "tidegate_dp_learned_waits_total").await?;
        assert!(metric(plane.admin, "tidegate_dp_learned_paces").await? > 0.5);
        assert!(metric(plane.admin, LOCAL).await? < 0.5);
    }
    assert!(waits > 0.5);
    blameless(&world).await
}

/// A limit that is far away costs no question, and one of an account without protection teaches nothing.
#[rstest]
#[case::plenty(1_000, "")]
#[case::without_protection(10, "rateLimitProtection: false,")]
#[tokio::test]
async fn an_account_that_is_not_held_back_asks_nobody(
    #[case] limit: u32,
    #[case] connection: &str,
) -> Result<()> {
    let world = World::start_with(patient()).await?;
    apply(&world, "", connection).await?;
    world
        .one
        .set_window(&Window::new(limit, Duration::from_secs(30)));
    for number in 0..10 {
        let answer = chat(world.data_plane(number % 2)?, "only").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for plane in &world.fleet.data_planes {
        assert!(metric(plane.admin, "tidegate_dp_learned_paces").await? < 0.5);
        let went = metric(plane.admin, "tidegate_dp_queue_total{end=\"went\"}").await?;
        assert!(went < 0.5, "{went} asked");
    }
    Ok(())
}

#[tokio::test]
async fn vector_sessions_34_what_finds_the_queue_full_is_refused_and_nobody_is_to_blame()
-> Result<()> {
    let world = queued("concurrentRequests: 1, maxQueueDepth: 3").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let mut sent = vec![send(&world, 0, "both")?];
    reaches(&world, 1).await?;
    for count in 1..=3 {
        sent.push(send(&world, 0, "both")?);
        until_waiting(&world, 0, count).await?;
    }
    let full = chat(world.data_plane(0)?, "both").await?;
    assert_eq!(full.status, 429, "{full:?}");
    assert_eq!(full.json()["error"]["code"], "RATE_LIMIT_QUEUE_FULL");
    assert!(!full.headers.contains_key("retry-after"));
    // Neither this target nor the next one was asked.
    assert_eq!(world.one.log().count(&Selector::any()), 1);
    assert_eq!(world.two.log().count(&Selector::any()), 0);
    // The depth is each data plane's own.
    sent.push(send(&world, 1, "both")?);
    until_waiting(&world, 1, 1).await?;
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    blameless(&world).await
}

/// Nothing is held against the account and its provider.
async fn blameless(world: &World) -> Result<()> {
    for replica in 0..2 {
        let breaker = world.breaker(replica, "one").await?;
        assert_eq!(breaker["state"], "CLOSED", "{breaker}");
        let connection = world.connection(replica, "one-a").await?;
        assert!(
            connection["cooldown"].as_u64().unwrap_or(0) == 0,
            "{connection}"
        );
    }
    let locks = world.fleet.ctl_json(0, &["get", "lockouts"]).await?;
    assert_eq!(locks.as_array().map(Vec::len), Some(0), "{locks}");
    Ok(())
}

#[tokio::test]
async fn vector_sessions_35_an_execution_that_takes_too_long_ends_in_504() -> Result<()> {
    let world = queued("maxWaitMs: 300").await?;
    world.one.set(one_a(), Mode::Hang);
    // More than any threshold of this world.
    for plane in [0, 1, 0, 1, 0, 1] {
        let answer = chat(world.data_plane(plane)?, "only").await?;
        assert_eq!(answer.status, 504, "{answer:?}");
        assert_eq!(
            answer.json()["error"]["code"],
            "RATE_LIMIT_EXECUTION_TIMEOUT"
        );
    }
    // None was tried again on the same target, and all of them were sent.
    assert_eq!(world.one.log().count(&one_a()), 6);
    blameless(&world).await?;
    let elsewhere = chat(world.data_plane(0)?, "both").await?;
    assert_eq!(elsewhere.status, 200, "{elsewhere:?}");
    assert_eq!(world.two.log().count(&Selector::any()), 1);
    Ok(())
}

#[tokio::test]
async fn vector_sessions_35_time_in_the_queue_does_not_count() -> Result<()> {
    let world = queued("concurrentRequests: 1, maxWaitMs: 3000").await?;
    let gate = Gate::new();
    world.one.set(one_a(), Mode::Stall { events: 2 });
    let body = super::permits::stream(&world, 0).await?;
    world.one.set(one_a(), held_at(&gate));
    let second = send(&world, 1, "only")?;
    until_waiting(&world, 1, 1).await?;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(world.one.log().count(&one_a()), 1);
    gate.open();
    // The stream is longer than the limit, too: its first event came in time.
    drop(body);
    assert_eq!(second.answer().await?.status, 200);
    blameless(&world).await
}

#[tokio::test]
async fn vector_sessions_36_an_upstreams_own_504_counts_whatever_it_says() -> Result<()> {
    let world = queued("").await?;
    let body = r#"{"error": {"code": "RATE_LIMIT_EXECUTION_TIMEOUT", "message": "too slow"}}"#;
    world.one.set(one_a(), Mode::status_with_body(504, body));
    let answer = chat(world.data_plane(0)?, "main").await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    eventually(LIMIT, "the account cools", || async {
        let connection = world.connection(1, "one-a").await.ok()?;
        (connection["cooldown"].as_u64()? > 0).then_some(())
    })
    .await
}

#[rstest]
#[case::of_this_connection("maxWaitMs: 200", "rateLimitProtection: false,")]
#[case::of_all_that_say_nothing("maxWaitMs: 200, autoEnableApiKeyProviders: false", "")]
#[tokio::test]
async fn without_protection_nothing_is_queued_and_nothing_expires(
    #[case] queue: &str,
    #[case] connection: &str,
) -> Result<()> {
    let world = World::start_with(patient()).await?;
    apply(
        &world,
        &format!("{queue}, concurrentRequests: 1"),
        connection,
    )
    .await?;
    let latency = Mode::Latency {
        before: Duration::from_millis(800),
    };
    world.one.set(one_a(), latency);
    let sent: Vec<Sent> = (0..4)
        .map(|number| send(&world, number % 2, "only"))
        .collect::<Result<_>>()?;
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert!(world.one.log().most_at_once(&one_a()) > 1);
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_it_to_others() -> Result<()> {
    let world = queued("concurrentRequests: 1, maxQueueDepth: 1").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let first = send(&world, 0, "only")?;
    reaches(&world, 1).await?;
    let leaves = send(&world, 0, "only")?;
    until_waiting(&world, 0, 1).await?;
    leaves.leave();
    until_waiting(&world, 0, 0).await?;
    let second = send(&world, 0, "only")?;
    until_waiting(&world, 0, 1).await?;
    gate.open();
    for sent in [first, second] {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().count(&one_a()), 2);
    Ok(())
}

#[tokio::test]
async fn a_killed_data_planes_request_blocks_the_pace_no_longer_than_its_time() -> Result<()> {
    let world = queued("concurrentRequests: 1").await?;
    world.one.set(one_a(), Mode::Stall { events: 2 });
    let _body = super::permits::stream(&world, 0).await?;
    world.fleet.data_planes[0].process.kill().await?;
    world.one.set(one_a(), Mode::Ok);
    let waits = send(&world, 1, "only")?;
    until_waiting(&world, 1, 1).await?;
    assert_eq!(world.one.log().count(&one_a()), 1);
    let answer = waits.answer_within(Duration::from_secs(45)).await?;
    assert_eq!(answer.status, 200);
    Ok(())
}

/// Without anybody who counts for the fleet each data plane keeps to its part.
#[rstest]
#[case::the_store(true)]
#[case::every_control_plane(false)]
#[tokio::test]
async fn while_nobody_counts_each_data_plane_keeps_to_its_part(#[case] store: bool) -> Result<()> {
    // Each data plane follows one of two control planes, so it hears of the other one through both.
    let world = World::start().await?;
    apply(&world, "concurrentRequests: 2", "").await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    eventually(LIMIT, "data planes know of each other", || async {
        for plane in &world.fleet.data_planes {
            let live = metric(plane.admin, "tidegate_dp_live_data_planes")
                .await
                .ok()?;
            if live < 1.5 {
                return None;
            }
        }
        Some(())
    })
    .await?;
    if store {
        world.fleet.redis.stop().await?;
    } else {
        for replica in &world.fleet.control_planes {
            replica.process.kill().await?;
        }
    }
    let mut sent = Vec::new();
    for plane in [0, 1] {
        sent.push(send(&world, plane, "only")?);
        reaches(&world, sent.len() as u64).await?;
    }
    for plane in [0, 1] {
        sent.push(send(&world, plane, "only")?);
        until_waiting(&world, plane, 1).await?;
    }
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 2);
    Ok(())
}

#[tokio::test]
async fn settings_that_change_act_on_those_that_wait() -> Result<()> {
    let world = queued("requestsPerMinute: 1").await?;
    let first = chat(world.data_plane(0)?, "only").await?;
    assert_eq!(first.status, 200);
    let waits = send(&world, 1, "only")?;
    until_waiting(&world, 1, 1).await?;
    apply(&world, "", "").await?;
    // Whoever comes need not ask any more, and whoever waits asks again.
    assert_eq!(waits.answer().await?.status, 200);
    Ok(())
}

/// One request runs and twenty wait for the only permit of the account; what becomes of the next one?
async fn one_too_many(settings: &str, model: &'static str) -> Result<(World, Gate, Vec<Sent>)> {
    let world = World::start_with(patient()).await?;
    let document = world
        .document()
        .replace("{id: one-a,", "{id: one-a, maxConcurrent: 1,")
        .replace("{id: one-b,", "{id: one-b, enabled: false,")
        .replace(
            "keys:",
            &format!(
                "  - {{name: turns, strategy: round-robin, steps: [one/m], config: {{maxRetries: 0}}}}\n{settings}keys:"
            ),
        );
    world.fleet.apply(&document).await?;
    let gate = Gate::new();
    world.one.set(one_a(), held_at(&gate));
    let mut sent = vec![send(&world, 0, model)?];
    reaches(&world, 1).await?;
    for number in 0..20 {
        sent.push(send(&world, number % 2, model)?);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.one.log().count(&one_a()), 1);
    Ok((world, gate, sent))
}

const POOL: &str = "quotaPools:
  - {group: A, provider: one, models: [m], connections: [{connection: one-a}]}
";

#[tokio::test]
async fn vector_sessions_40_one_too_many_for_a_quota_pool_goes_without_a_permit() -> Result<()> {
    let (world, gate, sent) = one_too_many(POOL, "qtSd/a/one/m").await?;
    let extra = send(&world, 1, "qtSd/a/one/m")?;
    reaches(&world, 2).await?;
    gate.open();
    assert_eq!(extra.answer().await?.status, 200);
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    Ok(())
}

/// To a client a full semaphore is what any account is that runs all it may (`routing.md` §5.3, 2a).
#[tokio::test]
async fn vector_sessions_40_one_too_many_for_an_account_is_refused() -> Result<()> {
    let (world, gate, sent) = one_too_many("", "turns").await?;
    let extra = chat(world.data_plane(1)?, "turns").await?;
    assert_eq!(extra.status, 429, "{extra:?}");
    assert_eq!(extra.json()["error"]["code"], "concurrency_cap");
    assert_eq!(world.one.log().count(&one_a()), 1);
    gate.open();
    for sent in sent {
        assert_eq!(sent.answer().await?.status, 200);
    }
    assert_eq!(world.one.log().most_at_once(&one_a()), 1);
    Ok(())
}
