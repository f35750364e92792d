//! How long an upstream asks to wait (`failure-state.md` §3.5, decisions 4 and 13): the one extractor, for
//! cooldowns and for the client's Retry-After alike.
//!
//! | room | what it reads |
//! |---|---|
//! | `headers` | response headers, of several the longest |
//! | `json` | members of a structured error |
//! | `prose` | what is written after words such as "try again in" |
//! | `duration`, `moment` | the two shapes of a value |
//!
//! The first room that finds something is believed. A wait that is past, zero, negative or unreadable is no hint,
//! and a long one is cut ([`MAX_MS`], [`MAX_GOOGLE_MS`]). Every reader looks at a bounded piece of text once.

mod duration;
mod headers;
mod json;
mod moment;
mod prose;

use serde_json::Value;

use crate::time::Timestamp;

use super::words::Found;
use super::{HintSource, RetryHint};

/// Longest wait that is believed, in ms: 30 days.
const MAX_MS: u64 = 30 * 86_400_000;
/// Longest wait in google's two shapes, in ms: 24 hours.
const MAX_GOOGLE_MS: u64 = 86_400_000;

/// What hints are read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    /// Headers, names in lower case.
    pub(super) headers: &'a [(String, String)],
    /// The body as JSON, and the error in it, if it is JSON.
    pub(super) json: Option<(&'a Value, &'a Value)>,
    /// The body in lower case.
    pub(super) text: &'a str,
    /// What was found in it.
    pub(super) found: &'a Found,
}

/// The wait that an upstream asks for.
pub(super) fn find(source: Source<'_>, now: Timestamp) -> Option<RetryHint> {
    headers::read(source.headers, now)
        .or_else(|| json::read(source.json?, now))
        .or_else(|| prose::read(source.text, source.found, now))
}

pub(crate) use headers::reset_at;
pub use headers::retry_after_ms;
pub(super) use prose::reset_ms;

/// A hint of this length, or none.
fn hint(wait_ms: u64, cap_ms: u64, source: HintSource) -> Option<RetryHint> {
    (wait_ms > 0).then(|| RetryHint {
        wait_ms: wait_ms.min(cap_ms),
        source,
    })
}
