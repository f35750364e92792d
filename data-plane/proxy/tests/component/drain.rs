//! Ending a proxy.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Mode, Reply, Selector};

use crate::bench::{Bench, LIMIT, chat};
use crate::client::read;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn readiness_goes_first() {
    let bench = Bench::start().await;
    assert_eq!(bench.client.get("/readyz").await.status, 200);
    let before = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(before.header("connection"), None);
    bench.proxy.announce_drain();
    assert_eq!(bench.client.get("/readyz").await.status, 503);
    assert_eq!(bench.client.get("/livez").await.status, 200);
    // Everything is served as before, and sends its client elsewhere with the next request.
    for stream in [false, true] {
        let reply = bench.client.post(CHAT, &chat("duo", stream)).await;
        assert_eq!(
            (reply.status, reply.header("connection")),
            (200, Some("close"))
        );
    }
    let unknown = bench.client.post(CHAT, &chat("nobody/m", false)).await;
    assert_eq!(
        (unknown.status, unknown.header("connection")),
        (404, Some("close"))
    );
    // There are no such headers in HTTP/2: its clients get GOAWAY when the listener closes.
    let reply = bench.client.with_small_window();
    let reply = reply.post(CHAT, &chat("duo", false)).await;
    assert_eq!((reply.status, reply.header("connection")), (200, None));
}

#[tokio::test]
async fn a_stream_finishes_within_the_grace() {
    let bench = Bench::start().await;
    bench.one.set_reply(Reply {
        chunks: 10,
        gap: Duration::from_millis(30),
        ..Reply::default()
    });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let proxy = Arc::clone(&bench.proxy);
    let draining = bench.tasks.spawn(async move { proxy.drain(LIMIT).await });
    let reply = read(response).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    tokio::time::timeout(LIMIT, draining)
        .await
        .unwrap()
        .unwrap();
    assert!(
        tokio::net::TcpStream::connect(bench.addr).await.is_err(),
        "nobody listens"
    );
}

#[tokio::test]
async fn what_outlives_the_grace_is_told_so() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    bench.two.set_default(Mode::Hang);
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let hanging = async {
        let waiting = chat("two/m", false);
        bench.client.post(CHAT, &waiting).await
    };
    let draining = async {
        assert!(bench.two.log().wait_for(&Selector::any(), 1, LIMIT).await);
        bench.proxy.drain(Duration::from_millis(50)).await;
    };
    let (refused, ()) = tokio::join!(hanging, draining);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "shutting_down")
    );
    let rest = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8([first, rest].concat()).unwrap();
    assert!(
        text.contains("\"shutting_down\"") && text.ends_with("\n\n"),
        "{text}"
    );
    assert!(!text.contains("[DONE]"));
    let outcomes = bench.control.outcomes();
    assert!(
        outcomes.contains(&Outcome::Local(LocalFault::ExecutionExpired)),
        "{outcomes:?}"
    );
}
