//! Requests that need several answers: a panel and its judge, or steps that follow each other (`routing.md` §8.18,
//! §8.19).
//!
//! A part is a request to one step of the combo with a loop and a life of its own ([`Drive::part`]), so attempts,
//! reports, grants and usage are those of any request. All parts run in the task of the client's request: when the
//! client leaves, everything is dropped at once. Only the last part, whose answer the client sees, is the client's
//! request itself ([`Drive::as_last_part`]).

mod bodies;
mod fusion;
mod one_chunk;
mod part;
mod pipeline;

use bytes::Bytes;
use tidegate_core::routing::Plan;

use crate::control_port::ControlPort;
use crate::drive::{Drive, End};
use crate::endpoint::Endpoint;
use crate::refusal::Refusal;
use crate::request::RequestBody;
use crate::sse::Dialect;

pub(crate) use bodies::{Conversation, Unreadable, text};

/// A whole answer to a request that asked for a stream, as a stream of one chunk (decision 32). `None` when it is no answer
/// of the endpoint.
pub(crate) fn one_chunk(endpoint: Endpoint, asked: &RequestBody, answer: &[u8]) -> Option<Bytes> {
    if endpoint == Endpoint::Completions {
        return one_chunk::legacy(answer);
    }
    let wants_usage =
        Conversation::of(endpoint, asked).is_ok_and(|conversation| conversation.wants_usage());
    one_chunk::stream(Dialect::of(endpoint), answer, wants_usage)
}

/// Carries a plan out.
///
/// # Errors
/// What the client is told instead.
pub(crate) async fn carry_out<C: ControlPort>(
    drive: &mut Drive<C>,
    plan: Plan,
) -> Result<End, Refusal> {
    match plan {
        Plan::Fusion(plan) => fusion::carry_out(drive, plan).await,
        Plan::Pipeline(plan) => pipeline::carry_out(drive, plan).await,
    }
}
