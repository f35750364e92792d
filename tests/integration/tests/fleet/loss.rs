//! Parts of the fleet die; traffic and memory survive.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail, ensure};
use serde_json::Value;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::{Mode, Selector};
use tidegate_test_support::{FleetOptions, PostgresOptions, eventually};

#[tokio::test]
async fn killing_a_control_plane_under_load_costs_no_client_error() -> Result<()> {
    let world = World::start().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
        let addr = world.data_plane(client % 2)?;
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = chat(addr, "main").await?;
                ensure!(answer.status == 200, "{answer:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    let wait_for_more = async |more: u64| {
        let wanted = served.load(Ordering::Relaxed) + more;
        eventually(LIMIT, "requests are served", || async {
            (served.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await
    };
    wait_for_more(100).await?;
    world.fleet.control_planes[0].process.kill().await?;
    wait_for_more(200).await?;
    world.fleet.control_planes[1].process.kill().await?;
    // Nobody is left: data planes decide from their last snapshot.
    wait_for_more(200).await?;
    world.fleet.control_planes[0].process.start_again()?;
    wait_for_more(100).await?;
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(())
}

/// Brings one of each state about: an open breaker, a cooldown, a terminal state, a model lock. None of them ends by time
/// while a test looks.
async fn break_things(world: &World) -> Result<()> {
    let long = world.document().replace(
        "settings:\n",
        "settings:\n  connectionCooldown: {apikey: {baseCooldownMs: 600000}}\n",
    );
    world.fleet.apply(&long).await?;
    // Provider two: its only connection fails often enough to open the breaker. Each failure cools the
    // connection, so the cooldown is reset in between.
    world.two.set_default(Mode::status(503));
    for _ in 0..3 {
        world.fleet.ctl(0, &["reset", "cooldowns"]).await?;
        world.fleet.ctl(0, &["reset", "lockouts"]).await?;
        let before = world.two.log().count(&Selector::any());
        eventually(LIMIT, "a request reaches provider two", || async {
            chat(world.data_plane(0).ok()?, "two/m").await.ok()?;
            (world.two.log().count(&Selector::any()) > before).then_some(())
        })
        .await?;
        // A cooldown that came after the next reset would stay.
        eventually(LIMIT, "the failure is known", || async {
            let connection = world.connection(0, "two-a").await.ok()?;
            (connection["state"] == "unavailable").then_some(())
        })
        .await?;
    }
    // Provider one: one account refused, the other told to wait, which the combo's lockout also notes.
    world
        .one
        .set(Selector::any().credential("sk-one-a"), Mode::status(401));
    world.one.set(
        Selector::any().credential("sk-one-b"),
        Mode::rate_limited("600"),
    );
    chat(world.data_plane(0)?, "main").await?;
    Ok(())
}

/// What people see of the states, without what changes with time alone.
async fn states(world: &World, replica: usize) -> Result<Value> {
    let breakers = world.fleet.ctl_json(replica, &["get", "breakers"]).await?;
    let connections = world
        .fleet
        .ctl_json(replica, &["get", "connections"])
        .await?;
    let lockouts = world.fleet.ctl_json(replica, &["get", "lockouts"]).await?;
    let mut states = serde_json::json!([breakers, connections, lockouts]);
    for row in states
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(Value::as_array_mut)
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        for member in ["cooldown", "retryAfter", "remaining"] {
            if let Some(remaining) = row.get_mut(member) {
                *remaining = Value::Bool(remaining.as_u64().is_some_and(|ms| ms > 0));
            }
        }
    }
    Ok(states)
}

async fn broken_states(world: &World) -> Result<Value> {
    break_things(world).await?;
    eventually(LIMIT, "both replicas show every state", || async {
        let first = states(world, 0).await.ok()?;
        let second = states(world, 1).await.ok()?;
        let open = world.breaker(0, "two").await.ok()?["state"] == "OPEN";
        let expired = world.connection(0, "one-a").await.ok()?["state"] == "expired";
        let cooling = world.connection(0, "one-b").await.ok()?["state"] == "unavailable";
        let locked = first[2].as_array().is_some_and(|locks| !locks.is_empty());
        (first == second && open && expired && cooling && locked).then_some(first)
    })
    .await
}

async fn wait_for_states(world: &World, wanted: &Value) -> Result<()> {
    for replica in 0..2 {
        let found = eventually(LIMIT, "the states are as before", || async {
            let found = states(world, replica).await.ok()?;
            (found == *wanted).then_some(())
        })
        .await;
        if found.is_err() {
            let last = states(world, replica).await?;
            bail!("states differ at replica {replica}:\n{wanted:#}\nbecame\n{last:#}");
        }
    }
    Ok(())
}

/// Name, incarnation and revision of each value in the hot store.
async fn hot_versions(world: &World) -> Result<BTreeSet<[String; 3]>> {
    let redis = &world.fleet.redis;
    let keys = redis.command(&["KEYS", "tidegate:1:{s*}:v:*"]).await?;
    let mut versions = BTreeSet::new();
    for key in keys.as_array().into_iter().flatten() {
        let key = key.as_text().context("a name")?;
        let (_, name) = key.split_once(":v:").context("the name of a value")?;
        let value = redis.command(&["GET", key]).await?;
        // Schema, incarnation, revision, end.
        let header = value.as_text().and_then(|text| text.lines().next());
        let mut numbers = header.context("a value")?.split(' ').skip(1);
        let mut next = || Ok::<_, Error>(numbers.next().context("a number")?.to_owned());
        versions.insert([name.to_owned(), next()?, next()?]);
    }
    Ok(versions)
}

/// Waits until every value of the hot store is in the durable one as well, as new as it is.
async fn wait_for_checkpoint(world: &World) -> Result<()> {
    const VERSIONS: &str = "SELECT key, incarnation::numeric + 9223372036854775808, \
         revision::numeric + 9223372036854775808 FROM hot_checkpoint";
    eventually(LIMIT, "the checkpoint is complete", || async {
        let hot = hot_versions(world).await.ok()?;
        let (postgres, database) = (&world.fleet.postgres, &world.fleet.database);
        let rows = postgres.execute(database, VERSIONS).await.ok()?;
        let saved: BTreeSet<[String; 3]> = rows
            .into_iter()
            .filter_map(|row| {
                let columns: Option<Vec<String>> = row.into_iter().collect();
                columns?.try_into().ok()
            })
            .collect();
        (!hot.is_empty() && hot.is_subset(&saved)).then_some(())
    })
    .await
}

#[tokio::test]
async fn states_survive_the_restart_of_every_process() -> Result<()> {
    let world = World::start_with(FleetOptions {
        postgres: PostgresOptions {
            durable: true,
            ..PostgresOptions::default()
        },
        ..FleetOptions::default()
    })
    .await?;
    let before = broken_states(&world).await?;
    wait_for_checkpoint(&world).await?;

    let limit = Duration::from_secs(20);
    for plane in &world.fleet.data_planes {
        plane.process.terminate(limit).await?;
    }
    for replica in &world.fleet.control_planes {
        replica.process.kill().await?;
    }
    world.fleet.redis.kill().await?;
    world.fleet.postgres.stop().await?;
    world.fleet.postgres.start_again().await?;
    world.fleet.redis.start_again().await?;
    for replica in &world.fleet.control_planes {
        replica.process.start_again()?;
    }
    for plane in &world.fleet.data_planes {
        plane.process.start_again()?;
    }
    world.fleet.wait_ready().await?;
    wait_for_states(&world, &before).await?;

    let calls = world.two.log().count(&Selector::any());
    let answer = chat(world.data_plane(1)?, "two/m").await?;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(world.two.log().count(&Selector::any()), calls);
    Ok(())
}

#[tokio::test]
async fn states_are_rebuilt_after_the_hot_store_was_emptied() -> Result<()> {
    let world = World::start().await?;
    let before = broken_states(&world).await?;
    world.fleet.redis.flush_all().await?;
    eventually(LIMIT, "the values are in the hot store again", || async {
        let found = world.fleet.redis.command(&["KEYS", "*:p:two"]).await.ok()?;
        found
            .as_array()
            .is_some_and(|keys| !keys.is_empty())
            .then_some(())
    })
    .await?;
    wait_for_states(&world, &before).await?;
    // What is in the store is enough: replicas that come without memory of their own agree.
    for replica in &world.fleet.control_planes {
        replica.process.kill().await?;
        replica.process.start_again()?;
    }
    wait_for_states(&world, &before).await
}
