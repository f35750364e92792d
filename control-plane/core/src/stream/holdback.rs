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

/// The beginning of a stream that is held back, over all attempts at it. Times are in ms, monotonic, of any origin.
///
/// Of an upstream that falls silent nothing is shown before its next word, so what bounds the wait is its idle time; and
/// each attempt in its place has one of its own. That a client waits for one after the other has a limit: from
/// `limit_ms` after the first attempt began to be held, which is the idle time too, what becomes ready is shown at once
/// and what fails is not opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdback {
    began_ms: u64,
    limit_ms: Option<u64>,
    /// The attempt in hand is held since then.
    since_ms: u64,
    reopened: u32,
    /// The attempt in hand was opened when all the time was used up.
    is_last: bool,
}

impl Holdback {
    /// With the first chunk of the first attempt; without a limit all attempts may take their time.
    #[must_use]
    pub fn begin(now_ms: u64, limit_ms: Option<u64>) -> Self {
        Self {
            began_ms: now_ms,
            limit_ms,
            since_ms: now_ms,
            reopened: 0,
            is_last: false,
        }
    }

    /// Whether the stream is handed on now. To be asked when a chunk arrives, that chunk included in the bytes.
    #[must_use]
    pub fn is_over(&self, held_bytes: usize, now_ms: u64) -> bool {
        held_bytes >= HOLD_BYTES
            || now_ms.saturating_sub(self.since_ms) >= HOLD_MS
            || self.is_used_up(now_ms)
    }

    /// Whether one more attempt may take the place of one that ended so.
    #[must_use]
    pub fn may_reopen(&self, outcome: &Outcome) -> bool {
        !self.is_last && may_reopen(outcome, self.reopened)
    }

    /// One more attempt is made.
    pub fn reopens(&mut self, now_ms: u64) {
        self.reopened = self.reopened.saturating_add(1);
        self.is_last = self.is_used_up(now_ms);
    }

    /// It is ready.
    pub fn is_ready(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    fn is_used_up(&self, now_ms: u64) -> bool {
        let held_ms = now_ms.saturating_sub(self.began_ms);
        self.limit_ms.is_some_and(|limit_ms| held_ms >= limit_ms)
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
