//! Events in SQLite.

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_store::durable::{DurableStoreError, EventMarks, EventQuery, EventRow, EventStore};

use super::SqliteDurableStore;
use crate::call::{Progress, run};
use crate::number::{count, moment};
use crate::rows::events::{AnyEventRow, read_events, source_number};
use crate::rows::{list_limit, plain_version};

/// A page of events. Each branch reads no more than the page along its index, of which there is one for each way to choose
/// transitions; a branch that is not asked for is not begun.
macro_rules! page_of {
    ($chosen:literal) => {
        concat!(
            "SELECT source, seq, at, body, author, action, summary, document_version FROM (
                 SELECT * FROM (SELECT 0 AS source, seq, at, body AS body, '' AS author, '' AS action,
                         '' AS summary, NULL AS document_version
                  FROM transitions
                  WHERE at >= ?1 AND at <= ?2 AND (at, 0, seq) < (?2, ?3, ?4) AND ",
            $chosen,
            " AND (?8 IS NULL OR ?8 = 0)
                  ORDER BY at DESC, seq DESC LIMIT ?7)
                 UNION ALL
                 SELECT * FROM (SELECT 1, seq, at, NULL, author, action, summary, document_version
                  FROM admin_audit
                  WHERE at >= ?1 AND at <= ?2 AND (at, 1, seq) < (?2, ?3, ?4)
                    AND ?5 IS NULL AND ?6 IS NULL
                    AND (?8 IS NULL OR ?8 = 1)
                  ORDER BY at DESC, seq DESC LIMIT ?7)
             ) AS page
             ORDER BY at DESC, source DESC, seq DESC LIMIT ?7"
        )
    };
}

const PAGE_OF_ALL: &str = page_of!("?5 IS NULL AND ?6 IS NULL");
const PAGE_OF_PROVIDER: &str = page_of!("provider = ?5 AND ?6 IS NULL");
const PAGE_OF_CONNECTION: &str = page_of!("connection = ?6 AND ?5 IS NULL");
const PAGE_OF_BOTH: &str = page_of!("connection = ?6 AND provider = ?5");

#[async_trait]
impl EventStore for SqliteDurableStore {
    async fn list_events(
        &self,
        asked: EventQuery<'_>,
        limit: u32,
    ) -> Result<Vec<EventRow>, DurableStoreError> {
        let EventQuery {
            provider,
            connection,
            source,
            since,
            before,
        } = asked;
        let query = match (provider, connection) {
            (None, None) => PAGE_OF_ALL,
            (Some(_), None) => PAGE_OF_PROVIDER,
            (None, Some(_)) => PAGE_OF_CONNECTION,
            (Some(_), Some(_)) => PAGE_OF_BOTH,
        };
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |database: &mut SqliteConnection, _: &Progress| {
                let rows: Vec<AnyEventRow> = sqlx::query_as(query)
                    .bind(moment(since))
                    .bind(moment(before.at))
                    .bind(source_number(before.source))
                    .bind(count(before.seq))
                    .bind(provider.map(ProviderId::as_str))
                    .bind(connection.map(ConnectionId::as_str))
                    .bind(list_limit(limit))
                    .bind(source.map(source_number))
                    .fetch_all(database)
                    .await?;
                Ok(read_events(rows)?)
            },
        )
        .await
    }

    async fn event_marks(&self) -> Result<EventMarks, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |database: &mut SqliteConnection, _: &Progress| {
                let (transitions, audit): (i64, i64) = sqlx::query_as(
                    "SELECT coalesce((SELECT max(seq) FROM transitions), 0),
                            coalesce((SELECT max(seq) FROM admin_audit), 0)",
                )
                .fetch_one(database)
                .await?;
                Ok(EventMarks {
                    transitions: plain_version(transitions)?,
                    audit: plain_version(audit)?,
                })
            },
        )
        .await
    }

    async fn events_after(
        &self,
        marks: EventMarks,
        limit: u32,
    ) -> Result<Vec<EventRow>, DurableStoreError> {
        run::<Sqlite, _, _>(
            &self.readers,
            self.limits.call,
            async |database: &mut SqliteConnection, _: &Progress| {
                let rows: Vec<AnyEventRow> = sqlx::query_as(
                    "SELECT source, seq, at, body, author, action, summary, document_version FROM (
                         SELECT * FROM (SELECT 0 AS source, seq, at, body AS body, '' AS author, '' AS action,
                                 '' AS summary, NULL AS document_version
                          FROM transitions WHERE seq > ?1 ORDER BY seq LIMIT ?3)
                         UNION ALL
                         SELECT * FROM (SELECT 1, seq, at, NULL, author, action, summary, document_version
                          FROM admin_audit WHERE seq > ?2 ORDER BY seq LIMIT ?3)
                     ) AS news
                     ORDER BY source, seq",
                )
                .bind(count(marks.transitions))
                .bind(count(marks.audit))
                .bind(list_limit(limit))
                .fetch_all(database)
                .await?;
                Ok(read_events(rows)?)
            },
        )
        .await
    }
}
