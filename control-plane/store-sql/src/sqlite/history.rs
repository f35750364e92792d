//! History in SQLite.

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::ids::ConnectionId;
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{
    AuditEntry, DurableStoreError, History, HistoryStore, MAX_HISTORY_ROWS,
};

use super::{SqliteDurableStore, Survives, begin};
use crate::call::{Progress, run};
use crate::number::{moment, present};
use crate::rows::{AuditRow, audit_text, list_limit, to_json};

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

    async fn append_audit(
        &self,
        author: &str,
        action: &'static str,
        summary: &str,
    ) -> Result<(), DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::PowerLoss).await?;
                sqlx::query(
                    "INSERT INTO admin_audit (author, action, summary) VALUES (?1, ?2, ?3)",
                )
                .bind(audit_text(author))
                .bind(action)
                .bind(audit_text(summary))
                .execute(&mut *tx)
                .await?;
                progress.decides();
                tx.commit().await?;
                Ok(())
            },
        )
        .await
    }

    async fn delete_history(
        &self,
        history: History,
        before: Timestamp,
    ) -> Result<u64, DurableStoreError> {
        let query = match history {
            History::Usage => {
                "DELETE FROM usage WHERE rowid IN (
                     SELECT rowid FROM usage WHERE at < ?1 LIMIT ?2)"
            }
            History::Transitions => {
                "DELETE FROM transitions WHERE seq IN (
                     SELECT seq FROM transitions WHERE at < ?1 ORDER BY at, seq LIMIT ?2)"
            }
            History::Audit => {
                "DELETE FROM admin_audit WHERE seq IN (
                     SELECT seq FROM admin_audit WHERE at < ?1 LIMIT ?2)"
            }
        };
        run::<Sqlite, _, _>(
            &self.writer,
            self.limits.call,
            async |connection: &mut SqliteConnection, progress: &Progress| {
                let mut tx = begin(connection, Survives::Death).await?;
                let deleted = sqlx::query(query)
                    .bind(present(before))
                    .bind(MAX_HISTORY_ROWS)
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
