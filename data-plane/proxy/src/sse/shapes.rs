//! The few members of each dialect's events that are looked at. Everything else is skipped.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A `chat.completion.chunk`.
#[derive(Deserialize)]
pub(super) struct ChatChunk<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Word<'a>>,
    #[serde(borrow)]
    pub(super) choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    /// Says what it is.
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
}

impl ChatChunk<'_> {
    /// It calls itself a chunk of this dialect.
    pub(super) fn is_named(&self) -> bool {
        self.object
            .is_some_and(|object| object.get().contains("completion"))
    }
}

#[derive(Deserialize)]
pub(super) struct ChatChoice<'a> {
    #[serde(borrow)]
    pub(super) index: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) delta: Option<ChatDelta<'a>>,
    /// Legacy completions.
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct ChatDelta<'a> {
    #[serde(borrow)]
    pub(super) role: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) function_call: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) reasoning_details: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) audio: Option<&'a RawValue>,
}

/// An event of the Responses API.
#[derive(Deserialize)]
pub(super) struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Word<'a>>,
    #[serde(borrow)]
    pub(super) delta: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) item: Option<Typed<'a>>,
    #[serde(borrow)]
    pub(super) response: Option<ResponsesResponse<'a>>,
    pub(super) sequence_number: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct ResponsesResponse<'a> {
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// An event of the Messages API.
#[derive(Deserialize)]
pub(super) struct MessagesEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Word<'a>>,
    /// Which block an event about a block is of.
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) delta: Option<MessagesDelta<'a>>,
    #[serde(borrow)]
    pub(super) content_block: Option<Typed<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<MessagesMessage<'a>>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct MessagesDelta<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Word<'a>>,
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) partial_json: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct MessagesMessage<'a> {
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
}

/// Anything with a type.
#[derive(Deserialize)]
pub(super) struct Typed<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Word<'a>>,
}

/// A text that is borrowed unless it has escapes, also within an `Option`, where serde would copy a plain [`Cow`].
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Word<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl Word<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Something other than an empty list, object or text. Absent and `null` are nothing.
pub(super) fn is_something(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| {
        let text = value.get();
        let inside = match text.as_bytes() {
            [b'[', inside @ .., b']'] | [b'{', inside @ .., b'}'] => inside,
            [b'"', inside @ .., b'"'] => return !inside.is_empty(),
            _ => return text != "null",
        };
        inside.iter().any(|byte| !byte.is_ascii_whitespace())
    })
}
