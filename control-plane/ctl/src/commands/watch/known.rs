//! What a watch has told lately. Events have no number, so that what a list holds is told apart by everything it says.

use std::collections::VecDeque;

use tidegate_proto::admin::v1::Event;

/// So much earlier than the newest event one may have happened that is stored only later, in ms.
const LATE_MS: u64 = 60_000;
/// Most events that are remembered.
const MAX_KNOWN: usize = 4_096;

/// The events of the last time.
#[derive(Debug, Default)]
pub(super) struct Known {
    events: VecDeque<Event>,
    newest: u64,
    /// Told from the list that filled the last gap; the watch that had begun before may tell them, too.
    filled: Vec<Event>,
}

impl Known {
    /// From when on a list has all that may not be known, in ms since the Unix epoch.
    pub(super) fn since(&self) -> u64 {
        self.newest.saturating_sub(LATE_MS)
    }

    /// It happened not before this, so that what is much older is not asked for.
    pub(super) fn begin_at(&mut self, newest: u64) {
        self.newest = self.newest.max(newest);
    }

    /// It is told, or was there before.
    pub(super) fn note(&mut self, event: Event) {
        self.begin_at(event.at_unix_ms);
        self.events.push_back(event);
        let since = self.since();
        self.events.retain(|it| it.at_unix_ms >= since);
        while self.events.len() > MAX_KNOWN {
            self.events.pop_front();
        }
    }

    /// What of a list, newest first, is not known, oldest first.
    pub(super) fn news(&mut self, listed: Vec<Event>) -> Vec<Event> {
        let mut known: Vec<&Event> = self.events.iter().collect();
        let mut news = Vec::new();
        for event in listed.into_iter().rev() {
            match known.iter().position(|it| **it == event) {
                // Two that say the same are two.
                Some(place) => {
                    known.swap_remove(place);
                }
                None => news.push(event),
            }
        }
        self.filled.clone_from(&news);
        news
    }

    /// Whether the watch tells what the list had already. It does so once.
    pub(super) fn was_filled(&mut self, event: &Event) -> bool {
        let place = self.filled.iter().position(|it| it == event);
        place.map(|place| self.filled.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_unix_ms: u64, description: &str) -> Event {
        Event {
            at_unix_ms,
            description: description.to_owned(),
            ..Event::default()
        }
    }

    #[test]
    fn a_gap_is_filled_with_what_is_not_known_in_order_and_told_once() {
        let mut known = Known::default();
        known.note(event(100_000, "a"));
        known.note(event(100_001, "b"));
        assert_eq!(known.since(), 40_001);
        // One that happened before was stored late.
        let listed = vec![
            event(100_003, "d"),
            event(100_001, "b"),
            event(100_000, "late"),
            event(100_000, "a"),
        ];
        let news = known.news(listed);
        assert_eq!(news, [event(100_000, "late"), event(100_003, "d")]);
        assert!(!known.was_filled(&event(100_004, "e")));
        assert!(known.was_filled(&event(100_003, "d")));
        assert!(!known.was_filled(&event(100_003, "d")));
    }

    #[test]
    fn of_two_that_say_the_same_one_may_be_new() {
        let mut known = Known::default();
        known.note(event(5, "a"));
        let news = known.news(vec![event(5, "a"), event(5, "a")]);
        assert_eq!(news, [event(5, "a")]);
    }

    #[test]
    fn what_is_remembered_is_bounded_in_time_and_number() {
        let mut known = Known::default();
        known.note(event(0, "old"));
        known.note(event(LATE_MS + 1, "new"));
        assert_eq!(known.events, [event(LATE_MS + 1, "new")]);
        for number in 0..=MAX_KNOWN {
            known.note(event(LATE_MS + 2, &number.to_string()));
        }
        assert_eq!(known.events.len(), MAX_KNOWN);
    }
}
