//! What can happen to a request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How the upstream treats one request.
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
        /// What happens then; another gate does not hold a second time.
        then: Box<Self>,
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
    /// A good answer whose connection closes early, without the end that HTTP asks for.
    CutAfter {
        /// Exactly so much of the body is sent, at most all of it, in bytes.
        bytes: usize,
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

    /// [`Mode::SseErrorFirst`] with an overload.
    #[must_use]
    pub fn sse_error_first() -> Self {
        Self::SseErrorFirst { error: None }
    }
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

    pub(crate) async fn opened(&self) {
        self.0.cancelled().await;
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
