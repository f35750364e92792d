//! Those who wait for permits of one connection in this replica, and who is told.

use std::collections::BTreeMap;

use tidegate_core::ids::AttemptId;
use tidegate_core::permit::{Claim, Queue};
use tokio::sync::oneshot;

use super::Waited;
use super::wish::Wish;

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Claim,
    pub(super) told: oneshot::Sender<Waited>,
}

/// Those who wait, and who hears of it.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) queue: Queue,
    pub(super) cap: u32,
    pub(super) told: BTreeMap<AttemptId, Waiter>,
}

impl Line {
    /// The cap that was named last; configurations change.
    pub(super) fn cap(&self, wishes: &[Wish]) -> u32 {
        let named = wishes.iter().rev().find_map(|wish| match wish {
            Wish::Take { cap, .. } | Wish::Wait { cap, .. } => Some(*cap),
            Wish::Release { .. } | Wish::TakeBack { .. } | Wish::Renew { .. } => None,
        });
        named.unwrap_or(self.cap)
    }

    /// Takes out those whose request is gone.
    pub(super) fn forget_the_gone(&mut self) {
        let queue = &mut self.queue;
        self.told.retain(|attempt, waiter| {
            if waiter.told.is_closed() {
                queue.leave(*attempt);
            }
            !waiter.told.is_closed()
        });
    }

    /// Ends the wait of one. When nobody hears it, what takes back a permit that it was granted.
    pub(super) fn tell(&mut self, attempt: AttemptId, waited: Waited) -> Result<(), Wish> {
        let Some(Waiter { claim, told }) = self.told.remove(&attempt) else {
            return Err(Wish::Release { attempt });
        };
        told.send(waited)
            .map_err(|_| Wish::TakeBack { attempt, claim })
    }

    /// Ends the wait of everybody; another replica is to be asked.
    pub(super) fn disperse(&mut self) {
        for (attempt, waiter) in std::mem::take(&mut self.told) {
            self.queue.leave(attempt);
            // Who is gone need not be told.
            _ = waiter.told.send(Waited::Draining);
        }
    }
}
