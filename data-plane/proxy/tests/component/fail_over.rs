//! Attempts that fail before the client saw anything of them.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{LocalFault, Outcome, StreamFault, TransportFault};
use tidegate_fake_upstream::{Mode, Selector};
use tidegate_plane_client::Deadlines;

use crate::bench::{Bench, Options, chat};

/// Short, and long enough for a good answer on a busy machine.
fn short() -> Options {
    let limit = Some(Duration::from_millis(1_500));
    Options {
        deadlines: Deadlines {
            connect: limit,
            headers: limit,
            readiness: limit,
            idle: limit,
            body: limit,
            attempt: None,
            target: None,
        },
        ..Options::default()
    }
}

#[rstest]
#[case::unavailable(Mode::status(503), false)]
#[case::rate_limited(Mode::rate_limited("30"), false)]
#[case::unauthorized(Mode::status(401), false)]
#[case::reset(Mode::Reset, false)]
#[case::hang(Mode::Hang, false)]
#[case::body_cut(Mode::CutAfter { bytes: 10 }, false)]
#[case::body_empty(Mode::status_with_body(200, ""), false)]
#[case::error_in_a_good_answer(Mode::sse_error_first(), false)]
#[case::blanks_for_ever(Mode::HeartbeatOnly { every: Duration::from_millis(20) }, false)]
#[case::unavailable_stream(Mode::status(503), true)]
#[case::error_as_first_event(Mode::sse_error_first(), true)]
#[case::empty_stream(Mode::CutAfter { bytes: 0 }, true)]
#[case::heartbeats_for_ever(Mode::HeartbeatOnly { every: Duration::from_millis(20) }, true)]
#[case::silent_stream(Mode::Stall { events: 0 }, true)]
#[tokio::test]
async fn the_next_target_answers(#[case] mode: Mode, #[case] stream: bool) {
    let bench = Bench::start_with(short()).await;
    bench.one.set_default(mode);
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", stream))
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(reply.header("x-omniroute-fallback-attempts"), Some("1"));
    assert!(reply.text().contains("ahoy"));
    if stream {
        assert!(reply.text().ends_with("data: [DONE]\n\n"));
    }
    for upstream in [&bench.one, &bench.two] {
        assert_eq!(upstream.log().count(&Selector::any()), 1);
    }
    let heard = bench.control.heard();
    assert_eq!(heard.asks, 2);
    let [(failure, urgent), (success, _)] = heard.reports.as_slice() else {
        panic!("{:?}", heard.reports);
    };
    assert!(urgent, "a failure is urgent");
    assert_ne!(failure.outcome, Outcome::Success);
    assert_eq!(failure.attempt.connection.as_str(), "one-a");
    assert!(failure.combo && !failure.next_target_same_provider);
    assert_eq!(success.outcome, Outcome::Success);
    assert_eq!(success.attempt.connection.as_str(), "two-a");
    assert_eq!(
        success.attempt.credential_version, 3,
        "the one that was sent"
    );
}

/// A combo gives up a target that takes too long, and nobody is to blame for a limit of ours.
#[rstest]
#[case::no_headers(Mode::Hang, false)]
#[case::no_headers_of_a_stream(Mode::Hang, true)]
#[case::no_end(Mode::HeartbeatOnly { every: Duration::from_millis(20) }, false)]
#[tokio::test]
async fn a_target_that_takes_too_long_is_given_up(#[case] mode: Mode, #[case] stream: bool) {
    let bench = Bench::start_with(Options {
        combo: json!({"targetTimeoutMs": 1_500}),
        ..Options::default()
    })
    .await;
    bench.one.set_default(mode);
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", stream))
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    let heard = bench.control.heard();
    assert_eq!(
        heard.reports[0].0.outcome,
        Outcome::Local(LocalFault::TargetExpired)
    );
}

#[tokio::test]
async fn a_failure_is_described_and_not_judged() {
    let bench = Bench::start().await;
    let body = json!({"error": {"message": "slow down", "code": "rate"}}).to_string();
    bench.one.set_default(Mode::Status {
        code: 429,
        body: Some(body.clone()),
        headers: vec![
            ("retry-after".to_owned(), "17".to_owned()),
            ("x-ratelimit-remaining-requests".to_owned(), "0".to_owned()),
            ("set-cookie".to_owned(), "a=b".to_owned()),
        ],
    });
    bench
        .client
        .post("/v1/chat/completions", &chat("duo", false))
        .await;
    let outcomes = bench.control.outcomes();
    let Some(Outcome::Response(error)) = outcomes.first() else {
        panic!("{outcomes:?}");
    };
    assert_eq!((error.status, error.embedded), (429, false));
    assert_eq!(error.body, body);
    let header = |name: &str| error.headers.iter().any(|(header, _)| header == name);
    assert!(header("retry-after") && header("x-ratelimit-remaining-requests"));
    assert!(!header("set-cookie"));
}

#[rstest]
#[case::reset(Mode::Reset, false, Outcome::Transport(TransportFault::Reset))]
#[case::hang(Mode::Hang, false, Outcome::Transport(TransportFault::HeadersTimeout))]
#[case::silent_stream(Mode::Stall { events: 0 }, true, Outcome::Stream(StreamFault::ReadinessTimeout))]
#[case::empty_stream(Mode::CutAfter { bytes: 0 }, true, Outcome::Stream(StreamFault::EarlyEof))]
#[case::body_cut(Mode::CutAfter { bytes: 10 }, false, Outcome::Stream(StreamFault::EarlyEof))]
#[tokio::test]
async fn faults_are_told_apart(#[case] mode: Mode, #[case] stream: bool, #[case] outcome: Outcome) {
    let bench = Bench::start_with(short()).await;
    bench.one.set_default(mode);
    bench
        .client
        .post("/v1/chat/completions", &chat("duo", stream))
        .await;
    assert_eq!(bench.control.outcomes().first(), Some(&outcome));
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_connect_fault() {
    let mut bench = Bench::start().await;
    let gone = std::mem::replace(
        &mut bench.one,
        tidegate_fake_upstream::FakeUpstream::start().await.unwrap(),
    );
    gone.stop().await;
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", false))
        .await;
    assert_eq!(reply.status, 200);
    let fault = Outcome::Transport(TransportFault::Connect);
    assert_eq!(bench.control.outcomes().first(), Some(&fault));
}

#[tokio::test]
async fn an_error_as_first_event_is_reported_with_its_words() {
    let bench = Bench::start().await;
    let error = json!({"message": "too busy", "type": "overloaded_error"});
    bench
        .one
        .set_default(Mode::SseErrorFirst { error: Some(error) });
    bench
        .client
        .post("/v1/chat/completions", &chat("duo", true))
        .await;
    let outcomes = bench.control.outcomes();
    let Some(Outcome::Response(error)) = outcomes.first() else {
        panic!("{outcomes:?}");
    };
    assert_eq!((error.status, error.embedded), (200, true));
    assert!(error.body.contains("too busy"));
}

#[tokio::test]
async fn when_every_target_failed_the_client_is_told_why() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::rate_limited("30"));
    bench.two.set_default(Mode::rate_limited("20"));
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", false))
        .await;
    assert_eq!(reply.status, 429, "{reply:?}");
    let retry_after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&retry_after));
    let body = reply.json();
    assert_eq!(body["diagnostics"]["attempted"], 2);
    assert_eq!(
        body["diagnostics"]["attemptOrder"],
        json!(["one/m", "two/m"])
    );
    assert!(body["recovery_hint"]["action"].is_string());
}

#[tokio::test]
async fn what_is_cooling_down_is_not_asked_again() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::rate_limited("600"));
    for provider in ["two", "two"] {
        let reply = bench
            .client
            .post("/v1/chat/completions", &chat("duo", false))
            .await;
        assert_eq!(reply.header("x-omniroute-provider"), Some(provider));
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("one/m", false))
        .await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.code(), "all_targets_cooling_down");
    assert!(reply.header("retry-after").is_some());
    assert_eq!(
        reply.json()["diagnostics"]["excluded"][0]["reason"],
        "connection_cooldown"
    );
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
}

#[tokio::test]
async fn the_clients_own_fault_is_answered_in_the_upstreams_words_and_tried_once() {
    let bench = Bench::start().await;
    let body =
        "{\"error\": {\"message\":  \"temperature must be small\", \"param\":\"temperature\"}}";
    bench.one.set_default(Mode::status_with_body(422, body));
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("duo", false))
        .await;
    assert_eq!(reply.status, 422);
    assert_eq!(reply.text(), body);
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
}

#[tokio::test]
async fn a_request_waits_for_a_short_cooldown() {
    let bench = Bench::start_with(Options {
        waits: true,
        ..Options::default()
    })
    .await;
    bench.one.set(Selector::any(), [Mode::rate_limited("1")]);
    let reply = bench
        .client
        .post("/v1/chat/completions", &chat("one/m", false))
        .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(bench.one.log().count(&Selector::any()), 2);
    assert!(
        bench
            .metric("tidegate_dp_decisions_total{step=\"wait\",by=\"control_plane\"}")
            .await
            > 0.0
    );
}

/// Who finds no room to wait gets the answer that there is without a wait.
#[rstest]
#[case::cooldown("one/m", json!({}), Mode::rate_limited("5"), 429)]
#[case::retry_delay("duo", json!({"maxRetries": 1}), Mode::status(500), 200)]
#[tokio::test]
async fn beyond_so_many_waiting_requests_none_waits(
    #[case] model: &str,
    #[case] combo: Value,
    #[case] mode: Mode,
    #[case] expected: u16,
) {
    let bench = Bench::start_with(Options {
        waits: true,
        combo,
        settings: json!({
            "connectionCooldown": {"apikey": {"baseCooldownMs": 1}},
            "routing": {"maxWaitingPerDataPlane": 0},
        }),
        ..Options::default()
    })
    .await;
    bench.one.set_default(mode);
    let chat = chat(model, false);
    let reply = bench.client.post("/v1/chat/completions", &chat).await;
    assert_eq!(reply.status, expected, "{reply:?}");
    assert_eq!(reply.header("retry-after").is_some(), expected == 429);
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    assert_eq!(bench.metric("tidegate_dp_waits_refused_total").await, 1.0);
}
