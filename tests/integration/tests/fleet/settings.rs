//! Settings that are changed while everything runs.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::{Mode, Selector};
use tidegate_test_support::{ScratchDir, eventually};

/// Changes settings and waits until each data plane says that it uses them.
async fn set(world: &World, replica: usize, assignments: &[&str]) -> Result<()> {
    let arguments = [&["settings", "set"], assignments].concat();
    let changed = world.fleet.ctl_json(replica, &arguments).await?;
    let version = changed["version"].as_u64().context("no version")?;
    in_force(world, version).await
}

/// Waits until operators can see that a version is in force everywhere.
async fn in_force(world: &World, version: u64) -> Result<()> {
    eventually(LIMIT, "every process uses the change", || async {
        let mut planes = Vec::new();
        for replica in 0..world.fleet.control_planes.len() {
            let status = world.fleet.ctl_json(replica, &["status"]).await.ok()?;
            if status["configurationVersion"] != version {
                return None;
            }
            planes.extend(status["planes"].as_array()?.clone());
        }
        let using = |plane: &&Value| plane["configurationVersion"] == version;
        (planes.iter().filter(using).count() == world.fleet.data_planes.len()).then_some(())
    })
    .await?;
    Ok(())
}

async fn lockouts(world: &World) -> Result<usize> {
    let listed = world.fleet.ctl_json(0, &["get", "lockouts"]).await?;
    Ok(listed.as_array().context("a list")?.len())
}

#[tokio::test]
async fn a_changed_cooldown_shows_at_the_next_failure_through_either_data_plane() -> Result<()> {
    let world = World::start().await?;
    set(
        &world,
        0,
        &["connectionCooldown.apikey.baseCooldownMs=120000"],
    )
    .await?;
    for (plane, connection) in [(0, "one-a"), (1, "one-b")] {
        let credential = format!("sk-{connection}");
        let failing = Selector::any().credential(&credential);
        world.one.set(failing, Mode::status(429));
        assert_eq!(chat(world.data_plane(plane)?, "main").await?.status, 200);
        eventually(LIMIT, "the connection cools for the new time", || async {
            let state = world.connection(1 - plane, connection).await.ok()?;
            (state["cooldown"].as_u64()? > 60_000).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_model_lockout_is_switched_on_while_traffic_runs() -> Result<()> {
    let world = World::start().await?;
    let quiet = [
        "modelLockout.enabled=false",
        "connectionCooldown.apikey.baseCooldownMs=0",
    ];
    set(&world, 1, &quiet).await?;
    world.one.set_default(Mode::status(503));
    assert_eq!(chat(world.data_plane(0)?, "main").await?.status, 200);
    eventually(LIMIT, "the failure is recorded", || async {
        let state = world.connection(0, "one-a").await.ok()?;
        (state["lastError"] == 503).then_some(())
    })
    .await?;
    ensure!(lockouts(&world).await? == 0, "a model is locked");
    world.fleet.ctl(0, &["reset", "breakers"]).await?;
    set(&world, 0, &["modelLockout.enabled=true"]).await?;
    assert_eq!(chat(world.data_plane(1)?, "main").await?.status, 200);
    eventually(LIMIT, "the model is locked", || async {
        (lockouts(&world).await.ok()? > 0).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_lowered_threshold_opens_no_breaker_before_the_next_failure() -> Result<()> {
    let world = World::start().await?;
    let patient = [
        "modelLockout.enabled=false",
        "connectionCooldown.apikey.baseCooldownMs=0",
        "providerBreaker.apikey={\"failureThreshold\": 20, \"degradationThreshold\": 19}",
    ];
    set(&world, 0, &patient).await?;
    world.two.set_default(Mode::status(500));
    for plane in [0, 1, 0, 1] {
        assert_ne!(chat(world.data_plane(plane)?, "two/m").await?.status, 200);
    }
    eventually(LIMIT, "four failures are counted", || async {
        let breaker = world.breaker(1, "two").await.ok()?;
        (breaker["failures"].as_u64()? >= 4).then_some(())
    })
    .await?;
    let before = world.two.log().count(&Selector::any());
    let eager = [
        "providerBreaker.apikey.failureThreshold=2",
        "providerBreaker.apikey.degradationThreshold=1",
    ];
    set(&world, 1, &eager).await?;
    for replica in 0..2 {
        let breaker = world.breaker(replica, "two").await?;
        assert_eq!(breaker["opensAt"], 2);
        assert_ne!(breaker["state"], "OPEN", "{breaker}");
    }
    assert_ne!(chat(world.data_plane(1)?, "two/m").await?.status, 200);
    assert!(
        world.two.log().count(&Selector::any()) > before,
        "it was admitted"
    );
    eventually(LIMIT, "the next failure opens it everywhere", || async {
        for replica in 0..2 {
            let breaker = world.breaker(replica, "two").await.ok()?;
            if breaker["state"] != "OPEN" {
                return None;
            }
        }
        Some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn settings_are_shown_patched_and_refused_on_the_command_line() -> Result<()> {
    let world = World::start_with(tidegate_test_support::FleetOptions {
        data_planes: 1,
        env: vec![(
            "OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD".to_owned(),
            "17".to_owned(),
        )],
        ..tidegate_test_support::FleetOptions::default()
    })
    .await?;
    let fleet = &world.fleet;
    let before = fleet.ctl_json(0, &["settings", "get"]).await?;
    let folder = ScratchDir::new("settings")?;
    let file = folder.path().join("patch.yaml");
    std::fs::write(
        &file,
        "streams: {idleTimeoutMs: 9000}\nmodelLockout: null\n",
    )?;
    let file = file.to_str().context("the folder is not UTF-8")?;
    let patch = fleet.ctl(0, &["settings", "patch", "-f", file]).await?;
    assert_eq!(patch.status.code(), Some(0), "{patch:?}");
    assert!(
        patch
            .stdout
            .contains("streams.idleTimeoutMs: unset -> 9000"),
        "{patch:?}"
    );
    let mut expected = before;
    expected["streams"] = serde_json::json!({"idleTimeoutMs": 9_000});
    expected
        .as_object_mut()
        .context("members")?
        .remove("modelLockout");
    assert_eq!(fleet.ctl_json(0, &["settings", "get"]).await?, expected);

    let effective = fleet
        .ctl_json(0, &["settings", "get", "--effective", "providerBreaker"])
        .await?;
    let of = |path: &str| {
        let rows = effective.as_array().map(Vec::as_slice).unwrap_or_default();
        let row = rows.iter().find(|row| row["path"] == path).cloned();
        row.map(|row| (row["value"].clone(), row["source"].clone()))
    };
    let environment = "environment OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD";
    for (path, value, source) in [
        ("providerBreaker.oauth.failureThreshold", 17, environment),
        ("providerBreaker.apikey.failureThreshold", 3, "stored"),
        ("providerBreaker.local.failureThreshold", 2, "built in"),
    ] {
        let expected = (Value::from(value), Value::from(source));
        assert_eq!(of(path), Some(expected), "{path}");
    }

    for (arguments, code, named) in [
        (
            vec!["set", "streams.idleTimeoutMs=-1"],
            65,
            "streams.idleTimeoutMs",
        ),
        (
            vec!["set", "streams.idle=1"],
            65,
            "there is no such setting",
        ),
        (vec!["set", "streams"], 64, "PATH=VALUE"),
        (
            vec!["set", "streams.idleTimeoutMs=1", "--expected-version", "1"],
            65,
            "version",
        ),
        (vec!["get", "--effective", "streems"], 65, "streems"),
        (vec!["patch"], 64, "--file"),
    ] {
        let refused = fleet
            .ctl(0, &[vec!["settings"], arguments].concat())
            .await?;
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
        assert!(refused.stderr.contains(named), "{refused:?}");
    }
    let schema = fleet.ctl_json(0, &["settings", "schema"]).await?;
    assert_eq!(
        schema["properties"]["streams"]["properties"]["connectTimeoutMs"]["minimum"],
        1
    );
    Ok(())
}
