//! Signs of life in streams.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_fake_upstream::{Mode, Reply};
use tidegate_plane_client::Deadlines;
use tidegate_proxy::{Heartbeats, Limits};

use crate::bench::{Bench, LIMIT, Options, chat};
use crate::raw_upstream::{RawUpstream, STREAM_HEAD};

const CHAT: &str = "/v1/chat/completions";

fn beating(every: Option<Duration>) -> Options {
    Options {
        limits: Limits {
            heartbeats: Heartbeats {
                every,
                comments: true,
            },
            ..Limits::default()
        },
        ..Options::default()
    }
}

fn often() -> Options {
    beating(Some(Duration::from_millis(20)))
}

/// Data of all events; those that are not JSON as texts.
fn events(text: &str) -> Vec<Value> {
    assert!(text.ends_with("\n\n"), "{text}");
    text.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
        .collect()
}

fn is_heartbeat(event: &Value) -> bool {
    let choice = &event["choices"][0];
    event["type"] == "ping"
        || (event["type"] == "response.in_progress" && event["response"].get("usage").is_none())
        || (choice["delta"] == json!({}) && choice["finish_reason"].is_null())
}

#[rstest]
#[case::chat(CHAT, "one/m")]
#[case::responses("/v1/responses", "one/m")]
#[case::messages("/v1/messages", "ant/m")]
#[tokio::test]
async fn they_stand_between_events_and_change_nothing_else(
    #[case] path: &str,
    #[case] model: &str,
) {
    let bench = Bench::start_with(often()).await;
    let still = Bench::start_with(beating(None)).await;
    let body = json!({"model": model, "stream": true, "input": "ahoy", "max_tokens": 5,
        "messages": [{"role": "user", "content": "ahoy"}]});
    let gap = Duration::from_millis(60);
    for bench in [&bench, &still] {
        bench.one.set_default(Mode::SlowDrip { gap });
        bench.ant.set_default(Mode::SlowDrip { gap });
    }
    let (reply, expected) = tokio::join!(
        bench.client.post(path, &body),
        still.client.post(path, &body)
    );
    let (events, expected) = (events(&reply.text()), events(&expected.text()));
    let beats = events.iter().filter(|event| is_heartbeat(event)).count();
    let own = expected.iter().filter(|event| is_heartbeat(event)).count();
    assert!(beats > own, "{events:?}");
    let kinds = |events: &[Value]| -> Vec<Value> {
        let upstreams = events.iter().filter(|event| !is_heartbeat(event));
        upstreams
            .map(|event| json!([event["type"], event["choices"], event["delta"]]))
            .collect()
    };
    assert_eq!(kinds(&events), kinds(&expected));
    assert!(!is_heartbeat(events.last().unwrap()));
    if path == "/v1/responses" {
        let numbers: Vec<u64> = events
            .iter()
            .map(|event| event["sequence_number"].as_u64().unwrap())
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        let ids: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["response"].get("id"))
            .collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    }
    let counted = bench.metric("tidegate_dp_heartbeats_total").await;
    assert!(counted > 0.5);
    assert!(still.metric("tidegate_dp_heartbeats_total").await < 0.5);
}

/// Heartbeats of ours are no progress of the upstream's, and nothing follows the end.
#[tokio::test]
async fn they_keep_no_dead_stream_alive() {
    let options = Options {
        deadlines: Deadlines {
            idle: Some(Duration::from_millis(400)),
            ..Deadlines::default()
        },
        ..often()
    };
    let bench = Bench::start_with(options).await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    let events = events(&reply.text());
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["error"]["code"], "stream_idle_timeout");
    assert!(before.iter().any(is_heartbeat), "{before:?}");
}

#[tokio::test]
async fn none_follows_the_last_event_while_the_upstream_does_not_hang_up() {
    let bench = Bench::start_with(often()).await;
    bench.one.set_default(Mode::Stall { events: 1_000 });
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{reply:?}");
}

#[tokio::test]
async fn a_stream_at_full_speed_has_none() {
    let bench = Bench::start().await;
    bench.one.set_reply(Reply {
        chunks: 50,
        ..Reply::default()
    });
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    assert!(!events(&reply.text()).iter().any(is_heartbeat));
}

/// An event too long to be held goes on in pieces, and nothing may come between them.
#[tokio::test]
async fn none_breaks_a_long_event() {
    let upstream = RawUpstream::start().await;
    let bench = Bench::start_with(Options {
        one_at: Some(upstream.base_url()),
        ..often()
    })
    .await;
    let long = "x".repeat(600_000);
    let answering = async {
        let mut asked = upstream.asked().await;
        let ready = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let begin =
            format!("{STREAM_HEAD}{ready}data: {{\"choices\":[{{\"delta\":{{\"content\":\"{long}");
        assert!(asked.write(begin.as_bytes()).await);
        asked
    };
    let body = chat("one/m", true);
    let (response, mut asked) = tokio::join!(bench.client.open_post(CHAT, &body), answering);
    let mut body = response.into_body();
    let mut read = Vec::new();
    let reading = async {
        while let Some(frame) = body.frame().await {
            read.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    };
    let ending = async {
        // Time for ten of them, if there were any.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(asked.write(b"\"}}]}\n\ndata: [DONE]\n\n").await);
        drop(asked);
    };
    let all = async { tokio::join!(reading, ending) };
    tokio::time::timeout(LIMIT, all).await.unwrap();
    let text = String::from_utf8(read).unwrap();
    assert!(text.contains(&long), "the event is whole");
    assert_eq!(events(&text).last(), Some(&json!("[DONE]")));
}

#[tokio::test]
async fn legacy_completions_have_comments() {
    let bench = Bench::start_with(often()).await;
    let gap = Duration::from_millis(60);
    bench.one.set_default(Mode::SlowDrip { gap });
    let body = json!({"model": "one/m", "prompt": "ahoy", "stream": true});
    let reply = bench.client.post("/v1/completions", &body).await;
    assert!(reply.text().contains(": keepalive\n\n"), "{reply:?}");
    let text = Bytes::from(reply.text().replace(": keepalive\n\n", ""));
    assert!(text.starts_with(b"data: ") && text.ends_with(b"data: [DONE]\n\n"));
}
