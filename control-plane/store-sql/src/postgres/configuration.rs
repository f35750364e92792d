//! The configuration in Postgres. The row of the document is the lock: whoever updates it first wins, the
//! others wait for that commit and then find another version.

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::config::Document;
use tidegate_store::durable::{
    ConfigurationStore, DurableStoreError, SealedCredential, SealedSecrets, StoredDocument,
    StoredVersion,
};

use super::leases::reconcile_in;
use super::tokens::{load_grants, save_grants};
use super::{BEGIN_SNAPSHOT, PgDurableStore, allow};
use crate::call::{Failure, Progress, run};
use crate::number::count;
use crate::rows::{
    BATCH_ROWS, CredentialRow, audit_text, check_secrets, credential_version, from_json,
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
                let (version, revision, document): (i64, i64, String) = sqlx::query_as(
                    "SELECT version, secrets_revision, document::text FROM configuration",
                )
                .fetch_one(&mut *tx)
                .await?;
                let rows: Vec<CredentialRow> = sqlx::query_as(
                    "SELECT connection, version, sealed, fingerprint,
                            coalesce(applied_version, version) AS applied_version
                     FROM credentials ORDER BY connection",
                )
                .fetch_all(&mut *tx)
                .await?;
                let grants = load_grants(&mut tx).await?;
                tx.commit().await?;
                let mut credentials = Vec::with_capacity(rows.len());
                for row in rows {
                    credentials.push(row.read()?);
                }
                Ok(StoredDocument {
                    version: plain_version(version)?,
                    document: from_json("the document", &document)?,
                    secrets: SealedSecrets {
                        revision: plain_version(revision)?,
                        credentials,
                        grants,
                        renewed: Vec::new(),
                    },
                })
            },
        )
        .await
    }

    async fn stored_version(&self) -> Result<StoredVersion, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| current_version(connection).await,
        )
        .await
    }

    async fn save_document(
        &self,
        expected: u64,
        document: &Document,
        secrets: &SealedSecrets,
        author: &str,
        summary: &str,
    ) -> Result<u64, DurableStoreError> {
        check_secrets(secrets)?;
        let text = to_json("the document", document)?;
        let limit = self.limits.whole;
        run::<Postgres, _, _>(
            &self.pool,
            limit,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                allow(&mut tx, limit).await?;
                let saved: Option<i64> = sqlx::query_scalar(
                    "UPDATE configuration SET version = version + 1, document = $2::jsonb
                     WHERE version = $1 AND secrets_revision = $3 RETURNING version",
                )
                // No stored version is negative.
                .bind(i64::try_from(expected).unwrap_or(-1))
                .bind(&text)
                .bind(i64::try_from(secrets.revision).unwrap_or(-1))
                .fetch_optional(&mut *tx)
                .await?;
                let Some(version) = saved else {
                    let current = current_version(&mut tx).await?.document;
                    if current == expected {
                        return Err(DurableStoreError::SecretsChanged.into());
                    }
                    return Err(DurableStoreError::VersionConflict { expected, current }.into());
                };
                save_credentials(&mut tx, &secrets.credentials).await?;
                save_grants(&mut tx, secrets).await?;
                let saved = plain_version(version)?;
                reconcile_in(&mut tx, document, saved).await?;
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
                Ok(saved)
            },
        )
        .await
    }
}

pub(super) async fn current_version(
    connection: &mut PgConnection,
) -> Result<StoredVersion, Failure> {
    let (document, secrets): (i64, i64) =
        sqlx::query_as("SELECT version, secrets_revision FROM configuration")
            .fetch_one(connection)
            .await?;
    Ok(StoredVersion {
        document: plain_version(document)?,
        secrets: plain_version(secrets)?,
    })
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
        let mut applied = Vec::with_capacity(batch.len());
        for credential in batch {
            names.push(credential.connection.as_str());
            versions.push(credential_version(credential)?);
            sealed.push(credential.sealed.as_slice());
            fingerprints.push(credential.fingerprint.as_slice());
            applied.push(count(credential.applied_version));
        }
        sqlx::query(
            "INSERT INTO credentials AS old (connection, version, sealed, fingerprint, applied_version)
             SELECT * FROM
                 unnest($1::text[], $2::bigint[], $3::bytea[], $4::bytea[], $5::bigint[])
             ON CONFLICT (connection) DO UPDATE SET version = EXCLUDED.version,
                 sealed = EXCLUDED.sealed, fingerprint = EXCLUDED.fingerprint,
                 applied_version = EXCLUDED.applied_version
             WHERE (old.version, old.sealed, old.fingerprint)
                 IS DISTINCT FROM (EXCLUDED.version, EXCLUDED.sealed, EXCLUDED.fingerprint)",
        )
        .bind(names)
        .bind(versions)
        .bind(sealed)
        .bind(fingerprints)
        .bind(applied)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
