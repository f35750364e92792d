//! What can happen to a request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How the upstream treats one request.
///
/// A good answer is a stream of events or a JSON body, as the request asks.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Mode {
    /// A good answer.
    #[default]
    Ok,
    /// An error status (or any other status) at once.
    Status {
        /// The HTTP status.
        code: u16,
        /// The body as sent; without it, an error in the format of the asked API.
        body: Option<String>,
        /// Further response headers; a `content-type` here replaces `application/json`.
        headers: Vec<(String, String)>,
    },
    /// 429 with an error in the format of the asked API.
    RateLimited {
        /// The `Retry-After` header as sent, seconds or a date or nonsense.
        retry_after: Option<String>,
    },
    /// A good answer, later.
    Latency {
        /// Time before the response headers.
        before: Duration,
    },
    /// Another mode, but not before a gate is opened: so any number of requests are in flight at once.
    AtGate {
        /// The gate.
        gate: Gate,
        /// What happens then.
        then: Box<Self>,
    },
    /// Another mode with further response headers; one of a name that is there replaces it, so this also gives a wrong
    /// content type or an unknown content encoding.
    WithHeaders {
        /// The headers, each name as often as it is sent.
        headers: Vec<(String, String)>,
        /// What is answered.
        then: Box<Self>,
    },
    /// Another mode with its body compressed, flushed after each event. A body that is cut is cut before that, so that
    /// the compressed data has no proper end; heartbeats are at most a thousand, then silence.
    Encoded {
        /// How.
        encoding: Encoding,
        /// What is answered.
        then: Box<Self>,
    },
    /// Informational responses (such as 103) before another mode's answer.
    Informational {
        /// Their statuses, in order.
        codes: Vec<u16>,
        /// What is answered.
        then: Box<Self>,
    },
    /// Exactly these bytes on the socket instead of an HTTP answer.
    Raw {
        /// The bytes; none at all is a connection that just ends.
        bytes: Bytes,
        /// What the connection does after them.
        then: Closing,
    },
    /// The connection is closed with a TCP reset instead of an answer.
    Reset,
    /// Never an answer; the connection stays open until the client leaves.
    Hang,
    /// A good answer in small steps (events of a stream, pieces of a JSON body).
    SlowDrip {
        /// Time before each step.
        gap: Duration,
    },
    /// A good answer, one byte at a time.
    ByteDrip {
        /// Time before each byte.
        gap: Duration,
    },
    /// A good answer whose connection closes early, without the end that HTTP asks for.
    CutAfter {
        /// Exactly so much of the body is sent, at most all of it, in bytes.
        bytes: usize,
    },
    /// [`Mode::CutAfter`] with a TCP reset instead of an ordinary close.
    ResetAfter {
        /// Exactly so much of the body is sent, at most all of it, in bytes.
        bytes: usize,
    },
    /// The connection closes in the middle of an event, or of a JSON body.
    CutInEvent {
        /// Whole events before the one of which a half is sent.
        events: usize,
    },
    /// The connection closes in the middle of a character of the answer's text.
    CutInCodePoint,
    /// A stream that ends as HTTP asks, but without its last events; a JSON body without its last bytes.
    MissingEnd {
        /// How many events (or bytes) are left out: 1 leaves out the end mark, `usize::MAX` everything.
        last: usize,
    },
    /// A good answer with its last event (or the whole JSON body) twice.
    DoubleEnd,
    /// A good status and content type with a body that makes no sense: bytes of all values, the same each time.
    Garbage {
        /// Length of the body.
        bytes: usize,
    },
    /// An event whose line (or a JSON body whose string) goes on and on, and never ends properly.
    LongLine {
        /// Length of the body, in bytes.
        bytes: u64,
    },
    /// [`Mode::LongLine`] in gzip: a thousandth of it crosses the network.
    GzipBomb {
        /// Length of the body when decoded, in bytes, rounded up to 1 MiB.
        bytes: u64,
    },
    /// Status 200, but the first event of the stream (or the JSON body) is an error.
    SseErrorFirst {
        /// The error's object as sent; without it, an overload in the format of the asked API.
        error: Option<Value>,
    },
    /// A stream that begins well and then holds an error event.
    SseErrorAfter {
        /// Good events before the error.
        events: usize,
        /// As in [`Mode::SseErrorFirst`].
        error: Option<Value>,
    },
    /// A stream that begins well and then falls silent; the connection stays open.
    Stall {
        /// Good events before the silence.
        events: usize,
    },
    /// A stream that begins well and goes on when a gate is opened.
    Pause {
        /// Good events before the gate.
        events: usize,
        /// The gate.
        gate: Gate,
    },
    /// Status 200 and nothing but heartbeats for ever: comments or pings in a stream, blanks before a JSON body.
    HeartbeatOnly {
        /// Time between heartbeats.
        every: Duration,
    },
}

impl Mode {
    /// [`Mode::Status`] with a body in the format of the asked API.
    #[must_use]
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            body: None,
            headers: Vec::new(),
        }
    }

    /// [`Mode::Status`] with a body of one's own.
    #[must_use]
    pub fn status_with_body(code: u16, body: impl Into<String>) -> Self {
        Self::Status {
            code,
            body: Some(body.into()),
            headers: Vec::new(),
        }
    }

    /// [`Mode::RateLimited`] with a `Retry-After` header.
    #[must_use]
    pub fn rate_limited(retry_after: impl Into<String>) -> Self {
        Self::RateLimited {
            retry_after: Some(retry_after.into()),
        }
    }

    /// [`Mode::WithHeaders`] with one header and a good answer.
    #[must_use]
    pub fn with_header(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::WithHeaders {
            headers: vec![(name.into(), value.into())],
            then: Box::default(),
        }
    }

    /// [`Mode::Encoded`].
    #[must_use]
    pub fn encoded(self, encoding: Encoding) -> Self {
        Self::Encoded {
            encoding,
            then: Box::new(self),
        }
    }

    /// [`Mode::Raw`] after which the connection closes.
    #[must_use]
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self::Raw {
            bytes: bytes.into(),
            then: Closing::Close,
        }
    }

    /// [`Mode::SseErrorFirst`] with an overload.
    #[must_use]
    pub fn sse_error_first() -> Self {
        Self::SseErrorFirst { error: None }
    }
}

/// How a body is compressed, as `Content-Encoding` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `gzip`.
    Gzip,
    /// `deflate`, with the zlib frame that HTTP asks for.
    Deflate,
    /// `deflate` as some servers send it: without the frame.
    RawDeflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

/// What a connection does after [`Mode::Raw`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Closing {
    /// It closes.
    #[default]
    Close,
    /// It closes with a TCP reset.
    Reset,
    /// It ends its own direction and goes on reading until the client leaves.
    HalfClose,
    /// It stays open until the client leaves.
    StayOpen,
}

/// Holds requests until it is opened, once and for all. Clones are the same gate.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<CancellationToken>);

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets through what waits and what comes.
    pub fn open(&self) {
        self.0.cancel();
    }

    pub(crate) fn opened(&self) -> WaitForCancellationFutureOwned {
        CancellationToken::clone(&self.0).cancelled_owned()
    }
}

impl Eq for Gate {}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
