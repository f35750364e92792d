//! The checkpoint in SQLite: a statement for each row, prepared once, in one transaction.

use async_trait::async_trait;
use sqlx::{Connection, Sqlite, SqliteConnection};
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{CheckpointStore, DurableStoreError, MAX_DELETE_ROWS};
use tidegate_store::hot::{Entry, MARK_TTL, ReportMark};

use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Progress, run};
use crate::number::{bits, moment, ordered, present};
use crate::rows::{EntryRow, highest_of_each, newest_of_each, read_mark, ttl_end};

#[async_trait]
impl CheckpointStore for SqliteDurableStore {
    async fn save_checkpoint(
        &self,
        shard: Shard,
        entries: &[Entry],
        marks: &[ReportMark],
        now: Timestamp,
    ) -> Result<(), DurableStoreError> {
        if entries.is_empty() && marks.is_empty() {
            return Ok(());
        }
        let entries = newest_of_each(entries);
        let marks = highest_of_each(marks);
        let kept_until = ttl_end(now, MARK_TTL);
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(entries.len().max(marks.len())),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                for entry in entries {
                    save_entry(&mut tx, shard, entry).await?;
                }
                for mark in marks {
                    save_mark(&mut tx, shard, mark, kept_until).await?;
                }
                progress.decides();
                tx.commit().await?;
                Ok(())
            },
        )
        .await
    }

    async fn load_checkpoint(
        &self,
        shard: Shard,
        now: Timestamp,
    ) -> Result<(Vec<Entry>, Vec<ReportMark>), DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.whole,
            async |connection: &mut SqliteConnection, _: &Progress| {
                // One transaction sees one state: marks must not be newer than the values.
                let mut tx = connection.begin().await?;
                let rows: Vec<EntryRow> = sqlx::query_as(
                    "SELECT key, incarnation, revision, schema, payload, expires_at
                     FROM hot_checkpoint WHERE shard = ?1 AND expires_at > ?2 ORDER BY key",
                )
                .bind(shard.number())
                .bind(present(now))
                .fetch_all(&mut *tx)
                .await?;
                let marks: Vec<(i64, i64)> = sqlx::query_as(
                    "SELECT plane, number FROM hot_checkpoint_marks
                     WHERE shard = ?1 AND expires_at > ?2 ORDER BY plane",
                )
                .bind(shard.number())
                .bind(present(now))
                .fetch_all(&mut *tx)
                .await?;
                tx.commit().await?;
                let mut entries = Vec::with_capacity(rows.len());
                for row in rows {
                    entries.push(row.read()?);
                }
                Ok((entries, marks.into_iter().map(read_mark).collect()))
            },
        )
        .await
    }

    async fn delete_expired_checkpoint(&self, now: Timestamp) -> Result<u64, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                let entries = sqlx::query(
                    "DELETE FROM hot_checkpoint WHERE rowid IN (
                         SELECT rowid FROM hot_checkpoint WHERE expires_at <= ?1 LIMIT ?2)",
                )
                .bind(present(now))
                .bind(MAX_DELETE_ROWS)
                .execute(&mut *tx)
                .await?;
                let marks = sqlx::query(
                    "DELETE FROM hot_checkpoint_marks WHERE rowid IN (
                         SELECT rowid FROM hot_checkpoint_marks WHERE expires_at <= ?1 LIMIT ?2)",
                )
                .bind(present(now))
                .bind(MAX_DELETE_ROWS)
                .execute(&mut *tx)
                .await?;
                progress.decides();
                tx.commit().await?;
                Ok(entries
                    .rows_affected()
                    .saturating_add(marks.rows_affected()))
            },
        )
        .await
    }
}

async fn save_entry(
    connection: &mut SqliteConnection,
    shard: Shard,
    entry: &Entry,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO hot_checkpoint AS old
             (shard, key, incarnation, revision, schema, payload, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT (shard, key) DO UPDATE SET incarnation = excluded.incarnation,
             revision = excluded.revision, schema = excluded.schema, payload = excluded.payload,
             expires_at = excluded.expires_at
         WHERE (old.incarnation, old.revision) < (excluded.incarnation, excluded.revision)",
    )
    .bind(shard.number())
    .bind(entry.key.as_str())
    .bind(ordered(entry.version.incarnation.0))
    .bind(ordered(entry.version.revision.0))
    .bind(entry.schema)
    .bind(entry.payload.as_slice())
    .bind(moment(entry.expires_at))
    .execute(connection)
    .await
    .map(drop)
}

async fn save_mark(
    connection: &mut SqliteConnection,
    shard: Shard,
    mark: ReportMark,
    kept_until: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO hot_checkpoint_marks AS old (shard, plane, number, expires_at)
         VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (shard, plane) DO UPDATE SET number = excluded.number,
             expires_at = excluded.expires_at
         WHERE old.number < excluded.number",
    )
    .bind(shard.number())
    .bind(bits(mark.plane.0))
    .bind(ordered(mark.number))
    .bind(moment(kept_until))
    .execute(connection)
    .await
    .map(drop)
}
