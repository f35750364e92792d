//! The configuration in Postgres. The row of the document is the lock: whoever updates it first wins, the
//! others wait for that commit and then find another version.

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::config::Document;
use tidegate_store::durable::{
    ConfigurationStore, DurableStoreError, SealedCredential, StoredDocument,
};

use super::{BEGIN_SNAPSHOT, PgDurableStore, allow};
use crate::call::{Failure, Progress, run};
use crate::rows::{
    BATCH_ROWS, CredentialRow, audit_text, check_credentials, credential_version, from_json,
    plain_version, to_json,
};

#[async_trait]
impl ConfigurationStore for PgDurableStore {
    async fn load_document(&self) -> Result<StoredDocument, DurableStoreError> {
        let limit = self.limits.whole;
        run::<Postgres, _, _>(
            &self.pool,
            limit,
            async |connection: &mut PgConnection, _: &Progress| {
                let mut tx = connection.begin_with(BEGIN_SNAPSHOT).await?;
                allow(&mut tx, limit).await?;
                let (version, document): (i64, String) =
                    sqlx::query_as("SELECT version, document::text FROM configuration")
                        .fetch_one(&mut *tx)
                        .await?;
                let rows: Vec<CredentialRow> = sqlx::query_as(
                    "SELECT connection, version, sealed, fingerprint FROM credentials
                     ORDER BY connection",
                )
                .fetch_all(&mut *tx)
                .await?;
                tx.commit().await?;
                let mut credentials = Vec::with_capacity(rows.len());
                for row in rows {
                    credentials.push(row.read()?);
                }
                Ok(StoredDocument {
                    version: plain_version(version)?,
                    document: from_json("the document", &document)?,
                    credentials,
                })
            },
        )
        .await
    }

    async fn document_version(&self) -> Result<u64, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                Ok(plain_version(current_version(connection).await?)?)
            },
        )
        .await
    }

    async fn save_document(
        &self,
        expected: u64,
        document: &Document,
        credentials: &[SealedCredential],
        author: &str,
        summary: &str,
    ) -> Result<u64, DurableStoreError> {
        check_credentials(credentials)?;
        let document = to_json("the document", document)?;
        let limit = self.limits.whole;
        run::<Postgres, _, _>(
            &self.pool,
            limit,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                allow(&mut tx, limit).await?;
                let saved: Option<i64> = sqlx::query_scalar(
                    "UPDATE configuration SET version = version + 1, document = $2::jsonb
                     WHERE version = $1 RETURNING version",
                )
                // No stored version is negative.
                .bind(i64::try_from(expected).unwrap_or(-1))
                .bind(&document)
                .fetch_optional(&mut *tx)
                .await?;
                let Some(version) = saved else {
                    let current = plain_version(current_version(&mut tx).await?)?;
                    return Err(DurableStoreError::VersionConflict { expected, current }.into());
                };
                save_credentials(&mut tx, credentials).await?;
                sqlx::query(
                    "INSERT INTO admin_audit (author, action, summary, document_version)
                     VALUES ($1, 'save_document', $2, $3)",
                )
                .bind(audit_text(author))
                .bind(audit_text(summary))
                .bind(version)
                .execute(&mut *tx)
                .await?;
                progress.decides();
                tx.commit().await?;
                Ok(plain_version(version)?)
            },
        )
        .await
    }
}

async fn current_version(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT version FROM configuration")
        .fetch_one(connection)
        .await
}

async fn save_credentials(
    connection: &mut PgConnection,
    credentials: &[SealedCredential],
) -> Result<(), Failure> {
    let kept: Vec<&str> = credentials
        .iter()
        .map(|credential| credential.connection.as_str())
        .collect();
    sqlx::query("DELETE FROM credentials WHERE connection <> ALL($1)")
        .bind(kept)
        .execute(&mut *connection)
        .await?;
    for batch in credentials.chunks(BATCH_ROWS) {
        let mut names = Vec::with_capacity(batch.len());
        let mut versions = Vec::with_capacity(batch.len());
        let mut sealed = Vec::with_capacity(batch.len());
        let mut fingerprints = Vec::with_capacity(batch.len());
        for credential in batch {
            names.push(credential.connection.as_str());
            versions.push(credential_version(credential)?);
            sealed.push(credential.sealed.as_slice());
            fingerprints.push(credential.fingerprint.as_slice());
        }
        sqlx::query(
            "INSERT INTO credentials AS old (connection, version, sealed, fingerprint)
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[])
             ON CONFLICT (connection) DO UPDATE SET version = EXCLUDED.version,
                 sealed = EXCLUDED.sealed, fingerprint = EXCLUDED.fingerprint
             WHERE (old.version, old.sealed, old.fingerprint)
                 IS DISTINCT FROM (EXCLUDED.version, EXCLUDED.sealed, EXCLUDED.fingerprint)",
        )
        .bind(names)
        .bind(versions)
        .bind(sealed)
        .bind(fingerprints)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
