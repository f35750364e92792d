//! Vectors 64, 65, 73 and 74: restated statuses, rules of providers and of operators.

use anyhow::{Context as _, Result};
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_test_support::upstream::Mode;

use super::stage::{Setting, Stage};

fn says(status: u16, text: &str) -> Mode {
    let body = json!({"error": {"message": text, "type": "upstream_error"}});
    Mode::status_with_body(status, body.to_string())
}

#[tokio::test]
async fn end_to_end_vector_failure_64_a_quota_told_as_forbidden() -> Result<()> {
    let stage = Stage::start(Setting {
        provider: "agentrouter",
        ..Setting::cooling("apikey")
    })
    .await?;
    let told = stage.request(says(403, "用户额度不足")).await?;
    assert_eq!(told.status, 429, "{told:?}");
    assert_eq!(told.headers["retry-after"], "60", "{told:?}");
    let seen = stage
        .expect_connection("c1", "cooling", |seen| seen.state == "unavailable")
        .await?;
    assert_eq!(seen.backoff_level, 1, "{seen:?}");
    assert_eq!(seen.last_error_status, Some(429), "{seen:?}");
    assert_eq!(seen.last_error_reason, "quota_exhausted", "{seen:?}");
    let failed_at = seen.last_error_unix_ms.context("it failed")?;
    // The minute is for the client alone.
    let until = stage.excluded_until(1, "c1", "connection_cooldown").await?;
    assert_eq!(until, Some(failed_at + 3_000));
    Ok(())
}

#[tokio::test]
async fn end_to_end_vector_failure_65_a_model_that_is_denied() -> Result<()> {
    let stage = Stage::start(Setting {
        provider: "agentrouter",
        ..Setting::cooling("apikey")
    })
    .await?;
    let told = stage.request(says(403, "无权访问模型 m")).await?;
    assert_eq!(told.status, 403, "{told:?}");
    let lock = stage.expect_lock("c1", 1).await?;
    assert_eq!(
        (lock.model.as_str(), lock.reason.as_str()),
        ("m", "auth_error")
    );
    assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + 1_800_000);
    let seen = stage.connection(1, "c1").await?;
    assert_eq!((seen.state.as_str(), seen.backoff_level), ("active", 0));
    assert_eq!(
        stage.request_at(1, "agentrouter/n", Mode::Ok).await?.status,
        200
    );
    Ok(())
}

#[rstest]
#[case::vector_failure_73_not_on_the_list(json!({}), "rate_limit_exceeded", None)]
#[case::vector_failure_74_with_an_operators_rule(
    json!({"cloudflare-ai": [{"status": 429, "match": "something else", "scope": "connection"}]}),
    "quota_exhausted",
    None
)]
#[case::vector_failure_74_whose_scope_acts(
    json!({"cloudflare-ai": [{
        "status": 429, "match": "DAILY FREE ALLOCATION", "scope": "model", "cooldownMs": 40_000,
    }]}),
    "quota_exhausted",
    Some(40_000)
)]
#[tokio::test]
async fn end_to_end_a_rule_that_reads_the_body(
    #[case] rules: Value,
    #[case] reason: &str,
    #[case] locks_ms: Option<u64>,
) -> Result<()> {
    let stage = Stage::start(Setting {
        provider: "cloudflare-ai",
        settings: json!({"providerErrorRules": rules}),
        ..Setting::cooling("apikey")
    })
    .await?;
    stage
        .request(says(429, "you have used up your daily free allocation"))
        .await?;
    let seen = stage
        .expect_connection("c1", "the failure", |seen| {
            seen.last_error_status == Some(429)
        })
        .await?;
    assert_eq!(seen.last_error_reason, reason, "{seen:?}");
    match locks_ms {
        None => assert_eq!(seen.state, "unavailable", "{seen:?}"),
        Some(ms) => {
            let lock = stage.expect_lock("c1", 1).await?;
            assert_eq!(seen.state, "active", "{seen:?}");
            assert_eq!(lock.until_unix_ms, lock.locked_at_unix_ms + ms, "{lock:?}");
        }
    }
    Ok(())
}
