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
    /// How those stand that look notes up: the durable store may be silent while decisions are made.
    notes: Mutex<Contact>,
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
            notes: Mutex::default(),
            metrics,
        }
    }

    /// Whether a note is to be looked up: a request waits for it. Not while the control plane is not well, and once in a
    /// while when nobody looked one up several times in a row.
    pub(crate) fn admits_note(&self, now: Instant) -> bool {
        self.standing(now) == Standing::Well && self.notes.lock().admits(&self.patience, now)
    }

    /// A note was looked up, or was not in time.
    pub(crate) fn looked_up_note(&self, answered: bool, now: Instant) {
        let mut notes = self.notes.lock();
        if answered {
            notes.answered(now);
        } else {
            notes.missed(&self.patience, now);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const EVERY: Duration = Duration::from_millis(500);

    fn gate() -> Gate {
        let patience = Patience {
            threshold: 3,
            every: EVERY,
            silence: Duration::from_secs(3),
        };
        Gate::new(patience, ClientMetrics::default())
    }

    #[test]
    fn notes_that_nobody_finds_are_looked_up_once_in_a_while() {
        let (gate, now) = (gate(), Instant::now());
        for _ in 0..3 {
            assert!(gate.admits_note(now));
            gate.looked_up_note(false, now);
        }
        assert!(!gate.admits_note(now));
        assert!(gate.admits(now), "decisions are another matter");
        assert!(gate.admits_note(now + EVERY));
        assert!(!gate.admits_note(now + EVERY));
        gate.looked_up_note(true, now + EVERY);
        assert!(gate.admits_note(now + EVERY));
    }

    #[test]
    fn nobody_waits_for_a_note_while_the_control_plane_is_not_well() {
        let (gate, now) = (gate(), Instant::now());
        for _ in 0..3 {
            gate.missed(now);
        }
        assert!(!gate.admits_note(now + EVERY));
        gate.answered(now + EVERY);
        assert!(gate.admits_note(now + EVERY));
    }
}
