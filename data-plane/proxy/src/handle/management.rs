//! `/api/monitoring/health` and `/api/resilience*`, which the control plane answers (decision 61).
//!
//! **Stance:** nothing is decided here. What the client shows travels with its request and is told to nobody else. Without
//! an answer health is 200 `degraded`, as the contract has it, and everything else 503.
//!
//! Who shows nothing can only be told in one word how everything is. That word is asked for once for all who want it at
//! the same time, so that a crowd of strangers costs the control plane as much as one. All else they are refused here.
//!
//! Who shows anything at all may still be a stranger, which only a control plane knows. So nothing that a client can draw out
//! is waited for in a place that others need: a body is here before there is a place for its request, short ones take none
//! while they are read, and a wait for a place counts within the limit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body as _, Incoming};
use secrecy::SecretString;
use serde_json::json;
use tidegate_core::management::{MAX_MANAGEMENT_BYTES, Operation, Resource, Right};
use tidegate_core::time::Timestamp;
use tidegate_plane_client::{ManagementAnswer, ManagementCall};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::read;
use crate::control_port::ControlPort;
use crate::metrics::ManagementEnd;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{JSON, REQUEST_ID, ReplyBody};

/// Most requests that only look and are forwarded at once; further ones wait, and hold nothing but their head.
const MAX_LOOKS: usize = 64;
/// The same of those that change something.
const MAX_CHANGES: usize = 16;
/// How long the body of one may take.
const BODY_TIME: Duration = Duration::from_secs(10);
/// A body of at most so many bytes is read wherever it comes from: it costs about as much as a head, and operators' bodies
/// are hardly ever longer.
const SHORT_BODY: u64 = 16 * 1024;
/// Most longer bodies, or of unknown length, that are read at once.
const MAX_LONG_BODIES: usize = 16;
/// For how long the word for strangers is told again. The control plane's is at most a second old.
const WORD_AGE: Duration = Duration::from_millis(100);
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer");

/// Room for what is forwarded, and the word for strangers.
#[derive(Debug)]
pub(crate) struct Forwarding {
    looks: Semaphore,
    changes: Semaphore,
    long_bodies: Semaphore,
    word: tokio::sync::Mutex<Option<(Instant, Option<ManagementAnswer>)>>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            looks: Semaphore::new(MAX_LOOKS),
            changes: Semaphore::new(MAX_CHANGES),
            long_bodies: Semaphore::new(MAX_LONG_BODIES),
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
    let asked = Asked {
        resource,
        operation,
        head: &head,
    };
    let answer = match operation.right() {
        Right::Anyone if is_stranger => word_for_strangers(shared, asked).await,
        _ if is_stranger => Some(unauthenticated()),
        Right::Anyone | Right::Read => forward(shared, asked, authorization, Bytes::new()).await,
        Right::Manage => match whole(shared, &head.headers, body).await? {
            Some(body) => forward(shared, asked, authorization, body).await,
            None => None,
        },
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

/// What a client asks for.
#[derive(Clone, Copy)]
struct Asked<'a> {
    resource: &'static Resource,
    operation: Operation,
    head: &'a http::request::Parts,
}

impl Asked<'_> {
    fn call(
        self,
        authorization: Option<SecretString>,
        body: Bytes,
        deadline: Instant,
    ) -> ManagementCall {
        ManagementCall {
            operation: self.operation,
            method: self.head.method.as_str().to_owned(),
            path: self.resource.path,
            authorization,
            body,
            deadline,
        }
    }
}

/// The body of a change; `None` when there is no place to read it in time.
async fn whole<C: ControlPort>(
    shared: &Shared<C>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Option<Bytes>, Refusal> {
    let by = Instant::now() + shared.limits.body_time.min(BODY_TIME);
    let is_short = body.size_hint().upper().is_some_and(|it| it <= SHORT_BODY);
    let _place = if is_short {
        None
    } else {
        match timeout_at(by, shared.forwarding.long_bodies.acquire()).await {
            Ok(place) => place.ok(),
            Err(_elapsed) => return Ok(None),
        }
    };
    let time = by.saturating_duration_since(Instant::now());
    let read = read::up_to(headers, body, MAX_MANAGEMENT_BYTES, time);
    read.await.map(Some)
}

/// The control plane's answer; `None` without one, or without a place, in time.
async fn forward<C: ControlPort>(
    shared: &Shared<C>,
    asked: Asked<'_>,
    authorization: Option<SecretString>,
    body: Bytes,
) -> Option<ManagementAnswer> {
    let Forwarding { looks, changes, .. } = &shared.forwarding;
    let (places, time) = match asked.operation.right() {
        Right::Anyone | Right::Read => (looks, shared.limits.look_time),
        Right::Manage => (changes, shared.limits.change_time),
    };
    let deadline = Instant::now() + time;
    let _place = timeout_at(deadline, places.acquire()).await.ok()?;
    let call = asked.call(authorization, body, deadline);
    shared.control.manage(call).await
}

/// In the control plane's words (`docs/errors/control-plane.md`), which is not asked.
fn unauthenticated() -> ManagementAnswer {
    let told = json!({"error": {
        "message": "a credential is required, as a bearer token in the authorization header",
        "type": "authentication_error",
        "code": "CP0008",
    }});
    ManagementAnswer {
        status: StatusCode::UNAUTHORIZED.as_u16(),
        body: told.to_string().into(),
        allow: None,
    }
}

async fn word_for_strangers<C: ControlPort>(
    shared: &Shared<C>,
    asked: Asked<'_>,
) -> Option<ManagementAnswer> {
    let mut word = shared.forwarding.word.lock().await;
    if let Some((heard_at, answer)) = &*word
        && heard_at.elapsed() < WORD_AGE
    {
        return answer.clone();
    }
    let deadline = Instant::now() + shared.limits.look_time;
    let call = asked.call(None, Bytes::new(), deadline);
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
