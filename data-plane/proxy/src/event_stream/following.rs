//! What is remembered of a chat stream so that its turn can be continued (`sessions-and-streams.md` §4.5).
//!
//! The end of a turn that said `stop` and no word is kept back: it may not be the end.

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_core::stream::Turn;

use crate::passage::Passage;
use crate::stream::chunk::{Shape, end_of_turn};

/// So much of an end is kept back. What is longer is no mere end.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) shape: Option<Shape>,
    /// What goes on to the client ahead of what is in the passage.
    shown: VecDeque<Bytes>,
    shown_bytes: usize,
    /// What does not, once there is such an end.
    kept: Option<Vec<Bytes>>,
    kept_bytes: usize,
}

impl Following {
    /// The next bytes for the client.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let next = self.shown.pop_front()?;
        self.shown_bytes = self.shown_bytes.saturating_sub(next.len());
        Some(next)
    }

    /// How many the next bytes for the client are.
    pub(super) fn next_bytes(&self) -> Option<usize> {
        self.shown.front().map(Bytes::len)
    }

    /// Bytes that wait here for the client.
    pub(super) fn shown_bytes(&self) -> usize {
        self.shown_bytes
    }

    /// There is an end that is kept back.
    pub(super) fn keeps_back(&self) -> bool {
        self.kept.is_some()
    }

    /// Before the passage takes a chunk.
    pub(super) fn expects(&mut self, chunk: &[u8], passage: &mut Passage) {
        if self.shape.is_none() {
            self.shape = Shape::find(chunk);
        }
        // Afterwards there is nothing in it but what came with the chunk.
        while let Some(bytes) = passage.next() {
            self.show(bytes);
        }
    }

    /// After the passage took a chunk, or the end of the stream.
    pub(super) fn follows(&mut self, passage: &mut Passage) {
        let is_empty_stop = |turn: &mut Turn| turn.may_continue(0) && turn.has_ended();
        if self.kept.is_none() && passage.turn_mut().is_some_and(is_empty_stop) {
            let mut came = Vec::new();
            while let Some(bytes) = passage.next() {
                came.extend_from_slice(&bytes);
            }
            let mut came = Bytes::from(came);
            let kept = came.split_off(end_of_turn(&came).unwrap_or_default());
            self.show(came);
            self.kept = Some(Vec::new());
            self.keep(kept);
        }
        if self.kept.is_some() {
            while let Some(bytes) = passage.next() {
                self.keep(bytes);
            }
        }
        if self.kept_bytes > MAX_KEPT_BYTES {
            for bytes in self.take_kept() {
                self.show(bytes);
            }
            if let Some(turn) = passage.turn_mut() {
                turn.further_choice();
            }
        }
    }

    /// What was kept back.
    pub(super) fn take_kept(&mut self) -> Vec<Bytes> {
        self.kept_bytes = 0;
        self.kept.take().unwrap_or_default()
    }

    /// The end that was kept back is the end.
    pub(super) fn show_kept(&mut self) {
        for bytes in self.take_kept() {
            self.show(bytes);
        }
    }

    fn show(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.shown_bytes = self.shown_bytes.saturating_add(bytes.len());
            self.shown.push_back(bytes);
        }
    }

    fn keep(&mut self, bytes: Bytes) {
        self.kept_bytes = self.kept_bytes.saturating_add(bytes.len());
        self.kept.get_or_insert_default().push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::sse::Dialect;

    const REASONS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning\":\"x\"},\"finish_reason\":null}]}\n\n";
    const STOPS: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const TEXT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":null}]}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    /// What is shown and what is kept back of these chunks.
    fn pass(chunks: &[impl AsRef<str>]) -> (String, Option<String>) {
        let mut passage = Passage::new(Dialect::Chat).keeping(Turn::default());
        let mut following = Following::default();
        let mut shown = Vec::new();
        for chunk in chunks {
            let chunk = Bytes::copy_from_slice(chunk.as_ref().as_bytes());
            following.expects(&chunk, &mut passage);
            passage.take(chunk);
            following.follows(&mut passage);
        }
        while let Some(bytes) = following.next().or_else(|| passage.next()) {
            shown.extend_from_slice(&bytes);
        }
        assert_eq!(following.shown_bytes(), 0);
        let kept = following
            .keeps_back()
            .then(|| following.take_kept().concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(shown), kept.map(text))
    }

    #[rstest]
    #[case::in_one_chunk(vec![[REASONS, STOPS, DONE].concat()])]
    #[case::event_by_event(vec![REASONS.into(), STOPS.into(), DONE.into()])]
    #[case::in_the_middle_of_an_event(vec![
        [REASONS, STOPS.split_at(40).0].concat(),
        [STOPS.split_at(40).1, DONE].concat(),
    ])]
    fn the_end_of_a_turn_without_a_word_is_kept_back(#[case] chunks: Vec<String>) {
        let expected = (REASONS.to_owned(), Some([STOPS, DONE].concat()));
        assert_eq!(pass(&chunks), expected);
    }

    #[rstest]
    #[case::with_text(&[REASONS, TEXT, STOPS, DONE])]
    #[case::without_reasoning(&[STOPS, DONE])]
    #[case::unfinished(&[REASONS])]
    fn everything_else_is_shown(#[case] chunks: &[&str]) {
        assert_eq!(pass(chunks), (chunks.concat(), None));
    }

    #[test]
    fn what_is_too_long_for_an_end_is_shown() {
        let long = format!(": {}\n\n", "x".repeat(MAX_KEPT_BYTES));
        let chunks = [REASONS, STOPS, &long, DONE];
        assert_eq!(pass(&chunks), (chunks.concat(), None));
    }
}
