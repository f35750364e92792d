//! A stream that had begun well ends before its time.

use tidegate_core::classify::{ClassifyContext, classify};
use tidegate_core::outcome::{AttemptOutcome, LocalFault, Outcome, StreamFault};
use tidegate_core::telemetry::aggregate::Verdict;
use tidegate_plane_client::Leased;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::control_port::ControlPort;
use crate::metrics::{AbortLabels, AbortMoment};

use super::{InFlight, Life, millis};

impl<C: ControlPort> Life<C> {
    /// A stream that had begun well failed, or ended for a limit of ours.
    pub(crate) fn breaks(&mut self, outcome: Outcome) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, Some(&outcome));
        }
        let Some(in_flight) = self.in_flight.as_ref() else {
            return;
        };
        let moment = self
            .status
            .map_or(AbortMoment::Held, |_| AbortMoment::Committed);
        self.counts(&outcome, moment);
        if let Some(trace) = self.traces.last_mut() {
            trace.fails(&outcome, millis(in_flight.sent, Instant::now()));
        }
        let report = AttemptOutcome {
            attempt: in_flight.dispatch.attempt.clone(),
            outcome,
            occurred_at: self.shared.control.now(),
            next_target_same_provider: false,
            combo: self.combo,
            count: 1,
        };
        if let Some(verdict) = held_against(&self.shared.control, &report) {
            in_flight.target.ends(&self.shared.control, verdict, None);
        }
        self.report(report, true);
    }

    /// Counts a stream that was too slow.
    pub(super) fn counts(&self, outcome: &Outcome, moment: AbortMoment) {
        if *outcome == Outcome::Stream(StreamFault::ThroughputTooLow) {
            let aborts = &self.shared.metrics.recovery.watchdog_aborts;
            aborts.get_or_create(&AbortLabels { moment }).inc();
        }
    }

    /// Comes when the attempt in flight must end because of its lease.
    pub(crate) fn cut(&self) -> Option<WaitForCancellationFutureOwned> {
        let in_flight = self.in_flight.as_ref()?;
        in_flight.leased.as_ref().map(Leased::cut)
    }

    /// Whether that moment has come.
    pub(crate) fn is_cut(&self) -> bool {
        let in_flight = self.in_flight.as_deref();
        in_flight.is_some_and(InFlight::is_cut)
    }

    /// A stream that had begun well was cut because of its lease, of which nobody is to blame.
    pub(crate) fn is_cut_off(&mut self) {
        let Some(in_flight) = self.in_flight.as_mut().filter(|it| it.ready) else {
            return;
        };
        let outcome = Outcome::Local(LocalFault::LeaseConflict);
        in_flight.ends(&self.shared.metrics.gen_ai, self.endpoint, Some(&outcome));
        if let Some(trace) = self.traces.last_mut() {
            trace.fails(&outcome, millis(in_flight.sent, Instant::now()));
        }
        let attempt = in_flight.dispatch.attempt.clone();
        self.report(
            AttemptOutcome {
                attempt,
                outcome,
                occurred_at: self.shared.control.now(),
                next_target_same_provider: false,
                combo: self.combo,
                count: 1,
            },
            false,
        );
    }
}

/// What is held against the target of a stream that had begun well. Nothing says anything of one that is configured no more.
fn held_against(control: &impl ControlPort, ended: &AttemptOutcome) -> Option<Verdict> {
    let snapshot = control.snapshot()?;
    let config = &snapshot.config;
    let context = ClassifyContext::of_attempt(config, &ended.attempt, ended.occurred_at)?;
    Verdict::of_break(&classify(&ended.outcome, &context))
}
