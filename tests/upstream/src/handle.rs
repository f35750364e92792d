//! One request, from its head to its body's first step.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::time::sleep;

use crate::answer::{self, Answer, Content};
use crate::behaviour::Rules;
use crate::connection::ConnectionState;
use crate::log::{Ending, KEPT_BODY, RecordedRequest, RequestLog};
use crate::mode::Mode;
use crate::paced_body::{BrokenOff, EndGuard, PacedBody};
use crate::reply::Reply;
use crate::selector::Subject;
use crate::window::Window;
use crate::wire::{Api, Ask};

/// Longest request body that is read, in bytes.
const LONGEST_BODY: usize = 64 * 1024 * 1024;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) models: Vec<String>,
    pub(crate) only_known_models: bool,
    pub(crate) needs_credential: bool,
    pub(crate) rules: Rules,
    pub(crate) log: Arc<RequestLog>,
    pub(crate) reply: RwLock<Arc<Reply>>,
    pub(crate) headers: RwLock<Arc<Vec<(String, String)>>>,
    pub(crate) window: RwLock<Option<Window>>,
}

/// Answers one request; the error closes the connection.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    connection: Arc<ConnectionState>,
    request: Request<Incoming>,
) -> Result<Response<PacedBody>, BrokenOff> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    // A path we do not know gets its errors in the OpenAI format.
    let api = Api::at(&path);
    let error_api = api.unwrap_or(Api::OpenAiChat);
    let body = Limited::new(body, LONGEST_BODY).collect().await;
    let too_long = body.is_err();
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let json: Option<Value> = serde_json::from_slice(&body).ok();
    let model = json
        .as_ref()
        .and_then(|json| json.get("model")?.as_str())
        .map(str::to_owned);
    let credential = credential(&head.headers);
    let subject = Subject {
        model: model.clone(),
        credential: credential.clone(),
        path,
    };

    let number = shared.log.record(RecordedRequest {
        number: 0,
        at: Duration::ZERO,
        method: head.method.clone(),
        path: subject.path.clone(),
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body: body.slice(..body.len().min(KEPT_BODY)),
        body_length: body.len(),
        model,
        credential,
        ending: None,
        ended_at: None,
    });
    let mut end = EndGuard::new(Arc::clone(&shared.log), number);

    let refusal = if too_long {
        Some(StatusCode::PAYLOAD_TOO_LARGE)
    } else if shared.needs_credential && subject.credential.is_none() {
        Some(StatusCode::UNAUTHORIZED)
    } else {
        None
    };
    if let Some(status) = refusal {
        let answer = Answer::error(error_api, status, number);
        return Ok(respond(answer, number, &[], connection, end));
    }

    let mode = shared.rules.next(&subject);
    let innermost = unwrap(&mode, &connection).await;
    match innermost {
        Mode::Reset => {
            connection.reset_on_close();
            end.ends_as(Ending::Broken);
            return Err(BrokenOff);
        }
        Mode::Raw { bytes, then } => {
            connection.say_instead(bytes.clone(), *then);
            end.ends_as(Ending::Broken);
            let mut unseen = Response::new(PacedBody::new(Vec::new(), connection, end));
            let headers = unseen.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            return Ok(unseen);
        }
        Mode::Hang => pending().await,
        Mode::Latency { before } => sleep(*before).await,
        _ => {}
    }

    let reply = Arc::clone(&shared.reply.read());
    let content = match good(
        &shared,
        &reply,
        api,
        &head.method,
        json.as_ref(),
        &body,
        number,
    ) {
        Ok(content) => content,
        // A script may still say what happens on paths that we do not know.
        Err(_) if matches!(innermost, Mode::Status { .. } | Mode::RateLimited { .. }) => {
            Content::Whole(Bytes::new())
        }
        Err(status) => {
            let answer = Answer::error(error_api, status, number);
            return Ok(respond(answer, number, &[], connection, end));
        }
    };
    let mut answer = answer::under(&mode, error_api, content, reply.gap, number);
    let mut headers = shared.headers.read().as_ref().clone();
    if let Some(window) = shared.window.read().as_ref() {
        let counted = window.count(Instant::now());
        if counted.refused {
            answer = Answer::error(error_api, StatusCode::TOO_MANY_REQUESTS, number);
        }
        headers.extend(counted.headers);
    }
    Ok(respond(answer, number, &headers, connection, end))
}

/// Does what the outer modes ask for before an answer, and gives the innermost.
async fn unwrap<'a>(mut mode: &'a Mode, connection: &ConnectionState) -> &'a Mode {
    loop {
        mode = match mode {
            Mode::AtGate { gate, then } => {
                gate.opened().await;
                then
            }
            Mode::Informational { codes, then } => {
                let heads = codes
                    .iter()
                    .map(|code| format!("HTTP/1.1 {code} -\r\n\r\n"));
                connection.say_before(heads.collect::<String>().into());
                then
            }
            Mode::WithHeaders { then, .. } | Mode::Encoded { then, .. } => then,
            innermost => return innermost,
        };
    }
}

fn good(
    shared: &Shared,
    reply: &Reply,
    api: Option<Api>,
    method: &http::Method,
    json: Option<&Value>,
    body: &Bytes,
    number: u64,
) -> Result<Content, StatusCode> {
    let api = api.ok_or(StatusCode::NOT_FOUND)?;
    if *method != api.method() {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let json = match (api, json) {
        (Api::OpenAiModels, _) => &Value::Null,
        (_, json) => json.ok_or(StatusCode::BAD_REQUEST)?,
    };
    let model = match api {
        Api::OpenAiModels => "",
        _ => json
            .get("model")
            .and_then(Value::as_str)
            .ok_or(StatusCode::BAD_REQUEST)?,
    };
    let known = api == Api::OpenAiModels || shared.models.iter().any(|known| known == model);
    if shared.only_known_models && !known {
        return Err(StatusCode::NOT_FOUND);
    }
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let input_tokens = u64::try_from(body.len() / 4).unwrap_or(u64::MAX).max(1);
    Ok(api.good(&Ask {
        number,
        name: &shared.name,
        model,
        body: json,
        reply,
        models: &shared.models,
        created,
        input_tokens,
    }))
}

fn respond(
    answer: Answer,
    number: u64,
    extra: &[(String, String)],
    connection: Arc<ConnectionState>,
    end: EndGuard,
) -> Response<PacedBody> {
    let mut response = Response::new(PacedBody::new(answer.steps, connection, end));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    if let Ok(id) = HeaderValue::try_from(format!("req_{number}")) {
        // One name is OpenAI's, the other Anthropic's.
        response
            .headers_mut()
            .insert(HeaderName::from_static("x-request-id"), id.clone());
        response
            .headers_mut()
            .insert(HeaderName::from_static("request-id"), id);
    }
    answer::set_headers(response.headers_mut(), extra);
    response
}

fn credential(headers: &HeaderMap) -> Option<String> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let bearer = text(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    bearer
        .or_else(|| text(HeaderName::from_static("x-api-key")))
        .map(str::to_owned)
}
