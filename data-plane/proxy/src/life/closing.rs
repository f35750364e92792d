//! What is open is closed: every attempt is reported, every grant given back.

use tidegate_core::classify::Classification;
use tidegate_core::outcome::{AttemptOutcome, LocalFault, Outcome};
use tidegate_core::telemetry::aggregate::Verdict;
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::metrics::{AttemptEnd, AttemptLabels};

use super::{Asking, Ending, Life, millis};

impl<C: ControlPort> Life<C> {
    pub(super) fn report(&self, report: AttemptOutcome, urgent: bool) {
        let outcome = AttemptEnd::of(&report.outcome);
        let labels = AttemptLabels { outcome };
        self.shared.metrics.attempts.get_or_create(&labels).inc();
        self.shared.control.report(report, urgent);
    }

    pub(super) fn report_failure(
        &mut self,
        next_target_same_provider: bool,
        classification: Option<&Classification>,
    ) {
        let Some(failed) = self.failed.take() else {
            return;
        };
        let (failure, target, mut span) = *failed;
        if let Some(classification) = classification {
            span.means(classification);
        }
        // A failure that nobody judged says nothing of its target.
        let verdict = classification.map_or(Verdict::None, Verdict::of_failure);
        target.ends(&self.shared.control, verdict, None);
        let report = AttemptOutcome {
            attempt: failure.attempt,
            outcome: failure.outcome,
            occurred_at: failure.occurred_at,
            next_target_same_provider,
            combo: self.combo,
            count: 1,
        };
        self.report(report, true);
    }

    /// What an attempt without a verdict ended as: whatever it was, it was not the upstream.
    fn cut_off(&self) -> Outcome {
        let dismissed = self.is_part && self.family.is_dismissed();
        if std::thread::panicking() {
            Outcome::Local(LocalFault::Internal)
        } else if dismissed || self.shared.end.is_cancelled() {
            Outcome::Local(LocalFault::ExecutionExpired)
        } else {
            Outcome::ClientAbort
        }
    }

    pub(super) fn release_permit(&mut self) {
        if let Some(attempt) = self.permit.take() {
            self.shared.control.release(attempt);
        }
    }

    pub(super) fn close_attempts(&mut self) {
        self.release_permit();
        self.report_failure(false, None);
        if let Some(Asking { attempt, probed }) = self.asking.take() {
            self.shared.control.abandon(attempt, probed);
        }
        self.close_set_aside();
        let Some(mut in_flight) = self.in_flight.take() else {
            return;
        };
        let is_cut = in_flight.is_cut();
        in_flight.lets_go(&self.shared.control);
        let outcome = if is_cut {
            Outcome::Local(LocalFault::LeaseConflict)
        } else {
            self.cut_off()
        };
        if in_flight.ready {
            self.record_usage(&mut in_flight);
            let is_whole = matches!(self.ended, Some(Ending::Answered));
            in_flight.ends(
                &self.shared.metrics.gen_ai,
                self.endpoint,
                (!is_whole).then_some(&outcome),
            );
            return;
        }
        if let Some(trace) = self.traces.last_mut() {
            trace.fails(&outcome, millis(in_flight.sent, Instant::now()));
        }
        in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, Some(&outcome));
        let attempt = in_flight.dispatch.attempt;
        let target = in_flight.target;
        target.ends(&self.shared.control, Verdict::None, None);
        let urgent = attempt.probe || in_flight.dispatch.report_at_readiness;
        let report = AttemptOutcome {
            attempt,
            outcome,
            occurred_at: self.shared.control.now(),
            next_target_same_provider: false,
            combo: self.combo,
            count: 1,
        };
        self.report(report, urgent);
    }
}
