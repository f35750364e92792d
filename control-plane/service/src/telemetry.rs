//! What the control plane tells about itself: metrics, liveness, readiness.

pub mod http;
pub(crate) mod metrics;
