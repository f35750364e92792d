//! Notes as both databases give them back.

use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::relay::HandoffName;
use tidegate_store::durable::{DurableStoreError, MAX_SEALED_HANDOFF_BYTES, SealedHandoff};

use super::known;
use crate::number::from_moment;

/// A stored note.
#[derive(sqlx::FromRow)]
pub(crate) struct HandoffRow {
    connection: String,
    sealed: Vec<u8>,
    expires_at: i64,
}

impl HandoffRow {
    /// The note that was asked for by this name.
    pub(crate) fn read(self, name: &HandoffName) -> Result<SealedHandoff, DurableStoreError> {
        Ok(SealedHandoff {
            name: name.clone(),
            connection: known("a note's connection", ConnectionId::new(self.connection))?,
            expires_at: from_moment(self.expires_at),
            sealed: self.sealed,
        })
    }
}

/// Refuses a note that is too long.
pub(crate) fn check_handoff(handoff: &SealedHandoff) -> Result<(), DurableStoreError> {
    if handoff.sealed.is_empty() || handoff.sealed.len() > MAX_SEALED_HANDOFF_BYTES {
        return Err(DurableStoreError::Refused(format!(
            "a sealed note of {} bytes",
            handoff.sealed.len()
        )));
    }
    Ok(())
}
