//! Metrics of who calls and of who watches events.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_telemetry::FamilyRegistry;

use crate::access::Denied;

labels! {
    /// Why a call was refused.
    pub(crate) enum DeniedCall {
        /// It showed no token, or one that nobody knows.
        Unknown = "unknown",
        /// Its token is not for this.
        NotAllowed = "not_allowed",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: DeniedCall,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct AdminMetrics {
    denied: Family<ReasonLabel, Counter>,
    /// Watchers of events that are connected here.
    pub(crate) event_watchers: Gauge<i64, AtomicI64>,
    /// Watchers for whom there was no place.
    pub(crate) refused_watchers: Counter,
    /// Events that a watcher took too long for.
    pub(crate) missed_events: Counter,
    /// Events that this release cannot read, such as kinds of a later one.
    pub(crate) unreadable_events: Counter,
    /// What operators did that is not in the audit trail.
    pub(crate) unaudited: Counter,
}

impl AdminMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "denied_calls",
            "Calls refused for want of a token",
            self.denied.clone(),
        );
        registry.register(
            "event_watchers",
            "Watchers of events that are connected here",
            self.event_watchers.clone(),
        );
        registry.register(
            "refused_event_watchers",
            "Watchers of events for whom there was no place",
            self.refused_watchers.clone(),
        );
        registry.register(
            "missed_events",
            "Events that watchers of events took too long for",
            self.missed_events.clone(),
        );
        registry.register(
            "unreadable_events",
            "Events that this release cannot read and does not tell",
            self.unreadable_events.clone(),
        );
        registry.register(
            "unaudited_operations",
            "What operators did that could not be written into the audit trail",
            self.unaudited.clone(),
        );
        for reason in [DeniedCall::Unknown, DeniedCall::NotAllowed] {
            self.denied.get_or_create(&ReasonLabel { reason }).inc_by(0);
        }
    }

    /// A call was refused.
    pub(crate) fn denied(&self, denied: Denied) {
        let reason = match denied {
            Denied::Unknown => DeniedCall::Unknown,
            Denied::NotAllowed(_) => DeniedCall::NotAllowed,
        };
        self.denied.get_or_create(&ReasonLabel { reason }).inc();
    }
}
