//! Events: transitions and the audit trail as one history, in pages and as it grows.
//!
//! **Stance:** fail-open; who asks is told that there is no answer. Nothing here writes.

use async_trait::async_trait;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::state::Transition;
use tidegate_core::time::Timestamp;

use super::{AuditEntry, DurableStoreError};

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventSource {
    /// Changes of state.
    Transitions,
    /// What administrators did.
    Audit,
}

/// Where an event is in history: newer ones are larger. Unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPosition {
    /// When it happened.
    pub at: Timestamp,
    /// From where.
    pub source: EventSource,
    /// Its number there, in the order of appending.
    pub seq: u64,
}

impl EventPosition {
    /// Behind every event there will be.
    pub const END: Self = Self {
        at: Timestamp(u64::MAX),
        source: EventSource::Audit,
        seq: u64::MAX,
    };
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredEvent {
    /// A change of state.
    Transition(Transition),
    /// What an administrator did.
    Audit(AuditEntry),
    /// A row that does not decode, such as a kind of a later release. It has its place, so that who reads goes on behind it.
    Unreadable {
        /// Why.
        reason: String,
    },
}

/// An event and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Its place.
    pub position: EventPosition,
    /// What.
    pub event: StoredEvent,
}

/// Which events.
#[derive(Clone, Copy, Debug)]
pub struct EventQuery<'a> {
    /// Only of this provider, and none of the audit trail.
    pub provider: Option<&'a ProviderId>,
    /// Only of this connection, and none of the audit trail.
    pub connection: Option<&'a ConnectionId>,
    /// Only of this source.
    pub source: Option<EventSource>,
    /// From this moment on.
    pub since: Timestamp,
    /// Only what lies before; [`EventPosition::END`] for all.
    pub before: EventPosition,
}

/// How far each source has been read, by the number of the last row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventMarks {
    /// Of transitions.
    pub transitions: u64,
    /// Of the audit trail.
    pub audit: u64,
}

/// Events.
#[async_trait]
pub trait EventStore {
    /// Events in falling order of their positions, at most `limit` and [`super::MAX_LIST_ROWS`].
    async fn list_events(
        &self,
        asked: EventQuery<'_>,
        limit: u32,
    ) -> Result<Vec<EventRow>, DurableStoreError>;

    /// How far each source reaches now; 0 where it is empty.
    async fn event_marks(&self) -> Result<EventMarks, DurableStoreError>;

    /// Events behind these marks, of each source at most `limit` and [`super::MAX_LIST_ROWS`], in the order of appending
    /// within each. Of two writers at the same time the one with the higher number may be seen first, so that who follows
    /// looks back a little.
    async fn events_after(
        &self,
        marks: EventMarks,
        limit: u32,
    ) -> Result<Vec<EventRow>, DurableStoreError>;
}
