//! What the durable store foresaw of leases, read when somebody asks for metrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tidegate_store::durable::{DurableStore, Foresight};

labels! {
    /// What became of a command about a lease that might go without a look.
    enum Outcome {
        /// It was written as foreseen.
        Foreseen = "foreseen",
        /// Another replica was there since: it took a round trip more than with a look at once.
        Wrong = "wrong",
        /// Nothing that could be written was foreseen: there was a look at once.
        Unknown = "unknown",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

/// Reads it.
#[derive(Debug)]
pub(super) struct LeaseForesight(pub(super) Arc<dyn DurableStore>);

impl Collector for LeaseForesight {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Foresight {
            foreseen,
            wrong,
            unknown,
        } = self.0.foresight();
        let mut family = encoder.encode_descriptor(
            "lease_foresight",
            "Commands about leases by whether what they would see was foreseen",
            None,
            MetricType::Counter,
        )?;
        for (outcome, count) in [
            (Outcome::Foreseen, foreseen),
            (Outcome::Wrong, wrong),
            (Outcome::Unknown, unknown),
        ] {
            let label = OutcomeLabel { outcome };
            ConstCounter::new(count).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}
