//! Everything a client can do wrong: a clear error in its format, a stable code, nothing sent upstream.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use rstest::rstest;
use serde_json::json;
use tidegate_fake_upstream::Selector;
use tidegate_proxy::Limits;

use crate::bench::{Bench, KEY, LIMIT, Options, chat};
use crate::client::{Client, raw};

const CHAT: &str = "/v1/chat/completions";

fn untouched(bench: &Bench) {
    for upstream in [&bench.one, &bench.two, &bench.ant] {
        assert_eq!(upstream.log().count(&Selector::any()), 0);
    }
    assert!(bench.control.heard().reports.is_empty());
}

#[rstest]
#[case::malformed(b"{\"model\":".as_slice(), "invalid_json")]
#[case::empty(b"", "invalid_json")]
#[case::no_object(b"[1]", "body_not_an_object")]
#[case::invalid_utf8(b"{\"model\":\"\xff\"}", "invalid_utf8")]
#[case::no_model(b"{\"messages\":[]}", "missing_model")]
#[case::two_models(b"{\"model\":\"one/m\",\"model\":\"two/m\"}", "duplicate_member")]
#[case::wrong_stream(b"{\"model\":\"one/m\",\"stream\":1}", "invalid_stream")]
#[tokio::test]
async fn bad_bodies(#[case] body: &'static [u8], #[case] code: &str) {
    let bench = Bench::start().await;
    let reply = bench.client.post_bytes(CHAT, body).await;
    assert_eq!((reply.status, reply.code().as_str()), (400, code));
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    assert!(reply.header("x-omniroute-request-id").is_some());
    let reply = bench.client.post_bytes("/v1/messages", body).await;
    assert_eq!((reply.status, reply.code().as_str()), (400, code));
    assert_eq!(reply.json()["type"], "error", "in Anthropic's format");
    untouched(&bench);
}

#[tokio::test]
async fn a_deeply_nested_body() {
    let bench = Bench::start().await;
    let body = format!(
        "{{\"model\":\"one/m\",\"x\":{}",
        "[".repeat(500_000) + &"]".repeat(500_000) + "}"
    );
    let reply = bench.client.post_bytes(CHAT, body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "json_too_deep")
    );
    untouched(&bench);
}

#[tokio::test]
async fn an_unknown_model() {
    let bench = Bench::start().await;
    let reply = bench.client.post(CHAT, &chat("nobody/knows", false)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "model_not_found")
    );
    untouched(&bench);
}

#[tokio::test]
async fn a_missing_or_wrong_key() {
    let bench = Bench::start().await;
    let wrong = Client::new(bench.addr, "sk-not-this-one");
    let reply = wrong.post(CHAT, &chat("duo", false)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (401, "invalid_api_key")
    );
    assert!(!reply.text().contains("sk-not"), "the key is not repeated");
    let none = [("authorization", "")];
    let reply = bench
        .client
        .send(Method::POST, "/v1/messages", &none, Bytes::new())
        .await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (401, "missing_api_key")
    );
    assert_eq!(reply.json()["error"]["type"], "authentication_error");
    let reply = wrong.get("/v1/models").await;
    assert_eq!(reply.status, 401);
    untouched(&bench);
}

fn small_bodies() -> Options {
    Options {
        limits: Limits {
            max_body_bytes: 1_000,
            body_time: Duration::from_millis(1_500),
            head_time: Duration::from_millis(1_500),
            ..Limits::default()
        },
        ..Options::default()
    }
}

#[tokio::test]
async fn a_body_over_the_limit() {
    let bench = Bench::start_with(small_bodies()).await;
    let body = json!({"model": "one/m", "x": "y".repeat(200_000)});
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (413, "body_too_large")
    );
    untouched(&bench);
}

#[tokio::test]
async fn a_body_over_the_limit_that_does_not_say_so() {
    let bench = Bench::start_with(small_bodies()).await;
    let piece = format!("3e8\r\n{}\r\n", "x".repeat(1_000));
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let answer = raw(
        bench.addr,
        (head + &piece + &piece + "0\r\n\r\n").as_bytes(),
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"),
        "{answer}"
    );
    untouched(&bench);
}

#[tokio::test]
async fn a_slow_body() {
    let bench = Bench::start_with(small_bodies()).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: 50\r\n\r\n{{\"mod"
    );
    let answer = raw(bench.addr, head.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("body_timeout"),
        "{answer}"
    );
    untouched(&bench);
}

#[rstest]
#[case::nothing("")]
#[case::half_a_preface("PRI * HTT")]
#[case::half_a_head("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")]
#[tokio::test]
async fn a_slow_head_is_not_waited_for(#[case] sent: &str) {
    let bench = Bench::start_with(small_bodies()).await;
    let closed = tokio::time::timeout(LIMIT, raw(bench.addr, sent.as_bytes())).await;
    assert!(closed.is_ok());
    untouched(&bench);
}

#[rstest]
#[case::many(150, 10)]
#[case::long(10, 4_000)]
#[case::more_than_hyper_takes(1_000, 10)]
#[tokio::test]
async fn a_header_flood(#[case] count: usize, #[case] length: usize) {
    let bench = Bench::start().await;
    let headers: String = (0..count)
        .map(|number| format!("x-{number}: {}\r\n", "y".repeat(length)))
        .collect();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {KEY}\r\n{headers}content-length: 0\r\n\r\n"
    );
    let answer = raw(bench.addr, request.as_bytes()).await;
    if count < 200 {
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(answer.contains("headers_too_large"), "{answer}");
    } else {
        // hyper closes without reading the rest, so its answer may be lost.
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
            "{answer}"
        );
    }
    untouched(&bench);
}

#[tokio::test]
async fn what_is_not_http() {
    let bench = Bench::start().await;
    let answer = raw(bench.addr, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").await;
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer}"
    );
    untouched(&bench);
}

#[tokio::test]
async fn wrong_paths_and_methods() {
    let bench = Bench::start().await;
    for path in ["/", "/v1/nothing", "/v2/chat/completions"] {
        let reply = bench.client.post(path, &chat("duo", false)).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (404, "unknown_path"),
            "{path}"
        );
    }
    let reply = bench.client.get(CHAT).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (405, "method_not_allowed")
    );
    assert_eq!(reply.header("allow"), Some("POST, OPTIONS"));
    let reply = bench.client.post("/v1/models", &json!({})).await;
    assert_eq!(
        (reply.status, reply.header("allow")),
        (405, Some("GET, HEAD, OPTIONS"))
    );
    let reply = bench
        .client
        .send(Method::OPTIONS, CHAT, &[], Bytes::new())
        .await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    assert_eq!(
        reply.header("access-control-allow-methods"),
        Some("POST, OPTIONS")
    );
    untouched(&bench);
}

#[rstest]
#[case(&[("content-encoding", "gzip")], 415, "unsupported_content_encoding")]
#[case(&[("x-omniroute-connection", "not/a name")], 400, "invalid_connection")]
#[case(&[("x-omniroute-connection", "nobody")], 404, "connection_not_found")]
#[tokio::test]
async fn wrong_headers(#[case] headers: &[(&str, &str)], #[case] status: u16, #[case] code: &str) {
    let bench = Bench::start().await;
    let body: Bytes = chat("duo", false).to_string().into();
    let reply = bench.client.send(Method::POST, CHAT, headers, body).await;
    assert_eq!((reply.status, reply.code().as_str()), (status, code));
    untouched(&bench);
}
