//! History in SQLite.

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::state::Transition;
use tidegate_store::durable::{AuditEntry, DurableStoreError, HistoryStore, UsageRecord};

use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Progress, run};
use crate::number::{bits, count, moment};
use crate::rows::{AuditRow, from_json, list_limit, to_json};

#[async_trait]
impl HistoryStore for SqliteDurableStore {
    async fn append_transitions(
        &self,
        transitions: &[(String, Transition)],
    ) -> Result<(), DurableStoreError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let mut rows = Vec::with_capacity(transitions.len());
        for (id, transition) in transitions {
            rows.push((id, transition, to_json("a transition", transition)?));
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(rows.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                for (id, transition, body) in &rows {
                    sqlx::query(
                        "INSERT INTO transitions (id, at, provider, connection, body)
                         VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (id) DO NOTHING",
                    )
                    .bind(id.as_str())
                    .bind(moment(transition.at))
                    .bind(transition.provider.as_str())
                    .bind(transition.connection.as_ref().map(ConnectionId::as_str))
                    .bind(body.as_str())
                    .execute(&mut *tx)
                    .await?;
                }
                progress.decides();
                tx.commit().await?;
                Ok(())
            },
        )
        .await
    }

    async fn list_transitions(
        &self,
        provider: Option<&ProviderId>,
        limit: u32,
    ) -> Result<Vec<Transition>, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                let query = match provider {
                    None => sqlx::query_scalar(
                        "SELECT body FROM transitions ORDER BY at DESC, seq DESC LIMIT ?1",
                    ),
                    Some(_) => sqlx::query_scalar(
                        "SELECT body FROM transitions WHERE provider = ?2
                         ORDER BY at DESC, seq DESC LIMIT ?1",
                    ),
                };
                let query = query.bind(list_limit(limit));
                let query = match provider {
                    None => query,
                    Some(provider) => query.bind(provider.as_str()),
                };
                let bodies: Vec<String> = query.fetch_all(connection).await?;
                let mut transitions = Vec::with_capacity(bodies.len());
                for body in bodies {
                    transitions.push(from_json("a transition", &body)?);
                }
                Ok(transitions)
            },
        )
        .await
    }

    async fn record_usage(&self, records: &[UsageRecord]) -> Result<u64, DurableStoreError> {
        if records.is_empty() {
            return Ok(0);
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(records.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                let mut new = 0_u64;
                for record in records {
                    new = new.saturating_add(insert_usage(&mut tx, record).await?);
                }
                progress.decides();
                tx.commit().await?;
                Ok(new)
            },
        )
        .await
    }

    async fn list_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                let rows: Vec<AuditRow> = sqlx::query_as(
                    "SELECT at, author, action, summary, document_version FROM admin_audit
                     ORDER BY seq DESC LIMIT ?1",
                )
                .bind(list_limit(limit))
                .fetch_all(connection)
                .await?;
                let mut entries = Vec::with_capacity(rows.len());
                for row in rows {
                    entries.push(row.read()?);
                }
                Ok(entries)
            },
        )
        .await
    }
}

async fn insert_usage(
    connection: &mut SqliteConnection,
    record: &UsageRecord,
) -> Result<u64, sqlx::Error> {
    let inserted = sqlx::query(
        "INSERT INTO usage (plane, number, at, provider, connection, model, key_id,
                            input_tokens, output_tokens)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(bits(record.attempt.plane.0))
    .bind(bits(record.attempt.number))
    .bind(moment(record.at))
    .bind(record.provider.as_str())
    .bind(record.connection.as_str())
    .bind(record.model.as_str())
    .bind(record.key.as_ref().map(KeyId::as_str))
    .bind(record.input_tokens.map(count))
    .bind(record.output_tokens.map(count))
    .execute(connection)
    .await?;
    Ok(inserted.rows_affected())
}
