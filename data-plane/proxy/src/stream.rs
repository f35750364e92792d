//! A committed stream on its way to the client.
//!
//! Nothing runs beside it: the client's connection asks for the next bytes, this asks the upstream, so a slow
//! client slows the upstream down and a client that leaves drops everything at once. What ends it:
//!
//! | end | client sees | report |
//! |---|---|---|
//! | the dialect's last event, then the upstream's end | just that | none beyond the success at readiness |
//! | a finish reason, then an orderly end | just that | none |
//! | broken, or an end without either | in-band error | `Truncated` |
//! | no useful event in time | in-band error | `IdleTimeout` |
//! | the attempt's deadline | in-band error | `DeadlineExceeded` |
//! | the upstream's own error event | just that | the error, as embedded |
//! | a drain's end | in-band error | none |
//! | the client leaves | – | none |

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tidegate_core::outcome::{Outcome, StreamFault, UpstreamError};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::control_port::ControlPort;
use crate::event_stream::EventStream;
use crate::life::{Ending, Life};
use crate::metrics::Counted;
use crate::observe::Clock;
use crate::reply::in_band;
use crate::sse::End;

/// After the last event an upstream has this long to end its stream.
const LINGER: Duration = Duration::from_secs(2);
/// Without any limit the clock is still looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// See the module's documentation.
pub(crate) struct StreamBody<C: ControlPort> {
    stream: Box<EventStream>,
    clock: Clock,
    /// Set with the last event: when the upstream must have hung up.
    linger: Option<Instant>,
    /// Fires at or before the next moment at which something may be too late.
    timer: Pin<Box<Sleep>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// `None` once the request has ended.
    life: Option<Life<C>>,
    /// Bytes of ours after the upstream's.
    last_words: Option<Bytes>,
    /// Counts the stream while it is open.
    _open: Counted,
}

impl<C: ControlPort> std::fmt::Debug for StreamBody<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("StreamBody")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// Why a stream is ended by us.
#[derive(Clone, Copy)]
enum Stop {
    Fault(StreamFault),
    Drained,
}

impl Stop {
    fn code(self) -> &'static str {
        match self {
            Self::Fault(StreamFault::IdleTimeout) => "stream_idle_timeout",
            Self::Fault(StreamFault::DeadlineExceeded) => "attempt_deadline_exceeded",
            Self::Fault(StreamFault::ReadinessTimeout) => "STREAM_READINESS_TIMEOUT",
            Self::Fault(StreamFault::EarlyEof) => "STREAM_EARLY_EOF",
            Self::Fault(StreamFault::Truncated) => "stream_terminated",
            Self::Drained => "shutting_down",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Fault(StreamFault::IdleTimeout) => "the upstream stopped sending",
            Self::Fault(StreamFault::DeadlineExceeded) => "the answer took too long",
            Self::Fault(
                StreamFault::ReadinessTimeout | StreamFault::EarlyEof | StreamFault::Truncated,
            ) => "the upstream's stream broke off",
            Self::Drained => "the service is shutting down",
        }
    }
}

impl<C: ControlPort> StreamBody<C> {
    pub(crate) fn new(
        stream: Box<EventStream>,
        clock: Clock,
        drained: WaitForCancellationFutureOwned,
        life: Life<C>,
        open: Counted,
    ) -> Self {
        let mut body = Self {
            stream,
            clock,
            linger: None,
            timer: Box::pin(tokio::time::sleep(LOOK_EVERY)),
            drained: Box::pin(drained),
            life: Some(life),
            last_words: None,
            _open: open,
        };
        // What came with the first ready event may have been everything.
        body.take(Bytes::new());
        body.set_timer();
        body
    }

    /// The moment at which the stream is too late, and what for.
    fn too_late(&self) -> (Option<Instant>, StreamFault) {
        let idle = self.clock.idle();
        let idle = idle.and_then(|idle| self.stream.progress.checked_add(idle));
        let idle = self.linger.or(idle);
        match (idle, self.clock.end) {
            (Some(idle), Some(end)) if end <= idle => (Some(end), StreamFault::DeadlineExceeded),
            (None, end) => (end, StreamFault::DeadlineExceeded),
            (idle, _) => (idle, StreamFault::IdleTimeout),
        }
    }

    fn set_timer(&mut self) {
        let moment = self.too_late().0;
        let moment = moment.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
        self.timer.as_mut().reset(moment);
    }

    fn take(&mut self, data: Bytes) {
        if self.stream.passage.take(data) {
            self.stream.progress = Instant::now();
        }
        if self.linger.is_none() && self.stream.passage.end() == End::Closed {
            self.linger = Instant::now().checked_add(LINGER);
            self.set_timer();
        }
    }

    /// The attempt's own end does not wait for the upstream to fall silent.
    fn is_past_end(&self) -> bool {
        self.clock.end.is_some_and(|end| end <= Instant::now())
    }

    /// Whether a limit passed; if not, the timer is set to the next one.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Option<Stop> {
        if self.drained.as_mut().poll(context).is_ready() {
            return Some(Stop::Drained);
        }
        // The timer is not moved with every event; it is when it fires that the newest event counts.
        while self.timer.as_mut().poll(context).is_ready() {
            let (moment, fault) = self.too_late();
            if moment.is_some_and(|moment| moment <= Instant::now()) {
                return Some(Stop::Fault(fault));
            }
            self.set_timer();
        }
        None
    }

    /// The upstream's stream is over, one way or the other.
    fn over(&mut self, orderly: bool) {
        match self.stream.passage.end() {
            End::Closed => self.finish(),
            End::Finished if orderly => self.finish(),
            End::Finished | End::Open => self.stop(Stop::Fault(StreamFault::Truncated)),
        }
    }

    fn finish(&mut self) {
        let error = self.stream.passage.take_error();
        let Some(mut life) = self.life.take() else {
            return;
        };
        life.uses(self.stream.passage.tokens());
        match error {
            None => life.end(Ending::Answered),
            Some(body) => {
                let text = String::from_utf8_lossy(&body);
                life.breaks(Outcome::Response(UpstreamError {
                    status: 200,
                    headers: Vec::new(),
                    body: text.chars().take(MAX_ERROR_CHARACTERS).collect(),
                    embedded: true,
                }));
                life.end(Ending::BrokenStream);
            }
        }
    }

    fn stop(&mut self, stop: Stop) {
        if self.stream.passage.end() == End::Closed {
            // The client has everything; the upstream only failed to hang up.
            return self.finish();
        }
        let Some(mut life) = self.life.take() else {
            return;
        };
        life.uses(self.stream.passage.tokens());
        if let Stop::Fault(fault) = stop {
            life.breaks(Outcome::Stream(fault));
        }
        life.end(Ending::BrokenStream);
        let event = in_band(
            self.stream.passage.dialect(),
            stop.code(),
            stop.message(),
            self.stream.passage.sequence(),
        );
        self.last_words = Some(if self.stream.passage.is_inside() {
            // Ends the event the client was in the middle of.
            [b"\n\n".as_slice(), &event].concat().into()
        } else {
            event
        });
    }
}

/// So much of an error event is reported; at most four times as many bytes.
const MAX_ERROR_CHARACTERS: usize = tidegate_core::outcome::MAX_BODY_BYTES / 4;

impl<C: ControlPort> Body for StreamBody<C> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.stream.passage.next() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.life.is_none() {
                let words = this.last_words.take();
                return Poll::Ready(words.map(|words| Ok(Frame::data(words))));
            }
            if this.is_past_end() {
                this.stop(Stop::Fault(StreamFault::DeadlineExceeded));
                continue;
            }
            match Pin::new(&mut this.stream.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        this.take(data);
                    }
                }
                Poll::Ready(Some(Err(_))) => this.over(false),
                Poll::Ready(None) => {
                    this.stream.passage.finish();
                    this.over(true);
                }
                Poll::Pending => match this.poll_limits(context) {
                    Some(stop) => this.stop(stop),
                    None => return Poll::Pending,
                },
            }
        }
    }
}

impl<C: ControlPort> Drop for StreamBody<C> {
    fn drop(&mut self) {
        // A client that leaves after the last event, before the upstream hung up, has its whole answer.
        if self.stream.passage.end() == End::Closed {
            self.finish();
        } else if let Some(life) = self.life.as_mut() {
            life.uses(self.stream.passage.tokens());
        }
    }
}
