//! How a stream ends, and what is said of it.

use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{Outcome, StreamFault, UpstreamError};

use super::flow::Flow;
use crate::control_port::ControlPort;
use crate::life::Ending;
use crate::reply::in_band;
use crate::sse::End;

/// So much of an error event is reported; at most four times as many bytes.
const MAX_ERROR_CHARACTERS: usize = tidegate_core::outcome::MAX_BODY_BYTES / 4;

/// Code and message for a client that took nothing.
pub(crate) const STALLED: (&str, &str) = ("client_stalled", "the client did not read in time");

/// Why a stream is ended by us.
#[derive(Clone, Copy)]
pub(super) enum Stop {
    Fault(StreamFault),
    Drained,
    /// Its connection may be somebody else's from now on.
    LeaseOver,
    /// The client took nothing.
    Stalled,
}

impl Stop {
    fn code(self) -> &'static str {
        match self {
            Self::Fault(fault) => fault.code(),
            Self::Drained => "shutting_down",
            Self::LeaseOver => LeaseError::FenceStale.code(),
            Self::Stalled => STALLED.0,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Fault(StreamFault::IdleTimeout) => "the upstream stopped sending",
            Self::Fault(StreamFault::DeadlineExceeded) => "the answer took too long",
            Self::Fault(StreamFault::ThroughputTooLow) => "the upstream sent too little",
            Self::Fault(
                StreamFault::ReadinessTimeout | StreamFault::EarlyEof | StreamFault::Truncated,
            ) => "the upstream's stream broke off",
            Self::Drained => "the service is shutting down",
            Self::LeaseOver => "the lease is not the current one",
            Self::Stalled => STALLED.1,
        }
    }
}

/// An error event in the middle of a stream, as an outcome.
pub(super) fn embedded(body: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(body);
    Outcome::Response(UpstreamError {
        status: 200,
        headers: Vec::new(),
        body: text.chars().take(MAX_ERROR_CHARACTERS).collect(),
        embedded: true,
    })
}

impl<C: ControlPort> Flow<C> {
    /// The upstream is not needed any more, though the client may be slow to take what is left.
    fn let_go(&mut self) {
        self.stream.let_go();
        self.open = None;
    }

    /// The stream ended as it should.
    pub(super) fn finish(&mut self) {
        self.let_go();
        self.stream.show_end();
        let error = self.stream.passage.take_error();
        let Some(mut life) = self.life.take() else {
            return;
        };
        life.uses(
            self.stream.passage.tokens().into(),
            self.stream.passage.written(),
        );
        match error {
            None => life.end(Ending::Answered),
            Some(body) => {
                life.breaks(embedded(&body));
                life.end(Ending::BrokenStream);
            }
        }
    }

    /// The stream ends before its time.
    pub(super) fn stop(&mut self, stop: Stop) {
        if self.continuation.is_some() {
            return self.stops_continuing(stop);
        }
        if self.life.is_none() {
            if matches!(stop, Stop::Stalled) {
                self.drops_rest();
            }
            return;
        }
        let is_kept_waiting = matches!(stop, Stop::Stalled) && self.stream.held_bytes() > 0;
        if self.stream.passage.end() == End::Closed && !is_kept_waiting {
            // The client has everything; the upstream only failed to hang up.
            return self.finish();
        }
        self.let_go();
        let Some(life) = self.life.as_mut() else {
            return;
        };
        life.uses(
            self.stream.passage.tokens().into(),
            self.stream.passage.written(),
        );
        match stop {
            Stop::Fault(fault) => life.breaks(Outcome::Stream(fault)),
            Stop::LeaseOver => life.is_cut_off(),
            Stop::Drained | Stop::Stalled => {}
        }
        self.is_stopped(stop);
    }

    /// Everything was told of a stream that ended before its time, but to its client. What is here is all there will
    /// be.
    pub(super) fn is_stopped(&mut self, stop: Stop) {
        self.let_go();
        self.stream.show_end();
        let Some(life) = self.life.take() else {
            return;
        };
        match stop {
            Stop::Stalled => {
                drop(life);
                self.drops_rest();
            }
            Stop::Fault(_) | Stop::Drained | Stop::LeaseOver => {
                life.end(Ending::BrokenStream);
                self.says(stop, self.stream.passage.is_inside());
            }
        }
    }

    /// Told or not, the client has as good as left, and nothing is kept for it but a word.
    fn drops_rest(&mut self) {
        let waited = !self.ours.is_empty();
        self.ours.clear();
        let is_inside = self.stream.forget() || waited;
        self.says(Stop::Stalled, is_inside);
    }

    /// The client has all of an answer.
    pub(super) fn is_answered(&mut self) {
        self.let_go();
        if let Some(life) = self.life.take() {
            life.end(Ending::Answered);
        }
    }

    /// The client is told, in its format, maybe in the middle of an event.
    fn says(&mut self, stop: Stop, is_inside: bool) {
        let passage = &self.stream.passage;
        let event = in_band(
            passage.dialect(),
            stop.code(),
            stop.message(),
            passage.sequence(),
        );
        self.ours.push_back(if is_inside {
            // Ends the event the client was in the middle of.
            [b"\n\n".as_slice(), &event].concat().into()
        } else {
            event
        });
    }
}
