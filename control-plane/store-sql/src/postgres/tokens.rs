//! Refresh tokens in Postgres. Whoever changes a row locks it first and then looks, so that a lease that passes to
//! another and a save under it come one after the other. The row of the document is locked before it, as a save of
//! the document does.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::ids::ConnectionId;
use tidegate_core::refresh::TokenState;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{
    DurableStoreError, LeaseAnswer, RefreshedToken, SaveAnswer, SealedGrant, SealedSecrets,
    TokenLease, TokenRow, TokenStore,
};

use super::PgDurableStore;
use crate::call::{Failure, Progress, run};
use crate::number::{count, from_moment};
use crate::rows::credential_version;
use crate::rows::tokens::{ListedToken, StateColumns, StoredToken, token_version};

/// A lease is never longer than this, in ms, whatever is asked for: one hour.
const MAX_LEASE_MS: u64 = 3_600_000;
/// Fingerprint of a credential that no operator applied.
const NEVER_APPLIED: &[u8] = &[];

#[async_trait]
impl TokenStore for PgDurableStore {
    async fn list_tokens(&self) -> Result<(Timestamp, Vec<TokenRow>), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.whole,
            async |connection: &mut PgConnection, _: &Progress| {
                let now: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
                    .fetch_one(&mut *connection)
                    .await?;
                let listed: Vec<ListedToken> = sqlx::query_as(
                    "SELECT token.connection, credentials.version AS credential_version,
                            obtained_at, expires_at, retries, last_retry_at, failures, last_failure_at
                     FROM refresh_tokens AS token LEFT JOIN credentials USING (connection)
                     ORDER BY token.connection",
                )
                .fetch_all(connection)
                .await?;
                let mut rows = Vec::with_capacity(listed.len());
                for row in listed {
                    rows.push(row.read()?);
                }
                Ok((from_moment(now), rows))
            },
        )
        .await
    }

    async fn lease_token(
        &self,
        connection: &ConnectionId,
        id: &str,
        length: Duration,
    ) -> Result<LeaseAnswer, DurableStoreError> {
        let length_ms = u64::try_from(length.as_millis())
            .unwrap_or(u64::MAX)
            .min(MAX_LEASE_MS);
        let lease = TokenLease {
            connection: connection.clone(),
            id: id.to_owned(),
        };
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                let Some(token) = lock(&mut tx, &lease.connection).await? else {
                    return Ok(LeaseAnswer::Absent);
                };
                let remaining_ms = token.lease_remaining_ms();
                if remaining_ms > 0 {
                    return Ok(LeaseAnswer::Held { remaining_ms });
                }
                sqlx::query(
                    "UPDATE refresh_tokens SET lease_id = $2,
                         lease_until = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3
                     WHERE connection = $1",
                )
                .bind(lease.connection.as_str())
                .bind(lease.id.as_str())
                .bind(count(length_ms))
                .execute(&mut *tx)
                .await?;
                let granted = token.granted(lease.clone())?;
                progress.decides();
                tx.commit().await?;
                Ok(LeaseAnswer::Granted(Box::new(granted)))
            },
        )
        .await
    }

    async fn save_refreshed(
        &self,
        lease: &TokenLease,
        refreshed: &RefreshedToken,
    ) -> Result<SaveAnswer, DurableStoreError> {
        let token_version = token_version(&refreshed.refresh_token)?;
        let credential_version = credential_version(&refreshed.credential)?;
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                sqlx::query("UPDATE configuration SET secrets_revision = secrets_revision + 1")
                    .execute(&mut *tx)
                    .await?;
                let Some(token) = lock(&mut tx, &lease.connection).await? else {
                    return Ok(SaveAnswer::LeaseLost);
                };
                if let Some(refusal) = token.refuses_renewal(lease, refreshed) {
                    return Ok(refusal);
                }
                sqlx::query(
                    "INSERT INTO credentials AS old
                         (connection, version, sealed, fingerprint, applied_version)
                     VALUES ($1, $2, $3, $4, 0)
                     ON CONFLICT (connection) DO UPDATE SET version = excluded.version,
                         sealed = excluded.sealed,
                         applied_version = coalesce(old.applied_version, old.version)",
                )
                .bind(lease.connection.as_str())
                .bind(credential_version)
                .bind(refreshed.credential.sealed.as_slice())
                .bind(NEVER_APPLIED)
                .execute(&mut *tx)
                .await?;
                sqlx::query(
                    "UPDATE refresh_tokens SET version = $2, sealed = $3 WHERE connection = $1",
                )
                .bind(lease.connection.as_str())
                .bind(token_version)
                .bind(refreshed.refresh_token.sealed.as_slice())
                .execute(&mut *tx)
                .await?;
                end_lease(&mut tx, &lease.connection, &refreshed.state).await?;
                progress.decides();
                tx.commit().await?;
                Ok(SaveAnswer::Saved)
            },
        )
        .await
    }

    async fn save_refresh_failure(
        &self,
        lease: &TokenLease,
        used_version: u64,
        state: &TokenState,
    ) -> Result<SaveAnswer, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                let Some(token) = lock(&mut tx, &lease.connection).await? else {
                    return Ok(SaveAnswer::LeaseLost);
                };
                if let Some(refusal) = token.refuses(lease, used_version) {
                    return Ok(refusal);
                }
                end_lease(&mut tx, &lease.connection, state).await?;
                progress.decides();
                tx.commit().await?;
                Ok(SaveAnswer::Saved)
            },
        )
        .await
    }

    async fn release_token(&self, lease: &TokenLease) -> Result<(), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                sqlx::query(
                    "UPDATE refresh_tokens SET lease_id = NULL, lease_until = NULL
                     WHERE connection = $1 AND lease_id = $2",
                )
                .bind(lease.connection.as_str())
                .bind(lease.id.as_str())
                .execute(connection)
                .await?;
                Ok(())
            },
        )
        .await
    }

    async fn forget_refresh_failures(
        &self,
        connection: &ConnectionId,
    ) -> Result<bool, DurableStoreError> {
        let name = connection.as_str();
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                let forgotten = sqlx::query(
                    "UPDATE refresh_tokens SET retries = 0, last_retry_at = NULL, failures = 0,
                         last_failure_at = NULL
                     WHERE connection = $1 AND (retries > 0 OR failures > 0)",
                )
                .bind(name)
                .execute(connection)
                .await?;
                Ok(forgotten.rows_affected() > 0)
            },
        )
        .await
    }
}

/// Reads a refresh token and locks its row; what it says is as of then, not as of when the waiting began.
async fn lock(
    connection: &mut PgConnection,
    name: &ConnectionId,
) -> Result<Option<StoredToken>, sqlx::Error> {
    sqlx::query("SELECT FROM refresh_tokens WHERE connection = $1 FOR UPDATE")
        .bind(name.as_str())
        .execute(&mut *connection)
        .await?;
    sqlx::query_as(
        "SELECT token.connection, token.version, token.sealed, token.fingerprint,
                secret_version, secret_sealed, secret_fingerprint,
                obtained_at, expires_at, retries, last_retry_at, failures, last_failure_at,
                lease_id, lease_until, credentials.version AS credential_version,
                (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
         FROM refresh_tokens AS token LEFT JOIN credentials USING (connection)
         WHERE token.connection = $1",
    )
    .bind(name.as_str())
    .fetch_optional(connection)
    .await
}

/// Writes the state after a renewal and gives the lease back.
async fn end_lease(
    connection: &mut PgConnection,
    name: &ConnectionId,
    state: &TokenState,
) -> Result<(), sqlx::Error> {
    let columns = StateColumns::of(state);
    sqlx::query(
        "UPDATE refresh_tokens SET obtained_at = $2, expires_at = $3, retries = $4,
             last_retry_at = $5, failures = $6, last_failure_at = $7,
             lease_id = NULL, lease_until = NULL
         WHERE connection = $1",
    )
    .bind(name.as_str())
    .bind(columns.obtained_at)
    .bind(columns.expires_at)
    .bind(columns.retries)
    .bind(columns.last_retry_at)
    .bind(columns.failures)
    .bind(columns.last_failure_at)
    .execute(connection)
    .await
    .map(drop)
}

/// All grants, by connection.
pub(super) async fn load_grants(
    connection: &mut PgConnection,
) -> Result<Vec<SealedGrant>, Failure> {
    let stored: Vec<StoredToken> = sqlx::query_as(
        "SELECT connection, version, sealed, fingerprint,
                secret_version, secret_sealed, secret_fingerprint,
                obtained_at, expires_at, retries, last_retry_at, failures, last_failure_at,
                lease_id, lease_until, NULL::bigint AS credential_version, 0::bigint AS now
         FROM refresh_tokens ORDER BY connection",
    )
    .fetch_all(connection)
    .await?;
    let mut grants = Vec::with_capacity(stored.len());
    for token in stored {
        grants.push(token.grant()?);
    }
    Ok(grants)
}

/// Replaces the grants by those of a document. What differs was applied by an operator, so its renewal begins anew; a
/// running lease is left, since its holder is still at work.
pub(super) async fn save_grants(
    connection: &mut PgConnection,
    secrets: &SealedSecrets,
) -> Result<(), Failure> {
    let kept: Vec<&str> = secrets
        .grants
        .iter()
        .map(|grant| grant.connection.as_str())
        .collect();
    sqlx::query("DELETE FROM refresh_tokens WHERE connection <> ALL($1)")
        .bind(kept)
        .execute(&mut *connection)
        .await?;
    for grant in &secrets.grants {
        let secret = grant.client_secret.as_ref();
        sqlx::query(
            "INSERT INTO refresh_tokens AS old (connection, version, sealed, fingerprint,
                 secret_version, secret_sealed, secret_fingerprint)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (connection) DO UPDATE SET version = excluded.version,
                 sealed = excluded.sealed, fingerprint = excluded.fingerprint,
                 secret_version = excluded.secret_version,
                 secret_sealed = excluded.secret_sealed,
                 secret_fingerprint = excluded.secret_fingerprint
             WHERE (old.version, old.secret_version)
                 IS DISTINCT FROM (excluded.version, excluded.secret_version)",
        )
        .bind(grant.connection.as_str())
        .bind(token_version(&grant.refresh_token)?)
        .bind(grant.refresh_token.sealed.as_slice())
        .bind(grant.refresh_token.fingerprint.as_slice())
        .bind(secret.map(token_version).transpose()?)
        .bind(secret.map(|secret| secret.sealed.as_slice()))
        .bind(secret.map(|secret| secret.fingerprint.as_slice()))
        .execute(&mut *connection)
        .await?;
    }
    for renewed in &secrets.renewed {
        sqlx::query(
            "UPDATE refresh_tokens SET obtained_at = NULL, expires_at = NULL, retries = 0,
                 last_retry_at = NULL, failures = 0, last_failure_at = NULL
             WHERE connection = $1",
        )
        .bind(renewed.as_str())
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
