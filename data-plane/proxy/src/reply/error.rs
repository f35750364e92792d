//! Errors in the client's format (`sessions-and-streams.md` §5.2, `routing.md` §7.2).

use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};
use tidegate_core::routing::{Exclusion, Rejection};

use super::{JSON, ReplyBody};
use crate::endpoint::Format;
use crate::redact;
use crate::refusal::Refusal;

/// Most entries of a list in `diagnostics`.
const MAX_LISTED: usize = 64;
/// Largest `retry_after_seconds` of a recovery hint.
const MAX_HINT_SECS: u64 = 3_600;

/// What an error may say about its request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ErrorContext<'a> {
    /// `provider/model` of each attempt, in order.
    pub(crate) attempt_order: &'a [String],
}

/// `error.type` when the queue of a connection is full (`routing.md` §5.3).
const QUEUE_TYPE: &str = "local_queue_capacity";

/// The answer for a refused request.
pub(crate) fn refuse(
    format: Format,
    refusal: &Refusal,
    context: ErrorContext<'_>,
) -> Response<ReplyBody> {
    let status = refusal.status();
    let message = redact::message(&refusal.to_string());
    let openai_type = match refusal {
        Refusal::Rejected(rejection) if !rejection.error_type.is_empty() => &rejection.error_type,
        Refusal::NotAdmitted(_) => QUEUE_TYPE,
        _ => openai_type(status),
    };
    let mut body = match (refusal, format) {
        // One form for all clients, as the contract has it.
        (Refusal::Lease(error), _) => error.body(),
        (_, Format::Openai) => json!({"error": {
            "message": message, "type": openai_type, "param": null, "code": refusal.code(),
        }}),
        (_, Format::Anthropic) => json!({"type": "error", "error": {
            "type": anthropic_type(status), "message": message, "code": refusal.code(),
        }}),
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, JSON);
    if let (Refusal::Rejected(rejection), Some(object)) = (refusal, body.as_object_mut()) {
        describe(rejection, context, object, &mut headers);
    }
    if let Some(seconds) = refusal.retry_after_secs() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if let Refusal::MethodNotAllowed { allow } = refusal {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if refusal.closes_connection() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let mut response = Response::new(ReplyBody::whole(body.to_string()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn describe(
    rejection: &Rejection,
    context: ErrorContext<'_>,
    body: &mut Map<String, Value>,
    headers: &mut HeaderMap,
) {
    let excluded: Vec<Value> = rejection
        .excluded
        .iter()
        .take(MAX_LISTED)
        .map(exclusion)
        .collect();
    let order: Vec<&String> = context.attempt_order.iter().take(MAX_LISTED).collect();
    body.insert(
        "diagnostics".to_owned(),
        json!({
            "poolSize": rejection.pool_size,
            "attempted": rejection.attempted,
            "excluded": excluded,
            "attemptOrder": order,
            "terminalReason": rejection.terminal_reason,
        }),
    );
    let (action, next_step) = recovery(rejection);
    let mut hint = json!({"action": action, "next_step": next_step});
    if let (Some(seconds), Some(hint)) = (rejection.retry_after_secs, hint.as_object_mut()) {
        let seconds = seconds.min(MAX_HINT_SECS);
        hint.insert("retry_after_seconds".to_owned(), seconds.into());
        headers.insert(
            HeaderName::from_static("x-omniroute-retry-after-seconds"),
            seconds.into(),
        );
    }
    body.insert("recovery_hint".to_owned(), hint);
    let count = u64::try_from(rejection.excluded.len()).unwrap_or(u64::MAX);
    for (name, value) in [
        (
            "x-omniroute-combo-pool-size",
            u64::from(rejection.pool_size).into(),
        ),
        (
            "x-omniroute-combo-attempted",
            u64::from(rejection.attempted).into(),
        ),
        ("x-omniroute-combo-excluded", count.into()),
        (
            "x-omniroute-recovery-action",
            HeaderValue::from_static(action),
        ),
    ] {
        headers.insert(HeaderName::from_static(name), value);
    }
    if let Ok(reason) = HeaderValue::try_from(&rejection.terminal_reason) {
        let name = HeaderName::from_static("x-omniroute-combo-terminal-reason");
        headers.insert(name, reason);
    }
}

/// Connections are not named: clients have no business with them.
fn exclusion(exclusion: &Exclusion) -> Value {
    let reason = exclusion.reason.as_str();
    json!({
        "provider": exclusion.provider.as_str(),
        "model": exclusion.model.as_str(),
        "reason": reason.strip_prefix("terminal:").unwrap_or(reason),
    })
}

/// What the client can do, as `routing.md` §7.2 to §7.4 have it.
fn recovery(rejection: &Rejection) -> (&'static str, &'static str) {
    match rejection.terminal_reason.as_str() {
        "all_targets_cooling_down" => ("wait", "wait until a target is available again"),
        "concurrency_cap" => ("wait", "wait until a request that runs has ended"),
        "no_executable_targets" | "model_not_found" => {
            ("switch-combo", "ask for another model or combo")
        }
        "connection_not_found" => ("switch-combo", "name another connection, or none"),
        "budget_exceeded" => (
            "switch-combo",
            "raise the budget, or ask for a cheaper combo",
        ),
        "capability_mismatch" | "context_length_exceeded" | "context_requirements_exhausted" => {
            ("switch-combo", "ask for a model that takes such a request")
        }
        "quota_exhausted" => ("switch-combo", "every target has used up its quota"),
        "all_models_failed" => ("try-auto", "every target failed; try another combo"),
        _ => ("retry", "try the request again"),
    }
}

pub(super) fn openai_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    }
}

pub(super) fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests;
