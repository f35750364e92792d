//! What operators did by hand, besides changing the configuration, in the audit trail.
//!
//! **Stance:** fail-open. It is done by then, and mostly to mend something; that it is not written down is logged and counted.

use std::time::Duration;

use crate::access::Caller;

use super::Admin;

/// Limit of one entry (decision 54).
const LIMIT: Duration = Duration::from_millis(500);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Reset,
    EndLease,
    ClearPermits,
}

impl Operation {
    /// The word that is stored.
    fn word(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::EndLease => "end_lease",
            Self::ClearPermits => "clear_permits",
        }
    }
}

impl Admin {
    /// Writes down that it was done.
    pub(crate) async fn audit(&self, caller: &Caller, operation: Operation, summary: &str) {
        let action = operation.word();
        tracing::info!(%caller, action, summary, "an operator did something by hand");
        let author = caller.to_string();
        let append = self.durable.append_audit(&author, action, summary);
        let reason = match tokio::time::timeout(LIMIT, append).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer in time".to_owned(),
        };
        self.metrics.admin.unaudited.inc();
        tracing::warn!(%caller, action, summary, reason, "it is not in the audit trail");
    }
}
