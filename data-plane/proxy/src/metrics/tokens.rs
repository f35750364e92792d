//! How many tokens there were.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tidegate_core::usage::{TokenUsage, UsageSource};
use tidegate_telemetry::FamilyRegistry;

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(UsageSource);

impl EncodeLabelValue for Source {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0.name(), encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    source: Source,
    direction: &'static str,
}

/// Tokens of attempts that gave an answer.
#[derive(Clone, Debug)]
pub(crate) struct TokenMetrics(Family<Labels, Counter>);

impl Default for TokenMetrics {
    /// All at zero.
    fn default() -> Self {
        let metrics = Self(Family::default());
        for source in UsageSource::ALL {
            metrics.add(source, Some(0), Some(0));
        }
        metrics
    }
}

impl TokenMetrics {
    pub(super) fn name_in(&self, registry: &mut FamilyRegistry<'_>) {
        registry.register(
            "tokens",
            "Tokens of attempts that gave an answer, by where the numbers come from",
            self.0.clone(),
        );
    }

    /// Counts those of an attempt that has ended.
    pub(crate) fn count(&self, usage: TokenUsage) {
        self.add(usage.source, usage.input, usage.output);
    }

    fn add(&self, source: UsageSource, input: Option<u64>, output: Option<u64>) {
        for (direction, count) in [("input", input), ("output", output)] {
            let labels = Labels {
                source: Source(source),
                direction,
            };
            self.0.get_or_create(&labels).inc_by(count.unwrap_or(0));
        }
    }
}
