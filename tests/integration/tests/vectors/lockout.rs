//! Vectors 55 to 58 and 61 to 63: locks that failures of combo targets set.

use anyhow::Result;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_test_support::upstream::Mode;

use super::stage::{End, Setting, Stage};

fn lockout(section: Value) -> Setting {
    Setting::cooling("apikey").with_lockout(section)
}

/// A failure of a combo's target that was decided on what is known now.
async fn fail(stage: &Stage, connection: &str, status: u32, wait: &str, at: u64) -> Result<()> {
    let attempt = stage.attempt(connection).await?;
    let headers = [("retry-after", wait)];
    let headers = if wait.is_empty() { &[][..] } else { &headers };
    let end = End::answer(attempt, status, headers, "");
    stage.report(0, end.of_combo().at(at)).await
}

#[tokio::test]
async fn end_to_end_vector_failure_55_a_combo_locks() -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": true}))).await?;
    stage.combo_request(Mode::status(503)).await?;
    let lock = stage.expect_lock("c1", 1).await?;
    assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + 120_000);
    assert_eq!(lock.model, "m");
    for replica in 0..2 {
        let until = stage.excluded_until(replica, "c1", "model_lockout").await?;
        assert_eq!(until, Some(lock.until_unix_ms));
    }
    Ok(())
}

#[rstest]
#[case::vector_failure_56_within(140_000, 2, 240_000)]
#[case::vector_failure_56_at_the_end(150_000, 2, 240_000)]
#[case::vector_failure_56_after(150_001, 1, 120_000)]
#[tokio::test]
async fn end_to_end_the_window_of_escalation(
    #[case] after_ms: u64,
    #[case] failures: u32,
    #[case] lasts_ms: u64,
) -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": true}))).await?;
    let from = stage.now().await? - 160_000;
    fail(&stage, "c1", 503, "", from).await?;
    fail(&stage, "c1", 503, "", from + after_ms).await?;
    let lock = stage.expect_lock("c1", failures).await?;
    assert_eq!(lock.until_unix_ms, from + after_ms + lasts_ms);
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_57_the_ladder_ends_at_the_cap() -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": true}))).await?;
    let now = stage.now().await?;
    for (failures, lasts_ms) in [120_000, 240_000, 480_000, 960_000, 1_800_000]
        .into_iter()
        .enumerate()
    {
        let count = u32::try_from(failures)? + 1;
        let at = now - 50_000 + u64::from(count) * 8_000;
        fail(&stage, "c1", 503, "", at).await?;
        let lock = stage.expect_lock("c1", count).await?;
        assert_eq!(lock.until_unix_ms, at + lasts_ms, "{lock:?}");
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_58_successes_decay() -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": true}))).await?;
    let now = stage.now().await?;
    for count in 1..=5 {
        fail(&stage, "c1", 503, "", now - 50_000 + count * 8_000).await?;
    }
    stage.expect_lock("c1", 5).await?;
    for (replica, left) in [(0, 2), (1, 1)] {
        let attempt = stage.attempt("c1").await?;
        let end = End::success(attempt).of_combo().at(stage.now().await?);
        stage.report(replica, end).await?;
        stage.expect_lock("c1", left).await?;
    }
    let attempt = stage.attempt("c1").await?;
    let end = End::success(attempt).of_combo().at(stage.now().await?);
    stage.report(0, end).await?;
    assert_eq!(stage.locks(0, "c1").await?, []);
    // The first of the successes also ended the cooldown, so the model serves again.
    let served = stage.combo_request(Mode::Ok).await?;
    assert_eq!(served.status, 200, "{served:?}");
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_61_a_lock_never_shortens() -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": true}))).await?;
    let at = stage.now().await? - 40_000;
    fail(&stage, "c1", 429, "", at).await?;
    fail(&stage, "c1", 429, "640", at + 20_000).await?;
    let long = stage.expect_lock("c1", 2).await?;
    assert_eq!(long.until_unix_ms, at + 660_000, "{long:?}");
    fail(&stage, "c1", 429, "121", at + 40_000).await?;
    let kept = stage.expect_lock("c1", 3).await?;
    assert_eq!(kept.until_unix_ms, long.until_unix_ms, "{kept:?}");
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_62_locks_that_do_not_grow() -> Result<()> {
    let section = json!({"enabled": true, "useExponentialBackoff": false});
    let stage = Stage::start(lockout(section)).await?;
    let now = stage.now().await?;
    for count in 1..=3 {
        let at = now - 60_000 + u64::from(count) * 15_000;
        fail(&stage, "c1", 503, "", at).await?;
        let lock = stage.expect_lock("c1", count).await?;
        assert_eq!(lock.until_unix_ms, at + 120_000, "{lock:?}");
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_63_switched_off() -> Result<()> {
    let stage = Stage::start(lockout(json!({"enabled": false}))).await?;
    stage.combo_request(Mode::status(503)).await?;
    let seen = stage
        .expect_connection("c1", "cooling", |seen| seen.state == "unavailable")
        .await?;
    assert_eq!(seen.locked_models, 0, "{seen:?}");
    for replica in 0..2 {
        assert_eq!(stage.locks(replica, "c1").await?, []);
    }
    Ok(())
}
