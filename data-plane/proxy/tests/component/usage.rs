//! Tokens: what the provider tells stands, the rest is estimated and says so.

use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::usage::{TokenUsage, UsageSource};
use tidegate_fake_upstream::{Mode, Reply, Selector};

use crate::bench::{Bench, chat};

const CHAT: &str = "/v1/chat/completions";
/// Text of a good answer of the upstream: 5 pieces of 5 bytes, the first of which begins with `ahoy `.
const ANSWER_TOKENS: u64 = 7;
/// `ahoy`, of which nothing is told.
const PROMPT_TOKENS: u64 = 1;

fn usage(input: u64, output: u64, source: UsageSource) -> TokenUsage {
    TokenUsage {
        input: Some(input),
        output: Some(output),
        source,
    }
}

/// The one record there is.
async fn recorded(bench: &Bench) -> TokenUsage {
    bench
        .until("a record", |bench| !bench.control.heard().usages.is_empty())
        .await;
    let heard = bench.control.heard();
    assert_eq!(heard.usages.len(), 1);
    heard.usages[0].tokens
}

async fn tokens(bench: &Bench, source: &str, direction: &str) -> String {
    let labels = format!("source=\"{source}\",direction=\"{direction}\"");
    let name = format!("tidegate_dp_tokens_total{{{labels}}}");
    format!("{:.0}", bench.metric(&name).await)
}

#[rstest]
#[case::chat(CHAT, chat("one/m", true))]
#[case::responses("/v1/responses", json!({"model": "one/m", "stream": true, "input": "ahoy"}))]
#[case::messages("/v1/messages", json!({"model": "ant/m", "stream": true, "max_tokens": 50,
    "messages": [{"role": "user", "content": "ahoy"}]}))]
#[tokio::test]
async fn a_stream_that_breaks_is_estimated_by_what_was_delivered(
    #[case] path: &str,
    #[case] body: Value,
) {
    let bench = Bench::start().await;
    for upstream in [&bench.one, &bench.ant] {
        upstream.set_reply(Reply {
            chunks: 40,
            chunk_bytes: 40,
            ..Reply::default()
        });
        upstream.set_default(Mode::CutAfter { bytes: 4_000 });
    }
    let reply = bench.client.post(path, &body).await;
    // As the reader of the stream counts it.
    let text = reply.text();
    let pieces = text.matches("tide tide").count();
    assert!(pieces > 2, "{text}");
    let found = recorded(&bench).await;
    assert_eq!(found.source, UsageSource::Estimated);
    let pieces = u64::try_from(pieces).unwrap();
    assert!(found.output.is_some_and(|output| output > 0), "{found:?}");
    assert!(
        found.output.is_some_and(|output| output <= pieces * 20),
        "{found:?}"
    );
    assert!(found.input.is_some_and(|input| input > 0), "{found:?}");
}

#[tokio::test]
async fn a_stream_without_usage_is_estimated() {
    let bench = Bench::start().await;
    bench.client.post(CHAT, &chat("one/m", true)).await;
    let expected = usage(PROMPT_TOKENS, ANSWER_TOKENS, UsageSource::Estimated);
    assert_eq!(recorded(&bench).await, expected);
    assert_eq!(tokens(&bench, "estimated", "output").await, "7");
    assert_eq!(tokens(&bench, "provider", "output").await, "0");
}

#[tokio::test]
async fn a_client_that_leaves_is_charged_for_what_it_got() {
    let bench = Bench::start().await;
    // The frame of the stream and two pieces of five bytes.
    bench.one.set_default(Mode::Stall { events: 3 });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let mut body = response.into_body();
    let mut text = String::new();
    while text.matches("data:").count() < 3 {
        let frame = body.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
    drop(body);
    let expected = usage(PROMPT_TOKENS, 3, UsageSource::Estimated);
    assert_eq!(recorded(&bench).await, expected);
}

#[tokio::test]
async fn what_the_provider_tells_is_not_estimated() {
    let bench = Bench::start().await;
    let mut body = chat("one/m", true);
    body["stream_options"] = json!({"include_usage": true});
    bench.client.post(CHAT, &body).await;
    let found = recorded(&bench).await;
    assert_eq!(found.source, UsageSource::Provider);
    let output = found.output.unwrap().to_string();
    assert_eq!(tokens(&bench, "provider", "output").await, output);
    let sent = bench.one.log().last(&Selector::any()).unwrap();
    let sent = sent.json().unwrap();
    assert_eq!(sent["stream_options"], body["stream_options"]);
}

#[rstest]
#[case::text(
    json!({"choices": [{"message": {"role": "assistant", "content": "eight by"}}]}),
    usage(PROMPT_TOKENS, 2, UsageSource::Estimated))]
#[case::no_text(
    json!({"choices": [{"message": {"role": "assistant", "content": null}}]}),
    usage(PROMPT_TOKENS, 0, UsageSource::Estimated))]
#[case::told_in_part(
    json!({"choices": [{"message": {"role": "assistant", "content": "eight by"}}],
        "usage": {"prompt_tokens": 9}}),
    usage(9, 2, UsageSource::Estimated))]
#[case::no_answer_that_is_understood(
    json!({"text": "eight by"}),
    TokenUsage { input: Some(PROMPT_TOKENS), output: None, source: UsageSource::Estimated })]
#[tokio::test]
async fn a_whole_answer_without_usage_is_estimated(
    #[case] answer: Value,
    #[case] expected: TokenUsage,
) {
    let bench = Bench::start().await;
    bench
        .one
        .set_default(Mode::status_with_body(200, answer.to_string()));
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(recorded(&bench).await, expected);
}

/// Embeddings have no output, so nothing of it is to be estimated.
#[tokio::test]
async fn embeddings_are_told_whole() {
    let bench = Bench::start().await;
    let body = json!({"model": "one/m", "input": "ahoy"});
    let reply = bench.client.post("/v1/embeddings", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let found = recorded(&bench).await;
    assert_eq!((found.source, found.output), (UsageSource::Provider, None));
}

#[tokio::test]
async fn an_attempt_without_an_answer_has_no_usage() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(503));
    bench.client.post(CHAT, &chat("one/m", true)).await;
    bench.proxy.drain(Duration::ZERO).await;
    let heard = bench.control.heard();
    assert!(heard.opened.is_empty() && heard.usages.is_empty());
}
