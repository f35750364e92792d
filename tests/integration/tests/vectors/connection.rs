//! Vectors 25 to 38, 42 to 52 and 54: what one failure does to its connection.

use anyhow::{Context as _, Result};
use rstest::rstest;
use serde_json::json;
use tidegate_test_support::upstream::{Mode, Selector};

use super::stage::{End, Setting, Stage};

/// What a connection shows after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    /// Its state.
    state: &'static str,
    /// How long it cools, from the failure on.
    cools_ms: Option<u64>,
    /// Its level.
    level: u32,
    /// What the failure meant.
    reason: &'static str,
}

const fn cools(ms: u64, level: u32, reason: &'static str) -> Shown {
    Shown {
        state: "unavailable",
        cools_ms: Some(ms),
        level,
        reason,
    }
}

const fn ends(state: &'static str, reason: &'static str) -> Shown {
    Shown {
        state,
        cools_ms: None,
        level: 0,
        reason,
    }
}

fn answer(status: u16, headers: &[(&str, &str)], body: Option<&str>) -> Mode {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Mode::Status {
        code: status,
        body: body.map(str::to_owned),
        headers: headers.collect(),
    }
}

const SERVER: &str = "server_error";
const RATE: &str = "rate_limit_exceeded";
const QUOTA: &str = "quota_exhausted";
const AUTH: &str = "auth_error";

#[rstest]
#[case::vector_failure_25("apikey", 0, 503, &[], None, cools(3_000, 1, SERVER))]
#[case::vector_failure_26("apikey", 5, 503, &[], None, cools(96_000, 5, SERVER))]
#[case::vector_failure_27_first("oauth", 0, 429, &[], None, cools(5_000, 1, RATE))]
#[case::vector_failure_27_last("oauth", 8, 429, &[], None, cools(1_280_000, 8, RATE))]
#[case::vector_failure_28("apikey", 3, 429, &[("retry-after", "120")], None, cools(120_000, 0, RATE))]
#[case::vector_failure_30("apikey", 2, 429, &[("x-ratelimit-reset", "30")], None, cools(12_000, 3, RATE))]
#[case::vector_failure_31("oauth", 0, 429, &[("retry-after", "120")], None, cools(5_000, 1, RATE))]
#[case::vector_failure_34("apikey", 0, 401, &[], Some("invalid api key"), ends("expired", AUTH))]
#[case::vector_failure_35("apikey", 0, 402, &[], None, ends("credits_exhausted", QUOTA))]
#[case::vector_failure_37("apikey", 0, 403, &[], Some("Forbidden"), cools(3_000, 1, AUTH))]
#[case::vector_failure_42("apikey", 0, 500, &[], Some("account has been deactivated"), ends("banned", AUTH))]
#[case::vector_failure_43(
    "apikey", 0, 429, &[],
    Some(r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#),
    ends("credits_exhausted", QUOTA)
)]
#[case::vector_failure_44("apikey", 2, 404, &[], None, cools(120_000, 2, "unknown"))]
#[case::vector_failure_45("apikey", 2, 418, &[], None, cools(3_000, 2, "unknown"))]
#[case::vector_failure_51("oauth", 1, 429, &[], Some("Usage limit reached"), cools(3_600_000, 1, QUOTA))]
#[case::vector_failure_52_weekly(
    "apikey", 1, 429, &[], Some("You have reached your weekly usage limit"),
    cools(86_400_000, 1, QUOTA)
)]
#[case::vector_failure_52_session(
    "apikey", 1, 429, &[], Some("Session usage limit exceeded"), cools(18_000_000, 1, QUOTA)
)]
#[case::vector_failure_48("apikey", 0, 400, &[], Some("too many requests"), cools(3_000, 1, RATE))]
#[tokio::test]
async fn end_to_end_a_failure_and_its_connection(
    #[case] class: &'static str,
    #[case] level: u64,
    #[case] status: u16,
    #[case] headers: &[(&str, &str)],
    #[case] body: Option<&str>,
    #[case] expected: Shown,
) -> Result<()> {
    let mut stage = Stage::start(Setting::never_cooling(class)).await?;
    stage.level(level).await?;
    stage.let_cool().await?;
    stage.request(answer(status, headers, body)).await?;
    let seen = stage
        .expect_connection("c1", "the failure", |seen| {
            seen.state == expected.state && seen.last_error_status == Some(status.into())
        })
        .await?;
    let failed_at = seen.last_error_unix_ms.context("it failed")?;
    for replica in 0..2 {
        let until = stage
            .excluded_until(replica, "c1", "connection_cooldown")
            .await?;
        assert_eq!(
            until,
            expected.cools_ms.map(|ms| failed_at + ms),
            "{seen:?}"
        );
    }
    assert_eq!(seen.backoff_level, expected.level, "{seen:?}");
    assert_eq!(seen.last_error_reason, expected.reason, "{seen:?}");
    // The whole fleet leaves it alone.
    let before = stage.upstream.log().count(&Selector::any());
    let refused = stage.request_at(1, "p/m", Mode::Ok).await?;
    assert!(refused.status.is_client_error() || refused.status.is_server_error());
    assert_eq!(stage.upstream.log().count(&Selector::any()), before);
    if let Some(ms) = expected.cools_ms {
        let told: u64 = refused.headers["retry-after"].to_str()?.parse()?;
        assert!((1..=ms.div_ceil(1_000)).contains(&told), "{refused:?}");
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_29_an_absolute_hint() -> Result<()> {
    let mut stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.level(2).await?;
    stage.let_cool().await?;
    let reset_at_s = stage.now().await?.div_ceil(1_000) + 45;
    let reset = reset_at_s.to_string();
    stage
        .request(answer(429, &[("x-ratelimit-reset", &reset)], None))
        .await?;
    let seen = stage
        .expect_connection("c1", "cooling", |seen| seen.state == "unavailable")
        .await?;
    assert_eq!(seen.backoff_level, 0);
    let until = stage.excluded_until(1, "c1", "connection_cooldown").await?;
    assert_eq!(until, Some(reset_at_s * 1_000));
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_32_the_herd_is_one_failure() -> Result<()> {
    let stage = Stage::start(Setting::cooling("apikey")).await?;
    let both = [stage.attempt("c1").await?, stage.attempt("c1").await?];
    let at = stage.now().await?;
    for (replica, attempt) in both.into_iter().enumerate() {
        let after_ms = u64::try_from(replica)? * 500;
        let end = End::status(attempt, 503).at(at - 500 + after_ms);
        stage.report(replica, end).await?;
    }
    let seen = stage
        .expect_connection("c1", "cooling", |seen| seen.state == "unavailable")
        .await?;
    assert_eq!(seen.backoff_level, 1, "{seen:?}");
    assert_eq!(seen.last_error_unix_ms, Some(at - 500), "{seen:?}");
    let until = stage.excluded_until(0, "c1", "connection_cooldown").await?;
    assert_eq!(until, Some(at - 500 + 3_000));
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_33_a_ban_stands() -> Result<()> {
    let stage = Stage::start(Setting::cooling("apikey")).await?;
    let late = stage.attempt("c1").await?;
    stage
        .request(answer(500, &[], Some("account has been deactivated")))
        .await?;
    let banned = stage
        .expect_connection("c1", "banned", |seen| seen.state == "banned")
        .await?;
    let end = End::answer(late, 429, &[("retry-after", "600")], "");
    stage.report(1, end.at(stage.now().await?)).await?;
    let after = stage
        .expect_connection("c1", "banned", |seen| seen.state == "banned")
        .await?;
    assert_eq!(after, banned);
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_36_credits_of_one_model() -> Result<()> {
    let stage = Stage::start(Setting {
        per_model_quota: true,
        ..Setting::cooling("apikey")
    })
    .await?;
    stage.request(answer(402, &[], Some("{}"))).await?;
    let lock = stage.expect_lock("c1", 1).await?;
    assert_eq!(
        (lock.model.as_str(), lock.reason.as_str()),
        ("m", "credits")
    );
    assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + 3_000);
    let seen = stage.connection(1, "c1").await?;
    assert_eq!((seen.state.as_str(), seen.backoff_level), ("active", 0));
    assert_eq!(stage.request_at(1, "p/n", Mode::Ok).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_54_a_minute_of_one_model() -> Result<()> {
    let stage = Stage::start(Setting {
        provider: "gemini",
        per_model_quota: true,
        ..Setting::cooling("apikey")
    })
    .await?;
    let body = json!({"error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota.",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
                {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"},
            ]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"},
        ],
    }});
    stage
        .request(answer(429, &[], Some(&body.to_string())))
        .await?;
    let lock = stage.expect_lock("c1", 1).await?;
    assert_eq!((lock.model.as_str(), lock.reason.as_str()), ("m", RATE));
    assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + 26_000);
    let seen = stage.connection(1, "c1").await?;
    assert_eq!((seen.state.as_str(), seen.backoff_level), ("active", 0));
    Ok(())
}

/// The connection is not touched: what it had from before is still all there is.
#[rstest]
#[case::vector_failure_38(403, "this key is not authorized for this route")]
#[case::vector_failure_47(400, "bad field x")]
#[tokio::test]
async fn end_to_end_a_failure_that_touches_nothing(
    #[case] status: u16,
    #[case] body: &str,
) -> Result<()> {
    let stage = Stage::start(Setting::cooling("apikey").with_connections(2)).await?;
    let before = stage.connection(0, "c1").await?;
    let given = stage.request(answer(status, &[], Some(body))).await?;
    stage.settle().await?;
    for connection in ["c1", "c2"] {
        let after = stage.connection(0, connection).await?;
        assert_eq!(after.last_error_status, None, "{after:?}");
        assert_eq!(after.state, "active", "{after:?}");
    }
    assert_eq!(stage.connection(1, "c1").await?, before);
    // No other account was tried, and the client has the upstream's own words.
    assert_eq!(stage.upstream.log().count(&Selector::any().model("m")), 1);
    assert_eq!(given.status, status, "{given:?}");
    if status == 400 {
        assert_eq!(given.body, body, "{given:?}");
    }
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_46_a_prompt_too_long() -> Result<()> {
    let stage = Stage::start(Setting::cooling("apikey")).await?;
    stage
        .request(answer(400, &[], Some("prompt is too long")))
        .await?;
    let seen = stage
        .expect_connection("c1", "the error", |seen| {
            seen.last_error_status == Some(400)
        })
        .await?;
    assert_eq!((seen.state.as_str(), seen.backoff_level), ("active", 0));
    assert_eq!(seen.cooldown_remaining_ms, None);
    assert_eq!(stage.request(Mode::Ok).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_49_a_connection_that_never_cools() -> Result<()> {
    let stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.request(Mode::status(503)).await?;
    let seen = stage
        .expect_connection("c1", "level 1", |seen| seen.backoff_level == 1)
        .await?;
    assert_eq!(seen.state, "active", "{seen:?}");
    assert_eq!(seen.cooldown_remaining_ms, None, "{seen:?}");
    assert_eq!(seen.last_error_status, Some(503), "{seen:?}");
    assert_eq!(stage.request_at(1, "p/m", Mode::Ok).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_50_a_success_clears() -> Result<()> {
    let mut stage = Stage::start(Setting::never_cooling("apikey")).await?;
    stage.level(3).await?;
    stage.let_cool().await?;
    // The fourth step lasts 24 s, which have passed.
    stage.failures(1, 429, 30_000, 0).await?;
    let lapsed = stage
        .expect_connection("c1", "level 4", |seen| seen.backoff_level == 4)
        .await?;
    assert_eq!(lapsed.last_error_status, Some(429), "{lapsed:?}");
    assert_eq!(stage.request(Mode::Ok).await?.status, 200);
    let clear = stage
        .expect_connection("c1", "level 0", |seen| seen.backoff_level == 0)
        .await?;
    assert_eq!(clear.state, "active", "{clear:?}");
    assert_eq!(clear.last_error_status, None, "{clear:?}");
    assert_eq!(clear.last_error_reason, "", "{clear:?}");
    Ok(())
}
