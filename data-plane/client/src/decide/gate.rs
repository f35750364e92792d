//! When the control plane is not even asked, and what operators are told of it.
//!
//! The rules are [`contact`](super::contact) and [`periods`](super::periods); this keeps them together under one lock.

use parking_lot::Mutex;
use tokio::time::Instant;

use super::contact::{Contact, Patience, Standing};
use super::periods::{Ended, Line, Periods};
use crate::metrics::ClientMetrics;

/// The gate.
#[derive(Debug)]
pub(crate) struct Gate {
    patience: Patience,
    state: Mutex<State>,
    metrics: ClientMetrics,
}

#[derive(Debug, Default)]
struct State {
    contact: Contact,
    periods: Periods,
}

impl Gate {
    pub(crate) fn new(patience: Patience, metrics: ClientMetrics) -> Self {
        Self {
            patience,
            state: Mutex::default(),
            metrics,
        }
    }

    /// Whether the control plane is to be asked what could be decided without it.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        self.state.lock().contact.admits(&self.patience, now)
    }

    /// How the control plane stands.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        // Time alone can change it.
        self.change(now, |_| {})
    }

    pub(crate) fn answered(&self, now: Instant) {
        self.change(now, |contact| contact.answered(now));
    }

    pub(crate) fn answered_late(&self, now: Instant) {
        self.change(now, |contact| contact.answered_late(now));
    }

    /// A sign of life that is no answer.
    pub(crate) fn heard(&self, now: Instant) {
        self.change(now, |contact| contact.heard(now));
    }

    pub(crate) fn missed(&self, now: Instant) {
        self.change(now, |contact| contact.missed(&self.patience, now));
    }

    pub(crate) fn unreached(&self, now: Instant) {
        self.change(now, |contact| contact.unreached(&self.patience, now));
    }

    /// A decision was made here.
    pub(crate) fn decided_here(&self) {
        self.state.lock().periods.decided();
    }

    fn change(&self, now: Instant, change: impl FnOnce(&mut Contact)) -> Standing {
        let (standing, line) = {
            let mut state = self.state.lock();
            change(&mut state.contact);
            let standing = state.contact.standing(&self.patience, now);
            let line = state.periods.note(standing, now);
            let shows = |shown| i64::from(standing == shown);
            self.metrics.control_plane_slow.set(shows(Standing::Slow));
            self.metrics.control_plane_gone.set(shows(Standing::Gone));
            (standing, line)
        };
        if let Some(line) = line {
            tell(line);
        }
        standing
    }
}

fn tell(line: Line) {
    match line {
        Line::Began(Standing::Well) => {}
        Line::Began(Standing::Slow) => {
            tracing::warn!("the control plane is slow: what needs no permit is decided here");
        }
        Line::Began(Standing::Gone) => tracing::warn!(
            "the control plane is gone: everything is decided here, permits come from local shares"
        ),
        Line::Ended(Ended {
            lasted,
            decided,
            periods,
        }) => tracing::info!(?lasted, decided, periods, "the control plane decides again"),
    }
}
