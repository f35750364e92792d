//! A chat stream that broke after its client had seen text goes on (`sessions-and-streams.md` §4.5). Off unless
//! `streamRecovery.continueMidStream`.
//!
//! ```text
//!  passing on --broke, and the turn may be continued--> clearing --may be sent--> opening --ready--> draining
//!                                                          ^ |                       |              |
//!                                     broke as well, or    | '--- refused ---. .-----' failed       |
//!                                     began anew: again,   |                 v v                    |
//!                                     4 times in all       |              the end, as it broke      |
//!                                                          '----------------------------------------+--> joined
//! ```
//!
//! The continuation owns what it reads; the client's own stream stays as it broke.
//!
//! The client reads nothing while the rest is fetched. It is read to its end before any of it is shown, since only then
//! it is known where it goes on from; what fits is appended as one chunk, and then the end.
//!
//! **What an end may claim.** §4.5 closes cleanly when nothing more can be had; decision 52 outranks it: what did not
//! end as a success is not shown as one. So the finish reason and `[DONE]` are written only when a continuation came to
//! its own end, and the reason is the one that it gave (`stop` where it gave none before its `[DONE]`). When the budget
//! is used up, or a continuation is refused, fails or holds more than text, the client gets the in-band error of what
//! had broken first, and the stream is closed; it never hangs, and nothing is sent twice.
//!
//! **How long it may take.** The client waits for an answer again, so all continuations of a turn together have the time
//! that its combo gives an answer, from the moment it broke (`routing.md` §5.5). When that has passed nothing is sent any
//! more, and what is under way is given up for a limit of ours, of which nobody is to blame. Without a combo the attempts'
//! own limits hold.
//!
//! **A turn that said `stop` and no word.** Its end is kept back while it is asked for once more. If nothing comes of it,
//! the client gets that end: it is what the upstream said.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tidegate_core::outcome::{LocalFault, Outcome, StreamFault};
use tidegate_core::stream::{Joined, Turn, join, may_reopen};
use tokio::time::Instant;

use super::chunk::Shape;
use super::flow::Flow;
use super::stop::Stop;
use crate::again::{Again, Cleared, Denied, Underway};
use crate::control_port::ControlPort;
use crate::event_stream::{EventStream, Read};
use crate::metrics::Continued;
use crate::observe::{Clock, Failure, Observed};
use crate::sse::End;

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A turn that is being continued.
pub(super) struct Continuation<C> {
    again: Arc<Again<C>>,
    /// What the client was given of it.
    given: Turn,
    shape: Shape,
    why: Why,
    /// The end of the turn, which is not shown as long as it may not be the end.
    kept: Vec<Bytes>,
    /// How often it was asked for the rest.
    continued: u32,
    /// When the time for all of it is up, where it has a limit.
    until: Option<Instant>,
    step: Step,
}

/// Why a turn is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It broke.
    Fault(StreamFault),
    /// It ended without a word.
    EmptyStop,
}

/// What passes at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// One that the upstream has to keep.
    Upstream(StreamFault),
    /// The time of the combo for all continuations of a turn.
    Combo,
}

/// What passed is the time of the combo.
const TIME_IS_UP: Outcome = Outcome::Local(LocalFault::TargetExpired);

enum Step {
    /// Nothing is under way.
    Idle,
    /// One more attempt is to be allowed.
    Clearing(Pending<Result<Cleared, Denied>>),
    /// It was sent.
    Opening(Pending<Observed>),
    /// Its stream is read to its end.
    Draining(Box<EventStream>),
}

impl<C> Continuation<C> {
    /// The moment at which what is under way is too late, and what for. `clock` is its own.
    pub(super) fn too_late(&self, clock: &Clock) -> (Option<Instant>, Limit) {
        let (by, fault) = match &self.step {
            Step::Draining(stream) => clock.useful_by(stream.progress),
            // Whoever sends it looks at its other limits.
            Step::Idle | Step::Clearing(_) | Step::Opening(_) => clock.silent_by(None),
        };
        match (by, self.until) {
            (Some(by), Some(until)) if by <= until => (Some(by), Limit::Upstream(fault)),
            (_, Some(until)) => (Some(until), Limit::Combo),
            (by, None) => (by, Limit::Upstream(fault)),
        }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// The client is given more of the turn, which is not known to be complete then.
    fn gives(&mut self, text: &str) {
        // An end that was kept back is not the end any more.
        self.kept = Vec::new();
        if self.why == Why::EmptyStop {
            self.given = Turn::default();
            self.given.chunk();
            self.why = Why::Fault(StreamFault::Truncated);
        }
        self.given.text(text);
    }
}

impl<C: ControlPort> Flow<C> {
    /// Continues the turn in hand, if it may be.
    pub(super) fn goes_on(&mut self, why: Why) -> bool {
        let Some(again) = self.again.take() else {
            return false;
        };
        let passage = &mut self.stream.passage;
        // Half an event cannot be finished by anybody else.
        let is_whole = !passage.is_inside() && !passage.has_error();
        let turn = passage.turn_mut();
        let turn = turn.filter(|turn| is_whole && turn.may_continue(0));
        let (Some(turn), Some(life)) = (turn, self.life.as_mut()) else {
            return false;
        };
        let given = std::mem::take(turn);
        life.uses(passage.tokens().into(), passage.written());
        let (kept, shape) = self.stream.take_end();
        self.stream.let_go();
        if let Why::Fault(fault) = why {
            life.breaks(Outcome::Stream(fault));
        }
        let time = again.time();
        self.continuation = Some(Box::new(Continuation {
            again,
            given,
            shape: shape.unwrap_or_else(|| Shape::of(&life.request_id)),
            why,
            kept,
            continued: 0,
            until: time.and_then(|time| Instant::now().checked_add(time)),
            step: Step::Idle,
        }));
        self.asks_for_the_rest();
        true
    }

    /// Sends the request once more with what the client was given, or ends the stream.
    fn asks_for_the_rest(&mut self) {
        let (Some(continuation), Some(life)) = (&mut self.continuation, &mut self.life) else {
            return;
        };
        life.lets_go();
        continuation.step = Step::Idle;
        self.clock = self.clock.without_end();
        self.changes.notify_one();
        if continuation.is_late() {
            let metrics = &continuation.again.shared.metrics.recovery;
            metrics.continues(Continued::Late);
            return self.gives_up();
        }
        let given = &continuation.given;
        let body = Some(&continuation.again.body)
            .filter(|_| given.may_continue(continuation.continued))
            .and_then(|body| body.continued(given.delivered()));
        let Some(body) = body else {
            return self.gives_up();
        };
        continuation.continued = continuation.continued.saturating_add(1);
        let (again, until) = (Arc::clone(&continuation.again), continuation.until);
        let clearing = async move { again.clear(&body, until).await };
        continuation.step = Step::Clearing(Box::pin(clearing));
    }

    /// Moves the continuation on.
    pub(super) fn poll_continuing(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (Some(continuation), Some(life)) = (&mut self.continuation, &mut self.life) else {
            return Poll::Ready(());
        };
        let metrics = &continuation.again.shared.metrics.recovery;
        match &mut continuation.step {
            Step::Idle => self.gives_up(),
            Step::Draining(stream) => {
                let read = ready!(stream.poll_read(context));
                self.drains(read);
            }
            Step::Clearing(clearing) => match ready!(clearing.as_mut().poll(context)) {
                Ok(cleared) => {
                    if !cleared.reading.continues {
                        // Switched off since.
                        metrics.continues(Continued::Unusable);
                        self.gives_up();
                        return Poll::Ready(());
                    }
                    let max_bytes = continuation.again.shared.limits.max_answer_bytes;
                    let Underway {
                        clock, observed, ..
                    } = cleared.send(life, max_bytes);
                    self.clock = clock;
                    self.changes.notify_one();
                    continuation.step = Step::Opening(observed);
                }
                Err(denied) => {
                    tracing::info!(
                        request_id = life.request_id,
                        error = %denied,
                        "a turn is not continued"
                    );
                    metrics.continues(denied.into());
                    self.gives_up();
                }
            },
            Step::Opening(opening) => match ready!(opening.as_mut().poll(context)) {
                Observed::Stream(_, _, stream) => {
                    life.succeeds();
                    life.takes_over();
                    continuation.step = Step::Draining(stream);
                    self.drains(Read::Taken);
                }
                Observed::Whole(answer) => {
                    // Nobody knows where in it the turn would go on.
                    life.succeeds();
                    life.takes_over();
                    life.uses_answer(&answer);
                    metrics.continues(Continued::Unusable);
                    self.gives_up();
                }
                Observed::Failed(Failure { outcome, .. }) => {
                    metrics.continues(if outcome == TIME_IS_UP {
                        Continued::Late
                    } else {
                        Continued::Failed
                    });
                    life.fails_again(outcome);
                    self.gives_up();
                }
            },
        }
        Poll::Ready(())
    }

    /// What is under way ends before its time.
    pub(super) fn breaks_off_continuing(&mut self, fault: StreamFault) {
        let step = self.continuation.as_ref().map(|it| &it.step);
        if matches!(step, Some(Step::Draining(_))) {
            self.joins(Some(Outcome::Stream(fault)));
        } else {
            self.stop(Stop::Fault(fault));
        }
    }

    /// The time for all continuations of the turn is up.
    pub(super) fn runs_out_of_time(&mut self) {
        let (Some(continuation), Some(life)) = (&mut self.continuation, &mut self.life) else {
            return;
        };
        match &continuation.step {
            Step::Draining(_) => return self.joins(Some(TIME_IS_UP)),
            Step::Opening(_) => life.fails_again(TIME_IS_UP),
            Step::Idle | Step::Clearing(_) => {}
        }
        // What it sent is let go of before its registration.
        continuation.step = Step::Idle;
        let metrics = &continuation.again.shared.metrics.recovery;
        metrics.continues(Continued::Late);
        self.gives_up();
    }

    /// The stream of the continuation was read on.
    fn drains(&mut self, read: Read) {
        let step = self.continuation.as_mut().map(|it| &mut it.step);
        let Some(Step::Draining(stream)) = step else {
            return;
        };
        while stream.next().is_some() {}
        let end = stream.passage.end();
        match read {
            _ if end == End::Closed => self.joins(None),
            Read::Taken => {}
            Read::TooSlow => self.joins(Some(Outcome::Stream(StreamFault::ThroughputTooLow))),
            Read::Ended if end > End::Open => self.joins(None),
            Read::Ended | Read::Broken => {
                self.joins(Some(Outcome::Stream(StreamFault::Truncated)));
            }
        }
    }

    /// The stream of the continuation is over; with a fault, before its time.
    fn joins(&mut self, fault: Option<Outcome>) {
        let (Some(continuation), Some(life)) = (&mut self.continuation, &mut self.life) else {
            return;
        };
        let Step::Draining(mut stream) = std::mem::replace(&mut continuation.step, Step::Idle)
        else {
            return;
        };
        let shared = Arc::clone(&continuation.again.shared);
        let metrics = &shared.metrics.recovery;
        life.uses(stream.passage.tokens().into(), stream.passage.written());
        let turn = stream.passage.turn_mut();
        let new = turn.map(std::mem::take).unwrap_or_default();
        let error = stream.passage.take_error();
        // With what it kept back of its end, which is its own and not the client's.
        drop(stream);
        if let Some(error) = error {
            life.breaks(super::stop::embedded(&error));
            metrics.continues(Continued::Failed);
            return self.gives_up();
        }
        match &fault {
            Some(fault) => life.breaks(fault.clone()),
            None => life.is_complete(),
        }
        if !new.is_plain() {
            metrics.continues(Continued::Unusable);
            return self.gives_up();
        }
        match join(continuation.given.delivered(), new.delivered()) {
            Joined::Suffix(suffix) => {
                let is_said = !continuation.given.delivered().is_empty() || !suffix.is_empty();
                if !suffix.is_empty() {
                    self.ours.push_back(continuation.shape.text(suffix));
                    continuation.gives(suffix);
                }
                match &fault {
                    None if is_said => {
                        metrics.continues(Continued::Joined);
                        let reason = new.finish_reason().unwrap_or("stop");
                        self.ours.push_back(continuation.shape.end(reason));
                        self.continuation = None;
                        return self.is_answered();
                    }
                    // Not a word again.
                    None => metrics.continues(Continued::BeganAnew),
                    Some(fault) => {
                        metrics.continues(if *fault == TIME_IS_UP {
                            Continued::Late
                        } else {
                            Continued::Broke
                        });
                        if !may_reopen(fault, 0) {
                            return self.gives_up();
                        }
                    }
                }
            }
            Joined::Restart => {
                metrics.continues(Continued::BeganAnew);
                // A limit that passed passes again.
                if fault.is_some_and(|fault| !may_reopen(&fault, 0)) {
                    return self.gives_up();
                }
            }
        }
        self.asks_for_the_rest();
    }

    /// There will be no more of the turn than its client has.
    fn gives_up(&mut self) {
        let Some(continuation) = self.continuation.take() else {
            return;
        };
        let Continuation { why, kept, .. } = *continuation;
        self.ours.extend(kept);
        if let Some(life) = &mut self.life {
            life.falls_back();
        }
        match why {
            Why::Fault(fault) => self.is_stopped(Stop::Fault(fault)),
            Why::EmptyStop => self.is_answered(),
        }
    }

    /// The stream is ended by us while it is continued.
    pub(super) fn stops_continuing(&mut self, stop: Stop) {
        let (Some(continuation), Some(life)) = (self.continuation.take(), &mut self.life) else {
            return;
        };
        let Continuation {
            again,
            why,
            kept,
            step,
            ..
        } = *continuation;
        self.ours.extend(kept);
        if let Step::Draining(stream) = &step {
            life.uses(stream.passage.tokens().into(), stream.passage.written());
        }
        match (stop, &step) {
            (Stop::Fault(fault), Step::Draining(_)) => life.breaks(Outcome::Stream(fault)),
            (Stop::Fault(fault), Step::Opening(_)) => {
                let metrics = &again.shared.metrics.recovery;
                metrics.continues(Continued::Failed);
                life.fails_again(Outcome::Stream(fault));
            }
            (Stop::LeaseOver, _) => life.is_cut_off(),
            (Stop::Fault(_), Step::Idle | Step::Clearing(_))
            | (Stop::Drained | Stop::Stalled, _) => {}
        }
        // What it sent is let go of before its registration.
        drop(step);
        life.falls_back();
        match (why, stop) {
            (Why::EmptyStop, Stop::Fault(_) | Stop::Drained | Stop::LeaseOver) => {
                self.is_answered();
            }
            (Why::Fault(fault), Stop::Fault(_)) => self.is_stopped(Stop::Fault(fault)),
            (_, stop) => self.is_stopped(stop),
        }
    }

    /// The client leaves while its turn is continued.
    pub(super) fn leaves_continuing(&mut self) {
        let step = self.continuation.as_ref().map(|it| &it.step);
        if let (Some(Step::Draining(stream)), Some(life)) = (step, &mut self.life) {
            life.uses(stream.passage.tokens().into(), stream.passage.written());
        }
    }
}
