//! Events as both databases give them back, and the store of them but for the texts of its statements.

use tidegate_store::durable::{
    AuditEntry, DurableStoreError, EventPosition, EventQuery, EventRow, EventSource, StoredEvent,
};

use super::{from_json, plain_version};
use crate::number::from_moment;

/// A transition, which has a body, or an entry of the audit trail, which has all the rest.
#[derive(sqlx::FromRow)]
pub(crate) struct AnyEventRow {
    source: i32,
    seq: i64,
    at: i64,
    body: Option<String>,
    author: String,
    action: String,
    summary: String,
    document_version: Option<i64>,
}

/// The number of a source in queries.
pub(crate) fn source_number(source: EventSource) -> i32 {
    match source {
        EventSource::Transitions => 0,
        EventSource::Audit => 1,
    }
}

impl AnyEventRow {
    pub(crate) fn read(self) -> Result<EventRow, DurableStoreError> {
        let at = from_moment(self.at);
        let (source, event) = match (self.source, self.body) {
            (0, Some(body)) => (EventSource::Transitions, transition(&body)),
            (1, None) => (
                EventSource::Audit,
                StoredEvent::Audit(AuditEntry {
                    at,
                    author: self.author,
                    action: self.action,
                    summary: self.summary,
                    document_version: self.document_version.map(plain_version).transpose()?,
                }),
            ),
            (source, _) => {
                return Err(DurableStoreError::Corrupt(format!(
                    "an event of source {source}"
                )));
            }
        };
        let seq = plain_version(self.seq)?;
        Ok(EventRow {
            position: EventPosition { at, source, seq },
            event,
        })
    }
}

/// One that does not decode must not keep the others from being read.
fn transition(body: &str) -> StoredEvent {
    match from_json("a transition", body) {
        Ok(transition) => StoredEvent::Transition(transition),
        Err(error) => StoredEvent::Unreadable {
            reason: error.to_string(),
        },
    }
}

/// All of them.
pub(crate) fn read_events(rows: Vec<AnyEventRow>) -> Result<Vec<EventRow>, DurableStoreError> {
    rows.into_iter().map(AnyEventRow::read).collect()
}

/// The texts for a page of events, one for each way to choose transitions.
pub(crate) struct EventPages {
    pub(crate) of_all: &'static str,
    pub(crate) of_provider: &'static str,
    pub(crate) of_connection: &'static str,
    pub(crate) of_both: &'static str,
}

impl EventPages {
    pub(crate) fn of(&self, asked: EventQuery<'_>) -> &'static str {
        match (asked.provider, asked.connection) {
            (None, None) => self.of_all,
            (Some(_), None) => self.of_provider,
            (None, Some(_)) => self.of_connection,
            (Some(_), Some(_)) => self.of_both,
        }
    }
}

/// Implements [`tidegate_store::durable::EventStore`] for a store: its database and connections, the pool it reads with, its
/// [`EventPages`], and the text for what comes after marks. Generic over the driver it would be longer in bounds than in
/// code.
macro_rules! event_store {
    ($store:ty, $database:ty, $connection:ty, $pool:ident, $pages:expr, $news:expr) => {
        const _: () = {
            use async_trait::async_trait;
            use tidegate_core::ids::{ConnectionId, ProviderId};
            use tidegate_store::durable::{
                DurableStoreError, EventMarks, EventQuery, EventRow, EventStore,
            };

            use $crate::call::{Progress, run};
            use $crate::number::{count, moment};
            use $crate::rows::events::{AnyEventRow, read_events, source_number};
            use $crate::rows::{list_limit, plain_version};

            #[async_trait]
            impl EventStore for $store {
                async fn list_events(
                    &self,
                    asked: EventQuery<'_>,
                    limit: u32,
                ) -> Result<Vec<EventRow>, DurableStoreError> {
                    let text = $pages.of(asked);
                    run::<$database, _, _>(
                        &self.$pool,
                        self.limits.call,
                        async |database: &mut $connection, _: &Progress| {
                            let rows: Vec<AnyEventRow> = sqlx::query_as(text)
                                .bind(moment(asked.since))
                                .bind(moment(asked.before.at))
                                .bind(source_number(asked.before.source))
                                .bind(count(asked.before.seq))
                                .bind(asked.provider.map(ProviderId::as_str))
                                .bind(asked.connection.map(ConnectionId::as_str))
                                .bind(list_limit(limit))
                                .bind(asked.source.map(source_number))
                                .fetch_all(database)
                                .await?;
                            Ok(read_events(rows)?)
                        },
                    )
                    .await
                }

                async fn event_marks(&self) -> Result<EventMarks, DurableStoreError> {
                    run::<$database, _, _>(
                        &self.$pool,
                        self.limits.call,
                        async |database: &mut $connection, _: &Progress| {
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
                    run::<$database, _, _>(
                        &self.$pool,
                        self.limits.call,
                        async |database: &mut $connection, _: &Progress| {
                            let rows: Vec<AnyEventRow> = sqlx::query_as($news)
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
        };
    };
}
pub(crate) use event_store;
