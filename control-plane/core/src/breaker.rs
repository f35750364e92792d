//! The provider's circuit breaker: its state and policy.
use serde::{Deserialize, Serialize};

use crate::ids::AttemptId;
use crate::time::Timestamp;
use crate::version::Mark;

/// Numbers of a breaker (`failure-state.md` §1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerPolicy {
    /// Count at which the breaker shows itself degraded.
    pub degradation_threshold: u32,
    /// Count at which it opens.
    pub failure_threshold: u32,
    /// How long it stays open after the last failure before a probe is admitted, in ms.
    pub reset_timeout_ms: u64,
    /// Failed probes in a row before the wait grows.
    pub escalate_after_cycles: u32,
    /// Cap of the growth, as a multiple of the reset timeout.
    pub max_backoff_multiplier: u32,
    /// How long a probe may be out before its permit returns by itself, in ms (decision 8).
    pub probe_ttl_ms: u64,
    /// Failures of one connection closer together than this count once, in ms; 0 = off (decision 10).
    pub dedup_connection_ms: u64,
    /// Network faults of one provider closer together than this count once, in ms; 0 = off.
    pub dedup_provider_ms: u64,
}

/// A probe that is out: the one request admitted while half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Which attempt carries it.
    pub attempt: AttemptId,
    /// When the permit returns by itself.
    pub expires_at: Timestamp,
}

/// Where the breaker stands. `Open` becomes `HalfOpen` by time alone, but only an admission writes it
/// (`failure-state.md` §11.22); readers see it through [`Breaker::phase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerStatus {
    /// Admits.
    #[default]
    Closed,
    /// Admits; informational.
    Degraded,
    /// Rejects until the effective reset timeout after the last failure.
    Open,
    /// Admits one probe at a time.
    HalfOpen {
        /// The probe that is out, if any.
        probe: Option<Probe>,
    },
}

/// State of one provider's breaker (`failure-state.md` §1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Where it stands, as written.
    pub status: BreakerStatus,
    /// Failures less successes, never below 0.
    pub failure_count: u32,
    /// When the last counted failure happened.
    pub last_failure_at: Option<Timestamp>,
    /// Failed probes in a row.
    pub open_cycles: u32,
    /// When the last counted network fault happened (decision 10).
    pub last_network_failure_at: Option<Timestamp>,
    /// Outcomes of attempts decided before this change nothing (decision 9).
    pub epoch: Mark,
}
