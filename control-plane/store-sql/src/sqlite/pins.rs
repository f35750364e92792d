//! Pins of sessions in SQLite: a statement for each row, prepared once, in one transaction.

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::affinity::PinKey;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, MAX_DELETE_ROWS, PinStore, StoredPin};

use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Progress, run};
use crate::number::{moment, present};
use crate::rows::pins::{PinRow, latest_of_each, page};

#[async_trait]
impl PinStore for SqliteDurableStore {
    async fn save_pins(&self, pins: &[StoredPin]) -> Result<(), DurableStoreError> {
        let pins = latest_of_each(pins)?;
        if pins.is_empty() {
            return Ok(());
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(pins.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                for StoredPin { key, pin } in pins {
                    sqlx::query(
                        "INSERT INTO session_account_affinity AS old
                             (pin_key, connection, created_at, expires_at)
                         VALUES (?1, ?2, ?3, ?4)
                         ON CONFLICT (pin_key) DO UPDATE SET connection = excluded.connection,
                             created_at = excluded.created_at, expires_at = excluded.expires_at
                         WHERE (old.created_at, old.expires_at) <
                             (excluded.created_at, excluded.expires_at)",
                    )
                    .bind(key.as_str())
                    .bind(pin.connection.as_str())
                    .bind(moment(pin.created_at))
                    .bind(moment(pin.expires_at))
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

    async fn delete_pins(&self, gone: &[StoredPin]) -> Result<(), DurableStoreError> {
        let gone = latest_of_each(gone)?;
        if gone.is_empty() {
            return Ok(());
        }
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.of_rows(gone.len()),
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                for StoredPin { key, pin } in gone {
                    sqlx::query(
                        "DELETE FROM session_account_affinity
                         WHERE pin_key = ?1 AND connection = ?2 AND created_at <= ?3",
                    )
                    .bind(key.as_str())
                    .bind(pin.connection.as_str())
                    .bind(moment(pin.created_at))
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

    async fn load_pins(
        &self,
        after: Option<&PinKey>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<StoredPin>, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |connection: &mut SqliteConnection, _: &Progress| {
                let rows: Vec<PinRow> = sqlx::query_as(
                    "SELECT pin_key, connection, created_at, expires_at
                     FROM session_account_affinity
                     WHERE pin_key > ?1 AND expires_at > ?2 ORDER BY pin_key LIMIT ?3",
                )
                .bind(after.map_or("", PinKey::as_str))
                .bind(present(now))
                .bind(page(limit))
                .fetch_all(connection)
                .await?;
                let mut pins = Vec::with_capacity(rows.len());
                for row in rows {
                    pins.push(row.read()?);
                }
                Ok(pins)
            },
        )
        .await
    }

    async fn delete_expired_pins(&self, now: Timestamp) -> Result<u64, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                let deleted = sqlx::query(
                    "DELETE FROM session_account_affinity WHERE rowid IN (
                         SELECT rowid FROM session_account_affinity WHERE expires_at <= ?1 LIMIT ?2)",
                )
                .bind(present(now))
                .bind(MAX_DELETE_ROWS)
                .execute(&mut *tx)
                .await?;
                progress.decides();
                tx.commit().await?;
                Ok(deleted.rows_affected())
            },
        )
        .await
    }
}
