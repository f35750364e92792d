//! What is shown of the state, and ended.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use http::{Method, StatusCode};
use pretty_assertions::assert_eq;
use serde_json::json;
use tidegate_proto::config::v1 as config;

use crate::fleet::{ALPHA, Replica, eventually, failure};

use super::{COOLDOWNS, HEALTH, OPERATOR, READER, RESET, guarded, guarded_with, with_keys};

/// Locks `alpha/m` on connection `a1`, and tells the attempt that failed.
async fn lock_a_model(replica: &Replica) {
    let attempt = replica.dispatched(7).await;
    let mut reporting = replica.report().await;
    reporting.send(7, vec![failure(7, 1, &attempt)]).await;
    reporting.acknowledged_to(1).await;
}

fn locking() -> config::Document {
    let mut wanted = with_keys();
    wanted.providers[0].per_model_quota = Some(true);
    wanted
}

#[tokio::test]
async fn a_reset_at_one_replica_counts_at_all_and_late_failures_do_not_undo_it() {
    let (fleet, one, http) = guarded().await;
    let other = fleet.start().await;
    let before_the_reset = other.dispatched(7).await;
    let number = other.open_breaker(7).await;
    eventually("the open breaker", async || {
        http.health().await["providerBreakers"][0]["state"] == "OPEN"
    })
    .await;
    let health = http.health().await;
    let breaker = &health["providerBreakers"][0];
    assert_eq!(breaker["failureCount"], 2);
    assert!(breaker["retryAfterMs"].as_u64().unwrap() > 0, "{breaker}");
    assert!(breaker["lastFailureTime"].is_u64(), "{breaker}");
    assert_eq!(health["circuitBreakers"]["open"], 1);
    assert_eq!(health["providerHealth"][ALPHA]["state"], "OPEN");

    let reset = http.send(Method::POST, RESET, Some("sk-boss"), "").await;
    assert_eq!(reset.status, StatusCode::OK);
    let expected = json!({
        "ok": true, "resetCount": 1, "message": "breakers: 1 reset", "checkpointed": true,
    });
    assert_eq!(reset.json(), expected);
    // What was told before is forgotten.
    assert_eq!(
        http.health().await["providerBreakers"][0]["state"],
        "CLOSED"
    );
    other.breaker_becomes("CLOSED").await;

    let mut late = other.report().await;
    let failures = (1..=3).map(|next| failure(7, number + next, &before_the_reset));
    late.send(7, failures.collect()).await;
    late.acknowledged_to(number + 3).await;
    assert_eq!(other.breaker().await, "CLOSED");
    eventually("a look after the late failures", async || {
        let breaker = http.health().await["providerBreakers"][0].clone();
        breaker["state"] == "CLOSED" && breaker["failureCount"] == 0
    })
    .await;

    let again = http.send(Method::DELETE, HEALTH, Some(OPERATOR), "").await;
    let expected = json!({
        "success": true, "resetCount": 0, "message": "breakers: 0 reset", "checkpointed": true,
    });
    assert_eq!((again.status, again.json()), (StatusCode::OK, expected));
    let audit = fleet.durable.list_audit(10).await.unwrap();
    let told: Vec<(&str, &str)> = audit
        .iter()
        .take(2)
        .map(|entry| (entry.author.as_str(), entry.summary.as_str()))
        .collect();
    let expected = [
        ("admin", "breakers reset, 0 changed"),
        ("key boss", "breakers reset, 1 changed"),
    ];
    assert_eq!(told, expected);
    one.shutdown().await;
}

#[tokio::test]
async fn a_breaker_is_told_as_it_stands_now_not_as_it_was_left() {
    let mut wanted = with_keys();
    wanted.settings_json = json!({"providerBreaker": {
        "local": {"resetTimeoutMs": 1_000}, "dedupConnectionMs": 0, "dedupProviderMs": 0,
    }})
    .to_string();
    let (fleet, _one, http) = guarded_with(wanted, BTreeMap::new()).await;
    let other = fleet.start().await;
    other.open_breaker(7).await;
    eventually("half-open", async || {
        http.health().await["providerBreakers"][0]["state"] == "HALF_OPEN"
    })
    .await;
}

#[tokio::test]
async fn a_model_is_enabled_again_as_often_as_one_likes() {
    let (fleet, _one, http) = guarded_with(locking(), BTreeMap::new()).await;
    let other = fleet.start().await;
    lock_a_model(&other).await;
    let locked = async || http.get(COOLDOWNS, Some(READER)).await.json()["total"] == 1;
    eventually("the lock", locked).await;
    let listed = http.get(COOLDOWNS, Some(READER)).await.json();
    let item = &listed["items"][0];
    assert_eq!(item["provider"], ALPHA);
    assert_eq!(
        (&item["connection"], &item["connectionId"]),
        (&json!("a1"), &json!("a1"))
    );
    assert_eq!(item["model"], "m");
    assert_eq!(item["failureCount"], 1);
    let until = item["until"].as_u64().unwrap();
    let remaining = item["remainingMs"].as_u64().unwrap();
    assert!(
        remaining > 0 && until > item["lockedAtMs"].as_u64().unwrap(),
        "{item}"
    );
    for moment in ["expiresAt", "lockedAt"] {
        let text = item[moment].as_str().unwrap();
        assert!(text.ends_with('Z') && text.len() == 24, "{item}");
    }
    assert!(!item["reason"].as_str().unwrap().is_empty(), "{item}");
    let health = http.health().await;
    assert_eq!(health["lockouts"][0]["connection"], "a1");
    assert_eq!(health["lockoutCount"], 1);

    let of = |scope: &str, removed: u32| json!({"ok": true, "removed": removed, "cleared": removed > 0, "scope": scope});
    let by_connection = json!({"provider": ALPHA, "connection": "a1", "model": "m"});
    let by_the_newer_name = json!({"provider": ALPHA, "connectionId": "a1", "model": "m"});
    for (body, expected) in [
        (
            json!({"provider": ALPHA, "model": "other"}),
            of("provider-model", 0),
        ),
        (
            json!({"provider": "nowhere", "model": "m"}),
            of("provider-model", 0),
        ),
        (
            json!({"provider": ALPHA, "connection": "b1", "model": "m"}),
            of("connection-model", 0),
        ),
        (by_connection, of("connection-model", 1)),
        (by_the_newer_name, of("connection-model", 0)),
    ] {
        let reply = http.operate(Method::DELETE, COOLDOWNS, &body).await;
        assert_eq!(
            (reply.status, reply.json()),
            (StatusCode::OK, expected),
            "{body}"
        );
    }
    assert_eq!(http.get(COOLDOWNS, Some(READER)).await.json()["total"], 0);
    eventually("the model at the other replica", async || {
        other.connection("a1").await.locked_models == 0
    })
    .await;
    let all = http
        .operate(Method::DELETE, COOLDOWNS, &json!({"all": true}))
        .await;
    let expected = json!({"ok": true, "clearedAll": true, "removed": 0});
    assert_eq!((all.status, all.json()), (StatusCode::OK, expected));
}

#[tokio::test]
async fn a_reset_ends_what_its_body_names() {
    let (fleet, _one, http) = guarded_with(locking(), BTreeMap::new()).await;
    let other = fleet.start().await;
    lock_a_model(&other).await;
    let total = async || http.get(COOLDOWNS, Some(READER)).await.json()["total"].clone();
    eventually("the lock", async || total().await == 1).await;
    let breakers = http.operate(Method::POST, RESET, &json!({})).await;
    assert_eq!(breakers.json()["message"], "breakers: 1 reset");
    assert_eq!(total().await, 1);
    let named = json!({"scope": "lockouts", "provider": ALPHA, "connection": "a1"});
    let lockouts = http.operate(Method::POST, RESET, &named).await;
    let message = "lockouts of provider alpha of connection a1: 1 reset";
    assert_eq!(
        (lockouts.status, &lockouts.json()["message"]),
        (StatusCode::OK, &json!(message))
    );
    assert_eq!(total().await, 0);
    let named = json!({"connection": "a1"});
    let connection = http.operate(Method::POST, RESET, &named).await;
    assert_eq!(connection.status, StatusCode::OK, "{connection:?}");
    for (body, status) in [
        (json!({"provider": "nowhere"}), StatusCode::NOT_FOUND),
        (
            json!({"scope": "all", "connection": "nowhere"}),
            StatusCode::NOT_FOUND,
        ),
        (
            json!({"scope": "breakers", "connection": "a1"}),
            StatusCode::BAD_REQUEST,
        ),
    ] {
        let reply = http.operate(Method::POST, RESET, &body).await;
        assert_eq!(reply.status, status, "{body}");
        assert!(reply.error()["message"].is_string(), "{body}");
    }
}

#[tokio::test]
async fn health_is_answered_whatever_is_away() {
    let (fleet, replica, http) = guarded().await;
    let status = async || {
        let reply = http.get(HEALTH, None).await;
        assert_eq!(reply.status, StatusCode::OK);
        reply.json()["status"].clone()
    };
    let other = fleet.start().await;
    other.open_breaker(7).await;
    eventually("the open breaker", async || {
        let health = http.health().await;
        health["status"] == "healthy" && health["providerBreakers"][0]["state"] == "OPEN"
    })
    .await;
    replica.hot.fail_each(NonZeroU64::new(1));
    eventually("degraded", async || status().await == "degraded").await;
    let health = http.health().await;
    assert_eq!(health["controlPlane"]["durableStoreReachable"], true);
    assert_eq!(health["providerBreakers"][0]["state"], "OPEN");
    // A reset that fails says so.
    let reset = http.send(Method::POST, RESET, Some(OPERATOR), "").await;
    assert_eq!(reset.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(reset.error()["code"], "CP0009");
    replica.hot.fail_each(None);
    eventually("health again", async || status().await == "healthy").await;
}
