//! How the control plane stands: well, slow, or gone.
//!
//! A question without an answer says little by itself: the control plane may be busy, this machine may be, or nobody is
//! there. What tells them apart is whether anything else is heard. Every replica that is followed sends a heartbeat a
//! second, and answers come that nobody waits for any more.
//!
//! | standing | when |
//! |---|---|
//! | well | fewer than [`Patience::threshold`] questions in a row had no answer in time |
//! | gone | as many had none, and no replica could be reached, or nothing was heard, or nothing was answered even late, for [`Patience::silence`] |
//! | slow | as many had none, and none of this holds |
//!
//! An answer in time makes it well again; nothing else does. While it is not well, one question passes every
//! [`Patience::every`] to find out (`architecture.md` §2).

use std::time::Duration;

use tokio::time::Instant;

/// How the control plane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It answers.
    Well,
    /// It is there and does not answer in time.
    Slow,
    /// Nobody is there, or whoever is there answers nothing.
    Gone,
}

/// When it stops being well, and when it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Questions in a row without an answer in time after which it is not well.
    pub(crate) threshold: u32,
    /// How often one question passes while it is not.
    pub(crate) every: Duration,
    /// How long nothing may be heard, or answered, before it is gone.
    pub(crate) silence: Duration,
}

/// What was heard of it. Every question that was admitted ends in one of [`Contact::answered`], [`Contact::missed`]
/// and [`Contact::unreached`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contact {
    /// Questions in a row without an answer in time.
    missed: u32,
    /// Those of them for which no replica could be reached.
    unreached: u32,
    /// The last sign of life of any kind.
    heard_at: Option<Instant>,
    /// When the first question was missed since one was answered, be it late.
    unanswered_since: Option<Instant>,
    next_try: Option<Instant>,
}

impl Contact {
    /// How it stands now.
    pub(super) fn standing(&self, patience: &Patience, now: Instant) -> Standing {
        if self.missed < patience.threshold {
            return Standing::Well;
        }
        let is_over = |since: Instant| now.saturating_duration_since(since) >= patience.silence;
        let is_gone = self.unreached >= patience.threshold
            || self.heard_at.is_none_or(is_over)
            || self.unanswered_since.is_some_and(is_over);
        if is_gone {
            Standing::Gone
        } else {
            Standing::Slow
        }
    }

    /// Whether a question that could do without the control plane is put to it.
    pub(super) fn admits(&mut self, patience: &Patience, now: Instant) -> bool {
        if self.missed < patience.threshold {
            return true;
        }
        if self.next_try.is_some_and(|next_try| now < next_try) {
            return false;
        }
        self.next_try = Some(now + patience.every);
        true
    }

    /// A question was answered in time.
    pub(super) fn answered(&mut self, now: Instant) {
        *self = Self {
            heard_at: Some(now),
            ..Self::default()
        };
    }

    /// A question was answered, but too late.
    pub(super) fn answered_late(&mut self, now: Instant) {
        self.heard_at = Some(now);
        self.unanswered_since = None;
        self.unreached = 0;
    }

    /// Something else came from it: a heartbeat, a change of state.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = Some(now);
    }

    /// A question was not answered in time.
    pub(super) fn missed(&mut self, patience: &Patience, now: Instant) {
        self.missed = self.missed.saturating_add(1);
        self.unanswered_since.get_or_insert(now);
        if self.missed == patience.threshold {
            self.next_try = Some(now + patience.every);
        }
    }

    /// No replica could be asked.
    pub(super) fn unreached(&mut self, patience: &Patience, now: Instant) {
        self.unreached = self.unreached.saturating_add(1);
        self.missed(patience, now);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PATIENCE: Patience = Patience {
        threshold: 3,
        every: Duration::from_millis(500),
        silence: Duration::from_secs(3),
    };

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    /// What happens, by letters: `a`nswered, answered `l`ate, `h`eard, `m`issed, `u`nreached.
    fn after(events: &[(u64, char)], at: u64) -> Standing {
        let start = Instant::now();
        let mut contact = Contact::default();
        for (time, event) in events {
            let now = start + ms(*time);
            match event {
                'a' => contact.answered(now),
                'l' => contact.answered_late(now),
                'h' => contact.heard(now),
                'm' => contact.missed(&PATIENCE, now),
                'u' => contact.unreached(&PATIENCE, now),
                other => panic!("{other} is no event"),
            }
        }
        contact.standing(&PATIENCE, start + ms(at))
    }

    #[rstest]
    #[case::nothing_asked(&[], 60_000, Standing::Well)]
    #[case::two_missed(&[(0, 'h'), (1, 'm'), (2, 'm')], 60_000, Standing::Well)]
    #[case::three_missed(&[(0, 'h'), (1, 'm'), (2, 'm'), (3, 'm')], 3, Standing::Slow)]
    #[case::an_answer_starts_the_count_over(&[(0, 'm'), (0, 'm'), (1, 'a'), (2, 'm'), (3, 'm')], 3, Standing::Well)]
    #[case::never_heard(&[(0, 'm'), (1, 'm'), (2, 'm')], 2, Standing::Gone)]
    #[case::silent(&[(0, 'a'), (1, 'm'), (2, 'm'), (2_999, 'm')], 2_999, Standing::Slow)]
    #[case::silent_too_long(&[(0, 'a'), (1, 'm'), (2, 'm'), (2_999, 'm')], 3_000, Standing::Gone)]
    #[case::heard_again(&[(0, 'a'), (1_500, 'm'), (1_600, 'm'), (2_999, 'm'), (4_000, 'h')], 4_000, Standing::Slow)]
    #[case::unreached(&[(0, 'h'), (1, 'u'), (2, 'u'), (3, 'u')], 3, Standing::Gone)]
    #[case::unreached_and_missed(&[(0, 'h'), (1, 'u'), (2, 'm'), (3, 'u')], 3, Standing::Slow)]
    #[case::a_heart_that_beats_is_no_answer(&[(1, 'u'), (2, 'u'), (3, 'u'), (4, 'h')], 4, Standing::Gone)]
    #[case::beats_and_answers_nothing(&[(0, 'm'), (1, 'm'), (2, 'm'), (3_000, 'h')], 3_000, Standing::Gone)]
    #[case::late_answers_are_answers(&[(0, 'm'), (1, 'm'), (2, 'm'), (2_900, 'l'), (2_950, 'm')], 5_800, Standing::Slow)]
    #[case::late_answers_do_not_make_it_well(&[(0, 'm'), (1, 'm'), (2, 'm'), (3, 'l')], 3, Standing::Slow)]
    #[case::reached_again(&[(1, 'u'), (2, 'u'), (3, 'u'), (4, 'l')], 4, Standing::Slow)]
    #[case::well_again(&[(1, 'u'), (2, 'u'), (3, 'u'), (4, 'a')], 60_000, Standing::Well)]
    fn what_was_heard_tells_how_it_stands(
        #[case] events: &[(u64, char)],
        #[case] at: u64,
        #[case] expected: Standing,
    ) {
        assert_eq!(after(events, at), expected);
    }

    #[test]
    fn while_it_is_not_well_one_question_passes_in_a_while() {
        let start = Instant::now();
        let mut contact = Contact::default();
        for _ in 0..3 {
            assert!(contact.admits(&PATIENCE, start));
            contact.missed(&PATIENCE, start);
        }
        let mut admits = |at| contact.admits(&PATIENCE, start + ms(at));
        assert!(!admits(0));
        assert!(!admits(499));
        assert!(admits(500));
        assert!(
            !admits(501),
            "the try is one, not all that come while it lasts"
        );
        contact.missed(&PATIENCE, start + ms(550));
        let mut admits = |at| contact.admits(&PATIENCE, start + ms(at));
        assert!(!admits(999));
        assert!(admits(1_000));
        contact.answered(start + ms(1_000));
        assert!(contact.admits(&PATIENCE, start + ms(1_001)));
        assert!(contact.admits(&PATIENCE, start + ms(1_001)));
    }
}
