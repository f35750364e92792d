//! The official SDKs straight against the fake provider: what they accept, and what they make of failures. The product
//! between them has to give the same.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_test_support::upstream::{Ending, FakeUpstream, Mode, Reply, Selector};
use tidegate_test_support::{ClientCall, PythonClients};

const LIMIT: Duration = Duration::from_secs(60);

async fn start() -> anyhow::Result<(FakeUpstream, PythonClients)> {
    let reply = Reply {
        chunks: 50,
        ..Reply::default()
    };
    let upstream = FakeUpstream::builder().reply(reply).start().await?;
    Ok((upstream, PythonClients::prepare().await?))
}

fn call(base_url: String) -> ClientCall {
    ClientCall::new(base_url, "fake-model", "sk-test")
}

#[tokio::test]
async fn the_openai_sdk_accepts_all_endpoints() {
    let (upstream, clients) = start().await.unwrap();
    let modes = [
        "json",
        "stream",
        "responses",
        "responses_stream",
        "embeddings",
        "models",
    ];
    let call = call(upstream.base_url())
        .modes(modes)
        .header("x-mark", "a b");
    let run = clients.run("openai_chat.py", &call).await.unwrap();
    assert!(run.ok, "{run:?}");
    assert_eq!(run.lines.len(), modes.len());
    assert_eq!(run.mode("stream")["chunks"], 50);
    assert_eq!(run.mode("stream")["text"], run.mode("json")["text"]);
    assert_eq!(run.mode("models")["models"], json!(["fake-model"]));
    let marked = upstream
        .log()
        .requests(&Selector::any().credential("sk-test"));
    assert_eq!(marked.len(), modes.len());
    assert!(
        marked
            .iter()
            .all(|request| request.header("x-mark") == Some("a b"))
    );
}

#[tokio::test]
async fn the_anthropic_sdk_accepts_messages() {
    let (upstream, clients) = start().await.unwrap();
    let run = clients
        .run("anthropic_messages.py", &call(upstream.origin()))
        .await
        .unwrap();
    assert!(run.ok, "{run:?}");
    assert_eq!(run.mode("stream")["chunks"], 50);
    assert_eq!(run.mode("stream")["text"], run.mode("json")["text"]);
}

#[tokio::test]
async fn the_wire_is_as_documented() {
    let (upstream, clients) = start().await.unwrap();
    let call = call(upstream.base_url()).modes(["openai", "anthropic"]);
    let run = clients.run("sse_wire.py", &call).await.unwrap();
    assert!(run.ok, "{run:?}");
    assert_eq!(run.lines.len(), 2);
}

#[tokio::test]
async fn failures_are_reported_by_class() {
    let (upstream, clients) = start().await.unwrap();
    upstream.set(Selector::any().model("limited"), Mode::rate_limited("7"));
    upstream.set(Selector::any().model("away"), Mode::status(503));
    upstream.set(Selector::any().model("reset"), Mode::Reset);
    let scripts = [
        ("openai_chat.py", upstream.base_url(), "InternalServerError"),
        // Anthropic has a class of its own for 503.
        (
            "anthropic_messages.py",
            upstream.origin(),
            "ServiceUnavailableError",
        ),
    ];
    for (script, base_url, unavailable) in scripts {
        let call = call(base_url).models(["limited", "away", "reset", "good"]);
        let run = clients.run(script, &call).await.unwrap();
        assert!(!run.ok);
        let seen = |model: &str| {
            let facts =
                |line: &Value| ["error", "status", "retry_after"].map(|name| line[name].clone());
            run.of_model(model).map(facts).collect::<Vec<_>>()
        };
        let twice = |facts: [Value; 3]| vec![facts.clone(), facts];
        let null = Value::Null;
        assert_eq!(
            seen("limited"),
            twice([json!("RateLimitError"), json!(429), json!("7")])
        );
        assert_eq!(
            seen("away"),
            twice([json!(unavailable), json!(503), null.clone()])
        );
        assert_eq!(
            seen("reset"),
            twice([json!("APIConnectionError"), null.clone(), null])
        );
        assert!(run.of_model("good").all(|line| line["ok"] == true));
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_no_success() {
    let (upstream, clients) = start().await.unwrap();
    upstream.set(Selector::any().model("cut"), Mode::CutAfter { bytes: 2500 });
    upstream.set(
        Selector::any().model("error-first"),
        Mode::sse_error_first(),
    );
    let later = Mode::SseErrorAfter {
        events: 10,
        error: None,
    };
    upstream.set(Selector::any().model("error-later"), later);
    let scripts = [
        ("openai_chat.py", upstream.base_url(), vec!["stream"]),
        ("anthropic_messages.py", upstream.origin(), vec!["stream"]),
        (
            "sse_wire.py",
            upstream.base_url(),
            vec!["openai", "anthropic"],
        ),
    ];
    for (script, base_url, modes) in scripts {
        let call = call(base_url)
            .models(["cut", "error-first", "error-later"])
            .modes(modes.clone());
        let run = clients.run(script, &call).await.unwrap();
        assert_eq!(run.lines.len(), 3 * modes.len());
        for line in &run.lines {
            let expected = if line["model"] == "error-first" {
                0..1
            } else {
                3..50
            };
            assert_eq!(line["ok"], false, "{script}: {line}");
            assert!(
                expected.contains(&line["chunks"].as_u64().unwrap()),
                "{script}: {line}"
            );
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_seen_by_the_provider() {
    let (upstream, clients) = start().await.unwrap();
    upstream.set_default(Mode::Hang);
    let call = call(upstream.base_url()).modes(["json"]);
    let any = Selector::any();
    tokio::select! {
        run = clients.run("openai_chat.py", &call) => panic!("ended by itself: {run:?}"),
        // Leaving the select kills the script.
        came = upstream.log().wait_for(&any, 1, LIMIT) => assert!(came),
    }
    let ending = upstream.log().wait_for_ending(&any, LIMIT).await;
    assert_eq!(ending, Some(Ending::Aborted));
}
