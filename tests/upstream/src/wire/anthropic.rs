//! `/v1/messages`.

use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::{Ask, named_event};

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let pieces = ask.reply.pieces();
    let message = |content: Value, stop_reason: Value, output_tokens: u64| {
        json!({
            "id": format!("msg_{}", ask.number), "type": "message", "role": "assistant",
            "model": ask.model, "content": content, "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": {
                "input_tokens": ask.input_tokens, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": output_tokens,
            },
        })
    };
    if !ask.wants_stream() {
        let content = json!([{ "type": "text", "text": pieces.concat() }]);
        return Content::whole(&message(content, json!("end_turn"), ask.output_tokens()));
    }
    let event = |name: &str, mut data: Value| {
        if let Some(members) = data.as_object_mut() {
            members.insert("type".to_owned(), json!(name));
        }
        named_event(name, &data)
    };
    let mut events = vec![
        event(
            "message_start",
            json!({ "message": message(json!([]), Value::Null, 1) }),
        ),
        event(
            "content_block_start",
            json!({ "index": 0, "content_block": { "type": "text", "text": "" } }),
        ),
        event("ping", json!({})),
    ];
    events.extend(pieces.iter().map(|piece| {
        let delta = json!({ "type": "text_delta", "text": piece });
        event("content_block_delta", json!({ "index": 0, "delta": delta }))
    }));
    events.push(event("content_block_stop", json!({ "index": 0 })));
    events.push(event(
        "message_delta",
        json!({
            "delta": { "stop_reason": "end_turn", "stop_sequence": null },
            "usage": { "output_tokens": ask.output_tokens() },
        }),
    ));
    events.push(event("message_stop", json!({})));
    Content::Events(events)
}

pub(crate) fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}
