//! One provider fails; clients do not notice, and the whole fleet remembers.

use anyhow::Result;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};

#[tokio::test]
async fn a_provider_that_fails_through_one_data_plane_is_avoided_by_the_other() -> Result<()> {
    let world = World::start().await?;
    world.one.set_default(Mode::status(503));
    for _ in 0..12 {
        let answer = chat(world.data_plane(0)?, "main").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    eventually(
        LIMIT,
        "both connections of provider one excluded at the other replica",
        || async {
            let a = world.connection(1, "one-a").await.ok()?;
            let b = world.connection(1, "one-b").await.ok()?;
            (a["state"] == "unavailable" && b["state"] == "unavailable").then_some(())
        },
    )
    .await?;
    let before = world.one.log().count(&Selector::any());
    for _ in 0..12 {
        let answer = chat(world.data_plane(1)?, "main").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(world.one.log().count(&Selector::any()), before);
    assert!(before <= 4, "{before} calls went to the failing provider");
    Ok(())
}

#[tokio::test]
async fn a_refused_credential_is_never_used_again_by_anybody() -> Result<()> {
    let world = World::start().await?;
    let refused = Selector::any().credential("sk-one-a");
    world.one.set(refused.clone(), Mode::status(401));
    assert_eq!(chat(world.data_plane(0)?, "one/m").await?.status, 200);
    eventually(
        LIMIT,
        "connection one-a expired at both replicas",
        || async {
            for replica in 0..2 {
                let state = world.connection(replica, "one-a").await.ok()?;
                if state["state"] != "expired" {
                    return None;
                }
            }
            Some(())
        },
    )
    .await?;
    for plane in 0..2 {
        for _ in 0..5 {
            assert_eq!(chat(world.data_plane(plane)?, "one/m").await?.status, 200);
        }
    }
    assert_eq!(world.one.log().count(&refused), 1);
    Ok(())
}

#[tokio::test]
async fn what_is_excluded_can_be_explained_and_reset() -> Result<()> {
    let world = World::start().await?;
    world.one.set_default(Mode::rate_limited("120"));
    assert_eq!(chat(world.data_plane(0)?, "main").await?.status, 200);
    let explained = eventually(LIMIT, "explain shows the cooldowns", || async {
        let explained = world.fleet.ctl_json(1, &["explain", "main"]).await.ok()?;
        let excluded = explained["targets"]
            .as_array()?
            .iter()
            .filter(|target| {
                target["provider"] == "one"
                    && target["exclusions"][0]["reason"] == "connection_cooldown"
            })
            .count();
        (excluded == 2).then_some(explained)
    })
    .await?;
    let chosen = explained["targets"]
        .as_array()
        .and_then(|targets| targets.iter().find(|target| target["chosen"] == true))
        .cloned()
        .unwrap_or_default();
    assert_eq!(chosen["connection"], "two-a", "{explained}");
    let remaining = explained["targets"][0]["exclusions"][0]["remainingMs"].as_u64();
    assert!(
        remaining.is_some_and(|ms| ms > 60_000 && ms <= 120_000),
        "{explained}"
    );

    world.one.heal();
    let reset = world.fleet.ctl_json(0, &["reset", "all"]).await?;
    assert!(reset["resetCount"].as_u64() >= Some(2), "{reset}");
    assert_eq!(reset["checkpointed"], true, "{reset}");
    eventually(
        LIMIT,
        "provider one serves again through both data planes",
        || async {
            for plane in 0..2 {
                let before = world.one.log().count(&Selector::any());
                chat(world.data_plane(plane).ok()?, "main").await.ok()?;
                if world.one.log().count(&Selector::any()) == before {
                    return None;
                }
            }
            Some(())
        },
    )
    .await?;
    Ok(())
}
