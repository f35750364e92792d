//! `/v1/models`.

use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::Ask;

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let model = |id: &String| json!({ "id": id, "object": "model", "created": ask.created, "owned_by": ask.name });
    let models: Vec<Value> = ask.models.iter().map(model).collect();
    Content::whole(&json!({ "object": "list", "data": models }))
}
