//! However a request ends, each of its attempts is finalized once (`sessions-and-streams.md` §4.7, §4.8): one record of
//! usage where it gave an answer, one report (and one more where its stream broke later, decision 8), one release of its
//! permit.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::json;
use tidegate_core::ids::{AttemptId, ConnectionId};
use tidegate_fake_upstream::{Mode, Reply, Selector};
use tidegate_plane_client::{Deadlines, Observation};
use tidegate_proxy::Limits;

use crate::bench::{Bench, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";

/// How often things happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Attempts that were sent.
    attempts: usize,
    reports: usize,
    usages: usize,
}

impl Counts {
    /// So many attempts, each of which gave an answer.
    pub(crate) fn served(attempts: usize) -> Self {
        Self {
            attempts,
            reports: attempts,
            usages: attempts,
        }
    }
}

/// One attempt that gave an answer.
const SERVED: Counts = Counts {
    attempts: 1,
    reports: 1,
    usages: 1,
};
/// One that gave an answer and broke later.
const BROKE: Counts = Counts {
    reports: 2,
    ..SERVED
};
/// One that gave no answer.
const FAILED: Counts = Counts {
    usages: 0,
    ..SERVED
};

fn no_duplicates(of: &str, ids: impl IntoIterator<Item = AttemptId>) -> BTreeSet<AttemptId> {
    let ids: Vec<AttemptId> = ids.into_iter().collect();
    let distinct: BTreeSet<AttemptId> = ids.iter().copied().collect();
    assert_eq!(ids.len(), distinct.len(), "{of} twice: {ids:?}");
    distinct
}

/// Ends the proxy, so that nothing can come any more, and looks at everything that came.
pub(crate) async fn is_settled(bench: Bench, expected: Counts) {
    bench
        .until("everything is over", |bench| {
            let heard = bench.control.heard();
            heard.released.len() >= expected.attempts && heard.usages.len() >= expected.usages
        })
        .await;
    assert!(bench.metric("tidegate_dp_streams_open").await.abs() < 0.5);
    assert!(bench.metric("tidegate_dp_requests_in_flight").await.abs() < 0.5);
    bench.proxy.drain(Duration::ZERO).await;
    let heard = bench.control.heard();
    let began = |observation: &Observation| match observation {
        Observation::Began(connection) => Some(connection.clone()),
        _ => None,
    };
    let over = |observation: &Observation| match observation {
        Observation::Over(connection) => Some(connection.clone()),
        _ => None,
    };
    let sorted = |of: fn(&Observation) -> Option<ConnectionId>| {
        let mut connections: Vec<_> = heard.observed.iter().filter_map(of).collect();
        connections.sort();
        connections
    };
    assert_eq!(sorted(began), sorted(over));
    let released = no_duplicates("released", heard.released.iter().copied());
    let usages = no_duplicates("recorded", heard.usages.iter().map(|it| it.attempt));
    let opened = no_duplicates("opened", heard.opened.iter().map(|it| it.attempt));
    assert_eq!(opened, usages, "what gave an answer is recorded");
    let found = Counts {
        attempts: sorted(began).len(),
        reports: heard.reports.len(),
        usages: usages.len(),
    };
    assert_eq!(found, expected, "{:?}", heard.reports);
    assert_eq!(released.len(), expected.attempts, "each had a permit");
    for attempt in &released {
        let reports = heard.reports.iter();
        let of_it = reports.filter(|(report, _)| report.attempt.id == *attempt);
        let most = if usages.contains(attempt) { 2 } else { 1 };
        assert!((1..=most).contains(&of_it.count()), "{:?}", heard.reports);
    }
}

#[rstest]
#[case::whole(Mode::Ok, "one/m", false, SERVED)]
#[case::a_stream(Mode::Ok, "one/m", true, SERVED)]
#[case::slow(Mode::SlowDrip { gap: Duration::from_millis(5) }, "one/m", true, SERVED)]
#[case::a_stream_that_is_cut(Mode::CutAfter { bytes: 900 }, "one/m", true, BROKE)]
#[case::an_error_in_the_middle(Mode::SseErrorAfter { events: 3, error: None }, "one/m", true, BROKE)]
#[case::an_error_at_first(Mode::sse_error_first(), "one/m", true, FAILED)]
#[case::silence_after_an_answer(Mode::Stall { events: 3 }, "one/m", true, BROKE)]
#[case::silence_before_one(Mode::Stall { events: 0 }, "one/m", true, FAILED)]
#[case::no_head(Mode::Hang, "one/m", true, FAILED)]
#[case::a_reset(Mode::Reset, "one/m", false, FAILED)]
#[case::a_body_that_is_cut(Mode::CutAfter { bytes: 30 }, "one/m", false, FAILED)]
#[case::an_error(Mode::status(503), "one/m", false, FAILED)]
#[case::a_fail_over(Mode::status(503), "duo", true, Counts { attempts: 2, reports: 2, usages: 1 })]
#[tokio::test]
async fn an_answer_or_a_failure_is_finalized_once(
    #[case] mode: Mode,
    #[case] model: &str,
    #[case] stream: bool,
    #[case] expected: Counts,
) {
    let bench = Bench::start_with(Options {
        deadlines: Deadlines {
            headers: Some(Duration::from_millis(1_500)),
            readiness: Some(Duration::from_millis(1_500)),
            idle: Some(Duration::from_millis(1_500)),
            ..Deadlines::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_default(mode);
    bench.client.post(CHAT, &chat(model, stream)).await;
    is_settled(bench, expected).await;
}

#[tokio::test]
async fn a_deadline_finalizes_once() {
    let bench = Bench::start_with(Options {
        deadlines: Deadlines {
            attempt: Some(Duration::from_millis(1_500)),
            ..Deadlines::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_default(Mode::Stall { events: 3 });
    bench.client.post(CHAT, &chat("one/m", true)).await;
    is_settled(bench, BROKE).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_finalizes_once() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    drop(body);
    is_settled(bench, SERVED).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_an_answer_finalizes_once() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Hang);
    let body = chat("one/m", true);
    let any = Selector::any();
    tokio::select! {
        _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
        arrived = bench.one.log().wait_for(&any, 1, LIMIT) => assert!(arrived),
    }
    is_settled(bench, FAILED).await;
}

#[rstest]
#[case::http_1(false)]
#[case::http_2_without_a_window(true)]
#[tokio::test]
async fn a_client_that_does_not_read_finalizes_once(#[case] small_window: bool) {
    let bench = Bench::start_with(Options {
        limits: Limits {
            stall_time: Duration::from_millis(300),
            ..Limits::default()
        },
        ..Options::default()
    })
    .await;
    bench.one.set_reply(Reply {
        chunks: 4_000,
        chunk_bytes: 8_192,
        ..Reply::default()
    });
    let windowless = bench.client.with_small_window();
    let client = if small_window {
        &windowless
    } else {
        &bench.client
    };
    // Nobody reads the body, but it stays.
    let response = client.open_post(CHAT, &chat("one/m", true)).await;
    bench
        .until("it is let go", |bench| {
            !bench.control.heard().usages.is_empty()
        })
        .await;
    drop(response);
    is_settled(bench, SERVED).await;
}

#[tokio::test]
async fn a_drain_finalizes_once() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    bench.two.set_default(Mode::Hang);
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let hanging = async {
        let reply = bench.client.post(CHAT, &chat("two/m", false)).await;
        assert_eq!(reply.code(), "shutting_down");
    };
    let draining = async {
        assert!(bench.two.log().wait_for(&Selector::any(), 1, LIMIT).await);
        bench.proxy.drain(Duration::from_millis(50)).await;
    };
    tokio::join!(hanging, draining);
    let heard = bench.control.heard();
    let recorded = no_duplicates("recorded", heard.usages.iter().map(|it| it.attempt));
    let released = no_duplicates("released", heard.released.iter().copied());
    assert_eq!((recorded.len(), released.len()), (1, 2));
    // Success of the stream, and the end of the one that hangs.
    assert_eq!(heard.reports.len(), 2, "{:?}", heard.reports);
    drop(response);
}

/// What comes after the panic, the report of the break, is lost with it; nothing else is.
#[tokio::test]
async fn a_panic_while_a_stream_is_passed_on_finalizes_once() {
    let bench = Bench::start().await;
    bench
        .control
        .panics_at_breaks
        .store(true, Ordering::Relaxed);
    bench.one.set_default(Mode::CutAfter { bytes: 900 });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let ended = tokio::time::timeout(LIMIT, response.into_body().collect()).await;
    assert!(ended.unwrap().is_err(), "the connection is gone");
    is_settled(bench, SERVED).await;
}

#[tokio::test]
async fn each_part_of_a_plan_is_finalized_once() {
    let bench = Bench::start_with(Options {
        plans: true,
        ..Options::default()
    })
    .await;
    bench.two.set_default(Mode::Hang);
    let body = json!({"model": "panel", "stream": true,
        "messages": [{"role": "user", "content": "ahoy"}]});
    let reply = bench.client.post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    // Two members and the judge answered; the one that was not needed any more was cut off.
    let expected = Counts {
        attempts: 4,
        reports: 4,
        usages: 3,
    };
    is_settled(bench, expected).await;
}
