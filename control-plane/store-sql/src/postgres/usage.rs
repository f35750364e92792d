//! Usage in Postgres.
//!
//! **Order of locks.** Whoever needs several takes them in this order: the row of a data plane, rows of attempts under way,
//! rows of usage; within a table by attempt.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::usage::{OpenAttempt, UsageRecord, UsageSource};
use tidegate_store::durable::{DurableStoreError, MAX_REAPED_ATTEMPTS, Reaped, UsageStore};

use super::PgDurableStore;
use super::leases::clock;
use crate::call::{Progress, run};
use crate::number::{bits, count, moment, present};
use crate::rows::BATCH_ROWS;
use crate::rows::usage::{attempt, key_name, of_plane, one_of_each};

#[async_trait]
impl UsageStore for PgDurableStore {
    async fn record_usage(
        &self,
        records: &[UsageRecord],
    ) -> Result<Vec<AttemptId>, DurableStoreError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let records = one_of_each(records);
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(records.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                for batch in records.chunks(BATCH_ROWS) {
                    close(&mut tx, batch).await?;
                }
                let mut counted = Vec::new();
                for batch in records.chunks(BATCH_ROWS) {
                    let rows = insert(&mut tx, batch).await?;
                    counted.extend(rows.into_iter().map(attempt));
                }
                progress.decides();
                tx.commit().await?;
                Ok(counted)
            },
        )
        .await
    }

    async fn open_attempts(
        &self,
        plane: PlaneIncarnation,
        attempts: &[OpenAttempt],
    ) -> Result<(), DurableStoreError> {
        let attempts = of_plane(plane, attempts)?;
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(attempts.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                let now = clock(&mut tx).await?;
                sqlx::query(
                    "INSERT INTO open_attempt_planes AS old (plane, heard_at) VALUES ($1, $2)
                     ON CONFLICT (plane) DO UPDATE
                         SET heard_at = greatest(old.heard_at, EXCLUDED.heard_at)",
                )
                .bind(bits(plane.0))
                .bind(present(now))
                .execute(&mut *tx)
                .await?;
                for batch in attempts.chunks(BATCH_ROWS) {
                    insert_open(&mut tx, batch).await?;
                }
                progress.decides();
                tx.commit().await?;
                Ok(())
            },
        )
        .await
    }

    async fn reap_open_attempts(&self, silence: Duration) -> Result<Reaped, DurableStoreError> {
        let silence_ms = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                let now = clock(&mut tx).await?;
                let silent: Option<(i64, i64)> = sqlx::query_as(
                    "SELECT plane, heard_at FROM open_attempt_planes WHERE heard_at <= $1
                     LIMIT 1 FOR UPDATE SKIP LOCKED",
                )
                .bind(present(now.minus_ms(silence_ms)))
                .fetch_optional(&mut *tx)
                .await?;
                let Some((plane, heard_at)) = silent else {
                    return Ok(Reaped::default());
                };
                let unknown = reap(&mut tx, plane, heard_at).await?;
                sqlx::query(
                    "DELETE FROM open_attempt_planes WHERE plane = $1
                     AND NOT EXISTS (SELECT FROM open_attempts WHERE plane = $1)",
                )
                .bind(plane)
                .execute(&mut *tx)
                .await?;
                progress.decides();
                tx.commit().await?;
                Ok(Reaped {
                    found: true,
                    unknown,
                })
            },
        )
        .await
    }
}

/// They are not under way any more.
async fn close(connection: &mut PgConnection, batch: &[&UsageRecord]) -> Result<(), sqlx::Error> {
    let planes: Vec<i64> = batch.iter().map(|it| bits(it.attempt.plane.0)).collect();
    let numbers: Vec<i64> = batch.iter().map(|it| bits(it.attempt.number)).collect();
    sqlx::query(
        "WITH over AS MATERIALIZED (
             SELECT plane, number FROM open_attempts
             JOIN unnest($1::bigint[], $2::bigint[]) AS batch (plane, number) USING (plane, number)
             ORDER BY plane, number FOR UPDATE OF open_attempts)
         DELETE FROM open_attempts AS open USING over
         WHERE open.plane = over.plane AND open.number = over.number",
    )
    .bind(planes)
    .bind(numbers)
    .execute(connection)
    .await
    .map(drop)
}

/// Returns the attempts that count from now on.
async fn insert(
    connection: &mut PgConnection,
    batch: &[&UsageRecord],
) -> Result<Vec<(i64, i64)>, sqlx::Error> {
    let numbers = |column: fn(&UsageRecord) -> i64| -> Vec<i64> {
        batch.iter().map(|record| column(record)).collect()
    };
    let counts = |column: fn(&UsageRecord) -> Option<u64>| -> Vec<Option<i64>> {
        batch
            .iter()
            .map(|record| column(record).map(count))
            .collect()
    };
    let texts = |column: fn(&UsageRecord) -> &str| -> Vec<&str> {
        batch.iter().map(|record| column(record)).collect()
    };
    let keys: Vec<Option<&str>> = batch
        .iter()
        .map(|record| key_name(record.key.as_ref()))
        .collect();
    sqlx::query_as(
        "INSERT INTO usage AS old (plane, number, at, provider, connection, model, key_id,
                                   input_tokens, output_tokens, source)
         SELECT plane, number, at, provider, connection, model, key_id,
                input_tokens, output_tokens, source
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[],
                     $7::text[], $8::bigint[], $9::bigint[], $10::text[])
             WITH ORDINALITY AS batch (plane, number, at, provider, connection, model, key_id,
                                       input_tokens, output_tokens, source, position)
         ORDER BY position
         ON CONFLICT (plane, number) DO UPDATE SET at = EXCLUDED.at,
             provider = EXCLUDED.provider, connection = EXCLUDED.connection,
             model = EXCLUDED.model, key_id = EXCLUDED.key_id,
             input_tokens = EXCLUDED.input_tokens, output_tokens = EXCLUDED.output_tokens,
             source = EXCLUDED.source
         WHERE old.source = $11 AND EXCLUDED.source <> $11
         RETURNING plane, number",
    )
    .bind(numbers(|record| bits(record.attempt.plane.0)))
    .bind(numbers(|record| bits(record.attempt.number)))
    .bind(numbers(|record| moment(record.at)))
    .bind(texts(|record| record.provider.as_str()))
    .bind(texts(|record| record.connection.as_str()))
    .bind(texts(|record| record.model.as_str()))
    .bind(keys)
    .bind(counts(|record| record.tokens.input))
    .bind(counts(|record| record.tokens.output))
    .bind(texts(|record| record.tokens.source.name()))
    .bind(UsageSource::Unknown.name())
    .fetch_all(connection)
    .await
}

async fn insert_open(
    connection: &mut PgConnection,
    batch: &[&OpenAttempt],
) -> Result<(), sqlx::Error> {
    let numbers = |column: fn(&OpenAttempt) -> i64| -> Vec<i64> {
        batch.iter().map(|open| column(open)).collect()
    };
    let texts = |column: fn(&OpenAttempt) -> &str| -> Vec<&str> {
        batch.iter().map(|open| column(open)).collect()
    };
    let keys: Vec<Option<&str>> = batch
        .iter()
        .map(|open| key_name(open.key.as_ref()))
        .collect();
    sqlx::query(
        "INSERT INTO open_attempts (plane, number, since, provider, connection, model, key_id)
         SELECT plane, number, since, provider, connection, model, key_id
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[],
                     $7::text[])
             WITH ORDINALITY AS batch (plane, number, since, provider, connection, model, key_id,
                                       position)
         WHERE NOT EXISTS (SELECT FROM usage
                           WHERE usage.plane = batch.plane AND usage.number = batch.number)
         ORDER BY position
         ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(numbers(|open| bits(open.attempt.plane.0)))
    .bind(numbers(|open| bits(open.attempt.number)))
    .bind(numbers(|open| moment(open.since)))
    .bind(texts(|open| open.provider.as_str()))
    .bind(texts(|open| open.connection.as_str()))
    .bind(texts(|open| open.model.as_str()))
    .bind(keys)
    .execute(connection)
    .await
    .map(drop)
}

/// Records what a data plane left. Returns how many attempts are recorded as unknown now that were not recorded.
async fn reap(
    connection: &mut PgConnection,
    plane: i64,
    heard_at: i64,
) -> Result<u64, sqlx::Error> {
    let recorded = sqlx::query(
        "WITH lost AS MATERIALIZED (
             SELECT * FROM open_attempts WHERE plane = $1
             ORDER BY number LIMIT $2 FOR UPDATE),
         gone AS (
             DELETE FROM open_attempts AS open USING lost
             WHERE open.plane = lost.plane AND open.number = lost.number)
         INSERT INTO usage (plane, number, at, provider, connection, model, key_id, source)
         SELECT plane, number, greatest(since, $3), provider, connection, model, key_id, $4
         FROM lost ORDER BY number
         ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(plane)
    .bind(i64::from(MAX_REAPED_ATTEMPTS))
    .bind(heard_at)
    .bind(UsageSource::Unknown.name())
    .execute(connection)
    .await?;
    Ok(recorded.rows_affected())
}
