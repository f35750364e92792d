//! The beginning of a stream is held back for a moment, so that one that breaks at once can be opened again without its
//! client noticing (`sessions-and-streams.md` §4.4). Off unless `streamRecovery.enabled`.
//!
//! **Until when.** From the first ready event until [`Holdback::is_over`] with a chunk, the end of the stream, or its
//! failure. It is a chunk that ends it, not the time alone: of an upstream that falls silent nothing is shown before its
//! next word, its idle time or its deadline. The headers wait as long (decision 53), so a client that leaves meanwhile
//! has been sent nothing: everything is dropped, and no further request is made for it.
//!
//! **What then.** A stream that breaks is opened again where it was ([`Again`]), under the permit that the request
//! holds. The attempt that broke is reported as one that broke; what it sent is kept until the new stream is ready, and
//! then dropped. Each attempt is held back anew. When none comes, the client gets what was held and the error of its
//! format, since that is more than nothing, and no other target is tried: a part of an answer is not what a further
//! target could go on from.

use http::HeaderMap;
use tidegate_core::outcome::{Outcome, StreamFault};
use tidegate_core::stream::{Holdback, may_reopen};
use tokio::time::Instant;

use crate::again::{Again, Cleared};
use crate::control_port::ControlPort;
use crate::event_stream::{EventStream, Read};
use crate::fence;
use crate::metrics::Resent;
use crate::observe::{self, Answered, Clock, Failure, Observed, within};
use crate::passage::Passage;
use crate::refusal::Refusal;
use crate::sse::End as StreamEnd;

use super::{Drive, End, Ready, Source};

impl<C: ControlPort> Drive<C> {
    /// Holds a stream back until its client may see it, or until it has failed for good.
    ///
    /// # Errors
    /// [`Refusal::Lease`] when its lease cuts it: the client has seen nothing.
    pub(super) async fn hold(
        &mut self,
        mut ready: Box<Ready>,
        source: Option<Source>,
        again: &Again<C>,
    ) -> Result<End, Refusal> {
        let mut reopened = 0;
        loop {
            let life = self.life.as_mut().ok_or(Refusal::Internal)?;
            let cut = life.cut();
            let held = hold_back(&mut ready.stream, ready.clock, |passage| {
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
            let Err(fault) = held else {
                return Ok(End::Stream(ready, source));
            };
            ready.stream.let_go();
            let passage = &ready.stream.passage;
            life.uses(passage.tokens().into(), passage.written());
            life.breaks(Outcome::Stream(fault));
            life.lets_go();
            match self.reopen(again, &mut reopened, fault).await? {
                Some(Reopened::Stream(opened)) => ready = opened,
                Some(Reopened::Whole(answer)) => return Ok(End::Whole(answer, source)),
                None => {
                    ready.broken = Some(fault);
                    return Ok(End::Stream(ready, source));
                }
            }
        }
    }

    /// Sends the request again until there is a stream that is ready. `None` when there will be none.
    async fn reopen(
        &mut self,
        again: &Again<C>,
        reopened: &mut u32,
        fault: StreamFault,
    ) -> Result<Option<Reopened>, Refusal> {
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        let mut outcome = Outcome::Stream(fault);
        while may_reopen(&outcome, *reopened) {
            *reopened = reopened.saturating_add(1);
            let cleared = match again.clear(&again.body).await {
                Ok(cleared) => cleared,
                Err(denied) => {
                    tracing::info!(
                        request_id = life.request_id,
                        error = %denied,
                        "a stream that broke is not opened again"
                    );
                    self.shared.metrics.recovery.reopens(denied.into());
                    break;
                }
            };
            let Cleared {
                dispatch,
                running,
                leased,
                request,
                reading,
                clock,
            } = cleared;
            tracing::info!(
                request_id = life.request_id,
                attempt = %dispatch.attempt.id,
                connection = %dispatch.attempt.connection,
                after = ?outcome,
                "a stream that broke is opened again"
            );
            life.sends_again(dispatch, running, leased);
            let cut = life.cut();
            let sees = |status, headers: &HeaderMap| drop(life.sees(status, headers));
            let upstream = &self.shared.upstream;
            let max_bytes = self.max_answer_bytes;
            let attempt = observe::attempt(upstream, request, reading, clock, max_bytes, sees);
            let opened = match fence::until_cut(cut, attempt).await? {
                Observed::Stream(status, headers, stream) => Reopened::Stream(Box::new(Ready {
                    status,
                    headers,
                    stream: *stream,
                    clock,
                    broken: None,
                })),
                Observed::Whole(answer) => Reopened::Whole(answer),
                Observed::Failed(Failure {
                    outcome: failed, ..
                }) => {
                    self.shared.metrics.recovery.reopens(Resent::Failed);
                    life.fails_again(failed.clone());
                    outcome = failed;
                    continue;
                }
            };
            self.shared.metrics.recovery.reopens(Resent::Ready);
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
///
/// # Errors
/// How the stream broke before.
async fn hold_back(
    stream: &mut EventStream,
    clock: Clock,
    mut sees: impl FnMut(&Passage),
) -> Result<(), StreamFault> {
    let began = Instant::now();
    let holdback = Holdback::begin(0);
    loop {
        sees(&stream.passage);
        let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_complete = stream.passage.end() == StreamEnd::Closed;
        if is_complete || holdback.is_over(stream.held_bytes(), elapsed_ms) {
            return Ok(());
        }
        let (by, late) = clock.useful_by(stream.progress);
        match within(by, stream.read()).await {
            Ok(Read::Taken) => {}
            Ok(Read::TooSlow) => return Err(StreamFault::ThroughputTooLow),
            // What lacks only its last event is not asked for once more.
            Ok(Read::Ended) if stream.passage.end() > StreamEnd::Open => return Ok(()),
            Ok(Read::Ended | Read::Broken) => return Err(StreamFault::Truncated),
            Err(_elapsed) => return Err(late),
        }
    }
}
