//! The checkpoint in Postgres: arrays instead of a statement per row, rows always in the same order.

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{CheckpointStore, DurableStoreError, MAX_DELETE_ROWS};
use tidegate_store::hot::{Entry, MARK_TTL, ReportMark};

use super::{BEGIN_SNAPSHOT, PgDurableStore, allow};
use crate::call::{Progress, run};
use crate::number::{bits, moment, ordered, present};
use crate::rows::{
    BATCH_ROWS, EntryRow, highest_of_each, known, newest_of_each, read_mark, ttl_end,
};

#[async_trait]
impl CheckpointStore for PgDurableStore {
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(entries.len().max(marks.len())),
            async |connection: &mut PgConnection, progress: &Progress| {
                let mut tx = connection.begin().await?;
                for batch in entries.chunks(BATCH_ROWS) {
                    save_entries(&mut tx, shard, batch).await?;
                }
                for batch in marks.chunks(BATCH_ROWS) {
                    save_marks(&mut tx, shard, batch, kept_until).await?;
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
        let limit = self.limits.whole;
        run::<Postgres, _, _>(
            &self.pool,
            limit,
            async |connection: &mut PgConnection, _: &Progress| {
                // Marks must not be newer than the values: what they cover would be taken for applied.
                let mut tx = connection.begin_with(BEGIN_SNAPSHOT).await?;
                allow(&mut tx, limit).await?;
                let rows: Vec<EntryRow> = sqlx::query_as(
                    "SELECT key, incarnation, revision, schema, payload, expires_at
                     FROM hot_checkpoint WHERE shard = $1 AND expires_at > $2 ORDER BY key",
                )
                .bind(i16::from(shard.number()))
                .bind(present(now))
                .fetch_all(&mut *tx)
                .await?;
                let marks: Vec<(i64, i64)> = sqlx::query_as(
                    "SELECT plane, number FROM hot_checkpoint_marks
                     WHERE shard = $1 AND expires_at > $2 ORDER BY plane",
                )
                .bind(i16::from(shard.number()))
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                // In one statement, hence in one transaction. Rows that someone writes are left for next time.
                progress.decides();
                let deleted: i64 = sqlx::query_scalar(
                    "WITH entries AS (
                         DELETE FROM hot_checkpoint WHERE (shard, key) IN (
                             SELECT shard, key FROM hot_checkpoint WHERE expires_at <= $1
                             LIMIT $2 FOR UPDATE SKIP LOCKED)
                         RETURNING 1
                     ), marks AS (
                         DELETE FROM hot_checkpoint_marks WHERE (shard, plane) IN (
                             SELECT shard, plane FROM hot_checkpoint_marks WHERE expires_at <= $1
                             LIMIT $2 FOR UPDATE SKIP LOCKED)
                         RETURNING 1
                     )
                     SELECT (SELECT count(*) FROM entries) + (SELECT count(*) FROM marks)",
                )
                .bind(present(now))
                .bind(i64::from(MAX_DELETE_ROWS))
                .fetch_one(connection)
                .await?;
                Ok(known("a count", u64::try_from(deleted))?)
            },
        )
        .await
    }
}

async fn save_entries(
    connection: &mut PgConnection,
    shard: Shard,
    batch: &[&Entry],
) -> Result<(), sqlx::Error> {
    let of_each = |column: fn(&Entry) -> i64| -> Vec<i64> {
        batch.iter().map(|entry| column(entry)).collect()
    };
    let keys: Vec<&str> = batch.iter().map(|entry| entry.key.as_str()).collect();
    let payloads: Vec<&[u8]> = batch.iter().map(|entry| entry.payload.as_slice()).collect();
    sqlx::query(
        "INSERT INTO hot_checkpoint AS old
             (shard, key, incarnation, revision, schema, payload, expires_at)
         SELECT $1, batch.* FROM unnest(
             $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[]) AS batch
         ON CONFLICT (shard, key) DO UPDATE SET incarnation = EXCLUDED.incarnation,
             revision = EXCLUDED.revision, schema = EXCLUDED.schema, payload = EXCLUDED.payload,
             expires_at = EXCLUDED.expires_at
         WHERE (old.incarnation, old.revision) < (EXCLUDED.incarnation, EXCLUDED.revision)",
    )
    .bind(i16::from(shard.number()))
    .bind(keys)
    .bind(of_each(|entry| ordered(entry.version.incarnation.0)))
    .bind(of_each(|entry| ordered(entry.version.revision.0)))
    .bind(of_each(|entry| i64::from(entry.schema)))
    .bind(payloads)
    .bind(of_each(|entry| moment(entry.expires_at)))
    .execute(connection)
    .await
    .map(drop)
}

async fn save_marks(
    connection: &mut PgConnection,
    shard: Shard,
    batch: &[ReportMark],
    kept_until: Timestamp,
) -> Result<(), sqlx::Error> {
    let planes: Vec<i64> = batch.iter().map(|mark| bits(mark.plane.0)).collect();
    let numbers: Vec<i64> = batch.iter().map(|mark| ordered(mark.number)).collect();
    sqlx::query(
        "INSERT INTO hot_checkpoint_marks AS old (shard, plane, number, expires_at)
         SELECT $1, batch.*, $4 FROM unnest($2::bigint[], $3::bigint[]) AS batch
         ON CONFLICT (shard, plane) DO UPDATE SET number = EXCLUDED.number,
             expires_at = EXCLUDED.expires_at
         WHERE old.number < EXCLUDED.number",
    )
    .bind(i16::from(shard.number()))
    .bind(planes)
    .bind(numbers)
    .bind(moment(kept_until))
    .execute(connection)
    .await
    .map(drop)
}
