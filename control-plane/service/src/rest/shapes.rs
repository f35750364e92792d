//! How things look in JSON.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tidegate_core::config::{Config, Violation};
use tidegate_core::lockout::LockKey;
use tidegate_core::management::BadRequest;
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1::{BreakerStatus, Cooldown, CooldownKind};
use tidegate_wire::routing::serde_word;

use crate::admin::{Admin, RunningLock, lock_name};
use crate::grpc::error::Refusal;

/// Most items of a list, longest remaining first; the gRPC API has them all, in pages.
pub(super) const MAX_LISTED: usize = 1_000;

/// An error in the contract's form (`sessions-and-streams.md` §5.2).
pub(super) fn error_body(status: StatusCode, code: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": error_type(status), "code": code}})
}

/// A body that is not understood.
pub(super) fn invalid_body(bad: &BadRequest) -> Value {
    detailed(Refusal::InvalidRequest.code(), &bad.message, &bad.details)
}

/// Settings that are not good.
pub(super) fn failure_body(found: &[Violation]) -> Value {
    let message = match found.first() {
        Some(first) if first.field.is_empty() => first.message.clone(),
        Some(first) => format!("{}: {}", first.field, first.message),
        None => "the settings are not valid".to_owned(),
    };
    detailed(Refusal::InvalidConfiguration.code(), &message, found)
}

fn detailed(code: &str, message: &str, details: &[Violation]) -> Value {
    let details: Vec<Value> = details
        .iter()
        .map(|it| json!({"field": it.field, "message": it.message}))
        .collect();
    json!({"error": {
        "message": message,
        "type": error_type(StatusCode::BAD_REQUEST),
        "code": code,
        "details": details,
    }})
}

fn error_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

/// Model locks that run (`failure-state.md` §4.6).
pub(super) fn lockouts(admin: &Admin, config: &Config) -> Value {
    let now = admin.clock.now();
    let locks = admin.running_locks(config, None, None, now);
    json!({"items": listed_locks(&locks, now), "total": locks.len()})
}

/// The first [`MAX_LISTED`] locks.
pub(super) fn listed_locks(locks: &[RunningLock<'_>], now: Timestamp) -> Vec<Value> {
    let first = locks.iter().take(MAX_LISTED);
    first.map(|running| lock(running, now)).collect()
}

fn lock(RunningLock { connection, lock }: &RunningLock<'_>, now: Timestamp) -> Value {
    let family = match &lock.key {
        LockKey::Family(family) => Some(family.as_str()),
        LockKey::Model(_) | LockKey::Exact(_) => None,
    };
    json!({
        "provider": connection.provider.as_str(),
        "connection": connection.id.as_str(),
        "connectionId": connection.id.as_str(),
        "model": lock_name(&lock.key),
        "modelFamily": family,
        "reason": serde_word(&lock.reason),
        "remainingMs": lock.until.remaining_ms(now),
        "failureCount": lock.failure_count,
        "lockedAt": lock.locked_at.iso(),
        "lockedAtMs": lock.locked_at.0,
        "until": lock.until.0,
        "expiresAt": lock.until.iso(),
    })
}

/// A breaker, its state refreshed (`failure-state.md` §1.9).
pub(super) fn breaker(status: &BreakerStatus) -> Value {
    json!({
        "name": status.provider,
        "state": status.state,
        "failureCount": status.failure_count,
        "lastFailureTime": status.last_failure_unix_ms,
        "retryAfterMs": status.retry_after_ms,
        "openCycleCount": status.open_cycle_count,
        "degradationThreshold": status.degradation_threshold,
        "failureThreshold": status.failure_threshold,
        "effectiveResetTimeout": status.effective_reset_timeout_ms,
    })
}

/// The same by provider, in short.
pub(super) fn provider_health(breakers: &[BreakerStatus]) -> Map<String, Value> {
    let entries = breakers.iter().map(|status| {
        let last = status.last_failure_unix_ms.map(|ms| Timestamp(ms).iso());
        let told = json!({
            "state": status.state,
            "failures": status.failure_count,
            "lastFailure": last,
            "retryAfterMs": status.retry_after_ms,
        });
        (status.provider.clone(), told)
    });
    entries.collect()
}

/// How many breakers stand where; a degraded one lets traffic through, so it is closed.
pub(super) fn breaker_counts(breakers: &[BreakerStatus]) -> Value {
    let of = |state: &str| breakers.iter().filter(|it| it.state == state).count();
    let (open, half_open) = (of("OPEN"), of("HALF_OPEN"));
    let total = breakers.len();
    json!({
        "open": open,
        "halfOpen": half_open,
        "closed": total.saturating_sub(open).saturating_sub(half_open),
        "total": total,
    })
}

/// Something that cools.
pub(super) fn cooldown(cooldown: &Cooldown) -> Value {
    let kind = match cooldown.kind() {
        CooldownKind::Unspecified => "unspecified",
        CooldownKind::Connection => "connection",
        CooldownKind::ConnectionGate => "connection_gate",
        CooldownKind::ProviderGate => "provider_gate",
        CooldownKind::Egress => "egress",
    };
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    json!({
        "kind": kind,
        "provider": cooldown.provider,
        "connection": some(&cooldown.connection),
        "egress": some(&cooldown.egress),
        "reason": some(&cooldown.reason),
        "remainingMs": cooldown.remaining_ms,
        "until": cooldown.until_unix_ms,
    })
}
