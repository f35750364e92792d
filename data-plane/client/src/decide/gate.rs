//! When the control plane is not even asked: after some questions in a row without an answer, decisions are
//! made here at once, and one question in a while finds out whether it is back (`architecture.md` §2).

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The gate. Every question that passes it ends in [`Gate::answered`] or [`Gate::unanswered`].
#[derive(Debug)]
pub(crate) struct Gate {
    threshold: u32,
    every: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    unanswered: u32,
    next_try: Option<Instant>,
}

impl Gate {
    /// Shuts after `threshold` questions in a row without an answer and then lets one pass `every` so often.
    pub(crate) fn new(threshold: u32, every: Duration) -> Self {
        Self {
            threshold,
            every,
            state: Mutex::default(),
        }
    }

    /// Whether the control plane is to be asked now.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.unanswered < self.threshold {
            return true;
        }
        if state.next_try.is_some_and(|next_try| now < next_try) {
            return false;
        }
        state.next_try = Some(now + self.every);
        true
    }

    pub(crate) fn answered(&self) {
        *self.state.lock() = State::default();
    }

    pub(crate) fn unanswered(&self, now: Instant) {
        let mut state = self.state.lock();
        state.unanswered = state.unanswered.saturating_add(1);
        if state.unanswered == self.threshold {
            state.next_try = Some(now + self.every);
        }
    }

    /// Decisions are made here for now.
    pub(crate) fn is_shut(&self) -> bool {
        self.state.lock().unanswered >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_silences_shut_it_and_one_question_in_a_while_passes() {
        let ms = Duration::from_millis;
        let gate = Gate::new(3, ms(500));
        let start = Instant::now();
        for _ in 0..3 {
            assert!(gate.admits(start));
            gate.unanswered(start);
        }
        assert!(gate.is_shut());
        assert!(!gate.admits(start));
        assert!(!gate.admits(start + ms(499)));
        assert!(gate.admits(start + ms(500)));
        assert!(
            !gate.admits(start + ms(501)),
            "the try is one, not all that come while it lasts"
        );
        gate.unanswered(start + ms(550));
        assert!(!gate.admits(start + ms(999)));
        assert!(gate.admits(start + ms(1_000)));
        gate.answered();
        assert!(gate.admits(start + ms(1_001)) && gate.admits(start + ms(1_001)));
    }

    #[test]
    fn an_answer_in_between_starts_the_count_over() {
        let gate = Gate::new(3, Duration::from_millis(500));
        let now = Instant::now();
        for _ in 0..5 {
            gate.unanswered(now);
            gate.unanswered(now);
            gate.answered();
        }
        assert!(!gate.is_shut());
    }
}
