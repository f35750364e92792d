//! The table that ships: well-known models under the usual ids of their providers. List prices change; the rows of the
//! configuration win, member by member.

use crate::ids::{ModelId, ProviderId};
use crate::number::Finite;

use super::ModelInfo;

/// Provider, model, USD per million input and output tokens, context window in tokens. All of them take tools and
/// images and answer in a given schema.
#[rustfmt::skip]
const ROWS: &[(&str, &str, f64, f64, u64)] = &[
    ("openai", "gpt-5", 1.25, 10.0, 400_000),
    ("openai", "gpt-5-mini", 0.25, 2.0, 400_000),
    ("openai", "gpt-5-nano", 0.05, 0.4, 400_000),
    ("openai", "gpt-4.1", 2.0, 8.0, 1_047_576),
    ("openai", "gpt-4.1-mini", 0.4, 1.6, 1_047_576),
    ("openai", "gpt-4o", 2.5, 10.0, 128_000),
    ("openai", "gpt-4o-mini", 0.15, 0.6, 128_000),
    ("openai", "o3", 2.0, 8.0, 200_000),
    ("openai", "o4-mini", 1.1, 4.4, 200_000),
    ("anthropic", "claude-opus-4-1", 15.0, 75.0, 200_000),
    ("anthropic", "claude-sonnet-4-5", 3.0, 15.0, 200_000),
    ("anthropic", "claude-sonnet-4-0", 3.0, 15.0, 200_000),
    ("anthropic", "claude-haiku-4-5", 1.0, 5.0, 200_000),
    ("anthropic", "claude-3-5-haiku-latest", 0.8, 4.0, 200_000),
    ("gemini", "gemini-2.5-pro", 1.25, 10.0, 1_048_576),
    ("gemini", "gemini-2.5-flash", 0.3, 2.5, 1_048_576),
    ("gemini", "gemini-2.5-flash-lite", 0.1, 0.4, 1_048_576),
];

/// The rows.
pub(super) fn rows() -> impl Iterator<Item = (ProviderId, ModelId, ModelInfo)> {
    ROWS.iter()
        .filter_map(|(provider, model, input, output, window)| {
            let info = ModelInfo {
                input_price: Finite::new(*input).ok(),
                output_price: Finite::new(*output).ok(),
                context_window: Some(*window),
                tools: Some(true),
                vision: Some(true),
                structured_output: Some(true),
                ..ModelInfo::default()
            };
            Some((
                ProviderId::new(provider).ok()?,
                ModelId::new(model).ok()?,
                info,
            ))
        })
}
