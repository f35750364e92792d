//! How much a model wrote, in bytes of UTF-8: text, reasoning, names and arguments of tools, without what frames them.
//! That is what its provider bills as output, whether it tells so or not (`sessions-and-streams.md` §4.7). Audio and
//! images are not measured.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::shapes::{ChatChoice, ChatDelta, MessagesDelta};
use super::text::utf8_bytes;

/// A call of a tool, or a piece of one.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    function: Option<Function<'a>>,
    #[serde(borrow)]
    custom: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// In one choice of a chat chunk.
pub(super) fn in_choice(choice: &ChatChoice<'_>) -> u64 {
    let in_delta = choice.delta.as_ref().map_or(0, in_delta);
    utf8_bytes(choice.text).saturating_add(in_delta)
}

fn in_delta(delta: &ChatDelta<'_>) -> u64 {
    // Providers that know both names of reasoning say the same under both.
    let reasoning = utf8_bytes(delta.reasoning_content).max(utf8_bytes(delta.reasoning));
    sum([
        utf8_bytes(delta.content),
        utf8_bytes(delta.text),
        utf8_bytes(delta.refusal),
        reasoning,
        delta.tool_calls.map_or(0, in_calls),
        delta.function_call.map_or(0, in_function_call),
    ])
}

fn in_calls(calls: &RawValue) -> u64 {
    let calls: Vec<Call<'_>> = serde_json::from_str(calls.get()).unwrap_or_default();
    let functions = calls.iter().flat_map(|call| [&call.function, &call.custom]);
    sum(functions.flatten().map(in_function))
}

fn in_function_call(call: &RawValue) -> u64 {
    let function: Result<Function<'_>, _> = serde_json::from_str(call.get());
    function.map_or(0, |function| in_function(&function))
}

fn in_function(function: &Function<'_>) -> u64 {
    let parts = [function.name, function.arguments, function.input];
    sum(parts.map(utf8_bytes))
}

/// In an event of a responses stream. What is complete repeats what came before in pieces.
pub(super) fn in_response_event(kind: &str, delta: Option<&RawValue>) -> u64 {
    let is_audio = kind.contains("audio") && !kind.contains("transcript");
    if is_audio || !kind.ends_with(".delta") {
        return 0;
    }
    utf8_bytes(delta)
}

/// In a piece of a block of a messages stream.
pub(super) fn in_block_delta(delta: &MessagesDelta<'_>) -> u64 {
    sum([delta.text, delta.thinking, delta.partial_json].map(utf8_bytes))
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use crate::sse::{Dialect, Event, Judge};

    fn written(dialect: Dialect, events: &[Value]) -> Option<u64> {
        let mut judge = Judge::new(dialect);
        for event in events {
            let data = event.to_string();
            let event = Event {
                name: b"",
                data: data.as_bytes(),
                cut: false,
            };
            judge.see(&event, None);
        }
        judge.written()
    }

    fn chunk(delta: &Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta}]})
    }

    #[rstest]
    #[case::role_and_nothing(json!({"role": "assistant", "content": ""}), 0)]
    #[case::text(json!({"content": "hé"}), 3)]
    #[case::refusal(json!({"refusal": "no"}), 2)]
    #[case::reasoning(json!({"reasoning_content": "hmm"}), 3)]
    #[case::reasoning_under_two_names(json!({"reasoning_content": "hmm", "reasoning": "hmm"}), 3)]
    #[case::text_and_reasoning(json!({"content": "ab", "reasoning": "c"}), 3)]
    #[case::tool(json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "look", "arguments": "{\"a\":1}"}}]}), 11)]
    #[case::piece_of_a_tool(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), 2)]
    #[case::custom_tool(json!({"tool_calls": [{"custom": {"name": "sh", "input": "ls"}}]}), 4)]
    #[case::function(json!({"function_call": {"name": "look", "arguments": "{}"}}), 6)]
    #[case::audio(json!({"audio": {"data": "AAAA"}}), 0)]
    #[case::not_what_it_should_be(json!({"content": 7, "tool_calls": "x", "function_call": []}), 0)]
    fn a_chat_is_measured(#[case] delta: Value, #[case] bytes: u64) {
        let events = [chunk(&delta), chunk(&delta)];
        assert_eq!(written(Dialect::Chat, &events), Some(2 * bytes));
    }

    #[rstest]
    #[case::text("response.output_text.delta", json!("abc"), 3)]
    #[case::reasoning("response.reasoning_text.delta", json!("abc"), 3)]
    #[case::arguments("response.function_call_arguments.delta", json!("{}"), 2)]
    #[case::transcript("response.audio.transcript.delta", json!("abc"), 3)]
    #[case::audio("response.audio.delta", json!("AAAA"), 0)]
    #[case::complete("response.output_text.done", json!("abc"), 0)]
    #[case::not_a_text("response.output_text.delta", json!({"a": 1}), 0)]
    fn a_response_is_measured(#[case] kind: &str, #[case] delta: Value, #[case] bytes: u64) {
        let event = json!({"type": kind, "delta": delta});
        assert_eq!(written(Dialect::Responses, &[event]), Some(bytes));
    }

    #[rstest]
    #[case::text(json!({"type": "text_delta", "text": "abc"}), 3)]
    #[case::thinking(json!({"type": "thinking_delta", "thinking": "hmm"}), 3)]
    #[case::tool(json!({"type": "input_json_delta", "partial_json": "{\"a"}), 3)]
    #[case::signature(json!({"type": "signature_delta", "signature": "AAAA"}), 0)]
    fn a_message_is_measured(#[case] delta: Value, #[case] bytes: u64) {
        let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        assert_eq!(written(Dialect::Messages, &[event]), Some(bytes));
    }

    #[test]
    fn what_nobody_understands_is_not_measured() {
        let foreign = json!({"text": "abc"});
        assert_eq!(written(Dialect::Chat, &[foreign]), None);
        assert_eq!(written(Dialect::Chat, &[]), Some(0));
    }

    /// The output that the beginning of a message tells is what there is by then.
    #[test]
    fn what_a_message_tells_at_its_beginning_is_no_sum() {
        let mut judge = Judge::new(Dialect::Messages);
        let mut see = |event: Value| {
            let data = event.to_string();
            let event = Event {
                name: b"",
                data: data.as_bytes(),
                cut: false,
            };
            judge.see(&event, None);
            (judge.tokens.input, judge.tokens.output)
        };
        let begun = json!({"type": "message_start",
            "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}});
        assert_eq!(see(begun), (Some(9), None));
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 42}});
        assert_eq!(see(delta), (Some(9), Some(42)));
    }
}
