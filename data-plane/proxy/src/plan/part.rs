//! One part of a plan: a request to one step, whose answer is read here.

use tidegate_core::routing::{Rejection, RequestFacts, Shortfall};
use tidegate_core::usage::estimated_tokens;

use crate::control_port::ControlPort;
use crate::drive::{Drive, End, Source};
use crate::observe::Answered;
use crate::refusal::Refusal;

use super::bodies::{Unreadable, text};

/// How a part ended.
pub(super) enum PartEnd {
    /// With this answer and what it says.
    Answered(Box<PartAnswer>),
    /// With an answer that says nothing.
    Unreadable(Unreadable),
    /// Without an answer.
    Failed(Box<PartFailure>),
}

/// A good answer.
pub(super) struct PartAnswer {
    pub(super) text: String,
    pub(super) answer: Answered,
    pub(super) source: Option<Source>,
}

/// Why there is none.
pub(super) struct PartFailure {
    pub(super) rejection: Box<Rejection>,
    /// In a word.
    pub(super) shortfall: Shortfall,
    /// The last upstream's own words.
    pub(super) words: Option<Answered>,
}

/// What a part is about: the facts of the client's request, without what was taken from its body.
pub(super) fn silent_facts(facts: &RequestFacts, step: u32) -> RequestFacts {
    RequestFacts {
        member: Some(step),
        tools: 0,
        ..facts.clone()
    }
}

/// As many tokens more as a text has; an estimate like that of the rest.
pub(super) fn grown(estimate: Option<u64>, text_bytes: usize) -> Option<u64> {
    let bytes = u64::try_from(text_bytes).unwrap_or(u64::MAX);
    Some(estimate?.saturating_add(estimated_tokens(bytes)))
}

/// Drives a part to its end.
///
/// # Errors
/// What no upstream is to blame for.
pub(super) async fn run<C: ControlPort>(mut drive: Drive<C>) -> Result<PartEnd, Refusal> {
    Ok(match drive.until_end().await? {
        End::Whole(answer, source) => match text(drive.request.endpoint, &answer.body) {
            Ok(text) => PartEnd::Answered(Box::new(PartAnswer {
                text,
                answer,
                source,
            })),
            Err(unreadable) => PartEnd::Unreadable(unreadable),
        },
        // Nobody asked for a stream.
        End::Stream(..) => PartEnd::Unreadable(Unreadable::Unparseable),
        End::Rejected(rejection) => PartEnd::Failed(Box::new(PartFailure {
            shortfall: Shortfall::of(&rejection, drive.last_outcome.as_ref()),
            words: drive.words.take(),
            rejection,
        })),
        // A step is not planned again.
        End::Plan(_) => return Err(Refusal::Internal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_grow_where_there_are_any() {
        assert_eq!(grown(Some(10), 5), Some(12));
        assert_eq!(grown(None, 5), None);
        assert_eq!(grown(Some(u64::MAX), 5), Some(u64::MAX));
    }
}
