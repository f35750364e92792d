//! Rows of events, as both databases give them back.

use tidegate_store::durable::{
    AuditEntry, DurableStoreError, EventPosition, EventRow, EventSource, StoredEvent,
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
