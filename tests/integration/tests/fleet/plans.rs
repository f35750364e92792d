//! Combos that ask several models for one answer, with the official SDKs as clients.

use anyhow::{Context as _, Result};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tidegate_integration::{CLIENT_KEY, LIMIT, World, chat, post, send};
use tidegate_test_support::upstream::{Ending, FakeUpstream, Mode, Selector};
use tidegate_test_support::{ClientCall, PythonClients, eventually};

/// `panel` and `chain` of OpenAI providers, `claude-panel` and `claude-chain` of an Anthropic one.
async fn start() -> Result<World> {
    start_with("comboCooldownWait: {enabled: false}").await
}

async fn start_with(waits: &str) -> Result<World> {
    let world = World::start().await?;
    let document = format!(
        "
providers:
  - {{id: one, protocol: openai, baseUrl: {one}, class: apikey, models: [m, n, j]}}
  - {{id: two, protocol: openai, baseUrl: {two}, class: apikey, models: [m]}}
  - {{id: claude, protocol: anthropic, baseUrl: {claude}, class: apikey, models: [m, n]}}
connections:
  - {{id: one-a, provider: one, credential: {{file: one-a.key}}}}
  - {{id: two-a, provider: two, credential: {{file: two-a.key}}}}
  - {{id: claude-a, provider: claude, disableCooling: true, credential: {{file: claude-a.key}}}}
combos:
  - name: panel
    strategy: fusion
    steps: [one/m, two/m, one/n]
    config: {{maxRetries: 0, fusion: {{judgeModel: one/j, stragglerGraceMs: 200}}}}
  - name: claude-panel
    strategy: fusion
    steps: [claude/m, claude/n]
    config: {{maxRetries: 0}}
  - name: chain
    strategy: pipeline
    steps: [one/m, {{model: two/m, prompt: Be brief.}}, one/n]
  - {{name: claude-chain, strategy: pipeline, steps: [claude/m, claude/n]}}
keys:
  - {{id: client, secret: {{file: client.key}}}}
settings:
  waitForCooldown: {{enabled: false}}
  {waits}
",
        one = world.one.base_url(),
        two = world.two.base_url(),
        claude = world.claude.base_url(),
    );
    world.fleet.apply(&document).await?;
    Ok(world)
}

fn calls(upstream: &FakeUpstream, model: &str) -> u64 {
    upstream.log().count(&Selector::any().model(model))
}

#[tokio::test]
async fn official_sdks_get_one_answer_of_several_models() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let world = start().await?;
    for plane in 0..2 {
        let addr = world.data_plane(plane)?;
        let call = ClientCall::new(format!("http://{addr}/v1"), "panel", CLIENT_KEY)
            .models(["panel", "chain"])
            .modes(["json", "stream", "responses", "responses_stream"]);
        let run = clients.run("openai_chat.py", &call).await?;
        assert!(run.ok, "{run:?}");
        let call = ClientCall::new(format!("http://{addr}"), "claude-panel", CLIENT_KEY)
            .models(["claude-panel", "claude-chain"])
            .modes(["json", "stream"]);
        let run = clients.run("anthropic_messages.py", &call).await?;
        assert!(run.ok, "{run:?}");
    }
    // Eight requests each: a panel of three and its judge; three steps.
    assert_eq!(calls(&world.one, "m"), 16);
    assert_eq!(calls(&world.two, "m"), 16);
    assert_eq!(calls(&world.one, "n"), 16);
    assert_eq!(calls(&world.one, "j"), 8);
    // Four each: a panel of two whose first judges; two steps.
    assert_eq!(calls(&world.claude, "m"), 12);
    assert_eq!(calls(&world.claude, "n"), 8);
    Ok(())
}

#[tokio::test]
async fn official_sdks_read_a_single_answer_as_if_it_were_the_only_one() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let world = start().await?;
    let gone = Mode::status_with_body(404, r#"{"error":{"message":"no such thing"}}"#);
    world.one.set_default(gone.clone());
    world.claude.set(Selector::any().model("n"), gone);
    let addr = world.data_plane(0)?;
    let call = ClientCall::new(format!("http://{addr}/v1"), "panel", CLIENT_KEY).modes([
        "json",
        "stream",
        "responses",
        "responses_stream",
    ]);
    let run = clients.run("openai_chat.py", &call).await?;
    assert!(run.ok, "{run:?}");
    let call = ClientCall::new(format!("http://{addr}"), "claude-panel", CLIENT_KEY)
        .modes(["json", "stream"]);
    let run = clients.run("anthropic_messages.py", &call).await?;
    assert!(run.ok, "{run:?}");
    assert_eq!(calls(&world.one, "j"), 0);
    assert_eq!(calls(&world.two, "m"), 4);
    assert_eq!(calls(&world.claude, "m"), 2);
    Ok(())
}

#[tokio::test]
async fn a_panel_without_any_answer_is_unavailable() -> Result<()> {
    let world = start().await?;
    for upstream in [&world.one, &world.two] {
        upstream.set_default(Mode::rate_limited("30"));
    }
    let answer = chat(world.data_plane(0)?, "panel").await?;
    assert_eq!(answer.status, 503, "{answer:?}");
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "panel_failed");
    let message = error["message"].as_str().context("a message")?;
    assert!(message.contains("two/m status_429"), "{message}");
    assert!(answer.headers.contains_key("retry-after"));
    // Both accounts cool down now, for everybody: nothing is sent.
    let asked = calls(&world.one, "m") + calls(&world.one, "n") + calls(&world.two, "m");
    eventually(LIMIT, "the other data plane knows", || async {
        let two = world.connection(1, "two-a").await.ok()?;
        let one = world.connection(1, "one-a").await.ok()?;
        (two["state"] == "unavailable" && one["state"] == "unavailable").then_some(())
    })
    .await?;
    let answer = chat(world.data_plane(1)?, "panel").await?;
    assert_eq!(answer.status, 503, "{answer:?}");
    let now = calls(&world.one, "m") + calls(&world.one, "n") + calls(&world.two, "m");
    assert_eq!(now, asked);
    Ok(())
}

/// `poolSize`, `attempted` and the length of `attemptOrder`.
fn counts(body: &Value) -> Result<(u64, u64, usize)> {
    let diagnostics = &body["diagnostics"];
    let number = |name: &str| diagnostics[name].as_u64().context("a number");
    let order = diagnostics["attemptOrder"].as_array().context("a list")?;
    Ok((number("poolSize")?, number("attempted")?, order.len()))
}

/// Waits that the data plane was told to take.
async fn waits(world: &World, plane: usize) -> Result<f64> {
    let plane = world.fleet.data_planes.get(plane).context("a plane")?;
    let request = Request::get(format!("http://{}/metrics", plane.admin));
    let answer = send(request.body(Full::default())?).await?;
    let text = String::from_utf8(answer.body.to_vec())?;
    let mut sum = 0.0;
    for line in text.lines() {
        let of_decisions = line.starts_with("tidegate_dp_decisions_total{");
        if of_decisions && line.contains(r#"step="wait""#) {
            let (_, count) = line.rsplit_once(' ').context("a number")?;
            sum += count.parse::<f64>()?;
        }
    }
    Ok(sum)
}

#[tokio::test]
async fn members_and_steps_never_wait_for_a_cooldown() -> Result<()> {
    let world = start_with("comboCooldownWait: {enabled: true}").await?;
    world.two.set_default(Mode::rate_limited("8"));
    // The others are judged; nothing is sent to the limited member again.
    let answer = chat(world.data_plane(0)?, "panel").await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(calls(&world.two, "m"), 1);
    assert_eq!(calls(&world.one, "j"), 1);
    // Whether the step is sent or refused because it cools: the chain ends there.
    let answer = chat(world.data_plane(0)?, "chain").await?;
    let body = answer.json();
    let message = body["error"]["message"].as_str().context("a message")?;
    assert!(message.starts_with("step 2 (two/m): "), "{message}");
    let retry_after = answer.headers.contains_key("retry-after");
    assert!(retry_after, "{answer:?}");
    assert_eq!(calls(&world.one, "n"), 1, "the panel's");
    let told = waits(&world, 0).await?;
    assert!(told.abs() < 0.5, "{told} waits");
    Ok(())
}

#[tokio::test]
async fn a_step_that_fails_is_named() -> Result<()> {
    let world = start().await?;
    world.two.set_default(Mode::status(401));
    let answer = chat(world.data_plane(0)?, "chain").await?;
    assert_eq!(answer.status, 401, "{answer:?}");
    let body = answer.json();
    let message = body["error"]["message"].as_str().context("a message")?;
    assert!(message.starts_with("step 2 (two/m): "), "{message}");
    assert_eq!(counts(&body)?, (3, 2, 2));
    assert_eq!(calls(&world.one, "n"), 0);
    Ok(())
}

#[tokio::test]
async fn the_last_step_is_named_like_the_others() -> Result<()> {
    let world = start().await?;
    world.one.set(Selector::any().model("n"), Mode::status(404));
    let answer = chat(world.data_plane(0)?, "chain").await?;
    assert_eq!(answer.status, 404, "{answer:?}");
    let body = answer.json();
    let message = body["error"]["message"].as_str().context("a message")?;
    assert!(message.starts_with("step 3 (one/n): "), "{message}");
    assert_eq!(counts(&body)?, (3, 3, 3));
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_a_panel_leaves_nothing_behind() -> Result<()> {
    let world = start().await?;
    world.one.set_default(Mode::Hang);
    world.two.set_default(Mode::Hang);
    let addr = world.data_plane(0)?;
    let body = json!({"model": "panel", "stream": true,
        "messages": [{"role": "user", "content": "hi"}]});
    let all = Selector::any();
    let asked = async {
        let all_asked = world.one.log().wait_for(&all, 2, LIMIT).await
            && world.two.log().wait_for(&all, 1, LIMIT).await;
        anyhow::ensure!(all_asked, "the panel was not asked");
        anyhow::Ok(())
    };
    tokio::select! {
        answer = post(addr, "/v1/chat/completions", body.to_string()) => {
            anyhow::bail!("there was an answer: {answer:?}");
        }
        asked = asked => asked?,
    }
    for upstream in [&world.one, &world.two] {
        let ending = upstream.log().wait_for_ending(&all, LIMIT).await;
        assert_eq!(ending, Some(Ending::Aborted));
    }
    world.one.heal();
    world.two.heal();
    // Nobody is blamed: the same models answer at once, at either data plane.
    for plane in 0..2 {
        let answer = chat(world.data_plane(plane)?, "panel").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        let attempts = answer.headers.get("x-omniroute-fallback-attempts");
        assert_eq!(attempts.context("a count")?, "3");
    }
    for connection in ["one-a", "two-a"] {
        assert_eq!(world.connection(0, connection).await?["state"], "active");
    }
    Ok(())
}
