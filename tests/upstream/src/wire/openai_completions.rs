//! `/v1/completions`, the legacy one.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::{Ask, event};

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let pieces = ask.reply.pieces();
    let answer = |text: &str, finish: Value| {
        let choice = json!({
            "index": 0, "text": text, "logprobs": null, "finish_reason": finish,
        });
        json!({
            "id": format!("cmpl-{}", ask.number), "object": "text_completion",
            "created": ask.created, "model": ask.model, "choices": [choice],
        })
    };
    if !ask.wants_stream() {
        let mut whole = answer(&pieces.concat(), json!("stop"));
        if let Some(members) = whole.as_object_mut() {
            let usage = json!({
                "prompt_tokens": ask.input_tokens,
                "completion_tokens": ask.output_tokens(),
                "total_tokens": ask.input_tokens + ask.output_tokens(),
            });
            members.insert("usage".to_owned(), usage);
        }
        return Content::whole(&whole);
    }
    let texts = pieces
        .iter()
        .map(|piece| event(&answer(piece, Value::Null)));
    let mut events: Vec<Bytes> = texts.collect();
    events.push(event(&answer("", json!("stop"))));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    Content::Events(events)
}
