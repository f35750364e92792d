//! The episode rule (decision 9) and what a probe holds (decision 8), with real clients.

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::json;
use tidegate_integration::{LIMIT, chat, post};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Gate, Mode, Selector};
use tokio_util::task::TaskTracker;

use super::stage::{Setting, Stage};

/// Thirty requests are in flight through two data planes when the upstream begins to refuse: one step of the ladder, a
/// lock that counts one failure, and ends that count from the first.
#[tokio::test]
async fn end_to_end_thirty_requests_in_flight_are_one_episode() -> Result<()> {
    let setting = Setting::cooling("apikey").with_lockout(json!({"enabled": true}));
    let stage = Stage::start(setting).await?;
    let gate = Gate::new();
    stage.upstream.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::status(429)),
    });
    let planes = [0, 1].map(|plane| stage.fleet.data_planes[plane].http);
    let clients = (0..30).map(|client| chat(planes[client % 2], "combo"));
    let requests = try_join_all(clients);
    let in_flight = eventually(LIMIT, "thirty requests in flight", || async {
        let asked = stage.upstream.log().count(&Selector::any());
        (asked == 30).then_some(())
    });
    let opening = async {
        in_flight.await?;
        gate.open();
        anyhow::Ok(())
    };
    let (answers, ()) = tokio::try_join!(requests, opening)?;
    assert!(answers.iter().all(|answer| answer.status == 429));
    assert_eq!(stage.upstream.log().count(&Selector::any()), 30);

    stage.settle_at(0).await?;
    stage.settle_at(1).await?;
    let lock = stage.expect_lock("c1", 1).await?;
    assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + 120_000);
    let seen = stage.connection(1, "c1").await?;
    assert_eq!(seen.backoff_level, 1, "{seen:?}");
    assert_eq!(seen.last_error_status, Some(429), "{seen:?}");
    let steps = stage.transitions().await?;
    let of = |kind: &str| {
        let steps = steps.iter();
        steps
            .filter(|it| it.connection == "c1" && it.kind == kind)
            .count()
    };
    assert_eq!((of("cooldown"), of("lock")), (1, 1), "{steps:?}");
    Ok(())
}

/// The stream of a probe goes on and on; the gate is free as soon as the stream is ready.
#[tokio::test]
async fn end_to_end_a_streaming_probe_holds_the_gate_until_it_is_ready() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.count(12, 40_000).await?;
    stage.expect_breaker("HALF_OPEN", 12).await?;
    stage
        .upstream
        .set(Selector::any().model("m"), [Mode::Stall { events: 2 }]);
    let plane = stage.fleet.data_planes[0].http;
    let streaming = TaskTracker::new().spawn(async move {
        let body = json!({
            "model": "p/m", "stream": true, "messages": [{"role": "user", "content": "hi"}],
        });
        post(plane, "/v1/chat/completions", body.to_string()).await
    });
    stage.expect_breaker("CLOSED", 0).await?;
    for plane in 0..2 {
        let answer = stage.request_at(plane, "p/m", Mode::Ok).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let log = stage.upstream.log().requests(&Selector::any());
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(
        log.iter().take(1).all(|probe| probe.ending.is_none()),
        "{log:?}"
    );
    assert!(!streaming.is_finished());

    // Its client leaves after the verdict: an ordinary end, which opens nothing.
    streaming.abort();
    stage.settle().await?;
    stage.expect_breaker("CLOSED", 0).await?;
    Ok(())
}
