//! Sessions go where they went before, whichever data plane and control plane serve them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use tidegate_integration::{Answer, CLIENT_KEY, LIMIT, World, metric};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tokio_util::task::TaskTracker;

use super::permits::held_at;
use super::rotation::patient;

const ACCOUNTS: [&str; 4] = ["one-a", "one-b", "one-c", "one-d"];
const HEADERS: [&str; 3] = ["x-codex-session-id", "x-session-id", "x-omniroute-session"];
/// How long a replica may go on with what it read of a pin.
const STALENESS: Duration = Duration::from_millis(1_100);

/// The fleet with four accounts at provider one.
async fn world(ttl_ms: u64) -> Result<World> {
    world_with(&format!("sessionAffinityTtlMs: {ttl_ms}")).await
}

async fn world_with(settings: &str) -> Result<World> {
    // What a data plane decides by itself on a busy machine knows of no pins.
    let world = World::start_with(patient()).await?;
    for connection in ["one-c", "one-d"] {
        world
            .fleet
            .write_secret(&format!("{connection}.key"), &format!("sk-{connection}"))?;
    }
    let document = world
        .document()
        .replace(
            "connections:\n",
            "connections:\n  \
             - {id: one-c, provider: one, priority: 3, credential: {file: one-c.key}}\n  \
             - {id: one-d, provider: one, priority: 4, credential: {file: one-d.key}}\n",
        )
        .replace("settings:\n", &format!("settings:\n  {settings}\n"));
    world.fleet.apply(&document).await?;
    Ok(world)
}

async fn ask(addr: SocketAddr, header: &str, session: &str, body: &str) -> Result<Answer> {
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"))
        .header(header, session)
        .body(Full::new(Bytes::from(body.to_owned())))?;
    tidegate_integration::send(request).await
}

const BODY: &str = r#"{"model": "one/m", "messages": [{"role": "user", "content": "hi"}]}"#;

/// Sends a request of the session; the account that served it.
async fn served_by(world: &World, plane: usize, session: &str) -> Result<String> {
    let answer = ask(world.data_plane(plane)?, "x-session-id", session, BODY).await?;
    ensure!(answer.status == 200, "{answer:?}");
    last_account(world)
}

fn last_account(world: &World) -> Result<String> {
    let last = world
        .one
        .log()
        .last(&Selector::any())
        .context("nothing was sent")?;
    let credential = last.credential.context("sent without a credential")?;
    Ok(credential.trim_start_matches("sk-").to_owned())
}

fn of(account: &str) -> Selector {
    Selector::any().credential(format!("sk-{account}"))
}

/// What all control planes that answer counted of pins.
async fn counted(world: &World, event: &str) -> Result<f64> {
    let mut sum = 0.0;
    for replica in &world.fleet.control_planes {
        let sample = format!("tidegate_cp_pins_total{{event=\"{event}\"}}");
        sum += metric(replica.http, &sample).await?;
    }
    Ok(sum)
}

/// Exactly so many.
async fn assert_counted(world: &World, event: &str, wanted: f64) -> Result<()> {
    let counted = counted(world, event).await?;
    ensure!(
        (counted - wanted).abs() < 0.5,
        "{event}: {counted}, not {wanted}"
    );
    Ok(())
}

/// So many pins were made, or fewer where a busy machine was served without: by a store that was slow, or by a data plane
/// that decided by itself.
async fn assert_created(world: &World, wanted: f64) -> Result<()> {
    let mut without = counted(world, "read_failed").await? + counted(world, "write_failed").await?;
    for plane in &world.fleet.data_planes {
        without += metric(plane.admin, "tidegate_dp_decisions_local_total").await?;
    }
    let created = counted(world, "created").await?;
    ensure!(
        created < wanted + 0.5 && created + without > wanted - 0.5,
        "{created} pins, {without} decisions without, not {wanted}"
    );
    Ok(())
}

/// Makes the session leave the account where its key places it; returns both.
async fn moved(world: &World, session: &str) -> Result<(String, String)> {
    let placed = served_by(world, 0, session).await?;
    world.one.set(of(&placed), Mode::rate_limited("600"));
    let moved = served_by(world, 0, session).await?;
    ensure!(moved != placed, "a limited account served");
    world.one.set(of(&placed), Mode::Ok);
    tokio::time::sleep(STALENESS).await;
    world.fleet.ctl(0, &["reset", "cooldowns"]).await?;
    eventually(LIMIT, "the account has recovered everywhere", || async {
        for replica in 0..2 {
            let connection = world.connection(replica, &placed).await.ok()?;
            let left = connection["cooldown"].as_u64().unwrap_or_default();
            if left > 0 {
                return None;
            }
        }
        Some(())
    })
    .await?;
    Ok((placed, moved))
}

#[tokio::test]
async fn a_session_stays_with_one_account_over_all_planes() -> Result<()> {
    let world = world(1_800_000).await?;
    let mut used = BTreeSet::new();
    for number in 0..12 {
        let session = format!("session-{number}");
        let first = served_by(&world, number % 2, &session).await?;
        for plane in [0, 1, 0, 1] {
            assert_eq!(served_by(&world, plane, &session).await?, first);
        }
        used.insert(first);
    }
    assert!(used.len() > 1, "sessions spread: {used:?}");
    assert_created(&world, 12.0).await
}

#[tokio::test]
async fn vector_sessions_31_two_first_requests_at_once_have_one_pin() -> Result<()> {
    let world = world(1_800_000).await?;
    let (one, two) = (world.data_plane(0)?, world.data_plane(1)?);
    for number in 0..10 {
        let session = format!("session-{number}");
        let before = ACCOUNTS.map(|account| world.one.log().count(&of(account)));
        let (first, second) = tokio::try_join!(
            ask(one, "x-session-id", &session, BODY),
            ask(two, "x-session-id", &session, BODY)
        )?;
        ensure!(first.status == 200 && second.status == 200);
        let after = ACCOUNTS.map(|account| world.one.log().count(&of(account)));
        let served: Vec<u64> = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        assert!(served.contains(&2), "{session} was parted: {served:?}");
    }
    assert_created(&world, 10.0).await
}

#[tokio::test]
async fn vector_sessions_30_a_session_that_moved_stays_when_its_first_account_recovers()
-> Result<()> {
    let world = world(1_800_000).await?;
    let (_placed, moved) = moved(&world, "abc").await?;
    for plane in [0, 1, 1, 0] {
        assert_eq!(served_by(&world, plane, "abc").await?, moved);
    }
    assert!(
        counted(&world, "deleted").await? >= 1.0,
        "the failure broke the pin at once"
    );
    // Others are still placed where they belong.
    assert_created(&world, 2.0).await
}

#[tokio::test]
async fn vector_sessions_33_no_session_header_goes_upstream() -> Result<()> {
    let world = world(1_800_000).await?;
    for (plane, header) in HEADERS.into_iter().enumerate() {
        let answer = ask(world.data_plane(plane % 2)?, header, "who-i-am", BODY).await?;
        ensure!(answer.status == 200, "{answer:?}");
    }
    let requests = world.one.log().requests(&Selector::any());
    assert_eq!(requests.len(), HEADERS.len());
    for request in requests {
        for header in HEADERS {
            assert_eq!(request.header(header), None);
        }
        let all = format!("{:?} {:?}", request.headers, request.body);
        assert!(!all.contains("who-i-am"), "{all}");
    }
    Ok(())
}

#[tokio::test]
async fn a_pin_survives_the_control_plane_that_made_it() -> Result<()> {
    let world = world(1_800_000).await?;
    let (_placed, moved) = moved(&world, "abc").await?;
    for replica in [0, 1] {
        let gone = world
            .fleet
            .control_planes
            .get(replica)
            .context("no such replica")?;
        gone.process.kill().await?;
        for plane in [0, 1, 0, 1] {
            eventually(LIMIT, "the session is served where it was", || async {
                let served = served_by(&world, plane, "abc").await.ok()?;
                (served == moved).then_some(())
            })
            .await?;
        }
        gone.process.start_again()?;
        gone.process
            .wait_for_http(gone.http, "/readyz", LIMIT)
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_session_whose_pin_is_lost_lands_where_it_was() -> Result<()> {
    let world = world(1_800_000).await?;
    let mut before = Vec::new();
    for number in 0..6 {
        let session = format!("session-{number}");
        let account = served_by(&world, number % 2, &session).await?;
        before.push((session, account));
    }
    world.fleet.redis.flush_all().await?;
    tokio::time::sleep(STALENESS).await;
    for (session, account) in before {
        for plane in [0, 1] {
            assert_eq!(served_by(&world, plane, &session).await?, account);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_pin_comes_back_after_a_loss_of_redis() -> Result<()> {
    let world = world(1_800_000).await?;
    let (_placed, moved) = moved(&world, "abc").await?;
    eventually(LIMIT, "the pin is saved", || async {
        let (postgres, database) = (&world.fleet.postgres, &world.fleet.database);
        let sql = "SELECT connection FROM session_account_affinity";
        let rows = postgres.execute(database, sql).await.ok()?;
        let saved = rows.iter().flatten().flatten().any(|it| *it == moved);
        saved.then_some(())
    })
    .await?;
    world.fleet.redis.flush_all().await?;
    eventually(LIMIT, "the pin is put back", || async {
        let restored = counted(&world, "restored").await.ok()?;
        (restored >= 1.0).then_some(())
    })
    .await?;
    tokio::time::sleep(STALENESS).await;
    for plane in [0, 1] {
        assert_eq!(served_by(&world, plane, "abc").await?, moved);
    }
    Ok(())
}

#[tokio::test]
async fn without_redis_sessions_are_served_where_they_are_placed() -> Result<()> {
    let world = world(1_800_000).await?;
    let account = served_by(&world, 0, "abc").await?;
    world.fleet.redis.kill().await?;
    for plane in [0, 1, 0, 1, 0, 1] {
        assert_eq!(served_by(&world, plane, "abc").await?, account);
    }
    Ok(())
}

#[tokio::test]
async fn vector_sessions_29_without_a_time_no_session_is_kept_together() -> Result<()> {
    let world = world(0).await?;
    for number in 0..8 {
        let session = format!("session-{number}");
        assert_eq!(served_by(&world, number % 2, &session).await?, "one-a");
    }
    assert_counted(&world, "created", 0.0).await?;
    assert_counted(&world, "read", 0.0).await
}

#[tokio::test]
async fn members_of_the_body_name_a_session_only_where_switched_on() -> Result<()> {
    let body = |session: &str| {
        format!(
            "{{\"model\": \"one/m\", \"session_id\": \"{session}\", \
             \"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]}}"
        )
    };
    for (switch, spreads) in [(true, true), (false, false)] {
        let settings =
            format!("sessionAffinityTtlMs: 1800000\n  sessionAffinityBodyKeys: {switch}");
        let world = world_with(&settings).await?;
        let mut used = BTreeSet::new();
        for number in 0..8 {
            let body = body(&format!("session-{number}"));
            let addr = world.data_plane(number % 2)?;
            let answer = tidegate_integration::post(addr, "/v1/chat/completions", body).await?;
            ensure!(answer.status == 200, "{answer:?}");
            used.insert(last_account(&world)?);
        }
        assert_eq!(used.len() > 1, spreads, "{used:?}");
    }
    Ok(())
}

/// Accounts behind OAuth are shared out among the sessions of a data plane, also where no session is kept together.
#[tokio::test]
async fn sessions_avoid_oauth_accounts_that_others_use() -> Result<()> {
    let world = world(0).await?;
    let document = world
        .document()
        .replacen("class: apikey", "class: oauth", 1);
    world.fleet.apply(&document).await?;
    let addr = world.data_plane(0)?;
    let gate = Gate::new();
    world.one.set(of("one-a"), held_at(&gate));
    let asking = async move { ask(addr, "x-session-id", "first", BODY).await };
    let first = TaskTracker::new().spawn(asking);
    ensure!(world.one.log().wait_for(&of("one-a"), 1, LIMIT).await);
    assert_eq!(served_by(&world, 0, "second").await?, "one-b");
    let occupants = metric(
        world.fleet.data_planes[0].admin,
        "tidegate_dp_oauth_occupants",
    )
    .await?;
    ensure!((occupants - 1.0).abs() < 0.5, "{occupants}");
    gate.open();
    ensure!(first.await??.status == 200);
    eventually(LIMIT, "the account is free again", || async {
        let served = served_by(&world, 0, "third").await.ok()?;
        (served == "one-a").then_some(())
    })
    .await?;
    eventually(LIMIT, "nobody uses an account", || async {
        let plane = world.fleet.data_planes.first()?;
        let occupants = metric(plane.admin, "tidegate_dp_oauth_occupants")
            .await
            .ok()?;
        (occupants.abs() < 0.5).then_some(())
    })
    .await
}
