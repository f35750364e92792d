//! Usage in SQLite.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::usage::{OpenAttempt, UsageRecord, UsageSource};
use tidegate_store::durable::{DurableStoreError, MAX_REAPED_ATTEMPTS, Reaped, UsageStore};

use super::leases::clock;
use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Progress, run};
use crate::number::{bits, count, moment, present};
use crate::rows::usage::{key_name, of_plane, one_of_each};

#[async_trait]
impl UsageStore for SqliteDurableStore {
    async fn record_usage(
        &self,
        records: &[UsageRecord],
    ) -> Result<Vec<AttemptId>, DurableStoreError> {
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let records = one_of_each(records);
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(records.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                let mut counted = Vec::new();
                for record in &records {
                    close(&mut tx, record.attempt).await?;
                    if insert(&mut tx, record).await? {
                        counted.push(record.attempt);
                    }
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(attempts.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                // What is lost with the power is a hint about attempts that are lost with it.
                let mut tx = begin(connection, Survives::Death).await?;
                let now = clock(&mut tx).await?;
                sqlx::query(
                    "INSERT INTO open_attempt_planes (plane, heard_at) VALUES (?1, ?2)
                     ON CONFLICT (plane) DO UPDATE SET heard_at = max(heard_at, excluded.heard_at)",
                )
                .bind(bits(plane.0))
                .bind(present(now))
                .execute(&mut *tx)
                .await?;
                for open in &attempts {
                    insert_open(&mut tx, open).await?;
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
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                let now = clock(&mut tx).await?;
                let silent: Option<(i64, i64)> = sqlx::query_as(
                    "SELECT plane, heard_at FROM open_attempt_planes WHERE heard_at <= ?1 LIMIT 1",
                )
                .bind(present(now.minus_ms(silence_ms)))
                .fetch_optional(&mut *tx)
                .await?;
                let Some((plane, heard_at)) = silent else {
                    return Ok(Reaped::default());
                };
                let unknown = reap(&mut tx, plane, heard_at).await?;
                sqlx::query(
                    "DELETE FROM open_attempt_planes WHERE plane = ?1
                     AND NOT EXISTS (SELECT 1 FROM open_attempts WHERE plane = ?1)",
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

/// It is not under way any more.
async fn close(connection: &mut SqliteConnection, attempt: AttemptId) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM open_attempts WHERE plane = ?1 AND number = ?2")
        .bind(bits(attempt.plane.0))
        .bind(bits(attempt.number))
        .execute(connection)
        .await
        .map(drop)
}

/// Returns whether the attempt counts from now on.
async fn insert(
    connection: &mut SqliteConnection,
    record: &UsageRecord,
) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query(
        "INSERT INTO usage (plane, number, at, provider, connection, model, key_id,
                            input_tokens, output_tokens, source)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (plane, number) DO UPDATE SET at = excluded.at,
             provider = excluded.provider, connection = excluded.connection,
             model = excluded.model, key_id = excluded.key_id,
             input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
             source = excluded.source
         WHERE usage.source = ?11 AND excluded.source <> ?11",
    )
    .bind(bits(record.attempt.plane.0))
    .bind(bits(record.attempt.number))
    .bind(moment(record.at))
    .bind(record.provider.as_str())
    .bind(record.connection.as_str())
    .bind(record.model.as_str())
    .bind(key_name(record.key.as_ref()))
    .bind(record.tokens.input.map(count))
    .bind(record.tokens.output.map(count))
    .bind(record.tokens.source.name())
    .bind(UsageSource::Unknown.name())
    .execute(connection)
    .await?;
    Ok(inserted.rows_affected() > 0)
}

async fn insert_open(
    connection: &mut SqliteConnection,
    open: &OpenAttempt,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO open_attempts (plane, number, since, provider, connection, model, key_id)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
         WHERE NOT EXISTS (SELECT 1 FROM usage WHERE plane = ?1 AND number = ?2)
         ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(bits(open.attempt.plane.0))
    .bind(bits(open.attempt.number))
    .bind(moment(open.since))
    .bind(open.provider.as_str())
    .bind(open.connection.as_str())
    .bind(open.model.as_str())
    .bind(key_name(open.key.as_ref()))
    .execute(connection)
    .await
    .map(drop)
}

/// Records what a data plane left. Returns how many attempts are recorded as unknown now that were not recorded.
async fn reap(
    connection: &mut SqliteConnection,
    plane: i64,
    heard_at: i64,
) -> Result<u64, sqlx::Error> {
    let recorded = sqlx::query(
        "INSERT INTO usage (plane, number, at, provider, connection, model, key_id, source)
         SELECT plane, number, max(since, ?2), provider, connection, model, key_id, ?3
         FROM open_attempts WHERE plane = ?1 ORDER BY number LIMIT ?4
         ON CONFLICT (plane, number) DO NOTHING",
    )
    .bind(plane)
    .bind(heard_at)
    .bind(UsageSource::Unknown.name())
    .bind(MAX_REAPED_ATTEMPTS)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "DELETE FROM open_attempts WHERE rowid IN (
             SELECT rowid FROM open_attempts WHERE plane = ?1 ORDER BY number LIMIT ?2)",
    )
    .bind(plane)
    .bind(MAX_REAPED_ATTEMPTS)
    .execute(connection)
    .await?;
    Ok(recorded.rows_affected())
}
