//! Quotas that somebody tells, and that an endpoint is asked for by one owner, over two control planes (decision 39).

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tidegate_integration::{LIMIT, World, chat, send};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};
use tokio::time::sleep;

use crate::rotation::patient;

/// Where the fake provider tells quotas.
const USAGE: &str = "/usage";
/// Between two polls of a connection, in ms.
const INTERVAL_MS: u64 = 1_000;

/// A fleet with a combo of this strategy over both accounts of provider `one`, which tells quotas or not.
async fn world(strategy: &str, polled: bool) -> Result<World> {
    // Nothing is decided apart only because the machine is busy.
    let world = World::start_with(patient()).await?;
    let endpoint = if polled {
        tells(&world, 10, 10);
        endpoint(&world, USAGE, INTERVAL_MS)
    } else {
        "class: apikey".to_owned()
    };
    world
        .fleet
        .apply(&document(&world, strategy, &endpoint))
        .await?;
    Ok(world)
}

/// The member that says where quotas are asked for.
fn endpoint(world: &World, path: &str, interval_ms: u64) -> String {
    let root = world.one.base_url();
    let root = root.trim_end_matches("/v1");
    format!(
        "quotaEndpoint: {{url: '{root}{path}', intervalMs: {interval_ms}, resetFormat: seconds-from-now, windows: \
         {{session: {{usedPercent: /session/percent, resetsAt: /session/left}}, \
         weekly: {{used: /week/used, limit: /week/limit, resetsAt: /week/left}}}}}}"
    )
}

fn document(world: &World, strategy: &str, endpoint: &str) -> String {
    format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, models: [m], {endpoint}}}
connections:
  - {{id: one-a, provider: one, priority: 1, credential: {{file: one-a.key}}}}
  - {{id: one-b, provider: one, priority: 2, credential: {{file: one-b.key}}}}
combos:
  - name: main
    strategy: {strategy}
    steps:
      - {{model: one/m, connection: one-a}}
      - {{model: one/m, connection: one-b}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
",
        one = world.one.base_url(),
    )
}

/// What the provider tells from now on: percent of the session and of the week that are used, by account.
fn tells(world: &World, of_a: u32, of_b: u32) {
    for (account, used) in [("sk-one-a", of_a), ("sk-one-b", of_b)] {
        world.one.set(of(account), used_up_to(used));
    }
}

/// The answer of an endpoint.
fn used_up_to(percent: u32) -> Mode {
    let answer = json!({
        "session": {"percent": percent, "left": 3_600},
        "week": {"used": percent * 2, "limit": "200", "left": 86_400},
    });
    Mode::status_with_body(200, answer.to_string())
}

fn of(account: &str) -> Selector {
    Selector::any().path(USAGE).credential(account)
}

/// The account that serves what a data plane is asked next.
async fn served_by(world: &World, plane: usize) -> Result<String> {
    world.one.log().clear();
    let answer = chat(world.data_plane(plane)?, "main").await?;
    anyhow::ensure!(answer.status == 200, "{answer:?}");
    let requests = world.one.log().requests(&Selector::any());
    let asked = requests.iter().find(|it| it.path != USAGE);
    let asked = asked.context("the provider was asked")?;
    Ok(asked.credential.clone().unwrap_or_default())
}

/// Every data plane sends to this account.
async fn all_go_to(world: &World, account: &str) -> Result<()> {
    for plane in 0..2 {
        eventually(LIMIT, "requests go to the other account", || async {
            (served_by(world, plane).await.ok()? == account).then_some(())
        })
        .await?;
    }
    Ok(())
}

async fn quota(world: &World, replica: usize, connection: &str) -> Result<Value> {
    let arguments = ["quota", "get", connection];
    let quotas = world.fleet.ctl_json(replica, &arguments).await?;
    quotas.get(0).cloned().context("a connection")
}

/// This share of the session of `one-a` is known.
async fn session_becomes(world: &World, share: f64) -> Result<()> {
    eventually(LIMIT, "this share is known", || async {
        let seen = quota(world, 0, "one-a").await.ok()?;
        (seen["known"]["session"]["used"] == share).then_some(())
    })
    .await
}

/// Index of the control plane that polls, once exactly one of those that answer says that it does.
async fn poller(world: &World) -> Result<usize> {
    eventually(LIMIT, "one control plane polls", || async {
        let mut found = Vec::new();
        for (index, replica) in world.fleet.control_planes.iter().enumerate() {
            let request = http::Request::get(format!("http://{}/metrics", replica.http));
            let Ok(answer) = send(request.body(Default::default()).ok()?).await else {
                continue;
            };
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            if text
                .lines()
                .any(|line| line == "tidegate_cp_quota_poller 1")
            {
                found.push(index);
            }
        }
        (found.len() == 1).then(|| found.first().copied()).flatten()
    })
    .await
}

/// What is told to one control plane steers what the other decides, and the same tool shows it everywhere.
#[tokio::test]
async fn a_quota_told_to_one_control_plane_steers_the_whole_fleet() -> Result<()> {
    let world = world("headroom", false).await?;
    all_go_to(&world, "sk-one-a").await?;
    let set = [
        "quota", "set", "one-a", "--weekly", "90%@2h", "--model", "m=0.25",
    ];
    let told = world.fleet.ctl_json(0, &set).await?;
    assert_eq!(told["taken"], true, "{told}");
    assert_eq!(told["known"]["known"]["weekly"]["used"], 0.9, "{told}");
    all_go_to(&world, "sk-one-b").await?;
    let seen = eventually(LIMIT, "the other control plane knows it", || async {
        let seen = quota(&world, 1, "one-a").await.ok()?;
        (seen["told"][0]["source"] == "fetched").then_some(seen)
    })
    .await?;
    assert_eq!(seen["told"][0]["quota"]["weeklyByModel"]["m"]["used"], 0.25);
    assert_eq!(seen["polled"], false);
    assert!(seen["told"][0]["ageMs"].is_u64(), "{seen}");
    // The other way round.
    let set = ["quota", "set", "one-b", "--session", "95%"];
    world.fleet.ctl_json(1, &set).await?;
    all_go_to(&world, "sk-one-a").await?;
    for (arguments, code) in [
        (vec!["quota", "set", "nobody", "--used", "1"], 65),
        (vec!["quota", "set", "one-a"], 65),
        (
            vec![
                "quota",
                "set",
                "one-a",
                "--used",
                "0.5@2020-01-01T00:00:00Z",
            ],
            65,
        ),
        (vec!["quota", "set", "one-a", "--used", "50"], 64),
        (vec!["quota", "get", "nobody"], 65),
    ] {
        let refused = world.fleet.ctl(0, &arguments).await?;
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
    }
    Ok(())
}

/// One control plane asks, the figures steer `reset-aware` everywhere, and another one goes on when it is killed.
#[tokio::test]
async fn an_endpoint_is_polled_by_one_owner_and_another_takes_over() -> Result<()> {
    let world = world("reset-aware", true).await?;
    let owner = poller(&world).await?;
    // An account that is used up is held back.
    tells(&world, 100, 10);
    all_go_to(&world, "sk-one-b").await?;
    for replica in 0..2 {
        let seen = eventually(LIMIT, "every control plane knows it", || async {
            let seen = quota(&world, replica, "one-a").await.ok()?;
            (seen["known"]["session"]["used"] == 1.0).then_some(seen)
        })
        .await?;
        assert_eq!(seen["known"]["weekly"]["used"], 1.0, "{seen}");
        assert_eq!(seen["polled"], true);
    }
    // Each account about once an interval, and not once for each control plane.
    world.one.log().clear();
    sleep(Duration::from_millis(INTERVAL_MS * 5)).await;
    for account in ["sk-one-a", "sk-one-b"] {
        let polls = world.one.log().count(&of(account));
        assert!((1..=7).contains(&polls), "{account}: {polls}");
    }
    world.fleet.control_planes[owner].process.kill().await?;
    assert_ne!(poller(&world).await?, owner);
    tells(&world, 10, 100);
    all_go_to(&world, "sk-one-a").await?;
    for replica in &world.fleet.control_planes {
        let log = replica.process.log()?;
        assert!(!log.contains("sk-one-"), "a credential is in a log");
    }
    Ok(())
}

/// What an endpoint told before does not delay the first question to another one, however long its interval is.
#[tokio::test]
async fn a_changed_endpoint_is_asked_at_once() -> Result<()> {
    let world = world("headroom", true).await?;
    session_becomes(&world, 0.1).await?;
    world
        .one
        .set(Selector::any().path("/moved"), used_up_to(60));
    let moved = endpoint(&world, "/moved", 3_600_000);
    world
        .fleet
        .apply(&document(&world, "headroom", &moved))
        .await?;
    session_becomes(&world, 0.6).await
}

/// A failed poll leaves what was told, whose age shows, and counts against nobody.
#[tokio::test]
async fn a_poll_that_fails_changes_nothing() -> Result<()> {
    let world = world("headroom", true).await?;
    tells(&world, 50, 10);
    session_becomes(&world, 0.5).await?;
    all_go_to(&world, "sk-one-b").await?;
    let elsewhere = format!("{}/elsewhere", world.two.base_url());
    let redirect = Mode::Status {
        code: 302,
        body: None,
        headers: vec![("location".to_owned(), elsewhere)],
    };
    world.two.log().clear();
    world.one.set(of("sk-one-a"), Mode::status(401));
    world.one.set(of("sk-one-b"), redirect);
    let asked = || ["sk-one-a", "sk-one-b"].map(|account| world.one.log().count(&of(account)));
    world.one.log().clear();
    eventually(LIMIT, "both fail", || async {
        asked().iter().all(|polls| *polls > 0).then_some(())
    })
    .await?;
    let seen = eventually(LIMIT, "its age shows", || async {
        let seen = quota(&world, 0, "one-a").await.ok()?;
        (seen["told"][0]["ageMs"].as_u64()? > 2 * INTERVAL_MS).then_some(seen)
    })
    .await?;
    assert_eq!(seen["known"]["session"]["used"], 0.5, "{seen}");
    assert_eq!(served_by(&world, 0).await?, "sk-one-b");
    assert_eq!(
        world.two.log().count(&Selector::any()),
        0,
        "redirects are not followed"
    );
    for connection in ["one-a", "one-b"] {
        let state = world.connection(0, connection).await?;
        assert_eq!(state["state"], "active", "{state}");
        assert_eq!(state["lastError"], Value::Null, "{state}");
    }
    assert_eq!(world.breaker(0, "one").await?["failures"], 0);
    Ok(())
}
