//! The stream itself, which the client's connection moves and the watch may end.
//!
//! **Bytes that come together leave together.** hyper hands over one chunk of an upstream's body at a time, also when the whole
//! of them lies in its buffer. Handed on like that, each of them costs a system call and wakes the client. So what follows
//! other bytes within [`BURST`] is handed on once it is known to be all that is here ([`crate::upstream`]), or
//! [`BATCH_BYTES`]. No timer is involved, and nothing waits for what is not here yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_core::stream::may_reopen;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Opened;
use super::continuation::{Continuation, Limit, Why};
use super::stop::Stop;
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
/// No more is gathered for a client when so much is here. Small beside what is held for one that does not read.
const BATCH_BYTES: usize = 8 * 1024;
/// What comes later than this after other bytes is handed on at once, as the tokens of a model are.
const BURST: Duration = Duration::from_millis(1);

/// See the module's documentation.
pub(super) struct Flow<C: ControlPort> {
    /// The client's.
    pub(super) stream: EventStream,
    pub(super) clock: Clock,
    /// Set with the last event: when the upstream must have hung up.
    pub(super) linger: Option<Instant>,
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
    /// Wakes the client's connection.
    waker: Option<Waker>,
    /// It waits for us.
    is_waiting: bool,
    /// When bytes of the upstream were last handed on.
    handed_on: Option<Instant>,
    /// When the watch looks next, at the latest.
    looked_at_by: Option<Instant>,
    /// Tells the watch that other limits hold.
    pub(super) changes: Arc<Notify>,
}

impl<C: ControlPort> Flow<C> {
    pub(super) fn new(
        opened: Opened<C>,
        life: Life<C>,
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
            life: Some(life),
            again,
            continuation: None,
            ours: VecDeque::new(),
            heartbeat,
            open: Some(open),
            polls: 0,
            waker: None,
            is_waiting: false,
            handed_on: None,
            looked_at_by: None,
            changes: Arc::new(Notify::new()),
        };
        match broken {
            Some(fault) => flow.is_stopped(Stop::Fault(fault)),
            // What came with the first ready event may have been everything.
            None => flow.takes(Read::Taken),
        }
        flow
    }

    /// The next bytes for the client.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.polls = self.polls.wrapping_add(1);
        self.is_waiting = false;
        loop {
            if self.gathers(context) {
                return self.waits(context);
            }
            if let Some(bytes) = self.next_bytes() {
                self.handed_on = Some(Instant::now());
                if let Some(heartbeat) = &mut self.heartbeat {
                    heartbeat.learns(&bytes);
                }
                return Poll::Ready(Some(bytes));
            }
            let Some(life) = &self.life else {
                return Poll::Ready(None);
            };
            // This does not wait for the upstream to fall silent, nor for the watch.
            if life.is_cut() {
                self.stop(Stop::LeaseOver);
                continue;
            }
            let moved = if self.continuation.is_some() {
                self.poll_continuing(context)
            } else {
                self.stream.poll_read(context).map(|read| self.takes(read))
            };
            if moved.is_pending() {
                let (moment, limit) = self.too_late();
                if moment.is_some_and(|moment| moment <= Instant::now()) {
                    match limit {
                        Limit::Upstream(fault) => self.breaks_off(fault),
                        Limit::Combo => self.runs_out_of_time(),
                    }
                    continue;
                }
                if let Some(event) = self.poll_heartbeat(context) {
                    return Poll::Ready(Some(event));
                }
                if let (Some(moment), Some(look)) = (moment, self.looked_at_by)
                    && moment < look
                {
                    self.changes.notify_one();
                }
                return self.waits(context);
            }
        }
    }

    fn waits<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        self.is_waiting = true;
        // It is the same one for as long as the connection lives.
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => self.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Reads on what comes together with what is here for the client. `true` while it is not known whether more does.
    fn gathers(&mut self, context: &mut Context<'_>) -> bool {
        while self.may_gather() {
            match self.stream.poll_read_here(context) {
                Poll::Ready(Some(read)) => self.takes(read),
                Poll::Ready(None) => return false,
                Poll::Pending => return true,
            }
        }
        false
    }

    fn may_gather(&self) -> bool {
        let is_burst = |handed_on: Instant| handed_on.elapsed() < BURST;
        (1..BATCH_BYTES).contains(&self.stream.waiting_bytes())
            && self.handed_on.is_some_and(is_burst)
            && self.continuation.is_none()
            && self.life.as_ref().is_some_and(|life| !life.is_cut())
    }

    /// What is the client's now: first what the upstream sent, then what is ours.
    fn next_bytes(&mut self) -> Option<Bytes> {
        let first = self.stream.next().or_else(|| self.ours.pop_front())?;
        if first.len() >= BATCH_BYTES || self.stream.waiting_bytes() == 0 {
            return Some(first);
        }
        let here = first.len().saturating_add(self.stream.waiting_bytes());
        let mut batch = Vec::with_capacity(here.min(BATCH_BYTES));
        batch.extend_from_slice(&first);
        loop {
            let room = BATCH_BYTES.saturating_sub(batch.len());
            match self.stream.next_within(room) {
                Some(more) => batch.extend_from_slice(&more),
                None => return Some(batch.into()),
            }
        }
    }

    /// Nothing more will come, and the client has all of it.
    pub(super) fn is_over(&self) -> bool {
        self.life.is_none() && self.stream.held_bytes() == 0 && self.ours.is_empty()
    }

    /// Between whole events of a stream that goes on.
    fn poll_heartbeat(&mut self, context: &mut Context<'_>) -> Option<Bytes> {
        let heartbeat = self.heartbeat.as_mut()?;
        let passage = &self.stream.passage;
        // While a turn is being continued it is not over, whatever its own stream said.
        let may =
            self.continuation.is_some() || (passage.end() == End::Open && !passage.is_inside());
        may.then(|| heartbeat.poll(context, passage.sequence()))?
    }

    /// The stream was read on.
    fn takes(&mut self, read: Read) {
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
    }

    /// What is read ends before its time. The turn may go on.
    pub(super) fn breaks_off(&mut self, fault: StreamFault) {
        let is_complete = self.stream.passage.end() == End::Closed;
        if self.continuation.is_some() {
            self.breaks_off_continuing(fault);
        } else if is_complete
            || !may_reopen(&Outcome::Stream(fault), 0)
            || !self.goes_on(Why::Fault(fault))
        {
            self.stop(Stop::Fault(fault));
        }
    }

    /// The moment at which the stream is too late, and what for.
    fn too_late(&self) -> (Option<Instant>, Limit) {
        let (moment, fault) = match (&self.continuation, self.linger) {
            (Some(continuation), _) => return continuation.too_late(&self.clock),
            (None, Some(linger)) => self.clock.silent_by(Some(linger)),
            (None, None) => self.clock.useful_by(self.stream.progress),
        };
        (moment, Limit::Upstream(fault))
    }

    /// When the watch must look next, which it promises to do: at `look`, or before if something may be too late by then.
    /// That is not moved with every event; it is when the watch looks that the newest event counts.
    ///
    /// What passed just before this, nobody has looked at: then it looks at once. A connection that does not wait looks
    /// itself when it asks, so what passed is over for the watch.
    pub(super) fn look_by(&mut self, look: Instant) -> Instant {
        let limits = if self.life.is_some() {
            let (limit, _) = self.too_late();
            let now = Instant::now();
            let watched = limit.filter(|limit| self.is_waiting || *limit > now);
            [self.clock.end, watched]
        } else {
            [None, None]
        };
        let moment = limits.into_iter().flatten().fold(look, Ord::min);
        self.looked_at_by = Some(moment);
        moment
    }

    /// The client's connection waits for bytes that come too late.
    pub(super) fn waits_in_vain(&self, now: Instant) -> bool {
        self.is_waiting && self.too_late().0.is_some_and(|moment| moment <= now)
    }

    /// The client's connection asks again, if it waits.
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.as_ref().filter(|_| self.is_waiting) {
            self.is_waiting = false;
            waker.wake_by_ref();
        }
    }
}

impl<C: ControlPort> Drop for Flow<C> {
    fn drop(&mut self) {
        // A client that leaves after the last event, before the upstream hung up, has its whole answer.
        if self.continuation.is_some() {
            self.leaves_continuing();
        } else if self.stream.passage.end() == End::Closed {
            self.finish();
        } else if let Some(life) = self.life.as_mut() {
            life.uses(
                self.stream.passage.tokens().into(),
                self.stream.passage.written(),
            );
        }
    }
}
