//! From a good answer and a mode to what is sent.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::mode::Mode;
use crate::paced_body::Step;
use crate::wire::Api;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// A good body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// JSON in one piece.
    Whole(Bytes),
    /// The events of a stream.
    Events(Vec<Bytes>),
}

impl Content {
    pub(crate) fn whole(value: &Value) -> Self {
        Self::Whole(value.to_string().into())
    }

    /// The smallest steps in which it may be sent: events, or about ten pieces of a whole body.
    fn pieces(self) -> Vec<Bytes> {
        match self {
            Self::Events(events) => events,
            Self::Whole(bytes) => {
                let length = bytes.len().div_ceil(10).max(1);
                bytes.chunks(length).map(Bytes::copy_from_slice).collect()
            }
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Events(events) => events.iter().map(Bytes::len).sum(),
        }
    }
}

/// What goes out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) steps: Vec<Step>,
}

impl Answer {
    /// An error status with a body in the API's own format.
    pub(crate) fn error(api: Api, status: StatusCode, number: u64) -> Self {
        Self::json(status, &api.error(status.as_u16(), number))
    }

    fn json(status: StatusCode, body: &Value) -> Self {
        let mut answer = Self::new(status, JSON);
        answer.send_whole(body.to_string().into());
        answer
    }

    fn new(status: StatusCode, content_type: HeaderValue) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
        Self {
            status,
            headers,
            steps: Vec::new(),
        }
    }

    /// The head of a good answer with this content.
    fn good(content: &Content) -> Self {
        match content {
            Content::Whole(bytes) => {
                let mut answer = Self::new(StatusCode::OK, JSON);
                answer.headers.insert(CONTENT_LENGTH, bytes.len().into());
                answer
            }
            Content::Events(_) => Self::new(StatusCode::OK, EVENT_STREAM),
        }
    }

    fn send_whole(&mut self, bytes: Bytes) {
        self.headers.insert(CONTENT_LENGTH, bytes.len().into());
        self.steps = vec![Step::Send(bytes)];
    }

    fn send_all(&mut self, pieces: impl IntoIterator<Item = Bytes>, gap: Duration) {
        for piece in pieces {
            if !gap.is_zero() {
                self.steps.push(Step::Wait(gap));
            }
            self.steps.push(Step::Send(piece));
        }
    }
}

/// What `mode` makes of a good answer. `gap` is the usual time before each event of a stream.
///
/// `Ok`, `Latency`, `AtGate`, and the modes that end without an answer (`Reset`, `Hang`), give the good answer: their
/// other half happens elsewhere.
pub(crate) fn under(mode: &Mode, api: Api, content: Content, gap: Duration, number: u64) -> Answer {
    match mode {
        Mode::Ok | Mode::Latency { .. } | Mode::AtGate { .. } | Mode::Reset | Mode::Hang => {
            let mut answer = Answer::good(&content);
            match content {
                Content::Whole(bytes) => answer.steps.push(Step::Send(bytes)),
                Content::Events(events) => answer.send_all(events, gap),
            }
            answer
        }
        Mode::Status {
            code,
            body,
            headers,
        } => status(api, *code, body.as_deref(), headers, number),
        Mode::RateLimited { retry_after } => {
            let headers: Vec<_> = retry_after
                .iter()
                .map(|value| ("retry-after".to_owned(), value.clone()))
                .collect();
            status(api, 429, None, &headers, number)
        }
        Mode::SlowDrip { gap } => {
            let mut answer = Answer::good(&content);
            answer.send_all(content.pieces(), *gap);
            answer
        }
        Mode::CutAfter { bytes } => {
            let mut answer = Answer::good(&content);
            let mut left = (*bytes).min(content.length());
            let pieces = match content {
                Content::Whole(bytes) => vec![bytes],
                Content::Events(events) => events,
            };
            let cut = pieces.into_iter().map(|piece| {
                let kept = piece.slice(..left.min(piece.len()));
                left = left.saturating_sub(kept.len());
                kept
            });
            let cut: Vec<_> = cut.filter(|piece| !piece.is_empty()).collect();
            answer.send_all(cut, gap);
            answer.steps.push(Step::BreakOff);
            answer
        }
        Mode::SseErrorFirst { error } => error_after(api, content, 0, error.as_ref(), gap),
        Mode::SseErrorAfter { events, error } => {
            error_after(api, content, *events, error.as_ref(), gap)
        }
        Mode::Stall { events } => {
            let mut answer = Answer::good(&content);
            answer.send_all(content.pieces().into_iter().take(*events), gap);
            answer.steps.push(Step::Silence);
            answer
        }
        Mode::HeartbeatOnly { every } => {
            let (content_type, bytes) = match content {
                Content::Whole(_) => (JSON, Bytes::from_static(b" ")),
                Content::Events(_) => (EVENT_STREAM, api.heartbeat()),
            };
            let mut answer = Answer::new(StatusCode::OK, content_type);
            answer.steps.push(Step::Repeat {
                bytes,
                every: *every,
            });
            answer
        }
    }
}

fn status(
    api: Api,
    code: u16,
    body: Option<&str>,
    headers: &[(String, String)],
    number: u64,
) -> Answer {
    // A code that HTTP does not have is the test's mistake; 500 says so loudly enough.
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = Answer::error(api, status, number);
    if let Some(body) = body {
        answer.send_whole(Bytes::copy_from_slice(body.as_bytes()));
    }
    set_headers(&mut answer.headers, headers);
    answer
}

/// The first of each name replaces what is there, further ones are added.
pub(crate) fn set_headers(target: &mut HeaderMap, headers: &[(String, String)]) {
    let mut given = HeaderMap::new();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            given.append(name, value);
        }
    }
    target.extend(given);
}

fn error_after(
    api: Api,
    content: Content,
    events: usize,
    error: Option<&Value>,
    gap: Duration,
) -> Answer {
    let (object, event) = api.error_in_body(error);
    match content {
        Content::Whole(_) => Answer::json(StatusCode::OK, &object),
        Content::Events(good) => {
            let mut answer = Answer::new(StatusCode::OK, EVENT_STREAM);
            answer.send_all(good.into_iter().take(events).chain([event]), gap);
            answer
        }
    }
}
