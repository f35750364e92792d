//! Room for a lease to move.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

/// So many owners go on while there is to be room.
const GO_ON: u8 = 2;

/// Room for a lease to move: while it is wanted, all owners but [`GO_ON`] have no lease.
#[derive(Debug)]
pub(crate) struct Room {
    wanted: watch::Sender<bool>,
    /// Owners that have left.
    left: AtomicU8,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            wanted: watch::Sender::new(false),
            left: AtomicU8::new(0),
        }
    }

    /// Whether the owner of this number need not leave.
    pub(crate) fn lets_go_on(owner: u8) -> bool {
        owner < GO_ON
    }

    /// Wants it, or not any more.
    pub(crate) fn make(&self, wanted: bool) {
        self.wanted.send_replace(wanted);
    }

    /// Whether all of so many owners have left that are to.
    pub(crate) fn is_made(&self, owners: u8) -> bool {
        self.left.load(Ordering::Relaxed) >= owners.saturating_sub(GO_ON)
    }

    pub(crate) async fn is_wanted(&self) {
        self.becomes(true).await;
    }

    /// Stays away until it is not wanted any more.
    pub(crate) async fn leave(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
        self.becomes(false).await;
        self.left.fetch_sub(1, Ordering::Relaxed);
    }

    /// An owner has come to its end.
    pub(crate) fn left_for_good(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    async fn becomes(&self, wanted: bool) {
        // The sender is here, so that there is an answer.
        let mut seen = self.wanted.subscribe();
        drop(seen.wait_for(|seen| *seen == wanted).await);
    }
}
