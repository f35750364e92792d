//! One attempt as the access log shows it.

use std::fmt;

use tidegate_core::outcome::{Attempt, Outcome};

/// What happened to an attempt.
#[derive(Debug)]
pub(super) struct Trace {
    attempt: Attempt,
    outcome: &'static str,
    status: Option<u16>,
    ms: u64,
}

impl Trace {
    pub(super) fn new(attempt: &Attempt) -> Self {
        Self {
            attempt: attempt.clone(),
            outcome: "open",
            status: None,
            ms: 0,
        }
    }

    pub(super) fn ends(&mut self, outcome: &'static str, ms: u64) {
        self.outcome = outcome;
        self.ms = ms;
    }

    pub(super) fn fails(&mut self, outcome: &Outcome, ms: u64) {
        self.ms = ms;
        self.outcome = match outcome {
            Outcome::Success => "success",
            Outcome::Response(error) => {
                self.status = Some(error.status);
                if error.embedded {
                    "embedded_error"
                } else {
                    "response"
                }
            }
            Outcome::Transport(_) => "transport",
            Outcome::Stream(_) => "stream",
            Outcome::Local(_) => "local",
            Outcome::ClientAbort => "client_abort",
        };
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = &self.attempt;
        write!(
            formatter,
            "{} {}/{} {} {}",
            attempt.id, attempt.provider, attempt.connection, attempt.model, self.outcome
        )?;
        if let Some(status) = self.status {
            write!(formatter, " {status}")?;
        }
        write!(formatter, " {}ms", self.ms)
    }
}
