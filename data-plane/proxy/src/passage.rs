//! Bytes of a stream between upstream and client: whole events go on at once, the beginning of an unfinished
//! one waits for its end.
//!
//! Nothing is changed, and only what crosses chunks is copied. Because a client is only ever shown whole events, a
//! stream that breaks inside one can still be ended with an error event that the client can read (decision 52). An event
//! larger than [`MAX_EVENT_BYTES`] is the exception: it goes on in pieces, since it must not pile up here.

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_core::stream::{Progress, Turn};

use crate::sse::{Class, Dialect, End, Judge, MAX_EVENT_BYTES, Scanner, Tokens, bar};

/// What one chunk brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// There was something useful or protected, so that idle time begins anew.
    pub(crate) progressed: bool,
    /// What the throughput watchdog sees of the chunk, which is the same to it as all events one by one.
    pub(crate) progress: [Progress; 3],
}

/// What the watchdog sees of the events of a chunk, however many they are. It judges once a chunk, so it matters how
/// much text there was, whether anything was protected, and whether it still is, but not how often that changed.
#[derive(Debug)]
struct Sum {
    useful_bytes: u64,
    was_protected: bool,
    last: Progress,
}

impl Sum {
    fn new() -> Self {
        Self {
            useful_bytes: 0,
            was_protected: false,
            last: Progress::Nothing,
        }
    }

    fn add(&mut self, progress: Progress) {
        match progress {
            Progress::Nothing | Progress::Useful { bytes: 0 } => {}
            Progress::Useful { bytes } => {
                self.useful_bytes = self.useful_bytes.saturating_add(bytes);
                self.last = Progress::Nothing;
            }
            Progress::Protected => {
                self.was_protected = true;
                self.last = progress;
            }
            Progress::ProtectedEnds => self.last = progress,
        }
    }

    fn total(self) -> [Progress; 3] {
        let before = if self.was_protected {
            Progress::Protected
        } else {
            Progress::Nothing
        };
        let bytes = self.useful_bytes;
        [before, Progress::Useful { bytes }, self.last]
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Passage {
    dialect: Dialect,
    scanner: Scanner,
    judge: Judge,
    /// Whole events, ready for the client.
    whole: VecDeque<Bytes>,
    whole_bytes: usize,
    ready: bool,
    /// The upstream ended its stream inside an event whose beginning went on.
    cut_short: bool,
    turn: Option<Turn>,
}

impl Passage {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            scanner: Scanner::default(),
            judge: Judge::new(dialect),
            whole: VecDeque::new(),
            whole_bytes: 0,
            ready: false,
            cut_short: false,
            turn: None,
        }
    }

    /// Also keeps what the events that go on to the client add to a chat turn.
    pub(crate) fn keeping(self, turn: Turn) -> Self {
        Self {
            turn: Some(turn),
            ..self
        }
    }

    /// The turn so far, if it is kept.
    pub(crate) fn turn_mut(&mut self) -> Option<&mut Turn> {
        self.turn.as_mut()
    }

    /// Takes the next bytes of the upstream.
    pub(crate) fn take(&mut self, mut chunk: Bytes) -> Taken {
        let mut progressed = false;
        let mut sum = Sum::new();
        let (judge, ready, turn) = (&mut self.judge, &mut self.ready, &mut self.turn);
        let passed = self.scanner.feed(&chunk, &mut |event| {
            let seen = judge.see(&event, turn.as_mut());
            sum.add(seen.progress);
            // What follows an error does not make a stream good.
            *ready |= seen.ready && judge.error.is_none();
            progressed |= matches!(seen.class, Class::Useful | Class::Protected);
        });
        self.hand_on(passed.kept);
        self.hand_on(chunk.split_to(passed.upto.min(chunk.len())));
        // So large an event says something, and its pieces are progress. What is not even data is nothing.
        if self.scanner.is_in_data() {
            self.ready |= self.judge.error.is_none();
            progressed = true;
            sum.add(Progress::Protected);
            if let Some(turn) = &mut self.turn {
                bar(turn);
            }
        }
        Taken {
            progressed,
            progress: sum.total(),
        }
    }

    /// The upstream ended its stream. An event that lacks only its blank line counts and goes on as it is.
    pub(crate) fn finish(&mut self) {
        self.cut_short |= self.scanner.is_inside();
        let (judge, ready, turn) = (&mut self.judge, &mut self.ready, &mut self.turn);
        let last = self.scanner.finish(&mut |event| {
            *ready |= judge.see(&event, None).ready && judge.error.is_none();
            if let (Some(turn), true) = (turn.as_mut(), judge.end > End::Open) {
                judge.retell(&event, turn);
            }
        });
        self.judge.finish();
        if self.judge.end > End::Open {
            self.hand_on(last);
        }
    }

    fn hand_on(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.whole_bytes = self.whole_bytes.saturating_add(piece.len());
            self.whole.push_back(piece);
        }
    }

    /// The next bytes for the client.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let next = self.whole.pop_front()?;
        self.whole_bytes = self.whole_bytes.saturating_sub(next.len());
        Some(next)
    }

    /// How many the next bytes for the client are.
    pub(crate) fn next_bytes(&self) -> Option<usize> {
        self.whole.front().map(Bytes::len)
    }

    /// Bytes that wait here for the client.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.whole_bytes
    }

    /// Drops the beginning of an event whose end will not come and of which nothing went on.
    pub(crate) fn drop_unfinished(&mut self) {
        self.scanner.drop_unfinished();
    }

    /// Drops what waits here.
    pub(crate) fn forget(&mut self) {
        self.whole.clear();
        self.whole_bytes = 0;
        self.scanner.drop_unfinished();
    }

    /// A ready event was seen, and no error before it.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// An error event was seen.
    pub(crate) fn has_error(&self) -> bool {
        self.judge.error.is_some()
    }

    /// The first error event, as an error body.
    pub(crate) fn take_error(&mut self) -> Option<Bytes> {
        self.judge.error.take()
    }

    /// Bytes that wait here: for the client, or for the end of their event.
    pub(crate) fn held_bytes(&self) -> usize {
        self.whole_bytes.saturating_add(self.scanner.kept_bytes())
    }

    /// More than one event's worth waits for the client.
    pub(crate) fn is_full(&self) -> bool {
        self.whole_bytes > MAX_EVENT_BYTES
    }

    pub(crate) fn end(&self) -> End {
        self.judge.end
    }

    pub(crate) fn tokens(&self) -> Tokens {
        self.judge.tokens
    }

    /// Bytes that the model wrote; `None` of a stream of which nothing was understood.
    pub(crate) fn written(&self) -> Option<u64> {
        self.judge.written()
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(crate) fn sequence(&self) -> Option<u64> {
        self.judge.sequence
    }

    /// The client was handed the beginning of an event that will not be finished.
    pub(crate) fn is_inside(&self) -> bool {
        self.cut_short || self.scanner.is_inside()
    }
}

#[cfg(test)]
mod tests;
