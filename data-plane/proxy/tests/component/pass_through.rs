//! Good answers: what reaches the upstream, what reaches the client.

use bytes::Bytes;
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::Outcome;
use tidegate_fake_upstream::{Mode, Selector};

use crate::bench::{Bench, Options, chat};

const MODELS: &str = "/v1/models";

#[tokio::test]
async fn a_json_answer_is_handed_on_byte_for_byte() {
    let bench = Bench::start().await;
    let body = "{\"choices\" :[ ],\n\t\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}, \"x\":1.00e1}\n";
    bench.one.set_default(Mode::status_with_body(200, body));
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("one/m", false))
        .await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body, body);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let heard = bench.control.heard();
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    let [usage] = heard.usages.as_slice() else {
        panic!("{:?}", heard.usages);
    };
    assert_eq!(
        (usage.tokens.input, usage.tokens.output),
        (Some(3), Some(4))
    );
    assert_eq!(usage.key.as_ref().unwrap().as_str(), "tester");
    assert_eq!(usage.model.as_str(), "m");
}

#[tokio::test]
async fn a_stream_is_handed_on_byte_for_byte() {
    let bench = Bench::start().await;
    let body = ": hello\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"\u{e9}\"}}]}\n\nevent: x\nid: 4\ndata:  {\"choices\":[],\n\
        data: \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n\n\ndata: [DONE]\n\n: bye\n";
    bench.one.set_default(Mode::Status {
        code: 200,
        body: Some(body.to_owned()),
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
    });
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("one/m", true))
        .await;
    assert_eq!(reply.text(), body);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    bench
        .until("usage", |bench| !bench.control.heard().usages.is_empty())
        .await;
    let heard = bench.control.heard();
    assert_eq!(
        (heard.usages[0].tokens.input, heard.usages[0].tokens.output),
        (Some(3), Some(4))
    );
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
}

#[rstest]
#[case("/v1/chat/completions", "one/m", false)]
#[case("/api/v1/chat/completions", "one/m", true)]
#[case("/v1/responses", "one/m", false)]
#[case("/v1/responses", "one/m", true)]
#[case("/v1/completions", "one/m", false)]
#[case("/v1/completions", "one/m", true)]
#[case("/v1/embeddings", "one/m", false)]
#[case("/v1/messages", "ant/m", false)]
#[case("/v1/messages", "ant/m", true)]
#[tokio::test]
async fn every_endpoint_answers(#[case] path: &str, #[case] model: &str, #[case] stream: bool) {
    let bench = Bench::start().await;
    let body = json!({"model": model, "stream": stream, "input": "ahoy", "max_tokens": 5,
        "stream_options": {"include_usage": true}, "prompt": "ahoy",
        "messages": [{"role": "user", "content": "ahoy"}]});
    let reply = bench.client.post(path, &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let kind = if stream {
        "text/event-stream"
    } else {
        "application/json"
    };
    assert!(reply.header("content-type").unwrap().starts_with(kind));
    assert!(reply.header("x-omniroute-request-id").is_some());
    assert!(
        reply
            .header("x-omniroute-decision")
            .unwrap()
            .contains("strategy=")
    );
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), None);
    assert_eq!(reply.header("x-omniroute-model"), Some("m"));
    let provider = model.split_once('/').unwrap().0;
    assert_eq!(reply.header("x-omniroute-provider"), Some(provider));
    assert!(
        !format!("{:?}", reply.headers).contains("-a\""),
        "no connection id"
    );
    bench
        .until("an ended request", |bench| {
            !bench.control.heard().usages.is_empty()
        })
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert!(bench.control.heard().usages[0].tokens.input.is_some());
}

#[rstest]
#[case("/v1/responses/input_tokens", "/responses/input_tokens", "one/m")]
#[case("/v1/messages/count_tokens", "/messages/count_tokens", "ant/m")]
#[tokio::test]
async fn tokens_are_counted_by_the_provider(
    #[case] path: &str,
    #[case] upstream: &str,
    #[case] model: &str,
) {
    let bench = Bench::start().await;
    // A stream of one number makes no sense, so nobody is asked for one.
    let body = json!({"model": model, "stream": true, "input": "ahoy",
        "messages": [{"role": "user", "content": "ahoy"}]});
    let reply = bench.client.post(&format!("{path}?beta=true"), &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.json()["input_tokens"].as_u64().unwrap() > 0);
    let asked = if model == "ant/m" {
        &bench.ant
    } else {
        &bench.one
    };
    let seen = asked.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.path, format!("/v1{upstream}"));
    assert_eq!(seen.header("accept"), Some("application/json"));
    let beta = (model == "ant/m").then_some("beta=true");
    assert_eq!(seen.query.as_deref(), beta);
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert_eq!(bench.control.heard().usages, []);
}

#[tokio::test]
async fn only_the_model_of_a_request_changes() {
    let bench = Bench::start().await;
    let sent = "{ \"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9\"}],\n \"model\" : \"one\\/m\", \"seed\":1e3 }";
    bench.client.post_bytes("/v1/chat/completions", sent).await;
    let seen = bench.one.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.body, sent.replace("\"one\\/m\"", "\"m\""));
}

#[tokio::test]
async fn nothing_a_client_sent_passes_unless_it_is_on_the_list() {
    let bench = Bench::start().await;
    let headers = [
        ("x-omniroute-lease-owner", "secret-owner"),
        ("x-omniroute-lease-generation", "4"),
        ("x-omniroute-session", "s"),
        ("x-omniroute-mode", "fast"),
        ("x-request-id", "mine"),
        ("idempotency-key", "k"),
        ("cookie", "a=b"),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1"),
        ("traceparent", "00-0-0-0"),
        ("accept-encoding", "gzip"),
        ("user-agent", "spy/1.0"),
        ("openai-organization", "org"),
        ("openai-beta", "assistants=v2"),
        ("anthropic-beta", "b"),
        ("x-api-key", "sk-other"),
        ("x-random-7f3a", "r"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic x"),
    ];
    let body: Bytes = chat("one/m", false).to_string().into();
    let reply = bench
        .client
        .send(
            Method::POST,
            "/v1/chat/completions?api-version=1",
            &headers,
            body,
        )
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let seen = bench.one.log().last(&Selector::any()).unwrap();
    let mut names: Vec<&str> = seen.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let allowed = [
        "accept",
        "accept-encoding",
        "authorization",
        "content-length",
        "content-type",
        "host",
        "openai-beta",
        "user-agent",
    ];
    assert_eq!(names, allowed);
    assert_eq!(seen.header("authorization"), Some("Bearer sk-one-a"));
    assert_eq!(seen.header("openai-beta"), Some("assistants=v2"));
    assert!(seen.header("user-agent").unwrap().starts_with("tidegate/"));
    assert_eq!(seen.query, None);
}

#[tokio::test]
async fn an_anthropic_upstream_gets_its_own_headers() {
    let bench = Bench::start().await;
    let body: Bytes = json!({"model": "ant/m", "max_tokens": 5, "messages": []})
        .to_string()
        .into();
    let headers = [
        ("authorization", ""),
        ("x-api-key", crate::bench::KEY),
        ("anthropic-version", "2024-01-01"),
        ("anthropic-beta", "one,two"),
        ("openai-beta", "x"),
    ];
    bench
        .client
        .send(
            Method::POST,
            "/v1/messages?beta=true&x=1",
            &headers,
            body.clone(),
        )
        .await;
    let seen = bench.ant.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.header("x-api-key"), Some("sk-ant-a"));
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(seen.header("anthropic-version"), Some("2024-01-01"));
    assert_eq!(seen.header("anthropic-beta"), Some("one,two"));
    assert_eq!(seen.header("openai-beta"), None);
    assert_eq!(seen.query.as_deref(), Some("beta=true"));
    bench
        .client
        .send(Method::POST, "/v1/messages", &[], body)
        .await;
    let seen = bench.ant.log().last(&Selector::any()).unwrap();
    assert!(
        seen.header("anthropic-version").is_some(),
        "the API asks for one"
    );
}

#[rstest]
#[case::vector_routing_v_bg1(json!({"background": true}), true)]
#[case::vector_routing_v_bg2(json!({"background": false}), false)]
#[case::vector_routing_v_bg3(json!({}), false)]
#[tokio::test]
async fn background_runs_are_answered_at_once(#[case] mut body: Value, #[case] warned: bool) {
    let bench = Bench::start().await;
    body["model"] = json!("one/m");
    body["input"] = json!("ahoy");
    let reply = bench.client.post("/v1/responses", &body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("warning").is_some(), warned);
    let seen = bench.one.log().last(&Selector::any()).unwrap();
    assert_eq!(seen.json().unwrap(), json!({"model": "m", "input": "ahoy"}));
}

#[tokio::test]
async fn models_are_listed_as_each_sdk_expects() {
    let bench = Bench::start().await;
    let openai = bench.client.get(MODELS).await.json();
    assert_eq!(openai["object"], "list");
    let ids: Vec<&str> = openai["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        ["duo", "ant/m", "ant/n", "one/m", "one/n", "two/m", "two/n"]
    );
    let headers = [("anthropic-version", "2023-06-01")];
    let anthropic = bench
        .client
        .send(Method::GET, MODELS, &headers, Bytes::new())
        .await
        .json();
    assert_eq!(anthropic["has_more"], false);
    assert_eq!(anthropic["first_id"], "duo");
    assert_eq!(anthropic["data"][0]["type"], "model");
}

#[tokio::test]
async fn without_keys_anyone_may_ask() {
    let bench = Bench::start_with(Options {
        keys: false,
        ..Options::default()
    })
    .await;
    let body: Bytes = chat("one/m", false).to_string().into();
    let reply = bench
        .client
        .send(
            Method::POST,
            "/v1/chat/completions",
            &[("authorization", "")],
            body,
        )
        .await;
    assert_eq!(reply.status, 200);
    assert!(bench.control.heard().usages[0].key.is_none());
}

#[tokio::test]
async fn many_requests_at_once_are_all_answered() {
    let bench = Bench::start().await;
    let body = chat("duo", true);
    let asking = (0..100).map(|_| bench.client.post("/v1/chat/completions", &body));
    for reply in futures::future::join_all(asking).await {
        assert_eq!(reply.status, 200);
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
    }
    bench
        .until("ended requests", |bench| {
            bench.control.heard().usages.len() == 100
        })
        .await;
    assert!(bench.metric("tidegate_dp_streams_open").await.abs() < 0.5);
    assert!(bench.metric("tidegate_dp_requests_in_flight").await.abs() < 0.5);
    let complete = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"complete\"}";
    assert!((bench.metric(complete).await - 100.0).abs() < 0.5);
}

#[tokio::test]
async fn an_answer_may_take_longer_than_a_request_head() {
    let bench = Bench::start_with(Options {
        limits: tidegate_proxy::Limits {
            head_time: std::time::Duration::from_millis(200),
            ..Default::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::Latency {
        before: std::time::Duration::from_millis(600),
    });
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("one/m", false))
        .await;
    assert_eq!(reply.status, 200);
}
