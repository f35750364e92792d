//! `/v1/embeddings`. The vectors mean nothing, but the same input gives the same vector.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::answer::Content;
use crate::wire::Ask;

/// Numbers in a vector.
const DIMENSIONS: u16 = 8;

pub(crate) fn good(ask: &Ask<'_>) -> Content {
    let base64 = ask.body.get("encoding_format").and_then(Value::as_str) == Some("base64");
    let entry = |(index, input): (usize, &Value)| {
        let vector = vector(input);
        let embedding = if base64 {
            let bytes: Vec<u8> = vector
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect();
            json!(STANDARD.encode(bytes))
        } else {
            json!(vector)
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    let inputs = inputs(ask.body);
    let data: Vec<Value> = inputs.into_iter().enumerate().map(entry).collect();
    let usage = json!({ "prompt_tokens": ask.input_tokens, "total_tokens": ask.input_tokens });
    Content::whole(&json!({ "object": "list", "data": data, "model": ask.model, "usage": usage }))
}

/// A text, a list of texts, a list of tokens (one input) or a list of lists of tokens.
fn inputs(body: &Value) -> Vec<&Value> {
    match body.get("input") {
        Some(Value::Array(list)) if !list.iter().all(Value::is_number) => list.iter().collect(),
        Some(input) => vec![input],
        None => Vec::new(),
    }
}

fn vector(input: &Value) -> Vec<f32> {
    let text = input.to_string();
    let sum = text.bytes().fold(1_u16, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    (1..=DIMENSIONS)
        .map(|place| f32::from(sum.wrapping_mul(place) % 1000) / 1000.0)
        .collect()
}
