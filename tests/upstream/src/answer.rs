//! From a good answer and a mode to what is sent.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::encode::{encode, gzip_flood};
use crate::mode::Mode;
use crate::paced_body::Step;
use crate::wire::Api;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// What a long line is made of.
static FILLING: [u8; 16 * 1024] = [b'x'; 16 * 1024];

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

    /// The events, or the whole body as one.
    fn events(self) -> Vec<Bytes> {
        match self {
            Self::Events(events) => events,
            Self::Whole(bytes) => vec![bytes],
        }
    }

    /// The smallest steps in which it is usually sent: events, or about ten pieces of a whole body.
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
/// `Ok`, `Latency`, and the modes that end without an answer (`Reset`, `Hang`, `Raw`), give the good answer: their other
/// half happens elsewhere, as that of `AtGate` and `Informational` does.
pub(crate) fn under(mode: &Mode, api: Api, content: Content, gap: Duration, number: u64) -> Answer {
    match mode {
        Mode::AtGate { then, .. } | Mode::Informational { then, .. } => {
            under(then, api, content, gap, number)
        }
        Mode::WithHeaders { headers, then } => {
            let mut answer = under(then, api, content, gap, number);
            set_headers(&mut answer.headers, headers);
            answer
        }
        Mode::Encoded { encoding, then } => {
            encode(under(then, api, content, gap, number), *encoding)
        }
        Mode::Ok | Mode::Latency { .. } | Mode::Reset | Mode::Hang | Mode::Raw { .. } => {
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
        Mode::ByteDrip { gap } => {
            let mut answer = Answer::good(&content);
            let whole: Bytes = content.events().concat().into();
            let bytes = (0..whole.len()).map(|place| whole.slice(place..=place));
            answer.send_all(bytes, *gap);
            answer
        }
        Mode::CutAfter { bytes } => cut(content, *bytes, Step::BreakOff, gap),
        Mode::ResetAfter { bytes } => cut(content, *bytes, Step::Reset, gap),
        Mode::CutInEvent { events } => {
            // A JSON body is cut in its middle, however many events would come before.
            let before = match &content {
                Content::Whole(_) => 0,
                Content::Events(_) => *events,
            };
            let lengths = content
                .clone()
                .events()
                .into_iter()
                .map(|event| event.len());
            let lengths: Vec<usize> = lengths.collect();
            let whole: usize = lengths.iter().take(before).sum();
            let half = lengths.get(before).map_or(0, |length| length / 2);
            cut(content, whole.saturating_add(half), Step::BreakOff, gap)
        }
        Mode::CutInCodePoint => {
            let mut answer = Answer::good(&content);
            answer.send_all(up_to_half_a_character(content), gap);
            answer.steps.push(Step::BreakOff);
            answer
        }
        Mode::MissingEnd { last } => missing_end(content, *last, gap),
        Mode::DoubleEnd => {
            let mut answer = Answer::good(&content);
            answer.headers.remove(CONTENT_LENGTH);
            let mut events = content.events();
            events.extend(events.last().cloned());
            answer.send_all(events, gap);
            answer
        }
        Mode::Garbage { bytes } => {
            let mut answer = Answer::good(&content);
            answer.send_whole(garbage(*bytes));
            answer
        }
        Mode::LongLine { bytes } => {
            let opening = long_line_opening(&content);
            let mut answer = Answer::good(&content);
            answer.headers.remove(CONTENT_LENGTH);
            let block = Bytes::from_static(&FILLING);
            let size = u64::try_from(FILLING.len()).unwrap_or(u64::MAX);
            let flood = |bytes, times| Step::Flood { bytes, times };
            let rest = flood(block.slice(..1), bytes % size);
            answer.steps = vec![Step::Send(opening), flood(block, bytes / size), rest];
            answer
        }
        Mode::GzipBomb { bytes } => {
            let opening = long_line_opening(&content);
            let mut answer = Answer::good(&content);
            gzip_flood(&mut answer, &opening, *bytes);
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
        Mode::Pause { events, gate } => {
            let mut answer = Answer::good(&content);
            let mut pieces = content.pieces();
            let later = pieces.split_off((*events).min(pieces.len()));
            answer.send_all(pieces, gap);
            answer.steps.push(Step::Await(gate.clone()));
            answer.send_all(later, gap);
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

/// So much of the good answer, and then `end`.
fn cut(content: Content, bytes: usize, end: Step, gap: Duration) -> Answer {
    let mut answer = Answer::good(&content);
    let mut left = bytes.min(content.length());
    let cut = content.events().into_iter().map(|piece| {
        let kept = piece.slice(..left.min(piece.len()));
        left = left.saturating_sub(kept.len());
        kept
    });
    let cut: Vec<_> = cut.filter(|piece| !piece.is_empty()).collect();
    answer.send_all(cut, gap);
    answer.steps.push(end);
    answer
}

/// The good answer without its last events (or bytes), ended as HTTP asks.
fn missing_end(content: Content, last: usize, gap: Duration) -> Answer {
    match content {
        Content::Whole(bytes) => {
            let mut answer = Answer::new(StatusCode::OK, JSON);
            answer.send_whole(bytes.slice(..bytes.len().saturating_sub(last)));
            answer
        }
        Content::Events(events) => {
            let mut answer = Answer::new(StatusCode::OK, EVENT_STREAM);
            let kept = events.len().saturating_sub(last);
            answer.send_all(events.into_iter().take(kept), gap);
            answer
        }
    }
}

/// The good answer up to its first filling text, with the first of two bytes of a character in it.
fn up_to_half_a_character(content: Content) -> Vec<Bytes> {
    let filling = b"tide";
    let mut sent = Vec::new();
    for event in content.events() {
        let found = event
            .windows(filling.len())
            .position(|bytes| bytes == filling);
        let Some(found) = found else {
            sent.push(event);
            continue;
        };
        let mut half = event.slice(..found).to_vec();
        half.extend_from_slice(&"é".as_bytes()[..1]);
        sent.push(half.into());
        break;
    }
    sent
}

/// Bytes of all values without visible order.
fn garbage(length: usize) -> Bytes {
    let mut state: u32 = 1;
    let bytes = std::iter::repeat_with(|| {
        // Constants of a well-known linear congruential generator.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    bytes.take(length).collect()
}

fn long_line_opening(content: &Content) -> Bytes {
    Bytes::from_static(match content {
        Content::Whole(_) => b"{\"choices\":[{\"message\":{\"content\":\"",
        Content::Events(_) => b"data: {\"choices\":[{\"delta\":{\"content\":\"",
    })
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
