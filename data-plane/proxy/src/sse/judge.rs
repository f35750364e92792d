//! What an event means (`sessions-and-streams.md` §4.1, §4.2).
//!
//! | class | readiness | idle time | throughput watchdog |
//! |---|---|---|---|
//! | useful | ready | begins anew | its text counts and ends what was protected |
//! | protected | ready | begins anew | suspends judgement; with text in it, the text does not count |
//! | lifecycle | ready | goes on | nothing |
//! | neutral | not ready, unless it is not JSON at all | goes on | nothing |
//! | terminal | ready, except a bare `[DONE]` | no matter | suspends judgement: no more text is due |
//! | error | never; before readiness it is the attempt's failure | no matter | nothing |
//!
//! Protected is what makes progress that cannot be measured as text: tool calls and reasoning, and also audio,
//! calls of built-in tools, citations, content that is not a text, and events too long to be read. Empty lists and
//! texts protect nothing.
//!
//! What is protected ends with text, or with the event that says that a tool call or reasoning is complete. That
//! is not so for a tool which the upstream runs itself: it is in flight until its result is there.
//!
//! **Foreign streams.** As long as nothing of the dialect was seen, its events are taken for those of a format that
//! nobody here knows: they make the stream ready, are never judged by the watchdog, and an orderly end of the
//! connection is a good one. Idle time goes on, since what only looks busy must not live for ever.

mod chat;

use bytes::Bytes;
use serde_json::value::RawValue;
use tidegate_core::stream::{Progress, Turn};

use super::repeated::Repeated;
use super::shapes::{ChatChunk, MessagesDelta, MessagesEvent, ResponsesEvent, Word, is_something};
use super::text::utf8_bytes;
use super::{Event, Tokens, written};
use crate::endpoint::Endpoint;
pub(crate) use chat::bar;

/// Whose events these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Chat completions, and the legacy ones.
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
            Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Embeddings => Self::Chat,
            Endpoint::Responses | Endpoint::InputTokens => Self::Responses,
            Endpoint::Messages | Endpoint::CountTokens => Self::Messages,
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
    /// What the throughput watchdog sees of it.
    pub(crate) progress: Progress,
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
    /// The block of a messages stream with whose stop what is protected ends.
    protected_block: Option<u64>,
    /// Bytes that the model wrote, as far as they could be read.
    written: u64,
    /// Something that only this dialect says was seen.
    speaks: bool,
    /// Something that this dialect does not say was seen.
    is_foreign: bool,
    /// What most events of the stream have in common.
    repeated: Repeated,
}

impl Judge {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            end: End::Open,
            tokens: Tokens::default(),
            sequence: None,
            error: None,
            protected_block: None,
            written: 0,
            speaks: false,
            is_foreign: false,
            repeated: Repeated::default(),
        }
    }

    /// Looks at the next event. A `turn` that is given is told what the event adds to it, if this is a chat.
    pub(crate) fn see(&mut self, event: &Event<'_>, turn: Option<&mut Turn>) -> Seen {
        if event.cut {
            if let Some(turn) = turn {
                bar(turn);
            }
            return self.see_cut(event);
        }
        if let Some(text) = self.repeated.text(event) {
            return self.see_text(text, turn);
        }
        let name = String::from_utf8_lossy(event.name);
        let seen = match self.dialect {
            Dialect::Chat => self.see_chat(event, &name, turn),
            Dialect::Responses => self.see_responses(event, &name),
            Dialect::Messages => self.see_messages(event, &name),
        };
        seen.unwrap_or_else(|| Seen {
            ready: true,
            ..self.foreign(Class::Neutral)
        })
    }

    /// Tells a turn of an event that was seen before, and does not count again.
    pub(crate) fn retell(&mut self, event: &Event<'_>, turn: &mut Turn) {
        let written = self.written;
        self.see(event, Some(turn));
        self.written = written;
    }

    /// The upstream ended its stream in order. That is a good end of a stream of which nothing was understood.
    pub(crate) fn finish(&mut self) {
        if self.is_foreign && !self.speaks {
            self.end = self.end.max(End::Finished);
        }
    }

    /// Bytes that the model wrote; `None` of a stream of which nothing was understood.
    pub(crate) fn written(&self) -> Option<u64> {
        (self.speaks || !self.is_foreign).then_some(self.written)
    }

    /// An event that the dialect does not know; `class` is what such an event is where the dialect is spoken.
    fn foreign(&mut self, class: Class) -> Seen {
        self.is_foreign = true;
        if self.speaks {
            return seen(class);
        }
        Seen {
            class: Class::Neutral,
            ready: true,
            progress: Progress::Protected,
        }
    }

    /// One more event with a text and nothing else.
    fn see_text(&mut self, text: &str, turn: Option<&mut Turn>) -> Seen {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.writes(bytes);
        if let Some(turn) = turn.filter(|_| self.dialect == Dialect::Chat) {
            turn.chunk();
            turn.text(text);
        }
        useful_text(bytes)
    }

    fn see_chat(
        &mut self,
        event: &Event<'_>,
        name: &str,
        mut turn: Option<&mut Turn>,
    ) -> Option<Seen> {
        let data = event.data;
        if data.trim_ascii() == b"[DONE]" {
            self.end = End::Closed;
            self.speaks = true;
            if let Some(turn) = turn {
                turn.done();
            }
            return Some(Seen {
                ready: false,
                ..seen(Class::Terminal)
            });
        }
        let chunk: ChatChunk<'_> = serde_json::from_slice(data).ok()?;
        if let Some(error) = chunk.error.filter(|error| is_something(Some(error))) {
            return Some(self.fail(error_body(error)));
        }
        if let Some(usage) = chunk.usage {
            self.tokens.learn(usage);
        }
        let mut protected = names_protected(name) || is_protected_kind(chunk.kind.as_ref());
        let is_known = chunk.choices.is_some() || chunk.usage.is_some();
        self.speaks |= is_known;
        if !is_known && !protected {
            return Some(match chunk.kind.as_ref().map_or(name, Word::as_str) {
                "ping" | "keepalive" => seen(Class::Neutral),
                _ if chunk.is_named() => seen(Class::Neutral),
                _ => self.foreign(Class::Neutral),
            });
        }
        let mut useful = 0_u64;
        let mut finished = false;
        let mut begun = false;
        for choice in chunk.choices.iter().flatten() {
            self.writes(written::in_choice(choice));
            useful = useful.saturating_add(utf8_bytes(choice.text));
            finished |= is_something(choice.finish_reason);
            if let Some(delta) = &choice.delta {
                useful = useful.saturating_add(chat::text_bytes(delta));
                protected |= chat::is_protected(delta);
                begun |= is_something(delta.role);
            }
            if let Some(turn) = turn.as_deref_mut() {
                chat::tell(turn, choice);
            }
        }
        if finished {
            self.end = self.end.max(End::Finished);
        }
        Some(if protected {
            seen(Class::Protected)
        } else if useful > 0 {
            if let Some(text) = chat::lone_text(&chunk) {
                self.repeated.keep(event, text);
            }
            useful_text(useful)
        } else if finished {
            seen(Class::Terminal)
        } else if begun {
            seen(Class::Lifecycle)
        } else {
            seen(Class::Neutral)
        })
    }

    fn see_responses(&mut self, event: &Event<'_>, name: &str) -> Option<Seen> {
        let data = event.data;
        let read: ResponsesEvent<'_> = serde_json::from_slice(data).ok()?;
        self.sequence = read.sequence_number.or(self.sequence);
        let response = read.response.as_ref();
        if let Some(usage) = response.and_then(|response| response.usage) {
            self.tokens.learn(usage);
        }
        let kind = read.kind.as_ref().map_or(name, Word::as_str);
        let item = read.item.as_ref().and_then(|item| item.kind.as_ref());
        self.speaks |= kind.starts_with("response.");
        let written = written::in_response_event(kind, read.delta);
        self.writes(written);
        Some(match kind {
            "error" => self.fail(Bytes::copy_from_slice(data)),
            "response.failed" => {
                let error = response.and_then(|response| response.error);
                let body = error.map_or_else(|| Bytes::copy_from_slice(data), error_body);
                self.fail(body)
            }
            "response.completed" | "response.incomplete" | "response.cancelled" => {
                self.end = End::Closed;
                seen(Class::Terminal)
            }
            "keepalive" | "ping" => seen(Class::Neutral),
            // Calls that the client answers; those of built-in tools run on until their item is done.
            "response.function_call_arguments.done" | "response.custom_tool_call_input.done" => {
                last_protected(Class::Protected)
            }
            "response.output_item.done" if is_protected_kind(item) => {
                last_protected(Class::Protected)
            }
            _ if [kind, name].into_iter().any(names_protected) || is_protected_kind(item) => {
                seen(Class::Protected)
            }
            _ => match utf8_bytes(read.delta) {
                0 if kind.starts_with("response.") => seen(Class::Lifecycle),
                0 => self.foreign(Class::Lifecycle),
                bytes => {
                    // Only those are counted as written that a response knows. A number must be read.
                    if let Some(text) = read.delta.filter(|_| written == bytes)
                        && response.is_none()
                        && read.sequence_number.is_none()
                        && kind.starts_with("response.")
                    {
                        self.repeated.keep(event, text);
                    }
                    useful_text(bytes)
                }
            },
        })
    }

    fn see_messages(&mut self, event: &Event<'_>, name: &str) -> Option<Seen> {
        let data = event.data;
        let read: MessagesEvent<'_> = serde_json::from_slice(data).ok()?;
        if let Some(begun) = read.message.as_ref().and_then(|message| message.usage) {
            self.tokens.learn_early(begun);
        }
        if let Some(usage) = read.usage {
            self.tokens.learn(usage);
        }
        let written = read.delta.as_ref().map_or(0, written::in_block_delta);
        self.writes(written);
        let index = read.index.unwrap_or_default();
        let kind = read.kind.as_ref().map_or(name, Word::as_str);
        let is_known = kind.starts_with("message_") || kind.starts_with("content_block_");
        self.speaks |= is_known;
        Some(match kind {
            "error" => self.fail(Bytes::copy_from_slice(data)),
            "ping" => seen(Class::Neutral),
            "message_stop" => {
                self.end = End::Closed;
                seen(Class::Terminal)
            }
            "content_block_start" => {
                let block = read.content_block.as_ref();
                match block.and_then(|block| block.kind.as_ref()) {
                    Some(Word(kind)) if names_protected(kind) => {
                        let runs_on = ["server_tool_use", "mcp_tool_use"].contains(&kind.as_ref());
                        self.protected_block = (!runs_on).then_some(index);
                        seen(Class::Protected)
                    }
                    _ => seen(Class::Lifecycle),
                }
            }
            "content_block_delta" => {
                let seen = see_block_delta(read.delta.as_ref());
                if let Some(text) = read.delta.as_ref().and_then(|delta| delta.text)
                    && (seen.progress == Progress::Useful { bytes: written })
                    && read.usage.is_none()
                    && read.message.is_none()
                {
                    self.repeated.keep(event, text);
                }
                seen
            }
            "content_block_stop" if self.protected_block == Some(index) => {
                self.protected_block = None;
                last_protected(Class::Lifecycle)
            }
            _ if [kind, name].into_iter().any(names_protected) => seen(Class::Protected),
            _ if is_known => seen(Class::Lifecycle),
            _ => self.foreign(Class::Lifecycle),
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
            _ => seen(Class::Protected),
        }
    }

    /// What comes is read, whatever came before.
    #[cfg(test)]
    pub(super) fn forget_repeated(&mut self) {
        self.repeated = Repeated::default();
    }

    /// This event is like one before.
    #[cfg(test)]
    pub(super) fn has_repeated(&self, event: &Event<'_>) -> bool {
        self.repeated.text(event).is_some()
    }

    fn writes(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    fn fail(&mut self, body: Bytes) -> Seen {
        self.error.get_or_insert(body);
        self.end = End::Closed;
        seen(Class::Error)
    }
}

fn seen(class: Class) -> Seen {
    Seen {
        class,
        ready: !matches!(class, Class::Neutral | Class::Error),
        progress: match class {
            Class::Protected | Class::Terminal => Progress::Protected,
            Class::Useful | Class::Lifecycle | Class::Neutral | Class::Error => Progress::Nothing,
        },
    }
}

fn useful_text(bytes: u64) -> Seen {
    Seen {
        progress: Progress::Useful { bytes },
        ..seen(Class::Useful)
    }
}

/// The event with which a tool call or reasoning is complete.
fn last_protected(class: Class) -> Seen {
    Seen {
        progress: Progress::ProtectedEnds,
        ..seen(class)
    }
}

fn see_block_delta(delta: Option<&MessagesDelta<'_>>) -> Seen {
    let Some(delta) = delta else {
        return seen(Class::Neutral);
    };
    let bytes = utf8_bytes(delta.text);
    if bytes > 0 {
        return useful_text(bytes);
    }
    match delta.kind.as_ref().map(Word::as_str) {
        Some("text_delta") => seen(Class::Neutral),
        Some("thinking_delta") if is_empty(delta.thinking) => seen(Class::Neutral),
        Some("input_json_delta") if is_empty(delta.partial_json) => seen(Class::Neutral),
        _ => seen(Class::Protected),
    }
}

/// Whether a member is there and says nothing.
fn is_empty(value: Option<&RawValue>) -> bool {
    value.is_some() && !is_something(value)
}

fn is_protected_kind(kind: Option<&Word<'_>>) -> bool {
    kind.is_some_and(|Word(kind)| names_protected(kind))
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
