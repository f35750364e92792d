//! Families of metrics that are told of from the start.
//!
//! Prometheus' library leaves a family without a sample out of what it writes: of one whose first event is rare, such as a
//! call about leases, nobody who looks at `/metrics` would learn that it is there. Registered here, its name, its kind and
//! its help stand there without a sample, which OpenMetrics allows; so what a fresh process serves is all that there is,
//! and the table of all metrics is made from that.

use std::fmt;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Metric, Registry, Unit};

/// A registry in which families are shown also without a sample.
#[derive(Debug)]
pub struct FamilyRegistry<'a>(&'a mut Registry);

impl<'a> FamilyRegistry<'a> {
    /// What is registered goes into `registry`, under whatever prefix it has.
    pub fn of(registry: &'a mut Registry) -> Self {
        Self(registry)
    }

    /// The same with one more prefix.
    pub fn with_prefix(&mut self, prefix: &str) -> FamilyRegistry<'_> {
        FamilyRegistry(self.0.sub_registry_with_prefix(prefix))
    }

    /// Registers a metric or a family of them.
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    pub fn register(&mut self, name: &str, help: &str, metric: impl Metric) {
        self.0.register(name, help, Shown(metric));
    }

    /// The same for one with a unit, which is put behind its name.
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    pub fn register_with_unit(&mut self, name: &str, help: &str, unit: Unit, metric: impl Metric) {
        self.0.register_with_unit(name, help, unit, Shown(metric));
    }
}

/// Never empty, whatever it has of samples.
#[derive(Debug)]
struct Shown<M>(M);

impl<M: Metric> EncodeMetric for Shown<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }

    fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    type Labels = [(&'static str, &'static str); 1];

    fn written(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn a_family_is_told_of_with_and_without_a_sample() {
        let mut registry = Registry::default();
        let calls = Family::<Labels, Counter>::default();
        let times: Family<Labels, Histogram> =
            Family::new_with_constructor(|| Histogram::new([1.0]));
        let mut all = FamilyRegistry::of(&mut registry);
        let mut families = all.with_prefix("x");
        families.register("calls", "Calls", calls.clone());
        families.register_with_unit("call_duration", "Times", Unit::Seconds, times.clone());
        assert_eq!(
            written(&registry),
            "# HELP x_calls Calls.\n\
             # TYPE x_calls counter\n\
             # HELP x_call_duration_seconds Times.\n\
             # TYPE x_call_duration_seconds histogram\n\
             # UNIT x_call_duration_seconds seconds\n\
             # EOF\n"
        );
        calls.get_or_create(&[("of", "a")]).inc();
        times.get_or_create(&[("of", "a")]).observe(0.5);
        let text = written(&registry);
        for sample in [
            "x_calls_total{of=\"a\"} 1\n",
            "x_call_duration_seconds_count{of=\"a\"} 1\n",
        ] {
            assert!(text.contains(sample), "{sample} in {text}");
        }
    }
}
