//! What routing needs to know of a request's body: one pass over its text that is also the check that it is JSON.
//!
//! Bodies of all endpoints are read by one reader: `messages` and `system` (chat, Anthropic), `input` and `instructions`
//! (Responses), `input` (embeddings), `tools`, `tool_choice`, `response_format`, `text.format`, `output_format`,
//! `prompt_cache_key`, `metadata`. Whatever is not where it should be, or not what it should be, is passed over: the
//! upstream judges bodies, this only guesses from them. What is kept is bounded, however long the body is.

mod shape;
mod text;
mod visit;

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::{RequestFacts, intent};
use crate::session_key::SessionKey;
use crate::usage::estimated_tokens;

pub use shape::{MAX_DEPTH, ShapeFault, check_shape};
pub use visit::{read, read_with_session};

/// Longest part of a conversation's first turn, of a system prompt and of tools that is hashed, in bytes.
pub const HASHED_BYTES: usize = 16 * 1_024;
/// Longest `prompt_cache_key`, in characters (`routing.md` §8.17). One of more bytes than characters is told by its hash.
pub const MAX_CACHE_KEY_CHARACTERS: usize = 4_096;

/// What a body says.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BodyFacts {
    /// Tools that it offers.
    pub tools: u32,
    /// `tool_choice` is `none`.
    pub tools_forbidden: bool,
    /// It holds images.
    pub vision: bool,
    /// It asks for an answer in a JSON schema.
    pub structured_output: bool,
    /// Bytes of its texts and tools. Of images and files none count.
    prompt_bytes: u64,
    /// `prompt_cache_key`.
    cache_key: Option<String>,
    /// Hash of what stands ahead of the conversation: system prompt and tools.
    preamble: Option<[u8; 32]>,
    /// Hash of the first user turn.
    first_turn: Option<[u8; 32]>,
    /// The model answered before.
    answered: bool,
    /// The session that its members name, where they were asked for.
    session_key: Option<SessionKey>,
    /// The last user turn, of which at most [`intent::LOOKED_AT_BYTES`] are kept.
    last_turn: String,
}

impl BodyFacts {
    /// Estimate of its input tokens, by the bytes of its texts and tools.
    #[must_use]
    pub fn estimated_tokens(&self) -> u64 {
        estimated_tokens(self.prompt_bytes)
    }

    /// What equal prompt prefixes have in common (`routing.md` §8.17): the key that the client gives, else a hash of
    /// system prompt and tools; of a conversation without either a hash of its first turn, from the second turn on. A
    /// first turn alone has none: it has nothing that was cached.
    #[must_use]
    pub fn cache_key(&self) -> Option<String> {
        if let Some(key) = &self.cache_key {
            return Some(key.clone());
        }
        let of_conversation = self.first_turn.filter(|_| self.answered);
        self.preamble.or(of_conversation).map(hex::encode)
    }

    /// What the turns of a conversation have in common: the first 16 hexadecimal digits of SHA-256 of its first user
    /// turn (`routing.md` §10.1). `salt`, the id of the client's key, keeps clients apart who begin alike.
    #[must_use]
    pub fn session(&self, salt: Option<&str>) -> Option<String> {
        let turn = self.first_turn?;
        let hash = match salt {
            None => turn,
            Some(salt) => {
                let mut hash = Sha256::new();
                hash.update(salt.as_bytes());
                hash.update([0]);
                hash.update(turn);
                hash.finalize().into()
            }
        };
        let mut text = hex::encode(hash);
        text.truncate(16);
        Some(text)
    }

    /// The session that its members name (`sessions-and-streams.md` §2.1); of a body read by [`read_with_session`].
    #[must_use]
    pub fn session_key(&self) -> Option<&SessionKey> {
        self.session_key.as_ref()
    }

    /// What its last user turn is about.
    #[must_use]
    pub fn intent(&self) -> super::Intent {
        intent::classify(&self.last_turn)
    }
}

impl RequestFacts {
    /// With what its body says. `key_id` is the id of the client's key, where it has one.
    #[must_use]
    pub fn with_body(self, body: &BodyFacts, key_id: Option<&str>) -> Self {
        Self {
            tools: body.tools,
            tools_forbidden: body.tools_forbidden,
            vision: body.vision,
            structured_output: body.structured_output,
            estimated_tokens: Some(body.estimated_tokens()),
            cache_key: body.cache_key(),
            session: body.session(key_id),
            session_key: self.session_key.or_else(|| body.session_key().cloned()),
            intent: body.intent(),
            ..self
        }
    }
}

impl fmt::Debug for BodyFacts {
    /// Without anything that a client wrote.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BodyFacts")
            .field("tools", &self.tools)
            .field("tools_forbidden", &self.tools_forbidden)
            .field("vision", &self.vision)
            .field("structured_output", &self.structured_output)
            .field("prompt_bytes", &self.prompt_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
