//! Refresh tokens as both databases give them back, and the rules of their lease.

use tidegate_core::ids::ConnectionId;
use tidegate_core::refresh::TokenState;
use tidegate_store::durable::{
    DurableStoreError, LeasedToken, RefreshedToken, SaveAnswer, SealedGrant, SealedToken,
    TokenLease, TokenRow,
};

use super::{known, plain_version};
use crate::number::{count, from_moment, moment};

/// Everything of a refresh token.
#[derive(sqlx::FromRow)]
pub(crate) struct StoredToken {
    connection: String,
    version: i64,
    sealed: Vec<u8>,
    fingerprint: Vec<u8>,
    secret_version: Option<i64>,
    secret_sealed: Option<Vec<u8>>,
    secret_fingerprint: Option<Vec<u8>>,
    #[sqlx(flatten)]
    state: StateColumns,
    lease_id: Option<String>,
    lease_until: Option<i64>,
    /// Of the stored access token; NULL where there is none.
    credential_version: Option<i64>,
    /// The present, by the database's clock.
    now: i64,
}

/// The columns of a [`TokenState`].
#[derive(sqlx::FromRow)]
pub(crate) struct StateColumns {
    pub(crate) obtained_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) retries: i64,
    pub(crate) last_retry_at: Option<i64>,
    pub(crate) failures: i64,
    pub(crate) last_failure_at: Option<i64>,
}

/// A row of the list.
#[derive(sqlx::FromRow)]
pub(crate) struct ListedToken {
    connection: String,
    credential_version: Option<i64>,
    #[sqlx(flatten)]
    state: StateColumns,
}

impl StateColumns {
    pub(crate) fn of(state: &TokenState) -> Self {
        Self {
            obtained_at: state.obtained_at.map(moment),
            expires_at: state.expires_at.map(moment),
            retries: count(state.retries.into()),
            last_retry_at: state.last_retry_at.map(moment),
            failures: count(state.failures.into()),
            last_failure_at: state.last_failure_at.map(moment),
        }
    }

    fn read(self) -> TokenState {
        // What is beyond the bounds of the schema counts as the bound.
        let number = |stored: i64| u32::try_from(stored.max(0)).unwrap_or(u32::MAX);
        TokenState {
            obtained_at: self.obtained_at.map(from_moment),
            expires_at: self.expires_at.map(from_moment),
            retries: number(self.retries),
            last_retry_at: self.last_retry_at.map(from_moment),
            failures: number(self.failures),
            last_failure_at: self.last_failure_at.map(from_moment),
        }
    }
}

impl ListedToken {
    pub(crate) fn read(self) -> Result<TokenRow, DurableStoreError> {
        row(self.connection, self.state, self.credential_version)
    }
}

fn row(
    connection: String,
    state: StateColumns,
    credential_version: Option<i64>,
) -> Result<TokenRow, DurableStoreError> {
    Ok(TokenRow {
        connection: known(
            "a refresh token's connection",
            ConnectionId::new(connection),
        )?,
        state: state.read(),
        credential_version: plain_version(credential_version.unwrap_or(0))?,
    })
}

impl StoredToken {
    /// How long a lease still runs that somebody holds, in ms; 0 when none does.
    pub(crate) fn lease_remaining_ms(&self) -> u64 {
        let remaining = self
            .lease_until
            .map_or(0, |until| until.saturating_sub(self.now));
        u64::try_from(remaining).unwrap_or(0)
    }

    /// What a holder is told that is granted a lease now.
    pub(crate) fn granted(self, lease: TokenLease) -> Result<LeasedToken, DurableStoreError> {
        let now = from_moment(self.now);
        let waited_out = self.lease_id.is_some();
        let connection = lease.connection.clone();
        let client_secret = match (
            self.secret_version,
            self.secret_sealed,
            self.secret_fingerprint,
        ) {
            (Some(version), Some(sealed), Some(fingerprint)) => Some(SealedToken {
                version: plain_version(version)?,
                sealed,
                fingerprint,
            }),
            _ => None,
        };
        Ok(LeasedToken {
            lease,
            now,
            waited_out,
            row: row(self.connection, self.state, self.credential_version)?,
            grant: SealedGrant {
                connection,
                refresh_token: SealedToken {
                    version: plain_version(self.version)?,
                    sealed: self.sealed,
                    fingerprint: self.fingerprint,
                },
                client_secret,
            },
        })
    }

    pub(crate) fn grant(self) -> Result<SealedGrant, DurableStoreError> {
        let connection = known(
            "a refresh token's connection",
            ConnectionId::new(self.connection.clone()),
        )?;
        let lease = TokenLease {
            connection,
            id: String::new(),
        };
        Ok(self.granted(lease)?.grant)
    }

    /// Whether the holder of this lease may save what it did with the token of this version; `None`: it may.
    pub(crate) fn refuses(&self, lease: &TokenLease, used_version: u64) -> Option<SaveAnswer> {
        if self.lease_id.as_ref() != Some(&lease.id) || self.lease_remaining_ms() == 0 {
            return Some(SaveAnswer::LeaseLost);
        }
        (u64::try_from(self.version) != Ok(used_version)).then_some(SaveAnswer::TokenReplaced)
    }

    /// As [`Self::refuses`], for a renewal that brought a new access token.
    pub(crate) fn refuses_renewal(
        &self,
        lease: &TokenLease,
        refreshed: &RefreshedToken,
    ) -> Option<SaveAnswer> {
        self.refuses(lease, refreshed.used_version).or_else(|| {
            let current = u64::try_from(self.credential_version.unwrap_or(0)).unwrap_or(0);
            (current != refreshed.replaces_version)
                .then_some(SaveAnswer::CredentialReplaced { current })
        })
    }
}

/// The version of a refresh token or client secret as stored.
pub(crate) fn token_version(token: &SealedToken) -> Result<i64, DurableStoreError> {
    match i64::try_from(token.version) {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(DurableStoreError::Refused(format!(
            "a token has version {}",
            token.version
        ))),
    }
}
