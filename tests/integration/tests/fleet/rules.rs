//! Gateways that misreport, rules about them, and what people see of it (`failure-state.md` §5.6).

use anyhow::{Context as _, Result};
use serde_json::Value;
use tidegate_integration::{LIMIT, World, chat};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};

const QUOTA: &str = r#"{"error":{"message":"用户额度不足"}}"#;
const NO_ACCESS: &str = r#"{"error":{"message":"无权访问模型 x"}}"#;
const BOTH: &str = r#"{"error":{"message":"额度不足，无权访问模型 y"}}"#;

/// Provider `agentrouter` before the upstream of `one`, `acme` before that of `two`.
fn document(world: &World, rules: &str) -> String {
    format!(
        "
providers:
  - {{id: agentrouter, protocol: openai, baseUrl: {one}, class: apikey, models: [m, x, y]}}
  - {{id: acme, protocol: openai, baseUrl: {two}, class: apikey, models: [m]}}
connections:
  - {{id: one-a, provider: agentrouter, priority: 1, credential: {{file: one-a.key}}}}
  - {{id: one-b, provider: agentrouter, priority: 2, credential: {{file: one-b.key}}}}
  - {{id: two-a, provider: acme, credential: {{file: two-a.key}}}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  connectionCooldown: {{apikey: {{baseCooldownMs: 120000}}}}
  waitForCooldown: {{enabled: false}}
  comboCooldownWait: {{enabled: false}}
  providerErrorRules: {{{rules}}}
",
        one = world.one.base_url(),
        two = world.two.base_url(),
    )
}

async fn started(rules: &str) -> Result<World> {
    let world = World::start().await?;
    apply(&world, rules).await?;
    Ok(world)
}

/// Applies a document and waits until every replica uses it.
async fn apply(world: &World, rules: &str) -> Result<()> {
    world.fleet.apply(&document(world, rules)).await?;
    let version = |status: &Value| status["configurationVersion"].as_u64();
    let wanted = version(&world.fleet.ctl_json(0, &["status"]).await?);
    eventually(LIMIT, "both replicas use the document", || async {
        let other = world.fleet.ctl_json(1, &["status"]).await.ok()?;
        (version(&other) >= wanted).then_some(())
    })
    .await?;
    eventually(LIMIT, "both data planes know the provider", || async {
        for plane in 0..2 {
            let answer = chat(world.data_plane(plane).ok()?, "acme/m").await.ok()?;
            if answer.status == 404 {
                return None;
            }
        }
        Some(())
    })
    .await?;
    Ok(())
}

/// The first exclusion that a replica tells of a connection, once it is by this gate.
async fn excluded(world: &World, model: &str, connection: &str, gate: &str) -> Result<Value> {
    eventually(LIMIT, "explain names the gate", || async {
        let explained = world.fleet.ctl_json(1, &["explain", model]).await.ok()?;
        let target = explained["targets"]
            .as_array()?
            .iter()
            .find(|target| target["connection"] == connection)?
            .clone();
        let exclusion = target["exclusions"].get(0)?.clone();
        (exclusion["reason"] == gate).then_some(exclusion)
    })
    .await
}

/// The transition of a connection with this kind, rule and change, once it is in history.
async fn told(world: &World, connection: &str, kind: &str, rule: &str) -> Result<Value> {
    eventually(LIMIT, "history tells the transition", || async {
        let rows = world
            .fleet
            .ctl_json(1, &["get", "transitions"])
            .await
            .ok()?;
        let found = rows.as_array()?.iter().find(|row| {
            row["connection"] == connection && row["kind"] == kind && row["rule"] == rule
        })?;
        Some(found.clone())
    })
    .await
}

async fn lockout(world: &World, model: &str) -> Result<Value> {
    let lockouts = world.fleet.ctl_json(1, &["get", "lockouts"]).await?;
    lockouts
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["model"] == model))
        .cloned()
        .with_context(|| format!("no lock of {model} in {lockouts}"))
}

#[tokio::test]
async fn a_gateway_that_misreports_can_be_explained() -> Result<()> {
    let world = started("").await?;
    let addr = world.data_plane(0)?;

    // §5.6, flow 2: access to one model is denied; the connection stays active.
    let x = Selector::any().model("x");
    world.one.set(x, Mode::status_with_body(403, NO_ACCESS));
    assert_eq!(chat(addr, "agentrouter/x").await?.status, 403);
    let denied = "agentrouter-model-access-denied";
    let exclusion = excluded(&world, "agentrouter/x", "one-a", "model_lockout").await?;
    assert_eq!(exclusion["cause"], "auth_error", "{exclusion}");
    assert_eq!(exclusion["rule"], denied, "{exclusion}");
    assert_eq!(exclusion["originalStatus"], Value::Null, "{exclusion}");
    assert!(exclusion["untilUnixMs"].is_u64(), "{exclusion}");
    let remaining = exclusion["remainingMs"].as_u64().unwrap_or_default();
    assert!(
        (1_700_000..=1_800_000).contains(&remaining),
        "6 h within the cap: {exclusion}"
    );
    assert_eq!(world.connection(1, "one-a").await?["state"], "active");
    let lock = lockout(&world, "x").await?;
    assert_eq!(
        (&lock["rule"], &lock["reason"]),
        (&denied.into(), &"auth_error".into())
    );
    let change = told(&world, "one-a", "lock", denied).await?;
    assert!(
        change["change"]
            .as_str()
            .is_some_and(|text| text.contains("auth_error")),
        "{change}"
    );

    // §5.6, flow 6 as vector 77 has it: of both markers, the denial speaks.
    let y = Selector::any().model("y");
    world.one.set(y, Mode::status_with_body(403, BOTH));
    assert_eq!(chat(addr, "agentrouter/y").await?.status, 403);
    let exclusion = excluded(&world, "agentrouter/y", "one-a", "model_lockout").await?;
    assert_eq!(exclusion["rule"], denied, "{exclusion}");
    assert_eq!(exclusion["originalStatus"], Value::Null, "{exclusion}");
    let connection = world.connection(1, "one-a").await?;
    assert_eq!(connection["state"], "active", "{connection}");
    assert_eq!(chat(addr, "agentrouter/m").await?.status, 200);

    // §5.6, flow 1: a quota reported as 403. The sibling goes on.
    let quota = "agentrouter-user-quota-exhausted";
    let of_a = Selector::any().credential("sk-one-a");
    world.one.set(of_a, Mode::status_with_body(403, QUOTA));
    assert_eq!(chat(addr, "agentrouter/m").await?.status, 200);
    let exclusion = excluded(&world, "agentrouter/m", "one-a", "connection_cooldown").await?;
    assert_eq!(exclusion["cause"], "quota_exhausted", "{exclusion}");
    assert_eq!(exclusion["rule"], quota, "{exclusion}");
    assert_eq!(exclusion["originalStatus"], 403, "{exclusion}");
    assert!(exclusion["untilUnixMs"].is_u64(), "{exclusion}");
    let connection = world.connection(1, "one-a").await?;
    assert_eq!(connection["state"], "unavailable", "{connection}");
    assert_eq!(connection["level"], 1, "{connection}");
    assert_eq!(connection["lastError"], 429, "{connection}");
    assert_eq!(connection["rule"], quota, "{connection}");
    assert_eq!(connection["upstreamSaid"], 403, "{connection}");
    let change = told(&world, "one-a", "cooldown", quota).await?;
    assert_eq!(change["upstreamSaid"], 403, "{change}");
    let people = world
        .fleet
        .ctl(1, &["explain", "agentrouter/m"])
        .await?
        .stdout;
    assert!(
        people.contains(&format!(
            "quota_exhausted by rule {quota}, upstream said 403"
        )),
        "{people}"
    );

    // With no account left the client is told what the upstream meant, and when to come back.
    world.one.set_default(Mode::status_with_body(403, QUOTA));
    let answer = chat(addr, "agentrouter/m").await?;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.headers["retry-after"], "60", "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_rule_of_the_operator_acts_without_a_restart() -> Result<()> {
    let world = started("").await?;
    let body = r#"{"error":{"message":"The QUOTA of your team is over"}}"#;
    world.two.set_default(Mode::status_with_body(500, body));
    assert_eq!(chat(world.data_plane(0)?, "acme/m").await?.status, 500);
    let before = excluded(&world, "acme/m", "two-a", "connection_cooldown").await?;
    assert_eq!(before["cause"], "server_error", "{before}");
    assert_eq!(before["rule"], "", "{before}");

    let rule =
        "acme: [{status: 500, match: quota of your team, scope: connection, cooldownMs: 900000}]";
    apply(&world, rule).await?;
    world.fleet.ctl_json(0, &["reset", "all"]).await?;
    eventually(LIMIT, "the next failure is judged by the rule", || async {
        // While a data plane's view is behind, the connection still counts as cooling there.
        chat(world.data_plane(1).ok()?, "acme/m").await.ok()?;
        let connection = world.connection(1, "two-a").await.ok()?;
        (connection["rule"] == "operator:acme:0").then_some(())
    })
    .await?;
    let after = excluded(&world, "acme/m", "two-a", "connection_cooldown").await?;
    assert_eq!(after["cause"], "quota_exhausted", "{after}");
    assert_eq!(after["rule"], "operator:acme:0", "{after}");
    let remaining = after["remainingMs"].as_u64().unwrap_or_default();
    assert!((600_000..=900_000).contains(&remaining), "{after}");
    told(&world, "two-a", "cooldown", "operator:acme:0").await?;
    Ok(())
}
