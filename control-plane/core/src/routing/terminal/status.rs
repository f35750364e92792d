//! The final status of several outcomes and what may go with it (`routing.md` §6, §7.1).

use crate::classify::{Classification, Reason};

use crate::routing::{Input, PriorAttempt};

/// Final statuses that may carry a Retry-After (`routing.md` §6).
const RETRY_AFTER_ELIGIBLE_STATUSES: [u16; 2] = [429, 503];

/// What an outcome was, for the final status (`routing.md` §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routing) enum OutcomeKind {
    /// A 200 without usable content.
    Quality,
    /// The credential was refused.
    Auth,
    /// 429.
    RateLimit,
    /// 408 or 499.
    Timeout,
    /// 500 and above.
    Provider,
    /// Anything else.
    Model,
}

impl OutcomeKind {
    /// The kind of a failure.
    pub(in crate::routing) fn of(classification: &Classification) -> Self {
        let Classification {
            status,
            reason,
            request_scoped,
            ..
        } = *classification;
        match status {
            502 if request_scoped => Self::Quality,
            _ if is_expired(classification) => Self::Timeout,
            401 | 403 => Self::Auth,
            429 => Self::RateLimit,
            408 | 499 => Self::Timeout,
            500.. => Self::Provider,
            _ if reason == Reason::AuthError => Self::Auth,
            _ => Self::Model,
        }
    }

    pub(in crate::routing) fn as_str(self) -> &'static str {
        match self {
            Self::Quality => "quality",
            Self::Auth => "auth",
            Self::RateLimit => "rate_limit",
            Self::Timeout => "timeout",
            Self::Provider => "provider",
            Self::Model => "model",
        }
    }
}

/// Our own limit on an execution passed (`routing.md` §5.3, 2a). An upstream's 504 is an upstream's, whatever it says.
pub(in crate::routing) fn is_expired(classification: &Classification) -> bool {
    classification.status == 504 && classification.reason == Reason::Local
}

/// The status of several outcomes: the last one's when all are of one kind, else 504 if any timed out, else
/// 502. `None` without outcomes.
pub(in crate::routing) fn final_status(
    outcomes: impl IntoIterator<Item = (OutcomeKind, u16)>,
) -> Option<u16> {
    let mut first_kind = None;
    let mut last_status = None;
    let mut mixed = false;
    let mut timeout = false;
    for (kind, status) in outcomes {
        mixed |= *first_kind.get_or_insert(kind) != kind;
        timeout |= kind == OutcomeKind::Timeout;
        last_status = Some(status);
    }
    match (mixed, timeout) {
        (false, _) => last_status,
        (true, true) => Some(504),
        (true, false) => Some(502),
    }
}

/// The earliest wait that any attempt's upstream asked for or a restatement advertises, where the final status may
/// carry one.
pub(super) fn retry_after(
    input: &Input<'_>,
    attempts: &[PriorAttempt],
    status: u16,
) -> Option<u64> {
    if !may_retry_after(status) {
        return None;
    }
    attempts
        .iter()
        .filter_map(|attempt| {
            let wait_ms = attempt.classification.client_wait_ms()?;
            Some(attempt.failed_at.plus_ms(wait_ms).remaining_ms(input.now))
        })
        .min()
        .map(whole_seconds)
}

/// Whether an answer of this status may say when to come back.
pub(in crate::routing) fn may_retry_after(status: u16) -> bool {
    RETRY_AFTER_ELIGIBLE_STATUSES.contains(&status)
}

/// Rounded up, at least 1.
pub(super) fn whole_seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000).max(1)
}

/// A success or something that is no HTTP error status never becomes the status of a failure.
pub(super) fn error_status(status: u16) -> u16 {
    if (400..=599).contains(&status) {
        status
    } else {
        502
    }
}

/// `OpenAI`'s types (`sessions-and-streams.md` §5.2).
pub(in crate::routing) fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::OutcomeKind::{Auth, Model, Provider, Quality, RateLimit, Timeout};
    use super::*;

    #[rstest]
    #[case::one(&[(RateLimit, 429), (RateLimit, 429)], 429)]
    #[case::mixed(&[(RateLimit, 429), (Provider, 503)], 502)]
    #[case::last_of_one_kind(&[(Provider, 503), (Provider, 500)], 500)]
    #[case::timeout_among_others(&[(Timeout, 408), (Provider, 503)], 504)]
    #[case::quality_and_auth(&[(Quality, 502), (Auth, 401)], 502)]
    #[case::model(&[(Model, 400), (Model, 422)], 422)]
    fn final_status_follows_the_kinds(
        #[case] outcomes: &[(OutcomeKind, u16)],
        #[case] expected: u16,
    ) {
        assert_eq!(final_status(outcomes.iter().copied()), Some(expected));
    }

    #[test]
    fn without_outcomes_there_is_no_final_status() {
        assert_eq!(final_status([]), None);
    }
}
