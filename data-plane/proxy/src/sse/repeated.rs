//! Events that differ from an earlier one in nothing but their text, which most events of a stream do.
//!
//! Reading JSON is most of what an event costs. But one that begins and ends as an earlier one did, with another text between
//! the same two quotation marks, means what that one meant: JSON is read from left to right, so everything up to the first
//! mark is read as it was, a text without a mark, a backslash or a control character ends at the second, and the rest is
//! read as it was again. So the judge keeps what surrounds the text of one event that carries nothing else, and looks at the
//! text alone when it comes again. Everything else is read.

use std::str;

use serde_json::value::RawValue;

use super::Event;

/// Surroundings that are longer are not kept: there is one of this for each stream.
const MAX_KEPT_BYTES: usize = 1_024;
/// Surroundings are kept so often. A stream that changes them with each event gains nothing from it.
const MAX_KEPT_TIMES: u8 = 4;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Repeated {
    /// Name of the event, data up to the text's first mark, and data from its second one on, one behind the other.
    kept: Box<[u8]>,
    name_bytes: u16,
    before_bytes: u16,
    times_left: u8,
}

impl Default for Repeated {
    fn default() -> Self {
        Self {
            kept: Box::default(),
            name_bytes: 0,
            before_bytes: 0,
            times_left: MAX_KEPT_TIMES,
        }
    }
}

impl Repeated {
    /// The text of an event that is like the one that was kept. Never empty.
    pub(super) fn text<'a>(&self, event: &Event<'a>) -> Option<&'a str> {
        let (name, before, behind) = self.parts()?;
        if event.name != name {
            return None;
        }
        let text = event.data.strip_prefix(before)?.strip_suffix(behind)?;
        let is_plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | 0..b' ');
        if text.is_empty() || !text.iter().all(is_plain) {
            return None;
        }
        str::from_utf8(text).ok()
    }

    /// Name, and what stands before and behind the text, if anything is kept.
    fn parts(&self) -> Option<(&[u8], &[u8], &[u8])> {
        let (name, data) = self.kept.split_at_checked(self.name_bytes.into())?;
        let (before, behind) = data.split_at_checked(self.before_bytes.into())?;
        (!before.is_empty()).then_some((name, before, behind))
    }

    fn is_around(&self, name: &[u8], before: &[u8], behind: &[u8]) -> bool {
        self.parts() == Some((name, before, behind))
    }

    /// Keeps what surrounds the text of this event, which carries nothing else. `text` was read from it.
    pub(super) fn keep(&mut self, event: &Event<'_>, text: &RawValue) {
        let Some((before, behind)) = around(event.data, text.get()) else {
            return;
        };
        // What is the same had a text that must be read.
        if self.times_left == 0 || self.is_around(event.name, before, behind) {
            return;
        }
        self.times_left = self.times_left.saturating_sub(1);
        let parts = [event.name, before, behind];
        let length = parts
            .iter()
            .map(|part| part.len())
            .fold(0, usize::saturating_add);
        if length > MAX_KEPT_BYTES {
            return;
        }
        let (Ok(name_bytes), Ok(before_bytes)) =
            (event.name.len().try_into(), before.len().try_into())
        else {
            return;
        };
        self.kept = parts.concat().into();
        (self.name_bytes, self.before_bytes) = (name_bytes, before_bytes);
    }
}

/// What stands before and behind a text in the data that it was read from; each with one of its marks.
fn around<'a>(data: &'a [u8], text: &str) -> Option<(&'a [u8], &'a [u8])> {
    let from = text.as_ptr().addr().checked_sub(data.as_ptr().addr())?;
    let behind = from.checked_add(text.len())?.checked_sub(1)?;
    let before = data.get(..from.checked_add(1)?)?;
    let behind = data.get(behind..)?;
    (before.last() == Some(&b'"') && behind.first() == Some(&b'"')).then_some((before, behind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use tidegate_core::stream::Turn;

    use crate::sse::{Dialect, Event, Judge};

    const NAMES: [&str; 3] = ["", "content_block_delta", "ping"];

    fn event<'a>(name: &'a str, data: &'a [u8]) -> Event<'a> {
        Event {
            name: name.as_bytes(),
            data,
            cut: false,
        }
    }

    /// An event of each dialect with this text, as it stands in JSON.
    fn with_text(dialect: Dialect, text: &str) -> String {
        match dialect {
            Dialect::Chat => format!(
                r#"{{"id":"c-1","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#
            ),
            Dialect::Responses => {
                format!(r#"{{"type":"response.output_text.delta","delta":"{text}"}}"#)
            }
            Dialect::Messages => format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
            ),
        }
    }

    /// What is known of a stream after its events: each alone by a judge that has seen no other, or all by one.
    fn known(dialect: Dialect, events: &[Event<'_>], reads_each: bool) -> String {
        let mut judge = Judge::new(dialect);
        let mut turn = Turn::default();
        let mut seen = Vec::new();
        for event in events {
            if reads_each {
                judge.forget_repeated();
            }
            seen.push(judge.see(event, Some(&mut turn)));
        }
        judge.forget_repeated();
        format!("{seen:?} {judge:?} {turn:?}")
    }

    fn assert_reads_the_same(dialect: Dialect, events: &[Event<'_>]) {
        assert_eq!(known(dialect, events, false), known(dialect, events, true));
    }

    #[rstest]
    #[case::chat(Dialect::Chat)]
    #[case::responses(Dialect::Responses)]
    #[case::messages(Dialect::Messages)]
    fn what_comes_again_is_not_read(#[case] dialect: Dialect) {
        let first = with_text(dialect, "ahoy");
        let mut judge = Judge::new(dialect);
        assert!(!judge.has_repeated(&event("", first.as_bytes())));
        let seen = judge.see(&event("", first.as_bytes()), None);
        let again = with_text(dialect, "tide");
        assert!(judge.has_repeated(&event("", again.as_bytes())));
        assert_eq!(judge.see(&event("", again.as_bytes()), None), seen);
        assert_eq!(judge.written(), Some(8));
    }

    #[rstest]
    #[case::mark(r#"a","b":"c"#)]
    #[case::escape(r"a\n")]
    #[case::control("a\nb")]
    #[case::half_an_escape(r"a\")]
    #[case::empty("")]
    fn what_is_no_plain_text_is_read(#[case] text: &str) {
        for dialect in [Dialect::Chat, Dialect::Responses, Dialect::Messages] {
            let (first, second) = (with_text(dialect, "ahoy"), with_text(dialect, text));
            let events = [event("", first.as_bytes()), event("", second.as_bytes())];
            let mut judge = Judge::new(dialect);
            judge.see(&events[0], None);
            assert!(!judge.has_repeated(&events[1]), "{second}");
            assert_reads_the_same(dialect, &events);
        }
    }

    #[test]
    fn what_carries_more_than_a_text_is_not_kept() {
        let chunks = [
            r#"{"choices":[{"delta":{"content":"a","reasoning":"b"}}]}"#,
            r#"{"choices":[{"delta":{"content":"a","tool_calls":[{}]}}]}"#,
            r#"{"choices":[{"delta":{"content":"a","refusal":"b"}}]}"#,
            r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"a"}}]}"#,
        ];
        for chunk in chunks {
            let mut judge = Judge::new(Dialect::Chat);
            judge.see(&event("", chunk.as_bytes()), None);
            assert!(!judge.has_repeated(&event("", chunk.as_bytes())), "{chunk}");
        }
    }

    fn with_number(text: &str, number: u8) -> String {
        with_text(Dialect::Responses, text).replace(
            r#"{"type""#,
            &format!(r#"{{"sequence_number":{number},"type""#),
        )
    }

    #[test]
    fn a_number_of_an_event_is_read() {
        let numbered = with_number("ahoy", 7);
        let created = r#"{"type":"response.created","sequence_number":8}"#;
        let events = [numbered.as_str(), created, &numbered].map(|it| event("", it.as_bytes()));
        assert_reads_the_same(Dialect::Responses, &events);
    }

    #[test]
    fn surroundings_are_kept_a_few_times() {
        let mut judge = Judge::new(Dialect::Chat);
        for number in 0..10 {
            let chunk = format!(r#"{{"id":"{number}","choices":[{{"delta":{{"content":"a"}}}}]}}"#);
            judge.see(&event("", chunk.as_bytes()), None);
            let is_kept = judge.has_repeated(&event("", chunk.as_bytes()));
            assert_eq!(
                is_kept,
                number < u64::from(super::MAX_KEPT_TIMES),
                "{number}"
            );
        }
    }

    #[test]
    fn long_surroundings_are_not_kept() {
        let id = "x".repeat(super::MAX_KEPT_BYTES);
        let chunk = format!(r#"{{"id":"{id}","choices":[{{"delta":{{"content":"a"}}}}]}}"#);
        let mut judge = Judge::new(Dialect::Chat);
        judge.see(&event("", chunk.as_bytes()), None);
        assert!(!judge.has_repeated(&event("", chunk.as_bytes())));
    }

    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => "[a-zé\u{4f60} ]{0,6}".prop_map(String::into_bytes),
            1 => prop::sample::select(vec!["\"", "\\", "\\n", "\\u0041", "\n", "{", "}", "\":\""])
                .prop_map(|text| text.as_bytes().to_vec()),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        /// Whatever stands where the text stood, and wherever the event was broken.
        #[test]
        fn nothing_is_taken_for_what_it_is_not(
            dialect in prop::sample::select(vec![Dialect::Chat, Dialect::Responses, Dialect::Messages]),
            texts in prop::collection::vec(
                (pieces(), prop::option::of((any::<u8>(), any::<u8>())), 0_usize..3, prop::option::of(0_u8..3)),
                1..12,
            ),
        ) {
            let datas: Vec<(usize, Vec<u8>)> = texts
                .into_iter()
                .map(|(text, broken, name, number)| {
                    let whole = match number.filter(|_| dialect == Dialect::Responses) {
                        Some(number) => with_number("TEXT", number),
                        None => with_text(dialect, "TEXT"),
                    };
                    let (before, behind) = whole.split_once("TEXT").unwrap();
                    let mut data = [before.as_bytes(), &text, behind.as_bytes()].concat();
                    if let Some((place, byte)) = broken {
                        let place = usize::from(place) % data.len();
                        data[place] = byte;
                    }
                    (name, data)
                })
                .collect();
            let events: Vec<Event<'_>> = datas
                .iter()
                .map(|(name, data)| event(NAMES[*name], data))
                .collect();
            assert_reads_the_same(dialect, &events);
        }
    }
}
