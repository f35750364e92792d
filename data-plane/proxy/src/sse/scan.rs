//! Finds events in a stream of bytes, however it is cut into chunks.
//!
//! Lines end with LF, CR or CRLF; a blank line ends an event. An event that lies within one chunk is looked
//! at where it is; only what crosses chunks is copied, and at most [`MAX_EVENT_BYTES`] of one event.

/// So much of one event is kept for looking at; longer ones are [`Event::cut`].
pub(crate) const MAX_EVENT_BYTES: usize = 256 * 1024;
/// An empty buffer keeps no more room than this.
const KEPT_CAPACITY: usize = 16 * 1024;
/// Longest kept event name.
const MAX_NAME_BYTES: usize = 128;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// So much of an unfinished line is kept. The data in a line that is longer is cut for certain, whatever stands before it.
const MAX_LINE_BYTES: usize = MAX_EVENT_BYTES + 16;

/// One event with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    /// The `event` field; empty when there was none.
    pub(crate) name: &'a [u8],
    /// The `data` fields, joined by LF.
    pub(crate) data: &'a [u8],
    /// Only the beginning of the data is here.
    pub(crate) cut: bool,
}

/// Where the scan stands between two chunks.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// Data of the event so far.
    data: Vec<u8>,
    name: Vec<u8>,
    has_data: bool,
    cut: bool,
    /// The last byte was a CR, so that an LF belongs to it.
    after_cr: bool,
    /// The last line was blank.
    after_blank: bool,
    /// A line has been seen, so a byte order mark would be data.
    begun: bool,
}

impl Scanner {
    /// Takes the next chunk and calls `on_event` with each event that ends in it. Gives the place in the chunk
    /// behind the last blank line, if it has one: everything before it is whole events and comments.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Option<usize> {
        let mut boundary = None;
        // Data that lies in this chunk and need not be copied if its event ends here too.
        let mut here: Option<&[u8]> = None;
        let mut at: usize = 0;
        while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                at = at.saturating_add(1);
                if self.after_blank {
                    boundary = Some(at);
                }
                continue;
            }
            let Some(length) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.keep_line(rest);
                break;
            };
            let (line, ending) = rest.split_at(length);
            self.after_cr = ending.first() == Some(&b'\r');
            at = at.saturating_add(length).saturating_add(1);
            let blank = if self.line.is_empty() {
                self.take_line(line, Some(&mut here))
            } else {
                self.keep_line(line);
                let kept = std::mem::take(&mut self.line);
                self.copy(&mut here);
                let blank = self.take_line(&kept, None);
                // Gives the allocation back.
                self.line = kept;
                self.line.clear();
                give_back(&mut self.line);
                blank
            };
            self.after_blank = blank;
            if blank {
                self.emit(here.take(), on_event);
                boundary = Some(at);
            }
        }
        self.copy(&mut here);
        boundary
    }

    /// The stream ended: what is there counts as an event, although its blank line is missing.
    pub(crate) fn finish(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        if !self.line.is_empty() {
            let kept = std::mem::take(&mut self.line);
            self.take_line(&kept, None);
        }
        self.emit(None, on_event);
    }

    /// Data of an event whose end has not come yet is here.
    pub(crate) fn is_in_data(&self) -> bool {
        self.has_data || self.line.starts_with(b"data")
    }

    /// Handles one whole line; true when it is blank.
    fn take_line<'c>(&mut self, line: &'c [u8], here: Option<&mut Option<&'c [u8]>>) -> bool {
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)
        };
        if line.is_empty() {
            return true;
        }
        if let Some(value) = field(line, b"data") {
            match here {
                Some(here) if !self.has_data => *here = Some(value),
                Some(here) => {
                    self.copy(here);
                    self.more_data(value);
                }
                None => self.more_data(value),
            }
            self.has_data = true;
        } else if let Some(value) = field(line, b"event") {
            self.name.clear();
            self.name.extend(value.iter().take(MAX_NAME_BYTES));
        }
        false
    }

    fn emit(&mut self, here: Option<&[u8]>, on_event: &mut impl FnMut(Event<'_>)) {
        if self.has_data {
            // The same for an event that came in one chunk and for one that had to be kept.
            let data = here.unwrap_or(&self.data);
            let beginning = data.get(..MAX_EVENT_BYTES);
            on_event(Event {
                name: &self.name,
                data: beginning.unwrap_or(data),
                cut: self.cut || data.len() > MAX_EVENT_BYTES,
            });
        }
        self.data.clear();
        give_back(&mut self.data);
        self.name.clear();
        self.has_data = false;
        self.cut = false;
    }

    fn copy(&mut self, here: &mut Option<&[u8]>) {
        if let Some(value) = here.take() {
            self.keep_data(value);
        }
    }

    fn more_data(&mut self, value: &[u8]) {
        if self.has_data {
            self.keep_data(b"\n");
        }
        self.keep_data(value);
    }

    fn keep_data(&mut self, part: &[u8]) {
        let room = MAX_EVENT_BYTES.saturating_sub(self.data.len());
        self.cut |= part.len() > room;
        self.data
            .extend_from_slice(part.get(..room).unwrap_or(part));
    }

    fn keep_line(&mut self, part: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.line.len());
        self.line
            .extend_from_slice(part.get(..room).unwrap_or(part));
    }
}

/// A stream that is idle does not hold the room of its largest event.
fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_CAPACITY {
        *buffer = Vec::new();
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    type Owned = (String, String, bool);

    fn scan(chunks: &[&[u8]]) -> Vec<Owned> {
        let mut events = Vec::new();
        let mut take = |event: Event<'_>| {
            events.push((
                String::from_utf8_lossy(event.name).into_owned(),
                String::from_utf8_lossy(event.data).into_owned(),
                event.cut,
            ));
        };
        let mut scanner = Scanner::default();
        for chunk in chunks {
            scanner.feed(chunk, &mut take);
        }
        scanner.finish(&mut take);
        events
    }

    fn event(name: &str, data: &str) -> Owned {
        (name.to_owned(), data.to_owned(), false)
    }

    #[rstest]
    #[case::lf("data: a\n\ndata: b\n\n", vec![event("", "a"), event("", "b")])]
    #[case::crlf("data: a\r\n\r\ndata: b\r\n\r\n", vec![event("", "a"), event("", "b")])]
    #[case::cr("data: a\r\rdata: b\r\r", vec![event("", "a"), event("", "b")])]
    #[case::named("event: ping\ndata: {}\n\n", vec![event("ping", "{}")])]
    #[case::joined("data: a\ndata:\ndata: b\n\n", vec![event("", "a\n\nb")])]
    #[case::one_space_is_cut("data:  a\n\n", vec![event("", " a")])]
    #[case::comments_are_nothing(": x\n\n:\n\ndata: a\n\n", vec![event("", "a")])]
    #[case::other_fields_are_nothing("id: 4\nretry: 1\ndatabase: x\ndata: a\n\n", vec![event("", "a")])]
    #[case::name_without_data_is_nothing("event: x\n\ndata: a\n\n", vec![event("", "a")])]
    #[case::no_blank_line_at_the_end("data: a\n\ndata: [DONE]", vec![event("", "a"), event("", "[DONE]")])]
    #[case::byte_order_mark("\u{feff}data: a\n\n", vec![event("", "a")])]
    fn events_are_found(#[case] text: &str, #[case] expected: Vec<Owned>) {
        assert_eq!(scan(&[text.as_bytes()]), expected);
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(scan(&bytes), expected, "byte by byte");
    }

    #[test]
    fn the_boundary_is_behind_the_last_blank_line() {
        let mut scanner = Scanner::default();
        let mut ignore = |_: Event<'_>| {};
        assert_eq!(scanner.feed(b"data: a\n\ndata: b", &mut ignore), Some(9));
        assert_eq!(scanner.feed(b"\n", &mut ignore), None);
        assert_eq!(scanner.feed(b"\r\n: x\r\n\r\n.", &mut ignore), Some(9));
        assert_eq!(scanner.feed(b"\r\n\r", &mut ignore), Some(3));
        assert_eq!(scanner.feed(b"\n.", &mut ignore), Some(1));
        assert_eq!(scanner.feed(b"\r", &mut ignore), None);
        assert_eq!(scanner.feed(b"\n.", &mut ignore), None);
    }

    #[test]
    fn an_endless_event_is_cut_and_the_next_one_is_whole() {
        let long = vec![b'x'; MAX_EVENT_BYTES];
        let events = scan(&[b"data: ", &long, &long, b"\n\ndata: a\n\n"]);
        let [(_, data, true), last] = events.as_slice() else {
            panic!("two events expected");
        };
        assert!(data.len() <= MAX_EVENT_BYTES);
        assert_eq!(*last, event("", "a"));
    }

    #[test]
    fn a_long_comment_cuts_nothing() {
        let long = vec![b'x'; 2 * MAX_EVENT_BYTES];
        let events = scan(&[b": ", &long, b"\ndata: a\n\n"]);
        assert_eq!(events, [event("", "a")]);
    }

    #[rstest]
    #[case::fits(MAX_EVENT_BYTES, false)]
    #[case::too_long(MAX_EVENT_BYTES + 1, true)]
    fn what_is_cut_does_not_depend_on_chunks(#[case] length: usize, #[case] cut: bool) {
        for head in ["data: ", "data:", "\u{feff}data: ", "data: 1\ndata: "] {
            let joined = head.matches('\n').count() * 2;
            let data = "x".repeat(length - joined);
            let text = [head, &data, "\r\n\r\n"].concat();
            let whole = scan(&[text.as_bytes()]);
            assert_eq!(whole.len(), 1);
            assert_eq!(
                (whole[0].1.len(), whole[0].2),
                (MAX_EVENT_BYTES, cut),
                "{head:?}"
            );
            for size in [7, 64 * 1024, length] {
                let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                assert_eq!(scan(&chunks), whole, "{head:?} in {size}");
            }
        }
    }

    proptest! {
        #[test]
        fn chunking_changes_nothing(
            text in "(data: [a-c{}]{0,5}|event: e|: c|data|\n|\r|\r\n|\n\n|\u{e9}){0,40}",
            cuts in prop::collection::vec(0_usize..200, 0..12),
        ) {
            let bytes = text.as_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
            places.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for place in places {
                chunks.push(&bytes[from..place]);
                from = place;
            }
            chunks.push(&bytes[from..]);
            prop_assert_eq!(scan(&chunks), scan(&[bytes]));
        }
    }
}
