//! What an attempt ended as: facts for whoever judges, and what can be handed to the client
//! (`architecture.md` §2, Judge).

mod clock;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{
    LocalFault, MAX_BODY_BYTES, MAX_HEADER_BYTES, MAX_HEADERS, Outcome, StreamFault,
    TransportFault, UpstreamError,
};

use crate::control_port::ControlPort;
use crate::event_stream::{EventStream, Reading};
use crate::reply::is_event_stream;
use crate::sending::Sending;
use crate::sse::Tokens;
use crate::upstream::{Pieces, UpstreamBody};

pub(crate) use clock::{Clock, within};
use clock::{Elapsed, Phase};

/// So much of an error's body is kept for the client.
const MAX_ERROR_BYTES: usize = 256 * 1024;
/// Time for an error's body once its head is here; what has come by then must do.
const ERROR_BODY_TIME: Duration = Duration::from_secs(5);
/// What of an upstream's headers reaches the client.
const HANDED_ON: [HeaderName; 6] = [
    CONTENT_TYPE,
    CONTENT_ENCODING,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("openai-processing-ms"),
    HeaderName::from_static("openai-version"),
];

/// The end of an attempt, or the good beginning of one.
#[derive(Debug)]
pub(crate) enum Observed {
    /// A whole good answer.
    Whole(Answered),
    /// A stream whose first ready event is here.
    Stream(StatusCode, HeaderMap, Box<EventStream>),
    /// It failed; nothing of it reached the client.
    Failed(Failure),
}

/// An answer with its body, fit to be handed on.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) tokens: Tokens,
}

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The facts.
    pub(crate) outcome: Outcome,
    /// The upstream's own words, for decisions that hand them to the client unchanged (decision 50).
    pub(crate) words: Option<Answered>,
    /// Its lease refused that it was sent again.
    pub(crate) lease: Option<LeaseError>,
}

impl From<Outcome> for Failure {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            words: None,
            lease: None,
        }
    }
}

/// Sends an attempt and watches it until it is ready or has failed. `reading` is for an answer that is a stream; `sees`
/// is told the status and headers of an answer, whatever becomes of it.
pub(crate) async fn attempt<C: ControlPort>(
    sending: &Sending<C>,
    request: http::Request<Pieces>,
    reading: Reading,
    clock: Clock,
    max_answer_bytes: usize,
    sees: impl FnOnce(StatusCode, &HeaderMap),
) -> Observed {
    let upstream = &sending.shared.upstream;
    let sent = upstream.send(request, clock.deadlines.connect, || sending.may_resend());
    let by = clock.by_in(Phase::Headers, clock.deadlines.headers);
    let response = match within(by, sent).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(outcome))) => return failed(outcome),
        Ok(Err(refused)) => {
            return Observed::Failed(Failure {
                lease: Some(refused),
                ..Outcome::Local(LocalFault::LeaseConflict).into()
            });
        }
        Err(Elapsed) if clock.is_over() => {
            return failed(Outcome::Stream(StreamFault::DeadlineExceeded));
        }
        Err(Elapsed) => {
            let late = Outcome::Transport(TransportFault::HeadersTimeout);
            return failed(clock.given_up(Phase::Headers).unwrap_or(late));
        }
    };
    let status = response.status();
    sees(status, response.headers());
    if !status.is_success() {
        return Observed::Failed(error(response, clock).await);
    }
    if is_event_stream(response.headers()) {
        // One that is still there could not be undone.
        if response.headers().contains_key(CONTENT_ENCODING) {
            tracing::warn!("an upstream's stream has an encoding that is not known");
            return failed(Outcome::Transport(TransportFault::Protocol));
        }
        return stream(response, reading, clock).await;
    }
    // Also when a stream was asked for and comes in another format: in the middle of one that nobody here knows a
    // client could not be told of a failure, so it gets all of the answer or, in time for a fail-over, none.
    whole(response, clock, max_answer_bytes).await
}

fn failed(outcome: Outcome) -> Observed {
    Observed::Failed(outcome.into())
}

/// Whether the content type is one of these, whatever its parameters.
fn is_of_type(headers: &HeaderMap, types: &[&str]) -> bool {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let given = value.and_then(|value| value.split(';').next());
    given.is_some_and(|given| {
        let given = given.trim();
        types.iter().any(|kind| given.eq_ignore_ascii_case(kind))
    })
}

/// Whether a body that is not JSON makes no sense under this head: it is called JSON, or it is a page of something that
/// stands between us and the provider. What is encoded in a way that is not known is not judged.
fn is_no_answer(headers: &HeaderMap) -> bool {
    if headers.contains_key(CONTENT_ENCODING) {
        return false;
    }
    is_of_type(headers, &["application/json", "text/html"])
}

async fn stream(response: Response<UpstreamBody>, reading: Reading, clock: Clock) -> Observed {
    let (head, body) = response.into_parts();
    let mut stream = Box::new(EventStream::new(body, reading));
    let by = clock.by_in(Phase::Readiness, clock.deadlines.readiness);
    match within(by, stream.until_ready()).await {
        Ok(Ok(())) => Observed::Stream(head.status, handed_on(&head.headers), stream),
        Ok(Err(fault)) => match stream.passage.take_error() {
            Some(body) => Observed::Failed(embedded(&head.headers, body)),
            None => failed(Outcome::Stream(fault)),
        },
        Err(Elapsed) => failed(clock.passed_in(Phase::Readiness, StreamFault::ReadinessTimeout)),
    }
}

/// An error in an answer that claims success.
pub(crate) fn embedded(headers: &HeaderMap, body: Bytes) -> Failure {
    let outcome = Outcome::Response(UpstreamError {
        status: StatusCode::OK.as_u16(),
        headers: facts(headers),
        body: beginning(&body),
        embedded: true,
    });
    let mut headers = handed_on(headers);
    headers.insert(CONTENT_TYPE, crate::reply::JSON);
    Failure {
        outcome,
        words: Some(Answered {
            status: StatusCode::OK,
            headers,
            body,
            tokens: Tokens::default(),
        }),
        lease: None,
    }
}

async fn error(response: Response<UpstreamBody>, clock: Clock) -> Failure {
    let (head, mut body) = response.into_parts();
    let by = clock.by(Some(ERROR_BODY_TIME));
    let mut kept = BytesMut::new();
    // An error without its body is still an error with a status.
    while let Ok(Some(Ok(frame))) = within(by, body.frame()).await {
        if let Ok(data) = frame.into_data() {
            let room = MAX_ERROR_BYTES.saturating_sub(kept.len());
            kept.extend_from_slice(&data.slice(..room.min(data.len())));
            if data.len() > room {
                break;
            }
        }
    }
    let body = kept.freeze();
    Failure {
        outcome: Outcome::Response(UpstreamError {
            status: head.status.as_u16(),
            headers: facts(&head.headers),
            body: beginning(&body),
            embedded: false,
        }),
        words: Some(Answered {
            status: head.status,
            headers: handed_on(&head.headers),
            body,
            tokens: Tokens::default(),
        }),
        lease: None,
    }
}

/// Members of a whole answer that matter.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

async fn whole(response: Response<UpstreamBody>, clock: Clock, max_bytes: usize) -> Observed {
    let (head, body) = response.into_parts();
    let body = match read_whole(body, clock, max_bytes).await {
        Ok(body) => body,
        Err(outcome) => return failed(outcome),
    };
    let mut tokens = Tokens::default();
    match serde_json::from_slice::<Answer<'_>>(&body) {
        Ok(answer) => {
            if answer.error.is_some_and(|error| error.get() != "null") {
                return Observed::Failed(embedded(&head.headers, body));
            }
            if let Some(usage) = answer.usage {
                tokens.learn(usage);
            }
        }
        Err(error) if !error.is_data() && is_no_answer(&head.headers) => {
            tracing::warn!("an upstream's answer is not what its content type says");
            return failed(Outcome::Transport(TransportFault::Protocol));
        }
        // JSON of another form, or a format that is none of ours to judge.
        Err(_) => {}
    }
    Observed::Whole(Answered {
        status: head.status,
        headers: handed_on(&head.headers),
        body,
        tokens,
    })
}

async fn read_whole(
    mut body: UpstreamBody,
    clock: Clock,
    max_bytes: usize,
) -> Result<Bytes, Outcome> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut by = clock.next_part();
    loop {
        let frame = match within(by, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return Err(Outcome::Stream(StreamFault::EarlyEof)),
            Ok(None) => break,
            Err(Elapsed) => return Err(clock.passed_in(Phase::Body, StreamFault::IdleTimeout)),
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Blanks before the answer keep connections open; they are no progress.
        if data.iter().any(|byte| !byte.is_ascii_whitespace()) {
            by = clock.next_part();
        }
        if first
            .len()
            .saturating_add(rest.len())
            .saturating_add(data.len())
            > max_bytes
        {
            tracing::warn!(max_bytes, "an upstream's answer was too long");
            return Err(Outcome::Transport(TransportFault::Protocol));
        }
        // Most answers come in one piece, which is then not copied.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
    }
    let body = if rest.is_empty() {
        first
    } else {
        rest.freeze()
    };
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Outcome::Stream(StreamFault::EarlyEof));
    }
    Ok(body)
}

fn handed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::with_capacity(HANDED_ON.len());
    for name in HANDED_ON {
        if let Some(value) = headers.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    passed
}

/// Headers that say something about a failure.
fn facts(headers: &HeaderMap) -> Vec<(String, String)> {
    let tells = |name: &str| {
        matches!(
            name,
            "content-type" | "retry-after" | "retry-after-ms" | "x-should-retry" | "server" | "via"
        ) || [
            "x-ratelimit-",
            "ratelimit",
            "anthropic-ratelimit-",
            "x-model-quota-",
            "x-omni-",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    };
    headers
        .iter()
        .filter(|(name, _)| tells(name.as_str()))
        .take(MAX_HEADERS)
        .map(|(name, value)| (name.as_str().to_owned(), printable(value)))
        .collect()
}

fn printable(value: &HeaderValue) -> String {
    let bytes = value.as_bytes().iter().take(MAX_HEADER_BYTES);
    bytes
        .map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        })
        .collect()
}

fn beginning(body: &Bytes) -> String {
    let kept = body.slice(..body.len().min(MAX_BODY_BYTES));
    let mut text = String::from_utf8_lossy(&kept).into_owned();
    // Replacing a broken character can make the text longer than the bytes.
    while text.len() > MAX_BODY_BYTES {
        text.pop();
    }
    text
}
