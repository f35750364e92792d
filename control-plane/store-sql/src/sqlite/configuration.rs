//! The configuration in SQLite.

use async_trait::async_trait;
use sqlx::{Connection, Sqlite, SqliteConnection};
use tidegate_core::config::Document;
use tidegate_store::durable::{
    ConfigurationStore, DurableStoreError, SealedCredential, SealedSecrets, StoredDocument,
    StoredVersion,
};

use super::leases::end_uncovered;
use super::tokens::{load_grants, save_grants};
use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Failure, Progress, run};
use crate::number::count;
use crate::rows::{
    CredentialRow, audit_text, check_secrets, credential_version, from_json, plain_version, to_json,
};

#[async_trait]
impl ConfigurationStore for SqliteDurableStore {
    async fn load_document(&self) -> Result<StoredDocument, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.whole,
            async |connection: &mut SqliteConnection, _: &Progress| {
                // One transaction sees one state.
                let mut tx = connection.begin().await?;
                let (version, revision, document): (i64, i64, String) =
                    sqlx::query_as("SELECT version, secrets_revision, document FROM configuration")
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
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                current_version(connection).await
            },
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.whole,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                let saved: Option<i64> = sqlx::query_scalar(
                    "UPDATE configuration SET version = version + 1, document = ?2
                     WHERE version = ?1 AND secrets_revision = ?3 RETURNING version",
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
                end_uncovered(&mut tx, document).await?;
                sqlx::query(
                    "INSERT INTO admin_audit (author, action, summary, document_version)
                     VALUES (?1, 'save_document', ?2, ?3)",
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

pub(super) async fn current_version(
    connection: &mut SqliteConnection,
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
    connection: &mut SqliteConnection,
    credentials: &[SealedCredential],
) -> Result<(), Failure> {
    let kept: Vec<&str> = credentials
        .iter()
        .map(|credential| credential.connection.as_str())
        .collect();
    sqlx::query(
        "DELETE FROM credentials WHERE connection NOT IN (SELECT value FROM json_each(?1))",
    )
    .bind(to_json("names of connections", &kept)?)
    .execute(&mut *connection)
    .await?;
    for credential in credentials {
        sqlx::query(
            "INSERT INTO credentials AS old (connection, version, sealed, fingerprint, applied_version)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (connection) DO UPDATE SET version = excluded.version,
                 sealed = excluded.sealed, fingerprint = excluded.fingerprint,
                 applied_version = excluded.applied_version
             WHERE (old.version, old.sealed, old.fingerprint)
                 IS NOT (excluded.version, excluded.sealed, excluded.fingerprint)",
        )
        .bind(credential.connection.as_str())
        .bind(credential_version(credential)?)
        .bind(credential.sealed.as_slice())
        .bind(credential.fingerprint.as_slice())
        .bind(count(credential.applied_version))
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
