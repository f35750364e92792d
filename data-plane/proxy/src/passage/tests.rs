use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;
use tidegate_core::stream::{Watchdog, WatchdogLimits};

use super::*;
use crate::sse::MAX_EVENT_BYTES;

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
    let (client, end, ..) = pass(&[b"data: {\"choices\":[]}\n\ndata: {\"half"], true);
    assert_eq!(client, b"data: {\"choices\":[]}\n\n");
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

/// What a chunk was read into.
struct Buffer(Arc<[u8]>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn an_unfinished_event_keeps_no_buffers() {
    let buffer: Arc<[u8]> = vec![b'x'; 8_192].into();
    let mut passage = Passage::new(Dialect::Chat);
    for _ in 0..100 {
        let chunk = Bytes::from_owner(Buffer(Arc::clone(&buffer)));
        passage.take(chunk.slice(..1));
    }
    assert_eq!(passage.held_bytes(), 100);
    assert_eq!(Arc::strong_count(&buffer), 1);
}

#[test]
fn nothing_after_an_error_makes_a_stream_ready() {
    let text = "data: {\"error\":{\"message\":\"no\"}}\n\n".to_owned() + CHAT;
    let (_, _, _, ready, error) = pass(&[text.as_bytes()], true);
    assert!(error && !ready);
}

fn totals(dialect: Dialect, chunks: &[&[u8]]) -> Vec<[Progress; 3]> {
    let mut passage = Passage::new(dialect);
    let take = |chunk: &&[u8]| passage.take(Bytes::copy_from_slice(chunk)).progress;
    chunks.iter().map(take).collect()
}

fn useful_bytes(dialect: Dialect, chunks: &[&[u8]]) -> u64 {
    let totals = totals(dialect, chunks);
    let bytes = totals.iter().flatten().map(|progress| match progress {
        Progress::Useful { bytes } => *bytes,
        Progress::Protected | Progress::ProtectedEnds | Progress::Nothing => 0,
    });
    bytes.sum()
}

#[test]
fn vector_sessions_48_text_counts_its_bytes_wherever_it_is_split() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"\u{4f60}\\u597d\"}}]}\r\n\r\n";
    for first in 0..=event.len() {
        for second in first..=event.len() {
            let (start, rest) = event.as_bytes().split_at(first);
            let (middle, end) = rest.split_at(second - first);
            let bytes = useful_bytes(Dialect::Chat, &[start, middle, end]);
            assert_eq!(bytes, 6, "split at {first} and {second}");
        }
    }
}

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";

#[test]
fn the_order_of_events_in_a_chunk_matters() {
    let thought = "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n";
    let [after, before] = [[TEXT, thought, TEXT], [thought, TEXT, thought]]
        .map(|events| totals(Dialect::Chat, &[events.concat().as_bytes()]));
    let last = |progress: Vec<[Progress; 3]>| progress[0][2];
    assert_eq!(last(after), Progress::Nothing);
    assert_eq!(last(before), Progress::Protected);
}

#[test]
fn an_event_that_the_client_never_sees_is_no_part_of_the_turn() {
    let mut passage = Passage::new(Dialect::Chat).keeping(Turn::default());
    passage.take([TEXT, TEXT.trim_end()].concat().into());
    passage.finish();
    assert_eq!(passage.turn_mut().unwrap().delivered(), "a");
}

#[test]
fn a_last_event_without_its_blank_line_is_part_of_the_turn() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}";
    let mut passage = Passage::new(Dialect::Chat).keeping(Turn::default());
    passage.take(event.into());
    passage.finish();
    let turn = passage.turn_mut().unwrap();
    assert_eq!((turn.delivered(), turn.may_continue(0)), ("a", false));
}

fn any_progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        (0_u64..40).prop_map(|bytes| Progress::Useful { bytes }),
        Just(Progress::Protected),
        Just(Progress::ProtectedEnds),
        Just(Progress::Nothing),
    ]
}

proptest! {
    #[test]
    fn the_sum_of_a_chunk_is_to_a_watchdog_what_its_events_are(
        chunks in prop::collection::vec(
            (0_u64..3_000, prop::collection::vec(any_progress(), 0..5)),
            1..40,
        ),
        warmup_ms in 0_u64..4_000,
        min_useful_bytes in 0_u64..60,
    ) {
        let limits = WatchdogLimits {
            warmup_ms,
            window_ms: 2_000,
            min_useful_bytes_per_second: 20,
            min_useful_bytes,
        };
        let (mut one_by_one, mut summed) = (Watchdog::new(limits), Watchdog::new(limits));
        let mut now_ms = 0;
        for (pause_ms, events) in chunks {
            now_ms += pause_ms;
            let mut sum = Sum::new();
            events.iter().for_each(|progress| sum.add(*progress));
            prop_assert_eq!(
                summed.sees(sum.total(), now_ms),
                one_by_one.sees(events, now_ms)
            );
        }
    }

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

/// Most allocations for a chunk of one event on the plain path, and with a turn that is kept.
const MOST_A_CHUNK: u64 = 1;

#[rstest]
#[case::chat(
    Dialect::Chat,
    r#"{"id":"c","choices":[{"index":0,"delta":{"content":"ahoy \u00e9"},"finish_reason":null}]}"#
)]
#[case::responses(
    Dialect::Responses,
    r#"{"type":"response.output_text.delta","sequence_number":7,"delta":"ahoy"}"#
)]
#[case::messages(
    Dialect::Messages,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ahoy"}}"#
)]
fn a_chunk_passes_with_few_allocations(#[case] dialect: Dialect, #[case] data: &str) {
    const CHUNKS: u64 = 50;
    let chunk = Bytes::from(format!("event: message\ndata: {data}\n\n"));
    let mut passage = Passage::new(dialect);
    let mut pass = |chunk: Bytes| {
        assert!(passage.take(chunk).progressed);
        assert!(passage.next().is_some());
    };
    // What is kept for the whole stream is there after the first.
    pass(chunk.clone());
    let info = allocation_counter::measure(|| {
        for _ in 0..CHUNKS {
            pass(chunk.clone());
        }
    });
    assert!(
        info.count_total <= CHUNKS * MOST_A_CHUNK,
        "{} allocations",
        info.count_total
    );
}

/// An event that comes byte by byte leaves in as many pieces as its size is worth.
#[test]
fn single_bytes_of_an_event_are_put_together() {
    let mut passage = Passage::new(Dialect::Chat);
    let event = format!("data: {}\n\n", "x".repeat(100_000));
    for byte in event.bytes() {
        passage.take(Bytes::copy_from_slice(&[byte]));
    }
    let pieces: Vec<_> = std::iter::from_fn(|| passage.next()).collect();
    assert_eq!(pieces.concat(), event.as_bytes());
    assert!(pieces.len() <= 4, "{} pieces", pieces.len());
}

/// What is said to the client then begins with the blank line that the upstream owed.
#[test]
fn the_end_of_a_stream_inside_a_long_event_does_not_end_the_event() {
    let mut passage = Passage::new(Dialect::Messages);
    let line = format!("data: {}", "x".repeat(2 * MAX_EVENT_BYTES));
    passage.take(Bytes::from(line));
    assert!(passage.is_inside());
    passage.finish();
    assert!(passage.is_inside());
}
