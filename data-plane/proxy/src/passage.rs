//! Bytes of a stream between upstream and client: whole events go on at once, the beginning of an unfinished
//! one waits for its end.
//!
//! Nothing is copied and nothing is changed. Because a client is only ever shown whole events, a stream that
//! breaks inside one can still be ended with an error event that the client can read (decision 52). An event
//! larger than [`MAX_EVENT_BYTES`] is the exception: it goes on in pieces, since it must not pile up here.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::sse::{Class, Dialect, End, Judge, MAX_EVENT_BYTES, Scanner, Tokens};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Passage {
    dialect: Dialect,
    scanner: Scanner,
    judge: Judge,
    /// Whole events, ready for the client.
    whole: VecDeque<Bytes>,
    whole_bytes: usize,
    /// The beginning of an event.
    begun: Vec<Bytes>,
    begun_bytes: usize,
    /// The client has been handed the beginning of an event.
    inside: bool,
    ready: bool,
}

impl Passage {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            scanner: Scanner::default(),
            judge: Judge::new(dialect),
            whole: VecDeque::new(),
            whole_bytes: 0,
            begun: Vec::new(),
            begun_bytes: 0,
            inside: false,
            ready: false,
        }
    }

    /// Takes the next bytes of the upstream. True when they were progress.
    pub(crate) fn take(&mut self, mut chunk: Bytes) -> bool {
        let mut progressed = false;
        let (judge, ready) = (&mut self.judge, &mut self.ready);
        let boundary = self.scanner.feed(&chunk, &mut |event| {
            let seen = judge.see(&event);
            // What follows an error does not make a stream good.
            *ready |= seen.ready && judge.error.is_none();
            progressed |= matches!(seen.class, Class::Useful | Class::Protected);
        });
        if let Some(boundary) = boundary {
            let whole = chunk.split_to(boundary.min(chunk.len()));
            self.release();
            self.hand_on(whole);
            self.inside = false;
        }
        if !chunk.is_empty() {
            self.begun_bytes = self.begun_bytes.saturating_add(chunk.len());
            self.begun.push(chunk);
        }
        let large = self.begun_bytes > MAX_EVENT_BYTES;
        if large || (self.inside && self.begun_bytes > 0) {
            self.release();
            self.inside = true;
            self.ready |= self.judge.error.is_none();
            // So large an event is a useful one, and its pieces are progress.
            progressed = true;
        }
        progressed
    }

    /// The upstream ended its stream. An event that lacks only its blank line counts and goes on as it is.
    pub(crate) fn finish(&mut self) {
        let (judge, ready) = (&mut self.judge, &mut self.ready);
        self.scanner.finish(&mut |event| {
            *ready |= judge.see(&event).ready && judge.error.is_none();
        });
        if self.judge.end > End::Open {
            self.release();
        }
    }

    fn release(&mut self) {
        for piece in std::mem::take(&mut self.begun) {
            self.hand_on(piece);
        }
        self.begun_bytes = 0;
    }

    fn hand_on(&mut self, piece: Bytes) {
        self.whole_bytes = self.whole_bytes.saturating_add(piece.len());
        self.whole.push_back(piece);
    }

    /// The next bytes for the client.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        let next = self.whole.pop_front()?;
        self.whole_bytes = self.whole_bytes.saturating_sub(next.len());
        Some(next)
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

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(crate) fn sequence(&self) -> Option<u64> {
        self.judge.sequence
    }

    /// The client was handed the beginning of an event that will not be finished.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What reached the client, and what was learned.
    fn pass(chunks: &[&[u8]], finish: bool) -> (Vec<u8>, End, Tokens, bool, bool) {
        let mut passage = Passage::new(Dialect::Chat);
        let mut client = Vec::new();
        for chunk in chunks {
            passage.take(Bytes::copy_from_slice(chunk));
            while let Some(bytes) = passage.next() {
                client.extend_from_slice(&bytes);
            }
        }
        if finish {
            passage.finish();
            while let Some(bytes) = passage.next() {
                client.extend_from_slice(&bytes);
            }
        }
        let learned = (passage.end(), passage.tokens());
        (
            client,
            learned.0,
            learned.1,
            passage.is_ready(),
            passage.has_error(),
        )
    }

    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\n\n\
        : comment\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n\
        data: [DONE]\n\n";

    #[test]
    fn an_unfinished_event_waits() {
        let (client, end, ..) = pass(&[b"data: a\n\ndata: {\"half"], false);
        assert_eq!(client, b"data: a\n\n");
        assert_eq!(end, End::Open);
    }

    #[test]
    fn an_unfinished_event_of_an_ended_stream_is_dropped() {
        let (client, end, ..) = pass(&[b"data: {\"a\":1}\n\ndata: {\"half"], true);
        assert_eq!(client, b"data: {\"a\":1}\n\n");
        assert_eq!(end, End::Open);
    }

    #[test]
    fn a_last_event_without_its_blank_line_goes_on() {
        let (client, end, ..) = pass(&[b"data: {\"a\":1}\n\ndata: [DONE]"], true);
        assert_eq!(client, b"data: {\"a\":1}\n\ndata: [DONE]");
        assert_eq!(end, End::Closed);
    }

    #[test]
    fn an_event_too_large_to_hold_goes_on_in_pieces() {
        let piece = Bytes::from(vec![b'x'; 100_000]);
        let mut passage = Passage::new(Dialect::Chat);
        passage.take(Bytes::from_static(b"data: "));
        let mut passed = 0;
        for _ in 0..10 {
            passage.take(piece.clone());
            while let Some(bytes) = passage.next() {
                passed += bytes.len();
            }
        }
        assert_eq!(passed, 6 + 10 * piece.len());
        assert!(passage.is_inside());
        passage.take(Bytes::from_static(b"\n\n"));
        assert!(!passage.is_inside());
    }

    #[test]
    fn nothing_after_an_error_makes_a_stream_ready() {
        let text = "data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned() + CHAT;
        let (_, _, _, ready, error) = pass(&[text.as_bytes()], true);
        assert!(error && !ready);
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_client_the_same_bytes(
            cuts in prop::collection::vec(0..CHAT.len(), 0..20),
        ) {
            let bytes = CHAT.as_bytes();
            let mut cuts = cuts;
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let passed = pass(&chunks, true);
            prop_assert_eq!(passed.0.as_slice(), bytes);
            prop_assert_eq!(passed, pass(&[bytes], true));
        }

        #[test]
        fn wherever_a_stream_breaks_the_client_has_whole_events(
            cut in 0..CHAT.len(),
            size in 1_usize..40,
        ) {
            let chunks: Vec<&[u8]> = CHAT.as_bytes()[..cut].chunks(size).collect();
            let (client, ..) = pass(&chunks, false);
            prop_assert!(CHAT.as_bytes().starts_with(&client));
            let whole = client.is_empty()
                || client.ends_with(b"\n\n")
                || client.ends_with(b"\r\n\r");
            prop_assert!(whole || client.ends_with(b"\r\n\r\n"), "{client:?}");
        }
    }
}
