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
/// No headers have come, and the connection is gone.
const RESET: End = Refused(502, "upstream_reset");
/// The answer is over before its first event, or before the end of its body.
const EARLY: End = Refused(502, "STREAM_EARLY_EOF");
/// What comes cannot be an answer.
const PROTOCOL: End = Refused(502, "upstream_protocol_error");
/// Headers, and then nothing of use, of a stream.
const UNREADY: End = Refused(504, "STREAM_READINESS_TIMEOUT");
/// The same of an answer in one piece: the time for its body is longer than that for the attempt.
const DEADLINE: End = Refused(504, "attempt_deadline_exceeded");
/// The upstream's error, as the family of its API restates it.
const OVERLOADED: [End; 3] = [failed(500), failed(500), failed(529)];

/// The last attempt was answered with an error, which has this status for the client.
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
    let headers = Refused(502, "upstream_headers_timeout");
    vec![
        each("reset", Mode::Reset, RESET, RESET),
        each("fin", Mode::raw(""), RESET, RESET),
        each("half-close", half_closed, EARLY, EARLY),
        each(
            "no-http",
            Mode::raw("what is this\r\n\r\n"),
            PROTOCOL,
            PROTOCOL,
        ),
        each("silence", Mode::Hang, headers, headers),
        each("headers-only", Mode::Stall { events: 0 }, DEADLINE, UNREADY),
        each(
            "heartbeats-only",
            Mode::HeartbeatOnly { every: beat },
            DEADLINE,
            UNREADY,
        ),
        each("nothing", nothing, EARLY, EARLY),
        Fault {
            name: "error-first",
            mode: Mode::sse_error_first(),
            whole: OVERLOADED,
            streams: OVERLOADED,
        },
        each(
            "one-byte-a-second",
            Mode::ByteDrip { gap: second },
            DEADLINE,
            UNREADY,
        ),
        each("cut-at-once", Mode::CutInEvent { events: 0 }, EARLY, EARLY),
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
        each("cut-in-event", Mode::CutInEvent { events: 6 }, EARLY, CUT),
        each("cut-in-character", Mode::CutInCodePoint, EARLY, CUT),
        Fault {
            name: "reset-later",
            mode: Mode::ResetAfter { bytes: 700 },
            // Shorter answers are whole by then.
            whole: [Good, EARLY, Good],
            streams: [CUT; 3],
        },
        each(
            "silence-later",
            Mode::Stall { events: 6 },
            DEADLINE,
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
            whole: [PROTOCOL; 3],
            // A finish reason ends a chat as well.
            streams: [Good, CUT, CUT],
        },
        each("no-end", Mode::MissingEnd { last: 4 }, PROTOCOL, CUT),
        each("two-ends", Mode::DoubleEnd, PROTOCOL, Good),
        // A stream has come to its last event by then.
        each("longer-than-told", wrong_length, EARLY, Good),
    ]
}

/// What comes makes no sense.
fn without_sense(forty_bytes: &str) -> Vec<Fault> {
    let no_json = "data: {\"choices\": [{\"delta\": \n\nand more";
    let no_json = raw(forty_bytes, no_json, Closing::Close);
    let short = raw(forty_bytes, "data: {\"cho", Closing::Close);
    let wrong_type = Mode::with_header("content-type", "text/plain");
    vec![
        each("garbage", Mode::Garbage { bytes: 4_096 }, PROTOCOL, EARLY),
        Fault {
            name: "no-json",
            mode: no_json,
            whole: [Unreadable; 3],
            streams: UNREADABLE_EVENT,
        },
        each("shorter-than-told", short, EARLY, EARLY),
        Fault {
            name: "long-line",
            mode: Mode::LongLine { bytes: LONG },
            whole: [PROTOCOL; 3],
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
        each("compressed", gzip, Good, Good),
        // What need not be understood is handed on as it says it is; the SDKs do not mind.
        each("unknown-encoding", unknown, Good, PROTOCOL),
        // It is decoded piece by piece, and its compressed data does not end.
        Fault {
            name: "gzip-bomb",
            mode: Mode::GzipBomb { bytes: LONG },
            whole: [EARLY; 3],
            streams: UNREADABLE_EVENT,
        },
    ]
}
