//! History in Postgres.

use async_trait::async_trait;
use sqlx::{Connection, PgConnection, Postgres};
use tidegate_core::ids::ConnectionId;
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::{
    AuditEntry, DurableStoreError, History, HistoryStore, MAX_HISTORY_ROWS,
};

use super::PgDurableStore;
use crate::call::{Progress, run};
use crate::number::{moment, present};
use crate::rows::{AuditRow, BATCH_ROWS, audit_text, list_limit, to_json};

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

    async fn append_audit(
        &self,
        author: &str,
        action: &'static str,
        summary: &str,
    ) -> Result<(), DurableStoreError> {
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                sqlx::query(
                    "INSERT INTO admin_audit (author, action, summary) VALUES ($1, $2, $3)",
                )
                .bind(audit_text(author))
                .bind(action)
                .bind(audit_text(summary))
                .execute(connection)
                .await?;
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
        // A row that someone writes or deletes is left for next time.
        let query = match history {
            History::Usage => {
                "DELETE FROM usage WHERE (plane, number) IN (
                     SELECT plane, number FROM usage WHERE at < $1
                     ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)"
            }
            History::Transitions => {
                "DELETE FROM transitions WHERE seq IN (
                     SELECT seq FROM transitions WHERE at < $1
                     ORDER BY at, seq LIMIT $2 FOR UPDATE SKIP LOCKED)"
            }
            History::Audit => {
                "DELETE FROM admin_audit WHERE seq IN (
                     SELECT seq FROM admin_audit WHERE at < $1
                     LIMIT $2 FOR UPDATE SKIP LOCKED)"
            }
        };
        run::<Postgres, _, _>(
            &self.pool,
            self.limits.call,
            async |connection: &mut PgConnection, progress: &Progress| {
                progress.decides();
                let deleted = sqlx::query(query)
                    .bind(present(before))
                    .bind(i64::from(MAX_HISTORY_ROWS))
                    .execute(connection)
                    .await?;
                Ok(deleted.rows_affected())
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
