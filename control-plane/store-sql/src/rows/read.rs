//! Rows as both databases give them back, and what they mean. What does not make sense is corrupt.

use serde::de::DeserializeOwned;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::version::Version;
use tidegate_store::durable::{AuditEntry, DurableStoreError, SealedCredential};
use tidegate_store::hot::{Entry, ReportMark};

use crate::number::{from_moment, from_ordered};

/// A version that is stored as it is, and never negative.
pub(crate) fn plain_version(stored: i64) -> Result<u64, DurableStoreError> {
    u64::try_from(stored).map_err(|_| DurableStoreError::Corrupt(format!("a version is {stored}")))
}

/// A name or number read back.
pub(crate) fn known<T, E: std::fmt::Display>(
    what: &str,
    value: Result<T, E>,
) -> Result<T, DurableStoreError> {
    value.map_err(|error| DurableStoreError::Corrupt(format!("{what}: {error}")))
}

/// JSON read back.
pub(crate) fn from_json<T: DeserializeOwned>(
    what: &str,
    stored: &str,
) -> Result<T, DurableStoreError> {
    known(what, serde_json::from_str(stored))
}

/// A row of the audit trail.
#[derive(sqlx::FromRow)]
pub(crate) struct AuditRow {
    at: i64,
    author: String,
    action: String,
    summary: String,
    document_version: Option<i64>,
}

impl AuditRow {
    pub(crate) fn read(self) -> Result<AuditEntry, DurableStoreError> {
        Ok(AuditEntry {
            at: from_moment(self.at),
            author: self.author,
            action: self.action,
            summary: self.summary,
            document_version: self.document_version.map(plain_version).transpose()?,
        })
    }
}

/// A sealed credential.
#[derive(sqlx::FromRow)]
pub(crate) struct CredentialRow {
    connection: String,
    version: i64,
    sealed: Vec<u8>,
    fingerprint: Vec<u8>,
    applied_version: i64,
}

impl CredentialRow {
    pub(crate) fn read(self) -> Result<SealedCredential, DurableStoreError> {
        Ok(SealedCredential {
            connection: known(
                "a credential's connection",
                ConnectionId::new(self.connection),
            )?,
            version: plain_version(self.version)?,
            sealed: self.sealed,
            fingerprint: self.fingerprint,
            applied_version: plain_version(self.applied_version)?,
        })
    }
}

/// A value of the checkpoint.
#[derive(sqlx::FromRow)]
pub(crate) struct EntryRow {
    key: String,
    incarnation: i64,
    revision: i64,
    schema: i64,
    payload: Vec<u8>,
    expires_at: i64,
}

impl EntryRow {
    pub(crate) fn read(self) -> Result<Entry, DurableStoreError> {
        Ok(Entry {
            key: self.key,
            version: Version::new(from_ordered(self.incarnation), from_ordered(self.revision)),
            schema: known("a schema", u32::try_from(self.schema))?,
            payload: self.payload,
            expires_at: from_moment(self.expires_at),
        })
    }
}

/// A mark of the checkpoint, from plane and number.
pub(crate) fn read_mark((plane, number): (i64, i64)) -> ReportMark {
    ReportMark {
        plane: PlaneIncarnation(plane.cast_unsigned()),
        number: from_ordered(number),
    }
}
