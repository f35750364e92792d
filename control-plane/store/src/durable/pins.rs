//! Pins of sessions (`sessions-and-streams.md` §2, decisions 43 and 59).
//!
//! **What is stored.** One row for each pin that was written, so that a hot store that lost its memory gets them back: its
//! key, which is a hash, its connection, since when and until when. The hot store is the truth; here is what was written a
//! moment ago, at best.
//!
//! **Stance:** fail-open. A pin is a preference: what is not saved is made anew where the session is next sent.

use async_trait::async_trait;
use tidegate_core::affinity::{Pin, PinKey};
use tidegate_core::time::Timestamp;

use super::DurableStoreError;

/// Most pins in one call.
pub const MAX_PIN_ROWS: usize = 1_000;

/// A pin and what it is stored under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPin {
    /// Its key.
    pub key: PinKey,
    /// It.
    pub pin: Pin,
}

/// Pins of sessions.
#[async_trait]
pub trait PinStore {
    /// Saves pins, each unless a later one stands: one that was made later, or the same one with a later end. At most
    /// [`MAX_PIN_ROWS`]; of two with one key the later one counts.
    async fn save_pins(&self, pins: &[StoredPin]) -> Result<(), DurableStoreError>;

    /// Deletes pins that were taken away, each unless one stands that was made later or names another connection. At most
    /// [`MAX_PIN_ROWS`].
    async fn delete_pins(&self, gone: &[StoredPin]) -> Result<(), DurableStoreError>;

    /// Pins that stand at `now`, in the order of their keys, from behind `after` on, at most `limit` of them and
    /// [`MAX_PIN_ROWS`].
    async fn load_pins(
        &self,
        after: Option<&PinKey>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<StoredPin>, DurableStoreError>;

    /// Deletes what is past its end, at most [`super::MAX_DELETE_ROWS`]; returns how many rows. Ask again while it is
    /// not 0.
    async fn delete_expired_pins(&self, now: Timestamp) -> Result<u64, DurableStoreError>;
}
