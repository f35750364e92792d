//! What an upstream may do wrong, and what comes of it for a client whose only provider does so.

use std::time::Duration;

use tidegate_test_support::upstream::{Closing, Encoding, Mode};

/// What a client asks, in the words of its script (`tests/clients`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Responses,
    Messages,
}

/// A row of the table: a fault and what becomes of it.
pub(crate) struct Fault {
    /// Also the model that is asked for.
    pub(crate) name: &'static str,
    pub(crate) mode: Mode,
    /// For answers in one piece, in the order of [`Api`].
    pub(crate) whole: [End; 3],
    /// For streams.
    pub(crate) streams: [End; 3],
}

/// What the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A good answer.
    Good,
    /// An error before anything else: status and code.
    Refused(u16, &'static str),
    /// Perhaps the beginning of a good stream, and then the error event with this code.
    Broken(&'static str),
    /// The same with the upstream's own error event.
    UpstreamsOwn,
    /// Something that the SDK cannot read; it was sent with 200.
    Unreadable,
}

use End::{Broken, Good, Refused, Unreadable, UpstreamsOwn};

const CUT: End = Broken("stream_terminated");
/// The upstream's error, as the family of its API restates it.
const OVERLOADED: [End; 3] = [failed(500), failed(500), failed(529)];

/// No attempt was answered; the last one failed with this status.
const fn failed(status: u16) -> End {
    Refused(status, "all_models_failed")
}

/// The same for all APIs.
fn each(name: &'static str, mode: Mode, whole: End, stream: End) -> Fault {
    Fault {
        name,
        mode,
        whole: [whole; 3],
        streams: [stream; 3],
    }
}

fn raw(head: &str, body: &str, then: Closing) -> Mode {
    Mode::Raw {
        bytes: format!("{head}\r\n\r\n{body}").into(),
        then,
    }
}

/// All of them.
pub(crate) fn faults() -> Vec<Fault> {
    let events = |more: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream{more}");
    let mut faults = vec![each("good", Mode::Ok, Good, Good)];
    faults.extend(before_an_answer(&events("")));
    faults.extend(in_the_middle());
    faults.extend(without_sense(&events("\r\ncontent-length: 40")));
    faults.extend(encoded());
    faults
}

/// Nothing of an answer has come.
fn before_an_answer(event_stream: &str) -> Vec<Fault> {
    let beat = Duration::from_millis(100);
    let second = Duration::from_secs(1);
    let half_closed = raw(event_stream, "", Closing::HalfClose);
    let nothing = Mode::MissingEnd { last: usize::MAX };
    let (broke, late) = (failed(502), failed(504));
    vec![
        each("reset", Mode::Reset, broke, broke),
        each("fin", Mode::raw(""), broke, broke),
        each("half-close", half_closed, broke, broke),
        each("no-http", Mode::raw("what is this\r\n\r\n"), broke, broke),
        each("silence", Mode::Hang, broke, broke),
        each("headers-only", Mode::Stall { events: 0 }, late, late),
        each(
            "heartbeats-only",
            Mode::HeartbeatOnly { every: beat },
            late,
            late,
        ),
        each("nothing", nothing, broke, broke),
        Fault {
            name: "error-first",
            mode: Mode::sse_error_first(),
            whole: OVERLOADED,
            streams: OVERLOADED,
        },
        each(
            "one-byte-a-second",
            Mode::ByteDrip { gap: second },
            late,
            late,
        ),
        each("cut-at-once", Mode::CutInEvent { events: 0 }, broke, broke),
    ]
}

/// A part of an answer has come.
fn in_the_middle() -> Vec<Fault> {
    let error = Mode::SseErrorAfter {
        events: 6,
        error: None,
    };
    let wrong_length = Mode::with_header("content-length", "9000");
    let silence = Broken("stream_idle_timeout");
    vec![
        each(
            "cut-in-event",
            Mode::CutInEvent { events: 6 },
            failed(502),
            CUT,
        ),
        each("cut-in-character", Mode::CutInCodePoint, failed(502), CUT),
        Fault {
            name: "reset-later",
            mode: Mode::ResetAfter { bytes: 700 },
            // Shorter answers are whole by then.
            whole: [Good, failed(502), Good],
            streams: [CUT; 3],
        },
        each(
            "silence-later",
            Mode::Stall { events: 6 },
            failed(504),
            silence,
        ),
        Fault {
            name: "error-later",
            mode: error,
            whole: OVERLOADED,
            streams: [UpstreamsOwn; 3],
        },
        Fault {
            name: "no-end-mark",
            mode: Mode::MissingEnd { last: 1 },
            whole: [Unreadable; 3],
            // A finish reason ends a chat as well.
            streams: [Good, CUT, CUT],
        },
        each("no-end", Mode::MissingEnd { last: 4 }, Unreadable, CUT),
        each("two-ends", Mode::DoubleEnd, Unreadable, Good),
        each("longer-than-told", wrong_length, failed(502), CUT),
    ]
}

/// What comes makes no sense.
fn without_sense(forty_bytes: &str) -> Vec<Fault> {
    let no_json = "data: {\"choices\": [{\"delta\": \n\nand more";
    let no_json = raw(forty_bytes, no_json, Closing::Close);
    let short = raw(forty_bytes, "data: {\"cho", Closing::Close);
    let wrong_type = Mode::with_header("content-type", "text/plain");
    vec![
        each(
            "garbage",
            Mode::Garbage { bytes: 4_096 },
            Unreadable,
            failed(502),
        ),
        Fault {
            name: "no-json",
            mode: no_json,
            whole: [Unreadable; 3],
            streams: UNREADABLE_EVENT,
        },
        each("shorter-than-told", short, failed(502), failed(502)),
        Fault {
            name: "long-line",
            mode: Mode::LongLine { bytes: LONG },
            whole: [Unreadable; 3],
            streams: UNREADABLE_EVENT,
        },
        each("wrong-type", wrong_type, Good, Good),
    ]
}

/// Longer than what is kept of an event. Not as long as it could be: the SDKs take time by its square.
const LONG: u64 = 1 << 20;
/// OpenAI's SDK fails to read the event. Anthropic's leaves out what has no name and comes to the error event.
const UNREADABLE_EVENT: [End; 3] = [Unreadable, Unreadable, CUT];

/// What comes is compressed, or says so.
fn encoded() -> Vec<Fault> {
    let gzip = Mode::Ok.encoded(Encoding::Gzip);
    let unknown = Mode::with_header("content-encoding", "rot13");
    vec![
        each("compressed", gzip, Good, failed(502)),
        each("unknown-encoding", unknown, Good, Good),
        each(
            "gzip-bomb",
            Mode::GzipBomb { bytes: LONG },
            Unreadable,
            failed(502),
        ),
    ]
}
