//! A committed stream on its way to the client.
//!
//! The client's connection asks for the next bytes, this asks the upstream, so a slow client slows the upstream
//! down and a client that leaves drops everything at once. A client that opens no window is not asked for: a
//! watch beside it ([`attend`]) lets go of the upstream then. What ends it:
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
//! | the horizon of its lease | in-band error | `LeaseConflict`, which blames nobody |
//! | the client takes nothing for the stall time | in-band error, should it read on | none |
//! | the client leaves | – | none |

mod attend;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tidegate_core::lease::LeaseError;
use tidegate_core::outcome::{Outcome, StreamFault, UpstreamError};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::control_port::ControlPort;
use crate::event_stream::EventStream;
use crate::heartbeat::Heartbeat;
use crate::life::{Ending, Life};
use crate::metrics::Counted;
use crate::observe::Clock;
use crate::passage::Passage;
use crate::reply::in_band;
use crate::sse::End;
use crate::upstream::UpstreamBody;

/// After the last event an upstream has this long to end its stream.
const LINGER: Duration = Duration::from_secs(2);
/// Without any limit the clock is still looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// See the module's documentation.
pub(crate) struct StreamBody<C: ControlPort> {
    flow: Arc<Mutex<Flow<C>>>,
    /// Ends the watch.
    _over: DropGuard,
}

/// What a stream needs beside the upstream and the request.
pub(crate) struct Surroundings<'a> {
    /// Where its watch runs.
    pub(crate) tasks: &'a TaskTracker,
    /// Cancelled at the end of a drain.
    pub(crate) drained: CancellationToken,
    /// How long a client may take nothing.
    pub(crate) stall_time: Duration,
    /// Counts the stream while it is open.
    pub(crate) open: Counted,
    /// Its signs of life, if it has any.
    pub(crate) heartbeat: Option<Heartbeat>,
}

/// The stream itself, which the client's connection moves and the watch may end.
struct Flow<C: ControlPort> {
    /// `None` once it is let go.
    upstream: Option<UpstreamBody>,
    passage: Passage,
    /// When the last useful or protected event came.
    progress: Instant,
    clock: Clock,
    /// Set with the last event: when the upstream must have hung up.
    linger: Option<Instant>,
    /// Fires at or before the next moment at which something may be too late.
    timer: Pin<Box<Sleep>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Comes at the horizon of its lease, if it is under one.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// `None` once the request has ended.
    life: Option<Life<C>>,
    /// Bytes of ours after the upstream's.
    last_words: Option<Bytes>,
    heartbeat: Option<Heartbeat>,
    /// Counts the stream while it is open.
    open: Option<Counted>,
    /// How often the client's connection asked.
    polls: u64,
    /// Wakes the client's connection while it waits for us.
    waker: Option<Waker>,
}

impl<C: ControlPort> std::fmt::Debug for StreamBody<C> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StreamBody").finish_non_exhaustive()
    }
}

/// Why a stream is ended by us.
#[derive(Clone, Copy)]
enum Stop {
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
            Self::Stalled => "client_stalled",
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
            Self::Stalled => "the client did not read in time",
        }
    }
}

impl<C: ControlPort> StreamBody<C> {
    /// Starts the watch, too.
    pub(crate) fn new(
        stream: EventStream,
        clock: Clock,
        life: Life<C>,
        around: Surroundings<'_>,
    ) -> Self {
        let watched_cut = life.cut();
        let mut flow = Flow {
            upstream: Some(stream.body),
            passage: stream.passage,
            progress: stream.progress,
            clock,
            linger: None,
            timer: Box::pin(tokio::time::sleep(LOOK_EVERY)),
            drained: Box::pin(around.drained.clone().cancelled_owned()),
            cut: life.cut().map(Box::pin),
            life: Some(life),
            last_words: None,
            heartbeat: around.heartbeat,
            open: Some(around.open),
            polls: 0,
            waker: None,
        };
        // What came with the first ready event may have been everything.
        flow.take(Bytes::new());
        flow.set_timer();
        let flow = Arc::new(Mutex::new(flow));
        let over = CancellationToken::new();
        around.tasks.spawn(attend::attend(
            Arc::downgrade(&flow),
            over.clone(),
            attend::Limits {
                drained: around.drained,
                cut: watched_cut,
                stall_time: around.stall_time,
                end: clock.end,
            },
        ));
        Self {
            flow,
            _over: over.drop_guard(),
        }
    }
}

impl<C: ControlPort> Flow<C> {
    /// The moment at which the stream is too late, and what for.
    fn too_late(&self) -> (Option<Instant>, StreamFault) {
        let idle = self.clock.idle();
        let idle = idle.and_then(|idle| self.progress.checked_add(idle));
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
        if self.passage.take(data).progressed {
            self.progress = Instant::now();
        }
        if self.linger.is_none() && self.passage.end() == End::Closed {
            self.linger = Instant::now().checked_add(LINGER);
            self.set_timer();
        }
    }

    /// Whether a limit passed; if not, the timer is set to the next one.
    fn poll_limits(&mut self, context: &mut Context<'_>) -> Option<Stop> {
        if self.drained.as_mut().poll(context).is_ready() {
            return Some(Stop::Drained);
        }
        let cut = self.cut.as_mut();
        if cut.is_some_and(|cut| cut.as_mut().poll(context).is_ready()) {
            return Some(Stop::LeaseOver);
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

    /// Between whole events of a stream that goes on.
    fn poll_heartbeat(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        let heartbeat = self.heartbeat.as_mut()?;
        let may = self.passage.end() == End::Open && !self.passage.is_inside();
        may.then(|| heartbeat.poll(context, self.passage.sequence()))?
    }

    /// The upstream's stream is over, one way or the other.
    fn over(&mut self, orderly: bool) {
        match self.passage.end() {
            End::Closed => self.finish(),
            End::Finished if orderly => self.finish(),
            End::Finished | End::Open => self.stop(Stop::Fault(StreamFault::Truncated)),
        }
    }

    /// The upstream is not needed any more, though the client may be slow to take what is left.
    fn let_go(&mut self) {
        self.upstream = None;
        self.open = None;
    }

    fn finish(&mut self) {
        self.let_go();
        let error = self.passage.take_error();
        let Some(mut life) = self.life.take() else {
            return;
        };
        life.uses(self.passage.tokens());
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
        if self.passage.end() == End::Closed {
            // The client has everything; the upstream only failed to hang up.
            return self.finish();
        }
        self.let_go();
        let Some(mut life) = self.life.take() else {
            return;
        };
        life.uses(self.passage.tokens());
        match stop {
            Stop::Fault(fault) => life.breaks(Outcome::Stream(fault)),
            Stop::LeaseOver => life.is_cut_off(),
            Stop::Drained | Stop::Stalled => {}
        }
        match stop {
            // Told or not, the client has as good as left.
            Stop::Stalled => drop(life),
            Stop::Fault(_) | Stop::Drained | Stop::LeaseOver => life.end(Ending::BrokenStream),
        }
        let event = in_band(
            self.passage.dialect(),
            stop.code(),
            stop.message(),
            self.passage.sequence(),
        );
        self.last_words = Some(if self.passage.is_inside() {
            // Ends the event the client was in the middle of.
            [b"\n\n".as_slice(), &event].concat().into()
        } else {
            event
        });
    }
}

/// So much of an error event is reported; at most four times as many bytes.
const MAX_ERROR_CHARACTERS: usize = tidegate_core::outcome::MAX_BODY_BYTES / 4;

impl<C: ControlPort> Flow<C> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.polls = self.polls.wrapping_add(1);
        self.waker = None;
        loop {
            if let Some(bytes) = self.passage.next() {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.learns(&bytes);
                }
                return Poll::Ready(Some(bytes));
            }
            let upstream = match self.upstream.as_mut() {
                Some(upstream) if self.life.is_some() => upstream,
                _ => return Poll::Ready(self.last_words.take()),
            };
            // Neither this nor the next wait for the upstream to fall silent.
            if self.life.as_ref().is_some_and(Life::is_cut) {
                self.stop(Stop::LeaseOver);
                continue;
            }
            if self.clock.end.is_some_and(|end| end <= Instant::now()) {
                self.stop(Stop::Fault(StreamFault::DeadlineExceeded));
                continue;
            }
            match Pin::new(upstream).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.take(data);
                    }
                }
                Poll::Ready(Some(Err(_))) => self.over(false),
                Poll::Ready(None) => {
                    self.passage.finish();
                    self.over(true);
                }
                Poll::Pending => match self.poll_limits(context) {
                    Some(stop) => self.stop(stop),
                    None => {
                        if let Some(event) = self.poll_heartbeat(context) {
                            return Poll::Ready(Some(event));
                        }
                        self.waker = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                },
            }
        }
    }
}

impl<C: ControlPort> Body for StreamBody<C> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.flow.lock().poll_next(context);
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl<C: ControlPort> Drop for Flow<C> {
    fn drop(&mut self) {
        // A client that leaves after the last event, before the upstream hung up, has its whole answer.
        if self.passage.end() == End::Closed {
            self.finish();
        } else if let Some(life) = self.life.as_mut() {
            life.uses(self.passage.tokens());
        }
    }
}
