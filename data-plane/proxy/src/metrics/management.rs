//! Metrics of requests that the control plane answers.

use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_core::management::Operation;
use tidegate_telemetry::FamilyRegistry;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ManagementEnd {
    /// The control plane answered it, whatever that was.
    Answered,
    /// No control plane answered in time.
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: Named,
    end: ManagementEnd,
}

/// An operation by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Named(Operation);

impl EncodeLabelValue for Named {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0.name())
    }
}

label_words!(ManagementEnd {
    Answered => "answered",
    Unanswered => "unanswered",
});

/// The tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManagementMetrics {
    requests: Family<Labels, Counter>,
}

impl ManagementMetrics {
    pub(super) fn begin_at_zero(&self) {
        for operation in Operation::ALL {
            for &end in ManagementEnd::ALL {
                drop(self.of(operation, end));
            }
        }
    }

    pub(super) fn name_in(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "management_requests",
            "Requests to the contract's management endpoints by what they ask for and whether the control plane answered",
            self.requests.clone(),
        );
    }

    /// A request has ended.
    pub(crate) fn ended(&self, operation: Operation, end: ManagementEnd) {
        self.of(operation, end).inc();
    }

    fn of(&self, operation: Operation, end: ManagementEnd) -> Counter {
        let operation = Named(operation);
        self.requests
            .get_or_create_owned(&Labels { operation, end })
    }
}
