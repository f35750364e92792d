//! Finds events in a stream of bytes, however it is cut into chunks.
//!
//! Lines end with LF, CR or CRLF; a blank line ends an event. An event that lies within one chunk is looked at where it
//! is. What crosses chunks is copied, once: a piece of a chunk would keep all of the buffer that it was read into, and an
//! event that comes byte by byte one for each.

use bytes::Bytes;

/// So much of one event is kept, to look at it and to hand it on whole; longer ones are [`Event::cut`]. It is half of
/// what may be held for a client that does not read.
pub(crate) const MAX_EVENT_BYTES: usize = 128 * 1024;
/// So much of a longer one is kept to look at it.
const BEGINNING_BYTES: usize = 4 * 1024;
/// Longest event name that is looked at.
const MAX_NAME_BYTES: usize = 128;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One event with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    /// The `event` field; empty when there was none.
    pub(crate) name: &'a [u8],
    /// The `data` fields, joined by LF.
    pub(crate) data: &'a [u8],
    /// Only the beginning of the event is here.
    pub(crate) cut: bool,
}

/// What may go on once a chunk was looked at: what was kept of earlier ones, then the beginning of the chunk.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) kept: Bytes,
    /// Place in the chunk: behind its last blank line, or its end if that is inside an event too long to be kept.
    pub(crate) upto: usize,
}

/// Where the scan stands between two chunks.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// The beginning of an event whose end has not come yet.
    begun: Vec<u8>,
    /// Instead, of one that is too long to be kept: it goes on without waiting for its end.
    long: Option<Long>,
    /// The line in hand is not blank.
    in_line: bool,
    /// The last byte was a CR, so that an LF belongs to it.
    after_cr: bool,
    /// The last line was blank.
    after_blank: bool,
    /// An event has ended, so a byte order mark would be data.
    begins_plain: bool,
}

#[derive(Debug)]
struct Long {
    beginning: Box<[u8]>,
    has_data: bool,
}

impl Scanner {
    /// Takes the next chunk and calls `on_event` with each event that ends in it.
    pub(crate) fn feed(&mut self, chunk: &[u8], on_event: &mut impl FnMut(Event<'_>)) -> Passed {
        let mut kept = None;
        // Where the event in hand begins in this chunk.
        let mut from: usize = 0;
        let mut at: usize = 0;
        while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                at = at.saturating_add(1);
                if self.after_blank {
                    from = at;
                }
                continue;
            }
            let Some(length) = memchr::memchr2(b'\n', b'\r', rest) else {
                self.in_line = true;
                break;
            };
            self.after_cr = rest.get(length) == Some(&b'\r');
            self.after_blank = !std::mem::take(&mut self.in_line) && length == 0;
            at = at.saturating_add(length).saturating_add(1);
            if self.after_blank {
                let last = chunk.get(from..at).unwrap_or_default();
                let ended = self.end(last, on_event);
                // Only the first one that ends here can have begun before.
                kept = kept.or(ended);
                from = at;
            }
        }
        let overflown = self.keep(chunk.get(from..).unwrap_or_default());
        Passed {
            kept: kept.or(overflown).unwrap_or_default(),
            upto: if self.is_inside() { chunk.len() } else { from },
        }
    }

    /// The stream ended: what is there counts as an event, although its blank line is missing. Gives back what was kept
    /// of it.
    pub(crate) fn finish(&mut self, on_event: &mut impl FnMut(Event<'_>)) -> Bytes {
        self.end(&[], on_event).unwrap_or_default()
    }

    /// The rest of the stream will not come: drops what is kept of an event, unless its beginning has gone on.
    pub(crate) fn drop_unfinished(&mut self) {
        self.begun = Vec::new();
    }

    /// Bytes that are kept and have not gone on.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.begun.len()
    }

    /// The beginning of an event has gone on without its end.
    pub(crate) fn is_inside(&self) -> bool {
        self.long.is_some()
    }

    /// It is one with data.
    pub(crate) fn is_in_data(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.has_data)
    }

    /// The event in hand ends with these bytes. Gives back what was kept of it and may go on.
    fn end(&mut self, last: &[u8], on_event: &mut impl FnMut(Event<'_>)) -> Option<Bytes> {
        let mut kept = None;
        if self.begun.is_empty() && self.long.is_none() {
            self.tell(last, on_event);
        } else {
            let before = self.begun.len();
            kept = self.keep(last);
            if let Some(long) = self.long.take() {
                read(&long.beginning, true, on_event);
            } else {
                let whole = Bytes::from(std::mem::take(&mut self.begun));
                self.tell(&whole, on_event);
                kept = Some(whole.slice(..before));
            }
        }
        self.begins_plain = true;
        kept
    }

    /// Keeps more of an event whose end has not come yet. When it becomes too long, gives back what was kept before.
    fn keep(&mut self, part: &[u8]) -> Option<Bytes> {
        if self.long.is_some() {
            return None;
        }
        let before = self.begun.len();
        let room = MAX_EVENT_BYTES.saturating_sub(before);
        let (part, behind) = part.split_at_checked(room).unwrap_or((part, &[]));
        let needed = before.saturating_add(part.len());
        if needed > self.begun.capacity() {
            // Never more room than for the longest.
            let most = before.saturating_mul(2).min(MAX_EVENT_BYTES);
            let more = needed.max(most).saturating_sub(before);
            self.begun.reserve_exact(more);
        }
        self.begun.extend_from_slice(part);
        if behind.is_empty() {
            return None;
        }
        let mut has_data = false;
        let beginning = beginning(self.plain(&self.begun));
        read(beginning, true, &mut |_| has_data = true);
        self.long = Some(Long {
            beginning: beginning.into(),
            has_data,
        });
        self.begun.truncate(before);
        Some(std::mem::take(&mut self.begun).into())
    }

    fn tell(&self, event: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        let is_cut = event.len() > MAX_EVENT_BYTES;
        let event = self.plain(event);
        read(
            if is_cut { beginning(event) } else { event },
            is_cut,
            on_event,
        );
    }

    /// Without the mark at the beginning of the stream.
    fn plain<'a>(&self, event: &'a [u8]) -> &'a [u8] {
        let marked = event.strip_prefix(BYTE_ORDER_MARK);
        marked.filter(|_| !self.begins_plain).unwrap_or(event)
    }
}

fn beginning(event: &[u8]) -> &[u8] {
    event.get(..BEGINNING_BYTES).unwrap_or(event)
}

/// Reads the lines of one event, and tells of it if it has data.
fn read(event: &[u8], cut: bool, on_event: &mut impl FnMut(Event<'_>)) {
    let mut name: &[u8] = &[];
    let mut first = None;
    let mut joined: Option<Vec<u8>> = None;
    for line in lines(event) {
        if let Some(value) = field(line, b"data") {
            match first {
                None => first = Some(value),
                Some(first) => {
                    let joined = joined.get_or_insert_with(|| first.to_vec());
                    joined.push(b'\n');
                    joined.extend_from_slice(value);
                }
            }
        } else if let Some(value) = field(line, b"event") {
            name = value.get(..MAX_NAME_BYTES).unwrap_or(value);
        }
    }
    if let Some(first) = first {
        let data = joined.as_deref().unwrap_or(first);
        on_event(Event { name, data, cut });
    }
}

/// With a blank one between CR and LF, which means nothing inside an event.
fn lines(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let (line, ending) = rest.split_at_checked(length)?;
        if rest.is_empty() {
            return None;
        }
        rest = ending.get(1..).unwrap_or_default();
        Some(line)
    })
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
        let mut feed = |chunk: &[u8]| {
            let passed = scanner.feed(chunk, &mut ignore);
            (passed.kept.to_vec(), passed.upto)
        };
        assert_eq!(feed(b"data: a\n\ndata: b"), (vec![], 9));
        assert_eq!(feed(b"\n"), (vec![], 0));
        assert_eq!(feed(b"\r\n: x\r\n\r\n."), (b"data: b\n".to_vec(), 9));
        assert_eq!(feed(b"\r\n\r"), (b".".to_vec(), 3));
        assert_eq!(feed(b"\n."), (vec![], 1));
        assert_eq!(feed(b"\r"), (vec![], 0));
        assert_eq!(feed(b"\n."), (vec![], 0));
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
    fn what_follows_a_long_comment_in_its_event_is_not_looked_at() {
        let long = vec![b'x'; 2 * MAX_EVENT_BYTES];
        let events = scan(&[b": ", &long, b"\ndata: a\n\ndata: b\n\n"]);
        assert_eq!(events, [event("", "b")]);
    }

    #[rstest]
    #[case::fits(MAX_EVENT_BYTES, false)]
    #[case::too_long(MAX_EVENT_BYTES + 1, true)]
    fn what_is_cut_does_not_depend_on_chunks(#[case] length: usize, #[case] cut: bool) {
        for head in ["data: ", "data:", "\u{feff}data: ", "data: 1\ndata: "] {
            // What ends the event is the blank line's CR.
            let data = "x".repeat(length - head.len() - "\r\n\r".len());
            let text = [head, &data, "\r\n\r\n"].concat();
            let whole = scan(&[text.as_bytes()]);
            assert_eq!((whole.len(), whole[0].2), (1, cut), "{head:?}");
            for size in [7, 64 * 1024, length] {
                let chunks: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
                assert_eq!(scan(&chunks), whole, "{head:?} in {size}");
            }
        }
    }

    #[test]
    fn no_more_is_kept_than_the_longest_event() {
        let mut scanner = Scanner::default();
        for _ in 0..MAX_EVENT_BYTES / 1_000 {
            scanner.feed(&[b'x'; 1_000], &mut |_| {});
            assert!(scanner.begun.capacity() <= MAX_EVENT_BYTES);
        }
        assert_eq!(scanner.kept_bytes(), 131_000);
        let passed = scanner.feed(&[b'x'; 1_000], &mut |_| {});
        assert_eq!((passed.kept.len(), passed.upto), (131_000, 1_000));
        assert_eq!(scanner.kept_bytes(), 0);
        assert!(scanner.is_inside());
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
