//! The queue of a connection with a limited pace, and how long an execution may take.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tidegate_core::outcome::{LocalFault, Outcome};
use tidegate_fake_upstream::{Gate, Mode, Selector};

use crate::bench::{Bench, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";
const EXPIRED: Outcome = Outcome::Local(LocalFault::ExecutionExpired);

async fn with(queue: Value) -> Bench {
    Bench::start_with(options(&queue)).await
}

fn options(queue: &Value) -> Options {
    Options {
        settings: json!({"requestQueue": queue}),
        ..Options::default()
    }
}

fn at(gate: &Gate) -> Mode {
    Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::Ok),
    }
}

async fn reaches(bench: &Bench, count: u64) {
    let log = bench.one.log();
    assert!(log.wait_for(&Selector::any(), count, LIMIT).await);
}

#[rstest]
#[case::no_headers(Mode::Hang, false)]
#[case::no_headers_of_a_stream(Mode::Hang, true)]
#[case::no_event(Mode::Stall { events: 0 }, true)]
#[case::never_ready(Mode::HeartbeatOnly { every: Duration::from_millis(20) }, true)]
#[tokio::test]
async fn an_execution_that_takes_too_long_goes_on_to_the_next_target(
    #[case] mode: Mode,
    #[case] stream: bool,
) {
    // The next target has as long.
    let bench = with(json!({"maxWaitMs": 1_000})).await;
    bench.one.set_default(mode);
    let reply = bench.client.post(CHAT, &chat("duo", stream)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    assert_eq!(bench.control.outcomes(), [EXPIRED, Outcome::Success]);
    assert_eq!(bench.one.log().count(&Selector::any()), 1, "no retry");
}

#[rstest]
#[case::an_answer(false)]
#[case::a_stream(true)]
#[tokio::test]
async fn the_body_never_counts(#[case] stream: bool) {
    let bench = with(json!({"maxWaitMs": 1_500})).await;
    // Longer than the limit in all, the beginning at once.
    bench.one.set_default(Mode::SlowDrip {
        gap: Duration::from_millis(600),
    });
    let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    bench
        .until("the report", |bench| {
            bench.control.outcomes() == [Outcome::Success]
        })
        .await;
}

#[rstest]
#[case::vector_sessions_35_an_answer(false)]
#[case::vector_sessions_35_a_stream(true)]
#[tokio::test]
async fn an_execution_that_takes_too_long_is_nobodys_fault(#[case] stream: bool) {
    let bench = with(json!({"maxWaitMs": 200})).await;
    bench.one.set_default(Mode::Hang);
    for _ in 0..20 {
        let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
        assert_eq!(reply.status, 504, "{reply:?}");
        assert_eq!(
            reply.json()["error"]["code"],
            "RATE_LIMIT_EXECUTION_TIMEOUT"
        );
        let message = reply.json()["error"]["message"].to_string();
        let named = "no answer was accepted within requestQueue.maxWaitMs (200 ms)";
        assert!(message.contains(named), "{message}");
        assert_eq!(reply.header("retry-after"), None);
    }
    // More failures than any threshold, and the account is still asked.
    assert_eq!(bench.one.log().count(&Selector::any()), 20);
    bench.one.set_default(Mode::Ok);
    bench.set(&options(&json!({"maxWaitMs": 15_000})));
    let reply = bench.client.post(CHAT, &chat("one/m", stream)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[tokio::test]
async fn vector_sessions_36_an_upstreams_own_words_are_a_failure_of_the_upstream() {
    let bench = with(json!({})).await;
    let body = json!({"error": {"code": "RATE_LIMIT_EXECUTION_TIMEOUT", "message": "late"}});
    bench
        .one
        .set_default(Mode::status_with_body(504, body.to_string()));
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 504);
    assert_ne!(
        reply.json()["error"]["code"],
        "RATE_LIMIT_EXECUTION_TIMEOUT"
    );
    let outcomes = bench.control.outcomes();
    assert!(
        matches!(outcomes.as_slice(), [Outcome::Response(error)] if error.status == 504),
        "{outcomes:?}"
    );
    // It cools the account, as any 504 does.
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
}

#[tokio::test]
async fn vector_sessions_34_whoever_finds_the_queue_full_is_told_at_once() {
    let bench = with(json!({"concurrentRequests": 1, "maxQueueDepth": 1})).await;
    let gate = Gate::new();
    bench.one.set_default(at(&gate));
    let body = chat("duo", false);
    let queued = "tidegate_dp_queued";
    let serve = async {
        reaches(&bench, 1).await;
        // What runs does not count.
        let second = bench.client.post(CHAT, &body);
        let check = async {
            while (bench.metric(queued).await - 1.0).abs() > 0.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let third = bench.client.post(CHAT, &body).await;
            assert_eq!(third.status, 429, "{third:?}");
            let error = &third.json()["error"];
            assert_eq!(error["code"], "RATE_LIMIT_QUEUE_FULL");
            assert_eq!(error["type"], "local_queue_capacity");
            assert_eq!(third.header("retry-after"), None);
            // No upstream was called, not even the next target's, and nothing is said of anybody.
            assert_eq!(bench.one.log().count(&Selector::any()), 1);
            assert_eq!(bench.two.log().count(&Selector::any()), 0);
            assert!(bench.control.outcomes().is_empty());
            gate.open();
        };
        tokio::join!(second, check).0
    };
    let (first, second) = tokio::join!(bench.client.post(CHAT, &body), serve);
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(bench.one.log().most_at_once(&Selector::any()), 1);
    assert!(bench.metric(queued).await.abs() < 0.5);
    for (end, count) in [("waited", 1.0), ("refused", 1.0), ("went", 2.0)] {
        let name = format!("tidegate_dp_queue_total{{end=\"{end}\"}}");
        assert!((bench.metric(&name).await - count).abs() < 0.5, "{end}");
    }
    // Four attempts were decided on: two were sent, and two gave their permits back unsent.
    let heard = bench.control.heard();
    assert_eq!(heard.released.len(), 4, "{:?}", heard.released);
}

#[tokio::test]
async fn whoever_leaves_the_queue_is_gone_from_it() {
    let bench = with(json!({"concurrentRequests": 1, "maxQueueDepth": 1})).await;
    let gate = Gate::new();
    bench.one.set_default(at(&gate));
    let body = chat("one/m", false);
    let serve = async {
        reaches(&bench, 1).await;
        for _ in 0..3 {
            let waits = async {
                while (bench.metric("tidegate_dp_queued").await - 1.0).abs() > 0.5 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                reply = bench.client.post(CHAT, &body) => panic!("{reply:?}"),
                () = waits => {}
            }
            while bench.metric("tidegate_dp_queued").await > 0.5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        gate.open();
    };
    let (first, ()) = tokio::join!(bench.client.post(CHAT, &body), serve);
    assert_eq!(first.status, 200);
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
}

#[tokio::test]
async fn those_that_wait_go_in_the_order_in_which_they_came() {
    let bench = with(json!({"concurrentRequests": 1})).await;
    let gate = Gate::new();
    bench.one.set_default(at(&gate));
    let numbered = |number: u64| {
        let mut body = chat("one/m", false);
        body["user"] = json!(number.to_string());
        body
    };
    let bodies: Vec<Value> = (0..6).map(numbered).collect();
    let mut sent = futures::stream::FuturesUnordered::new();
    sent.push(bench.client.post(CHAT, &bodies[0]));
    let drive = async {
        use futures::StreamExt as _;
        let mut queued = 0.0;
        let mut rest = bodies.iter().skip(1);
        loop {
            tokio::select! {
                Some(reply) = sent.next() => {
                    assert_eq!(reply.status, 200);
                    if sent.is_empty() {
                        return;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(5)) => {
                    if (bench.metric("tidegate_dp_queued").await - queued).abs() > 0.5
                        || bench.one.log().count(&Selector::any()) == 0
                    {
                        continue;
                    }
                    match rest.next() {
                        Some(body) => {
                            sent.push(bench.client.post(CHAT, body));
                            queued += 1.0;
                        }
                        None => gate.open(),
                    }
                }
            }
        }
    };
    tokio::time::timeout(LIMIT, drive).await.unwrap();
    let users: Vec<Value> = bench
        .one
        .log()
        .requests(&Selector::any())
        .iter()
        .map(|request| request.json().unwrap()["user"].clone())
        .collect();
    assert_eq!(users, ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(bench.one.log().most_at_once(&Selector::any()), 1);
}

#[tokio::test]
async fn requests_keep_a_distance() {
    let bench = with(json!({"minTimeBetweenRequestsMs": 300})).await;
    let body = chat("one/m", false);
    let began = std::time::Instant::now();
    let replies = futures::future::join_all((0..4).map(|_| bench.client.post(CHAT, &body))).await;
    assert!(replies.iter().all(|reply| reply.status == 200));
    assert!(began.elapsed() >= Duration::from_millis(900));
}

fn spent_for(reset: &str) -> Vec<(String, String)> {
    let header = |name: &str, value: &str| {
        let name = format!("x-ratelimit-{name}-requests");
        (name, value.to_owned())
    };
    vec![
        header("limit", "10"),
        header("remaining", "0"),
        header("reset", reset),
    ]
}

#[tokio::test]
async fn whoever_comes_when_nothing_is_left_of_a_window_waits_in_the_queue() {
    let bench = with(json!({"maxQueueDepth": 1})).await;
    bench.one.set_headers(spent_for("50s"));
    let body = chat("one/m", false);
    let first = bench.client.post(CHAT, &body).await;
    assert_eq!(first.status, 200, "{first:?}");
    let waits = async {
        while (bench.metric("tidegate_dp_queued").await - 1.0).abs() > 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let full = bench.client.post(CHAT, &body).await;
        assert_eq!(full.json()["error"]["code"], "RATE_LIMIT_QUEUE_FULL");
    };
    tokio::select! {
        reply = bench.client.post(CHAT, &body) => panic!("{reply:?}"),
        done = tokio::time::timeout(LIMIT, waits) => done.unwrap(),
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    // Nobody is to blame, and the next provider is not asked.
    assert_eq!(bench.control.outcomes(), [Outcome::Success]);
    assert_eq!(bench.two.log().count(&Selector::any()), 0);
}

#[tokio::test]
async fn a_spent_model_holds_up_no_other_behind_the_limits_of_an_operator() {
    let bench = Bench::start_with(Options {
        plans: true,
        settings: json!({"requestQueue": {"concurrentRequests": 1}}),
        ..Options::default()
    })
    .await;
    bench.one.set_headers(spent_for("50s"));
    let spent = chat("one/m", false);
    assert_eq!(bench.client.post(CHAT, &spent).await.status, 200);
    let others = async {
        while bench.metric("tidegate_dp_queued").await < 1.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bench.one.set_headers(Vec::new());
        for _ in 0..3 {
            let reply = bench.client.post(CHAT, &chat("one/j", false)).await;
            assert_eq!(reply.status, 200, "{reply:?}");
        }
    };
    let waiting = futures::future::join(
        bench.client.post(CHAT, &spent),
        bench.client.post(CHAT, &spent),
    );
    tokio::select! {
        replies = waiting => panic!("{replies:?}"),
        done = tokio::time::timeout(LIMIT, others) => done.unwrap(),
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 4);
}

/// Its place is one among those that wait for the first model.
#[tokio::test]
async fn whoever_goes_to_another_model_stands_at_the_end_of_that_line() {
    let bench = Bench::start_with(Options {
        plans: true,
        locks: true,
        settings: json!({"requestQueue": {"concurrentRequests": 1}}),
        ..Options::default()
    })
    .await;
    let named = |model: &str, name: &str| {
        let mut body = chat(model, false);
        body["messages"][0]["content"] = name.into();
        body
    };
    let queued = async |count: f64| {
        while bench.metric("tidegate_dp_queued").await < count - 0.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let last = || {
        let seen = bench.one.log().last(&Selector::any()).unwrap();
        let body: Value = seen.json().unwrap();
        (
            body["model"].clone(),
            body["messages"][0]["content"].clone(),
        )
    };
    let [fails, goes] = [Gate::new(), Gate::new()];
    bench.one.set_default(Mode::AtGate {
        gate: fails.clone(),
        then: Box::new(Mode::status(404)),
    });
    let body = named("one/m", "first");
    let first = bench.client.post(CHAT, &body);
    let rest = async {
        reaches(&bench, 1).await;
        bench.one.set_default(at(&goes));
        let body = named("both", "moves");
        let moves = bench.client.post(CHAT, &body);
        let then = async {
            queued(1.0).await;
            let body = named("one/n", "was there");
            let stays = bench.client.post(CHAT, &body);
            let then = async {
                queued(2.0).await;
                // Its model is locked for the first one, which does not come to the other.
                fails.open();
                reaches(&bench, 2).await;
                assert_eq!(last(), ("n".into(), "was there".into()));
                goes.open();
            };
            tokio::join!(stays, then).0
        };
        tokio::join!(moves, then)
    };
    let all = async { tokio::join!(first, rest) };
    let (_, (moved, stayed)) = tokio::time::timeout(LIMIT, all).await.unwrap();
    assert_eq!((moved.status, stayed.status), (200, 200));
    assert!(bench.metric("tidegate_dp_queued").await.abs() < 0.5);
}

#[tokio::test]
async fn whoever_waits_goes_when_the_window_begins_anew() {
    let bench = with(json!({})).await;
    bench.one.set_headers(spent_for("300ms"));
    let body = chat("one/m", false);
    for sent in 1..=2 {
        let reply = tokio::time::timeout(LIMIT, bench.client.post(CHAT, &body)).await;
        assert_eq!(reply.unwrap().status, 200);
        assert_eq!(bench.one.log().count(&Selector::any()), sent);
    }
    let waited = "tidegate_dp_queue_total{end=\"waited\"}";
    assert!((bench.metric(waited).await - 1.0).abs() < 0.5);
}

#[rstest]
#[case::plenty_is_left(json!({}), "20")]
#[case::nobody_wants_to_learn(json!({"autoEnableApiKeyProviders": false}), "0")]
#[tokio::test]
async fn what_is_not_to_be_learned_holds_nobody_back(
    #[case] queue: Value,
    #[case] remaining: &str,
) {
    let bench = with(queue).await;
    let mut headers = spent_for("50s");
    headers[1].1 = remaining.to_owned();
    bench.one.set_headers(headers);
    for _ in 0..5 {
        let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    assert!(bench.metric("tidegate_dp_queued").await.abs() < 0.5);
}

#[tokio::test]
async fn whoever_finds_others_faster_each_time_goes_in_the_end() {
    let bench = with(json!({"concurrentRequests": 1})).await;
    // More often than a request may be asked about otherwise.
    bench.control.lost_races.store(600, Ordering::Relaxed);
    let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(bench.control.heard().asks > 500);
    assert!(bench.metric("tidegate_dp_queued").await.abs() < 0.5);
}

#[rstest]
#[case::behind_one_that_runs(json!({"concurrentRequests": 1}))]
#[case::too_early(json!({"minTimeBetweenRequestsMs": 60_000}))]
#[tokio::test]
async fn the_time_of_a_combo_ends_a_wait_in_the_queue(#[case] queue: Value) {
    let bench = Bench::start_with(Options {
        settings: json!({"requestQueue": queue}),
        combo: json!({"comboTimeoutMs": 1_000}),
        ..Options::default()
    })
    .await;
    let gate = Gate::new();
    bench.one.set_default(at(&gate));
    let waits = async {
        reaches(&bench, 1).await;
        let body = chat("duo", false);
        let two = tokio::join!(
            bench.client.post(CHAT, &body),
            bench.client.post(CHAT, &body)
        );
        gate.open();
        two
    };
    let runs = chat("one/m", false);
    let both = async { tokio::join!(bench.client.post(CHAT, &runs), waits) };
    let (first, (second, third)) = tokio::time::timeout(LIMIT, both).await.unwrap();
    assert_eq!(first.status, 200, "{first:?}");
    for reply in [second, third] {
        assert_eq!(reply.status, 504, "{reply:?}");
        assert_eq!(reply.json()["error"]["code"], "COMBO_TIMEOUT");
    }
    assert_eq!(bench.one.log().count(&Selector::any()), 1);
    assert!(bench.metric("tidegate_dp_queued").await.abs() < 0.5);
}
