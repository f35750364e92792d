//! Metrics of quotas that are fetched.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_telemetry::FamilyRegistry;

use super::metrics::gauge_value;

labels! {
    /// How a poll of a quota endpoint ended.
    pub(crate) enum QuotaPoll {
        /// It told.
        Ok = "ok",
        /// It could not be reached.
        Unreachable = "unreachable",
        /// It did not answer in time.
        Timeout = "timeout",
        /// It answered 401 or 403.
        Refused = "refused",
        /// It answered 429.
        Limited = "limited",
        /// It answered with a redirect, which is not followed.
        Redirected = "redirected",
        /// It answered with another status.
        Status = "status",
        /// Its answer is too large.
        TooLarge = "too_large",
        /// Its answer is not as configured.
        NotUnderstood = "not_understood",
        /// It was not asked, or there was no room for what it told.
        OwnFault = "own_fault",
    }

    /// What became of a quota that somebody told.
    pub(crate) enum QuotaReport {
        /// It is taken.
        Taken = "taken",
        /// Something newer stands.
        Superseded = "superseded",
        /// It makes no sense, or is of no connection that is known.
        Refused = "refused",
        /// There was no room for it.
        NoRoom = "no_room",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PollLabel {
    result: QuotaPoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReportLabel {
    result: QuotaReport,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct QuotaMetrics {
    polls: Family<PollLabel, Counter>,
    waiting: Gauge,
    poller: Gauge,
    reports: Family<ReportLabel, Counter>,
}

impl QuotaMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        let help = "Polls of quota endpoints by how they ended";
        registry.register("quota_polls", help, self.polls.clone());
        let help = "Polls of quota endpoints that are due and have no room";
        registry.register("quota_polls_waiting", help, self.waiting.clone());
        let help = "This replica polls quota endpoints";
        registry.register("quota_poller", help, self.poller.clone());
        let help = "Quotas that were reported by what became of them";
        registry.register("quota_reports", help, self.reports.clone());
        for result in [
            QuotaPoll::Ok,
            QuotaPoll::Unreachable,
            QuotaPoll::Timeout,
            QuotaPoll::Refused,
            QuotaPoll::Limited,
            QuotaPoll::Redirected,
            QuotaPoll::Status,
            QuotaPoll::TooLarge,
            QuotaPoll::NotUnderstood,
            QuotaPoll::OwnFault,
        ] {
            self.polls.get_or_create(&PollLabel { result }).inc_by(0);
        }
        for result in [
            QuotaReport::Taken,
            QuotaReport::Superseded,
            QuotaReport::Refused,
            QuotaReport::NoRoom,
        ] {
            self.reports
                .get_or_create(&ReportLabel { result })
                .inc_by(0);
        }
    }

    /// Counts a poll.
    pub(crate) fn poll(&self, result: QuotaPoll) {
        self.polls.get_or_create(&PollLabel { result }).inc();
    }

    /// Counts a report.
    pub(crate) fn report(&self, result: QuotaReport) {
        self.reports.get_or_create(&ReportLabel { result }).inc();
    }

    /// Shows how many polls wait for room.
    pub(crate) fn waiting(&self, count: u64) {
        self.waiting.set(gauge_value(count));
    }

    /// Shows whether this replica polls.
    pub(crate) fn leads(&self, leads: bool) {
        self.poller.set(i64::from(leads));
    }
}
