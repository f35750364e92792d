//! The few members of each dialect's events that are looked at. Everything else is skipped.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A `chat.completion.chunk`.
#[derive(Deserialize)]
pub(super) struct ChatChunk<'a> {
    #[serde(borrow)]
    pub(super) choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct ChatChoice<'a> {
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
    /// Audio is progress, though not text.
    #[serde(borrow)]
    pub(super) audio: Option<&'a RawValue>,
}

/// An event of the Responses API.
#[derive(Deserialize)]
pub(super) struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Cow<'a, str>>,
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
    pub(super) kind: Option<Cow<'a, str>>,
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
    pub(super) kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
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
    pub(super) kind: Option<Cow<'a, str>>,
}

/// A text with at least one character.
pub(super) fn is_text(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get().starts_with('"') && value.get() != "\"\"")
}

/// Something other than an empty list, object or text. Absent and `null` are nothing.
pub(super) fn is_something(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| !matches!(value.get(), "[]" | "{}" | "\"\"" | "null"))
}
