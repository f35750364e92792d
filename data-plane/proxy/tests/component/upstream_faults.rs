//! What an upstream can do wrong, streaming and not: each ends in bounded time with the specified error, one report of
//! it, and the permit given back.

use std::time::Duration;

use rstest::rstest;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_fake_upstream::{Closing, Mode, Reply, Selector};
use tidegate_plane_client::Deadlines;
use tidegate_proxy::Limits;

use crate::bench::{Bench, Options, chat};

const CHAT: &str = "/v1/chat/completions";
const EARLY: Outcome = Outcome::Stream(StreamFault::EarlyEof);
const UNREADY: Outcome = Outcome::Stream(StreamFault::ReadinessTimeout);
const IDLE: Outcome = Outcome::Stream(StreamFault::IdleTimeout);
const RESET: Outcome = Outcome::Transport(TransportFault::Reset);
const PROTOCOL: Outcome = Outcome::Transport(TransportFault::Protocol);

/// What ends a fault that is waited for. The next target has as long, so it is not short.
const SOON: Duration = Duration::from_millis(1_500);
/// What only ends a test that fails.
const LATE: Duration = Duration::from_secs(15);

/// No fault is waited for.
async fn bench() -> Bench {
    bench_with(LATE, LATE).await
}

/// What is waited for in vain ends soon.
async fn bench_for(outcome: &Outcome) -> Bench {
    let soon_if = |is_waited_for| if is_waited_for { SOON } else { LATE };
    bench_with(soon_if(*outcome == UNREADY), soon_if(*outcome == IDLE)).await
}

async fn bench_with(readiness: Duration, idle: Duration) -> Bench {
    Bench::start_with(Options {
        deadlines: Deadlines {
            readiness: Some(readiness),
            idle: Some(idle),
            body: Some(idle),
            ..Deadlines::default()
        },
        limits: Limits {
            max_answer_bytes: 1024 * 1024,
            ..Limits::default()
        },
        ..Options::default()
    })
    .await
}

fn head(status: &str, headers: &str, body: &str) -> Mode {
    Mode::raw(format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}"))
}

fn page() -> Mode {
    Mode::Status {
        code: 200,
        body: Some("<html>checking your browser</html>".to_owned()),
        headers: vec![(
            "content-type".to_owned(),
            "text/html; charset=utf-8".to_owned(),
        )],
    }
}

fn half_close(bytes: &'static str) -> Mode {
    Mode::Raw {
        bytes: bytes.into(),
        then: Closing::HalfClose,
    }
}

/// Its first event is not whole when it is to be ([`SOON`]).
fn byte_by_byte() -> Mode {
    Mode::ByteDrip {
        gap: Duration::from_millis(100),
    }
}

fn large_headers(count: usize, bytes: usize) -> Mode {
    let header = |number| (format!("x-large-{number}"), "a".repeat(bytes));
    Mode::WithHeaders {
        headers: (0..count).map(header).collect(),
        then: Box::default(),
    }
}

async fn until_ended(bench: &Bench, permits: usize) {
    bench
        .until("the end", |bench| {
            bench.control.heard().released.len() == permits
        })
        .await;
}

/// Nothing reached the client, so the next target answers.
#[rstest]
#[case::cut_in_an_event(Mode::CutInEvent { events: 0 }, true, EARLY)]
#[case::cut_in_json(Mode::CutInEvent { events: 0 }, false, EARLY)]
#[case::cut_in_a_character_of_json(Mode::CutInCodePoint, false, EARLY)]
#[case::json_that_lacks_its_end(Mode::MissingEnd { last: 1 }, false, PROTOCOL)]
#[case::no_body_of_a_stream(Mode::MissingEnd { last: usize::MAX }, true, EARLY)]
#[case::no_body(Mode::MissingEnd { last: usize::MAX }, false, EARLY)]
#[case::headers_only_of_a_stream(Mode::Stall { events: 0 }, true, UNREADY)]
#[case::headers_only(Mode::Stall { events: 0 }, false, IDLE)]
#[case::heartbeats_only(Mode::HeartbeatOnly { every: Duration::from_millis(10) }, true, UNREADY)]
#[case::blanks_only(Mode::HeartbeatOnly { every: Duration::from_millis(10) }, false, IDLE)]
#[case::garbage_of_a_stream(Mode::Garbage { bytes: 9_000 }, true, EARLY)]
#[case::garbage(Mode::Garbage { bytes: 9_000 }, false, PROTOCOL)]
#[case::a_long_string(Mode::LongLine { bytes: 100 * 1024 * 1024 }, false, PROTOCOL)]
#[case::a_bomb(Mode::GzipBomb { bytes: 1024 * 1024 * 1024 }, false, PROTOCOL)]
#[case::a_page(page(), false, PROTOCOL)]
#[case::a_page_for_a_stream(Mode::with_header("content-type", "text/html"), true, PROTOCOL)]
#[case::events_called_json(Mode::with_header("content-type", "application/json"), true, PROTOCOL)]
#[case::longer_than_announced(
    head(
        "200 OK",
        "content-type: application/json\r\ncontent-length: 5\r\n",
        "{\"choices\": []}"
    ),
    false,
    PROTOCOL
)]
#[case::shorter_than_announced(
    head(
        "200 OK",
        "content-type: application/json\r\ncontent-length: 50\r\n",
        "{\"choices\": []}"
    ),
    false,
    EARLY
)]
#[case::stream_shorter_than_announced(
    head(
        "200 OK",
        "content-type: text/event-stream\r\ncontent-length: 50\r\n",
        ": a\n\n"
    ),
    true,
    EARLY
)]
#[case::two_lengths(
    head("200 OK", "content-length: 2\r\ncontent-length: 3\r\n", "{} "),
    false,
    PROTOCOL
)]
#[case::broken_chunks(
    head("200 OK", "transfer-encoding: chunked\r\n", "zz\r\n{}"),
    false,
    EARLY
)]
#[case::reset(Mode::Reset, true, RESET)]
#[case::reset_in_the_body(Mode::ResetAfter { bytes: 20 }, false, EARLY)]
#[case::reset_in_a_stream(Mode::ResetAfter { bytes: 20 }, true, EARLY)]
#[case::closed(Mode::raw(""), false, RESET)]
#[case::half_closed(half_close(""), false, RESET)]
#[case::drip_of_a_stream(byte_by_byte(), true, UNREADY)]
#[case::no_content(head("204 No Content", "", ""), false, EARLY)]
#[case::no_status(head("abc", "", ""), false, PROTOCOL)]
#[case::no_http(Mode::raw("SSH-2.0-x\r\n\r\n"), true, PROTOCOL)]
#[case::large_headers(large_headers(100, 4_000), false, PROTOCOL)]
#[case::many_headers(large_headers(300, 1), true, PROTOCOL)]
#[tokio::test]
async fn before_the_first_byte_the_next_target_answers(
    #[case] mode: Mode,
    #[case] stream: bool,
    #[case] outcome: Outcome,
) {
    let bench = bench_for(&outcome).await;
    bench.one.set_default(mode);
    let reply = bench.client.post(CHAT, &chat("duo", stream)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert!(reply.text().contains("ahoy"));
    assert_eq!(bench.control.outcomes(), [outcome, Outcome::Success]);
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    until_ended(&bench, 2).await;
    assert_eq!(bench.control.heard().usages.len(), 1);
}

/// The client has begun to read, so it is told in its stream, and the target is reported.
#[rstest]
#[case::cut_in_an_event(Mode::CutInEvent { events: 3 })]
#[case::cut_in_a_character(Mode::CutInCodePoint)]
#[case::cut_in_a_later_event(Mode::CutInEvent { events: 4 })]
#[case::reset(Mode::ResetAfter { bytes: 700 })]
#[case::ended_in_the_middle(Mode::MissingEnd { last: 3 })]
#[case::a_long_line(Mode::LongLine { bytes: 100 * 1024 * 1024 })]
#[case::a_bomb(Mode::GzipBomb { bytes: 16 * 1024 * 1024 })]
#[tokio::test]
async fn after_the_first_byte_the_client_is_told(#[case] mode: Mode) {
    let bench = bench().await;
    // The first piece is whole before a mode breaks a character.
    bench.one.set_reply(Reply {
        opening: "ahoy".to_owned(),
        chunk_bytes: 4,
        ..Reply::default()
    });
    bench.one.set_default(mode);
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.status, 200);
    let text = reply.text();
    assert!(!text.contains("[DONE]") && !text.contains("\"stop\""));
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("\"stream_terminated\""), "{last}");
    let broken = Outcome::Stream(StreamFault::Truncated);
    assert_eq!(bench.control.outcomes(), [Outcome::Success, broken]);
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
    until_ended(&bench, 1).await;
    assert_eq!(bench.control.heard().usages.len(), 1);
}

/// Odd, and yet whole.
#[rstest]
#[case::no_end_mark(Mode::MissingEnd { last: 1 }, true)]
#[case::two_end_marks(Mode::DoubleEnd, true)]
#[case::early_hints(Mode::Informational { codes: vec![103, 103, 102], then: Box::default() }, true)]
#[case::early_hints_for_json(Mode::Informational { codes: vec![103], then: Box::default() }, false)]
#[case::half_closed(
    half_close(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 19\r\n\r\n{\"choices\": \"stop\"}"
    ),
    false
)]
#[case::until_the_end(
    head(
        "200 OK",
        "content-type: application/json\r\n",
        "{\"choices\": \"stop\"}"
    ),
    false
)]
#[tokio::test]
async fn what_is_whole_is_handed_on(#[case] mode: Mode, #[case] stream: bool) {
    let bench = bench().await;
    bench.one.set_default(mode);
    let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let text = reply.text();
    assert!(text.contains("\"stop"), "{text}");
    assert!(!text.contains("stream_terminated"));
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    until_ended(&bench, 1).await;
    assert_eq!(bench.control.heard().usages.len(), 1);
}

/// A redirect would carry the credential to whoever it names.
#[rstest]
#[tokio::test]
async fn redirects_are_not_followed(
    #[values(301, 302, 303, 307, 308, 304)] status: u16,
    #[values(false, true)] stream: bool,
) {
    let bench = bench().await;
    let location = format!("{}/chat/completions", bench.two.base_url());
    bench.one.set_default(Mode::Status {
        code: status,
        body: Some(String::new()),
        headers: vec![("location".to_owned(), location)],
    });
    let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
    assert!(reply.status >= 400, "{reply:?}");
    assert_eq!(reply.header("location"), None);
    assert!(reply.json()["error"]["message"].is_string());
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
    let outcomes = bench.control.outcomes();
    let [Outcome::Response(error)] = outcomes.as_slice() else {
        panic!("{outcomes:?}");
    };
    assert_eq!(error.status, status);
    until_ended(&bench, 1).await;
}

/// An upgrade that nobody asked for is no answer.
#[tokio::test]
async fn switching_protocols_is_no_answer() {
    let bench = bench().await;
    let headers = "connection: upgrade\r\nupgrade: x\r\n";
    bench
        .one
        .set_default(head("101 Switching Protocols", headers, "hello"));
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(
        reply.header("x-omniroute-provider"),
        Some("two"),
        "{reply:?}"
    );
    assert_eq!(bench.control.outcomes().len(), 2);
    until_ended(&bench, 2).await;
}

/// A drip of whole events is slow, and whole all the same.
#[tokio::test]
async fn an_answer_may_come_byte_by_byte() {
    let bench = bench().await;
    bench.one.set_default(Mode::ByteDrip {
        gap: Duration::from_millis(1),
    });
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert!(reply.json()["choices"][0]["message"]["content"].is_string());
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
}

/// A connection that its upstream closed while it was idle is not the upstream's fault.
#[tokio::test]
async fn a_stale_connection_is_not_used() {
    let bench = bench().await;
    let kept = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    bench.one.set_default(Mode::raw(kept));
    for number in 1..=30 {
        let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        // The upstream's own end of the connection is closed by then.
        let log = bench.one.log();
        let any = Selector::any();
        let ended = log.wait_for(&any, number, crate::bench::LIMIT);
        assert!(ended.await);
    }
    let outcomes = bench.control.outcomes();
    assert_eq!(outcomes.len(), 30);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Success));
}
