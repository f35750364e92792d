//! Holding the beginning of a stream back, and opening it again at the same account when it breaks meanwhile
//! (`sessions-and-streams.md` §4.4). Off unless switched on: it delays the first byte of every stream.
//!
//! Nothing that comes from the upstream has reached the client yet, so another stream in its place is no replay. What is
//! held is given up only for a stream that is there.

use crate::outcome::{Outcome, StreamFault, TransportFault};

/// A stream is handed on after this time, in ms.
pub const HOLD_MS: u64 = 750;
/// A stream is handed on with so many bytes.
pub const HOLD_BYTES: usize = 65_536;
/// A stream is opened again so often, in all.
pub const MAX_REOPENS: u32 = 4;

/// The beginning of a stream that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdback {
    since_ms: u64,
}

impl Holdback {
    /// With the first chunk. `now_ms` is monotonic, of any origin.
    #[must_use]
    pub fn begin(now_ms: u64) -> Self {
        Self { since_ms: now_ms }
    }

    /// Whether the stream is handed on now. To be asked when a chunk arrives, that chunk included in the bytes.
    #[must_use]
    pub fn is_over(self, held_bytes: usize, now_ms: u64) -> bool {
        held_bytes >= HOLD_BYTES || now_ms.saturating_sub(self.since_ms) >= HOLD_MS
    }
}

/// Whether a stream that ended so, before its client saw a byte, may be opened again at the same account after
/// `reopened` times.
///
/// A connection that breaks, a body that falls silent or crawls, an end without the last event: all of these may go away
/// with another connection. An answer of the upstream's own, a certificate, bytes that are not HTTP and limits that hold
/// for the attempt as a whole will not; and a client that left wants nothing any more.
#[must_use]
pub fn may_reopen(outcome: &Outcome, reopened: u32) -> bool {
    reopened < MAX_REOPENS && may_go_away(outcome)
}

fn may_go_away(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Transport(fault) => match fault {
            TransportFault::Resolve
            | TransportFault::Connect
            | TransportFault::Reset
            | TransportFault::HeadersTimeout
            | TransportFault::ProxyUnreachable => true,
            TransportFault::Tls | TransportFault::Protocol => false,
        },
        Outcome::Stream(fault) => match fault {
            StreamFault::EarlyEof
            | StreamFault::Truncated
            | StreamFault::IdleTimeout
            | StreamFault::ThroughputTooLow => true,
            StreamFault::ReadinessTimeout | StreamFault::DeadlineExceeded => false,
        },
        Outcome::Success | Outcome::Response(_) | Outcome::Local(_) | Outcome::ClientAbort => false,
    }
}

#[cfg(test)]
mod tests;
