//! Requests that a client sends twice (`sessions-and-streams.md` §5.1).
//!
//! A client that gives a request a name, in `Idempotency-Key`, wants it done once. While the first request of a name
//! runs, a second one waits for its answer; for a short while after the end it is given the same answer again. Nothing
//! is kept of answers that are no success: a client that tries again after those means it. A request of the same name
//! with another content is a mistake, and said to be one. Streams are not kept: a second one is refused while the first
//! runs.
//!
//! Everything is limited. At a limit a request is simply not remembered, and a repetition of it is sent like any
//! other. The first request of a name may end without an answer (its client left); then it never was.
//!
//! ```text
//!  (unknown) --enter--> running --end, answer--> kept --window passes--> (unknown)
//!                          \--end, none--> (unknown)
//! ```

use std::collections::{BTreeMap, VecDeque};

/// How much is remembered, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// How long an answer is kept, in ms.
    pub window_ms: u64,
    /// Names that are known at once, running ones included.
    pub names: usize,
    /// Size of all kept answers, in bytes.
    pub bytes: usize,
    /// Size of the largest answer that is kept, in bytes.
    pub answer_bytes: usize,
}

impl Default for WindowLimits {
    fn default() -> Self {
        Self {
            window_ms: 5_000,
            names: 10_000,
            bytes: 32 * 1024 * 1024,
            answer_bytes: 1024 * 1024,
        }
    }
}

/// Names a running request; a later one of the same name has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// What a request with a name is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered<H, A> {
    /// It is the first: it runs, and [`Window::end`] must be told of its end.
    First(Ticket),
    /// The first one runs. Its handle was given when it entered.
    Runs(H),
    /// The first one has this answer.
    Answered(A),
    /// The name is that of another request.
    Other,
    /// As many names are known as may be: it runs, unknown.
    Full,
}

/// What is remembered by name `K`: a handle `H` of what runs, an answer `A` of what has ended.
#[derive(Debug)]
pub struct Window<K, H, A> {
    limits: WindowLimits,
    entries: BTreeMap<K, Entry<H, A>>,
    /// When answers are to be forgotten, in order, all having been kept for the same time.
    kept: VecDeque<(u64, K, Ticket)>,
    kept_bytes: usize,
    next: u64,
}

#[derive(Debug)]
struct Entry<H, A> {
    ticket: Ticket,
    content: u64,
    state: State<H, A>,
}

#[derive(Debug)]
enum State<H, A> {
    Running(H),
    Kept { answer: A, bytes: usize },
}

impl<K: Ord + Clone, H: Clone, A: Clone> Window<K, H, A> {
    /// An empty one.
    #[must_use]
    pub fn new(limits: WindowLimits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            next: 0,
        }
    }

    /// A request of this name begins. `content` tells requests apart that differ in more than the name; `handle` is for
    /// those that come while it runs. `now_ms` is of a clock that never goes back.
    pub fn enter(&mut self, name: K, content: u64, handle: H, now_ms: u64) -> Entered<H, A> {
        self.forget(now_ms);
        if let Some(entry) = self.entries.get(&name) {
            return match &entry.state {
                _ if entry.content != content => Entered::Other,
                State::Running(handle) => Entered::Runs(handle.clone()),
                State::Kept { answer, .. } => Entered::Answered(answer.clone()),
            };
        }
        if self.entries.len() >= self.limits.names {
            return Entered::Full;
        }
        let ticket = Ticket(self.next);
        self.next = self.next.wrapping_add(1);
        let entry = Entry {
            ticket,
            content,
            state: State::Running(handle),
        };
        self.entries.insert(name, entry);
        Entered::First(ticket)
    }

    /// The request of this name and ticket has ended, with an answer of so many bytes that is worth keeping, or none.
    /// True when the answer is kept.
    pub fn end(
        &mut self,
        name: &K,
        ticket: Ticket,
        answer: Option<(A, usize)>,
        now_ms: u64,
    ) -> bool {
        self.forget(now_ms);
        let Some(entry) = self.entries.get_mut(name) else {
            return false;
        };
        if entry.ticket != ticket || !matches!(entry.state, State::Running(_)) {
            return false;
        }
        let room = self.limits.bytes.saturating_sub(self.kept_bytes);
        let most = room.min(self.limits.answer_bytes);
        let Some((answer, bytes)) = answer.filter(|(_, bytes)| *bytes <= most) else {
            self.entries.remove(name);
            return false;
        };
        entry.state = State::Kept { answer, bytes };
        self.kept_bytes = self.kept_bytes.saturating_add(bytes);
        let until = now_ms.saturating_add(self.limits.window_ms);
        self.kept.push_back((until, name.clone(), ticket));
        true
    }

    /// Forgets answers whose time has passed.
    fn forget(&mut self, now_ms: u64) {
        while let Some((_, name, ticket)) = self.kept.pop_front_if(|(until, ..)| *until <= now_ms) {
            let due = |entry: &Entry<H, A>| entry.ticket == ticket;
            if self.entries.get(&name).is_some_and(due)
                && let Some(Entry {
                    state: State::Kept { bytes, .. },
                    ..
                }) = self.entries.remove(&name)
            {
                self.kept_bytes = self.kept_bytes.saturating_sub(bytes);
            }
        }
    }

    /// Names that are known.
    #[must_use]
    pub fn names(&self) -> usize {
        self.entries.len()
    }

    /// Size of all kept answers, in bytes.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    type Tested = Window<&'static str, u8, &'static str>;

    fn window() -> Tested {
        Window::new(WindowLimits {
            window_ms: 5_000,
            names: 2,
            bytes: 10,
            answer_bytes: 6,
        })
    }

    fn first(window: &mut Tested, name: &'static str, now_ms: u64) -> Ticket {
        match window.enter(name, 1, 7, now_ms) {
            Entered::First(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_repetition_waits_and_is_then_given_the_answer_for_the_window() {
        let mut window = window();
        let ticket = first(&mut window, "a", 0);
        assert_eq!(window.enter("a", 1, 8, 900_000), Entered::Runs(7));
        assert!(window.end(&"a", ticket, Some(("yes", 3)), 1_000_000));
        assert_eq!(window.enter("a", 1, 8, 1_004_999), Entered::Answered("yes"));
        assert!(matches!(
            window.enter("a", 1, 8, 1_005_000),
            Entered::First(_)
        ));
    }

    #[test]
    fn another_content_under_the_same_name_is_a_mistake_until_it_is_forgotten() {
        let mut window = window();
        let ticket = first(&mut window, "a", 0);
        assert_eq!(window.enter("a", 2, 8, 0), Entered::Other);
        window.end(&"a", ticket, Some(("yes", 3)), 0);
        assert_eq!(window.enter("a", 2, 8, 4_999), Entered::Other);
        assert!(matches!(window.enter("a", 2, 8, 5_000), Entered::First(_)));
    }

    #[test]
    fn what_ended_without_an_answer_never_was() {
        let mut window = window();
        let ticket = first(&mut window, "a", 0);
        assert!(!window.end(&"a", ticket, None, 1));
        let again = first(&mut window, "a", 2);
        assert!(!window.end(&"a", ticket, Some(("late", 4)), 3), "another's");
        assert_eq!(window.enter("a", 1, 8, 4), Entered::Runs(7));
        assert!(window.end(&"a", again, Some(("yes", 3)), 5));
        assert!(!window.end(&"a", again, Some(("twice", 5)), 6));
        assert_eq!((window.names(), window.kept_bytes()), (1, 3));
    }

    #[rstest]
    #[case::room(6, 4, true)]
    #[case::none_left(6, 5, false)]
    #[case::too_large(0, 7, false)]
    #[case::the_largest(0, 6, true)]
    fn answers_are_kept_while_there_is_room(
        #[case] before: usize,
        #[case] bytes: usize,
        #[case] kept: bool,
    ) {
        let mut window = window();
        let ticket = first(&mut window, "a", 0);
        assert!(window.end(&"a", ticket, Some(("before", before)), 0));
        let ticket = first(&mut window, "b", 0);
        assert_eq!(window.end(&"b", ticket, Some(("yes", bytes)), 0), kept);
        let after = if kept { before + bytes } else { before };
        assert_eq!(window.kept_bytes(), after);
    }

    #[test]
    fn beyond_so_many_names_nothing_is_remembered() {
        let mut window = window();
        let ticket = first(&mut window, "a", 0);
        first(&mut window, "b", 0);
        assert_eq!(window.enter("c", 1, 8, 0), Entered::Full);
        assert_eq!(window.enter("a", 1, 8, 0), Entered::Runs(7));
        window.end(&"a", ticket, None, 0);
        first(&mut window, "c", 0);
        assert_eq!(window.names(), 2);
    }

    proptest! {
        #[test]
        fn no_limit_is_ever_passed_and_everything_is_forgotten(
            steps in prop::collection::vec((0..4_usize, any::<bool>(), 0..8_usize, 0..3_000_u64), 0..200),
        ) {
            let mut window = window();
            let mut running: Vec<(&str, Ticket)> = Vec::new();
            let mut now_ms = 0;
            for (name, ends, bytes, later) in steps {
                now_ms += later;
                if ends && let Some((name, ticket)) = running.pop() {
                    window.end(&name, ticket, (bytes < 7).then_some(("yes", bytes)), now_ms);
                } else {
                    let name = ["a", "b", "c", "d"][name];
                    if let Entered::First(ticket) = window.enter(name, 1, 7, now_ms) {
                        running.push((name, ticket));
                    }
                }
                prop_assert!(window.names() <= 2 && window.kept_bytes() <= 10);
                prop_assert!(window.kept.len() + running.len() == window.names());
            }
            for (name, ticket) in running {
                window.end(&name, ticket, None, now_ms);
            }
            window.forget(now_ms + 5_000);
            prop_assert_eq!((window.names(), window.kept_bytes()), (0, 0));
        }
    }
}
