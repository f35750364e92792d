//! What the control plane answers, and who gets in where.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use rstest::rstest;
use secrecy::ExposeSecret as _;
use serde_json::json;
use tidegate_core::management::Operation;
use tidegate_fake_upstream::Selector;
use tidegate_plane_client::{ManagementAnswer, ManagementCall};
use tidegate_proxy::{Guard, Limits, Surface, served};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::bench::{Bench, LIMIT, Options};
use crate::client::Reply;

const HEALTH: &str = "/api/monitoring/health";
const RESET: &str = "/api/resilience/reset";
const SETTINGS: &str = "/api/resilience";
const NO_KEY: (&str, &str) = ("authorization", "");

fn answers(bench: &Bench, status: u16, body: &str, allow: Option<&str>) {
    *bench.control.managed.lock() = Some(ManagementAnswer {
        status,
        body: body.to_owned().into(),
        allow: allow.map(ToOwned::to_owned),
    });
}

fn asked(bench: &Bench) -> Vec<ManagementCall> {
    bench.control.heard().managed
}

async fn send(bench: &Bench, method: Method, path: &str, body: &str) -> Reply {
    let body = Bytes::from(body.to_owned());
    bench.client.send(method, path, &[], body).await
}

#[tokio::test]
async fn requests_travel_with_what_their_client_showed_and_answers_come_back_whole() {
    let bench = Bench::start().await;
    answers(&bench, 400, "{\"error\":1}", Some("GET, PATCH"));
    let path = "/api/resilience?dry=1";
    let headers = [("authorization", "Bearer mine"), ("x-api-key", "other")];
    let reply = bench
        .client
        .send(Method::PATCH, path, &headers, Bytes::from_static(b"{}"))
        .await;
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (400, "{\"error\":1}")
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("allow"), Some("GET, PATCH"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert!(reply.header("x-omniroute-request-id").is_some());
    answers(&bench, 401, "{}", None);
    let reply = send(&bench, Method::HEAD, SETTINGS, "").await;
    assert_eq!((reply.status, reply.body.len()), (401, 0));
    assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    let [patch, head] = &*asked(&bench) else {
        panic!("two requests");
    };
    assert_eq!(patch.operation, Operation::PatchSettings);
    assert_eq!((patch.method.as_str(), patch.path), ("PATCH", SETTINGS));
    let shown = patch.authorization.as_ref().unwrap();
    assert_eq!(shown.expose_secret(), "Bearer mine");
    assert_eq!(patch.body, "{}");
    assert!(!format!("{patch:?}").contains("mine"));
    assert_eq!(
        (head.method.as_str(), head.operation),
        ("HEAD", Operation::ShowSettings)
    );
}

#[tokio::test]
async fn without_a_control_plane_health_is_degraded_and_the_rest_is_unavailable() {
    let bench = Bench::start().await;
    bench.control.silent.store(true, Ordering::Relaxed);
    let stranger = bench
        .client
        .send(Method::GET, HEALTH, &[NO_KEY], Bytes::new())
        .await;
    let word = json!({"status": "degraded"});
    assert_eq!((stranger.status, stranger.json()), (200, word));
    let known = bench.client.get(HEALTH).await;
    assert_eq!(
        (known.status, &known.json()["status"]),
        (200, &json!("degraded"))
    );
    for (member, empty) in [("providerBreakers", json!([])), ("lockouts", json!([]))] {
        assert_eq!(known.json()[member], empty);
    }
    for (method, path) in [
        (Method::DELETE, HEALTH),
        (Method::POST, RESET),
        (Method::GET, SETTINGS),
        (Method::DELETE, "/api/resilience/model-cooldowns"),
    ] {
        let reply = send(&bench, method, path, "{}").await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (503, "control_plane_unreachable")
        );
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    let unanswered =
        "tidegate_dp_management_requests_total{operation=\"reset\",end=\"unanswered\"}";
    assert_eq!(bench.metric(unanswered).await, 1.0);
}

#[tokio::test]
async fn bodies_are_bounded_and_those_of_strangers_are_not_read() {
    let bench = Bench::start().await;
    answers(&bench, 200, "{}", None);
    let large = "x".repeat(1024 * 1024 + 1);
    let reply = send(&bench, Method::POST, RESET, &large).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (413, "body_too_large")
    );
    let zipped = [("content-encoding", "gzip")];
    let reply = bench
        .client
        .send(Method::POST, RESET, &zipped, Bytes::from_static(b"x"))
        .await;
    assert_eq!(reply.status, 415);
    assert_eq!(asked(&bench).len(), 0);
    let whole = "x".repeat(1024 * 1024);
    assert_eq!(send(&bench, Method::POST, RESET, &whole).await.status, 200);
    // Nobody is asked about who shows nothing.
    for (method, path) in [
        (Method::POST, RESET),
        (Method::PATCH, SETTINGS),
        (Method::DELETE, HEALTH),
        (Method::GET, SETTINGS),
    ] {
        let body = Bytes::from_static(b"{}");
        let stranger = bench.client.send(method, path, &[NO_KEY], body).await;
        assert_eq!(
            (stranger.status, stranger.code().as_str()),
            (401, "CP0008"),
            "{path}"
        );
        assert_eq!(stranger.header("www-authenticate"), Some("Bearer"));
    }
    let lengths: Vec<(usize, bool)> = asked(&bench)
        .iter()
        .map(|call| (call.body.len(), call.authorization.is_some()))
        .collect();
    assert_eq!(lengths, [(1024 * 1024, true)]);
}

#[tokio::test]
async fn a_crowd_of_strangers_costs_the_control_plane_one_question() {
    let bench = Bench::start().await;
    answers(&bench, 200, "{\"status\":\"healthy\"}", None);
    let asking = (0..50).map(|_| {
        bench
            .client
            .send(Method::GET, HEALTH, &[NO_KEY], Bytes::new())
    });
    for reply in futures::future::join_all(asking).await {
        assert_eq!(reply.json(), json!({"status": "healthy"}));
    }
    assert!(asked(&bench).len() < 25, "{}", asked(&bench).len());
}

/// Every method that has a path.
const METHODS: [Method; 8] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
];

#[rstest]
#[case::with_keys(true)]
#[case::where_one_is_always_required(false)]
#[tokio::test]
async fn without_credentials_every_method_of_every_path_leads_nowhere(#[case] keys: bool) {
    let bench = Bench::start_with(Options {
        keys,
        limits: Limits {
            require_key: !keys,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    // The control plane's part is to refuse.
    answers(&bench, 401, "{}", None);
    let body = "{\"model\": \"one/m\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
    let paths: Vec<_> = served().collect();
    assert!(paths.len() > 24, "{paths:?}");
    for served in paths {
        for method in METHODS {
            for key in ["", "Bearer sk-wrong"] {
                let headers = [("authorization", key)];
                let reply = bench
                    .client
                    .send(method.clone(), served.path, &headers, Bytes::from(body))
                    .await;
                let allows = served.allow.split(", ").any(|it| it == method.as_str());
                let expected = match served.guard {
                    _ if !allows => 405,
                    _ if method == Method::OPTIONS => 204,
                    Guard::Nobody => 200,
                    Guard::Key | Guard::LeaseKey | Guard::ControlPlane => 401,
                };
                let what = format!("{method} {} with {key:?}", served.path);
                assert_eq!(reply.status, expected, "{what}");
                if !allows {
                    assert_eq!(reply.header("allow"), Some(served.allow), "{what}");
                }
                // Clients' keys and accounts stand nowhere.
                let told = reply.text();
                assert!(
                    !told.contains("one-a") && !told.contains("sk-"),
                    "{what}: {told}"
                );
            }
        }
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
    assert_eq!(bench.control.heard().asks, 0);
}

#[tokio::test]
async fn each_surface_serves_its_own_paths_and_no_others() {
    let bench = Bench::start().await;
    answers(&bench, 401, "{}", None);
    for surface in [Surface::Clients, Surface::Admin] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = crate::client::Client::new(listener.local_addr().unwrap(), "sk-wrong");
        let serving = std::sync::Arc::clone(&bench.proxy);
        bench
            .tasks
            .spawn(async move { serving.serve(listener, surface).await });
        for served in served() {
            let is_there = served.is_admin == (surface == Surface::Admin);
            let status = client.get(served.path).await.status;
            assert_eq!(status != 404, is_there, "{} at {surface:?}", served.path);
        }
    }
}

#[rstest]
#[case::short_ones(2)]
#[case::long_ones(20_000)]
#[tokio::test]
async fn who_sends_bodies_slowly_keeps_nobody_waiting(#[case] length: usize) {
    let bench = Bench::start().await;
    answers(&bench, 200, "{}", None);
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(bench.addr).await.unwrap();
        let head = format!(
            "POST {RESET} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\ncontent-length: {length}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    for (method, path) in [
        (Method::GET, SETTINGS),
        (Method::GET, HEALTH),
        (Method::POST, RESET),
        (Method::PATCH, SETTINGS),
    ] {
        let answer = timeout(LIMIT, send(&bench, method.clone(), path, "{}")).await;
        assert_eq!(answer.expect("an answer").status, 200, "{method} {path}");
    }
    // As many as may are being read; whoever ends makes room for the others.
    let rest = vec![b'}'; length - 1];
    for stream in &mut slow {
        stream.write_all(&rest).await.unwrap();
    }
    for mut stream in slow {
        let mut status = [0; 12];
        let read = timeout(LIMIT, stream.read_exact(&mut status)).await;
        read.expect("an answer").unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
}

#[tokio::test]
async fn a_wait_for_a_place_counts_within_the_limit() {
    let bench = Bench::start_with(Options {
        limits: Limits {
            look_time: Duration::from_millis(50),
            change_time: Duration::from_millis(50),
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    bench.control.hangs.store(true, Ordering::Relaxed);
    // More than may be asked at once, all of them hang, and each is answered.
    for (method, path, count, status) in [
        (Method::POST, RESET, 20, 503),
        (Method::GET, SETTINGS, 70, 503),
        (Method::GET, HEALTH, 70, 200),
    ] {
        let asking = (0..count).map(|_| send(&bench, method.clone(), path, ""));
        let answers = timeout(LIMIT, futures::future::join_all(asking)).await;
        for answer in answers.expect("answers") {
            assert_eq!(answer.status, status, "{method} {path}");
        }
    }
    let degraded = bench.client.get(HEALTH).await;
    assert_eq!(degraded.json()["status"], "degraded");
}
