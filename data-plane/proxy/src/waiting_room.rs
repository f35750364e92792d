//! Room for so many requests that wait, where the number may change while they do.

use std::sync::atomic::{AtomicU32, Ordering};

/// The room. Lowering its size sends nobody away.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    waiting: AtomicU32,
}

/// One that waits. Dropped, it waits no longer.
#[derive(Debug)]
pub(crate) struct Waits<'a>(&'a WaitingRoom);

impl WaitingRoom {
    /// Lets one in, if fewer than `most` wait.
    pub(crate) fn enter(&self, most: u32) -> Option<Waits<'_>> {
        let enters = |waiting| (waiting < most).then(|| u32::saturating_add(waiting, 1));
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let entered = self.waiting.fetch_update(set, get, enters);
        entered.ok().map(|_before| Waits(self))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_wait_as_may_at_that_moment() {
        let room = WaitingRoom::default();
        assert!(room.enter(0).is_none());
        let one = room.enter(1);
        assert!(one.is_some() && room.enter(1).is_none());
        let two = room.enter(2);
        assert!(two.is_some() && room.enter(1).is_none());
        drop(one);
        assert!(room.enter(1).is_none() && room.enter(2).is_some());
        drop(two);
        assert!(room.enter(1).is_some());
    }
}
