//! `POST /api/v1/session-leases`: sessions acquire, renew, release and ask for their leases (`sessions-and-streams.md`
//! §1.7). What is asked is checked here; the authority is asked by [`ControlPort::lease`].

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tidegate_core::config::ApiKey;
use tidegate_core::lease::{
    Action, Bearer, LeaseError, Lifecycle, MAX_LIFECYCLE_BYTES, Refused, lifecycle_body,
    read_lifecycle,
};
use tidegate_core::routing::{Rejection, refused_by_key};
use tidegate_plane_client::{LeaseAnswer, Snapshot};
use tokio::time::Instant;

use super::read;
use crate::control_port::ControlPort;
use crate::endpoint::Format;
use crate::identify;
use crate::leasing;
use crate::metrics::{LeaseAction, LeaseLabels};
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{ErrorContext, JSON, REQUEST_ID, ReplyBody, refuse};

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const CLOSE: HeaderValue = HeaderValue::from_static("close");
/// A request as far as it is known before its body is read.
const NO_BODY: &[u8] = b"";

/// Answers one request; refusals are answers, too, so that all are counted and logged alike.
pub(super) async fn answer<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let begun = Instant::now();
    let request_id = shared.next_request_id();
    let mut asked = None;
    let answered = ask(shared, request, &mut asked).await;
    let action = asked.as_ref().map_or(LeaseAction::None, LeaseAction::of);
    let (mut response, code) = match answered {
        Ok(answer) => (told(&answer), None),
        Err(Broken { refusal, closes }) => {
            let mut response = refuse(Format::Openai, &refusal, ErrorContext::default());
            if closes {
                response.headers_mut().insert(CONNECTION, CLOSE);
            }
            (response, Some(refusal.kind().to_owned()))
        }
    };
    let code = code.unwrap_or_else(|| "ok".to_owned());
    tracing::info!(
        target: "tidegate::access",
        request_id,
        action = ?action,
        status = response.status().as_u16(),
        code,
        duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "lease"
    );
    let labels = LeaseLabels { action, code };
    shared.metrics.lease_requests.get_or_create(&labels).inc();
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, NO_STORE);
    if let Ok(id) = HeaderValue::try_from(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// A refusal, and whether the connection ends with it.
struct Broken {
    refusal: Refusal,
    closes: bool,
}

impl<E: Into<Refusal>> From<E> for Broken {
    fn from(error: E) -> Self {
        Self {
            refusal: error.into(),
            closes: false,
        }
    }
}

impl From<Refused<Box<Rejection>>> for Refusal {
    fn from(refused: Refused<Box<Rejection>>) -> Self {
        match refused {
            Refused::Lease(error) => Self::Lease(error),
            Refused::Policy(rejection) => Self::Rejected(rejection),
        }
    }
}

async fn ask<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    request: Request<Incoming>,
    action: &mut Option<Action>,
) -> Result<LeaseAnswer, Broken> {
    let (head, body) = request.into_parts();
    // Without a configuration nobody can say whose key it is.
    let Some(snapshot) = shared.configured() else {
        shared.unread.discard(&head.headers, body).await;
        return Err(LeaseError::ServiceUnavailable.into());
    };
    let key = identify::key(&head.headers, &snapshot.config, true);
    if let Err(refused) = check(&snapshot, &key, &head.headers, NO_BODY)
        && refused != Refused::Lease(LeaseError::ActionInvalid)
    {
        // What is wrong before the body is looked at is told when the client has written it, if it is not too long.
        shared.unread.discard(&head.headers, body).await;
        return Err(refused.into());
    }
    let limit = MAX_LIFECYCLE_BYTES;
    let body = match read::up_to(&head.headers, body, limit, shared.limits.body_time).await {
        Ok(body) => body,
        Err(Refusal::BodyTooLarge { .. } | Refusal::BodyEncoded) => {
            return Err(Broken {
                refusal: LeaseError::ActionInvalid.into(),
                closes: true,
            });
        }
        Err(refusal) => return Err(refusal.into()),
    };
    let lifecycle = check(&snapshot, &key, &head.headers, &body)?;
    *action = Some(lifecycle.action.clone());
    let Ok(Some(key)) = key else {
        return Err(LeaseError::ApiKeyInvalid.into());
    };
    Ok(shared.control.lease(&lifecycle, &key.id).await?)
}

fn check(
    snapshot: &Snapshot,
    key: &Result<Option<Arc<ApiKey>>, Refusal>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Lifecycle, Refused<Box<Rejection>>> {
    let bearer = match key {
        Ok(Some(key)) => Bearer::Key(key.leasing()),
        Ok(None) | Err(Refusal::MissingKey) => Bearer::Missing,
        Err(_) => Bearer::Unknown,
    };
    let policy = |model: Option<&str>| {
        let (Ok(Some(key)), Some(model)) = (key, model) else {
            return Ok(());
        };
        match refused_by_key(&snapshot.config, key, model) {
            Some(rejection) => Err(Box::new(rejection)),
            None => Ok(()),
        }
    };
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    read_lifecycle(bearer, content_type, body, leasing::owner(headers), policy)
}

fn told(answer: &LeaseAnswer) -> Response<ReplyBody> {
    let mut body = lifecycle_body(&answer.lease);
    if let (Some(place), Some(members)) = (&answer.place, body.as_object_mut()) {
        let connection = json!({
            "displayName": place.display_name,
            "provider": place.provider.as_str(),
        });
        members.insert("connection".to_owned(), connection);
    }
    let mut response = Response::new(ReplyBody::whole(body.to_string()));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
