//! A whole answer as a stream of one chunk, for a client that asked for a stream and whose answer is here already
//! (decision 32).
//!
//! It is the upstream's own answer, finish reason included, in the events in which the dialect would have told it; the
//! end of the stream is ours, because the answer is complete.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::sse::Dialect;

/// The stream. `None` when the answer is not one of the dialect's.
pub(super) fn stream(dialect: Dialect, body: &[u8], with_usage: bool) -> Option<Bytes> {
    let Value::Object(answer) = serde_json::from_slice(body).ok()? else {
        return None;
    };
    let mut events = Events::default();
    match dialect {
        Dialect::Chat => chat(answer, with_usage, &mut events),
        Dialect::Messages => messages(answer, &mut events),
        Dialect::Responses => responses(&answer, &mut events),
    }?;
    Some(events.written.into())
}

/// The stream of a legacy completion, whose chunks look like the whole.
pub(super) fn legacy(body: &[u8]) -> Option<Bytes> {
    let Value::Object(answer) = serde_json::from_slice(body).ok()? else {
        return None;
    };
    answer.get("choices")?.as_array()?;
    Some(format!("data: {}\n\ndata: [DONE]\n\n", Value::Object(answer)).into())
}

#[derive(Default)]
struct Events {
    written: String,
    number: u64,
}

impl Events {
    fn data(&mut self, data: &Value) {
        self.written.push_str(&format!("data: {data}\n\n"));
    }

    /// An event that says its kind twice.
    fn named(&mut self, name: &str, members: Value) {
        let data = with(members, "type", name.into());
        self.written
            .push_str(&format!("event: {name}\ndata: {data}\n\n"));
    }

    /// An event that is numbered, too.
    fn numbered(&mut self, name: &str, members: Value) {
        let number = self.number;
        self.number = number.saturating_add(1);
        self.named(name, with(members, "sequence_number", number.into()));
    }
}

fn with(mut object: Value, name: &str, value: Value) -> Value {
    if let Value::Object(members) = &mut object {
        members.insert(name.to_owned(), value);
    }
    object
}

fn chat(mut answer: Map<String, Value>, with_usage: bool, events: &mut Events) -> Option<()> {
    let Some(Value::Array(choices)) = answer.remove("choices") else {
        return None;
    };
    let usage = answer.remove("usage").unwrap_or_default();
    answer.insert("object".to_owned(), "chat.completion.chunk".into());
    let mut chunk = |choices: Vec<Value>, usage: &Value| {
        let mut chunk = answer.clone();
        chunk.insert("choices".to_owned(), choices.into());
        if with_usage {
            chunk.insert("usage".to_owned(), usage.clone());
        }
        events.data(&Value::Object(chunk));
    };
    let part = |choice: &Value, delta: Value, finish: Value| {
        let index = choice.get("index").cloned().unwrap_or_else(|| 0.into());
        json!({"index": index, "delta": delta, "finish_reason": finish})
    };
    for choice in &choices {
        let message = choice.get("message")?.clone();
        chunk(vec![part(choice, message, Value::Null)], &Value::Null);
    }
    for choice in &choices {
        let finish = choice.get("finish_reason").cloned();
        let finish = finish.unwrap_or_else(|| "stop".into());
        chunk(vec![part(choice, json!({}), finish)], &Value::Null);
    }
    if with_usage {
        chunk(Vec::new(), &usage);
    }
    events.written.push_str("data: [DONE]\n\n");
    Some(())
}

fn messages(mut answer: Map<String, Value>, events: &mut Events) -> Option<()> {
    let Some(Value::Array(blocks)) = answer.insert("content".to_owned(), json!([])) else {
        return None;
    };
    let mut take = |name: &str| {
        let old = answer.insert(name.to_owned(), Value::Null);
        old.unwrap_or_default()
    };
    let (reason, sequence) = (take("stop_reason"), take("stop_sequence"));
    let usage = answer.get("usage").cloned().unwrap_or_else(|| json!({}));
    events.named("message_start", json!({"message": answer}));
    for (index, block) in blocks.into_iter().enumerate() {
        let text = match (block.get("type").and_then(Value::as_str), block.get("text")) {
            (Some("text"), Some(text)) => Some(text.clone()),
            _ => None,
        };
        let begun = match text {
            Some(_) => with(block, "text", "".into()),
            None => block,
        };
        events.named(
            "content_block_start",
            json!({"index": index, "content_block": begun}),
        );
        if let Some(text) = text {
            let delta = json!({"type": "text_delta", "text": text});
            events.named(
                "content_block_delta",
                json!({"index": index, "delta": delta}),
            );
        }
        events.named("content_block_stop", json!({"index": index}));
    }
    let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
    events.named("message_delta", json!({"delta": delta, "usage": usage}));
    events.named("message_stop", json!({}));
    Some(())
}

fn responses(answer: &Map<String, Value>, events: &mut Events) -> Option<()> {
    let Some(Value::Array(items)) = answer.get("output") else {
        return None;
    };
    let mut begun = answer.clone();
    begun.insert("status".to_owned(), "in_progress".into());
    begun.insert("output".to_owned(), json!([]));
    begun.insert("usage".to_owned(), Value::Null);
    events.numbered("response.created", json!({"response": begun}));
    events.numbered("response.in_progress", json!({"response": begun}));
    for (index, item) in items.iter().enumerate() {
        let place = json!({"output_index": index});
        let content = match item.get("content") {
            Some(Value::Array(content)) => content.as_slice(),
            _ => &[],
        };
        let begun = if content.is_empty() {
            item.clone()
        } else {
            with(item.clone(), "content", json!([]))
        };
        events.numbered(
            "response.output_item.added",
            with(place.clone(), "item", begun),
        );
        let id = item.get("id").cloned().unwrap_or_default();
        for (part_index, part) in content.iter().enumerate() {
            let place = json!({
                "item_id": id, "output_index": index, "content_index": part_index,
            });
            content_part(&place, part, events);
        }
        events.numbered(
            "response.output_item.done",
            with(place, "item", item.clone()),
        );
    }
    // An answer that was cut off says so itself.
    let end = match answer.get("status").and_then(Value::as_str) {
        Some("incomplete") => "response.incomplete",
        _ => "response.completed",
    };
    events.numbered(end, json!({"response": answer}));
    Some(())
}

fn content_part(place: &Value, part: &Value, events: &mut Events) {
    let text = match (part.get("type").and_then(Value::as_str), part.get("text")) {
        (Some("output_text"), Some(text)) => Some(text.clone()),
        _ => None,
    };
    let begun = match text {
        Some(_) => with(part.clone(), "text", "".into()),
        None => part.clone(),
    };
    events.numbered(
        "response.content_part.added",
        with(place.clone(), "part", begun),
    );
    if let Some(text) = text {
        let place = with(place.clone(), "logprobs", json!([]));
        events.numbered(
            "response.output_text.delta",
            with(place.clone(), "delta", text.clone()),
        );
        events.numbered("response.output_text.done", with(place, "text", text));
    }
    events.numbered(
        "response.content_part.done",
        with(place.clone(), "part", part.clone()),
    );
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::passage::Passage;
    use crate::sse::{End, Tokens};

    const USAGE: Tokens = Tokens {
        input: Some(3),
        output: Some(4),
    };

    fn answer(dialect: Dialect) -> Value {
        match dialect {
            Dialect::Chat => json!({
                "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "length",
                    "message": {"role": "assistant", "content": "ahoy", "refusal": null}}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 4},
            }),
            Dialect::Messages => json!({
                "id": "m1", "type": "message", "role": "assistant", "model": "m",
                "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "ahoy"}],
                "stop_reason": "max_tokens", "stop_sequence": null,
                "usage": {"input_tokens": 3, "output_tokens": 4},
            }),
            Dialect::Responses => json!({
                "id": "r1", "object": "response", "status": "completed", "model": "m",
                "output": [{"id": "rs", "type": "reasoning", "summary": []},
                    {"id": "i1", "type": "message", "role": "assistant", "status": "completed",
                     "content": [{"type": "output_text", "text": "ahoy", "annotations": []}]}],
                "usage": {"input_tokens": 3, "output_tokens": 4},
            }),
        }
    }

    fn events(dialect: Dialect, with_usage: bool) -> Vec<Value> {
        let body = answer(dialect).to_string();
        let stream = stream(dialect, body.as_bytes(), with_usage).unwrap();
        String::from_utf8(stream.to_vec())
            .unwrap()
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect()
    }

    #[rstest]
    #[case::chat(Dialect::Chat)]
    #[case::messages(Dialect::Messages)]
    #[case::responses(Dialect::Responses)]
    fn the_stream_is_a_whole_one_of_its_dialect(#[case] dialect: Dialect) {
        let body = answer(dialect).to_string();
        let mut passage = Passage::new(dialect);
        assert!(
            passage
                .take(stream(dialect, body.as_bytes(), true).unwrap())
                .progressed
        );
        assert!(passage.is_ready() && !passage.has_error());
        assert_eq!(passage.end(), End::Closed);
        assert_eq!(passage.tokens(), USAGE);
    }

    #[test]
    fn a_chat_says_its_text_once_and_then_why_it_ended() {
        let events = events(Dialect::Chat, false);
        let deltas: Vec<_> = events
            .iter()
            .map(|event| &event["choices"][0]["delta"]["content"])
            .collect();
        assert_eq!(deltas, [&json!("ahoy"), &Value::Null]);
        assert_eq!(events[1]["choices"][0]["finish_reason"], "length");
        assert_eq!(events[0]["object"], "chat.completion.chunk");
        assert!(events.iter().all(|event| event.get("usage").is_none()));
    }

    #[test]
    fn a_legacy_completion_is_its_own_chunk() {
        let body = "{\"choices\":\n[{\"text\":\"ahoy\",\"finish_reason\":\"stop\"}]}";
        let mut passage = Passage::new(Dialect::Chat);
        passage.take(legacy(body.as_bytes()).unwrap());
        assert!(passage.is_ready());
        assert_eq!(passage.end(), End::Closed);
    }

    #[test]
    fn a_message_keeps_all_its_blocks() {
        let events = events(Dialect::Messages, true);
        let kinds: Vec<_> = events.iter().map(|event| event["type"].clone()).collect();
        let block = ["content_block_start", "content_block_stop"];
        let text = [
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
        ];
        let end = ["message_delta", "message_stop"];
        let expected = [&["message_start"][..], &block, &text, &end].concat();
        assert_eq!(kinds, expected);
        assert_eq!(events[0]["message"]["content"], json!([]));
        assert_eq!(events[0]["message"]["stop_reason"], Value::Null);
        assert_eq!(events[1]["content_block"]["thinking"], "hm");
        assert_eq!(events[3]["content_block"]["text"], "");
        assert_eq!(events[4]["delta"]["text"], "ahoy");
        assert_eq!(events[6]["delta"]["stop_reason"], "max_tokens");
    }

    #[test]
    fn a_response_is_numbered_and_ends_with_itself() {
        let events = events(Dialect::Responses, true);
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], number, "{event}");
        }
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"], answer(Dialect::Responses));
        let delta = events
            .iter()
            .find(|event| event["type"] == "response.output_text.delta")
            .unwrap();
        assert_eq!(delta["delta"], "ahoy");
        assert_eq!(delta["item_id"], "i1");
    }

    #[rstest]
    #[case::no_json("ahoy")]
    #[case::no_object("[]")]
    #[case::another_dialect(r#"{"id": "x"}"#)]
    fn what_is_no_answer_becomes_no_stream(#[case] body: &str) {
        for dialect in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
            assert!(stream(dialect, body.as_bytes(), true).is_none());
        }
        assert!(legacy(body.as_bytes()).is_none());
    }
}
