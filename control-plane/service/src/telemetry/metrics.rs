//! All metrics of the control plane: one typed tree, labels from closed lists, help text = doc of the family.

mod kinds;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tidegate_store::durable::DurableStore;
use tidegate_telemetry::FamilyRegistry;

use super::admin_metrics::AdminMetrics;
use super::fleet_metrics::FleetMetrics;
use super::foresight_metrics::LeaseForesight;
use super::handoff_metrics::HandoffMetrics;
use super::lease_call_metrics::LeaseCallMetrics;
use super::lease_metrics::LeaseMetrics;
pub(crate) use super::lease_metrics::{LeaseFailure, LeaseShown};
use super::pin_metrics::PinMetrics;
use super::quota_metrics::QuotaMetrics;
pub(crate) use super::quota_metrics::{QuotaPoll, QuotaReport};
use super::rest_metrics::RestMetrics;
use super::usage_metrics::UsageMetrics;
pub(crate) use kinds::{
    AdmissionAnswer, Dropped, PermitGrant, ProbeGrant, ReportFate, Step, StoreCall, TokenRefresh,
    TurnTaken,
};
use kinds::{
    AdmissionLabel, CallLabel, CallResult, DroppedLabel, FateLabel, GrantLabel, PermitLabel,
    StepLabel, TokenLabel, TurnLabel,
};

/// Where metrics are named. Both planes of one process share one.
pub type SharedRegistry = Arc<RwLock<Registry>>;

/// Before each name.
const PREFIX: &str = "tidegate_cp";

/// The tree.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: SharedRegistry,
    decisions: Family<StepLabel, Counter>,
    decision_seconds: Histogram,
    hot_calls: Family<CallLabel, Counter>,
    hot_call_seconds: Histogram,
    reports: Family<FateLabel, Counter>,
    probes: Family<GrantLabel, Counter>,
    turns: Family<TurnLabel, Counter>,
    permits: Family<PermitLabel, Counter>,
    admissions: Family<AdmissionLabel, Counter>,
    dropped: Family<DroppedLabel, Counter>,
    token_refreshes: Family<TokenLabel, Counter>,
    /// What is gathered for strategies.
    pub(crate) fleet: FleetMetrics,
    /// Notes that follow conversations.
    pub(crate) handoffs: HandoffMetrics,
    /// What is asked about leases.
    pub(crate) lease_calls: LeaseCallMetrics,
    /// Leases of connections.
    pub(crate) leases: LeaseMetrics,
    pub(crate) pins: PinMetrics,
    pub(crate) admin: AdminMetrics,
    pub(crate) rest: RestMetrics,
    /// Quotas that are fetched.
    pub(crate) quota: QuotaMetrics,
    /// Tokens, and history as it goes.
    pub(crate) usage: UsageMetrics,
    /// Compare-and-sets that were refused for a conflict.
    pub(crate) write_conflicts: Counter,
    /// Shards that were read whole after a doubt.
    pub(crate) shard_readings: Counter,
    /// Incarnations this replica restored values into.
    pub(crate) restores: Counter,
    /// Configurations in the durable store that do not validate.
    pub(crate) bad_configurations: Counter,
    /// Failed checkpoint writes.
    pub(crate) checkpoint_failures: Counter,
    /// Watchers that were too slow and got shards whole again.
    pub(crate) lagging_watchers: Counter,
    /// Age of the view in ms.
    pub(crate) view_age_ms: Gauge<i64, AtomicI64>,
    /// Reports waiting to be applied.
    pub(crate) waiting_reports: Gauge<i64, AtomicI64>,
    /// Data planes that follow this replica.
    pub(crate) data_planes: Gauge<i64, AtomicI64>,
    /// Version of the configuration in use.
    pub(crate) configuration_version: Gauge<i64, AtomicI64>,
    /// This replica writes the checkpoint.
    pub(crate) checkpoint_leader: Gauge<i64, AtomicI64>,
    /// Steps of the store's clock seen.
    pub(crate) clock_steps: Gauge<i64, AtomicI64>,
}

impl Metrics {
    /// Named in `registry`, which may hold those of others as well.
    pub(crate) fn new(registry: SharedRegistry) -> Self {
        let metrics = Self {
            registry,
            decisions: Family::default(),
            decision_seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 12)),
            hot_calls: Family::default(),
            hot_call_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 12)),
            reports: Family::default(),
            probes: Family::default(),
            turns: Family::default(),
            permits: Family::default(),
            admissions: Family::default(),
            dropped: Family::default(),
            token_refreshes: Family::default(),
            fleet: FleetMetrics::default(),
            handoffs: HandoffMetrics::default(),
            lease_calls: LeaseCallMetrics::default(),
            leases: LeaseMetrics::default(),
            pins: PinMetrics::default(),
            admin: AdminMetrics::default(),
            rest: RestMetrics::default(),
            quota: QuotaMetrics::default(),
            usage: UsageMetrics::default(),
            write_conflicts: Counter::<u64, AtomicU64>::default(),
            shard_readings: Counter::default(),
            restores: Counter::default(),
            bad_configurations: Counter::default(),
            checkpoint_failures: Counter::default(),
            lagging_watchers: Counter::default(),
            view_age_ms: Gauge::default(),
            waiting_reports: Gauge::default(),
            data_planes: Gauge::default(),
            configuration_version: Gauge::default(),
            checkpoint_leader: Gauge::default(),
            clock_steps: Gauge::default(),
        };
        metrics.register();
        metrics.show_zeros();
        metrics
    }

    /// Shows as well what this store foresees of leases.
    pub(crate) fn show_foresight(&self, durable: Arc<dyn DurableStore>) {
        let mut registry = self.registry.write();
        let registry = registry.sub_registry_with_prefix(PREFIX);
        registry.register_collector(Box::new(LeaseForesight(durable)));
    }

    fn register(&self) {
        let mut registry = self.registry.write();
        let registry = registry.sub_registry_with_prefix(PREFIX);
        let registry = &mut FamilyRegistry::of(registry);
        registry.register("decisions", "Decisions answered", self.decisions.clone());
        registry.register_with_unit(
            "decision_duration",
            "Time to answer a decision",
            Unit::Seconds,
            self.decision_seconds.clone(),
        );
        registry.register(
            "hot_store_calls",
            "Calls to the hot store",
            self.hot_calls.clone(),
        );
        registry.register_with_unit(
            "hot_store_call_duration",
            "Time of calls to the hot store",
            Unit::Seconds,
            self.hot_call_seconds.clone(),
        );
        registry.register(
            "reports",
            "Reports by what became of them",
            self.reports.clone(),
        );
        registry.register("probes", "Half-open probes asked for", self.probes.clone());
        let help = "Numbers taken of counters that all replicas share";
        registry.register("turns", help, self.turns.clone());
        registry.register(
            "permits",
            "Permits of connections asked for",
            self.permits.clone(),
        );
        registry.register(
            "admissions",
            "Requests to connections with a limited pace by what was answered",
            self.admissions.clone(),
        );
        registry.register(
            "dropped",
            "What should be kept and was not",
            self.dropped.clone(),
        );
        registry.register(
            "token_refreshes",
            "What happened to renewals of access tokens",
            self.token_refreshes.clone(),
        );
        registry.register(
            "write_conflicts",
            "Writes refused because a value had changed",
            self.write_conflicts.clone(),
        );
        registry.register(
            "shard_readings",
            "Shards read whole after a doubt",
            self.shard_readings.clone(),
        );
        registry.register(
            "restores",
            "Incarnations this replica restored values into",
            self.restores.clone(),
        );
        registry.register(
            "bad_configurations",
            "Stored configurations that do not validate",
            self.bad_configurations.clone(),
        );
        registry.register(
            "checkpoint_failures",
            "Checkpoint writes that failed",
            self.checkpoint_failures.clone(),
        );
        registry.register(
            "lagging_watchers",
            "Watchers that were too slow and got shards whole again",
            self.lagging_watchers.clone(),
        );
        registry.register("view_age_ms", "Age of the view", self.view_age_ms.clone());
        registry.register(
            "waiting_reports",
            "Reports waiting to be applied",
            self.waiting_reports.clone(),
        );
        registry.register(
            "data_planes",
            "Data planes that follow this replica",
            self.data_planes.clone(),
        );
        registry.register(
            "configuration_version",
            "Version of the configuration in use",
            self.configuration_version.clone(),
        );
        registry.register(
            "checkpoint_leader",
            "This replica writes the checkpoint",
            self.checkpoint_leader.clone(),
        );
        registry.register(
            "clock_steps",
            "Steps of the store's clock seen",
            self.clock_steps.clone(),
        );
        self.fleet.register(registry);
        self.handoffs.register(registry);
        self.lease_calls.register(registry);
        self.leases.register(registry);
        self.pins.register(registry);
        self.admin.register(registry);
        self.rest.register(registry);
        self.quota.register(registry);
        self.usage.register(registry);
    }

    /// Zero is visible from the start.
    fn show_zeros(&self) {
        for step in [
            Step::Dispatch,
            Step::Wait,
            Step::Reject,
            Step::Plan,
            Step::Invalid,
        ] {
            self.decisions.get_or_create(&StepLabel { step }).inc_by(0);
        }
        for fate in [
            ReportFate::Applied,
            ReportFate::Unchanged,
            ReportFate::Duplicate,
            ReportFate::TooOld,
            ReportFate::Invalid,
        ] {
            self.reports.get_or_create(&FateLabel { fate }).inc_by(0);
        }
        for grant in [ProbeGrant::Shared, ProbeGrant::Local, ProbeGrant::Refused] {
            self.probes.get_or_create(&GrantLabel { grant }).inc_by(0);
        }
        for taken in [TurnTaken::Shared, TurnTaken::Local] {
            self.turns.get_or_create(&TurnLabel { taken }).inc_by(0);
        }
        for grant in [
            PermitGrant::Shared,
            PermitGrant::Local,
            PermitGrant::Refused,
            PermitGrant::QueueFull,
            PermitGrant::TimedOut,
            PermitGrant::Unheld,
        ] {
            self.permits.get_or_create(&PermitLabel { grant }).inc_by(0);
        }
        for answer in [
            AdmissionAnswer::Now,
            AdmissionAnswer::NotBefore,
            AdmissionAnswer::Spent,
            AdmissionAnswer::Full,
            AdmissionAnswer::Nobody,
            AdmissionAnswer::Unknown,
        ] {
            self.admissions
                .get_or_create(&AdmissionLabel { answer })
                .inc_by(0);
        }
        for reason in [Dropped::HistoryQueueFull, Dropped::HistoryRefused] {
            self.dropped
                .get_or_create(&DroppedLabel { reason })
                .inc_by(0);
        }
        for event in [
            TokenRefresh::Attempt,
            TokenRefresh::Refreshed,
            TokenRefresh::Failed,
            TokenRefresh::Superseded,
            TokenRefresh::LeaseWaitedOut,
            TokenRefresh::OwnFault,
        ] {
            self.token_refreshes
                .get_or_create(&TokenLabel { event })
                .inc_by(0);
        }
    }

    /// Counts what happened to a renewal.
    pub(crate) fn token_refresh(&self, event: TokenRefresh) {
        self.token_refreshes
            .get_or_create(&TokenLabel { event })
            .inc();
    }

    /// Counts a decision.
    pub(crate) fn decision(&self, step: Step, took: Duration) {
        self.decisions.get_or_create(&StepLabel { step }).inc();
        self.decision_seconds.observe(took.as_secs_f64());
    }

    /// Counts a call to the hot store.
    pub(crate) fn hot_call(&self, call: StoreCall, ok: bool, took: Duration) {
        let result = if ok {
            CallResult::Ok
        } else {
            CallResult::Failed
        };
        self.hot_calls
            .get_or_create(&CallLabel { call, result })
            .inc();
        self.hot_call_seconds.observe(took.as_secs_f64());
    }

    /// Counts reports that met the same fate.
    pub(crate) fn reports(&self, fate: ReportFate, count: u64) {
        if count > 0 {
            self.reports
                .get_or_create(&FateLabel { fate })
                .inc_by(count);
        }
    }

    /// Counts a number taken.
    pub(crate) fn turn(&self, taken: TurnTaken) {
        self.turns.get_or_create(&TurnLabel { taken }).inc();
    }

    /// Counts a probe.
    pub(crate) fn probe(&self, grant: ProbeGrant) {
        self.probes.get_or_create(&GrantLabel { grant }).inc();
    }

    /// Counts what became of a wish for a permit.
    pub(crate) fn permit(&self, grant: PermitGrant) {
        self.permits.get_or_create(&PermitLabel { grant }).inc();
    }

    /// Counts what was answered about the pace of a connection.
    pub(crate) fn admission(&self, answer: AdmissionAnswer) {
        self.admissions
            .get_or_create(&AdmissionLabel { answer })
            .inc();
    }

    /// Counts what was dropped.
    pub(crate) fn dropped(&self, reason: Dropped, count: u64) {
        self.dropped
            .get_or_create(&DroppedLabel { reason })
            .inc_by(count);
    }

    /// The tree in the text format.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry.read())?;
        Ok(text)
    }
}

/// A count as a gauge shows it.
pub(crate) fn gauge_value(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
