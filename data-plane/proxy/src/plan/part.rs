//! One part of a plan: a request to one step, whose answer is read here.

use http::HeaderValue;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_core::routing::{Rejection, RequestFacts, Shortfall};

use crate::control_port::ControlPort;
use crate::drive::{Drive, End};
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
    pub(super) provider: Option<HeaderValue>,
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
    const BYTES_PER_TOKEN: u64 = 4;
    let bytes = u64::try_from(text_bytes).unwrap_or(u64::MAX);
    Some(estimate?.saturating_add(bytes.div_ceil(BYTES_PER_TOKEN)))
}

/// Drives a part to its end.
///
/// # Errors
/// What no upstream is to blame for.
pub(super) async fn run<C: ControlPort>(mut drive: Drive<C>) -> Result<PartEnd, Refusal> {
    Ok(match drive.until_end().await? {
        End::Whole(answer, provider) => match text(drive.request.endpoint, &answer.body) {
            Ok(text) => PartEnd::Answered(Box::new(PartAnswer {
                text,
                answer,
                provider,
            })),
            Err(unreadable) => PartEnd::Unreadable(unreadable),
        },
        // Nobody asked for a stream.
        End::Stream(..) => PartEnd::Unreadable(Unreadable::Unparseable),
        End::Rejected(rejection) => PartEnd::Failed(Box::new(PartFailure {
            shortfall: shortfall(drive.last_outcome.as_ref(), rejection.status),
            words: drive.words.take(),
            rejection,
        })),
        // A step is not planned again.
        End::Plan(_) => return Err(Refusal::Internal),
    })
}

/// Why a part without an answer has none, from its last attempt and the status it would have been answered with.
fn shortfall(last: Option<&Outcome>, status: u16) -> Shortfall {
    match last {
        Some(
            Outcome::Transport(TransportFault::HeadersTimeout)
            | Outcome::Stream(
                StreamFault::ReadinessTimeout
                | StreamFault::IdleTimeout
                | StreamFault::DeadlineExceeded,
            ),
        ) => Shortfall::Timeout,
        Some(Outcome::Transport(_) | Outcome::Stream(_)) => Shortfall::Threw,
        Some(
            Outcome::Success | Outcome::Response(_) | Outcome::Local(_) | Outcome::ClientAbort,
        )
        | None => Shortfall::Status(status),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tidegate_core::outcome::{LocalFault, UpstreamError};

    use super::*;

    #[rstest]
    #[case::nothing_was_sent(None, "status_503")]
    #[case::an_error(Some(Outcome::Response(UpstreamError::default())), "status_503")]
    #[case::ours(Some(Outcome::Local(LocalFault::Internal)), "status_503")]
    #[case::no_headers(Some(Outcome::Transport(TransportFault::HeadersTimeout)), "timeout")]
    #[case::too_long(Some(Outcome::Stream(StreamFault::DeadlineExceeded)), "timeout")]
    #[case::refused(Some(Outcome::Transport(TransportFault::Connect)), "threw")]
    #[case::broken(Some(Outcome::Stream(StreamFault::EarlyEof)), "threw")]
    fn a_part_without_an_answer_says_why(#[case] last: Option<Outcome>, #[case] word: &str) {
        assert_eq!(shortfall(last.as_ref(), 503).word(), word);
    }

    #[test]
    fn estimates_grow_where_there_are_any() {
        assert_eq!(grown(Some(10), 5), Some(12));
        assert_eq!(grown(None, 5), None);
        assert_eq!(grown(Some(u64::MAX), 5), Some(u64::MAX));
    }
}
