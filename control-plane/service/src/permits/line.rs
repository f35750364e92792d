//! Those who wait for permits of one connection in this replica, and who is told.

use std::collections::BTreeMap;

use tidegate_core::ids::AttemptId;
use tidegate_core::permit::Queue;
use tokio::sync::oneshot;

use super::Waited;
use super::wish::Wish;

/// Those who wait, and who hears of it.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) queue: Queue,
    pub(super) cap: u32,
    pub(super) told: BTreeMap<AttemptId, oneshot::Sender<Waited>>,
}

impl Line {
    /// The cap that was named last; configurations change.
    pub(super) fn cap(&self, wishes: &[Wish]) -> u32 {
        let named = wishes.iter().rev().find_map(|wish| match wish {
            Wish::Take { cap, .. } | Wish::Wait { cap, .. } => Some(*cap),
            Wish::Release { .. } | Wish::Renew { .. } => None,
        });
        named.unwrap_or(self.cap)
    }

    /// Takes out those whose request is gone.
    pub(super) fn forget_the_gone(&mut self) {
        let queue = &mut self.queue;
        self.told.retain(|attempt, told| {
            if told.is_closed() {
                queue.leave(*attempt);
            }
            !told.is_closed()
        });
    }

    /// Ends the wait of one. `false` when nobody hears it.
    pub(super) fn tell(&mut self, attempt: AttemptId, waited: Waited) -> bool {
        self.told
            .remove(&attempt)
            .is_some_and(|told| told.send(waited).is_ok())
    }

    /// Ends the wait of everybody; another replica is to be asked.
    pub(super) fn disperse(&mut self) {
        for (attempt, told) in std::mem::take(&mut self.told) {
            self.queue.leave(attempt);
            // Who is gone need not be told.
            _ = told.send(Waited::Draining);
        }
    }
}
