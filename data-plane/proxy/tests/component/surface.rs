//! The HTTP around the answers: methods, headers for everybody, HEAD.

use bytes::Bytes;
use http::Method;
use rstest::rstest;
use serde_json::json;
use tidegate_core::lease::LeaseError;
use tidegate_fake_upstream::{Mode, Selector};
use tidegate_proxy::Guard;

use crate::bench::{Bench, LEASE_KEY, Options, chat};
use crate::client::Client;
use crate::lease_requests::{OWNER, TOKEN};

const CHAT: &str = "/v1/chat/completions";
/// Every path, and whether it is read or posted to.
const PATHS: [(&str, bool); 14] = [
    (CHAT, false),
    ("/api/v1/chat/completions", false),
    ("/v1/completions", false),
    ("/v1/responses", false),
    ("/v1/responses/input_tokens", false),
    ("/v1/embeddings", false),
    ("/v1/messages", false),
    ("/v1/messages/count_tokens", false),
    ("/api/v1/session-leases", false),
    ("/v1/models", true),
    ("/v1/models/health", true),
    ("/livez", true),
    ("/readyz", true),
    ("/metrics", true),
];

#[tokio::test]
async fn every_path_says_what_it_answers() {
    let bench = Bench::start().await;
    for (path, is_read) in PATHS {
        let allowed = if is_read {
            "GET, HEAD, OPTIONS"
        } else {
            "POST, OPTIONS"
        };
        let preflight = bench
            .client
            .send(
                Method::OPTIONS,
                path,
                &[("authorization", "")],
                Bytes::new(),
            )
            .await;
        assert_eq!(preflight.status, 204, "{path}");
        assert_eq!(
            preflight.header("access-control-allow-methods"),
            Some(allowed)
        );
        assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
        let headers = preflight.header("access-control-allow-headers").unwrap();
        assert!(headers.to_lowercase().contains("authorization"), "{path}");
        let wrong = [
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::TRACE,
            if is_read { Method::POST } else { Method::GET },
        ];
        for method in wrong {
            let reply = bench.client.send(method, path, &[], Bytes::new()).await;
            assert_eq!(reply.status, 405, "{path}");
            assert_eq!(reply.header("allow"), Some(allowed), "{path}");
            assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        }
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
}

#[rstest]
#[case::http1(false)]
#[case::http2(true)]
#[tokio::test]
async fn head_is_answered_like_get_without_the_body(#[case] over_http2: bool) {
    let bench = Bench::start().await;
    let client = if over_http2 {
        &bench.client.with_small_window()
    } else {
        &bench.client
    };
    for (path, is_read) in PATHS {
        let head = client.send(Method::HEAD, path, &[], Bytes::new()).await;
        assert!(head.body.is_empty(), "{path}");
        if !is_read {
            assert_eq!(head.status, 405, "{path}");
            continue;
        }
        let get = client.get(path).await;
        assert_eq!((head.status, get.status), (200, 200), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"));
        // Metrics count themselves.
        if path != "/metrics" {
            let length = get.body.len().to_string();
            assert_eq!(
                head.header("content-length"),
                Some(length.as_str()),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn every_answer_names_its_request_and_may_be_read_by_browsers() {
    let bench = Bench::start().await;
    bench.two.set_default(Mode::status(500));
    let request_id = [("x-request-id", "mine")];
    let send = |path: &'static str, model: &str, stream: bool| {
        let body: Bytes = chat(model, stream).to_string().into();
        bench.client.send(Method::POST, path, &request_id, body)
    };
    let replies = [
        (send(CHAT, "one/m", false).await, 200),
        (send(CHAT, "one/m", true).await, 200),
        (send(CHAT, "two/m", false).await, 500),
        (send(CHAT, "nobody/knows", false).await, 404),
        (send("/v1/nothing", "one/m", false).await, 404),
    ];
    let mut ids = Vec::new();
    for (reply, status) in replies {
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(
            reply.header("x-omniroute-version"),
            Some(env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        let exposed = reply.header("access-control-expose-headers").unwrap();
        let exposed: Vec<String> = exposed.split(", ").map(str::to_lowercase).collect();
        for name in reply.headers.keys().map(http::HeaderName::as_str) {
            if name.starts_with("x-omniroute-") || name == "retry-after" {
                assert!(exposed.iter().any(|shown| shown == name), "{name}");
            }
        }
        // Ours, not the client's: who reads the log must be able to trust it.
        let id = reply.header("x-omniroute-request-id").unwrap().to_owned();
        assert!(id.starts_with("req_"), "{id}");
        ids.push(id);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

#[tokio::test]
async fn while_nothing_is_applied_everybody_is_told_so() {
    let bench = Bench::start().await;
    bench.control.nothing_is_applied();
    // Without a configuration nobody knows keys: neither is a key refused, nor is nobody's word taken for one.
    for client in [&bench.client, &Client::new(bench.addr, "sk-unknown")] {
        let paths = tidegate_proxy::served().filter(|it| it.guard == Guard::Key);
        let mut asked = 0;
        for path in paths {
            let reply = if path.allow.starts_with("GET") {
                client.get(path.path).await
            } else {
                client.post(path.path, &chat("one/m", false)).await
            };
            assert_eq!(
                (
                    reply.status,
                    reply.code().as_str(),
                    reply.header("retry-after")
                ),
                (503, "configuration_unavailable", Some("1")),
                "{}",
                path.path
            );
            asked += 1;
        }
        // Seven endpoints, the models and their health, under two prefixes.
        assert_eq!(asked, 18);
        let leased = client.post("/api/v1/session-leases", &json!({})).await;
        assert_eq!(leased.status, 503);
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
}

#[tokio::test]
async fn the_answer_names_who_gave_it_after_a_failure() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(503));
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(reply.header("x-omniroute-model"), Some("m"));
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("1"));
    let shown = format!("{:?}", reply.headers);
    assert!(
        !shown.contains("two-a") && !shown.contains("one-a"),
        "{shown}"
    );
}

#[tokio::test]
async fn managed_keys_are_never_told_their_connection() {
    let bench = Bench::start_with(Options {
        leases: true,
        ..Options::default()
    })
    .await;
    let client = Client::new(bench.addr, LEASE_KEY);
    let headers = [(OWNER, TOKEN), ("x-omniroute-lease-generation", "3")];
    let send = || {
        let body: Bytes = chat("one/m", false).to_string().into();
        client.send(Method::POST, CHAT, &headers, body)
    };
    let served = send().await;
    assert_eq!(served.header("x-omniroute-provider"), Some("one"));
    *bench.control.refuses_managed.lock() = Some(LeaseError::FenceStale);
    let refused = send().await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (409, "LEASE_FENCE_STALE")
    );
    for reply in [served, refused] {
        let shown = format!("{:?}{}", reply.headers, reply.text());
        assert!(
            !shown.contains("one-a") && !shown.contains("vlo_"),
            "{shown}"
        );
    }
}
