//! Sealing of notes that follow conversations. Bound to each are session, combo, account and end, so that a note put
//! into another row, or kept beyond its end, does not open.

use secrecy::SecretString;
use tidegate_core::ids::ConnectionId;
use tidegate_core::routing::relay::HandoffName;
use tidegate_core::time::Timestamp;

use super::{FORM, SealError, Sealer, bytes_with_length};
use crate::durable::SealedHandoff;

const KIND: &[u8] = b"hand-off";

impl Sealer {
    /// Seals a note, which is 1 to [`super::MAX_SECRET_BYTES`] long.
    ///
    /// # Errors
    /// [`SealError::Length`], [`SealError::Library`].
    pub fn seal_handoff(
        &self,
        name: HandoffName,
        connection: ConnectionId,
        expires_at: Timestamp,
        note: &SecretString,
    ) -> Result<SealedHandoff, SealError> {
        let associated = self.associated_handoff(&name, &connection, expires_at);
        Ok(SealedHandoff {
            sealed: self.encrypt(note, &associated)?,
            name,
            connection,
            expires_at,
        })
    }

    /// Opens a note.
    ///
    /// # Errors
    /// [`SealError::WrongKey`], [`SealError::Form`] or [`SealError::Changed`], whichever is the case.
    pub fn open_handoff(&self, handoff: &SealedHandoff) -> Result<SecretString, SealError> {
        let SealedHandoff {
            name,
            connection,
            expires_at,
            sealed,
        } = handoff;
        self.decrypt(
            sealed,
            &self.associated_handoff(name, connection, *expires_at),
        )
    }

    fn associated_handoff(
        &self,
        name: &HandoffName,
        connection: &ConnectionId,
        expires_at: Timestamp,
    ) -> Vec<u8> {
        let mut associated = vec![FORM];
        associated.extend_from_slice(&self.key_id);
        // No version of a credential: what follows is never taken for one's.
        associated.extend_from_slice(&u64::MAX.to_be_bytes());
        associated.extend_from_slice(&bytes_with_length(KIND));
        associated.extend_from_slice(&name.session.0);
        associated.extend_from_slice(&bytes_with_length(name.combo.as_str().as_bytes()));
        associated.extend_from_slice(&bytes_with_length(connection.as_str().as_bytes()));
        associated.extend_from_slice(&expires_at.0.to_be_bytes());
        associated
    }
}
