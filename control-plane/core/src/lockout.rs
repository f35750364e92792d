//! Model lockout: state and policy.
use serde::{Deserialize, Serialize};

use crate::classify::Reason;
use crate::ids::ModelId;
use crate::time::Timestamp;
use crate::version::Mark;

/// Most locks one connection keeps; the one that ends first makes room (`architecture.md` §3, Shards).
pub const MAX_LOCKS: usize = 64;

/// Settings of the model lockout (`failure-state.md` §4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockoutPolicy {
    /// Failures of combo targets lock models. Other writers act regardless (decision 20).
    pub enabled: bool,
    /// Statuses that lock when enabled.
    pub error_codes: Vec<u16>,
    /// First step of the ladder, in ms.
    pub base_ms: u64,
    /// Longest lock that is not authoritative, in ms.
    pub max_ms: u64,
    /// Highest exponent of the ladder.
    pub max_backoff_steps: u32,
    /// Locks grow; otherwise each lasts the base.
    pub exponential: bool,
    /// Failures closer together than this plus the last lock's length escalate, in ms.
    pub window_ms: u64,
}

/// What a lock covers (`failure-state.md` §4.2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKey {
    /// A quota family of the provider, for example `codex` or `family:gemini`.
    Family(String),
    /// The bare model.
    Model(ModelId),
    /// Exactly this model; names are compared trimmed and in lower case.
    Exact(String),
}

/// One model or family that is locked on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLock {
    /// What is locked.
    pub key: LockKey,
    /// Locked while now is not later than this.
    pub until: Timestamp,
    /// Failures in the escalation window.
    pub failure_count: u32,
    /// When the last failure happened.
    pub last_failure_at: Timestamp,
    /// Length of the last lock, in ms; widens the escalation window.
    pub last_cooldown_ms: u64,
    /// Why.
    pub reason: Reason,
    /// When the lock was first set.
    pub locked_at: Timestamp,
    /// The last escalation that still stands (episode rule).
    pub escalated: Mark,
}
