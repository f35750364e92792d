//! What the control plane tells about itself: metrics, liveness, readiness.

mod fleet_metrics;
pub(crate) mod handoff_metrics;
pub mod http;
pub(crate) mod metrics;
