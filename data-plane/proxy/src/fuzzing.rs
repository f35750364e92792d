//! What must hold of a stream whatever an upstream sends and however it is cut into chunks. Plain functions: the fuzz
//! targets feed them without end, the tests here a fixed number of inputs. Not part of any product build.

#[cfg(test)]
mod transcripts;

use bytes::Bytes;
use tidegate_core::random::Random;
use tidegate_core::stream::{Progress, Turn};

use crate::passage::Passage;
use crate::sse::{Dialect, End, Event, MAX_EVENT_BYTES, Scanner, Tokens};

/// Finds events in bytes that are cut in some way, and compares with the plainest way to find them in all bytes at
/// once. The first two bytes choose the cuts.
///
/// # Panics
/// When something that must hold does not.
pub fn scan(input: &[u8]) {
    let Some((choice, stream)) = input.split_first_chunk::<2>() else {
        return;
    };
    let mut scanner = Scanner::default();
    let mut events = Vec::new();
    let mut keep = |event: Event<'_>| events.push(owned(&event));
    for chunk in cut(stream, u16::from_le_bytes(*choice).into()) {
        let passed = scanner.feed(chunk, &mut keep);
        assert!(passed.upto <= chunk.len());
    }
    scanner.finish(&mut keep);
    assert_eq!(events, reference(stream));
}

/// Passes bytes that are cut in some way on, and all at once, and compares what reached the client and what was
/// learned. The first byte chooses the dialect, the next two the cuts.
///
/// # Panics
/// When something that must hold does not.
pub fn pass_on(input: &[u8]) {
    let Some(([dialect, choice @ ..], stream)) = input.split_first_chunk::<3>() else {
        return;
    };
    let dialect = match dialect % 3 {
        0 => Dialect::Chat,
        1 => Dialect::Responses,
        _ => Dialect::Messages,
    };
    compare(
        dialect,
        stream,
        &cut(stream, u16::from_le_bytes(*choice).into()),
    );
}

/// The chunks of a stream must come to the same as all of it at once.
fn compare(dialect: Dialect, stream: &[u8], chunks: &[&[u8]]) {
    let pieces = passed(dialect, chunks);
    assert!(
        stream.starts_with(&pieces.client),
        "the client was given other bytes"
    );
    if pieces.end > End::Open {
        assert_eq!(
            pieces.client.len(),
            stream.len(),
            "a finished stream is whole"
        );
    }
    assert_eq!(pieces, passed(dialect, &[stream]));
}

/// All that comes of a stream.
#[derive(Debug, PartialEq)]
struct Passed {
    client: Vec<u8>,
    end: End,
    tokens: Tokens,
    is_ready: bool,
    error: Option<Bytes>,
    sequence: Option<u64>,
    useful_bytes: u64,
    /// Was protected, and is still.
    is_protected: [bool; 2],
    turn: String,
    may_continue: bool,
}

fn passed(dialect: Dialect, chunks: &[&[u8]]) -> Passed {
    let mut passage = Passage::new(dialect).keeping(Turn::default());
    let mut client = Vec::new();
    let mut useful_bytes: u64 = 0;
    let mut is_protected = [false; 2];
    for chunk in chunks {
        for progress in passage.take(Bytes::copy_from_slice(chunk)).progress {
            match progress {
                Progress::Nothing | Progress::Useful { bytes: 0 } => {}
                Progress::Useful { bytes } => {
                    useful_bytes = useful_bytes.saturating_add(bytes);
                    is_protected[1] = false;
                }
                Progress::Protected => is_protected = [true; 2],
                Progress::ProtectedEnds => is_protected[1] = false,
            }
        }
        let most = MAX_EVENT_BYTES.saturating_add(chunk.len());
        assert!(passage.held_bytes() <= most, "too much is held");
        drain(&mut passage, &mut client);
        assert!(passage.held_bytes() <= MAX_EVENT_BYTES, "too much is kept");
    }
    passage.finish();
    drain(&mut passage, &mut client);
    let turn = passage.turn_mut();
    let may_continue = turn.as_ref().is_some_and(|turn| turn.may_continue(0));
    Passed {
        turn: turn
            .map(|turn| turn.delivered().to_owned())
            .unwrap_or_default(),
        may_continue,
        client,
        end: passage.end(),
        tokens: passage.tokens(),
        is_ready: passage.is_ready(),
        sequence: passage.sequence(),
        error: passage.take_error(),
        useful_bytes,
        is_protected,
    }
}

fn drain(passage: &mut Passage, client: &mut Vec<u8>) {
    while let Some(bytes) = passage.next() {
        assert!(!bytes.is_empty(), "nothing was handed on");
        client.extend_from_slice(&bytes);
    }
}

/// Cuts a stream at random places; every fourth choice cuts it into single bytes.
fn cut(stream: &[u8], choice: u64) -> Vec<&[u8]> {
    if choice.is_multiple_of(4) {
        return stream.chunks(1).collect();
    }
    let mut random = Random::new(choice);
    let mut chunks = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let longest = [3, 40, 400][random.below(3)];
        let length = random.below(longest).saturating_add(1).min(rest.len());
        let (chunk, behind) = rest.split_at(length);
        chunks.push(chunk);
        rest = behind;
    }
    chunks
}

type Owned = (Vec<u8>, Vec<u8>, bool);

fn owned(event: &Event<'_>) -> Owned {
    (event.name.to_vec(), event.data.to_vec(), event.cut)
}

/// Events of a whole stream, found the plainest way.
fn reference(stream: &[u8]) -> Vec<Owned> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut line = Vec::new();
    let mut bytes = stream.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&&b'\n');
                lines.push(std::mem::take(&mut line));
            }
            b'\n' => lines.push(std::mem::take(&mut line)),
            _ => line.push(*byte),
        }
    }
    lines.push(line);
    // What follows the last line end is no blank line, but the stream's end stands for one.
    lines.push(Vec::new());
    let mut events = Vec::new();
    let mut name = Vec::new();
    let mut data: Option<Vec<u8>> = None;
    for line in lines {
        if line.is_empty() {
            let name = std::mem::take(&mut name);
            events.extend(data.take().map(|data| (name, data, false)));
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => match &mut data {
                Some(data) => data.extend([b"\n", value].concat()),
                None => data = Some(value.to_vec()),
            },
            b"event" => name = value.iter().copied().take(128).collect(),
            _ => {}
        }
    }
    events
}

#[cfg(test)]
mod tests;
