//! Combos that ask several models for one answer: `fusion` and `pipeline`.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Ending, FakeUpstream, Mode, Reply, Selector};
use tidegate_proxy::Limits;

use crate::bench::{Bench, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn any() -> Selector {
    Selector::any()
}

fn model(model: &str) -> Selector {
    Selector::any().model(model)
}

/// All bodies that the upstream was sent for a model, in order.
fn bodies(upstream: &FakeUpstream, of: &str) -> Vec<Value> {
    let requests = upstream.log().requests(&model(of));
    requests
        .iter()
        .map(|request| request.json().unwrap())
        .collect()
}

/// Two providers that can be told apart by what they say.
async fn start() -> Bench {
    start_within(Limits::default()).await
}

async fn start_within(limits: Limits) -> Bench {
    let bench = Bench::start_with(Options {
        plans: true,
        limits,
        ..Options::default()
    })
    .await;
    for (upstream, opening) in [(&bench.one, "one says "), (&bench.two, "two says ")] {
        upstream.set_reply(Reply {
            opening: opening.to_owned(),
            chunks: 1,
            chunk_bytes: 1,
            ..Reply::default()
        });
    }
    bench
}

fn said(reply: &crate::client::Reply) -> String {
    let body = reply.json();
    let text = &body["choices"][0]["message"]["content"];
    text.as_str().unwrap().to_owned()
}

fn last_turn(body: &Value) -> &str {
    let turns = body["messages"].as_array().unwrap();
    turns.last().unwrap()["content"].as_str().unwrap()
}

#[rstest]
#[case::whole(false)]
#[case::stream(true)]
#[tokio::test]
async fn a_fusion_asks_all_and_lets_one_judge(#[case] stream: bool) {
    let bench = start().await;
    let mut body = chat("panel", stream);
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    body["tool_choice"] = json!("none");
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    if stream {
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
    } else {
        assert_eq!(said(&reply), "one says ");
    }
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("3"));
    let decision = reply.header("x-omniroute-decision").unwrap();
    assert!(decision.starts_with("strategy=fusion; provider=one; "));

    for (upstream, of) in [(&bench.one, "m"), (&bench.two, "m"), (&bench.one, "n")] {
        let asked = bodies(upstream, of);
        assert_eq!(asked.len(), 1);
        let expected = json!({"model": of, "messages": [{"role": "user", "content": "ahoy"}]});
        assert_eq!(asked[0], expected, "neither stream nor tools");
    }
    let judged = bodies(&bench.one, "j");
    assert_eq!(judged.len(), 1);
    assert_eq!(judged[0]["stream"], stream);
    assert_eq!(judged[0]["tools"], body["tools"]);
    assert_eq!(judged[0]["tool_choice"], "none");
    assert_eq!(
        judged[0]["messages"][0],
        json!({"role": "user", "content": "ahoy"})
    );
    assert!(
        last_turn(&judged[0])
            .ends_with("Source 1:\none says \n\nSource 2:\ntwo says \n\nSource 3:\none says "),
        "{judged:?}"
    );
    assert_eq!(bench.control.outcomes(), vec![Outcome::Success; 4]);
    bench
        .until("usage of every part", |bench| {
            bench.control.heard().usages.len() == 4
        })
        .await;
}

#[tokio::test]
async fn a_fusion_with_tools_is_one_call_with_the_clients_body() {
    let bench = start().await;
    let mut body = chat("panel", false);
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(said(&reply), "one says ");
    body["model"] = json!("j");
    assert_eq!(bodies(&bench.one, "j"), [body]);
    assert_eq!(bench.one.log().count(&any()), 1);
    assert_eq!(bench.two.log().count(&any()), 0);
}

#[tokio::test]
async fn the_dialects_have_panels_too() {
    let bench = start().await;
    let body = json!({"model": "panel", "input": "ahoy", "instructions": "s"});
    let reply = bench.client.post(RESPONSES, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let judged = &bodies(&bench.one, "j")[0];
    assert_eq!(judged["instructions"], "s");
    assert_eq!(
        judged["input"][0],
        json!({"role": "user", "content": "ahoy"})
    );
    let told = judged["input"][1]["content"].as_str().unwrap();
    assert!(told.contains("Source 3:\none says "), "{told}");

    let body = json!({"model": "ant-panel", "max_tokens": 9, "system": "s", "stream": true,
        "messages": [{"role": "user", "content": "ahoy"}]});
    let reply = bench.client.post(MESSAGES, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.text().contains("event: message_stop"));
    let asked = bodies(&bench.ant, "m");
    assert_eq!(asked[0]["system"], "s");
    assert_eq!(asked[0].get("stream"), None);
    let judged = bodies(&bench.ant, "n");
    assert_eq!(judged.len(), 2, "as a member, and as the judge");
    assert!(
        last_turn(&judged[1]).contains("Source 2:\nahoy"),
        "{judged:?}"
    );
}

#[rstest]
#[case::whole(false)]
#[case::stream(true)]
#[tokio::test]
async fn a_single_answer_is_the_answer(#[case] stream: bool) {
    let bench = start().await;
    bench.one.set_default(Mode::status(500));
    let mut body = chat("panel", stream);
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    let kind = reply.header("content-type").unwrap();
    if stream {
        assert_eq!(kind, "text/event-stream");
        let text = reply.text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert!(text.contains("two says "), "{text}");
        assert!(text.contains("\"prompt_tokens\""), "{text}");
    } else {
        assert_eq!(kind, "application/json");
        assert_eq!(said(&reply), "two says ");
    }
    assert_eq!(bench.one.log().count(&model("j")), 0);
    assert_eq!(bench.two.log().count(&any()), 1);
}

#[tokio::test]
async fn a_single_message_is_streamed_as_one() {
    let bench = start().await;
    bench.ant.set(model("m"), Mode::status(500));
    let body = json!({"model": "ant-panel", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "ahoy"}]});
    let text = bench.client.post(MESSAGES, &body).await.text();
    assert!(text.contains("event: message_start"), "{text}");
    assert!(
        text.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
        "{text}"
    );
    assert_eq!(bench.ant.log().count(&any()), 2);
}

#[tokio::test]
async fn nobody_answers() {
    let bench = start().await;
    bench.one.set(model("m"), Mode::rate_limited("30"));
    bench.one.set(
        model("n"),
        Mode::status_with_body(200, r#"{"choices": []}"#),
    );
    bench.two.set_default(Mode::Reset);
    let reply = bench.client.post(CHAT, &chat("panel", true)).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "panel_failed"));
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        message,
        "no member of the panel answered: one/m status_429; two/m threw; one/n empty_content"
    );
    assert_eq!(reply.header("retry-after"), Some("30"));
    assert_eq!(counts(&reply), (3, 3, 3));
    // Two accounts cool now; the third fails as before.
    let reply = bench.client.post(CHAT, &chat("panel", true)).await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "panel_failed"));
    let body = reply.json();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("one/m connection_cooldown; two/m threw"),
        "{message}"
    );
    assert_eq!(counts(&reply), (3, 1, 1));
}

/// Pool size, attempts, and attempts in order, as the client is told.
fn counts(reply: &crate::client::Reply) -> (u64, u64, usize) {
    let diagnostics = &reply.json()["diagnostics"];
    let number = |name: &str| diagnostics[name].as_u64().unwrap();
    let order = diagnostics["attemptOrder"].as_array().unwrap();
    (number("poolSize"), number("attempted"), order.len())
}

#[tokio::test]
async fn a_panel_that_speaks_another_protocol_is_no_target() {
    let bench = start().await;
    let body = json!({"model": "panel", "max_tokens": 9,
        "messages": [{"role": "user", "content": "ahoy"}]});
    let reply = bench.client.post(MESSAGES, &body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "no_executable_targets")
    );
    let body = reply.json();
    assert_eq!(
        body["error"]["message"],
        "no member of the panel answered: one/m protocol_mismatch; two/m protocol_mismatch; \
         one/n protocol_mismatch"
    );
    assert_eq!(counts(&reply), (3, 0, 0));
}

#[tokio::test]
async fn a_request_that_all_refuse_is_the_clients_fault() {
    let bench = start().await;
    for upstream in [&bench.one, &bench.two] {
        let body = r#"{"error":{"message":"top_k is odd","type":"invalid_request_error"}}"#;
        upstream.set_default(Mode::status_with_body(400, body));
    }
    let reply = bench.client.post(CHAT, &chat("panel", false)).await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert_eq!(reply.json()["error"]["message"], "top_k is odd");
}

#[tokio::test]
async fn a_part_that_is_too_long_is_not_kept_and_the_last_one_may_be_longer() {
    let bench = start_within(Limits {
        max_part_bytes: 4_000,
        ..Limits::default()
    })
    .await;
    let long =
        json!({"choices": [{"message": {"role": "assistant", "content": "x".repeat(4_000)}}]});
    for (upstream, of) in [(&bench.two, "m"), (&bench.one, "j")] {
        let long = Mode::status_with_body(200, long.to_string());
        upstream.set(model(of), long);
    }
    let reply = bench.client.post(CHAT, &chat("panel", false)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(said(&reply).len(), 4_000);
    let judged = bodies(&bench.one, "j");
    assert!(last_turn(&judged[0]).ends_with("Source 1:\none says \n\nSource 2:\none says "));
}

#[tokio::test]
async fn stragglers_are_dropped_and_not_blamed() {
    let bench = start().await;
    bench.one.set(model("n"), Mode::Hang);
    let reply = bench.client.post(CHAT, &chat("panel", false)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let judged = bodies(&bench.one, "j");
    assert!(last_turn(&judged[0]).contains("Source 2:\ntwo says "));
    assert!(!last_turn(&judged[0]).contains("Source 3"));
    let ending = bench.one.log().wait_for_ending(&model("n"), LIMIT).await;
    assert_eq!(ending, Some(Ending::Aborted));
    let cut = Outcome::Local(LocalFault::ExecutionExpired);
    bench
        .until("the straggler's report", |bench| {
            bench.control.outcomes().contains(&cut)
        })
        .await;
    assert_eq!(bench.control.outcomes().len(), 4);
    // The same member is asked again: nothing counts against it.
    bench.one.heal();
    let reply = bench.client.post(CHAT, &chat("panel", false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(bodies(&bench.one, "n").len(), 2);
}

#[tokio::test]
async fn a_panel_that_is_silent_ends_in_time() {
    let bench = start().await;
    bench.one.set_default(Mode::Hang);
    bench.two.set_default(Mode::Hang);
    let reply = bench.client.post(CHAT, &chat("panel", false)).await;
    assert_eq!(reply.status, 503);
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        message,
        "no member of the panel answered: one/m timeout; two/m timeout; one/n timeout"
    );
}

#[rstest]
#[case::panel("panel", 3)]
#[case::chain("chain", 1)]
#[tokio::test]
async fn a_client_that_leaves_ends_all_parts(#[case] combo: &str, #[case] parts: usize) {
    let bench = start().await;
    bench.one.set_default(Mode::Hang);
    bench.two.set_default(Mode::Hang);
    let body = chat(combo, true);
    let all_asked = |bench: &Bench| {
        let asked = bench.one.log().count(&any()) + bench.two.log().count(&any());
        usize::try_from(asked).unwrap() == parts
    };
    tokio::select! {
        _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
        () = bench.until("all parts", all_asked) => {}
    }
    bench
        .until("a report of each part", |bench| {
            bench.control.outcomes().len() == parts
        })
        .await;
    assert_eq!(bench.control.outcomes(), vec![Outcome::ClientAbort; parts]);
    let ending = bench.one.log().wait_for_ending(&model("m"), LIMIT).await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("no more requests", |bench| {
            bench.control.heard().usages.is_empty()
        })
        .await;
    let in_flight = bench.metric("tidegate_dp_requests_in_flight").await;
    assert!(in_flight.abs() < 0.5);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_abort\"}";
    assert!((bench.metric(end).await - 1.0).abs() < 0.5, "one request");
}

#[rstest]
#[case::fusion("panel")]
#[case::pipeline("chain")]
#[tokio::test]
async fn what_is_no_conversation_is_refused(#[case] combo: &str) {
    let bench = start().await;
    for (path, body) in [
        ("/v1/embeddings", json!({"model": combo, "input": "ahoy"})),
        (CHAT, json!({"model": combo, "input": "ahoy"})),
        (CHAT, json!({"model": combo, "messages": []})),
        (RESPONSES, json!({"model": combo, "input": []})),
        (RESPONSES, json!({"model": combo, "input": ""})),
        (
            MESSAGES,
            json!({"model": combo, "max_tokens": 9, "messages": []}),
        ),
    ] {
        let reply = bench.client.post(path, &body).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "no_conversation"),
            "{path} {body}"
        );
        let body = reply.json();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.ends_with("a conversation that is not empty"),
            "{message}"
        );
    }
    assert_eq!(bench.one.log().count(&any()), 0);
}

#[rstest]
#[case::whole(false)]
#[case::stream(true)]
#[tokio::test]
async fn vector_routing_v_pl1(#[case] stream: bool) {
    let bench = start().await;
    let mut body = chat("chain", stream);
    body["messages"] = json!([
        {"role": "system", "content": "s"}, {"role": "user", "content": "x"},
    ]);
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    if stream {
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
    } else {
        assert_eq!(said(&reply), "one says ");
    }
    let first = json!({"model": "m", "messages": body["messages"]});
    assert_eq!(bodies(&bench.one, "m"), [first]);
    let second = json!({"model": "m", "messages": [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "one says "},
    ]});
    assert_eq!(bodies(&bench.two, "m"), [second]);
    let last = json!({
        "model": "n", "stream": stream, "tools": body["tools"],
        "messages": [{"role": "user", "content": "two says "}],
    });
    assert_eq!(bodies(&bench.one, "n"), [last]);
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("2"));
    let decision = reply.header("x-omniroute-decision").unwrap();
    assert!(decision.starts_with("strategy=pipeline; provider=one; "));
}

#[tokio::test]
async fn messages_follow_each_other() {
    let bench = start().await;
    let body = json!({"model": "ant-chain", "max_tokens": 9, "system": "s",
        "messages": [{"role": "user", "content": "x"}]});
    let reply = bench.client.post(MESSAGES, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(bodies(&bench.ant, "m")[0]["system"], "be brief\n\ns");
    let last = &bodies(&bench.ant, "n")[0];
    assert_eq!(last.get("system"), None);
    assert_eq!(last["max_tokens"], 9);
    assert!(last_turn(last).starts_with("ahoy "), "{last}");
}

#[tokio::test]
async fn a_step_that_fails_ends_the_chain_by_its_name() {
    let bench = start().await;
    bench.two.set_default(Mode::status(401));
    let reply = bench.client.post(CHAT, &chat("chain", true)).await;
    assert_eq!(reply.status, 401);
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.starts_with("step 2 (two/m): "), "{message}");
    assert_eq!(bench.one.log().count(&model("n")), 0);
    assert_eq!(counts(&reply), (3, 2, 2));
}

#[tokio::test]
async fn the_last_step_is_named_too() {
    let bench = start().await;
    bench.one.set(model("n"), Mode::status(500));
    let reply = bench.client.post(CHAT, &chat("chain", true)).await;
    assert_eq!(reply.status, 500);
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.starts_with("step 3 (one/n): "), "{message}");
    assert_eq!(counts(&reply), (3, 3, 3));
}

#[rstest]
#[case::empty(
    r#"{"choices": [{"message": {"content": ""}}]}"#,
    "pipeline_step_empty"
)]
#[case::unparseable("{}", "pipeline_step_unparseable")]
#[tokio::test]
async fn a_step_that_says_nothing_ends_the_chain(#[case] answer: &str, #[case] code: &str) {
    let bench = start().await;
    bench
        .one
        .set(model("m"), Mode::status_with_body(200, answer));
    let reply = bench.client.post(CHAT, &chat("chain", false)).await;
    assert_eq!((reply.status, reply.code().as_str()), (502, code));
    assert_eq!(counts(&reply), (3, 1, 1));
    assert_eq!(bench.two.log().count(&any()), 0);
}

#[tokio::test]
async fn the_first_step_refuses_in_its_own_words() {
    let bench = start().await;
    let refusal = r#"{"error":{"message":"top_k is odd","type":"invalid_request_error"}}"#;
    bench
        .one
        .set(model("m"), Mode::status_with_body(400, refusal));
    let reply = bench.client.post(CHAT, &chat("chain", false)).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["message"], "top_k is odd");
}

#[tokio::test]
async fn a_step_is_tried_again() {
    let bench = start().await;
    bench.two.set(model("m"), [Mode::status(502)]);
    let reply = bench.client.post(CHAT, &chat("chain", false)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(bodies(&bench.one, "m").len(), 1);
    assert_eq!(bodies(&bench.two, "m").len(), 2);
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("3"));
}

#[tokio::test]
async fn a_drain_ends_the_parts() {
    let bench = start().await;
    bench.one.set_default(Mode::Hang);
    bench.two.set_default(Mode::Hang);
    let body = chat("panel", false);
    let draining = async {
        let asked = |bench: &Bench| bench.one.log().count(&any()) == 2;
        bench.until("the panel", asked).await;
        bench.proxy.drain(Duration::ZERO).await;
    };
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), draining);
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "shutting_down")
    );
    let cut = Outcome::Local(LocalFault::ExecutionExpired);
    assert_eq!(bench.control.outcomes(), vec![cut; 3]);
}
