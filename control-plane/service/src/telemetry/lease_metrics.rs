//! Metrics of leases.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_telemetry::FamilyRegistry;

use super::metrics::gauge_value;

labels! {
    /// Where a lease, or its end, was shown.
    pub(crate) enum LeaseShown {
        /// In the hot store.
        Everywhere = "everywhere",
        /// By this replica alone, the store being away.
        Here = "here",
    }

    /// What was asked of the durable store about leases, and was not done.
    pub(crate) enum LeaseFailure {
        /// To list them.
        List = "list",
        /// To end those that a new configuration does not cover.
        Reconcile = "reconcile",
        /// To tidy up.
        Sweep = "sweep",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShownLabel {
    shown: LeaseShown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabel {
    call: LeaseFailure,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct LeaseMetrics {
    live: Gauge,
    shown: Family<ShownLabel, Counter>,
    ended_by_configuration: Counter,
    swept: Counter,
    failures: Family<FailureLabel, Counter>,
}

impl LeaseMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        let help = "Leases that hold, when this replica last looked";
        registry.register("leases_live", help, self.live.clone());
        let help = "Leases and their ends that were shown, by where";
        registry.register("leases_shown", help, self.shown.clone());
        let help = "Leases that this replica ended because a new configuration does not cover them";
        registry.register(
            "leases_ended_by_configuration",
            help,
            self.ended_by_configuration.clone(),
        );
        let help = "Rows about leases that this replica tidied up";
        registry.register("lease_rows_swept", help, self.swept.clone());
        let help = "Calls about leases that failed";
        registry.register("lease_failures", help, self.failures.clone());
        for shown in [LeaseShown::Everywhere, LeaseShown::Here] {
            self.shown.get_or_create(&ShownLabel { shown }).inc_by(0);
        }
        for call in [
            LeaseFailure::List,
            LeaseFailure::Reconcile,
            LeaseFailure::Sweep,
        ] {
            self.failures
                .get_or_create(&FailureLabel { call })
                .inc_by(0);
        }
    }

    /// So many leases hold.
    pub(crate) fn live(&self, count: u64) {
        self.live.set(gauge_value(count));
    }

    /// Counts a lease, or its end, that was shown.
    pub(crate) fn shown(&self, shown: LeaseShown) {
        self.shown.get_or_create(&ShownLabel { shown }).inc();
    }

    /// Counts leases that a configuration ended.
    pub(crate) fn ended_by_configuration(&self, count: u64) {
        self.ended_by_configuration.inc_by(count);
    }

    /// Counts rows that were tidied up.
    pub(crate) fn swept(&self, count: u64) {
        self.swept.inc_by(count);
    }

    /// Counts a call that failed.
    pub(crate) fn failed(&self, call: LeaseFailure) {
        self.failures.get_or_create(&FailureLabel { call }).inc();
    }
}
