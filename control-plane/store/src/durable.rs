//! The durable store: configuration, checkpoint of the hot state, history, usage, notes of conversations, leases,
//! pins of sessions, leadership.
//!
//! **Stance:** fail-closed for configuration and leases (a write that is not certainly committed is an
//! error), fail-open for everything else (checkpoint, history and usage are retried or dropped and counted;
//! traffic goes on). **Repair:** writers retry; every write here may be repeated without harm.

#[cfg(feature = "conformance")]
pub mod conformance;
mod events;
mod handoffs;
mod leases;
mod pins;
mod tokens;
mod usage;

use std::fmt::Debug;

use async_trait::async_trait;
use tidegate_core::config::Document;
use tidegate_core::ids::{ConnectionId, Shard};
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;

use crate::hot::{Entry, ReportMark};

pub use events::{
    EventMarks, EventPosition, EventQuery, EventRow, EventSource, EventStore, StoredEvent,
};
pub use handoffs::{HandoffStore, MAX_SEALED_HANDOFF_BYTES, SealedHandoff};
pub use leases::{Foresight, LeaseReply, LeaseStore, MAX_SWEPT_LEASES};
pub use pins::{MAX_PIN_ROWS, PinStore, StoredPin};
pub use tokens::{
    LeaseAnswer, LeasedToken, RefreshedToken, SaveAnswer, SealedGrant, SealedToken, TokenLease,
    TokenRow, TokenStore,
};
pub use usage::{MAX_REAPED_ATTEMPTS, Reaped, UsageStore};

/// Why a call to the durable store failed.
#[derive(Debug, thiserror::Error)]
pub enum DurableStoreError {
    /// The document was changed by someone else: its version is not the expected one.
    #[error("the configuration has version {current}, not {expected}")]
    VersionConflict {
        /// What the caller based its change on.
        expected: u64,
        /// What stands.
        current: u64,
    },
    /// An access token was renewed since the secrets were read, so they would be put back. Nothing happened.
    #[error("a secret was renewed in the meantime")]
    SecretsChanged,
    /// The store could not be reached or did not answer in time. Nothing is known to have happened.
    #[error("the durable store cannot be reached: {0}")]
    Unreachable(String),
    /// A commit was sent and not answered: it may have happened.
    #[error("the outcome of the write is unknown: {0}")]
    Indeterminate(String),
    /// What is stored cannot be read back.
    #[error("the durable store holds what is not understood: {0}")]
    Corrupt(String),
    /// The schema is of a newer version, or not migrated.
    #[error("the durable store's schema does not fit: {0}")]
    Schema(String),
    /// Another writer was in the way and this one gave way (deadlock, lock not had in time). Nothing happened;
    /// the same call may be repeated at once.
    #[error("another writer was in the way: {0}")]
    Contended(String),
    /// Any other refusal of the database.
    #[error("the durable store refused: {0}")]
    Refused(String),
}

impl DurableStoreError {
    /// The write has certainly not happened, so it may be repeated without looking.
    #[must_use]
    pub fn is_certainly_not_applied(&self) -> bool {
        match self {
            Self::VersionConflict { .. }
            | Self::SecretsChanged
            | Self::Schema(_)
            | Self::Contended(_)
            | Self::Refused(_) => true,
            Self::Unreachable(_) | Self::Indeterminate(_) | Self::Corrupt(_) => false,
        }
    }
}

/// A connection's credential, sealed. Only the process that holds the sealing key can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedCredential {
    /// Whose. At most one credential of each connection is in a document's list.
    pub connection: ConnectionId,
    /// Grows by one with each new credential of the connection, from 1.
    pub version: u64,
    /// Cipher text with its nonce.
    pub sealed: Vec<u8>,
    /// A keyed fingerprint of the secret that an operator last applied, to see whether an apply changes it. Empty when
    /// there was none.
    pub fingerprint: Vec<u8>,
    /// The version that an operator last applied; what is above it was renewed since. 0 = none was ever applied.
    pub applied_version: u64,
}

impl Debug for SealedCredential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SealedCredential")
            .field("connection", &self.connection)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// All secrets of a document, sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedSecrets {
    /// Grows by one with each renewed access token, and never by a save of the document.
    pub revision: u64,
    /// Credentials of its connections.
    pub credentials: Vec<SealedCredential>,
    /// What access tokens are renewed with.
    pub grants: Vec<SealedGrant>,
    /// In a save: connections with a secret that an operator replaced. Their renewal begins anew. Never read back.
    pub renewed: Vec<ConnectionId>,
}

/// Which configuration is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredVersion {
    /// Version of the document.
    pub document: u64,
    /// Revision of its secrets.
    pub secrets: u64,
}

/// The configuration as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredDocument {
    /// Grows by one with each change; 0 = nothing was ever applied.
    pub version: u64,
    /// The document.
    pub document: Document,
    /// Secrets of its connections.
    pub secrets: SealedSecrets,
}

impl StoredDocument {
    /// Which one it is.
    #[must_use]
    pub fn stored_version(&self) -> StoredVersion {
        StoredVersion {
            document: self.version,
            secrets: self.secrets.revision,
        }
    }
}

/// The configuration.
#[async_trait]
pub trait ConfigurationStore {
    /// The newest document; the default one with version 0 when there is none.
    async fn load_document(&self) -> Result<StoredDocument, DurableStoreError>;

    /// Its versions alone, cheap enough to ask every second.
    async fn stored_version(&self) -> Result<StoredVersion, DurableStoreError>;

    /// Replaces document and secrets in one transaction if the stored version is `expected` and the revision of
    /// the secrets the given one, and returns the new version. Secrets of connections that are no longer in the
    /// lists are deleted. `author` goes to the audit trail with `summary`, in the same transaction.
    async fn save_document(
        &self,
        expected: u64,
        document: &Document,
        secrets: &SealedSecrets,
        author: &str,
        summary: &str,
    ) -> Result<u64, DurableStoreError>;
}

/// Most rows of each kind that one call deletes which deletes what is past its end.
pub const MAX_DELETE_ROWS: u32 = 10_000;

/// The checkpoint of the hot state.
#[async_trait]
pub trait CheckpointStore {
    /// Upserts entries, each only where its version is newer than the stored one, and raises marks, all of
    /// it or nothing. Repeating it changes nothing. A mark is kept for [`crate::hot::MARK_TTL`] after `now`.
    async fn save_checkpoint(
        &self,
        shard: Shard,
        entries: &[Entry],
        marks: &[ReportMark],
        now: Timestamp,
    ) -> Result<(), DurableStoreError>;

    /// All entries and marks of a shard that are not past their expiry at `now` (it is past when `now` has
    /// reached it), as one consistent reading.
    async fn load_checkpoint(
        &self,
        shard: Shard,
        now: Timestamp,
    ) -> Result<(Vec<Entry>, Vec<ReportMark>), DurableStoreError>;

    /// Deletes what is past its expiry, at most [`MAX_DELETE_ROWS`] of each kind; returns how many rows. Ask
    /// again while it is not 0.
    async fn delete_expired_checkpoint(&self, now: Timestamp) -> Result<u64, DurableStoreError>;
}

/// What an administrator did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who.
    pub author: String,
    /// What, as a fixed word: [`SAVE_DOCUMENT`], or that of [`HistoryStore::append_audit`].
    pub action: String,
    /// In words; never a secret.
    pub summary: String,
    /// The version of the document afterwards, where it changed.
    pub document_version: Option<u64>,
}

/// The action of a document that was saved.
pub const SAVE_DOCUMENT: &str = "save_document";

/// Longest author or summary that is kept, in bytes; the rest is cut off.
pub const MAX_AUDIT_TEXT_BYTES: usize = 4_096;
/// Most rows a list returns, whatever is asked for.
pub const MAX_LIST_ROWS: u32 = 1_000;

/// Most rows of history that one call deletes: few, since there are indexes to be kept, and a call has little time.
pub const MAX_HISTORY_ROWS: u32 = 2_000;

/// What grows with time, and is deleted when it is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// Tokens of attempts.
    Usage,
    /// Transitions.
    Transitions,
    /// The audit trail.
    Audit,
}

impl History {
    /// All there is.
    pub const ALL: [Self; 3] = [Self::Usage, Self::Transitions, Self::Audit];
}

/// History: append-only, until it is old.
#[async_trait]
pub trait HistoryStore {
    /// Appends transitions, all or none. A caller that is not sure repeats it; `id` (unique) makes that
    /// harmless. A repeat keeps the order of the first call.
    async fn append_transitions(
        &self,
        transitions: &[(String, Transition)],
    ) -> Result<(), DurableStoreError>;

    /// Deletes what happened before `before`, at most [`MAX_HISTORY_ROWS`] rows; returns how many. Ask again while it is
    /// not 0.
    async fn delete_history(
        &self,
        history: History,
        before: Timestamp,
    ) -> Result<u64, DurableStoreError>;

    /// Appends what an administrator did besides the document: `action` is a fixed word, `summary` holds no secret. Texts are
    /// cut to [`MAX_AUDIT_TEXT_BYTES`]. A repeat appends again.
    async fn append_audit(
        &self,
        author: &str,
        action: &'static str,
        summary: &str,
    ) -> Result<(), DurableStoreError>;

    /// The newest entries of the audit trail, newest first, at most `limit` and [`MAX_LIST_ROWS`].
    async fn list_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, DurableStoreError>;
}

/// One leader at a time.
#[async_trait]
pub trait Leadership {
    /// Tries to become, or confirms to still be, the leader of a named task. The claim lasts until
    /// [`Leadership::resign`] or until the connection that holds it is lost, which it also is when nothing is
    /// asked on it for a while (10 s unless configured): a leader confirms its claim every second. An error
    /// means that the claim must be taken for lost. At most one process is leader
    /// at a time as far as the store can tell; what the leader does must be harmless when two do it.
    async fn try_lead(&self, task: &'static str) -> Result<bool, DurableStoreError>;

    /// Gives a claim back.
    async fn resign(&self, task: &'static str) -> Result<(), DurableStoreError>;
}

/// Everything durable. Migrations are part of opening an adapter and safe to run twice at once.
#[async_trait]
pub trait DurableStore:
    ConfigurationStore
    + TokenStore
    + HandoffStore
    + LeaseStore
    + PinStore
    + CheckpointStore
    + HistoryStore
    + EventStore
    + UsageStore
    + Leadership
    + Debug
    + Send
    + Sync
    + 'static
{
    /// The store answers.
    async fn ping(&self) -> Result<(), DurableStoreError>;
}
