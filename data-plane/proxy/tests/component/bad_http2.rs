//! Clients that misuse HTTP/2.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request};
use rstest::rstest;
use tidegate_core::outcome::Outcome;
use tidegate_fake_upstream::{Mode, Selector};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::{Bench, KEY, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";
/// Streams that a client may have open at once.
const MAX_STREAMS: f64 = 256.0;

/// A connection, which ends with its second half.
async fn connect(
    bench: &Bench,
    builder: &h2::client::Builder,
) -> (SendRequest<Bytes>, AbortOnDropHandle<()>) {
    let stream = TcpStream::connect(bench.addr).await.unwrap();
    let (client, connection) = builder.handshake(stream).await.unwrap();
    let connection = bench.tasks.spawn(async move {
        // How it ends is what some of these tests are about, and seen from its requests.
        drop(connection.await);
    });
    (client, AbortOnDropHandle::new(connection))
}

fn post() -> Request<()> {
    Request::post(format!("http://x{CHAT}"))
        .header("authorization", format!("Bearer {KEY}"))
        .body(())
        .unwrap()
}

/// Sends a request; false when the connection takes none any more.
async fn ask(client: &SendRequest<Bytes>, model: &str) -> Option<h2::client::ResponseFuture> {
    let mut ready = client.clone().ready().await.ok()?;
    let (response, mut body) = ready.send_request(post(), false).ok()?;
    body.send_data(chat(model, true).to_string().into(), true)
        .ok()?;
    Some(response)
}

/// Requests that are taken back as soon as they are made cost what is in flight, never more.
#[rstest]
#[case::before_they_are_read(false)]
#[case::while_the_provider_is_asked(true)]
#[tokio::test]
async fn requests_that_are_taken_back_at_once(#[case] waits: bool) {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Hang);
    let (client, _connection) = connect(&bench, &h2::client::Builder::new()).await;
    let mut sent = 0_u32;
    for round in 0_u64..20 {
        let mut open = Vec::new();
        for _ in 0..100 {
            let asked = tokio::time::timeout(LIMIT, ask(&client, "one/m")).await;
            match asked.expect("room in time") {
                Some(response) => open.push(response),
                // The connection was ended, which is as good.
                None => break,
            }
        }
        sent += u32::try_from(open.len()).unwrap();
        if waits && !open.is_empty() {
            bench
                .until("the provider is asked", |bench| {
                    bench.one.log().count(&Selector::any()) > round
                })
                .await;
        }
        let in_flight = bench.metric("tidegate_dp_requests_in_flight").await;
        assert!(in_flight <= MAX_STREAMS, "{in_flight}");
        drop(open);
    }
    assert!(sent >= 100, "{sent}");
    let idle = async {
        while bench.metric("tidegate_dp_requests_in_flight").await > 0.5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, idle).await.unwrap();
    let heard = bench.control.heard();
    let attempts = bench.one.log().count(&Selector::any());
    // Each attempt that was sent has its one report and gave its permit back; the provider may not have seen them all.
    assert!(u64::try_from(heard.reports.len()).unwrap() >= attempts);
    assert_eq!(heard.reports.len(), heard.released.len());
    assert!(
        bench
            .control
            .outcomes()
            .iter()
            .all(|outcome| *outcome == Outcome::ClientAbort)
    );
    bench.one.heal();
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn nobody_is_connected_through() {
    let bench = Bench::start().await;
    let (mut client, _connection) = connect(&bench, &h2::client::Builder::new()).await;
    client = client.ready().await.unwrap();
    assert!(!client.is_extended_connect_protocol_enabled());
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri(bench.one.addr().to_string())
        .header("authorization", format!("Bearer {KEY}"))
        .body(())
        .unwrap();
    let (response, _body) = client.send_request(request, false).unwrap();
    let response = tokio::time::timeout(LIMIT, response)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(bench.one.log().count(&Selector::any()), 0);
}

/// A client whose window is shut from the beginning gets its head, and no byte is kept for it for ever.
#[rstest]
#[case::a_stream(true)]
#[case::a_whole_answer(false)]
#[tokio::test]
async fn a_window_that_is_never_opened(#[case] stream: bool) {
    let mut options = Options::default();
    options.limits.stall_time = Duration::from_millis(300);
    let bench = Bench::start_with(options).await;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (client, _connection) = connect(&bench, &builder).await;
    let mut ready = client.ready().await.unwrap();
    let (response, mut body) = ready.send_request(post(), false).unwrap();
    body.send_data(chat("one/m", stream).to_string().into(), true)
        .unwrap();
    let response = tokio::time::timeout(LIMIT, response)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), 200);
    bench
        .until("the end", |bench| bench.control.heard().usages.len() == 1)
        .await;
    assert_eq!(bench.control.heard().released.len(), 1);
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert!(bench.metric("tidegate_dp_streams_open").await < 0.5);
    drop(response);
}
