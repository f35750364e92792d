//! What the control plane tells about itself: metrics, liveness, readiness.

#[macro_use]
mod labels;

pub(crate) mod admin_metrics;
mod fleet_metrics;
mod foresight_metrics;
pub(crate) mod handoff_metrics;
pub mod http;
pub(crate) mod lease_call_metrics;
mod lease_metrics;
pub(crate) mod metrics;
pub(crate) mod pin_metrics;
mod quota_metrics;
pub(crate) mod rest_metrics;
mod usage_metrics;
