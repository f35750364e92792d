//! `POST /api/v1/session-leases`: what is refused, in which order, and what is answered.

use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::lease::{Action, Capacity, EndReason, LeaseError, LeaseState, lifecycle_body};

use crate::bench::{Bench, KEY, LEASE_KEY, Options};
use crate::client::{Client, Reply, raw};
use crate::fake_leases::summary;

const LEASES: &str = "/api/v1/session-leases";
pub(crate) const OWNER: &str = "x-omniroute-lease-owner";
/// The owner B: its last bits are not canonical, and it is a token all the same.
pub(crate) const TOKEN: &str = "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";
const HASH: &str = "bc1d88c7eccd84b91042c56781b3567f161a1e19e92400d35a9aacf38f4b86b2";

async fn bench() -> Bench {
    Bench::start_with(Options {
        leases: true,
        ..Options::default()
    })
    .await
}

async fn post_with(
    bench: &Bench,
    key: &str,
    headers: &[(&str, &str)],
    body: impl Into<bytes::Bytes>,
) -> Reply {
    let client = Client::new(bench.addr, key);
    client
        .send(Method::POST, LEASES, headers, body.into())
        .await
}

async fn post(bench: &Bench, body: &Value) -> Reply {
    post_with(bench, LEASE_KEY, &[(OWNER, TOKEN)], body.to_string()).await
}

fn acquire() -> Value {
    json!({"action": "acquire", "model": "one/m"})
}

/// The status and code of a refusal, which has the form of the contract and nothing else.
fn refusal(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert_eq!(body["error"]["type"], "lease_error", "{body}");
    assert!(body["error"]["message"].is_string());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    (reply.status, reply.code())
}

#[tokio::test]
async fn every_action_is_answered_with_the_members_of_the_contract() {
    let bench = bench().await;
    let reply = post(&bench, &acquire()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), lifecycle_body(&summary(LeaseState::Active)));
    assert_eq!(reply.json().as_object().unwrap().len(), 5);
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let renewed = post(
        &bench,
        &json!({"action": "renew", "generation": 3, "more": 1}),
    )
    .await;
    assert_eq!(renewed.json(), reply.json());
    let body = json!({"action": "release", "generation": 3, "reason": "CLIENT_CANCELLED"});
    assert_eq!(post(&bench, &body).await.json()["state"], "RELEASED");
    let mut standing = lifecycle_body(&summary(LeaseState::Active));
    standing["connection"] = json!({"displayName": null, "provider": "one"});
    let status = post(&bench, &json!({"action": "status", "generation": 3})).await;
    assert_eq!(status.json(), standing);
    let asked = bench.control.leases.asked.lock().clone();
    assert_eq!(asked.len(), 4);
    assert!(
        asked
            .iter()
            .all(|(it, key)| it.owner.to_string() == HASH && key.as_str() == "session")
    );
    let model = "one/m".to_owned();
    assert_eq!(asked[0].0.action, Action::Acquire { model });
    let reason = EndReason::ClientCancelled;
    let generation = summary(LeaseState::Active).generation;
    assert_eq!(asked[2].0.action, Action::Release { generation, reason });
    let metric = "tidegate_dp_lease_requests_total{action=\"acquire\",code=\"ok\"}";
    assert!((bench.metric(metric).await - 1.0).abs() < 0.5);
}

#[rstest]
#[case::short("vlo_short", "LEASE_CONTEXT_INVALID")]
#[case::prefix(
    "VLO_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
    "LEASE_CONTEXT_INVALID"
)]
#[case::of_42(
    "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
    "LEASE_CONTEXT_INVALID"
)]
#[case::of_44(
    "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
    "LEASE_CONTEXT_INVALID"
)]
#[case::padded(
    "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB=",
    "LEASE_CONTEXT_INVALID"
)]
#[case::plus(
    "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB+",
    "LEASE_CONTEXT_INVALID"
)]
#[case::slash(
    "vlo_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB/",
    "LEASE_CONTEXT_INVALID"
)]
#[case::missing("", "LEASE_CONTEXT_REQUIRED")]
#[tokio::test]
async fn vector_sessions_02_what_is_no_owner_is_refused(#[case] owner: &str, #[case] code: &str) {
    let bench = bench().await;
    let reply = post_with(&bench, LEASE_KEY, &[(OWNER, owner)], acquire().to_string()).await;
    assert_eq!(refusal(&reply), (400, code.to_owned()));
    assert!(owner.is_empty() || !reply.text().contains(owner));
    assert!(bench.control.leases.asked.lock().is_empty());
    assert_eq!(reply.header("retry-after"), None);
}

#[tokio::test]
async fn vector_sessions_02_white_space_around_an_owner_does_not_count() {
    let bench = bench().await;
    let body = acquire().to_string();
    let request = format!(
        "POST {LEASES} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {LEASE_KEY}\r\n\
         content-type: application/json; charset=utf-8\r\n{OWNER}: \t {TOKEN} \r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw(bench.addr, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[rstest]
#[case::no_bearer("", "application/json", 401, "LEASE_AUTHENTICATION_REQUIRED")]
#[case::unknown_key("sk-what", "application/json", 401, "LEASE_API_KEY_INVALID")]
#[case::unknown_key_and_no_type("sk-what", "", 401, "LEASE_API_KEY_INVALID")]
#[case::no_type(LEASE_KEY, "", 415, "LEASE_CONTENT_TYPE_REQUIRED")]
#[case::no_type_and_no_scope(KEY, "", 415, "LEASE_CONTENT_TYPE_REQUIRED")]
#[case::another_type(LEASE_KEY, "text/plain", 415, "LEASE_CONTENT_TYPE_REQUIRED")]
#[case::no_scope(KEY, "application/json", 403, "LEASE_SCOPE_REQUIRED")]
#[tokio::test]
async fn vector_sessions_03_the_first_thing_wrong_is_told(
    #[case] key: &str,
    #[case] content_type: &str,
    #[case] status: u16,
    #[case] code: &str,
) {
    let bench = bench().await;
    let authorization = format!("Bearer {key}");
    let authorization = if key.is_empty() { "" } else { &authorization };
    let headers = [
        ("authorization", authorization),
        ("content-type", content_type),
        (OWNER, "vlo_wrong"),
    ];
    let reply = post_with(&bench, key, &headers, acquire().to_string()).await;
    assert_eq!(refusal(&reply), (status, code.to_owned()));
}

#[rstest]
#[case::zero(json!(0))]
#[case::negative(json!(-1))]
#[case::fraction(json!(1.5))]
#[case::text(json!("1"))]
#[case::too_large(json!(9_007_199_254_740_992_u64))]
#[case::missing(Value::Null)]
#[tokio::test]
async fn vector_sessions_06_what_is_no_generation_is_refused(#[case] generation: Value) {
    let bench = bench().await;
    for action in ["renew", "release", "status"] {
        let reply = post(&bench, &json!({"action": action, "generation": generation})).await;
        assert_eq!(refusal(&reply), (400, "LEASE_ACTION_INVALID".to_owned()));
    }
    assert!(bench.control.leases.asked.lock().is_empty());
}

#[rstest]
#[case::empty("")]
#[case::broken("{")]
#[case::a_list("[]")]
#[case::no_action("{}")]
#[case::unknown_action("{\"action\":\"steal\"}")]
#[case::no_model("{\"action\":\"acquire\"}")]
#[case::an_empty_model("{\"action\":\"acquire\",\"model\":\" \"}")]
#[case::no_utf8("{\"action\":\"acq\u{7f}uire\"}")]
#[tokio::test]
async fn a_body_that_is_no_action_is_refused(#[case] body: &'static str) {
    let bench = bench().await;
    let reply = post_with(&bench, LEASE_KEY, &[(OWNER, TOKEN)], body).await;
    assert_eq!(refusal(&reply), (400, "LEASE_ACTION_INVALID".to_owned()));
}

#[rstest]
#[case::just_too_long(65_537)]
#[case::of_a_megabyte(1_048_576)]
#[case::of_ten_megabytes(10_485_760)]
#[tokio::test]
async fn a_body_that_is_too_long_is_refused_unread(#[case] bytes: usize) {
    let bench = bench().await;
    let mut body = acquire().to_string();
    body.push_str(&" ".repeat(bytes - body.len()));
    let reply = post_with(&bench, LEASE_KEY, &[(OWNER, TOKEN)], body).await;
    assert_eq!(refusal(&reply), (400, "LEASE_ACTION_INVALID".to_owned()));
    assert_eq!(reply.header("connection"), Some("close"));
}

/// As such clients do, the test reads only when it has written all.
#[rstest]
#[case::too_long(
    LEASE_KEY,
    "content-type: application/json",
    400,
    "LEASE_ACTION_INVALID"
)]
#[case::of_another_type(
    LEASE_KEY,
    "content-type: text/plain",
    415,
    "LEASE_CONTENT_TYPE_REQUIRED"
)]
#[case::compressed(
    LEASE_KEY,
    "content-type: application/json\r\ncontent-encoding: gzip",
    400,
    "LEASE_ACTION_INVALID"
)]
#[case::of_a_stranger(
    "sk-what",
    "content-type: application/json",
    401,
    "LEASE_API_KEY_INVALID"
)]
#[tokio::test]
async fn who_writes_ten_megabytes_before_it_reads_is_told_what_is_wrong(
    #[case] key: &str,
    #[case] headers: &str,
    #[case] status: u16,
    #[case] code: &str,
) {
    let bench = bench().await;
    let answer = raw(bench.addr, &long_request(LEASES, key, headers)).await;
    let start = format!("HTTP/1.1 {status}");
    assert!(answer.starts_with(&start), "{answer}");
    assert!(answer.contains(code), "{answer}");
    assert!(bench.control.leases.asked.lock().is_empty());
}

#[rstest]
#[case::of_a_stranger("sk-what", "accept: */*", 401, "invalid_api_key")]
#[case::without_an_owner(LEASE_KEY, "accept: */*", 400, "LEASE_CONTEXT_REQUIRED")]
#[case::compressed(KEY, "content-encoding: gzip", 415, "unsupported_content_encoding")]
#[tokio::test]
async fn so_is_who_does_it_with_a_request_for_a_model(
    #[case] key: &str,
    #[case] headers: &str,
    #[case] status: u16,
    #[case] code: &str,
) {
    let bench = bench().await;
    let answer = raw(
        bench.addr,
        &long_request("/v1/chat/completions", key, headers),
    )
    .await;
    let start = format!("HTTP/1.1 {status}");
    assert!(answer.starts_with(&start), "{answer}");
    assert!(answer.contains(code), "{answer}");
}

/// A request with a body of 10 MiB.
fn long_request(path: &str, key: &str, headers: &str) -> Vec<u8> {
    const BYTES: usize = 10 * 1024 * 1024;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{headers}\r\n\
         connection: close\r\ncontent-length: {BYTES}\r\n\r\n"
    );
    let mut request = head.into_bytes();
    request.resize(request.len() + BYTES, b' ');
    request
}

#[tokio::test]
async fn the_longest_body_is_read() {
    let bench = bench().await;
    let mut body = acquire().to_string();
    body.push_str(&" ".repeat(65_536 - body.len()));
    let reply = post_with(&bench, LEASE_KEY, &[(OWNER, TOKEN)], body).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn a_compressed_body_is_no_action() {
    let bench = bench().await;
    let headers = [(OWNER, TOKEN), ("content-encoding", "gzip")];
    let reply = post_with(&bench, LEASE_KEY, &headers, acquire().to_string()).await;
    assert_eq!(refusal(&reply), (400, "LEASE_ACTION_INVALID".to_owned()));
}

#[tokio::test]
async fn a_model_that_the_key_may_not_ask_for_is_refused_as_any_request_is() {
    let bench = bench().await;
    let body = json!({"action": "acquire", "model": "one/n"});
    let reply = post(&bench, &body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (404, "no_executable_targets")
    );
    let unknown = post(&bench, &json!({"action": "acquire", "model": "what"})).await;
    assert_eq!(
        unknown.status, 200,
        "whether it means anything the authority says"
    );
}

#[tokio::test]
async fn vector_sessions_11_a_capacity_answer_says_when_to_come_back() {
    let bench = bench().await;
    bench.control.leases.refuse(LeaseError::Capacity(Capacity {
        retry_after_seconds: 17,
        eligible: 1,
    }));
    let reply = post(&bench, &acquire()).await;
    assert_eq!(
        refusal(&reply),
        (429, "lease-capacity-unavailable".to_owned())
    );
    let body = reply.json();
    assert_eq!(reply.header("retry-after"), Some("17"));
    assert_eq!(body["retryAfter"], 17);
    assert_eq!(body["state"], "WAITING_FOR_CAPACITY");
    assert_eq!(
        (&body["eligibleCount"], &body["freeCount"]),
        (&json!(1), &json!(0))
    );
    assert!(!reply.text().contains(TOKEN) && !reply.text().contains(HASH));
}

#[tokio::test]
async fn browsers_are_told_both_headers_and_other_methods_nothing() {
    let bench = bench().await;
    let client = Client::new(bench.addr, LEASE_KEY);
    let reply = client
        .send(Method::OPTIONS, LEASES, &[], bytes::Bytes::new())
        .await;
    assert_eq!(reply.status, 204);
    let allowed = reply.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("X-OmniRoute-Lease-Owner, X-OmniRoute-Lease-Generation"));
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::PATCH] {
        let reply = client.send(method, LEASES, &[], bytes::Bytes::new()).await;
        assert_eq!(reply.status, 405);
        assert_eq!(reply.header("allow"), Some("POST, OPTIONS"));
    }
}
