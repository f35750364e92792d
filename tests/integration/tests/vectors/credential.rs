//! Vectors 71 and 72: what ends a terminal state.

use anyhow::{Context as _, Result};
use rstest::rstest;
use tidegate_test_support::upstream::{Mode, Selector};

use super::stage::{End, Setting, Stage};

/// Brings a terminal state about, with a level from before it, and returns an attempt that is still in flight.
async fn ended(
    status: u16,
    body: &str,
    state: &str,
) -> Result<(Stage, tidegate_proto::common::v1::Attempt)> {
    let mut stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.level(3).await?;
    stage.let_cool().await?;
    let in_flight = stage.attempt("c1").await?;
    stage.request(Mode::status_with_body(status, body)).await?;
    let seen = stage
        .expect_connection("c1", state, |seen| seen.state == state)
        .await?;
    assert_eq!(seen.backoff_level, 3, "{seen:?}");
    Ok((stage, in_flight))
}

#[rstest]
#[case::vector_failure_71_banned(500, "account has been deactivated", "banned")]
#[case::vector_failure_71_expired(401, "invalid api key", "expired")]
#[case::vector_failure_71_credits(402, "{}", "credits_exhausted")]
#[tokio::test]
async fn end_to_end_a_new_credential_ends_it(
    #[case] status: u16,
    #[case] body: &str,
    #[case] state: &str,
) -> Result<()> {
    let (stage, in_flight) = ended(status, body, state).await?;
    stage.fleet.write_secret("c1.key", "sk-new")?;
    stage.apply().await?;
    let new = stage
        .expect_connection("c1", "active", |seen| seen.state == "active")
        .await?;
    assert_eq!(new.backoff_level, 0, "{new:?}");
    assert_eq!(new.last_error_status, None, "{new:?}");
    assert_eq!(new.credential_version, 2, "{new:?}");
    for plane in 0..2 {
        let answer = stage.request_at(plane, "p/m", Mode::Ok).await?;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let with_new = Selector::any().credential("sk-new");
    assert_eq!(stage.upstream.log().count(&with_new), 2);

    // Decision 9: what is still in flight with the old credential says nothing of the new one, at either replica.
    for replica in 0..2 {
        let end = End::answer(in_flight.clone(), status.into(), &[], body);
        stage.report(replica, end.at(stage.now().await?)).await?;
        let after = stage.connection(replica, "c1").await?;
        assert_eq!(after.state, "active", "{after:?}");
        assert_eq!(after.last_error_status, None, "{after:?}");
    }
    Ok(())
}

#[rstest]
#[case::vector_failure_72_banned(500, "account has been deactivated", "banned")]
#[case::vector_failure_72_expired(401, "invalid api key", "expired")]
#[case::vector_failure_72_credits(402, "{}", "credits_exhausted")]
#[tokio::test]
async fn end_to_end_another_priority_does_not_end_it(
    #[case] status: u16,
    #[case] body: &str,
    #[case] state: &str,
) -> Result<()> {
    let (mut stage, _in_flight) = ended(status, body, state).await?;
    let before = stage.connection(0, "c1").await?;
    stage.setting.priority = 7;
    stage.apply().await?;
    let after = stage
        .expect_connection("c1", "the new priority", |seen| seen.priority == 7)
        .await?;
    assert_eq!(after.state, before.state);
    assert_eq!(after.last_error_unix_ms, before.last_error_unix_ms);
    let calls = stage.upstream.log().count(&Selector::any());
    let refused = stage.request(Mode::Ok).await?;
    assert!(!refused.status.is_success(), "{refused:?}");
    let last = stage.upstream.log().count(&Selector::any());
    assert_eq!(last, calls);
    before.last_error_status.context("why it ended")?;
    Ok(())
}
