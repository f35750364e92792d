//! The stream itself, which the client's connection moves and the watch may end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_core::stream::may_reopen;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::continuation::{Continuation, Why};
use super::stop::Stop;
use super::{LOOK_EVERY, Opened};
use crate::again::Again;
use crate::control_port::ControlPort;
use crate::event_stream::{EventStream, Read};
use crate::heartbeat::Heartbeat;
use crate::life::Life;
use crate::metrics::Counted;
use crate::observe::Clock;
use crate::sse::End;

/// After the last event an upstream has this long to end its stream.
const LINGER: Duration = Duration::from_secs(2);

/// See the module's documentation.
pub(super) struct Flow<C: ControlPort> {
    /// The client's, or, while its turn is continued, that of the continuation.
    pub(super) stream: EventStream,
    pub(super) clock: Clock,
    /// Set with the last event: when the upstream must have hung up.
    pub(super) linger: Option<Instant>,
    /// Fires at or before the next moment at which something may be too late.
    timer: Pin<Box<Sleep>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Comes at the horizon of its lease, if it is under one.
    pub(super) cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The turn is being continued. Dropped before the request, whose registration covers what it sent.
    pub(super) continuation: Option<Box<Continuation<C>>>,
    /// `None` once the request has ended.
    pub(super) life: Option<Life<C>>,
    /// With what the turn may be continued, if it may.
    pub(super) again: Option<Arc<Again<C>>>,
    /// Bytes of ours after the upstream's.
    pub(super) ours: VecDeque<Bytes>,
    pub(super) heartbeat: Option<Heartbeat>,
    /// Counts the stream while it is open.
    pub(super) open: Option<Counted>,
    /// How often the client's connection asked.
    pub(super) polls: u64,
    /// Wakes the client's connection while it waits for us.
    pub(super) waker: Option<Waker>,
    /// Tells the watch that other limits hold.
    pub(super) changes: Arc<Notify>,
}

impl<C: ControlPort> Flow<C> {
    pub(super) fn new(
        opened: Opened<C>,
        life: Life<C>,
        drained: CancellationToken,
        open: Counted,
        heartbeat: Option<Heartbeat>,
    ) -> Self {
        let Opened {
            stream,
            clock,
            broken,
            again,
        } = opened;
        let mut flow = Self {
            stream,
            clock,
            linger: None,
            timer: Box::pin(tokio::time::sleep(LOOK_EVERY)),
            drained: Box::pin(drained.cancelled_owned()),
            cut: life.cut().map(Box::pin),
            life: Some(life),
            again,
            continuation: None,
            ours: VecDeque::new(),
            heartbeat,
            open: Some(open),
            polls: 0,
            waker: None,
            changes: Arc::new(Notify::new()),
        };
        flow.set_timer();
        match broken {
            Some(fault) => flow.is_broken(fault),
            // What came with the first ready event may have been everything.
            None => flow.takes(Read::Taken),
        }
        flow
    }

    /// The next bytes for the client.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.polls = self.polls.wrapping_add(1);
        self.waker = None;
        loop {
            if let Some(bytes) = self.next_bytes() {
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.learns(&bytes);
                }
                return Poll::Ready(Some(bytes));
            }
            let Some(life) = &self.life else {
                return Poll::Ready(None);
            };
            // Neither this nor the next wait for the upstream to fall silent.
            if life.is_cut() {
                self.stop(Stop::LeaseOver);
                continue;
            }
            if self.clock.end.is_some_and(|end| end <= Instant::now()) {
                self.breaks_off(StreamFault::DeadlineExceeded);
                continue;
            }
            let moved = if self.is_asking() {
                self.poll_asking(context)
            } else {
                self.stream.poll_read(context).map(|read| self.takes(read))
            };
            if moved.is_pending() {
                let Some(stop) = self.poll_limits(context) else {
                    if let Some(event) = self.poll_heartbeat(context) {
                        return Poll::Ready(Some(event));
                    }
                    self.waker = Some(context.waker().clone());
                    return Poll::Pending;
                };
                match stop {
                    Stop::Fault(fault) => self.breaks_off(fault),
                    stop => self.stop(stop),
                }
            }
        }
    }

    /// What is the client's now: of its own stream first what the upstream sent, then what is ours.
    fn next_bytes(&mut self) -> Option<Bytes> {
        let is_draining = self
            .continuation
            .as_ref()
            .is_some_and(|it| it.is_draining());
        let next = if is_draining {
            None
        } else {
            self.stream.next()
        };
        next.or_else(|| self.ours.pop_front())
    }

    /// Between whole events of a stream that goes on.
    fn poll_heartbeat(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        let heartbeat = self.heartbeat.as_mut()?;
        let passage = &self.stream.passage;
        // While a turn is being continued the stream in hand is not the client's.
        let may =
            self.continuation.is_some() || (passage.end() == End::Open && !passage.is_inside());
        may.then(|| heartbeat.poll(context, passage.sequence()))?
    }

    /// A continuation has no stream yet.
    fn is_asking(&self) -> bool {
        self.continuation
            .as_ref()
            .is_some_and(|it| !it.is_draining())
    }

    /// The stream in hand was read on.
    fn takes(&mut self, read: Read) {
        if self.continuation.is_some() {
            return self.drains(read);
        }
        match (read, self.stream.passage.end()) {
            (Read::Taken | Read::TooSlow, End::Closed) => self.lingers(),
            (Read::Taken, _) => {}
            (Read::TooSlow, _) => self.breaks_off(StreamFault::ThroughputTooLow),
            (Read::Ended | Read::Broken, End::Closed) => self.finish(),
            (Read::Ended, End::Finished) => {
                if !(self.stream.keeps_end() && self.goes_on(Why::EmptyStop)) {
                    self.finish();
                }
            }
            (Read::Ended | Read::Broken, _) => self.breaks_off(StreamFault::Truncated),
        }
    }

    /// The last event came.
    fn lingers(&mut self) {
        if self.linger.is_some() || (self.stream.keeps_end() && self.goes_on(Why::EmptyStop)) {
            return;
        }
        self.stream.show_end();
        self.linger = Instant::now().checked_add(LINGER);
        self.set_timer();
    }

    /// The stream in hand ends before its time. Its turn may go on.
    fn breaks_off(&mut self, fault: StreamFault) {
        let is_complete = self.stream.passage.end() == End::Closed;
        if self.is_asking() || is_complete {
            self.stop(Stop::Fault(fault));
        } else if self.continuation.is_some() {
            self.joins(Some(fault));
        } else if !may_reopen(&Outcome::Stream(fault), 0) || !self.goes_on(Why::Fault(fault)) {
            self.stop(Stop::Fault(fault));
        }
    }

    /// The moment at which the stream is too late, and what for.
    fn too_late(&self) -> (Option<Instant>, StreamFault) {
        match self.linger {
            // Whoever sends the continuation looks at its other limits.
            _ if self.is_asking() => self.clock.silent_by(None),
            Some(linger) => self.clock.silent_by(Some(linger)),
            None => self.clock.useful_by(self.stream.progress),
        }
    }

    pub(super) fn set_timer(&mut self) {
        let moment = self.too_late().0;
        let moment = moment.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
        self.timer.as_mut().reset(moment);
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
}

impl<C: ControlPort> Drop for Flow<C> {
    fn drop(&mut self) {
        // A client that leaves after the last event, before the upstream hung up, has its whole answer.
        if self.stream.passage.end() == End::Closed && self.continuation.is_none() {
            self.finish();
        } else if let Some(life) = self.life.as_mut() {
            life.uses(
                self.stream.passage.tokens().into(),
                self.stream.passage.written(),
            );
        }
    }
}
