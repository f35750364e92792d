//! What the choices of a chat chunk hold.

use serde_json::value::RawValue;
use tidegate_core::stream::Turn;

use crate::sse::shapes::{ChatChoice, ChatChunk, ChatDelta, is_something};
use crate::sse::text::{read, utf8_bytes};

pub(super) fn is_protected(delta: &ChatDelta<'_>) -> bool {
    let calls = [delta.tool_calls, delta.function_call];
    let thoughts = [
        delta.reasoning_content,
        delta.reasoning,
        delta.reasoning_details,
    ];
    let is_there = |values: &[Option<&RawValue>]| values.iter().any(|value| is_something(*value));
    is_there(&calls) || is_there(&thoughts) || is_there(&[delta.audio]) || has_parts(delta)
}

/// Content in another form than one text.
fn has_parts(delta: &ChatDelta<'_>) -> bool {
    is_something(delta.content) && utf8_bytes(delta.content) == 0
}

pub(super) fn text_bytes(delta: &ChatDelta<'_>) -> u64 {
    let texts = [delta.content, delta.text, delta.refusal];
    texts
        .into_iter()
        .map(utf8_bytes)
        .fold(0, u64::saturating_add)
}

/// Tells a turn what a choice adds to it.
pub(super) fn tell(turn: &mut Turn, choice: &ChatChoice<'_>) {
    if choice.index.is_some_and(|index| index.get() != "0") {
        turn.further_choice();
    }
    if let Some(delta) = &choice.delta {
        turn.chunk();
        match delta.content.filter(|content| is_something(Some(content))) {
            None => {}
            Some(content) => match read(content) {
                Some(text) => turn.text(&text),
                None => bar(turn),
            },
        }
        if is_something(delta.tool_calls) || is_something(delta.function_call) {
            turn.tool_call();
        }
        if [
            delta.reasoning_content,
            delta.reasoning,
            delta.reasoning_details,
        ]
        .into_iter()
        .any(is_something)
        {
            turn.reasoning();
        }
        if [delta.text, delta.refusal, delta.audio]
            .into_iter()
            .any(is_something)
        {
            bar(turn);
        }
    }
    if let Some(reason) = choice.finish_reason.and_then(read) {
        turn.finish(&reason);
    }
}

/// What a new request could not be shown rules a continuation out for good, as a tool call does: a refusal, audio,
/// parts that are no text, an event too long to be read.
pub(crate) fn bar(turn: &mut Turn) {
    turn.tool_call();
}

/// The text of a chunk that carries this text for the reader and nothing else of a turn. `chunk` is useful.
pub(super) fn lone_text<'a>(chunk: &ChatChunk<'a>) -> Option<&'a RawValue> {
    let [choice] = chunk.choices.as_deref()? else {
        return None;
    };
    let delta = choice.delta.as_ref()?;
    let is_alone = !is_protected(delta)
        && choice.index.is_none_or(|index| index.get() == "0")
        && chunk.usage.is_none_or(|usage| usage.get() == "null")
        && ![choice.text, choice.finish_reason, delta.text, delta.refusal]
            .into_iter()
            .any(is_something);
    delta
        .content
        .filter(|content| is_alone && utf8_bytes(Some(content)) > 0)
}
