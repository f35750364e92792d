//! When an attempt must have come how far, and what it means that it has not.

use std::time::Duration;

use tidegate_core::outcome::{LocalFault, Outcome, StreamFault};
use tidegate_plane_client::Deadlines;
use tokio::time::Instant;

/// Moments at which an attempt must have come somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(super) deadlines: Deadlines,
    /// When the attempt as a whole must have ended.
    pub(crate) end: Option<Instant>,
    /// When another target is to be asked, unless the answer is ready.
    target_end: Option<Instant>,
    /// When the upstream must have accepted the request (`sessions-and-streams.md` §3.2).
    execution_end: Option<Instant>,
}

/// What of an attempt is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    /// The headers of its answer.
    Headers,
    /// The first ready event of a stream.
    Readiness,
    /// The body of an answer that is no stream.
    Body,
}

impl Clock {
    /// For an attempt sent now. `execution` is how long it may take until headers and, for a stream, readiness.
    pub(crate) fn start(deadlines: Deadlines, execution: Option<Duration>) -> Self {
        let within = |limit: Option<Duration>| Instant::now().checked_add(limit?);
        Self {
            deadlines,
            end: within(deadlines.attempt),
            target_end: within(deadlines.target),
            execution_end: within(execution),
        }
    }

    /// Of an attempt that is over.
    pub(crate) fn without_end(self) -> Self {
        Self { end: None, ..self }
    }

    /// Between two useful events.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.deadlines.idle
    }

    /// When the next part of a body that is no stream must be here.
    pub(super) fn next_part(&self) -> Option<Instant> {
        self.by_in(Phase::Body, self.deadlines.body)
    }

    /// When the next useful event must have come after the last one, and what it is if none has.
    pub(crate) fn useful_by(&self, progress: Instant) -> (Option<Instant>, StreamFault) {
        self.silent_by(self.idle().and_then(|idle| progress.checked_add(idle)))
    }

    /// The attempt's end or `silent`, whichever comes first, and what has passed then.
    pub(crate) fn silent_by(&self, silent: Option<Instant>) -> (Option<Instant>, StreamFault) {
        match (silent, self.end) {
            (Some(silent), Some(end)) if end <= silent => {
                (Some(end), StreamFault::DeadlineExceeded)
            }
            (None, end) => (end, StreamFault::DeadlineExceeded),
            (silent, _) => (silent, StreamFault::IdleTimeout),
        }
    }

    /// The moment `limit` from now, or the attempt's end if that comes first.
    pub(super) fn by(&self, limit: Option<Duration>) -> Option<Instant> {
        let limit = limit.and_then(|limit| Instant::now().checked_add(limit));
        [limit, self.end].into_iter().flatten().min()
    }

    /// The same, or the moment when a limit of ours passes that holds in this phase.
    pub(super) fn by_in(&self, phase: Phase, limit: Option<Duration>) -> Option<Instant> {
        let own = self.own_end(phase).map(|(end, _)| end);
        [self.by(limit), own].into_iter().flatten().min()
    }

    /// When a limit of ours passes, of which nobody is to blame, and which: the time for one target of a combo, or for
    /// one execution.
    fn own_end(&self, phase: Phase) -> Option<(Instant, LocalFault)> {
        let target = self.target_end.map(|end| (end, LocalFault::TargetExpired));
        let execution = (self.execution_end).map(|end| (end, LocalFault::ExecutionExpired));
        match phase {
            Phase::Headers => [target, execution]
                .into_iter()
                .flatten()
                .min_by_key(|(end, _)| *end),
            Phase::Readiness => execution,
            Phase::Body => target,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end <= Instant::now())
    }

    /// The attempt's end when such a limit has passed.
    pub(super) fn given_up(&self, phase: Phase) -> Option<Outcome> {
        let (end, fault) = self.own_end(phase)?;
        (end <= Instant::now() && !self.is_over()).then_some(Outcome::Local(fault))
    }

    /// What it means that a limit of this phase passed, `fault` being that of the upstream.
    pub(super) fn passed_in(&self, phase: Phase, fault: StreamFault) -> Outcome {
        self.given_up(phase).unwrap_or_else(|| self.passed(fault))
    }

    /// What it means that a limit passed: the attempt's own end outweighs the smaller one.
    fn passed(&self, fault: StreamFault) -> Outcome {
        Outcome::Stream(if self.is_over() {
            StreamFault::DeadlineExceeded
        } else {
            fault
        })
    }
}

/// The limit passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed;

/// Waits for a future until a moment, or for ever without one.
pub(crate) async fn within<F: Future>(
    by: Option<Instant>,
    future: F,
) -> Result<F::Output, Elapsed> {
    match by {
        Some(by) => tokio::time::timeout_at(by, future)
            .await
            .map_err(|_| Elapsed),
        None => Ok(future.await),
    }
}
