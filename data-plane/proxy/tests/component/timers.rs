//! Each limit on an upstream by itself: what the client is told, and what is reported (`sessions-and-streams.md` §4.6).

use std::time::Duration;

use rstest::rstest;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_fake_upstream::{Mode, Selector};
use tidegate_plane_client::Deadlines;
use tokio::net::TcpListener;

use crate::bench::{Bench, Options, chat};

const CHAT: &str = "/v1/chat/completions";
const LIMIT: Option<Duration> = Some(Duration::from_millis(300));

fn none() -> Deadlines {
    Deadlines {
        connect: None,
        headers: None,
        readiness: None,
        idle: None,
        body: None,
        attempt: None,
        target: None,
    }
}

fn heartbeats() -> Mode {
    Mode::HeartbeatOnly {
        every: Duration::from_millis(20),
    }
}

/// With no limit but the one.
#[rstest]
#[case::headers(
    Mode::Hang, false, Deadlines { headers: LIMIT, ..none() },
    Outcome::Transport(TransportFault::HeadersTimeout), 502, "upstream_headers_timeout", "server_error"
)]
#[case::body(
    heartbeats(), false, Deadlines { body: LIMIT, ..none() },
    Outcome::Stream(StreamFault::IdleTimeout), 504, "stream_idle_timeout", "server_error"
)]
#[case::body_silent(
    Mode::Stall { events: 2 }, false, Deadlines { body: LIMIT, ..none() },
    Outcome::Stream(StreamFault::IdleTimeout), 504, "stream_idle_timeout", "server_error"
)]
#[case::vector_sessions_55_readiness(
    heartbeats(), true, Deadlines { readiness: LIMIT, ..none() },
    Outcome::Stream(StreamFault::ReadinessTimeout), 504, "STREAM_READINESS_TIMEOUT", "stream_timeout"
)]
#[case::vector_sessions_55_early_eof(
    Mode::Status { code: 200, body: Some(": ping\n\n: ping\n\n".to_owned()),
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())] },
    true, none(),
    Outcome::Stream(StreamFault::EarlyEof), 502, "STREAM_EARLY_EOF", "stream_early_eof"
)]
#[case::deadline_before_headers(
    Mode::Hang, true, Deadlines { attempt: LIMIT, ..none() },
    Outcome::Stream(StreamFault::DeadlineExceeded), 504, "attempt_deadline_exceeded", "server_error"
)]
#[case::deadline_before_readiness(
    heartbeats(), true, Deadlines { attempt: LIMIT, ..none() },
    Outcome::Stream(StreamFault::DeadlineExceeded), 504, "attempt_deadline_exceeded", "server_error"
)]
#[case::deadline_in_a_body(
    heartbeats(), false, Deadlines { attempt: LIMIT, ..none() },
    Outcome::Stream(StreamFault::DeadlineExceeded), 504, "attempt_deadline_exceeded", "server_error"
)]
#[case::reset(
    Mode::Reset,
    false,
    none(),
    Outcome::Transport(TransportFault::Reset),
    502,
    "upstream_reset",
    "server_error"
)]
#[case::protocol(
    Mode::raw("SSH-2.0-x\r\n\r\n"),
    false,
    none(),
    Outcome::Transport(TransportFault::Protocol),
    502,
    "upstream_protocol_error",
    "server_error"
)]
#[tokio::test]
async fn a_limit_that_passed_has_a_code(
    #[case] mode: Mode,
    #[case] stream: bool,
    #[case] deadlines: Deadlines,
    #[case] outcome: Outcome,
    #[case] status: u16,
    #[case] code: &str,
    #[case] error_type: &str,
) {
    let bench = Bench::start_with(Options {
        deadlines,
        ..Options::default()
    })
    .await;
    bench.one.set_default(mode);
    let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
    let error = reply.json()["error"].clone();
    assert_eq!(
        (reply.status, error["code"].as_str()),
        (status, Some(code)),
        "{error}"
    );
    assert_eq!(error["type"].as_str(), Some(error_type));
    assert_eq!(bench.control.outcomes(), [outcome]);
    bench
        .until("the end", |bench| bench.control.heard().released.len() == 1)
        .await;
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
}

/// What is dialled never shakes hands: the limit covers TLS.
#[tokio::test]
async fn dialling_has_a_limit_of_its_own() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let bench = Bench::start_with(Options {
        deadlines: Deadlines {
            connect: LIMIT,
            ..none()
        },
        one_at: Some(format!("https://127.0.0.1:{port}/v1")),
        ..Options::default()
    })
    .await;
    let reply = bench.client.post(CHAT, &chat("one/m", true)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (502, "upstream_unreachable")
    );
    let connect = Outcome::Transport(TransportFault::Connect);
    assert_eq!(bench.control.outcomes(), [connect]);
    drop(silent);
}
