//! Streams that are promised before there is an answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Ending, Gate, Mode, Selector};

use crate::bench::{Bench, LIMIT, Options, chat, pass};
use crate::client::{Reply, read};

const CHAT: &str = "/v1/chat/completions";

fn patient_for(ms: u64) -> Options {
    Options {
        plans: true,
        settings: json!({"streams": {"earlyKeepaliveMs": ms}}),
        ..Options::default()
    }
}

fn held(then: Mode) -> (Gate, Mode) {
    let gate = Gate::new();
    let mode = Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(then),
    };
    (gate, mode)
}

fn body(model: &str) -> Value {
    json!({"model": model, "stream": true, "input": "ahoy", "max_tokens": 5,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "ahoy"}]})
}

/// Sends a request, opens the gate once there is a promise, and reads on.
async fn promised(bench: &Bench, path: &str, body: &Value, gate: &Gate) -> Reply {
    let response = bench.client.open_post(path, body).await;
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    assert_eq!(headers["content-type"], "text/event-stream");
    assert!(headers.contains_key("x-omniroute-request-id"));
    assert_eq!(headers["access-control-allow-origin"], "*");
    assert!(!headers.contains_key("x-omniroute-provider"));
    gate.open();
    read(response).await
}

fn events(text: &str) -> Vec<Value> {
    text.split("\n\n")
        .filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")))
        .map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
        .collect()
}

async fn ended(bench: &Bench, end: &str) -> f64 {
    let name = format!("tidegate_dp_early_keepalives_total{{end=\"{end}\"}}");
    bench.metric(&name).await
}

#[tokio::test]
async fn an_answer_in_time_is_as_it_always_was() {
    let bench = Bench::start_with(patient_for(30_000)).await;
    bench.two.set_default(Mode::rate_limited("7"));
    let reply = bench.client.post(CHAT, &chat("two/m", true)).await;
    assert_eq!(reply.status, 429);
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("one"));
    for end in ["stream", "whole", "error", "left"] {
        assert!(ended(&bench, end).await < 0.5, "{end}");
    }
}

#[tokio::test]
async fn who_asked_for_no_stream_is_promised_none() {
    let bench = Bench::start_with(patient_for(20)).await;
    bench.one.set_default(Mode::Latency {
        before: Duration::from_millis(200),
    });
    bench.two.set_default(Mode::status(503));
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("x-omniroute-provider"), Some("one"));
}

#[rstest]
#[case::chat(CHAT, "duo", "chat.completion.chunk", "[DONE]")]
#[case::responses("/v1/responses", "duo", ": keepalive", "response.completed")]
#[case::messages("/v1/messages", "ant/m", "event: ping", "message_stop")]
#[tokio::test]
async fn fail_over_goes_on_behind_a_promise(
    #[case] path: &str,
    #[case] model: &str,
    #[case] first: &str,
    #[case] last: &str,
) {
    let bench = Bench::start_with(patient_for(50)).await;
    let (gate, slow) = held(Mode::status(503));
    bench.one.set_default(slow);
    let (ant_gate, slow) = held(Mode::Ok);
    bench.ant.set_default(slow);
    let gate = if model == "ant/m" { ant_gate } else { gate };
    let reply = promised(&bench, path, &body(model), &gate).await;
    let text = reply.text();
    let (begin, _) = text.split_once("\n\n").unwrap();
    assert!(begin.contains(first), "{text}");
    assert!(
        text.trim_end().lines().last().unwrap().contains(last),
        "{text}"
    );
    assert!(ended(&bench, "stream").await > 0.5);
    bench
        .until("usage", |bench| bench.control.heard().usages.len() == 1)
        .await;
    assert_eq!(bench.control.outcomes().last(), Some(&Outcome::Success));
}

#[rstest]
#[case::chat(CHAT, "two/m", "/error")]
#[case::responses("/v1/responses", "two/m", "")]
#[case::messages("/v1/messages", "ant/m", "/error")]
#[tokio::test]
async fn a_failure_is_told_inside_the_stream(
    #[case] path: &str,
    #[case] model: &str,
    #[case] error: &str,
) {
    let bench = Bench::start_with(patient_for(50)).await;
    let (gate, slow) = held(Mode::rate_limited("7"));
    bench.two.set_default(slow.clone());
    bench.ant.set_default(slow);
    let reply = promised(&bench, path, &body(model), &gate).await;
    let events = events(&reply.text());
    let last = events.last().unwrap().pointer(error).unwrap();
    assert_eq!(last["status_code"], 429, "{last}");
    assert!(last["code"].is_string(), "{last}");
    assert!(last["message"].is_string(), "{last}");
    assert!(last["retry_after_seconds"].as_u64().is_some(), "{last}");
    let text = reply.text();
    for end in ["[DONE]", "message_stop", "response.completed"] {
        assert!(!text.contains(end), "{text}");
    }
    assert!(ended(&bench, "error").await > 0.5);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_error\"}";
    if path == CHAT {
        assert!((bench.metric(end).await - 1.0).abs() < 0.5);
    }
}

/// The client's own fault, in the upstream's words.
#[tokio::test]
async fn words_that_are_handed_on_are_told_inside_the_stream() {
    let bench = Bench::start_with(patient_for(50)).await;
    let words = "{\"error\": {\"message\": \"seed must be\\na number\", \"type\": \"invalid_request_error\", \"code\": null}}";
    let (gate, slow) = held(Mode::status_with_body(400, words));
    bench.one.set_default(slow);
    let reply = promised(&bench, CHAT, &body("one/m"), &gate).await;
    let events = events(&reply.text());
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["message"], "seed must be\na number");
    assert_eq!(error["status_code"], 400);
}

#[rstest]
#[case::chat(CHAT, "one/m", "[DONE]")]
#[case::legacy("/v1/completions", "one/m", "[DONE]")]
#[case::responses("/v1/responses", "one/m", "response.completed")]
#[case::messages("/v1/messages", "ant/m", "message_stop")]
#[tokio::test]
async fn a_whole_answer_comes_as_a_stream(
    #[case] path: &str,
    #[case] model: &str,
    #[case] last: &str,
) {
    let bench = Bench::start_with(patient_for(50)).await;
    // What the provider says to who asks for no stream.
    let mut plain = body(model);
    plain["stream"] = json!(false);
    plain["prompt"] = json!("ahoy");
    let whole = bench.client.post(path, &plain).await.text();
    let (gate, slow) = held(Mode::status_with_body(200, whole));
    bench.one.set_default(slow.clone());
    bench.ant.set_default(slow);
    plain["stream"] = json!(true);
    let reply = promised(&bench, path, &plain, &gate).await;
    let text = reply.text();
    assert!(
        text.trim_end().lines().last().unwrap().contains(last),
        "{text}"
    );
    assert!(ended(&bench, "whole").await > 0.5);
}

#[tokio::test]
async fn a_whole_answer_that_nobody_knows_is_one_event() {
    let bench = Bench::start_with(patient_for(50)).await;
    let (gate, slow) = held(Mode::status_with_body(200, "{\n \"strange\": true\n}"));
    bench.one.set_default(slow);
    let reply = promised(&bench, CHAT, &body("one/m"), &gate).await;
    let text = reply.text();
    assert!(
        text.ends_with("data: {\ndata:  \"strange\": true\ndata: }\n\n"),
        "{text}"
    );
}

#[tokio::test]
async fn the_answer_of_a_panel_comes_as_a_stream() {
    let bench = Bench::start_with(patient_for(50)).await;
    let (gate, slow) = held(Mode::status(503));
    bench.two.set_default(slow.clone());
    bench.one.set(Selector::any().model("n"), slow);
    // So one answer is left, which is not streamed by its provider.
    let reply = promised(&bench, CHAT, &body("panel"), &gate).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"), "{reply:?}");
    assert!(ended(&bench, "whole").await + ended(&bench, "stream").await > 0.5);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let bench = Bench::start_with(patient_for(50)).await;
    bench.one.set_default(Mode::Hang);
    let response = bench.client.open_post(CHAT, &body("duo")).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    drop(body);
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::ClientAbort]);
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
    assert!(ended(&bench, "left").await > 0.5);
    assert!(bench.metric("tidegate_dp_requests_in_flight").await < 0.5);
}

#[tokio::test]
async fn the_end_of_a_drain_is_told_inside_the_stream() {
    let bench = Bench::start_with(patient_for(50)).await;
    bench.one.set_default(Mode::Hang);
    let response = bench.client.open_post(CHAT, &body("duo")).await;
    let (reply, ()) = tokio::join!(read(response), bench.proxy.drain(Duration::from_millis(50)));
    let events = events(&reply.text());
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "shutting_down");
    assert_eq!(error["status_code"], 503);
    assert_eq!(error["retry_after_seconds"], 1);
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    let expired = Outcome::Local(LocalFault::ExecutionExpired);
    assert_eq!(bench.control.outcomes(), [expired]);
}

#[tokio::test]
async fn a_panic_behind_a_promise_is_told_inside_the_stream() {
    let bench = Bench::start_with(patient_for(50)).await;
    let (gate, slow) = held(Mode::status(503));
    bench.one.set_default(slow);
    let response = bench.client.open_post(CHAT, &body("duo")).await;
    bench.control.panics.store(true, Ordering::Relaxed);
    gate.open();
    let events = events(&read(response).await.text());
    assert_eq!(events.last().unwrap()["error"]["code"], "internal_error");
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    assert!(bench.metric("tidegate_dp_requests_in_flight").await < 0.5);
}

/// Nobody asks the body for bytes, and still the request comes to its end and gives back what it holds.
#[tokio::test]
async fn a_client_that_opens_no_window_holds_nothing_up() {
    let mut options = patient_for(50);
    options.limits.stall_time = Duration::from_millis(300);
    let bench = Bench::start_with(options).await;
    let (gate, slow) = held(Mode::Ok);
    bench.one.set_default(slow);
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let client = bench.client.with_small_window();
    let response = client.open_post(CHAT, &body("one/m")).await;
    gate.open();
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    drop(response);
}

/// An answer in one piece, much longer than any window, as the provider makes it for who asks for no stream.
async fn long_answer(bench: &Bench) -> (Gate, Mode) {
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 40,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let whole = bench.client.post(CHAT, &chat("one/m", false)).await.text();
    assert!(whole.len() > 40 * 8_192);
    held(Mode::status_with_body(200, whole))
}

/// Else it would be kept for as long as the client likes.
#[tokio::test]
async fn a_whole_answer_that_nobody_asks_for_is_not_kept() {
    let mut options = patient_for(50);
    options.limits.stall_time = Duration::from_millis(100);
    let bench = Bench::start_with(options).await;
    let (gate, slow) = long_answer(&bench).await;
    bench.one.set_default(slow);
    let client = bench.client.with_window(0);
    let response = client.open_post(CHAT, &body("one/m")).await;
    gate.open();
    is_whole(&bench).await;
    drop(response);
}

/// A whole answer has come to what an early stream was promised for.
async fn is_whole(bench: &Bench) {
    let end = "tidegate_dp_early_keepalives_total{end=\"whole\"}";
    for _ in 0..1_000 {
        if bench.metric(end).await > 0.5 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("nobody asked for the answer, and nobody made one of it");
}

/// It is no good end of a stream.
#[tokio::test]
async fn an_answer_that_is_let_go_ends_with_an_error() {
    let mut options = patient_for(50);
    options.limits.stall_time = Duration::from_millis(100);
    let bench = Bench::start_with(options).await;
    let (gate, slow) = long_answer(&bench).await;
    bench.one.set_default(slow);
    let client = bench.client.with_small_window();
    let response = client.open_post(CHAT, &body("one/m")).await;
    gate.open();
    is_whole(&bench).await;
    // Longer than twice the stall time: the watch looks as often.
    pass(Duration::from_millis(600)).await;
    let text = read(response).await.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("client_stalled"), "{last}");
    assert!(!text.contains("[DONE]"));
}
