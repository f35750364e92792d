//! A provider limits by address: whoever shares the address leaves it alone, and whoever does not goes on.

use anyhow::{Context as _, Result};
use serde_json::Value;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::upstream::{Mode, Selector};
use tidegate_test_support::{FleetOptions, eventually};

/// An hour, in ms.
const HOUR: u64 = 3_600_000;
/// What the sibling's own cooldown takes, in ms.
const SIBLING_MS: u64 = 2_000;

/// Data plane 0 leaves as `eu`, data plane 1 as `us`; provider `one` is known to limit by address. The combos `a` and
/// `b` are its two accounts.
async fn two_addresses() -> Result<World> {
    let world = World::start_with(FleetOptions {
        egress_ids: vec!["eu".to_owned(), "us".to_owned()],
        ..FleetOptions::default()
    })
    .await?;
    let document = format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, class: apikey, models: [m]}}
connections:
  - {{id: one-a, provider: one, priority: 1, credential: {{file: one-a.key}}}}
  - {{id: one-b, provider: one, priority: 2, credential: {{file: one-b.key}}}}
combos:
  - {{name: a, steps: [{{model: one/m, connection: one-a}}], config: {{maxRetries: 0}}}}
  - {{name: b, steps: [{{model: one/m, connection: one-b}}], config: {{maxRetries: 0}}}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  errorRules: {{egressBucketedProviders: [one]}}
  waitForCooldown: {{enabled: false}}
  comboCooldownWait: {{enabled: false}}
",
        one = world.one.base_url(),
    );
    world.fleet.apply(&document).await?;
    Ok(world)
}

/// Reasons why an account is excluded for data planes of an identity, as one replica explains them.
async fn reasons(world: &World, replica: usize, egress: &str, account: &str) -> Result<Value> {
    let question = ["explain", "one/m", "--egress", egress];
    let explained = world.fleet.ctl_json(replica, &question).await?;
    let targets = explained["targets"].as_array().context("no targets")?;
    let target = targets.iter().find(|it| it["connection"] == account);
    let exclusions = &target.context("no such account")?["exclusions"];
    let exclusions = exclusions.as_array().context("no exclusions")?;
    Ok(exclusions.iter().map(|it| it["reason"].clone()).collect())
}

#[tokio::test]
async fn end_to_end_vector_failure_69_one_address_is_refused_and_the_other_is_not() -> Result<()> {
    let world = two_addresses().await?;
    let month = Mode::status_with_body(429, "monthly usage limit reached");
    let (a, b) = (
        Selector::any().credential("sk-one-a"),
        Selector::any().credential("sk-one-b"),
    );
    // The sibling cools by a failure that says nothing about the address.
    let failing = Mode::Status {
        code: 503,
        body: None,
        headers: vec![("retry-after".to_owned(), (SIBLING_MS / 1_000).to_string())],
    };
    world.one.set(b.clone(), failing);
    assert_eq!(chat(world.data_plane(0)?, "b").await?.status, 503);
    world.one.set(a.clone(), month);
    assert_eq!(chat(world.data_plane(0)?, "a").await?.status, 429);
    world.one.heal();

    for replica in 0..2 {
        eventually(LIMIT, "the replica keeps both accounts from eu", || async {
            let failed = reasons(&world, replica, "eu", "one-a").await.ok()?;
            let sibling = reasons(&world, replica, "eu", "one-b").await.ok()?;
            (failed[0] == "egress_locked" && sibling[0] == "egress_locked").then_some(())
        })
        .await?;
        let failed = reasons(&world, replica, "us", "one-a").await?;
        assert_eq!(failed, Value::from(vec!["connection_cooldown"]));
        let sibling = reasons(&world, replica, "us", "one-b").await?;
        assert!(
            sibling
                .as_array()
                .is_some_and(|it| !it.contains(&"egress_locked".into())),
            "{sibling}"
        );
        let failed = world.connection(replica, "one-a").await?;
        let sibling = world.connection(replica, "one-b").await?;
        assert_eq!(failed["effectiveUntil"], failed["until"], "{failed}");
        assert_eq!(sibling["effectiveUntil"], failed["until"], "{sibling}");
        let breaker = world.breaker(replica, "one").await?;
        let lock = &breaker["egressLocks"][0];
        assert_eq!(
            (&lock["egress"], &lock["reason"]),
            (&"eu".into(), &"quota_exhausted".into())
        );
        let remaining = lock["remainingMs"].as_u64();
        assert!(
            remaining.is_some_and(|ms| ms > HOUR - 120_000 && ms <= HOUR),
            "{breaker}"
        );
    }

    // Once the sibling's own cooldown is over, the other address uses it and this one still does not.
    let calls = world.one.log().count(&b);
    let through_us = eventually(LIMIT, "one-b serves from us", || async {
        let answer = chat(world.data_plane(1).ok()?, "b").await.ok()?;
        (answer.status == 200).then_some(())
    });
    through_us.await?;
    assert_eq!(world.one.log().count(&b), calls + 1);
    let refused = chat(world.data_plane(0)?, "b").await?;
    assert_eq!(refused.status, 503, "{refused:?}");
    let wait: Option<u64> = refused
        .headers
        .get("retry-after")
        .and_then(|wait| wait.to_str().ok()?.parse().ok());
    assert!(
        wait.is_some_and(|secs| secs > 3_400 && secs <= 3_600),
        "{refused:?}"
    );
    assert_eq!(world.one.log().count(&b), calls + 1);

    let history = world.fleet.ctl_json(1, &["get", "transitions"]).await?;
    let locked = history.as_array().context("no history")?;
    let locked = locked.iter().filter(|it| it["kind"] == "egress_locked");
    assert_eq!(locked.count(), 1, "{history}");

    let reset = ["reset", "cooldowns", "--provider", "one"];
    let reset = world.fleet.ctl_json(1, &reset).await?;
    assert!(reset["resetCount"].as_u64() >= Some(2), "{reset}");
    eventually(LIMIT, "one-a serves from eu again", || async {
        let answer = chat(world.data_plane(0).ok()?, "a").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await?;
    Ok(())
}
