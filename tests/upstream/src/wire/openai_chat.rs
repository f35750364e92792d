//! `/v1/chat/completions`.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::{Ask, event};

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let usage = json!({
        "prompt_tokens": ask.input_tokens,
        "completion_tokens": ask.output_tokens(),
        "total_tokens": ask.input_tokens + ask.output_tokens(),
    });
    let pieces = ask.reply.pieces();
    if !ask.wants_stream() {
        let message = json!({ "role": "assistant", "content": pieces.concat(), "refusal": null });
        let choice = json!({
            "index": 0, "message": message, "logprobs": null, "finish_reason": "stop",
        });
        return Content::whole(&json!({
            "id": id(ask), "object": "chat.completion", "created": ask.created, "model": ask.model,
            "system_fingerprint": fingerprint(ask), "choices": [choice], "usage": usage,
        }));
    }
    let include_usage = ask
        .body
        .pointer("/stream_options/include_usage")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    let chunk = |choices: Value| {
        let mut chunk = json!({
            "id": id(ask), "object": "chat.completion.chunk", "created": ask.created,
            "model": ask.model, "system_fingerprint": fingerprint(ask), "choices": choices,
        });
        if include_usage && let Some(members) = chunk.as_object_mut() {
            // With usage asked for, every chunk but the last has an empty one.
            members.insert("usage".to_owned(), Value::Null);
        }
        chunk
    };
    let delta = |delta: Value, finish: Value| {
        event(&chunk(json!([
            { "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }
        ])))
    };
    let mut events = vec![delta(
        json!({ "role": "assistant", "content": "" }),
        Value::Null,
    )];
    events.extend(
        pieces
            .iter()
            .map(|piece| delta(json!({ "content": piece }), Value::Null)),
    );
    events.push(delta(json!({}), json!("stop")));
    if include_usage {
        let mut last = chunk(json!([]));
        if let Some(members) = last.as_object_mut() {
            members.insert("usage".to_owned(), usage);
        }
        events.push(event(&last));
    }
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    Content::Events(events)
}

fn id(ask: &Ask<'_>) -> String {
    format!("chatcmpl-{}", ask.number)
}

fn fingerprint(ask: &Ask<'_>) -> String {
    format!("fp_{}", ask.name)
}
