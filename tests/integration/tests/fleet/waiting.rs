//! Waiting for a cooldown instead of failing, where it is worth it (`routing.md` §12).

use anyhow::Result;
use tidegate_integration::{World, chat};
use tidegate_test_support::upstream::{Mode, Selector};

/// Both targets of `main` fail once and would serve afterwards. Requests may wait.
async fn world_that_waits() -> Result<World> {
    let world = World::start().await?;
    // A model lock would last longer than anybody waits.
    let document = world
        .document()
        .replace(
            "modelLockout: {enabled: true}",
            "modelLockout: {enabled: false}",
        )
        .replace(
            "comboCooldownWait: {enabled: false}",
            "comboCooldownWait: {enabled: true}",
        );
    // One account each, so that one failure is all that a target has to offer.
    let document = document.replace(
        "  - {id: one-b, provider: one, priority: 2, credential: {file: one-b.key}}\n",
        "",
    );
    world.fleet.apply(&document).await?;
    Ok(world)
}

fn fail_once(world: &World, failure: &Mode) {
    for upstream in [&world.one, &world.two] {
        upstream.set(Selector::any(), [failure.clone()]);
    }
}

fn calls(world: &World) -> u64 {
    world.one.log().count(&Selector::any()) + world.two.log().count(&Selector::any())
}

#[tokio::test]
async fn two_rate_limited_targets_make_the_client_wait_and_succeed() -> Result<()> {
    let world = world_that_waits().await?;
    fail_once(&world, &Mode::rate_limited("2"));
    let answer = chat(world.data_plane(0)?, "main").await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(calls(&world), 3, "each target once, and one of them again");
    assert_eq!(answer.headers["x-omniroute-fallback-attempts"], "2");
    Ok(())
}

#[tokio::test]
async fn a_used_up_quota_is_told_at_once() -> Result<()> {
    let world = world_that_waits().await?;
    let body = r#"{"error": {"message": "You exceeded your current quota, please check your plan and billing details",
        "type": "insufficient_quota", "code": "insufficient_quota"}}"#;
    fail_once(&world, &Mode::status_with_body(429, body));
    // Who waits gets a good answer, for the targets fail only once.
    let answer = chat(world.data_plane(1)?, "main").await?;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(
        answer.json()["error"]["code"],
        "quota_exhausted",
        "{answer:?}"
    );
    assert_eq!(calls(&world), 2);
    Ok(())
}
