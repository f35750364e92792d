//! Metrics of what is asked about exclusive leases.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;
use tidegate_core::lease::LeaseError;
use tidegate_telemetry::FamilyRegistry;

labels! {
    /// What is asked about leases.
    pub(crate) enum LeaseAction {
        Acquire = "acquire",
        Renew = "renew",
        Release = "release",
        Status = "status",
        /// Where a request goes.
        Place = "place",
        /// Whether an attempt may be sent.
        Fence = "fence",
        RenewActivity = "renew_activity",
        EndActivity = "end_activity",
    }

    /// What is answered.
    pub(crate) enum LeaseAnswer {
        Granted = "granted",
        /// The ordinary answer of a request that no connection can serve.
        Ordinary = "ordinary",
        /// The key may not lease.
        Key = "key",
        /// The model means no provider.
        Model = "model",
        /// Nothing could serve, ever.
        NoneEligible = "none_eligible",
        /// Nothing can serve now.
        Blocked = "blocked",
        /// Everything is leased.
        Capacity = "capacity",
        /// There is no lease.
        Required = "required",
        /// It is another lease, or of another key.
        Stale = "stale",
        /// The lease is for another connection.
        Mismatch = "mismatch",
        /// The request cannot be under a lease.
        Unsupported = "unsupported",
        /// The data plane has registered anew meanwhile.
        Superseded = "superseded",
        /// What is in flight must end.
        Over = "over",
        /// The durable store did not answer, or this replica is not ready.
        Unknown = "unknown",
    }
}

impl LeaseAction {
    const ALL: [Self; 8] = [
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Status,
        Self::Place,
        Self::Fence,
        Self::RenewActivity,
        Self::EndActivity,
    ];

    /// Its word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Status => "status",
            Self::Place => "place",
            Self::Fence => "fence",
            Self::RenewActivity => "renew_activity",
            Self::EndActivity => "end_activity",
        }
    }
}

impl LeaseAnswer {
    /// What a refusal counts as.
    pub(crate) fn of(error: LeaseError) -> Self {
        match error {
            LeaseError::AuthenticationRequired
            | LeaseError::ApiKeyInvalid
            | LeaseError::ScopeRequired
            | LeaseError::KeyConfigurationInvalid => Self::Key,
            LeaseError::ModelInvalid => Self::Model,
            LeaseError::NoEligibleConnection => Self::NoneEligible,
            LeaseError::EligibilityUnavailable => Self::Blocked,
            LeaseError::Capacity(_) => Self::Capacity,
            LeaseError::Required => Self::Required,
            LeaseError::FenceStale => Self::Stale,
            LeaseError::ConnectionMismatch => Self::Mismatch,
            LeaseError::ContentTypeRequired
            | LeaseError::ActionInvalid
            | LeaseError::ContextRequired
            | LeaseError::ContextInvalid
            | LeaseError::UnsupportedRoute
            | LeaseError::UnsupportedTransport => Self::Unsupported,
            LeaseError::ServiceUnavailable => Self::Unknown,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabel {
    action: LeaseAction,
    answer: LeaseAnswer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabel {
    action: LeaseAction,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct LeaseCallMetrics {
    calls: Family<CallLabel, Counter>,
    call_seconds: Family<ActionLabel, Histogram>,
}

impl Default for LeaseCallMetrics {
    fn default() -> Self {
        Self {
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
        }
    }
}

fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 12))
}

impl LeaseCallMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        let help = "What was asked about leases, and answered";
        registry.register("lease_calls", help, self.calls.clone());
        registry.register_with_unit(
            "lease_call_duration",
            "Time to answer about leases",
            Unit::Seconds,
            self.call_seconds.clone(),
        );
        for action in LeaseAction::ALL {
            for answer in [LeaseAnswer::Granted, LeaseAnswer::Unknown] {
                let label = CallLabel { action, answer };
                self.calls.get_or_create(&label).inc_by(0);
            }
        }
    }

    /// Counts.
    pub(crate) fn count(&self, action: LeaseAction, answer: LeaseAnswer, took: Duration) {
        self.calls
            .get_or_create(&CallLabel { action, answer })
            .inc();
        self.call_seconds
            .get_or_create(&ActionLabel { action })
            .observe(took.as_secs_f64());
    }
}
