//! The watch beside a stream: the only timer it has.
//!
//! It sleeps until the next moment at which something may be too late. A client's connection that waits then is woken, and
//! finds out itself what is too late: bytes that are there count more than a limit that has passed.
//!
//! A client that opens no flow-control window is never asked for: hyper then leaves the body alone, and no limit
//! inside it would be looked at. So what does not depend on the upstream's silence is looked at from outside, too, which
//! lets go of the upstream and ends the request; what is left is a shell that tells the client so, should it read on.
//!
//! What has ended may have left something for the client. It is kept as long as the client takes of it, and no longer: the
//! watch ends with the last of it.
//!
//! Whether the client takes anything is seen from being asked: within the stall time of handing a piece out or
//! of a wake-up, hyper asks for more if there is room for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::outcome::StreamFault;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::LOOK_EVERY;
use super::flow::Flow;
use super::stop::Stop;
use crate::control_port::ControlPort;
use crate::life::Life;

/// Watches until the stream is over. A client is let go after one to two times `stall_time`.
pub(super) async fn attend<C: ControlPort>(
    flow: Weak<Mutex<Flow<C>>>,
    drained: CancellationToken,
    stall_time: Duration,
) {
    let stall_time = stall_time.min(LOOK_EVERY);
    let mut seen = 0;
    let mut look = Instant::now() + stall_time;
    loop {
        // A turn that is continued has limits of its own.
        let Some(next) = flow.upgrade().map(|flow| flow.lock().next_look(look)) else {
            return;
        };
        let Some(Look {
            moment,
            is_open,
            cut,
            changes,
        }) = next
        else {
            return;
        };
        let cut = async {
            match cut {
                Some(cut) => cut.await,
                None => std::future::pending().await,
            }
        };
        let is_cut = tokio::select! {
            () = changes.notified() => continue,
            () = drained.cancelled(), if is_open => false,
            () = cut => true,
            () = sleep_until(moment) => false,
        };
        let Some(flow) = flow.upgrade() else {
            return;
        };
        let mut flow = flow.lock();
        let now = Instant::now();
        let is_open = flow.life.is_some();
        if is_open && is_cut {
            flow.stop(Stop::LeaseOver);
        } else if is_open && drained.is_cancelled() {
            flow.stop(Stop::Drained);
        } else if is_open && flow.clock.end.is_some_and(|end| end <= now) {
            flow.breaks_off(StreamFault::DeadlineExceeded);
        } else if flow.waits_in_vain(now) {
            // It finds out itself.
        } else if now < look {
            continue;
        } else if flow.polls == seen {
            flow.stop(Stop::Stalled);
            flow.wake();
            return;
        } else {
            seen = flow.polls;
            look = now + stall_time;
        }
        flow.wake();
    }
}

/// What is waited for.
struct Look {
    moment: Instant,
    /// The stream has not ended.
    is_open: bool,
    /// Comes with the end of its lease.
    cut: Option<WaitForCancellationFutureOwned>,
    changes: Arc<Notify>,
}

impl<C: ControlPort> Flow<C> {
    /// `None` once there is nothing to be watched.
    fn next_look(&mut self, look: Instant) -> Option<Look> {
        (!self.is_over()).then(|| Look {
            moment: self.look_by(look),
            is_open: self.life.is_some(),
            cut: self.life.as_ref().and_then(Life::cut),
            changes: Arc::clone(&self.changes),
        })
    }
}
