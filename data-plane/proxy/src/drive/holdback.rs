//! The beginning of a stream is held back for a moment, so that one that breaks at once can be opened again without its
//! client noticing (`sessions-and-streams.md` §4.4). Off unless `streamRecovery.enabled`.
//!
//! **Until when.** From the first ready event until [`Holdback::is_over`] with a chunk, the end of the stream, or its
//! failure. It is a chunk that ends it, not the time alone: of an upstream that falls silent nothing is shown before its
//! next word, its idle time or its deadline. The headers wait as long (decision 53), so a client that leaves meanwhile
//! has been sent nothing: everything is dropped, and no further request is made for it. One that would hear nothing for
//! longer than heartbeats are apart is promised its stream ([`crate::early`]), as signs of life are no part of it.
//!
//! **What then.** A stream that breaks is opened again where it was ([`Again`]), under the permit that the request
//! holds. The attempt that broke is reported as one that broke; what it sent is kept until the new stream is ready, and
//! then dropped. Each attempt is held back anew, and all of them together for the idle time and one attempt more at most;
//! nothing is sent when the time of the request is up. When none comes, the client gets what was held and the error of its
//! format, since that is more than nothing, and no other target is tried: a part of an answer is not what a further
//! target could go on from.
//!
//! **An error event** is an answer of the upstream's own, and nothing of it has been seen: it is judged like one that
//! comes first, and the request goes on to where it would go after that (decision 16).

use std::time::Duration;

use bytes::Bytes;
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_core::stream::Holdback;
use tokio::time::Instant;

use crate::again::{Again, Denied, Underway};
use crate::control_port::ControlPort;
use crate::event_stream::{EventStream, Read};
use crate::fence;
use crate::metrics::Resent;
use crate::observe::{Answered, Clock, Failure, Observed, embedded, within};
use crate::passage::Passage;
use crate::refusal::Refusal;
use crate::sse::End as StreamEnd;

use super::{Drive, End, Ready, Source};

/// All attempts at a stream while it is held back, in ms since the first of them became ready.
struct Hold {
    began: Instant,
    holdback: Holdback,
}

impl Hold {
    fn begin(clock: &Clock) -> Self {
        let limit_ms = clock.idle().map(millis);
        Self {
            began: Instant::now(),
            holdback: Holdback::begin(0, limit_ms),
        }
    }

    fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Why a stream is not handed on.
enum Unfit {
    Broken(StreamFault),
    /// An error event came.
    Error(Bytes),
}

impl<C: ControlPort> Drive<C> {
    /// Holds a stream back until its client may see it, or until it has failed for good. `None` when the request is to
    /// be decided on anew.
    ///
    /// # Errors
    /// [`Refusal::Lease`] when its lease cuts it, or lets nothing go out again: the client has seen nothing.
    pub(super) async fn hold(
        &mut self,
        mut ready: Box<Ready>,
        source: Option<Source>,
        again: &Again<C>,
    ) -> Result<Option<End>, Refusal> {
        self.held_since.send_replace(Some(Instant::now()));
        let mut hold = Hold::begin(&ready.clock);
        loop {
            let life = self.life.as_mut().ok_or(Refusal::Internal)?;
            let cut = life.cut();
            let held = hold_back(&mut ready.stream, ready.clock, &hold, |passage| {
                life.uses(passage.tokens().into(), passage.written());
            });
            let held = match fence::until_cut(cut, held).await {
                Ok(held) => held,
                Err(error) => {
                    ready.stream.let_go();
                    life.is_cut_off();
                    return Err(error.into());
                }
            };
            let Err(unfit) = held else {
                return Ok(Some(End::Stream(ready, source)));
            };
            ready.stream.let_go();
            let passage = &ready.stream.passage;
            life.uses(passage.tokens().into(), passage.written());
            let fault = match unfit {
                Unfit::Broken(fault) => fault,
                Unfit::Error(error) => {
                    // What comes now has a status of its own.
                    self.held_since.send_replace(None);
                    self.fails(embedded(&ready.headers, error))?;
                    return Ok(None);
                }
            };
            life.breaks(Outcome::Stream(fault));
            life.lets_go();
            match self.reopen(again, &mut hold, fault).await? {
                Some(Reopened::Stream(opened)) => ready = opened,
                Some(Reopened::Whole(answer)) => return Ok(Some(End::Whole(answer, source))),
                None => {
                    ready.broken = Some(fault);
                    return Ok(Some(End::Stream(ready, source)));
                }
            }
        }
    }

    /// Sends the request again until there is a stream that is ready. `None` when there will be none.
    ///
    /// # Errors
    /// [`Refusal::Lease`]: nothing else may be sent in its name, and what is held is not its client's any more.
    async fn reopen(
        &mut self,
        again: &Again<C>,
        hold: &mut Hold,
        fault: StreamFault,
    ) -> Result<Option<Reopened>, Refusal> {
        let elapsed_ms = self.life.as_ref().ok_or(Refusal::Internal)?.elapsed_ms();
        let left = self.time_left(elapsed_ms);
        let until = left.and_then(|left| Instant::now().checked_add(left));
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        let metrics = &self.shared.metrics.recovery;
        let mut outcome = Outcome::Stream(fault);
        while hold.holdback.may_reopen(&outcome) {
            if until.is_some_and(|until| until <= Instant::now()) {
                metrics.reopens(Resent::Late);
                break;
            }
            hold.holdback.reopens(hold.now_ms());
            let cleared = match again.clear(&again.body, until).await {
                Ok(cleared) => cleared,
                Err(denied) => {
                    tracing::info!(
                        request_id = life.request_id,
                        error = %denied,
                        "a stream that broke is not opened again"
                    );
                    metrics.reopens(denied.into());
                    if let Denied::Lease(error) = denied {
                        return Err(error.into());
                    }
                    break;
                }
            };
            let Underway {
                clock,
                cut,
                observed,
            } = cleared.send(life, self.max_answer_bytes);
            let opened = match fence::until_cut(cut, observed).await? {
                Observed::Stream(status, headers, stream) => Reopened::Stream(Box::new(Ready {
                    status,
                    headers,
                    stream: *stream,
                    clock,
                    broken: None,
                })),
                Observed::Whole(answer) => Reopened::Whole(answer),
                Observed::Failed(Failure {
                    outcome: failed,
                    lease,
                    ..
                }) => {
                    metrics.reopens(Resent::Failed);
                    life.fails_again(failed.clone());
                    if let Some(error) = lease {
                        return Err(error.into());
                    }
                    outcome = failed;
                    continue;
                }
            };
            metrics.reopens(Resent::Ready);
            hold.holdback.is_ready(hold.now_ms());
            life.succeeds();
            life.takes_over();
            if let Reopened::Whole(answer) = &opened {
                life.uses_answer(answer);
            }
            return Ok(Some(opened));
        }
        life.falls_back();
        Ok(None)
    }
}

/// What came in place of a stream that broke.
enum Reopened {
    Stream(Box<Ready>),
    /// An upstream may answer in one piece.
    Whole(Answered),
}

/// Reads on until the client may see what there is. `sees` is told what is here, since a client may leave meanwhile.
async fn hold_back(
    stream: &mut EventStream,
    clock: Clock,
    hold: &Hold,
    mut sees: impl FnMut(&Passage),
) -> Result<(), Unfit> {
    loop {
        sees(&stream.passage);
        if let Some(error) = stream.passage.take_error() {
            return Err(Unfit::Error(error));
        }
        let is_complete = stream.passage.end() == StreamEnd::Closed;
        if is_complete || (hold.holdback).is_over(stream.held_bytes(), hold.now_ms()) {
            return Ok(());
        }
        let (by, late) = clock.useful_by(stream.progress);
        match within(by, stream.read()).await {
            Ok(Read::Taken) => {}
            // The end may complete it.
            Ok(Read::Ended) if stream.passage.has_error() => {}
            Ok(Read::TooSlow) => return Err(Unfit::Broken(StreamFault::ThroughputTooLow)),
            // What lacks only its last event is not asked for once more.
            Ok(Read::Ended) if stream.passage.end() > StreamEnd::Open => return Ok(()),
            Ok(Read::Ended | Read::Broken) => return Err(Unfit::Broken(StreamFault::Truncated)),
            Err(_elapsed) => return Err(Unfit::Broken(late)),
        }
    }
}
