//! Those who wait for permits of one connection in this replica, and who is told.

use std::collections::BTreeMap;

use tidegate_core::ids::AttemptId;
use tidegate_core::permit::{Claim, Queue};
use tidegate_core::time::Timestamp;
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
    /// The cap that was named last, for who has no configuration.
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

    /// Ends the wait of those whose time is over. What takes back the permits that they may have been granted by a
    /// change of which nobody knows whether it ran.
    pub(super) fn end_over(&mut self, now: Timestamp) -> Vec<Wish> {
        let mut take_back = Vec::new();
        for attempt in self.queue.take_ended(now) {
            if let Some(Waiter { claim, told }) = self.told.remove(&attempt) {
                // Who is gone need not be told.
                _ = told.send(Waited::TimedOut);
                take_back.push(Wish::TakeBack { attempt, claim });
            }
        }
        take_back
    }

    /// Takes everybody out of the line.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = oneshot::Sender<Waited>> + use<> {
        self.queue = Queue::default();
        let told = std::mem::take(&mut self.told);
        told.into_values().map(|waiter| waiter.told)
    }
}
