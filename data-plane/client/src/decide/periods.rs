//! What an operator is told of the times in which decisions are made here: one line when such a time begins, and why,
//! and one when it ends.
//!
//! A control plane on the edge of its limit makes many short ones. At most one beginning is told in a second, and an end
//! only after its beginning; what was left out is in the numbers of the next end.

use std::time::Duration;

use tokio::time::Instant;

use super::contact::Standing;

/// Pause between two beginnings that are told.
const PAUSE: Duration = Duration::from_secs(1);

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Decisions are made here from now on, or for another reason than so far.
    Began(Standing),
    /// They are no longer.
    Ended(Ended),
}

/// What was, since the last end that was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// For how long decisions were made here.
    pub(super) lasted: Duration,
    /// How many.
    pub(super) decided: u64,
    /// In how many periods.
    pub(super) periods: u64,
}

/// The periods.
#[derive(Debug, Default)]
pub(super) struct Periods {
    /// The present one: its beginning, and for which reason it goes on.
    present: Option<(Instant, Standing)>,
    /// The beginning of the present one was told.
    is_told: bool,
    told_at: Option<Instant>,
    untold: Ended,
}

impl Periods {
    /// Takes notice of how the control plane stands, and says what to tell.
    pub(super) fn note(&mut self, standing: Standing, now: Instant) -> Option<Line> {
        match (self.present, standing) {
            (None, Standing::Well) => None,
            (Some((_, why)), standing) if why == standing => None,
            (Some((since, _)), Standing::Well) => {
                self.present = None;
                let untold = &mut self.untold;
                untold.lasted += now.saturating_duration_since(since);
                untold.periods = untold.periods.saturating_add(1);
                let is_told = std::mem::take(&mut self.is_told);
                is_told.then(|| Line::Ended(std::mem::take(&mut self.untold)))
            }
            (present, why) => {
                let since = present.map_or(now, |(since, _)| since);
                self.present = Some((since, why));
                let is_soon = self
                    .told_at
                    .is_some_and(|told_at| now.saturating_duration_since(told_at) < PAUSE);
                if is_soon {
                    return None;
                }
                self.told_at = Some(now);
                self.is_told = true;
                Some(Line::Began(why))
            }
        }
    }

    /// A decision was made here.
    pub(super) fn decided(&mut self) {
        if self.present.is_some() {
            self.untold.decided = self.untold.decided.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    #[test]
    fn a_period_is_told_when_it_begins_changes_and_ends() {
        let start = Instant::now();
        let mut periods = Periods::default();
        periods.decided();
        assert_eq!(periods.note(Standing::Well, start), None);
        assert_eq!(
            periods.note(Standing::Slow, start),
            Some(Line::Began(Standing::Slow))
        );
        assert_eq!(periods.note(Standing::Slow, start + ms(10)), None);
        periods.decided();
        periods.decided();
        assert_eq!(
            periods.note(Standing::Gone, start + ms(1_500)),
            Some(Line::Began(Standing::Gone))
        );
        let ended = Ended {
            lasted: ms(4_000),
            decided: 2,
            periods: 1,
        };
        assert_eq!(
            periods.note(Standing::Well, start + ms(4_000)),
            Some(Line::Ended(ended))
        );
    }

    #[test]
    fn many_short_ones_are_told_together() {
        let start = Instant::now();
        let mut periods = Periods::default();
        let mut lines = Vec::new();
        for step in 0..12 {
            let now = start + ms(step * 100);
            let standing = if step % 2 == 0 {
                Standing::Slow
            } else {
                Standing::Well
            };
            lines.extend(periods.note(standing, now).map(|line| (step, line)));
            periods.decided();
        }
        let ended = |periods| {
            Line::Ended(Ended {
                lasted: ms(100 * periods),
                decided: periods,
                periods,
            })
        };
        assert_eq!(
            lines,
            [
                (0, Line::Began(Standing::Slow)),
                (1, ended(1)),
                (10, Line::Began(Standing::Slow)),
                (11, ended(5)),
            ]
        );
    }
}
