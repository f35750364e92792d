//! Streams that fail after the client has begun to read them.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_fake_upstream::{Mode, Reply, Selector};
use tidegate_plane_client::Deadlines;

use crate::bench::{Bench, Options, chat};
use crate::scripted::{Frozen, Scripted, ping, role, settles, text, until};

fn events(text: &str) -> Vec<Value> {
    text.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("JSON in {data}")))
        .collect()
}

fn body(model: &str) -> Value {
    json!({"model": model, "stream": true, "input": "ahoy", "max_tokens": 5,
        "messages": [{"role": "user", "content": "ahoy"}]})
}

#[rstest]
#[case("/v1/chat/completions", "duo", "/error/code")]
#[case("/v1/messages", "ant/m", "/error/code")]
#[case("/v1/responses", "duo", "/code")]
#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_in_its_own_format(
    #[case] path: &str,
    #[case] model: &str,
    #[case] code: &str,
) {
    let bench = Bench::start().await;
    for upstream in [&bench.one, &bench.ant] {
        upstream.set_default(Mode::CutAfter { bytes: 700 });
    }
    let reply = bench.client.post(path, &body(model)).await;
    assert_eq!(reply.status, 200);
    let events = events(&reply.text());
    let (last, before) = events.split_last().unwrap();
    assert_eq!(
        last.pointer(code),
        Some(&json!("stream_terminated")),
        "{last}"
    );
    assert!(!before.is_empty());
    let text = reply.text();
    assert!(!text.contains("[DONE]") && !text.contains("message_stop"));
    assert!(!text.contains("response.completed"));
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success, Outcome::Stream(StreamFault::Truncated)]
    );
    assert_eq!(bench.two.log().count(&Selector::any()), 0, "committed");
}

#[tokio::test]
async fn an_error_event_in_the_middle_is_handed_on_and_reported() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::SseErrorAfter {
        events: 3,
        error: Some(json!({"message": "no more"})),
    });
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    let events = events(&reply.text());
    assert_eq!(events.len(), 4);
    assert_eq!(events[3]["error"]["message"], "no more");
    bench
        .until("two reports", |bench| bench.control.outcomes().len() == 2)
        .await;
    let outcomes = bench.control.outcomes();
    let Outcome::Response(error) = &outcomes[1] else {
        panic!("{outcomes:?}");
    };
    assert!(error.embedded && error.body.contains("no more"));
}

#[rstest]
#[case::silence(Mode::Stall { events: 3 }, Some(1_500), None, "stream_idle_timeout", StreamFault::IdleTimeout)]
#[case::no_end(Mode::SlowDrip { gap: Duration::from_millis(100) }, None, Some(2_000), "attempt_deadline_exceeded", StreamFault::DeadlineExceeded)]
#[tokio::test]
async fn a_stream_that_takes_too_long_is_ended(
    #[case] mode: Mode,
    #[case] idle: Option<u64>,
    #[case] attempt: Option<u64>,
    #[case] code: &str,
    #[case] fault: StreamFault,
) {
    let bench = Bench::start_with(Options {
        deadlines: Deadlines {
            idle: idle.map(Duration::from_millis),
            attempt: attempt.map(Duration::from_millis),
            ..Deadlines::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_reply(Reply {
        chunks: 1_000,
        ..Reply::default()
    });
    bench.one.set_default(mode);
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    let events = events(&reply.text());
    assert_eq!(events.last().unwrap()["error"]["code"], code);
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success, Outcome::Stream(fault)]
    );
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), crate::bench::LIMIT)
        .await;
    assert_eq!(ending, Some(tidegate_fake_upstream::Ending::Aborted));
}

#[tokio::test]
async fn the_head_of_a_stream_waits_for_its_first_event() {
    let bench = Bench::start_with(Options {
        deadlines: Deadlines {
            readiness: Some(Duration::from_millis(300)),
            ..Deadlines::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::Stall { events: 0 });
    bench.two.set_default(Mode::status(503));
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    assert!(reply.status >= 500, "a dead 200 is no 200");
    assert!(reply.json()["error"]["message"].is_string());
}

/// What nobody here understands is handed on as it is, and its end is a good one.
#[rstest]
#[case::no_json(
    "text/event-stream",
    "data: ahoy\n\n: note\r\n\r\nid: 7\ndata: there\n\n"
)]
#[case::other_json(
    "text/event-stream; charset=utf-8",
    "data: {\"token\":\"ahoy\"}\n\ndata: {\"token\":\""
)]
#[case::other_lines("application/x-ndjson", "{\"token\":\"ahoy\"}\n{\"done\":true}\n")]
#[case::text("text/plain", "ahoy")]
#[tokio::test]
async fn a_stream_of_an_unknown_format_passes_untouched(#[case] kind: &str, #[case] body: &str) {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Status {
        code: 200,
        body: Some(body.to_owned()),
        headers: vec![("content-type".to_owned(), kind.to_owned())],
    });
    for (path, model) in [("/v1/chat/completions", "duo"), ("/v1/responses", "duo")] {
        let reply = bench.client.post(path, &self::body(model)).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.text(), body, "{path}");
    }
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success, Outcome::Success]
    );
}

fn limits(deadlines: Deadlines) -> Options {
    Options {
        deadlines,
        ..Options::default()
    }
}

#[tokio::test]
async fn vector_sessions_53_heartbeats_are_no_progress() {
    let (one, bench) = Scripted::bench(limits(Deadlines {
        idle: Some(Duration::from_secs(5)),
        ..Deadlines::default()
    }))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role()]).await;
        settles().await;
        for _ in 0..4 {
            time.passes(1_000).await;
            call.sends(&ping()).await;
            settles().await;
        }
        time.runs_out(1_000).await;
        call.until_let_go().await;
    };
    let body = chat("one/m", true);
    let (reply, ()) = tokio::join!(bench.client.post("/v1/chat/completions", &body), upstream);
    assert!(reply.text().contains("stream_idle_timeout"));
    let idle = Outcome::Stream(StreamFault::IdleTimeout);
    assert_eq!(bench.control.outcomes(), [Outcome::Success, idle]);
}

/// The client's connection waits already, and the watch beside it has not looked yet when the limit passes.
#[tokio::test]
async fn a_limit_that_passes_before_anybody_looks_is_found_at_once() {
    let (one, bench) = Scripted::bench(limits(Deadlines {
        idle: Some(Duration::from_secs(5)),
        ..Deadlines::default()
    }))
    .await;
    let _time = Frozen::time();
    let control = Arc::clone(&bench.control);
    // Its turn comes between theirs.
    let passes = bench.tasks.spawn(async move {
        control.reported.notified().await;
        tokio::time::advance(Duration::from_millis(5_001)).await;
    });
    settles().await;
    let upstream = async {
        let call = one.call().await.streams(&[role()]).await;
        passes.await.unwrap();
        until("its end", || bench.control.outcomes().len() == 2).await;
        call.until_let_go().await;
    };
    let body = chat("one/m", true);
    let (reply, ()) = tokio::join!(bench.client.post("/v1/chat/completions", &body), upstream);
    assert!(reply.text().contains("stream_idle_timeout"));
}

#[tokio::test]
async fn vector_sessions_54_the_deadline_ends_what_is_healthy() {
    let (one, bench) = Scripted::bench(limits(Deadlines {
        attempt: Some(Duration::from_secs(1)),
        ..Deadlines::default()
    }))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[role()]).await;
        settles().await;
        for passes in [500, 499] {
            time.passes(passes).await;
            call.sends(&text("healthy")).await;
            settles().await;
        }
        assert_eq!(bench.control.outcomes(), [Outcome::Success]);
        time.runs_out(1).await;
        call.until_let_go().await;
    };
    let body = chat("one/m", true);
    let (reply, ()) = tokio::join!(bench.client.post("/v1/chat/completions", &body), upstream);
    assert!(reply.text().contains("attempt_deadline_exceeded"));
    let late = Outcome::Stream(StreamFault::DeadlineExceeded);
    assert_eq!(bench.control.outcomes(), [Outcome::Success, late]);
}

#[rstest]
#[case::an_end(true, 502, StreamFault::EarlyEof)]
#[case::too_late(false, 504, StreamFault::ReadinessTimeout)]
#[tokio::test]
async fn vector_sessions_55_heartbeats_alone_are_no_answer(
    #[case] ends: bool,
    #[case] status: u16,
    #[case] fault: StreamFault,
) {
    let (one, bench) = Scripted::bench(limits(Deadlines {
        readiness: Some(Duration::from_secs(5)),
        ..Deadlines::default()
    }))
    .await;
    let time = Frozen::time();
    let upstream = async {
        let mut call = one.call().await.streams(&[ping()]).await;
        settles().await;
        time.passes(4_999).await;
        call.sends(&ping()).await;
        settles().await;
        if ends {
            call.ends().await;
        } else {
            assert_eq!(bench.control.outcomes(), []);
            time.runs_out(1).await;
            call.until_let_go().await;
        }
    };
    let body = chat("one/m", true);
    let (reply, ()) = tokio::join!(bench.client.post("/v1/chat/completions", &body), upstream);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (status, fault.code())
    );
    assert_eq!(bench.control.outcomes(), [Outcome::Stream(fault)]);
}

#[tokio::test]
async fn vector_sessions_55_a_role_is_an_answer() {
    let (one, bench) = Scripted::bench(limits(Deadlines::default())).await;
    let _time = Frozen::time();
    let body = chat("one/m", true);
    let (response, call) = tokio::join!(
        bench.client.open_post("/v1/chat/completions", &body),
        async { one.call().await.streams(&[role()]).await }
    );
    assert_eq!(response.status(), 200);
    call.breaks();
}
