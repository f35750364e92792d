//! The cooldown gate: what one data plane's failures fill, both leave alone.

use anyhow::Result;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};

/// Failures that fill the window.
const THRESHOLD: u64 = 5;

#[tokio::test]
async fn a_full_window_keeps_both_data_planes_from_the_provider_until_a_reset() -> Result<()> {
    let world = World::start().await?;
    // Nothing else than the gate excludes: the breaker stays closed and the account never cools.
    let document = format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, class: apikey, models: [m]}}
  - {{id: two, protocol: openai, baseUrl: {two}, class: apikey, models: [m]}}
connections:
  - {{id: one-a, provider: one, disableCooling: true, credential: {{file: one-a.key}}}}
  - {{id: two-a, provider: two, credential: {{file: two-a.key}}}}
combos:
  - {{name: main, steps: [one/m, two/m], config: {{maxRetries: 0}}}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  providerCooldown:
    enabled: true
    apikey: {{providerFailureThreshold: {THRESHOLD}}}
  providerBreaker:
    apikey: {{failureThreshold: 1000}}
    dedupConnectionMs: 0
    dedupProviderMs: 0
  waitForCooldown: {{enabled: false}}
  comboCooldownWait: {{enabled: false}}
",
        one = world.one.base_url(),
        two = world.two.base_url(),
    );
    world.fleet.apply(&document).await?;
    world.one.set_default(Mode::status(503));
    eventually(LIMIT, "the window is full at both replicas", || async {
        let answer = chat(world.data_plane(0).ok()?, "main").await.ok()?;
        assert_eq!(answer.status, 200, "{answer:?}");
        for replica in 0..2 {
            let gate = world.breaker(replica, "one").await.ok()?;
            if gate["why"] != "server_error" || gate["state"] != "CLOSED" {
                return None;
            }
        }
        Some(())
    })
    .await?;
    let calls = world.one.log().count(&Selector::any());
    assert!(
        calls >= THRESHOLD,
        "{calls} calls filled a window of {THRESHOLD}"
    );
    for plane in 0..2 {
        for _ in 0..5 {
            assert_eq!(chat(world.data_plane(plane)?, "main").await?.status, 200);
        }
    }
    assert_eq!(world.one.log().count(&Selector::any()), calls);
    // A model named without a combo is not the gate's business.
    assert_eq!(chat(world.data_plane(1)?, "one/m").await?.status, 503);

    world.one.heal();
    let reset = ["reset", "cooldowns", "--provider", "one"];
    let reset = world.fleet.ctl_json(1, &reset).await?;
    assert_eq!(reset["checkpointed"], true, "{reset}");
    for plane in 0..2 {
        eventually(LIMIT, "provider one serves again", || async {
            let before = world.one.log().count(&Selector::any());
            let answer = chat(world.data_plane(plane).ok()?, "main").await.ok()?;
            let served = world.one.log().count(&Selector::any()) > before;
            (served && answer.status == 200).then_some(())
        })
        .await?;
    }
    Ok(())
}
