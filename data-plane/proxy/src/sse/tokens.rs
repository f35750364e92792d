//! Usage as upstreams write it.

use serde::Deserialize;
use serde_json::value::RawValue;
use tidegate_core::usage::ToldTokens;

/// Tokens of one attempt, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Prompt, cached parts included.
    pub(crate) input: Option<u64>,
    /// Completion.
    pub(crate) output: Option<u64>,
}

#[derive(Deserialize)]
struct Written {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl From<Tokens> for ToldTokens {
    fn from(tokens: Tokens) -> Self {
        Self {
            input: tokens.input,
            output: tokens.output,
        }
    }
}

impl Tokens {
    /// Takes over what a `usage` object says that comes ahead of the answer: what it says of the output is no sum yet.
    pub(crate) fn learn_early(&mut self, usage: &RawValue) {
        let output = self.output;
        self.learn(usage);
        self.output = output;
    }

    /// Takes over what a `usage` object says; later words win, and what is unreadable is not known.
    pub(crate) fn learn(&mut self, usage: &RawValue) {
        let Ok(written) = serde_json::from_str::<Written>(usage.get()) else {
            return;
        };
        // Anthropic counts cached prompt tokens apart, OpenAI within.
        let cached = [
            written.cache_creation_input_tokens,
            written.cache_read_input_tokens,
        ];
        let cached = cached.into_iter().flatten().fold(0, u64::saturating_add);
        let input = written
            .prompt_tokens
            .or_else(|| Some(written.input_tokens?.saturating_add(cached)));
        self.input = input.or(self.input);
        self.output = written
            .completion_tokens
            .or(written.output_tokens)
            .or(self.output);
    }
}
