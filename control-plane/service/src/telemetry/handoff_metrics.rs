//! Metrics of notes that follow conversations.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_telemetry::FamilyRegistry;

/// What happened to a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HandoffEvent {
    /// A data plane was told to make one.
    Begun,
    /// A success did not call for one.
    NotWanted,
    /// One stands.
    Active,
    /// One is being made.
    Running,
    /// One was kept.
    Saved,
    /// One came too late.
    Superseded,
    /// One was handed out.
    Found,
    /// There was none to hand out.
    Absent,
    /// A store or the seal failed.
    Failed,
}

impl HandoffEvent {
    const ALL: [Self; 9] = [
        Self::Begun,
        Self::NotWanted,
        Self::Active,
        Self::Running,
        Self::Saved,
        Self::Superseded,
        Self::Found,
        Self::Absent,
        Self::Failed,
    ];
}

impl EncodeLabelValue for HandoffEvent {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let word = match self {
            Self::Begun => "begun",
            Self::NotWanted => "not_wanted",
            Self::Active => "active",
            Self::Running => "running",
            Self::Saved => "saved",
            Self::Superseded => "superseded",
            Self::Found => "found",
            Self::Absent => "absent",
            Self::Failed => "failed",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: HandoffEvent,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct HandoffMetrics {
    events: Family<EventLabel, Counter>,
}

impl HandoffMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "handoffs",
            "What happened to notes that follow conversations",
            self.events.clone(),
        );
        for event in HandoffEvent::ALL {
            self.events.get_or_create(&EventLabel { event }).inc_by(0);
        }
    }

    /// Counts.
    pub(crate) fn count(&self, event: HandoffEvent) {
        self.events.get_or_create(&EventLabel { event }).inc();
    }
}
