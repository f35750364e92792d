//! What an event means (`sessions-and-streams.md` §4.1).
//!
//! | class | readiness | idle time |
//! |---|---|---|
//! | useful, protected | ready | begins anew |
//! | lifecycle | ready | goes on |
//! | neutral | not ready, unless it is not JSON at all | goes on |
//! | terminal | ready, except a bare `[DONE]` | no matter |
//! | error | never; before readiness it is the attempt's failure | no matter |
//!
//! Audio and calls of built-in tools count as protected: they are progress, though no text.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::shapes::{ChatChunk, ChatDelta, MessagesEvent, ResponsesEvent, is_something, is_text};
use super::{Event, Tokens};
use crate::endpoint::Endpoint;

/// Whose events these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chat completions.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
}

impl Dialect {
    /// What streams of an endpoint speak.
    pub(crate) fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::ChatCompletions | Endpoint::Embeddings => Self::Chat,
            Endpoint::Responses => Self::Responses,
            Endpoint::Messages => Self::Messages,
        }
    }
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It carries text for the reader.
    Useful,
    /// It carries tool calls, reasoning or the like.
    Protected,
    /// It frames what comes.
    Lifecycle,
    /// It carries nothing.
    Neutral,
    /// It ends the stream.
    Terminal,
    /// The upstream says that it failed.
    Error,
}

/// How far the stream has come towards its end. Only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// More must come.
    #[default]
    Open,
    /// A finish reason was seen: an orderly end of the connection is a good end.
    Finished,
    /// The dialect's last event was seen: nothing that happens afterwards matters.
    Closed,
}

/// What an event was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its class.
    pub(crate) class: Class,
    /// It makes the stream a good one.
    pub(crate) ready: bool,
}

/// Looks at the events of one stream and remembers what they add up to.
#[derive(Debug)]
pub(crate) struct Judge {
    dialect: Dialect,
    /// How far the stream has come.
    pub(crate) end: End,
    /// Usage as far as it was told.
    pub(crate) tokens: Tokens,
    /// The last sequence number of a responses stream.
    pub(crate) sequence: Option<u64>,
    /// The first error event, as an error body.
    pub(crate) error: Option<Bytes>,
}

impl Judge {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            end: End::Open,
            tokens: Tokens::default(),
            sequence: None,
            error: None,
        }
    }

    pub(crate) fn see(&mut self, event: &Event<'_>) -> Seen {
        if event.cut {
            return self.see_cut(event);
        }
        let seen = match self.dialect {
            Dialect::Chat => self.see_chat(event),
            Dialect::Responses => self.see_responses(event),
            Dialect::Messages => self.see_messages(event),
        };
        seen.unwrap_or(Seen {
            class: Class::Neutral,
            ready: true,
        })
    }

    fn see_chat(&mut self, event: &Event<'_>) -> Option<Seen> {
        if event.data.trim_ascii() == b"[DONE]" {
            self.end = End::Closed;
            return Some(Seen {
                class: Class::Terminal,
                ready: false,
            });
        }
        let chunk: ChatChunk<'_> = serde_json::from_slice(event.data).ok()?;
        if let Some(error) = chunk.error.filter(|error| is_something(Some(error))) {
            return Some(self.fail(error_body(error)));
        }
        if let Some(usage) = chunk.usage {
            self.tokens.learn(usage);
        }
        let mut class = Class::Neutral;
        for choice in chunk.choices.iter().flatten() {
            let delta = choice.delta.as_ref();
            let found = if is_something(choice.finish_reason) {
                self.end = self.end.max(End::Finished);
                Class::Terminal
            } else if delta.is_some_and(is_protected) {
                Class::Protected
            } else if is_text(choice.text) || delta.is_some_and(has_text) {
                Class::Useful
            } else if delta.is_some_and(|delta| is_something(delta.role)) {
                Class::Lifecycle
            } else {
                Class::Neutral
            };
            class = weightier(class, found);
        }
        Some(seen(class))
    }

    fn see_responses(&mut self, event: &Event<'_>) -> Option<Seen> {
        let read: ResponsesEvent<'_> = serde_json::from_slice(event.data).ok()?;
        self.sequence = read.sequence_number.or(self.sequence);
        let response = read.response.as_ref();
        if let Some(usage) = response.and_then(|response| response.usage) {
            self.tokens.learn(usage);
        }
        let name = String::from_utf8_lossy(event.name);
        let kind = read.kind.as_deref().unwrap_or(&name);
        Some(match kind {
            "error" => self.fail(Bytes::copy_from_slice(event.data)),
            "response.failed" => {
                let error = response.and_then(|response| response.error);
                let body = error.map_or_else(|| Bytes::copy_from_slice(event.data), error_body);
                self.fail(body)
            }
            "response.completed" | "response.incomplete" | "response.cancelled" => {
                self.end = End::Closed;
                seen(Class::Terminal)
            }
            "keepalive" | "ping" => seen(Class::Neutral),
            _ => {
                let item = read.item.as_ref().and_then(|item| item.kind.as_deref());
                if names_protected(kind) || item.is_some_and(names_protected) {
                    seen(Class::Protected)
                } else if is_text(read.delta) {
                    seen(Class::Useful)
                } else {
                    seen(Class::Lifecycle)
                }
            }
        })
    }

    fn see_messages(&mut self, event: &Event<'_>) -> Option<Seen> {
        let read: MessagesEvent<'_> = serde_json::from_slice(event.data).ok()?;
        let begun = read.message.as_ref().and_then(|message| message.usage);
        for usage in [begun, read.usage].into_iter().flatten() {
            self.tokens.learn(usage);
        }
        let name = String::from_utf8_lossy(event.name);
        Some(match read.kind.as_deref().unwrap_or(&name) {
            "error" => self.fail(Bytes::copy_from_slice(event.data)),
            "ping" => seen(Class::Neutral),
            "message_stop" => {
                self.end = End::Closed;
                seen(Class::Terminal)
            }
            "content_block_start" => {
                let block = read.content_block.as_ref();
                match block.and_then(|block| block.kind.as_deref()) {
                    Some(kind) if names_protected(kind) => seen(Class::Protected),
                    _ => seen(Class::Lifecycle),
                }
            }
            "content_block_delta" => match &read.delta {
                Some(delta) if is_text(delta.text) => seen(Class::Useful),
                Some(delta) if delta.kind.as_deref() != Some("text_delta") => {
                    seen(Class::Protected)
                }
                _ => seen(Class::Neutral),
            },
            _ => seen(Class::Lifecycle),
        })
    }

    /// An event too long to be read: its type, which stands at its beginning, must do.
    fn see_cut(&mut self, event: &Event<'_>) -> Seen {
        let name = String::from_utf8_lossy(event.name);
        let kind = leading_type(event.data).unwrap_or(&name);
        match kind {
            "response.completed"
            | "response.incomplete"
            | "response.cancelled"
            | "response.failed"
            | "message_stop" => {
                self.end = End::Closed;
                seen(Class::Terminal)
            }
            _ => seen(Class::Useful),
        }
    }

    fn fail(&mut self, body: Bytes) -> Seen {
        self.error.get_or_insert(body);
        self.end = End::Closed;
        Seen {
            class: Class::Error,
            ready: false,
        }
    }
}

fn seen(class: Class) -> Seen {
    Seen {
        class,
        ready: !matches!(class, Class::Neutral | Class::Error),
    }
}

/// Of two choices in one chunk the one that says more; an event that is both text and protected is protected.
fn weightier(one: Class, other: Class) -> Class {
    let weight = |class| match class {
        Class::Neutral => 0,
        Class::Lifecycle => 1,
        Class::Terminal => 2,
        Class::Useful => 3,
        Class::Protected => 4,
        Class::Error => 5,
    };
    if weight(other) > weight(one) {
        other
    } else {
        one
    }
}

fn is_protected(delta: &ChatDelta<'_>) -> bool {
    is_something(delta.tool_calls)
        || is_something(delta.function_call)
        || is_something(delta.audio)
        || is_text(delta.reasoning_content)
        || is_text(delta.reasoning)
}

fn has_text(delta: &ChatDelta<'_>) -> bool {
    is_text(delta.content) || is_text(delta.text) || is_text(delta.refusal)
}

fn names_protected(kind: &str) -> bool {
    ["reasoning", "thinking", "tool", "_call", "audio"]
        .iter()
        .any(|word| kind.contains(word))
}

fn error_body(error: &RawValue) -> Bytes {
    format!("{{\"error\":{}}}", error.get()).into()
}

/// The value of `type` when it is the first member.
fn leading_type(data: &[u8]) -> Option<&str> {
    let rest = data.trim_ascii_start().strip_prefix(b"{")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"type\"")?;
    let rest = rest.trim_ascii_start().strip_prefix(b":")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let length = rest.iter().take(100).position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..length)?).ok()
}

#[cfg(test)]
mod tests;
