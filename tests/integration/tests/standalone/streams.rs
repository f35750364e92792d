//! What the official SDKs make of heartbeats, and of streams that are promised before there is an answer.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tidegate_integration::{CLIENT_KEY, LIMIT};
use tidegate_test_support::upstream::{Gate, Mode, Reply, Selector};
use tidegate_test_support::{ClientCall, ClientRun, PythonClients, eventually};

use crate::Standalone;

/// So often that every stream has some.
const OFTEN: (&str, &str) = ("SSE_HEARTBEAT_INTERVAL_MS", "200");

/// Streams that take about a second, so that several heartbeats stand in each.
fn slow_down(standalone: &Standalone) {
    for upstream in [&standalone.openai, &standalone.anthropic] {
        upstream.set_reply(Reply {
            chunks: 5,
            ..Reply::default()
        });
        upstream.set_default(Mode::SlowDrip {
            gap: Duration::from_millis(150),
        });
    }
}

fn call(standalone: &Standalone, path: &str, model: &str) -> ClientCall {
    let base = format!("http://{}{path}", standalone.http);
    ClientCall::new(base, model, CLIENT_KEY)
}

#[tokio::test]
async fn the_sdks_take_heartbeats() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let standalone = Standalone::start_as(&[OFTEN], &[], |document| document).await?;
    slow_down(&standalone);
    let openai = call(&standalone, "/v1", "main").modes([
        "stream",
        "responses_stream",
        "stream_helper",
        "responses_helper",
        "completions_stream",
    ]);
    let anthropic = call(&standalone, "", "claude/m").modes(["stream"]);
    let wire = call(&standalone, "/v1", "main");
    let (openai, anthropic, wire) = tokio::try_join!(
        clients.run("openai_chat.py", &openai),
        clients.run("anthropic_messages.py", &anthropic),
        clients.run("sse_wire.py", &wire),
    )?;
    for run in [&openai, &anthropic, &wire] {
        assert!(run.ok, "{run:?}");
    }
    let number = |mode: &str, name: &str| openai.mode(mode)[name].as_u64();
    assert!(number("stream_helper", "empty") > Some(0), "{openai:?}");
    // One of them is the provider's own.
    assert!(
        number("responses_helper", "in_progress") > Some(1),
        "{openai:?}"
    );
    Ok(())
}

#[tokio::test]
async fn the_sdks_take_every_endpoint() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    let standalone = Standalone::start().await?;
    let openai = call(&standalone, "/v1", "main").modes([
        "completions",
        "completions_stream",
        "input_tokens",
    ]);
    let anthropic = call(&standalone, "", "claude/m").modes(["count_tokens"]);
    let (openai, anthropic) = tokio::try_join!(
        clients.run("openai_chat.py", &openai),
        clients.run("anthropic_messages.py", &anthropic),
    )?;
    assert!(openai.ok && anthropic.ok, "{openai:?} {anthropic:?}");
    Ok(())
}

fn early(document: String) -> String {
    document
        + "settings:\n  streams: {earlyKeepaliveMs: 200}\n  waitForCooldown: {enabled: false}\n  comboCooldownWait: {enabled: false}\n"
}

/// Runs a client whose request is held until its stream has been promised.
async fn run_held(
    clients: &PythonClients,
    script: &str,
    call: &ClientCall,
    standalone: &Standalone,
    then: Mode,
) -> Result<ClientRun> {
    let gate = Gate::new();
    let upstreams = [&standalone.openai, &standalone.anthropic];
    for upstream in upstreams {
        upstream.set_default(Mode::AtGate {
            gate: gate.clone(),
            then: Box::new(then.clone()),
        });
    }
    let any = Selector::any();
    let opening = async {
        eventually(LIMIT, "the request is held", || async {
            let asked = upstreams
                .iter()
                .any(|upstream| upstream.log().count(&any) > 0);
            asked.then_some(())
        })
        .await?;
        // Several times the patience of the setting. Were the stream not promised by then, the SDK would see the status
        // and the headers of an ordinary answer, which the tests tell apart.
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.open();
        Ok(())
    };
    let (run, ()) = tokio::try_join!(clients.run(script, call), opening)?;
    Ok(run)
}

#[tokio::test]
async fn the_sdks_take_promised_streams() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    for (script, path, model, modes) in [
        ("openai_chat.py", "/v1", "main", vec!["stream"]),
        ("openai_chat.py", "/v1", "main", vec!["stream_helper"]),
        ("openai_chat.py", "/v1", "main", vec!["responses_helper"]),
        ("anthropic_messages.py", "", "claude/m", vec!["stream"]),
    ] {
        let standalone = Standalone::start_as(&[OFTEN], &[], early).await?;
        let call = call(&standalone, path, model).modes(modes);
        let run = run_held(&clients, script, &call, &standalone, Mode::Ok).await?;
        assert!(run.ok, "{run:?}");
        let provider = &run.lines[0]["headers"]["x-omniroute-provider"];
        assert!(provider.is_null(), "it was promised: {run:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_sdks_raise_errors_of_promised_streams() -> Result<()> {
    let clients = PythonClients::prepare().await?;
    for (script, path, model, mode, error) in [
        ("openai_chat.py", "/v1", "main", "stream", "APIError"),
        // The event is one of the format; what it means is for whoever reads the stream.
        (
            "openai_chat.py",
            "/v1",
            "main",
            "responses_stream",
            "InBandError",
        ),
        (
            "anthropic_messages.py",
            "",
            "claude/m",
            "stream",
            "APIStatusError",
        ),
    ] {
        let standalone = Standalone::start_as(&[OFTEN], &[], early).await?;
        let call = call(&standalone, path, model).modes([mode]);
        let run = run_held(
            &clients,
            script,
            &call,
            &standalone,
            Mode::rate_limited("7"),
        )
        .await?;
        let line: &Value = run.mode(mode);
        assert_eq!((run.ok, &line["error"]), (false, &error.into()), "{run:?}");
        let told =
            line["message"].as_str().unwrap_or_default().to_owned() + &line["body"].to_string();
        assert!(told.contains("429"), "{run:?}");
    }
    Ok(())
}
