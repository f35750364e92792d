//! Vectors 1 to 8, 14 to 18 and 20: the provider breaker.

use anyhow::{Context as _, Result};
use rstest::rstest;
use serde_json::json;
use tidegate_integration::{LIMIT, chat};
use tidegate_proto::common::v1::{LocalFault, TransportFault, outcome::Kind};
use tidegate_test_support::eventually;
use tidegate_test_support::upstream::{Mode, Selector};
use tokio_util::task::TaskTracker;

use super::stage::{End, Setting, Stage};

#[rstest]
#[case::vector_failure_01("oauth", 4, 503, "DEGRADED", 0)]
#[case::vector_failure_02("oauth", 7, 500, "OPEN", 60_000)]
#[case::vector_failure_03("apikey", 6, 408, "DEGRADED", 0)]
#[case::vector_failure_04("apikey", 11, 504, "OPEN", 30_000)]
#[case::vector_failure_05("local", 1, 502, "OPEN", 15_000)]
#[tokio::test]
async fn end_to_end_a_failure_counts_up(
    #[case] class: &'static str,
    #[case] before: u32,
    #[case] status: u16,
    #[case] state: &str,
    #[case] wait_ms: u64,
) -> Result<()> {
    let stage = Stage::start(Setting::never_cooling(class)).await?;
    stage.count(before.into(), 30_000).await?;
    stage.request(Mode::status(status)).await?;
    let breaker = stage.expect_breaker(state, before + 1).await?;
    let failed_at = breaker.last_failure_unix_ms.context("it failed")?;
    for replica in 0..2 {
        let until = stage.excluded_until(replica, "c1", "circuit_open").await?;
        let expected = (wait_ms > 0).then_some(failed_at + wait_ms);
        assert_eq!(until, expected, "{breaker:?}");
    }
    let answer = stage.request_at(1, "p/m", Mode::Ok).await?;
    if wait_ms == 0 {
        assert_eq!(answer.status, 200, "{answer:?}");
    } else {
        assert_eq!(answer.status, 503, "{answer:?}");
        let told: u64 = answer.headers["retry-after"].to_str()?.parse()?;
        assert!((1..=wait_ms / 1_000).contains(&told), "{answer:?}");
    }
    let moves = eventually(LIMIT, "the move is in the history", || async {
        let moves = stage.transitions().await.ok()?;
        let ends_there = |text: &str| text.contains(&format!("-> {state} at {}", before + 1));
        moves
            .iter()
            .any(|it| ends_there(&it.description))
            .then_some(moves)
    })
    .await?;
    let degraded = moves.iter().any(|it| it.description.contains("DEGRADED"));
    assert_eq!(degraded, class != "local", "{moves:?}");
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_06_no_trip_code() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.count(11, 30_000).await?;
    stage.expect_breaker("DEGRADED", 11).await?;
    for status in [429, 403, 401] {
        stage.request(Mode::status(status)).await?;
        stage
            .expect_connection("c1", "the error", |seen| {
                seen.last_error_status == Some(u32::from(status))
            })
            .await?;
    }
    stage.expect_breaker("DEGRADED", 11).await?;
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_07_half_open_by_time() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("oauth")).await?;
    stage.count(8, 57_000).await?;
    let open = stage.expect_breaker("OPEN", 8).await?;
    assert!((1..=3_000).contains(&open.retry_after_ms), "{open:?}");
    let failed_at = open.last_failure_unix_ms.context("it failed")?;
    let until = stage.excluded_until(1, "c1", "circuit_open").await?;
    assert_eq!(until, Some(failed_at + 60_000));
    assert_eq!(stage.request(Mode::Ok).await?.status, 503);
    let half_open = stage.expect_breaker("HALF_OPEN", 8).await?;
    assert_eq!(half_open.last_failure_unix_ms, Some(failed_at));
    assert!(stage.now().await? >= failed_at + 60_000);
    // One permit: the request that takes it is the probe, and closes.
    assert_eq!(stage.request(Mode::Ok).await?.status, 200);
    stage.expect_breaker("CLOSED", 0).await?;
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_08_one_of_two_clients_is_the_probe() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.count(12, 40_000).await?;
    stage.expect_breaker("HALF_OPEN", 12).await?;
    stage.upstream.set_default(Mode::Hang);
    let first = stage.fleet.data_planes[0].http;
    let probe = TaskTracker::new().spawn(async move { chat(first, "p/m").await });
    eventually(LIMIT, "the probe is on its way", || async {
        let asked = stage.upstream.log().count(&Selector::any());
        (asked == 1).then_some(())
    })
    .await?;
    for plane in [0, 1, 1, 0] {
        let answer = stage.request_at(plane, "p/m", Mode::Ok).await?;
        assert_eq!(answer.status, 503, "{answer:?}");
        let told: u64 = answer.headers["retry-after"].to_str()?.parse()?;
        assert!(told >= 1, "{answer:?}");
    }
    assert_eq!(stage.upstream.log().count(&Selector::any()), 1);
    // The client of the probe leaves: no verdict, and the permit is back.
    probe.abort();
    eventually(LIMIT, "another request becomes the probe", || async {
        let answer = stage.request_at(1, "p/m", Mode::Ok).await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await?;
    stage.expect_breaker("CLOSED", 0).await?;
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_14_a_success_counts_down() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("oauth")).await?;
    stage.count(7, 30_000).await?;
    stage.expect_breaker("DEGRADED", 7).await?;
    assert_eq!(stage.request(Mode::Ok).await?.status, 200);
    stage.expect_breaker("DEGRADED", 6).await?;
    assert_eq!(stage.request_at(1, "p/m", Mode::Ok).await?.status, 200);
    stage.expect_breaker("CLOSED", 5).await?;
    Ok(())
}

/// An attempt from before the opening ends afterwards: nothing moves, whichever way it ends.
#[rstest]
#[case::vector_failure_15(503)]
#[case::vector_failure_16(200)]
#[tokio::test]
async fn end_to_end_a_late_end_leaves_an_open_breaker(#[case] status: u32) -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("oauth")).await?;
    let late = stage.attempt("c1").await?;
    stage.count(8, 40_000).await?;
    let before = stage.expect_breaker("OPEN", 8).await?;
    let at = before.last_failure_unix_ms.context("it failed")? + 20_000;
    let end = match status {
        200 => End::success(late),
        _ => End::status(late, status),
    };
    stage.report(1, end.at(at)).await?;
    let after = stage.expect_breaker("OPEN", 8).await?;
    assert_eq!(after.last_failure_unix_ms, before.last_failure_unix_ms);
    assert_eq!(after.open_cycle_count, 0);
    for replica in 0..2 {
        let until = stage.excluded_until(replica, "c1", "circuit_open").await?;
        assert_eq!(until, Some(at + 40_000));
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_17_one_connection_counts_once_in_five_seconds() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    let from = stage.now().await? - 30_000;
    for (replica, after_ms, count) in [(0, 0, 1), (1, 4_999, 1), (0, 5_000, 2)] {
        let attempt = stage.attempt("c1").await?;
        let end = End::status(attempt, 503).at(from + after_ms);
        stage.report(replica, end).await?;
        stage.expect_breaker("CLOSED", count).await?;
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_18_one_egress_fault_counts_once() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey").with_connections(3)).await?;
    let from = stage.now().await? - 10_000;
    for (replica, connection, after_ms) in [(0, "c1", 0), (1, "c2", 1_500), (0, "c3", 2_999)] {
        let attempt = stage.attempt(connection).await?;
        let fault = Kind::Transport(TransportFault::ProxyUnreachable.into());
        let end = End::of(attempt, fault).of_combo().at(from + after_ms);
        stage.report(replica, end).await?;
    }
    stage.expect_breaker("CLOSED", 1).await?;
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_20_faults_that_are_not_the_providers() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.count(3, 30_000).await?;
    stage.expect_breaker("CLOSED", 3).await?;

    stage.upstream.set_default(Mode::Hang);
    let plane = stage.fleet.data_planes[0].http;
    let leaving = TaskTracker::new().spawn(async move { chat(plane, "p/m").await });
    let asked = async || stage.upstream.log().count(&Selector::any());
    eventually(LIMIT, "the request is on its way", || async {
        (asked().await == 1).then_some(())
    })
    .await?;
    leaving.abort();

    stage.request(Mode::status(499)).await?;
    let body = json!({"error": {"code": "context_length_exceeded", "message": "too long"}});
    let too_long = Mode::status_with_body(502, body.to_string());
    stage.request(too_long).await?;
    let queued = stage.attempt("c1").await?;
    let full = End::of(queued, Kind::Local(LocalFault::QueueFull.into()));
    stage.report(1, full.at(stage.now().await?)).await?;

    stage.settle().await?;
    stage.expect_breaker("CLOSED", 3).await?;
    // The same connection still counts.
    stage.request(Mode::status(502)).await?;
    stage.expect_breaker("CLOSED", 4).await?;
    Ok(())
}
