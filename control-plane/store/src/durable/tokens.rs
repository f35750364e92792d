//! Refresh tokens, the state of their renewal, and who may renew.
//!
//! **One owner.** A refresh token may be good for one use only, so two replicas must never use the same one. Who
//! renews holds a lease: a mark in the row with an end of its own, by the database's clock. Nobody else gets one before
//! that end, also when its holder is dead. What a renewal brought is saved only under a running lease, and only if the
//! stored token is still the one that was used.
//!
//! **Stance:** fail-closed. Without an answer nothing is renewed; a save without an answer may have happened, and is
//! settled by looking ([`TokenStore::lease_token`]).

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::ids::ConnectionId;
use tidegate_core::refresh::TokenState;
use tidegate_core::time::Timestamp;

use super::{DurableStoreError, SealedCredential};

/// A sealed refresh token or client secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedToken {
    /// Grows by one each time it is replaced, from 1.
    pub version: u64,
    /// Cipher text with its nonce.
    pub sealed: Vec<u8>,
    /// A keyed fingerprint of what an operator last applied, to see whether an apply changes it.
    pub fingerprint: Vec<u8>,
}

impl fmt::Debug for SealedToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SealedToken")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What a connection's access token is renewed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedGrant {
    /// Whose. At most one grant of each connection is in a document's list.
    pub connection: ConnectionId,
    /// Its refresh token.
    pub refresh_token: SealedToken,
    /// The secret of the OAuth client, where it has one.
    pub client_secret: Option<SealedToken>,
}

/// A refresh token's row without its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Whose.
    pub connection: ConnectionId,
    /// What is known about the access token and its renewals.
    pub state: TokenState,
    /// Version of the stored access token; 0 = there is none.
    pub credential_version: u64,
}

/// A running lease. Whoever has the same `id` holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLease {
    /// Of which connection.
    pub connection: ConnectionId,
    /// Unique to this lease; begins with the name of the replica.
    pub id: String,
}

/// A lease that was granted, with what stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedToken {
    /// The lease.
    pub lease: TokenLease,
    /// When it was granted, by the database's clock.
    pub now: Timestamp,
    /// An earlier holder let its lease run out.
    pub waited_out: bool,
    /// State and versions.
    pub row: TokenRow,
    /// Refresh token and client secret.
    pub grant: SealedGrant,
}

/// Answer to a request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// Granted.
    Granted(Box<LeasedToken>),
    /// Another holds one, for so many ms at most.
    Held {
        /// What is left of it.
        remaining_ms: u64,
    },
    /// The connection has no refresh token.
    Absent,
}

/// What a renewal brought, to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefreshedToken {
    /// Version of the refresh token that was used.
    pub used_version: u64,
    /// The refresh token from now on, under the next version; also where it is the same as before.
    pub refresh_token: SealedToken,
    /// Version of the access token that `credential` replaces; 0 = there was none.
    pub replaces_version: u64,
    /// The new access token. Of a stored credential fingerprint and applied version are kept.
    pub credential: SealedCredential,
    /// State of the new access token.
    pub state: TokenState,
}

/// What became of a save. Anything but `Saved` means that nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveAnswer {
    /// Saved, and the lease is given back.
    Saved,
    /// The lease has run out, or was given back.
    LeaseLost,
    /// The stored refresh token is another than the one that was used.
    TokenReplaced,
    /// The stored access token is another than the one that is to be replaced.
    CredentialReplaced {
        /// Its version.
        current: u64,
    },
}

/// Refresh tokens and their renewal. They are applied and read back with the document
/// ([`super::ConfigurationStore`]).
#[async_trait]
pub trait TokenStore {
    /// All connections that have a refresh token, by name, and the database's time.
    async fn list_tokens(&self) -> Result<(Timestamp, Vec<TokenRow>), DurableStoreError>;

    /// Takes a lease for `length`, unless another one is running. `id` is unique to the call.
    async fn lease_token(
        &self,
        connection: &ConnectionId,
        id: &str,
        length: Duration,
    ) -> Result<LeaseAnswer, DurableStoreError>;

    /// Saves what a renewal brought: refresh token, access token and state together, and one more revision of the
    /// secrets. Gives the lease back.
    async fn save_refreshed(
        &self,
        lease: &TokenLease,
        refreshed: &RefreshedToken,
    ) -> Result<SaveAnswer, DurableStoreError>;

    /// Saves the state after a failed renewal with the refresh token of this version. Gives the lease back.
    async fn save_refresh_failure(
        &self,
        lease: &TokenLease,
        used_version: u64,
        state: &TokenState,
    ) -> Result<SaveAnswer, DurableStoreError>;

    /// Gives a lease back, if it is still held.
    async fn release_token(&self, lease: &TokenLease) -> Result<(), DurableStoreError>;

    /// Forgets failed renewals of a connection; whether there were any.
    async fn forget_refresh_failures(
        &self,
        connection: &ConnectionId,
    ) -> Result<bool, DurableStoreError>;
}
