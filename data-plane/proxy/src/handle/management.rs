//! `/api/monitoring/health` and `/api/resilience*`, which the control plane answers (decision 61).
//!
//! **Stance:** nothing is decided here. What the client shows travels with its request and is told to nobody else. Without
//! an answer health is 200 `degraded`, as the contract has it, and everything else 503.
//!
//! Who shows nothing can only be told in one word how everything is. That word is asked for once for all who want it at
//! the same time, so that a crowd of strangers costs the control plane as much as one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use secrecy::SecretString;
use serde_json::json;
use tidegate_core::management::{MAX_MANAGEMENT_BYTES, Operation, Resource, Right};
use tidegate_core::time::Timestamp;
use tidegate_plane_client::{ManagementAnswer, ManagementCall};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::read;
use crate::control_port::ControlPort;
use crate::metrics::ManagementEnd;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{JSON, REQUEST_ID, ReplyBody};

/// Most requests without a body that are forwarded at once; further ones wait, and hold nothing but their head.
const MAX_LOOKS: usize = 64;
/// The same with a body, and how long that may take. Nobody knows yet whether their senders may change anything, so they
/// keep nobody else waiting, and little memory.
const MAX_CHANGES: usize = 16;
const BODY_TIME: Duration = Duration::from_secs(10);
/// For how long the word for strangers is told again. The control plane's is at most a second old.
const WORD_AGE: Duration = Duration::from_millis(100);
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");

/// Room for what is forwarded, and the word for strangers.
#[derive(Debug)]
pub(crate) struct Forwarding {
    looks: Semaphore,
    changes: Semaphore,
    word: tokio::sync::Mutex<Option<(Instant, Option<ManagementAnswer>)>>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            looks: Semaphore::new(MAX_LOOKS),
            changes: Semaphore::new(MAX_CHANGES),
            word: tokio::sync::Mutex::default(),
        }
    }
}

/// Answers one request.
pub(super) async fn answer<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    resource: &'static Resource,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let begun = Instant::now();
    let (head, body) = request.into_parts();
    let operation = resource
        .operation(head.method.as_str())
        .ok_or(Refusal::MethodNotAllowed {
            allow: resource.allow,
        })?;
    let authorization = shown(&head.headers);
    let is_stranger = authorization.is_none();
    let answer = if is_stranger && operation == Operation::ShowHealth {
        word_for_strangers(shared, call(resource, operation, &head, None, Bytes::new())).await
    } else {
        // Who shows nothing gets nothing that a body could ask for.
        let has_body = operation.right() == Right::Manage && !is_stranger;
        let Forwarding { looks, changes, .. } = &shared.forwarding;
        let _room = if has_body { changes } else { looks }.acquire().await;
        let body = if has_body {
            let time = shared.limits.body_time.min(BODY_TIME);
            read::up_to(&head.headers, body, MAX_MANAGEMENT_BYTES, time).await?
        } else {
            Bytes::new()
        };
        let call = call(resource, operation, &head, authorization, body);
        shared.control.manage(call).await
    };
    let request_id = shared.next_request_id();
    let answer = answer.and_then(response);
    let end = match answer {
        Some(_) => ManagementEnd::Answered,
        None => ManagementEnd::Unanswered,
    };
    shared.metrics.management.ended(operation, end);
    let mut response = match answer {
        Some(response) => response,
        None if operation == Operation::ShowHealth => degraded(is_stranger, shared.control.now()),
        None => return Err(Refusal::ControlPlaneUnreachable),
    };
    tracing::info!(
        target: "tidegate::access",
        request_id,
        operation = operation.name(),
        status = response.status().as_u16(),
        duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "management"
    );
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    if let Ok(id) = HeaderValue::try_from(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    Ok(response)
}

fn call(
    resource: &'static Resource,
    operation: Operation,
    head: &http::request::Parts,
    authorization: Option<SecretString>,
    body: Bytes,
) -> ManagementCall {
    ManagementCall {
        operation,
        method: head.method.as_str().to_owned(),
        path: resource.path,
        authorization,
        body,
    }
}

async fn word_for_strangers<C: ControlPort>(
    shared: &Shared<C>,
    call: ManagementCall,
) -> Option<ManagementAnswer> {
    let mut word = shared.forwarding.word.lock().await;
    if let Some((heard_at, answer)) = &*word
        && heard_at.elapsed() < WORD_AGE
    {
        return answer.clone();
    }
    let answer = shared.control.manage(call).await;
    *word = Some((Instant::now(), answer.clone()));
    answer
}

/// What the client shows, if it is text.
fn shown(headers: &HeaderMap) -> Option<SecretString> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    Some(SecretString::from(text))
}

fn response(answer: ManagementAnswer) -> Option<Response<ReplyBody>> {
    let status = StatusCode::from_u16(answer.status).ok()?;
    let mut response = Response::new(ReplyBody::whole(answer.body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, CHALLENGE);
    }
    if let Some(allow) = answer.allow {
        headers.insert(ALLOW, HeaderValue::try_from(allow).ok()?);
    }
    Some(response)
}

/// Health without a control plane. The lists are empty since nothing is known; strangers see none of them anyway.
fn degraded(is_stranger: bool, now: Timestamp) -> Response<ReplyBody> {
    let told = if is_stranger {
        json!({"status": "degraded"})
    } else {
        json!({
            "status": "degraded",
            "error": "no control plane answers",
            "timestamp": now.iso(),
            "providerBreakers": [],
            "providerHealth": {},
            "cooldowns": [],
            "lockouts": [],
        })
    };
    let mut response = Response::new(ReplyBody::whole(told.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
