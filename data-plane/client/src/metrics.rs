//! What the client counts. One typed tree; whoever owns the registry registers it ([`ClientMetrics::register`]).

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate_telemetry::FamilyRegistry;

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ty = $wire:literal;)*) => {
        /// Counters and gauges of the door to the control plane. Cheap to clone; clones share their values.
        #[derive(Clone, Debug, Default)]
        pub struct ClientMetrics {
            $($(#[doc = $help])+ pub $name: $kind,)*
        }

        impl ClientMetrics {
            /// Registers everything. Names carry no prefix: give a sub-registry with `tidegate_dp`.
            pub fn register(&self, registry: &mut Registry) {
                let mut families = FamilyRegistry::of(registry);
                $(families.register($wire, concat!($($help),+).trim(), self.$name.clone());)*
            }
        }
    };
}

metrics! {
    /// Decisions that the control plane answered
    decided_remotely: Counter = "decisions_remote";
    /// Decisions made here because the control plane did not answer in time
    decided_locally: Counter = "decisions_local";
    /// Decisions that need a permit and that a slow control plane answered after the limit
    decided_late: Counter = "decisions_late";
    /// Decisions made here because too many waited for a slow control plane already
    decide_impatient: Counter = "decide_impatient";
    /// 1 while the control plane is there but slow, and what needs no permit is decided here
    control_plane_slow: Gauge = "control_plane_slow";
    /// 1 while the control plane is gone and everything is decided here
    control_plane_gone: Gauge = "control_plane_gone";
    /// Questions to the control plane that got no answer within the limit
    decide_timeouts: Counter = "decide_timeouts";
    /// Questions to the control plane that ended with an error
    decide_errors: Counter = "decide_errors";
    /// Answers of the control plane that could not be used here
    decide_unusable: Counter = "decide_unusable";
    /// Half-open probes granted here while no control plane answered
    local_probes: Counter = "local_probes";
    /// Reports acknowledged by the control plane
    reports_acknowledged: Counter = "reports_acknowledged";
    /// Reports that were merged into one that had not been sent
    reports_coalesced: Counter = "reports_coalesced";
    /// Successes dropped because the queue was full
    reports_dropped_success: Counter = "reports_dropped_success";
    /// Failures dropped because the queue was full
    reports_dropped_failure: Counter = "reports_dropped_failure";
    /// Reports dropped because they were older than five minutes before they could be sent
    reports_dropped_age: Counter = "reports_dropped_age";
    /// Reports not acknowledged when the process ended
    reports_dropped_shutdown: Counter = "reports_dropped_shutdown";
    /// Reports sent again to the same or another replica
    reports_resent: Counter = "reports_resent";
    /// Report streams opened
    report_streams: Counter = "report_streams";
    /// Reports that wait to be sent
    reports_waiting: Gauge = "reports_waiting";
    /// Reports sent and not acknowledged
    reports_under_way: Gauge = "reports_under_way";
    /// Token records stored by the control plane
    usage_recorded: Counter = "usage_recorded";
    /// Token records dropped because the queue was full or the control plane refused them
    usage_dropped: Counter = "usage_dropped";
    /// Answers under way of which a control plane knows that a token record is due
    usage_under_way: Gauge = "usage_under_way";
    /// Answers that are not told of while they are under way, because too many are
    usage_under_way_untold: Counter = "usage_under_way_untold";
    /// Messages about answers under way that no replica took; they are sent again
    usage_under_way_failed: Counter = "usage_under_way_failed";
    /// Messages of telemetry that a control plane took
    telemetry_sent: Counter = "telemetry_sent";
    /// Times that a message of telemetry was not taken and kept for later
    telemetry_kept: Counter = "telemetry_kept";
    /// Entries of telemetry dropped because there was no room, or no control plane understands them
    telemetry_dropped: Counter = "telemetry_dropped";
    /// Notices of abandoned attempts dropped; their grants end by expiry
    abandons_dropped: Counter = "abandons_dropped";
    /// Permits of connections held by attempts under way
    permits_held: Gauge = "permits_held";
    /// Requests under way that count for a connection's limit on requests at once
    admissions_held: Gauge = "admissions_held";
    /// Requests admitted here, by this data plane's part of the limits, while nobody counted for the fleet
    local_admissions: Counter = "local_admissions";
    /// Models on connections whose requests ask because their upstream told that little is left
    learned_paces: Gauge = "learned_paces";
    /// Requests that had to wait because their upstream told that little or nothing is left
    learned_waits: Counter = "learned_waits";
    /// Times that nothing was learned of a model because as many are learned as may
    learned_dropped: Counter = "learned_dropped";
    /// Questions about the pace of a connection that no replica answered
    admissions_unanswered: Counter = "admissions_unanswered";
    /// Live data planes, this one included, as last heard: what local parts of limits are divided by
    live_data_planes: Gauge = "live_data_planes";
    /// Permits given out here while the control plane was gone
    local_permits: Counter = "local_permits";
    /// Attempts of quota pools sent without a permit because no control plane answered
    local_unheld: Counter = "local_unheld";
    /// Messages about held permits that no replica took; they are sent again
    permit_renewals_failed: Counter = "permit_renewals_failed";
    /// Messages about permits to be given back that no replica took; they are sent again
    permit_releases_failed: Counter = "permit_releases_failed";
    /// Permits to be given back beyond those that are kept in mind; the next renewal frees them
    permit_releases_dropped: Counter = "permit_releases_dropped";
    /// Questions about leases that no replica answered in time
    lease_unanswered: Counter = "lease_unanswered";
    /// Decisions for managed requests that no control plane made in time; they are not made here
    lease_undecided: Counter = "lease_undecided";
    /// Attempts that were sent without an answer of the authority, by what it had granted before
    lease_fences_unanswered: Counter = "lease_fences_unanswered";
    /// Attempts in flight under leases
    lease_attempts: Gauge = "lease_attempts";
    /// Leases on connections with something in flight, or about to be
    lease_presences: Gauge = "lease_presences";
    /// Attempts refused because too many leases have something in flight
    lease_presences_refused: Counter = "lease_presences_refused";
    /// Times that what was in flight under a lease on a connection was cut at its horizon
    lease_cuts: Counter = "lease_cuts";
    /// Those of them that came after the guard, so that the connection may have been somebody else's already
    lease_late_cuts: Counter = "lease_late_cuts";
    /// Registrations of what is in flight that were gone when they were to be renewed
    lease_registrations_lost: Counter = "lease_registrations_lost";
    /// Ends of registrations that were not told; they end by their horizon
    lease_ends_dropped: Counter = "lease_ends_dropped";
    /// Requests to the contract's management endpoints that no replica answered in time
    management_unanswered: Counter = "management_unanswered";
    /// Watches opened
    watches: Counter = "watches";
    /// Replicas left because they fell silent
    silent_replicas: Counter = "silent_replicas";
    /// Hot values that this build could not read
    hot_values_skipped: Counter = "hot_values_skipped";
    /// Configurations refused because they did not build; the last good one stays in force
    configurations_refused: Counter = "configurations_refused";
    /// Version of the configuration in force, 0 without one
    configuration_version: Gauge<u64, AtomicU64> = "configuration_version";
    /// Failures to keep the snapshot on disk
    snapshot_file_errors: Counter = "snapshot_file_errors";
    /// Steps of the store's clock by more than a second
    clock_steps: Gauge<u64, AtomicU64> = "store_clock_steps";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_registered_under_its_own_name() {
        let mut registry = Registry::default();
        let metrics = ClientMetrics::default();
        metrics.register(registry.sub_registry_with_prefix("tidegate_dp"));
        metrics.reports_coalesced.inc();
        metrics.configuration_version.set(7);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(
            text.contains("tidegate_dp_reports_coalesced_total 1\n"),
            "{text}"
        );
        assert!(
            text.contains("tidegate_dp_configuration_version 7\n"),
            "{text}"
        );
        let names: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len());
    }
}
