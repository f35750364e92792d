//! Notes that follow conversations to another account (`routing.md` §8.4).
//!
//! **What is stored.** One row for each session and combo: which account made the note, until when it stands, and the
//! note itself, sealed, since it is what people said. The session is a hash.
//!
//! **Stance:** fail-open. A note that cannot be saved or read is as if it had never been made.

use std::fmt;

use async_trait::async_trait;
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::relay::HandoffName;
use tidegate_core::time::Timestamp;

use super::DurableStoreError;

/// Longest sealed note, in bytes: what [`crate::seal`] makes of the longest secret.
pub const MAX_SEALED_HANDOFF_BYTES: usize = crate::seal::MAX_SECRET_BYTES + 64;

/// A note, sealed.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedHandoff {
    /// Which.
    pub name: HandoffName,
    /// The account that it was made on.
    pub connection: ConnectionId,
    /// When it ends; it is past when now has reached it.
    pub expires_at: Timestamp,
    /// Cipher text with its nonce, 1 to [`MAX_SEALED_HANDOFF_BYTES`].
    pub sealed: Vec<u8>,
}

impl fmt::Debug for SealedHandoff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SealedHandoff")
            .field("name", &self.name)
            .field("connection", &self.connection)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Notes.
#[async_trait]
pub trait HandoffStore {
    /// Saves a note unless one stands at `now`; whether it was saved. A repeat of the same call answers `false`.
    async fn save_handoff(
        &self,
        handoff: &SealedHandoff,
        now: Timestamp,
    ) -> Result<bool, DurableStoreError>;

    /// The note that stands at `now`.
    async fn load_handoff(
        &self,
        name: &HandoffName,
        now: Timestamp,
    ) -> Result<Option<SealedHandoff>, DurableStoreError>;

    /// Deletes what is past its end, at most [`super::MAX_DELETE_ROWS`]; returns how many rows. Ask again while it is
    /// not 0.
    async fn delete_expired_handoffs(&self, now: Timestamp) -> Result<u64, DurableStoreError>;
}
