//! What clients are told of failures that no upstream has words for (`sessions-and-streams.md` §4.6, §5.2).
//!
//! | what passed, or happened | code |
//! |---|---|
//! | no connection: name, dial, TLS, egress proxy | `upstream_unreachable` |
//! | the connection broke before the headers | `upstream_reset` |
//! | no headers in time | `upstream_headers_timeout` |
//! | no HTTP, or no answer of such an API | `upstream_protocol_error` |
//! | no ready event in time | `STREAM_READINESS_TIMEOUT` |
//! | the end before the first ready event, or before that of a body | `STREAM_EARLY_EOF` |
//! | the end in the middle of a stream | `stream_terminated` |
//! | nothing useful in time | `stream_idle_timeout` |
//! | the attempt's deadline | `attempt_deadline_exceeded` |

use super::{LocalFault, Outcome, StreamFault, TransportFault};

/// A stable code, and the `error.type` that goes with it where it is not that of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCode {
    /// `error.code`.
    pub code: &'static str,
    /// `error.type`, if the contract names one.
    pub error_type: Option<&'static str>,
}

/// What all failures of a request have in common, if anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommonFailure {
    /// None yet.
    #[default]
    None,
    /// All have this one.
    All(FailureCode),
    /// They differ, or an upstream had words of its own.
    Mixed,
}

impl CommonFailure {
    /// Another attempt failed.
    pub fn add(&mut self, outcome: &Outcome) {
        *self = match (*self, outcome.failure_code()) {
            (Self::None, Some(code)) => Self::All(code),
            (Self::All(common), Some(code)) if common == code => Self::All(common),
            _ => Self::Mixed,
        };
    }

    /// The code they share.
    #[must_use]
    pub fn code(self) -> Option<FailureCode> {
        match self {
            Self::All(code) => Some(code),
            Self::None | Self::Mixed => None,
        }
    }
}

/// Which limits of ours ended attempts, so that whoever is told of it can be told what to raise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedLimits {
    execution: bool,
    target: bool,
}

impl PassedLimits {
    /// Another attempt failed.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Local(LocalFault::ExecutionExpired) => self.execution = true,
            Outcome::Local(LocalFault::TargetExpired) => self.target = true,
            _ => {}
        }
    }

    /// Their settings, in words for an error's message; `execution_ms` is how long an execution may take. `None` when none
    /// passed.
    #[must_use]
    pub fn in_words(self, execution_ms: u64) -> Option<String> {
        let execution = format!("requestQueue.maxWaitMs ({execution_ms} ms)");
        let names = match (self.execution, self.target) {
            (false, false) => return None,
            (true, false) => execution,
            (false, true) => "targetTimeoutMs of the combo".to_owned(),
            (true, true) => format!("{execution} or targetTimeoutMs of the combo"),
        };
        Some(format!("no answer was accepted within {names}"))
    }
}

impl Outcome {
    /// The code of a failure that no upstream has words for.
    #[must_use]
    pub fn failure_code(&self) -> Option<FailureCode> {
        let (code, error_type) = match self {
            Self::Transport(fault) => (fault.code(), None),
            Self::Stream(fault) => (fault.code(), fault.error_type()),
            Self::Success | Self::Response(_) | Self::Local(_) | Self::ClientAbort => return None,
        };
        Some(FailureCode { code, error_type })
    }
}

impl TransportFault {
    /// The stable code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Resolve | Self::Connect | Self::Tls | Self::ProxyUnreachable => {
                "upstream_unreachable"
            }
            Self::Reset => "upstream_reset",
            Self::HeadersTimeout => "upstream_headers_timeout",
            Self::Protocol => "upstream_protocol_error",
        }
    }
}

impl StreamFault {
    fn error_type(self) -> Option<&'static str> {
        match self {
            Self::ReadinessTimeout => Some("stream_timeout"),
            Self::EarlyEof => Some("stream_early_eof"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::outcome::UpstreamError;

    const EARLY: Outcome = Outcome::Stream(StreamFault::EarlyEof);
    const UNREADY: Outcome = Outcome::Stream(StreamFault::ReadinessTimeout);

    fn words() -> Outcome {
        Outcome::Response(UpstreamError::default())
    }

    const EXECUTION: Outcome = Outcome::Local(LocalFault::ExecutionExpired);
    const TARGET: Outcome = Outcome::Local(LocalFault::TargetExpired);

    #[rstest]
    #[case::none(&[EARLY], None)]
    #[case::execution(&[EXECUTION, EXECUTION], Some("requestQueue.maxWaitMs (15000 ms)"))]
    #[case::target(&[TARGET], Some("targetTimeoutMs of the combo"))]
    #[case::both(
        &[TARGET, EXECUTION],
        Some("requestQueue.maxWaitMs (15000 ms) or targetTimeoutMs of the combo")
    )]
    fn limits_that_passed_are_named(#[case] outcomes: &[Outcome], #[case] names: Option<&str>) {
        let mut passed = PassedLimits::default();
        for outcome in outcomes {
            passed.add(outcome);
        }
        let expected = names.map(|names| format!("no answer was accepted within {names}"));
        assert_eq!(passed.in_words(15_000), expected);
    }

    #[rstest]
    #[case::nothing(&[], None)]
    #[case::one(&[EARLY], Some("STREAM_EARLY_EOF"))]
    #[case::the_same(&[UNREADY, UNREADY], Some("STREAM_READINESS_TIMEOUT"))]
    #[case::different(&[UNREADY, EARLY], None)]
    #[case::different_and_again(&[UNREADY, EARLY, UNREADY], None)]
    #[case::dial(
        &[Outcome::Transport(TransportFault::Tls), Outcome::Transport(TransportFault::Resolve)],
        Some("upstream_unreachable")
    )]
    #[case::with_words(&[words()], None)]
    #[case::words_among_others(&[EARLY, words(), EARLY], None)]
    #[case::ours(&[Outcome::Local(LocalFault::ExecutionExpired)], None)]
    fn failures_of_one_kind_share_its_code(
        #[case] outcomes: &[Outcome],
        #[case] code: Option<&str>,
    ) {
        let mut common = CommonFailure::default();
        for outcome in outcomes {
            common.add(outcome);
        }
        assert_eq!(common.code().map(|common| common.code), code);
    }
}
