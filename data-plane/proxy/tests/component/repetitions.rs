//! Requests with an `Idempotency-Key`.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::Value;
use tidegate_core::idempotency::WindowLimits;
use tidegate_core::outcome::Outcome;
use tidegate_fake_upstream::{Gate, Mode, Selector};
use tidegate_proxy::Limits;

use crate::bench::{Bench, KEY, LEASE_KEY, Options, chat, pass};
use crate::client::{Reply, raw_from};

const CHAT: &str = "/v1/chat/completions";
const REPLAYED: &str = "x-omniroute-idempotent-replayed";

async fn bench_with(idempotency: WindowLimits) -> Bench {
    Bench::start_with(Options {
        limits: Limits {
            idempotency,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await
}

async fn ask(bench: &Bench, name: &str, body: &Value) -> Reply {
    let headers = [("idempotency-key", name)];
    let body: Bytes = body.to_string().into();
    bench.client.send(Method::POST, CHAT, &headers, body).await
}

fn asked(bench: &Bench) -> u64 {
    bench.one.log().count(&Selector::any())
}

async fn counted(bench: &Bench, end: &str) -> f64 {
    let name = format!("tidegate_dp_idempotency_total{{end=\"{end}\"}}");
    bench.metric(&name).await
}

#[tokio::test]
async fn a_repetition_is_given_the_same_answer_and_told_so() {
    let bench = Bench::start().await;
    let body = chat("one/m", false);
    let first = ask(&bench, "a", &body).await;
    let again = ask(&bench, "a", &body).await;
    assert_eq!((first.status, again.status), (200, 200));
    assert_eq!(
        (first.header(REPLAYED), again.header(REPLAYED)),
        (None, Some("true"))
    );
    let mut headers: HeaderMap = again.headers.clone();
    headers.remove(REPLAYED);
    let dateless = |mut headers: HeaderMap| {
        headers.remove("date");
        headers
    };
    assert_eq!(dateless(headers), dateless(first.headers.clone()));
    assert_eq!(again.body, first.body);
    assert_eq!(asked(&bench), 1);
    let other = ask(&bench, "b", &body).await;
    assert_eq!(other.header(REPLAYED), None);
    assert_eq!(asked(&bench), 2);
    assert!((counted(&bench, "replayed").await - 1.0).abs() < 0.5);
    assert!(bench.metric("tidegate_dp_idempotency_kept_bytes").await > 0.0);
    assert_eq!(
        bench.control.heard().usages.len(),
        2,
        "a repetition costs nothing"
    );
}

#[tokio::test]
async fn an_answer_is_forgotten_after_its_window() {
    let bench = bench_with(WindowLimits {
        window_ms: 1,
        ..WindowLimits::default()
    })
    .await;
    let body = chat("one/m", false);
    ask(&bench, "a", &body).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(ask(&bench, "a", &body).await.header(REPLAYED), None);
    assert_eq!(asked(&bench), 2);
}

#[tokio::test]
async fn while_the_first_runs_others_wait_for_its_answer() {
    let bench = Bench::start().await;
    let gate = Gate::new();
    bench.one.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::status_with_body(200, "{\"once\": true}")),
    });
    let body = chat("one/m", false);
    let asking = futures::future::join_all((0..5).map(|_| ask(&bench, "a", &body)));
    let open = async {
        bench.until("the first", |bench| asked(bench) == 1).await;
        // The others have been sent by then, and are to wait.
        pass(Duration::from_millis(300)).await;
        gate.open();
    };
    let (replies, ()) = futures::future::join(asking, open).await;
    let replayed = replies
        .iter()
        .filter(|reply| reply.header(REPLAYED).is_some());
    assert_eq!(replayed.count(), 4);
    for reply in &replies {
        assert_eq!(reply.text(), "{\"once\": true}");
    }
    assert_eq!(asked(&bench), 1);
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
}

#[tokio::test]
async fn a_failure_is_told_to_those_that_wait_and_not_kept() {
    let bench = Bench::start().await;
    let gate = Gate::new();
    bench.one.set(
        Selector::any(),
        [Mode::AtGate {
            gate: gate.clone(),
            then: Box::new(Mode::status_with_body(422, "{\"error\": {}}")),
        }],
    );
    let body = chat("one/m", false);
    let asking = futures::future::join(ask(&bench, "a", &body), ask(&bench, "a", &body));
    let open = async {
        bench.until("the first", |bench| asked(bench) == 1).await;
        // As above.
        pass(Duration::from_millis(300)).await;
        gate.open();
    };
    let ((one, two), ()) = futures::future::join(asking, open).await;
    assert_eq!((one.status, two.status), (422, 422));
    assert_eq!(asked(&bench), 1);
    let later = ask(&bench, "a", &body).await;
    assert_eq!((later.status, later.header(REPLAYED)), (200, None));
}

/// The one that waits is not left without an answer: it becomes the first.
#[tokio::test]
async fn when_the_client_of_the_first_leaves_the_next_one_runs() {
    let bench = Bench::start().await;
    bench.one.set(Selector::any(), [Mode::Hang, Mode::Ok]);
    let body = chat("one/m", false);
    let first = ask(&bench, "a", &body);
    let mut first = Box::pin(first);
    let second = async {
        bench.until("the first", |bench| asked(bench) == 1).await;
        ask(&bench, "a", &body).await
    };
    let mut second = Box::pin(second);
    let waiting = tokio::time::sleep(Duration::from_millis(100));
    tokio::select! {
        _reply = first.as_mut() => panic!("the first was answered"),
        _reply = second.as_mut() => panic!("the second was answered"),
        () = waiting => {}
    }
    drop(first);
    let reply = second.await;
    assert_eq!((reply.status, reply.header(REPLAYED)), (200, None));
    assert_eq!(asked(&bench), 2);
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::ClientAbort, Outcome::Success]
    );
}

#[tokio::test]
async fn a_second_stream_is_refused_while_the_first_runs() {
    let bench = Bench::start().await;
    bench.one.set(Selector::any(), [Mode::Stall { events: 3 }]);
    let body = chat("one/m", true);
    let headers = [("idempotency-key", "a")];
    let sent: Bytes = body.to_string().into();
    let open = bench.client.open(Method::POST, CHAT, &headers, sent).await;
    let mut stream = open.into_body();
    assert!(stream.frame().await.unwrap().unwrap().is_data());
    let reply = ask(&bench, "a", &body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (409, "idempotency_key_in_use")
    );
    assert!(reply.header("retry-after").is_some());
    drop(stream);
    bench
        .until("the end", |bench| !bench.control.heard().usages.is_empty())
        .await;
    let later = ask(&bench, "a", &body).await;
    assert!(later.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(later.header(REPLAYED), None, "streams are not kept");
    assert_eq!(asked(&bench), 2);
}

#[tokio::test]
async fn a_name_belongs_to_one_request() {
    let bench = Bench::start().await;
    assert_eq!(ask(&bench, "a", &chat("one/m", false)).await.status, 200);
    let reply = ask(&bench, "a", &chat("one/n", false)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (422, "idempotency_key_reused")
    );
    let long = "k".repeat(256);
    let reply = ask(&bench, &long, &chat("one/m", false)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "invalid_header")
    );
    // Another endpoint has names of its own.
    let body: Bytes = r#"{"model": "one/m", "input": "ahoy"}"#.into();
    let headers = [("idempotency-key", "a")];
    let reply = bench
        .client
        .send(Method::POST, "/v1/responses", &headers, body);
    assert_eq!(reply.await.status, 200);
    assert_eq!(asked(&bench), 2);
}

#[rstest]
#[case::names(WindowLimits { names: 0, ..WindowLimits::default() }, "not_remembered")]
#[case::bytes(WindowLimits { bytes: 0, ..WindowLimits::default() }, "first")]
#[case::answer(WindowLimits { answer_bytes: 10, ..WindowLimits::default() }, "first")]
#[tokio::test]
async fn at_a_limit_requests_are_sent_like_others(#[case] limits: WindowLimits, #[case] end: &str) {
    let bench = bench_with(limits).await;
    let body = chat("one/m", false);
    for _ in 0..2 {
        let reply = ask(&bench, "a", &body).await;
        assert_eq!((reply.status, reply.header(REPLAYED)), (200, None));
    }
    assert_eq!(asked(&bench), 2);
    assert!((counted(&bench, end).await - 2.0).abs() < 0.5);
}

#[tokio::test]
async fn who_finds_no_room_to_wait_is_sent() {
    let bench = Bench::start_with(Options {
        limits: Limits {
            max_waiting: 0,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set(Selector::any(), [Mode::Hang, Mode::Ok]);
    let body = chat("one/m", false);
    let second = async {
        bench.until("the first", |bench| asked(bench) == 1).await;
        ask(&bench, "a", &body).await
    };
    tokio::select! {
        _reply = ask(&bench, "a", &body) => panic!("the first was answered"),
        reply = second => assert_eq!(reply.status, 200),
    }
    assert!((counted(&bench, "not_remembered").await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn x_request_id_names_no_request() {
    let bench = Bench::start().await;
    let body: Bytes = chat("one/m", false).to_string().into();
    for _ in 0..2 {
        let headers = [("x-request-id", "a")];
        let reply = bench
            .client
            .send(Method::POST, CHAT, &headers, body.clone());
        assert_eq!(reply.await.header(REPLAYED), None);
    }
    assert_eq!(asked(&bench), 2);
    assert!(counted(&bench, "first").await < 0.5);
}

#[tokio::test]
async fn keys_do_not_share_names() {
    let bench = Bench::start_with(Options {
        leases: true,
        ..Options::default()
    })
    .await;
    let body = chat("one/m", false);
    assert_eq!(ask(&bench, "a", &body).await.status, 200);
    let lease_key = format!("Bearer {LEASE_KEY}");
    let headers = [
        ("idempotency-key", "a"),
        ("authorization", lease_key.as_str()),
    ];
    let body: Bytes = body.to_string().into();
    let reply = bench.client.send(Method::POST, CHAT, &headers, body).await;
    // It has no lease, and is told so rather than somebody else's answer.
    assert!(reply.status >= 400, "{reply:?}");
    assert_eq!(reply.header(REPLAYED), None);
}

#[rstest]
#[case::with_one_key(true, true)]
#[case::without_keys(false, false)]
#[tokio::test]
async fn a_name_belongs_to_a_key_or_else_to_an_address(#[case] keys: bool, #[case] shared: bool) {
    let bench = Bench::start_with(Options {
        keys,
        ..Options::default()
    })
    .await;
    let body = chat("one/m", false).to_string();
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {KEY}\r\n\
         idempotency-key: 1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
    );
    let from = async |last| {
        let address = Ipv4Addr::new(127, 0, 0, last);
        let answer = raw_from(address, bench.addr, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.contains(REPLAYED)
    };
    assert!(!from(1).await);
    assert_eq!(from(2).await, shared);
    assert!(from(1).await);
}
