//! The watch beside a stream.
//!
//! A client that opens no flow-control window is never asked for: hyper then leaves the body alone, and no limit
//! inside it would be looked at. So this looks from outside, and lets go of the upstream and ends the request;
//! what is left is a shell that tells the client so, should it read on.
//!
//! Whether the client takes anything is seen from being asked: within the stall time of handing a piece out or
//! of a wake-up, hyper asks for more if there is room for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::outcome::StreamFault;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::LOOK_EVERY;
use super::flow::Flow;
use super::stop::Stop;
use crate::control_port::ControlPort;
use crate::life::Life;

/// Watches until the stream is over. A client is let go after one to two times `stall_time`.
pub(super) async fn attend<C: ControlPort>(
    flow: Weak<Mutex<Flow<C>>>,
    over: CancellationToken,
    drained: CancellationToken,
    stall_time: Duration,
) {
    let mut seen = 0;
    let mut look = Instant::now() + stall_time.min(LOOK_EVERY);
    loop {
        // A turn that is continued has limits of its own.
        let Some((end, cut, changes)) = flow.upgrade().map(|flow| {
            let flow = flow.lock();
            let cut = flow.life.as_ref().and_then(Life::cut);
            (flow.clock.end, cut, Arc::clone(&flow.changes))
        }) else {
            return;
        };
        let cut = async {
            match cut {
                Some(cut) => cut.await,
                None => std::future::pending().await,
            }
        };
        let moment = end.map_or(look, |end| end.min(look));
        let is_cut = tokio::select! {
            () = over.cancelled() => return,
            () = changes.notified() => continue,
            () = drained.cancelled() => false,
            () = cut => true,
            () = sleep_until(moment) => false,
        };
        let Some(flow) = flow.upgrade() else {
            return;
        };
        let mut flow = flow.lock();
        let now = Instant::now();
        let stop = if is_cut {
            Stop::LeaseOver
        } else if drained.is_cancelled() {
            Stop::Drained
        } else if flow.clock.end.is_some_and(|end| end <= now) {
            Stop::Fault(StreamFault::DeadlineExceeded)
        } else if now < look {
            continue;
        } else if flow.polls == seen {
            Stop::Stalled
        } else {
            seen = flow.polls;
            look = now + stall_time.min(LOOK_EVERY);
            if let Some(waker) = flow.waker.take() {
                waker.wake();
            }
            continue;
        };
        flow.stop(stop);
        if let Some(waker) = flow.waker.take() {
            waker.wake();
        }
        return;
    }
}
