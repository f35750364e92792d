//! A permit ends with the body of its attempt, however that ends, and once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::json;
use tidegate_core::ids::AttemptId;
use tidegate_fake_upstream::{Gate, Mode, Selector};

use crate::bench::{Bench, LIMIT, Options, chat};

const CHAT: &str = "/v1/chat/completions";

/// Numbers of the attempts whose permits were given back.
fn released(bench: &Bench) -> Vec<u64> {
    let released = bench.control.heard().released;
    released.into_iter().map(|attempt| attempt.number).collect()
}

fn replaced(bench: &Bench) -> Vec<Option<u64>> {
    let number = |attempt: AttemptId| attempt.number;
    let replaced = bench.control.heard().replaced;
    replaced.into_iter().map(|it| it.map(number)).collect()
}

async fn until_released(bench: &Bench, numbers: &[u64]) {
    bench
        .until("the permits to be given back", |bench| {
            released(bench) == numbers
        })
        .await;
}

#[tokio::test]
async fn a_whole_answer_gives_it_back() {
    let bench = Bench::start().await;
    let reply = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(reply.status, 200);
    until_released(&bench, &[1]).await;
}

#[tokio::test]
async fn a_stream_holds_it_to_its_end() {
    let bench = Bench::start().await;
    let gap = Duration::from_millis(20);
    bench.one.set_default(Mode::SlowDrip { gap });
    let response = bench.client.open_post(CHAT, &chat("duo", true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!(released(&bench).is_empty());
    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }
    until_released(&bench, &[1]).await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_it_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let response = bench.client.open_post(CHAT, &chat("duo", true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!(released(&bench).is_empty());
    drop(body);
    until_released(&bench, &[1]).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_an_answer_gives_it_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Hang);
    let body = chat("duo", true);
    let any = Selector::any();
    tokio::select! {
        _reply = bench.client.open_post(CHAT, &body) => panic!("there was an answer"),
        reached = bench.one.log().wait_for(&any, 1, LIMIT) => assert!(reached),
    }
    until_released(&bench, &[1]).await;
}

#[tokio::test]
async fn a_failed_attempt_offers_it_to_the_next_and_then_gives_it_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(503));
    let reply = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(replaced(&bench), [None, Some(1)]);
    until_released(&bench, &[1, 2]).await;
}

#[tokio::test]
async fn a_request_that_fails_for_good_gives_everything_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::status(503));
    bench.two.set_default(Mode::status(503));
    let reply = bench.client.post(CHAT, &chat("duo", true)).await;
    assert_eq!(reply.status, 503);
    assert_eq!(replaced(&bench), [None, Some(1), Some(2)]);
    until_released(&bench, &[1, 2]).await;
}

#[tokio::test]
async fn a_failure_is_told_before_a_permit_is_waited_for() {
    let bench = Bench::start().await;
    bench.control.is_full.store(true, Ordering::Relaxed);
    bench.one.set_default(Mode::status(503));
    let body = chat("duo", false);
    let told = async {
        bench
            .until("the wait", |bench| {
                !bench.control.heard().awaited.is_empty()
            })
            .await;
        let told = bench.control.outcomes();
        // Nor does the attempt that failed hold its permit meanwhile.
        until_released(&bench, &[1]).await;
        bench.control.freed.notify_one();
        told
    };
    let (reply, told) = tokio::join!(bench.client.post(CHAT, &body), told);
    assert_eq!(reply.status, 200);
    assert_eq!(told.len(), 1, "{told:?}");
    // The wait has an attempt of its own, which is sent.
    let heard = bench.control.heard();
    let asked: Vec<_> = heard
        .asked
        .iter()
        .map(|(attempt, granted)| (attempt.number, granted.as_ref().map(|it| it.as_str())))
        .collect();
    assert_eq!(asked, [(1, None), (2, None), (3, Some("two-a"))]);
    assert_eq!(heard.awaited, [heard.asked[2].0]);
    until_released(&bench, &[1, 3]).await;
}

#[tokio::test]
async fn a_wait_that_broke_goes_on_where_it_was() {
    let bench = Bench::start().await;
    bench.control.is_full.store(true, Ordering::Relaxed);
    bench.control.breaks.store(true, Ordering::Relaxed);
    bench.one.set_default(Mode::status(503));
    let body = chat("duo", false);
    let waits = async {
        for waits in 1..=2 {
            bench
                .until("the wait", |bench| {
                    bench.control.heard().awaited.len() == waits
                })
                .await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            bench.control.freed.notify_one();
        }
    };
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), waits);
    assert_eq!(reply.status, 200);
    let waited = bench.control.heard().waited;
    assert_eq!(waited[0], Duration::ZERO);
    assert!(waited[1] >= Duration::from_millis(50), "{waited:?}");
}

#[tokio::test]
async fn nobody_keeps_a_permit_while_the_list_waits_to_be_repeated() {
    let bench = Bench::start_with(Options {
        combo: json!({"maxSetRetries": 1, "setRetryDelayMs": 300}),
        settings: json!({"connectionCooldown": {"apikey": {"baseCooldownMs": 0}}}),
        ..Options::default()
    })
    .await;
    for upstream in [&bench.one, &bench.two] {
        upstream.set(Selector::any(), [Mode::status(503)]);
    }
    let reply = bench.client.post(CHAT, &chat("duo", false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(replaced(&bench), [None, Some(1), Some(2), None]);
    until_released(&bench, &[1, 2, 4]).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_gives_it_back_when_it_is_let_go() {
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
    until_released(&bench, &[1]).await;
    drop(response);
    assert_eq!(released(&bench), [1]);
}

#[tokio::test]
async fn a_panic_gives_it_back() {
    let bench = Bench::start().await;
    let gate = Gate::new();
    bench.one.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::status(503)),
    });
    let body = chat("duo", false);
    let panics = async {
        assert!(bench.one.log().wait_for(&Selector::any(), 1, LIMIT).await);
        bench.control.panics.store(true, Ordering::Relaxed);
        gate.open();
    };
    let (reply, ()) = tokio::join!(bench.client.post(CHAT, &body), panics);
    assert_eq!(reply.status, 500);
    until_released(&bench, &[1]).await;
}

#[tokio::test]
async fn the_end_of_a_drain_gives_it_back() {
    let bench = Bench::start().await;
    bench.one.set_default(Mode::Stall { events: 3 });
    let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    tokio::join!(bench.proxy.drain(Duration::from_millis(50)), async {
        // Its last words are read, whatever they are.
        _ = body.collect().await;
    });
    until_released(&bench, &[1]).await;
}
