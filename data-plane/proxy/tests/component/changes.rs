//! Requests that are not sent quite as the client wrote them, and retries that are not made.

use serde_json::{Value, json};
use tidegate_core::outcome::Outcome;
use tidegate_fake_upstream::{Mode, Selector};

use crate::bench::{Bench, Options, chat};

const CHAT: &str = "/v1/chat/completions";

fn with_tools(model: &str, tools: usize) -> Value {
    let mut body = chat(model, false);
    body["tools"] = (0..tools)
        .map(|number| json!({"type": "function", "function": {"name": format!("t{number}")}}))
        .collect();
    body
}

#[tokio::test]
async fn tools_beyond_the_limit_are_cut_when_no_other_target_is_left() {
    let bench = Bench::start_with(Options {
        tool_limit: Some(3),
        ..Options::default()
    })
    .await;
    let reply = bench.client.post(CHAT, &with_tools("duo", 5)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(reply.header("x-omniroute-tools-truncated"), None);
    let seen = bench.two.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.json().unwrap()["tools"].as_array().unwrap().len(), 5);

    bench.two.set_default(Mode::status(503));
    let reply = bench.client.post(CHAT, &with_tools("duo", 5)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("one"));
    assert_eq!(reply.header("x-omniroute-tools-truncated"), Some("3"));
    let seen = bench.one.log().last(&Selector::any()).unwrap();
    let mut expected = with_tools("m", 5);
    expected["tools"].as_array_mut().unwrap().truncate(3);
    assert_eq!(seen.json().unwrap(), expected);
}

#[tokio::test]
async fn the_last_resort_answers_and_says_so() {
    let bench = Bench::start_with(Options {
        settings: json!({"emergencyFallback": {"provider": "two", "model": "n"}}),
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::status(402));
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(
        reply.header("x-omniroute-emergency-fallback"),
        Some("two/n")
    );
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("1"));
    let seen = bench
        .two
        .log()
        .last(&Selector::any())
        .unwrap()
        .json()
        .unwrap();
    assert_eq!(
        (&seen["model"], &seen["max_tokens"]),
        (&json!("n"), &json!(4_096))
    );

    let reply = bench.client.post(CHAT, &with_tools("one/m", 1)).await;
    assert_eq!(reply.header("x-omniroute-emergency-fallback"), None);
    assert_ne!(reply.status, 200);
}

#[tokio::test]
async fn a_spent_retry_budget_hands_on_the_last_failure() {
    let bench = Bench::start_with(Options {
        settings: json!({"retryBudget": {"ratio": 0.01, "minConcurrent": 1}}),
        ..Options::default()
    })
    .await;
    let body = json!({"error": {"message": "unsupported model"}}).to_string();
    bench.one.set_default(Mode::status_with_body(400, &body));
    bench.two.set_default(Mode::Stall { events: 2 });
    // Its retry is under way until its stream is dropped.
    let first = bench.client.open_post(CHAT, &chat("duo", true)).await;
    assert_eq!(first.status(), 200);
    let second = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!((second.status, second.text()), (400, body.as_str().into()));
    assert_eq!(bench.two.log().count(&Selector::any()), 1);

    drop(first);
    bench
        .until("the end of the first", |bench| {
            bench.control.heard().usages.len() == 1
        })
        .await;
    bench.two.set_default(Mode::Ok);
    let third = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(third.header("x-omniroute-provider"), Some("two"));
    assert_eq!(bench.control.outcomes().last(), Some(&Outcome::Success));
}
