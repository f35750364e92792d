//! Signs of life inside a stream (`sessions-and-streams.md` §5.3).
//!
//! Clients, and the proxies on the way to them, take a silent connection for a dead one, and models may think for
//! minutes. So a stream carries a heartbeat at fixed times, whatever else it carries, in the shape that the client's
//! format allows:
//!
//! | format | heartbeat |
//! |---|---|
//! | chat completions | a chunk with an empty delta, under the stream's own id and model |
//! | messages | `event: ping` |
//! | responses | `response.in_progress` of the stream's own response |
//! | anything else | a comment |
//!
//! **Official SDKs.** OpenAI's insists that a responses stream begins with `response.created` and that no later event of
//! the response's life names another response; one that names none counts as another. Until the stream has named its
//! response, a responses heartbeat is therefore a comment. It repeats the last sequence number, so that what a client
//! remembers of its place stays true.
//!
//! **Where.** Only between whole events, and never once the stream has told how it ends. They are made behind the
//! watchdog and the idle timer, which must not take them for the upstream's. One is not made while the connection still
//! holds the one before, so a client that takes nothing does not pile them up.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::time::Timestamp;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::endpoint::Endpoint;

/// Nobody needs a longer time between two.
const LONGEST_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// How many pieces of a stream are looked at for its names.
const PIECES_READ: u8 = 4;
/// Longest name of a stream or model that is repeated, in bytes.
const MAX_NAME_BYTES: usize = 256;
const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";
const COMMENT: &[u8] = b": keepalive\n\n";

/// When heartbeats are sent, and whether they may be comments.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeats {
    /// Time between two; `None` sends none (`SSE_HEARTBEAT_INTERVAL_MS`).
    pub every: Option<Duration>,
    /// Streams may hold comments, which some clients cannot read (`OMNIROUTE_SSE_COMMENTS`).
    pub comments: bool,
}

impl Heartbeats {
    /// Every so many milliseconds; 0 or less sends none.
    #[must_use]
    pub fn every_ms(ms: i64, comments: bool) -> Self {
        let every = u64::try_from(ms).ok().filter(|ms| *ms > 0);
        Self {
            every: every.map(Duration::from_millis),
            comments,
        }
    }
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self {
            every: Some(Duration::from_secs(15)),
            comments: true,
        }
    }
}

/// What a stream calls itself until it says so.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    pub(crate) request_id: &'a str,
    /// As the client asked for it.
    pub(crate) model: &'a str,
    pub(crate) now: Timestamp,
}

/// The heartbeat of one stream.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    form: Form,
    comments: bool,
    /// One is due now, whatever the time.
    due: bool,
    ticks: Interval,
    /// The last one. The connection has its own hold on it until it is written.
    last: Option<Arc<[u8]>>,
    pieces_left: u8,
    sent: Counter,
}

#[derive(Debug)]
enum Form {
    Chat(Named),
    Messages,
    /// Of a response that the stream has named.
    Responses(Option<Named>),
    Comment,
}

/// What a stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    id: String,
    model: String,
    /// Seconds since 1970.
    created: u64,
}

impl Heartbeat {
    /// The heartbeat of a stream that begins now; none where they are switched off.
    pub(crate) fn begin(
        endpoint: Endpoint,
        settings: Heartbeats,
        names: &Names<'_>,
        sent: Counter,
    ) -> Option<Self> {
        let every = settings.every.filter(|every| !every.is_zero())?;
        let every = every.min(LONGEST_EVERY);
        let form = match endpoint {
            Endpoint::ChatCompletions => Form::Chat(Named {
                id: format!("chatcmpl-{}", names.request_id),
                model: names.model.to_owned(),
                created: names.now.0 / 1_000,
            }),
            Endpoint::Messages => Form::Messages,
            Endpoint::Responses => Form::Responses(None),
            Endpoint::Completions
            | Endpoint::InputTokens
            | Endpoint::Embeddings
            | Endpoint::CountTokens => Form::Comment,
        };
        let begin = Instant::now();
        let mut ticks = interval_at(begin + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Self {
            form,
            comments: settings.comments,
            ticks,
            due: false,
            last: None,
            pieces_left: PIECES_READ,
            sent,
        })
    }

    /// The first one now.
    #[must_use]
    pub(crate) fn at_once(mut self) -> Self {
        // A timer would say so only at its next turn, and what is there by then would go first.
        self.due = true;
        self.ticks.reset();
        self
    }

    /// Looks at what the client is handed, until the stream has said what it is called.
    pub(crate) fn learns(&mut self, piece: &[u8]) {
        if self.pieces_left == 0 {
            return;
        }
        self.pieces_left = self.pieces_left.saturating_sub(1);
        let named = match self.form {
            Form::Chat(_) | Form::Responses(_) => named_in(piece),
            Form::Messages | Form::Comment => None,
        };
        if let Some(named) = named {
            self.pieces_left = 0;
            match &mut self.form {
                Form::Chat(known) => *known = named,
                Form::Responses(known) => *known = Some(named),
                Form::Messages | Form::Comment => {}
            }
        }
    }

    /// The heartbeat whose time has come. To be asked between whole events of a stream that has not ended; `sequence` is
    /// the last sequence number that the client has seen.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        sequence: Option<u64>,
    ) -> Option<Bytes> {
        while std::mem::take(&mut self.due) || self.ticks.poll_tick(context).is_ready() {
            if self
                .last
                .as_ref()
                .is_some_and(|last| Arc::strong_count(last) > 1)
            {
                continue;
            }
            if let Some(event) = self.event(sequence) {
                self.sent.inc();
                self.last = Some(Arc::clone(&event));
                return Some(Bytes::from_owner(event));
            }
        }
        None
    }

    fn event(&self, sequence: Option<u64>) -> Option<Arc<[u8]>> {
        let data = match &self.form {
            Form::Chat(named) => chunk(named),
            Form::Responses(Some(named)) => in_progress(named, sequence),
            Form::Messages => return Some(PING.into()),
            Form::Responses(None) | Form::Comment => {
                return self.comments.then(|| COMMENT.into());
            }
        };
        Some(format!("data: {data}\n\n").into_bytes().into())
    }
}

fn chunk(named: &Named) -> Value {
    json!({
        "id": named.id, "object": "chat.completion.chunk", "created": named.created,
        "model": named.model,
        "choices": [{"index": 0, "delta": {}, "finish_reason": null}],
    })
}

/// With the members of a response that SDKs have no default for.
fn in_progress(named: &Named, sequence: Option<u64>) -> Value {
    json!({
        "type": "response.in_progress",
        "sequence_number": sequence.unwrap_or(0),
        "response": {
            "id": named.id, "object": "response", "created_at": named.created,
            "status": "in_progress", "model": named.model, "output": [],
            "error": null, "incomplete_details": null, "instructions": null, "metadata": {},
            "parallel_tool_calls": true, "temperature": null, "tool_choice": "auto",
            "tools": [], "top_p": null,
        },
    })
}

/// The members that name a chunk of a chat, or an event of a response.
#[derive(Deserialize)]
struct Written {
    id: Option<String>,
    model: Option<String>,
    created: Option<u64>,
    response: Option<WrittenResponse>,
}

#[derive(Deserialize)]
struct WrittenResponse {
    id: Option<String>,
    model: Option<String>,
    created_at: Option<f64>,
}

/// What the first event that says so calls the stream.
fn named_in(piece: &[u8]) -> Option<Named> {
    let lines = piece.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines
        .filter_map(|line| line.strip_prefix(b"data:"))
        .find_map(|data| {
            let written: Written = serde_json::from_slice(data).ok()?;
            let named = match written.response {
                None => Named {
                    id: written.id?,
                    model: written.model?,
                    created: written.created.unwrap_or(0),
                },
                Some(response) => Named {
                    id: response.id?,
                    model: response.model.unwrap_or_default(),
                    created: whole_seconds(response.created_at.unwrap_or(0.0)),
                },
            };
            let fits = named.id.len() <= MAX_NAME_BYTES && named.model.len() <= MAX_NAME_BYTES;
            fits.then_some(named)
        })
}

/// Responses tell seconds that need not be whole.
fn whole_seconds(seconds: f64) -> u64 {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    seconds.as_secs()
}

#[cfg(test)]
mod tests;
