//! Metrics of the contract's management endpoints.

use http::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_core::management::Operation;
use tidegate_telemetry::FamilyRegistry;

labels! {
    /// What became of a request.
    pub(crate) enum Ending {
        /// It was answered.
        Answered = "answered",
        /// It is wrong, or its caller may not ask for it.
        Refused = "refused",
        /// It was not done for a reason of ours.
        Failed = "failed",
    }
}

impl Ending {
    pub(crate) fn of(status: StatusCode) -> Self {
        if status.is_server_error() {
            Self::Failed
        } else if status.is_client_error() {
            Self::Refused
        } else {
            Self::Answered
        }
    }
}

/// An operation by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Named(Operation);

impl EncodeLabelValue for Named {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0.name(), encoder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestLabels {
    operation: Named,
    ending: Ending,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct RestMetrics {
    requests: Family<RestLabels, Counter>,
}

impl RestMetrics {
    pub(super) fn register(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "rest_requests",
            "Requests to the contract's management endpoints by what they ask for and what became of them",
            self.requests.clone(),
        );
        for operation in Operation::ALL {
            for ending in [Ending::Answered, Ending::Refused, Ending::Failed] {
                let operation = Named(operation);
                self.requests
                    .get_or_create(&RestLabels { operation, ending })
                    .inc_by(0);
            }
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, operation: Operation, ending: Ending) {
        let operation = Named(operation);
        self.requests
            .get_or_create(&RestLabels { operation, ending })
            .inc();
    }
}
