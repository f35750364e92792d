//! The watch beside a stream.
//!
//! A client that opens no flow-control window is never asked for: hyper then leaves the body alone, and no limit
//! inside it would be looked at. So this looks from outside, and lets go of the upstream and ends the request;
//! what is left is a shell that tells the client so, should it read on.
//!
//! Whether the client takes anything is seen from being asked: within the stall time of handing a piece out or
//! of a wake-up, hyper asks for more if there is room for it.

use std::pin::pin;
use std::sync::Weak;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::outcome::StreamFault;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{Flow, LOOK_EVERY, Stop};
use crate::control_port::ControlPort;

/// What ends a stream from outside.
pub(super) struct Limits {
    /// The end of a drain.
    pub(super) drained: CancellationToken,
    /// The horizon of its lease, if it is under one.
    pub(super) cut: Option<WaitForCancellationFutureOwned>,
    /// How long a client may take nothing.
    pub(super) stall_time: Duration,
    /// The attempt's own end.
    pub(super) end: Option<Instant>,
}

/// Watches until the stream is over. A client is let go after one to two times `stall_time`.
pub(super) async fn attend<C: ControlPort>(
    flow: Weak<Mutex<Flow<C>>>,
    over: CancellationToken,
    limits: Limits,
) {
    let Limits {
        drained,
        cut,
        stall_time,
        end,
    } = limits;
    let mut cut = pin!(async move {
        match cut {
            Some(cut) => cut.await,
            None => std::future::pending().await,
        }
    });
    let mut is_cut = false;
    let mut seen = 0;
    loop {
        let look = Instant::now() + stall_time.min(LOOK_EVERY);
        let moment = end.map_or(look, |end| end.min(look));
        tokio::select! {
            () = over.cancelled() => return,
            () = drained.cancelled() => {}
            () = cut.as_mut() => is_cut = true,
            () = sleep_until(moment) => {}
        }
        let Some(flow) = flow.upgrade() else {
            return;
        };
        let mut flow = flow.lock();
        let stop = if is_cut {
            Stop::LeaseOver
        } else if drained.is_cancelled() {
            Stop::Drained
        } else if end.is_some_and(|end| end <= Instant::now()) {
            Stop::Fault(StreamFault::DeadlineExceeded)
        } else if flow.polls == seen {
            Stop::Stalled
        } else {
            seen = flow.polls;
            if let Some(waker) = flow.waker.take() {
                waker.wake();
            }
            continue;
        };
        flow.stop(stop);
        return;
    }
}
