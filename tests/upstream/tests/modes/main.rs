//! Every mode over real HTTP, seen from the socket.

#[cfg(test)]
mod faults;
mod http2;
mod seen;

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_fake_upstream::{Behaviour, Ending, FakeUpstream, Gate, Mode, Reply, Selector};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::seen::{CHAT, LIMIT, MESSAGES, QUIET, ask, send};

fn chat(stream: bool) -> Value {
    json!({ "model": "m", "stream": stream, "stream_options": { "include_usage": true }, "messages": [] })
}

async fn start(mode: Mode) -> Result<FakeUpstream, Error> {
    let upstream = FakeUpstream::start().await?;
    upstream.set_default(mode);
    Ok(upstream)
}

#[tokio::test]
async fn a_good_chat_has_text_and_usage_in_both_forms() {
    let upstream = FakeUpstream::start().await.unwrap();
    let whole = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert_eq!(whole.status(), 200);
    assert_eq!(
        whole.json()["choices"][0]["message"]["content"],
        "ahoy tide tide tide tide "
    );
    assert!(whole.json()["usage"]["total_tokens"].as_u64().unwrap() > 0);
    let stream = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert!(
        stream
            .header("content-type")
            .unwrap()
            .starts_with("text/event-stream")
    );
    let text = stream.text();
    let events: Vec<&str> = text.trim_end().split("\n\n").collect();
    // The role, five pieces, the finish reason, the usage, the end.
    assert_eq!(events.len(), 9);
    assert_eq!(*events.last().unwrap(), "data: [DONE]");
    assert!(stream.whole);
}

#[tokio::test]
async fn an_anthropic_stream_runs_from_start_to_stop() {
    let upstream = FakeUpstream::start().await.unwrap();
    upstream.set_reply(Reply {
        chunks: 2,
        ..Reply::default()
    });
    let body = json!({ "model": "m", "stream": true, "max_tokens": 9, "messages": [] });
    let stream = ask(upstream.addr(), MESSAGES, &body).await.unwrap();
    let text = stream.text();
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn other_endpoints_answer_in_their_formats() {
    let upstream = FakeUpstream::builder()
        .models(["m", "n"])
        .start()
        .await
        .unwrap();
    let models = ask(upstream.addr(), "/v1/models", &Value::Null)
        .await
        .unwrap()
        .json();
    assert_eq!(models["data"][1]["id"], "n");
    let body = json!({ "model": "m", "input": ["a", "b"] });
    let plain = ask(upstream.addr(), "/v1/embeddings", &body)
        .await
        .unwrap()
        .json();
    assert_eq!(plain["data"].as_array().unwrap().len(), 2);
    assert!(plain["data"][1]["embedding"][0].is_number());
    let body = json!({ "model": "m", "input": "a", "encoding_format": "base64" });
    let packed = ask(upstream.addr(), "/v1/embeddings", &body)
        .await
        .unwrap()
        .json();
    assert!(packed["data"][0]["embedding"].is_string());
    let body = json!({ "model": "m", "input": "a" });
    let response = ask(upstream.addr(), "/v1/responses", &body)
        .await
        .unwrap()
        .json();
    assert_eq!(response["output"][0]["content"][0]["type"], "output_text");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let upstream = FakeUpstream::builder().models(["m"]).start().await.unwrap();
    let addr = upstream.addr();
    let status = async |path: &str, body: Value| ask(addr, path, &body).await.unwrap().status();
    assert_eq!(status("/v1/nothing", chat(false)).await, 404);
    assert_eq!(status(CHAT, json!({ "model": "other" })).await, 404);
    assert_eq!(status(CHAT, json!({ "messages": [] })).await, 400);
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let bare = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    stream.write_all(bare).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test]
async fn a_status_comes_with_body_and_headers() {
    let upstream = start(Mode::status(503)).await.unwrap();
    let plain = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert_eq!(plain.status(), 503);
    assert_eq!(plain.json()["error"]["type"], "server_error");
    upstream.set_default(Mode::Status {
        code: 529,
        body: Some("busy".to_owned()),
        headers: vec![("content-type".to_owned(), "text/plain".to_owned())],
    });
    let own = ask(upstream.addr(), MESSAGES, &chat(false)).await.unwrap();
    assert_eq!((own.status(), own.text().as_str()), (529, "busy"));
    assert_eq!(own.header("content-type"), Some("text/plain"));
    upstream.set_default(Mode::rate_limited("7"));
    let limited = ask(upstream.addr(), MESSAGES, &chat(false)).await.unwrap();
    assert_eq!(
        (limited.status(), limited.header("retry-after")),
        (429, Some("7"))
    );
    assert_eq!(limited.json()["error"]["type"], "rate_limit_error");
}

#[tokio::test]
async fn latency_delays_a_good_answer() {
    let before = Duration::from_millis(120);
    let upstream = start(Mode::Latency { before }).await.unwrap();
    let begun = Instant::now();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert!(begun.elapsed() >= before);
    assert!(seen.whole && seen.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn reset_is_a_tcp_reset() {
    let upstream = start(Mode::Reset).await.unwrap();
    let error = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let ending = upstream
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Broken));
}

#[tokio::test]
async fn hang_lasts_until_the_client_leaves() {
    let upstream = start(Mode::Hang).await.unwrap();
    let mut stream = send(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert!(timeout(QUIET, stream.read_u8()).await.is_err());
    assert_eq!(upstream.log().last(&Selector::any()).unwrap().ending, None);
    drop(stream);
    let ending = upstream
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
}

#[tokio::test]
async fn a_slow_drip_arrives_whole() {
    let gap = Duration::from_millis(15);
    let upstream = start(Mode::SlowDrip { gap }).await.unwrap();
    for stream in [false, true] {
        let begun = Instant::now();
        let seen = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap();
        assert!(seen.whole);
        assert!(begun.elapsed() >= gap * 9, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_cut_sends_exactly_the_bytes_and_no_end() {
    let upstream = FakeUpstream::builder()
        .reply(Reply {
            chunks: 400,
            chunk_bytes: 2000,
            ..Reply::default()
        })
        .start()
        .await
        .unwrap();
    for stream in [false, true] {
        for bytes in [0, 1, 1000, 700_000] {
            upstream.set_default(Mode::CutAfter { bytes });
            let seen = ask(upstream.addr(), CHAT, &chat(stream)).await.unwrap();
            assert_eq!(
                (seen.status(), seen.body.len(), seen.whole),
                (200, bytes, false)
            );
        }
    }
    let ending = upstream
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Broken));
}

#[tokio::test]
async fn an_error_can_come_inside_a_good_status() {
    let upstream = start(Mode::sse_error_first()).await.unwrap();
    let seen = ask(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    assert_eq!(seen.status(), 200);
    assert!(
        seen.text().starts_with("data: {\"error\""),
        "{}",
        seen.text()
    );
    let whole = ask(upstream.addr(), CHAT, &chat(false)).await.unwrap();
    assert_eq!(
        (whole.status(), &whole.json()["error"]["code"]),
        (200, &json!("server_error"))
    );
    let seen = ask(upstream.addr(), MESSAGES, &chat(true)).await.unwrap();
    assert!(
        seen.text().starts_with("event: error\ndata: "),
        "{}",
        seen.text()
    );
    let error = Some(json!({ "message": "out of credit", "code": "insufficient_quota" }));
    upstream.set_default(Mode::SseErrorAfter { events: 3, error });
    let text = ask(upstream.addr(), CHAT, &chat(true))
        .await
        .unwrap()
        .text();
    let events: Vec<&str> = text.trim_end().split("\n\n").collect();
    assert_eq!(events.len(), 4);
    assert!(events[3].contains("insufficient_quota"));
}

#[tokio::test]
async fn a_stall_sends_some_events_and_then_nothing() {
    let upstream = start(Mode::Stall { events: 2 }).await.unwrap();
    let mut stream = send(upstream.addr(), CHAT, &chat(true)).await.unwrap();
    let mut seen = Vec::new();
    let events = |seen: &[u8]| String::from_utf8_lossy(seen).matches("data: ").count();
    while events(&seen) < 2 {
        let read = timeout(LIMIT, stream.read_buf(&mut seen)).await.unwrap();
        assert!(read.unwrap() > 0, "ended");
    }
    while timeout(QUIET, stream.read_buf(&mut seen))
        .await
        .is_ok_and(|read| read.unwrap() > 0)
    {}
    assert_eq!(events(&seen), 2, "{}", String::from_utf8_lossy(&seen));
    drop(stream);
    let ending = upstream
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
}

#[tokio::test]
async fn heartbeats_go_on_without_content() {
    let every = Duration::from_millis(5);
    let upstream = start(Mode::HeartbeatOnly { every }).await.unwrap();
    for (path, beat) in [(CHAT, ": keepalive"), (MESSAGES, "event: ping")] {
        let mut stream = send(upstream.addr(), path, &chat(true)).await.unwrap();
        let mut seen = Vec::new();
        let beats = |seen: &[u8]| String::from_utf8_lossy(seen).matches(beat).count();
        while beats(&seen) < 4 {
            let read = timeout(LIMIT, stream.read_buf(&mut seen))
                .await
                .unwrap()
                .unwrap();
            assert!(read > 0, "ended");
        }
        assert!(!String::from_utf8_lossy(&seen).contains("tide"));
    }
}

#[tokio::test]
async fn requests_are_told_apart_and_remembered() {
    let upstream = FakeUpstream::builder()
        .log_capacity(2)
        .start()
        .await
        .unwrap();
    let good = Selector::any().model("good");
    upstream.set(Selector::any(), [Mode::status(500), Mode::status(502)]);
    upstream.set(good.clone(), Behaviour::Always(Mode::Ok));
    let mut statuses = Vec::new();
    for model in ["bad", "good", "bad", "bad", "good"] {
        let body = json!({ "model": model, "messages": ["x".repeat(100_000)] });
        statuses.push(ask(upstream.addr(), CHAT, &body).await.unwrap().status());
    }
    assert_eq!(statuses, [500, 200, 502, 200, 200]);
    let log = upstream.log();
    assert_eq!((log.count(&Selector::any()), log.count(&good)), (5, 2));
    assert_eq!(
        log.count(&Selector::any().credential("sk-test").path(CHAT)),
        5
    );
    assert_eq!(log.count(&Selector::any().credential("sk-other")), 0);
    let kept = log.requests(&Selector::any());
    assert_eq!(
        kept.iter()
            .map(|request| request.number)
            .collect::<Vec<_>>(),
        [4, 5]
    );
    let last = log.last(&good).unwrap();
    assert_eq!(
        (last.number, last.header("content-type")),
        (5, Some("application/json"))
    );
    assert_eq!(last.body.len(), 64 * 1024);
    assert!(last.body_length > 100_000);
    assert!(log.wait_for(&good, 2, LIMIT).await);
    assert!(!log.wait_for(&good, 3, QUIET).await);
}

#[tokio::test]
async fn a_stopped_upstream_frees_its_port() {
    let upstream = start(Mode::Hang).await.unwrap();
    let addr = upstream.addr();
    let mut hanging = send(addr, CHAT, &chat(false)).await.unwrap();
    assert!(upstream.log().wait_for(&Selector::any(), 1, LIMIT).await);
    upstream.stop().await;
    assert!(TcpStream::connect(addr).await.is_err());
    assert_eq!(hanging.read(&mut [0; 8]).await.unwrap_or_default(), 0);
    let again = FakeUpstream::builder().bind(addr).start().await.unwrap();
    assert_eq!(
        ask(again.addr(), CHAT, &chat(false))
            .await
            .unwrap()
            .status(),
        200
    );
}

#[tokio::test]
async fn a_pause_lasts_until_its_gate_is_opened() -> Result<(), Error> {
    let gate = Gate::new();
    let upstream = start(Mode::Pause {
        events: 2,
        gate: gate.clone(),
    })
    .await?;
    let mut stream = send(upstream.addr(), CHAT, &chat(true)).await?;
    let mut seen = Vec::new();
    while String::from_utf8_lossy(&seen).matches("data: ").count() < 2 {
        let mut piece = [0; 4096];
        let length = timeout(LIMIT, stream.read(&mut piece)).await??;
        seen.extend_from_slice(&piece[..length]);
    }
    let more = timeout(QUIET, stream.read(&mut [0; 1])).await;
    assert!(more.is_err(), "nothing comes before the gate is open");
    gate.open();
    timeout(LIMIT, stream.read_to_end(&mut seen)).await??;
    let text = String::from_utf8_lossy(&seen);
    assert!(text.contains("data: [DONE]"), "{text}");
    Ok(())
}
