//! Events: one history of changes of state and of the configuration, for people.

use std::time::Duration;

use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1 as proto;
use tidegate_store::durable::{
    DurableStoreError, EventPosition, EventQuery, EventRow, EventSource, MAX_LIST_ROWS,
    SAVE_DOCUMENT, StoredEvent,
};

use crate::events::note_unreadable;

use super::Admin;
use super::lists::transition;
use super::page::Page;

/// Limit of one read (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// Reads for one page: of rare kinds a page may hold less than was asked for.
const MAX_READS: u32 = 4;
/// The kind of changes of the configuration.
const CONFIGURATION: &str = "configuration";
/// The kind of what operators did by hand besides.
const OPERATION: &str = "operation";
/// Kinds that are in the audit trail, and nowhere else.
const AUDITED: [&str; 2] = [CONFIGURATION, OPERATION];
/// All kinds there are.
const KINDS: [&str; 14] = [
    "breaker",
    "cooldown",
    "provider_cooldown",
    "egress_locked",
    "terminal",
    "lock",
    "leased",
    "lease_ended",
    "cleared",
    "refreshed",
    "refresh_failed",
    "inactive",
    CONFIGURATION,
    OPERATION,
];

/// Moment, 0 for transitions and 1 for the audit trail, number there; so that newer ones come first.
pub(crate) type EventKey = (u64, u8, u64);

/// Which events.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventFilter {
    /// None: all.
    pub(crate) kinds: Vec<String>,
    pub(crate) provider: Option<ProviderId>,
    pub(crate) connection: Option<ConnectionId>,
}

/// Why there are no events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventFilterError {
    #[error("there is no kind {kind}; kinds are {}", KINDS.join(", "))]
    Kind { index: usize, kind: String },
}

/// Why events were not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRead {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("history was not read in time")]
    Late,
}

impl EventFilter {
    /// Refuses kinds that do not exist, which would never be seen.
    pub(crate) fn check(&self) -> Result<(), EventFilterError> {
        let unknown = |kind: &&String| !KINDS.contains(&kind.as_str());
        match self
            .kinds
            .iter()
            .enumerate()
            .find(|(_, kind)| unknown(kind))
        {
            None => Ok(()),
            Some((index, kind)) => Err(EventFilterError::Kind {
                index,
                kind: kind.clone(),
            }),
        }
    }

    /// The only source that has these kinds; none: both may have.
    fn source(&self) -> Option<EventSource> {
        let audited = |kind: &String| AUDITED.contains(&kind.as_str());
        match (
            self.kinds.is_empty(),
            self.kinds.iter().filter(|kind| audited(kind)).count(),
        ) {
            (true, _) => None,
            (false, 0) => Some(EventSource::Transitions),
            (false, count) if count == self.kinds.len() => Some(EventSource::Audit),
            (false, _) => None,
        }
    }

    /// How many rows to read for so many events: of some kinds only, nobody knows how many rows they are among.
    fn rows(&self, events: usize) -> u32 {
        if self.kinds.is_empty() {
            u32::try_from(events).map_or(MAX_LIST_ROWS, |rows| rows.min(MAX_LIST_ROWS))
        } else {
            MAX_LIST_ROWS
        }
    }

    /// Whether it lets the event through.
    pub(crate) fn takes(&self, event: &proto::Event) -> bool {
        let is_of_kind = self.kinds.is_empty() || self.kinds.contains(&event.kind);
        let is_of = |wanted: Option<&str>, is: &str| wanted.is_none_or(|wanted| wanted == is);
        is_of_kind
            && is_of(
                self.provider.as_ref().map(ProviderId::as_str),
                &event.provider,
            )
            && is_of(
                self.connection.as_ref().map(ConnectionId::as_str),
                &event.connection,
            )
    }
}

impl Admin {
    /// The newest changes of state of a provider or a connection, or of all, newest first.
    pub(crate) async fn list_transitions(
        &self,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<Vec<proto::Transition>, NotRead> {
        let rows = self.newest_transitions(filter, limit).await?;
        let told = rows.iter().filter_map(|row| {
            note_unreadable(row, &self.metrics.admin);
            match &row.event {
                StoredEvent::Transition(stored) => Some(transition(stored)),
                StoredEvent::Audit(_) | StoredEvent::Unreadable { .. } => None,
            }
        });
        Ok(told.collect())
    }

    /// Something is kept of the provider and connection that are named, whatever it is.
    pub(crate) async fn is_in_history(&self, filter: &EventFilter) -> Result<bool, NotRead> {
        // The audit trail names neither.
        let newest = self.newest_transitions(filter, 1).await?;
        Ok(!newest.is_empty())
    }

    /// The newest rows about a provider or a connection, or all.
    async fn newest_transitions(
        &self,
        filter: &EventFilter,
        limit: u32,
    ) -> Result<Vec<EventRow>, NotRead> {
        let asked = EventQuery {
            provider: filter.provider.as_ref(),
            connection: filter.connection.as_ref(),
            source: Some(EventSource::Transitions),
            since: Timestamp(0),
            before: EventPosition::END,
        };
        let read = self.durable.list_events(asked, limit);
        match tokio::time::timeout(LIMIT, read).await {
            Ok(rows) => Ok(rows?),
            Err(_elapsed) => Err(NotRead::Late),
        }
    }

    /// A page of events, newest first, and the token of the next one.
    pub(crate) async fn list_events(
        &self,
        filter: &EventFilter,
        since: Timestamp,
        page: &Page<EventKey>,
    ) -> Result<(Vec<proto::Event>, String), NotRead> {
        let mut before = page.after().map_or(EventPosition::END, position);
        let mut events = Vec::new();
        for _ in 0..MAX_READS {
            let asked = EventQuery {
                provider: filter.provider.as_ref(),
                connection: filter.connection.as_ref(),
                source: filter.source(),
                since,
                before,
            };
            // One more than fits says whether there is another page.
            let lacking = page.size().saturating_sub(events.len()).saturating_add(1);
            let limit = filter.rows(lacking);
            let read = self.durable.list_events(asked, limit);
            let rows = match tokio::time::timeout(LIMIT, read).await {
                Ok(rows) => rows?,
                Err(_elapsed) => return Err(NotRead::Late),
            };
            let was_last = rows.len() < usize::try_from(limit).unwrap_or(usize::MAX);
            for row in rows {
                note_unreadable(&row, &self.metrics.admin);
                let taken = event(&row).filter(|event| filter.takes(event));
                if let Some(event) = taken {
                    if events.len() == page.size() {
                        return Ok((events, page.token(&key(&before))));
                    }
                    events.push(event);
                }
                before = row.position;
            }
            if was_last {
                return Ok((events, String::new()));
            }
        }
        Ok((events, page.token(&key(&before))))
    }
}

fn key(position: &EventPosition) -> EventKey {
    let source = match position.source {
        EventSource::Transitions => 0,
        EventSource::Audit => 1,
    };
    (position.at.0, source, position.seq)
}

fn position(key: &EventKey) -> EventPosition {
    let (at, source, seq) = *key;
    EventPosition {
        at: Timestamp(at),
        source: if source == 0 {
            EventSource::Transitions
        } else {
            EventSource::Audit
        },
        seq,
    }
}

/// An event for people; none of a row that this release cannot read.
pub(crate) fn event(row: &EventRow) -> Option<proto::Event> {
    Some(match &row.event {
        StoredEvent::Transition(it) => {
            let proto::Transition {
                at_unix_ms,
                provider,
                connection,
                kind,
                description,
                attempt,
                rule,
                original_status,
            } = transition(it);
            proto::Event {
                at_unix_ms,
                kind,
                provider,
                connection,
                description,
                attempt,
                rule,
                original_status,
                ..proto::Event::default()
            }
        }
        StoredEvent::Audit(entry) => proto::Event {
            at_unix_ms: entry.at.0,
            kind: if entry.action == SAVE_DOCUMENT {
                CONFIGURATION.to_owned()
            } else {
                OPERATION.to_owned()
            },
            description: entry.summary.clone(),
            author: entry.author.clone(),
            configuration_version: entry.document_version,
            ..proto::Event::default()
        },
        StoredEvent::Unreadable { .. } => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use tidegate_store::durable::AuditEntry;

    use super::*;

    fn happened(kind: &str, provider: &str, connection: &str) -> proto::Event {
        proto::Event {
            kind: kind.to_owned(),
            provider: provider.to_owned(),
            connection: connection.to_owned(),
            ..proto::Event::default()
        }
    }

    #[rstest]
    #[case::all(&[], None, None, [true, true, true])]
    #[case::kind(&["cooldown", "lock"], None, None, [true, false, false])]
    #[case::provider(&[], Some("p"), None, [true, true, false])]
    #[case::connection(&[], None, Some("c"), [true, false, false])]
    #[case::configuration(&["configuration"], None, None, [false, false, true])]
    #[case::all_of_it(&["breaker"], Some("p"), Some("c"), [false, false, false])]
    fn a_filter_takes_what_it_names(
        #[case] kinds: &[&str],
        #[case] provider: Option<&str>,
        #[case] connection: Option<&str>,
        #[case] taken: [bool; 3],
    ) {
        let filter = EventFilter {
            kinds: kinds.iter().map(ToString::to_string).collect(),
            provider: provider.map(|it| ProviderId::new(it).unwrap()),
            connection: connection.map(|it| ConnectionId::new(it).unwrap()),
        };
        assert!(filter.check().is_ok());
        let all = [
            happened("cooldown", "p", "c"),
            happened("breaker", "p", ""),
            happened("configuration", "", ""),
        ];
        assert_eq!(all.map(|event| filter.takes(&event)), taken);
    }

    #[rstest]
    #[case::all(&[], None, 3)]
    #[case::of_the_audit_trail(&["configuration", "operation"], Some(EventSource::Audit), MAX_LIST_ROWS)]
    #[case::transitions(&["lock", "breaker"], Some(EventSource::Transitions), MAX_LIST_ROWS)]
    #[case::of_both(&["lock", "operation"], None, MAX_LIST_ROWS)]
    fn only_what_may_hold_the_kinds_is_read(
        #[case] kinds: &[&str],
        #[case] source: Option<EventSource>,
        #[case] rows: u32,
    ) {
        let filter = EventFilter {
            kinds: kinds.iter().map(ToString::to_string).collect(),
            ..EventFilter::default()
        };
        assert_eq!((filter.source(), filter.rows(3)), (source, rows));
        assert_eq!(filter.rows(usize::MAX), MAX_LIST_ROWS);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_no_event_and_what_operators_did_has_its_kind() {
        let row = |event| EventRow {
            position: EventPosition::END,
            event,
        };
        let unreadable = StoredEvent::Unreadable {
            reason: "unknown kind".to_owned(),
        };
        assert_eq!(event(&row(unreadable)), None);
        for (action, kind) in [(SAVE_DOCUMENT, "configuration"), ("reset", "operation")] {
            let entry = AuditEntry {
                at: Timestamp(1),
                author: "admin".to_owned(),
                action: action.to_owned(),
                summary: "what".to_owned(),
                document_version: None,
            };
            let told = event(&row(StoredEvent::Audit(entry))).map(|it| it.kind);
            assert_eq!(told.as_deref(), Some(kind));
        }
    }

    #[test]
    fn a_kind_that_does_not_exist_is_named() {
        let filter = EventFilter {
            kinds: vec!["lock".to_owned(), "locks".to_owned()],
            ..EventFilter::default()
        };
        let error = filter.check().unwrap_err();
        let EventFilterError::Kind { index, ref kind } = error;
        assert_eq!((index, kind.as_str()), (1, "locks"));
        assert!(error.to_string().contains("cooldown"), "{error}");
    }
}
