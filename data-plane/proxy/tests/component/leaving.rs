//! Requests that end without an answer: the client leaves, a phase panics.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::json;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Ending, Mode, Selector};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::bench::{Bench, KEY, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";

async fn in_flight(bench: &Bench) -> f64 {
    bench.metric("tidegate_dp_requests_in_flight").await
}

/// Sends a request and leaves when `there` holds.
async fn leave_when(bench: &Bench, model: &str, there: impl Fn(&Bench) -> bool) {
    let body = chat(model, true);
    tokio::select! {
        _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
        () = bench.until("the moment to leave", there) => {}
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_the_upstreams_too() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let response = bench.client.open_post(CHAT, &chat("duo", true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!((in_flight(&bench).await - 1.0).abs() < 0.5);
    drop(body);
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("the end", |bench| !bench.control.heard().usages.is_empty())
        .await;
    assert_eq!(
        bench.control.outcomes(),
        [Outcome::Success],
        "no verdict on the upstream"
    );
    assert!(in_flight(&bench).await.abs() < 0.5);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_abort\"}";
    assert!((bench.metric(end).await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn a_client_that_leaves_before_an_answer_is_no_verdict() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Hang);
    leave_when(&bench, "duo", |bench| {
        bench.one.log().count(&Selector::any()) == 1
    })
    .await;
    bench
        .until("a report", |bench| !bench.control.outcomes().is_empty())
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::ClientAbort]);
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
}

#[tokio::test]
async fn an_attempt_that_is_not_sent_is_given_back() {
    let bench = Bench::start().await;
    bench.control.silent.store(true, Ordering::Relaxed);
    leave_when(&bench, "duo", |bench| bench.control.heard().asks == 1).await;
    bench
        .until("the attempt", |bench| {
            bench.control.heard().abandoned.len() == 1
        })
        .await;
    assert_eq!(bench.control.outcomes(), []);
}

/// A client that disconnects while its request waits is counted as gone; nobody is there to read the 499.
#[tokio::test]
async fn vector_routing_v_cw12() {
    let bench = Bench::start_with(Options {
        waits: true,
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::rate_limited("60"));
    leave_when(&bench, "one/m", |bench| bench.control.outcomes().len() == 1).await;
    bench
        .until("the attempt", |bench| {
            bench.control.heard().abandoned.len() == 1
        })
        .await;
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"client_abort\"}";
    assert!((bench.metric(end).await - 1.0).abs() < 0.5);
}

/// Nothing was decided yet, so there is nothing to give back.
#[tokio::test]
async fn a_client_that_leaves_within_its_body_was_never_there() {
    let bench = Bench::start().await;
    for part in ["", "{\"model\":", "{\"model\":\"one/m\"}"] {
        let mut stream = TcpStream::connect(bench.addr).await.unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: 50\r\n\r\n{part}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let open = async {
            while bench.metric("tidegate_dp_connections").await < 1.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, open).await.unwrap();
        drop(stream);
        let closed = async {
            // The other one is the one that asks for metrics.
            while bench.metric("tidegate_dp_connections").await > 1.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, closed).await.unwrap();
    }
    let heard = bench.control.heard();
    assert_eq!((heard.asks, heard.abandoned.len()), (0, 0));
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
    assert!(in_flight(&bench).await.abs() < 0.5);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_for_a_permit_gives_its_place_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(503));
    bench.control.is_full.store(true, Ordering::Relaxed);
    leave_when(&bench, "duo", |bench| {
        bench.control.heard().awaited.len() == 1
    })
    .await;
    bench
        .until("the attempt", |bench| {
            bench.control.heard().abandoned.len() == 1
        })
        .await;
    let heard = bench.control.heard();
    assert_eq!(heard.abandoned[0].0, heard.awaited[0]);
    assert_eq!(heard.reports.len(), 1, "of the attempt that failed");
    assert_eq!(heard.released.len(), 1, "of the same");
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
    assert!(in_flight(&bench).await.abs() < 0.5);
}

async fn until_queued(bench: &Bench, count: f64) {
    let queued = async {
        while (bench.metric("tidegate_dp_queued").await - count).abs() > 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, queued).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_a_queue_frees_its_place() {
    let bench = Bench::start_with(Options {
        settings: json!({"requestQueue": {"concurrentRequests": 1, "maxQueueDepth": 1}}),
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::Hang);
    let body = chat("one/m", true);
    let running = bench.client.open_post(CHAT, &body);
    let leaving = async {
        bench
            .until("the first one", |bench| {
                bench.one.log().count(&Selector::any()) == 1
            })
            .await;
        // The second one finds the place free that the first one left.
        for _ in 0..2 {
            tokio::select! {
                _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
                () = until_queued(&bench, 1.0) => {}
            }
            until_queued(&bench, 0.0).await;
        }
    };
    tokio::select! {
        _response = running => panic!("there was an answer"),
        () = leaving => {}
    }
    let refused = "tidegate_dp_queue_total{end=\"refused\"}";
    assert!(bench.metric(refused).await < 0.5);
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    bench
        .until("the end", |bench| bench.control.outcomes().len() == 1)
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::ClientAbort]);
}

/// It has its whole answer, whatever the upstream still does.
#[tokio::test]
async fn a_client_that_leaves_after_the_last_event_has_its_answer() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 1_000 });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let mut body = response.into_body();
    let mut text = String::new();
    while !text.ends_with("data: [DONE]\n\n") {
        let frame = tokio::time::timeout(LIMIT, body.frame()).await.unwrap();
        let data = frame.unwrap().unwrap().into_data().unwrap();
        text.push_str(std::str::from_utf8(&data).unwrap());
    }
    drop(body);
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert_eq!(bench.control.heard().usages.len(), 1);
    let end = "tidegate_dp_requests_total{endpoint=\"chat_completions\",end=\"complete\"}";
    assert!((bench.metric(end).await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn a_panic_ends_only_its_own_request() {
    let bench = Bench::start().await;
    bench.control.panics.store(true, Ordering::Relaxed);
    let reply = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (500, "internal_error")
    );
    assert_eq!(bench.control.heard().abandoned.len(), 1);
    assert!(in_flight(&bench).await.abs() < 0.5);
    bench.control.panics.store(false, Ordering::Relaxed);
    assert_eq!(
        bench.client.post(CHAT, &chat("duo", false)).await.status,
        200
    );
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_the_upstream_down_and_is_let_go() {
    let bench = Bench::start_with(Options {
        limits: tidegate_proxy::Limits {
            stall_time: Duration::from_millis(300),
            ..Default::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    // Nobody reads the body, but it stays.
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("the end", |bench| !bench.control.heard().usages.is_empty())
        .await;
    assert!(
        !bench
            .control
            .outcomes()
            .contains(&Outcome::Local(LocalFault::Internal))
    );
    drop(response);
}

#[tokio::test]
async fn a_client_that_opens_no_window_does_not_hold_the_upstream() {
    let bench = Bench::start_with(Options {
        limits: tidegate_proxy::Limits {
            stall_time: Duration::from_millis(300),
            ..Default::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let client = bench.client.with_small_window();
    let response = client.open_post(CHAT, &chat("one/m", true)).await;
    assert_eq!(response.version(), http::Version::HTTP_2);
    // Nobody reads the body, but the connection is well.
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("the end", |bench| !bench.control.heard().usages.is_empty())
        .await;
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    let text = crate::client::read(response).await.text();
    assert!(
        text.contains("client_stalled"),
        "it is told when it reads on"
    );
}

#[tokio::test]
async fn the_deadline_holds_for_a_client_that_opens_no_window() {
    let bench = Bench::start_with(Options {
        deadlines: tidegate_plane_client::Deadlines {
            attempt: Some(Duration::from_millis(2_000)),
            ..Options::default().deadlines
        },
        ..Options::default()
    })
    .await;
    bench.one.set_reply(tidegate_fake_upstream::Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Default::default()
    });
    let client = bench.client.with_small_window();
    let response = client.open_post(CHAT, &chat("one/m", true)).await;
    let ending = bench
        .one
        .log()
        .wait_for_ending(&Selector::any(), LIMIT)
        .await;
    assert_eq!(ending, Some(Ending::Aborted));
    bench
        .until("the report", |bench| bench.control.outcomes().len() == 2)
        .await;
    let outcomes = bench.control.outcomes();
    let too_late = Outcome::Stream(tidegate_core::outcome::StreamFault::DeadlineExceeded);
    assert_eq!(outcomes, [Outcome::Success, too_late]);
    drop(response);
}
