//! What the process takes of its machine, read when somebody asks for metrics.
//!
//! Bytes are the allocator's own count: what is allocated returns to where it was when requests end, while resident
//! memory, which the system counts, keeps what the allocator has not given back yet.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use tikv_jemalloc_ctl::{epoch, stats};
use tokio::runtime::RuntimeMetrics;

/// See the module's documentation.
pub(crate) struct Footprint {
    runtime: RuntimeMetrics,
}

impl Footprint {
    /// Of this process, whose tasks run in `runtime`.
    pub(crate) fn new(runtime: RuntimeMetrics) -> Self {
        Self { runtime }
    }
}

impl fmt::Debug for Footprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Footprint").finish_non_exhaustive()
    }
}

impl Collector for Footprint {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let tasks = ConstGauge::new(signed(self.runtime.num_alive_tasks()));
        let described =
            encoder.encode_descriptor("tasks", "Tasks that live", None, tasks.metric_type())?;
        tasks.encode(described)?;
        // The allocator's counts are as of the last epoch. One that cannot be read is left out.
        if epoch::advance().is_err() {
            return Ok(());
        }
        let counts = [
            (
                "memory_allocated",
                "Memory in use",
                stats::allocated::read(),
            ),
            (
                "memory_resident",
                "Memory that the allocator holds of the machine",
                stats::resident::read(),
            ),
        ];
        for (name, help, bytes) in counts {
            if let Ok(bytes) = bytes {
                let bytes = ConstGauge::new(signed(bytes));
                let described = encoder.encode_descriptor(
                    name,
                    help,
                    Some(&Unit::Bytes),
                    bytes.metric_type(),
                )?;
                bytes.encode(described)?;
            }
        }
        Ok(())
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    fn sample(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    }

    #[tokio::test]
    async fn what_is_allocated_and_what_runs_is_told() {
        let runtime = tokio::runtime::Handle::current().metrics();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Footprint::new(runtime)));
        let told = |name: &str| {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            sample(&text, name).unwrap_or_else(|| panic!("{name} in {text}"))
        };
        let before = told("memory_allocated_bytes ");
        let held = std::hint::black_box(vec![1_u8; 64 << 20]);
        let with = told("memory_allocated_bytes ");
        assert!(with - before >= 64 << 20, "{before} became {with}");
        drop(held);
        assert!(told("memory_allocated_bytes ") < with - (63 << 20));
        assert!(told("memory_resident_bytes ") > 0);
        assert_eq!(told("tasks "), 0);
    }
}
