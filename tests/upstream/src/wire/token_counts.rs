//! `/v1/responses/input_tokens` and `/v1/messages/count_tokens`.

use serde_json::json;

use crate::answer::Content;
use crate::wire::Ask;

pub(crate) fn openai(ask: &Ask<'_>) -> Content {
    Content::whole(&json!({
        "object": "response.input_tokens", "input_tokens": ask.input_tokens,
    }))
}

pub(crate) fn anthropic(ask: &Ask<'_>) -> Content {
    Content::whole(&json!({ "input_tokens": ask.input_tokens }))
}
