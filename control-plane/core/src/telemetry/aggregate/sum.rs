//! An aggregate that grows within bounds and knows what room is left.

use std::mem;

use crate::time::Timestamp;

use super::bounds::Room;
use super::{Aggregate, Bounds, Kind, Refused};

/// What many parts are added to. The room that is left is kept along with it, so that adding a part costs what the part
/// holds, however much there is already.
#[derive(Clone, Debug)]
pub struct BoundedSum {
    sum: Aggregate,
    room: Room,
    bounds: Bounds,
}

impl Default for BoundedSum {
    fn default() -> Self {
        Self::new(Bounds::default())
    }
}

impl BoundedSum {
    /// Nothing yet.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let sum = Aggregate::default();
        Self {
            room: bounds.room(&sum),
            sum,
            bounds,
        }
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> &Aggregate {
        &self.sum
    }

    /// Adds a part, as far as there is room. Says what there was no room for.
    #[must_use]
    pub fn absorb(&mut self, part: Aggregate) -> Refused {
        self.sum.absorb_into(part, &self.bounds, &mut self.room)
    }

    /// The same; of conversations the newest stay, whether they were there or come. Only when there is no room for those
    /// that come does that take a look at all of them.
    #[must_use]
    pub fn absorb_newest(&mut self, part: Aggregate) -> Refused {
        if self.room.left(Kind::Sessions) < part.count(Kind::Sessions) {
            self.keep_newest_conversations();
        }
        self.absorb(part)
    }

    /// Drops the oldest conversations beyond the bounds.
    pub fn keep_newest_conversations(&mut self) {
        self.sum.keep_newest_conversations(&self.bounds);
        self.room.renew(Kind::Sessions, &self.sum, &self.bounds);
    }

    /// Drops what is too old ([`Aggregate::prune`]).
    pub fn prune(&mut self, now: Timestamp) {
        self.sum.prune(now, &self.bounds);
        self.room = self.bounds.room(&self.sum);
    }

    /// Takes the sum and begins anew.
    #[must_use]
    pub fn take(&mut self) -> Aggregate {
        let sum = mem::take(&mut self.sum);
        self.room = self.bounds.room(&self.sum);
        sum
    }
}

#[cfg(test)]
mod tests;
