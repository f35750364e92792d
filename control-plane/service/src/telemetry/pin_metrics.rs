//! Metrics of pins of sessions.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_telemetry::FamilyRegistry;

use super::metrics::gauge_value;

labels! {
    /// What happened to a pin.
    pub(crate) enum PinEvent {
        /// It was known here.
        CacheHit = "cache_hit",
        /// It was read from the hot store.
        Read = "read",
        /// It could not be read, so that its session is placed without it.
        ReadFailed = "read_failed",
        /// There was none, and one was made.
        Created = "created",
        /// It names another connection from now on.
        Moved = "moved",
        /// It lasts longer.
        Touched = "touched",
        /// An attempt on its connection failed, so it was taken away.
        Deleted = "deleted",
        /// Somebody else changed it first.
        Lost = "lost",
        /// A change could not be written.
        WriteFailed = "write_failed",
        /// It was saved in the durable store, or taken away there.
        Saved = "saved",
        /// It was not.
        NotSaved = "not_saved",
        /// It was put back from there after a loss of the hot store.
        Restored = "restored",
    }
}

impl PinEvent {
    const ALL: [Self; 12] = [
        Self::CacheHit,
        Self::Read,
        Self::ReadFailed,
        Self::Created,
        Self::Moved,
        Self::Touched,
        Self::Deleted,
        Self::Lost,
        Self::WriteFailed,
        Self::Saved,
        Self::NotSaved,
        Self::Restored,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: PinEvent,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct PinMetrics {
    events: Family<EventLabel, Counter>,
    cached: Gauge,
}

impl PinMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "pins",
            "What happened to pins of sessions",
            self.events.clone(),
        );
        registry.register(
            "pins_cached",
            "Pins that are known here for a second, those that are absent included",
            self.cached.clone(),
        );
        for event in PinEvent::ALL {
            self.events.get_or_create(&EventLabel { event }).inc_by(0);
        }
    }

    /// Counts.
    pub(crate) fn count(&self, event: PinEvent) {
        self.events.get_or_create(&EventLabel { event }).inc();
    }

    /// Counts so many.
    pub(crate) fn count_many(&self, event: PinEvent, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.events
            .get_or_create(&EventLabel { event })
            .inc_by(count);
    }

    /// So many are known here.
    pub(crate) fn cached(&self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.cached.set(gauge_value(count));
    }
}
