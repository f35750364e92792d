//! Metrics of what is gathered for strategies.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_core::telemetry::aggregate::{Aggregate, Kind, Refused};
use tidegate_telemetry::FamilyRegistry;

use super::metrics::gauge_value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KindValue(Kind);

impl EncodeLabelValue for KindValue {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let word = match self.0 {
            Kind::Combos => "combos",
            Kind::Targets => "targets",
            Kind::Tracks => "tracks",
            Kind::Sessions => "sessions",
            Kind::Connections => "connections",
            Kind::ToolLimits => "tool_limits",
            Kind::Planes => "planes",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: KindValue,
}

impl From<Kind> for KindLabel {
    fn from(kind: Kind) -> Self {
        Self {
            kind: KindValue(kind),
        }
    }
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct FleetMetrics {
    refused: Family<KindLabel, Counter>,
    entries: Family<KindLabel, Gauge>,
    shed: Family<KindLabel, Gauge>,
    left_out: Family<KindLabel, Gauge>,
    /// Messages of data planes that were added.
    pub(crate) messages: Counter,
    /// Messages that had been added before.
    pub(crate) duplicates: Counter,
    /// Bytes of what this replica published last.
    pub(crate) blob_bytes: Gauge,
    /// Times that it could not be published.
    pub(crate) blob_failures: Counter,
    /// What other replicas published and could not be read here.
    pub(crate) blobs_skipped: Counter,
    /// Replicas whose past is known here, this one not counted.
    pub(crate) others: Gauge,
}

impl FleetMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "telemetry_refused",
            "Entries of telemetry that there was no room for",
            self.refused.clone(),
        );
        registry.register(
            "telemetry_entries",
            "Entries of telemetry that this replica keeps",
            self.entries.clone(),
        );
        registry.register(
            "telemetry_shed",
            "Entries of telemetry that what was published last had no room for",
            self.shed.clone(),
        );
        registry.register(
            "telemetry_left_out",
            "Entries of all replicas that the last sum had no room for",
            self.left_out.clone(),
        );
        registry.register(
            "telemetry_messages",
            "Messages of telemetry that were added",
            self.messages.clone(),
        );
        registry.register(
            "telemetry_duplicates",
            "Messages of telemetry that had been added before",
            self.duplicates.clone(),
        );
        registry.register(
            "telemetry_blob_bytes",
            "Size of the telemetry that this replica published last",
            self.blob_bytes.clone(),
        );
        registry.register(
            "telemetry_blob_failures",
            "Times that telemetry could not be published",
            self.blob_failures.clone(),
        );
        registry.register(
            "telemetry_blobs_skipped",
            "Telemetry of other replicas that could not be read",
            self.blobs_skipped.clone(),
        );
        registry.register(
            "telemetry_other_replicas",
            "Other replicas whose telemetry is known",
            self.others.clone(),
        );
        for kind in Kind::ALL {
            self.refused.get_or_create(&kind.into()).inc_by(0);
            self.entries.get_or_create(&kind.into()).set(0);
            self.shed.get_or_create(&kind.into()).set(0);
            self.left_out.get_or_create(&kind.into()).set(0);
        }
    }

    /// Counts what there was no room for.
    pub(crate) fn refused(&self, refused: &Refused) {
        for (kind, count) in refused.iter() {
            self.refused.get_or_create(&kind.into()).inc_by(count);
        }
    }

    /// Shows what there was no room for in a blob.
    pub(crate) fn shed(&self, shed: &Refused) {
        for kind in Kind::ALL {
            let gauge = self.shed.get_or_create(&kind.into());
            gauge.set(gauge_value(shed.count(kind)));
        }
    }

    /// Shows what the sum of all replicas had no room for.
    pub(crate) fn left_out(&self, refused: &Refused) {
        for kind in Kind::ALL {
            let gauge = self.left_out.get_or_create(&kind.into());
            gauge.set(gauge_value(refused.count(kind)));
        }
    }

    /// Shows how much there is.
    pub(crate) fn holds(&self, aggregate: &Aggregate) {
        for kind in Kind::ALL {
            let count = u64::try_from(aggregate.count(kind)).unwrap_or(u64::MAX);
            let gauge = self.entries.get_or_create(&kind.into());
            gauge.set(gauge_value(count));
        }
    }
}
