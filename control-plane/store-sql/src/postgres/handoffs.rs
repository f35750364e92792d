//! Notes of conversations in Postgres.

use async_trait::async_trait;
use sqlx::{PgConnection, Postgres};
use tidegate_core::routing::relay::HandoffName;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{DurableStoreError, HandoffStore, MAX_DELETE_ROWS, SealedHandoff};

use super::PgDurableStore;
use crate::call::{Progress, run};
use crate::number::{moment, present};
use crate::rows::handoffs::{HandoffRow, check_handoff};

#[async_trait]
impl HandoffStore for PgDurableStore {
    async fn save_handoff(
        &self,
        handoff: &SealedHandoff,
        now: Timestamp,
    ) -> Result<bool, DurableStoreError> {
        check_handoff(handoff)?;
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                let saved = sqlx::query(
                    "INSERT INTO handoffs AS old (session, combo, connection, sealed, expires_at)
                     VALUES ($1, $2, $3, $4, $5)
                     ON CONFLICT (session, combo) DO UPDATE SET connection = EXCLUDED.connection,
                         sealed = EXCLUDED.sealed, expires_at = EXCLUDED.expires_at
                     WHERE old.expires_at <= $6",
                )
                .bind(handoff.name.session.0.as_slice())
                .bind(handoff.name.combo.as_str())
                .bind(handoff.connection.as_str())
                .bind(handoff.sealed.as_slice())
                .bind(moment(handoff.expires_at))
                .bind(present(now))
                .execute(connection)
                .await?;
                Ok(saved.rows_affected() > 0)
            },
        )
        .await
    }

    async fn load_handoff(
        &self,
        name: &HandoffName,
        now: Timestamp,
    ) -> Result<Option<SealedHandoff>, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, _: &Progress| {
                let row: Option<HandoffRow> = sqlx::query_as(
                    "SELECT connection, sealed, expires_at FROM handoffs
                     WHERE session = $1 AND combo = $2 AND expires_at > $3",
                )
                .bind(name.session.0.as_slice())
                .bind(name.combo.as_str())
                .bind(present(now))
                .fetch_optional(connection)
                .await?;
                Ok(row.map(|row| row.read(name)).transpose()?)
            },
        )
        .await
    }

    async fn delete_expired_handoffs(&self, now: Timestamp) -> Result<u64, DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                // A row that someone writes is left for next time.
                let deleted = sqlx::query(
                    "DELETE FROM handoffs WHERE (session, combo) IN (
                         SELECT session, combo FROM handoffs WHERE expires_at <= $1
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
