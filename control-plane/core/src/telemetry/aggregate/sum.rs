//! An aggregate that grows within bounds and knows what room is left.

use std::mem;

use crate::time::Timestamp;

use super::bounds::Room;
use super::{Aggregate, Bounds, Refused};

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

    /// Drops what is too old ([`Aggregate::prune`]).
    pub fn prune(&mut self, now: Timestamp) {
        self.sum.prune(now, &self.bounds);
        self.room = self.bounds.room(&self.sum);
    }

    /// Drops the oldest of what weighs most ([`Aggregate::shed`]). Says how much.
    #[must_use]
    pub fn shed(&mut self) -> Refused {
        let shed = self.sum.shed();
        self.room = self.bounds.room(&self.sum);
        shed
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
