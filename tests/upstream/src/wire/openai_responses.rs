//! `/v1/responses`.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::{Ask, named_event};

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let pieces = ask.reply.pieces();
    let text = pieces.concat();
    let item_id = format!("msg_{}", ask.number);
    let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
    let item = |status: &str, content: Vec<Value>| {
        json!({
            "id": item_id, "type": "message", "status": status, "role": "assistant",
            "content": content,
        })
    };
    let done_item = item("completed", vec![part(&text)]);
    let completed = response(ask, "completed", std::slice::from_ref(&done_item));
    if !ask.wants_stream() {
        return Content::whole(&completed);
    }
    let begun = response(ask, "in_progress", &[]);
    let mut stream = Stream::default();
    stream.push("response.created", json!({ "response": begun }));
    stream.push("response.in_progress", json!({ "response": begun }));
    stream.push(
        "response.output_item.added",
        json!({ "output_index": 0, "item": item("in_progress", Vec::new()) }),
    );
    let place = json!({ "item_id": item_id, "output_index": 0, "content_index": 0 });
    stream.push(
        "response.content_part.added",
        with(&place, "part", part("")),
    );
    for piece in &pieces {
        let delta = with(&with(&place, "delta", json!(piece)), "logprobs", json!([]));
        stream.push("response.output_text.delta", delta);
    }
    let whole = with(&with(&place, "text", json!(text)), "logprobs", json!([]));
    stream.push("response.output_text.done", whole);
    stream.push(
        "response.content_part.done",
        with(&place, "part", part(&text)),
    );
    stream.push(
        "response.output_item.done",
        json!({ "output_index": 0, "item": done_item }),
    );
    stream.push("response.completed", json!({ "response": completed }));
    Content::Events(stream.events)
}

/// The event that ends a stream with an error; its members lie flat.
pub(crate) fn error_event(error: &Value) -> Value {
    let member = |name: &str| error.get(name).cloned().unwrap_or_default();
    json!({
        "type": "error", "code": member("code"), "message": member("message"),
        "param": member("param"), "sequence_number": 0,
    })
}

#[derive(Default)]
struct Stream {
    events: Vec<Bytes>,
}

impl Stream {
    fn push(&mut self, name: &str, data: Value) {
        let data = with(&data, "type", json!(name));
        let data = with(&data, "sequence_number", json!(self.events.len()));
        self.events.push(named_event(name, &data));
    }
}

fn with(object: &Value, name: &str, value: Value) -> Value {
    let mut object = object.clone();
    if let Some(members) = object.as_object_mut() {
        members.insert(name.to_owned(), value);
    }
    object
}

fn response(ask: &Ask<'_>, status: &str, output: &[Value]) -> Value {
    let usage = (status == "completed").then(|| {
        json!({
            "input_tokens": ask.input_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": ask.output_tokens(),
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": ask.input_tokens + ask.output_tokens(),
        })
    });
    json!({
        "id": format!("resp_{}", ask.number), "object": "response", "created_at": ask.created,
        "status": status, "error": null, "incomplete_details": null, "instructions": null,
        "max_output_tokens": null, "model": ask.model, "output": output,
        "parallel_tool_calls": true, "previous_response_id": null, "store": false,
        "temperature": 1.0, "text": { "format": { "type": "text" } }, "tool_choice": "auto",
        "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": usage, "metadata": {},
    })
}
