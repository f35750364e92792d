//! History in Postgres.

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::state::Transition;
use tidegate_store::durable::{AuditEntry, DurableStoreError, HistoryStore, UsageRecord};

use super::PgDurableStore;
use crate::call::{Progress, run};
use crate::number::{bits, count, moment};
use crate::rows::{AuditRow, BATCH_ROWS, by_attempt, from_json, list_limit, to_json};

#[async_trait]
impl HistoryStore for PgDurableStore {
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(rows.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                for batch in rows.chunks(BATCH_ROWS) {
                    insert_transitions(&mut tx, batch).await?;
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                let query = match provider {
                    None => sqlx::query_scalar(
                        "SELECT body::text FROM transitions ORDER BY at DESC, seq DESC LIMIT $1",
                    ),
                    Some(_) => sqlx::query_scalar(
                        "SELECT body::text FROM transitions WHERE provider = $2
                         ORDER BY at DESC, seq DESC LIMIT $1",
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
        let records = by_attempt(records);
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(records.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                let mut new = 0_u64;
                for batch in records.chunks(BATCH_ROWS) {
                    new = new.saturating_add(insert_usage(&mut tx, batch).await?);
                }
                progress.decides();
                tx.commit().await?;
                Ok(new)
            },
        )
        .await
    }

    async fn list_audit(&self, limit: u32) -> Result<Vec<AuditEntry>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                let rows: Vec<AuditRow> = sqlx::query_as(
                    "SELECT at, author, action, summary, document_version FROM admin_audit
                     ORDER BY seq DESC LIMIT $1",
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

async fn insert_transitions(
    connection: &mut PgConnection,
    batch: &[(&String, &Transition, String)],
) -> Result<(), sqlx::Error> {
    let ids: Vec<&str> = batch.iter().map(|(id, ..)| id.as_str()).collect();
    let moments: Vec<i64> = batch.iter().map(|(_, row, _)| moment(row.at)).collect();
    let providers: Vec<&str> = batch
        .iter()
        .map(|(_, row, _)| row.provider.as_str())
        .collect();
    let connections: Vec<Option<&str>> = batch
        .iter()
        .map(|(_, row, _)| row.connection.as_ref().map(ConnectionId::as_str))
        .collect();
    let bodies: Vec<&str> = batch.iter().map(|(.., body)| body.as_str()).collect();
    sqlx::query(
        "INSERT INTO transitions (id, at, provider, connection, body)
         SELECT id, at, provider, connection, body::jsonb
         FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[])
             WITH ORDINALITY AS batch (id, at, provider, connection, body, position)
         ORDER BY position
         ON CONFLICT (id) DO NOTHING",
    )
    .bind(ids)
    .bind(moments)
    .bind(providers)
    .bind(connections)
    .bind(bodies)
    .execute(connection)
    .await
    .map(drop)
}

async fn insert_usage(
    connection: &mut PgConnection,
    batch: &[&UsageRecord],
) -> Result<u64, sqlx::Error> {
    let numbers = |column: fn(&UsageRecord) -> i64| -> Vec<i64> {
        batch.iter().map(|record| column(record)).collect()
    };
    let counts = |column: fn(&UsageRecord) -> Option<u64>| -> Vec<Option<i64>> {
        batch
            .iter()
            .map(|record| column(record).map(count))
            .collect()
    };
    let providers: Vec<&str> = batch
        .iter()
        .map(|record| record.provider.as_str())
        .collect();
    let connections: Vec<&str> = batch
        .iter()
        .map(|record| record.connection.as_str())
        .collect();
    let models: Vec<&str> = batch.iter().map(|record| record.model.as_str()).collect();
    let keys: Vec<Option<&str>> = batch
        .iter()
        .map(|record| record.key.as_ref().map(KeyId::as_str))
        .collect();
    let inserted = sqlx::query(
        "INSERT INTO usage (plane, number, at, provider, connection, model, key_id,
                            input_tokens, output_tokens)
         SELECT plane, number, at, provider, connection, model, key_id, input_tokens, output_tokens
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[],
                     $7::text[], $8::bigint[], $9::bigint[])
             WITH ORDINALITY AS batch (plane, number, at, provider, connection, model, key_id,
                                       input_tokens, output_tokens, position)
         ORDER BY position
         ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(numbers(|record| bits(record.attempt.plane.0)))
    .bind(numbers(|record| bits(record.attempt.number)))
    .bind(numbers(|record| moment(record.at)))
    .bind(providers)
    .bind(connections)
    .bind(models)
    .bind(keys)
    .bind(counts(|record| record.input_tokens))
    .bind(counts(|record| record.output_tokens))
    .execute(connection)
    .await?;
    Ok(inserted.rows_affected())
}
