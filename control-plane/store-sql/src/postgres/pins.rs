//! Pins of sessions in Postgres: arrays instead of a statement per row, rows always in the same order.

use async_trait::async_trait;
use sqlx::{PgConnection, Postgres};
use tidegate_core::affinity::PinKey;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, MAX_DELETE_ROWS, PinStore, StoredPin};

use super::PgDurableStore;
use crate::call::{Progress, run};
use crate::number::{moment, present};
use crate::rows::pins::{PinRow, latest_of_each, page};

#[async_trait]
impl PinStore for PgDurableStore {
    async fn save_pins(&self, pins: &[StoredPin]) -> Result<(), DurableStoreError> {
        let pins = latest_of_each(pins)?;
        if pins.is_empty() {
            return Ok(());
        }
        let Columns {
            keys,
            connections,
            created,
            expires,
        } = Columns::of(&pins);
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(pins.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                sqlx::query(
                    "INSERT INTO session_account_affinity AS old
                         (pin_key, connection, created_at, expires_at)
                     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
                     ON CONFLICT (pin_key) DO UPDATE SET connection = EXCLUDED.connection,
                         created_at = EXCLUDED.created_at, expires_at = EXCLUDED.expires_at
                     WHERE (old.created_at, old.expires_at) <
                         (EXCLUDED.created_at, EXCLUDED.expires_at)",
                )
                .bind(&keys)
                .bind(&connections)
                .bind(&created)
                .bind(&expires)
                .execute(connection)
                .await?;
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
        let Columns {
            keys,
            connections,
            created,
            ..
        } = Columns::of(&gone);
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.of_rows(gone.len()),
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                sqlx::query(
                    "DELETE FROM session_account_affinity WHERE pin_key IN (
                         SELECT old.pin_key FROM session_account_affinity AS old
                         JOIN unnest($1::text[], $2::text[], $3::bigint[])
                             AS gone (pin_key, connection, created_at)
                             ON gone.pin_key = old.pin_key AND gone.connection = old.connection
                                 AND old.created_at <= gone.created_at
                         ORDER BY old.pin_key FOR UPDATE OF old)",
                )
                .bind(&keys)
                .bind(&connections)
                .bind(&created)
                .execute(connection)
                .await?;
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                // Byte order, whatever the database's collation.
                let rows: Vec<PinRow> = sqlx::query_as(
                    "SELECT pin_key, connection, created_at, expires_at
                     FROM session_account_affinity
                     WHERE pin_key COLLATE \"C\" > $1 AND expires_at > $2
                     ORDER BY pin_key COLLATE \"C\" LIMIT $3",
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
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                // A row that someone writes is left for next time.
                let deleted = sqlx::query(
                    "DELETE FROM session_account_affinity WHERE pin_key IN (
                         SELECT pin_key FROM session_account_affinity WHERE expires_at <= $1
                         LIMIT $2 FOR UPDATE SKIP LOCKED)",
                )
                .bind(present(now))
                .bind(i64::from(MAX_DELETE_ROWS))
                .execute(connection)
                .await?;
                Ok(deleted.rows_affected())
            },
        )
        .await
    }
}

/// Pins as arrays.
struct Columns<'a> {
    keys: Vec<&'a str>,
    connections: Vec<&'a str>,
    created: Vec<i64>,
    expires: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn of(pins: &[&'a StoredPin]) -> Self {
        Self {
            keys: pins.iter().map(|it| it.key.as_str()).collect(),
            connections: pins.iter().map(|it| it.pin.connection.as_str()).collect(),
            created: pins.iter().map(|it| moment(it.pin.created_at)).collect(),
            expires: pins.iter().map(|it| moment(it.pin.expires_at)).collect(),
        }
    }
}
