//! Connection cooldown and terminal states: state and policy.
use serde::{Deserialize, Serialize};

use crate::classify::{Reason, TerminalKind};
use crate::time::Timestamp;
use crate::version::Mark;

/// Numbers of the connection cooldown (`failure-state.md` §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooldownPolicy {
    /// First step of the ladder, in ms.
    pub base_ms: u64,
    /// Highest level of the ladder.
    pub max_backoff_steps: u32,
    /// Longest step, in ms.
    pub cap_ms: u64,
    /// Retry hints of the upstream are used.
    pub trust_hints: bool,
}

/// A connection's cooldown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cooldown {
    /// Not selectable before this. It stays after it has passed, until a success.
    pub until: Option<Timestamp>,
    /// Exponent of the ladder.
    pub backoff_level: u32,
    /// Why it cools.
    pub reason: Option<Reason>,
    /// The last escalation that still stands (episode rule, decision 9).
    pub escalated: Mark,
}

/// A terminal state: ended by an operator or new credentials only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Which.
    pub kind: TerminalKind,
    /// Since when.
    pub since: Timestamp,
    /// The credential it was observed with; another credential is not affected.
    pub credential_version: u64,
}

/// The last error seen on a connection, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// HTTP status after restatement.
    pub status: u16,
    /// What it meant.
    pub reason: Reason,
    /// When it was seen.
    pub at: Timestamp,
}

/// Refusals in a row of an account as such (`failure-state.md` §3.9, request_rejected streak).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStreak {
    /// Counted refusals.
    pub count: u32,
    /// When the last one was counted.
    pub last_at: Timestamp,
    /// The escalation that still stands (episode rule).
    pub escalated: Mark,
}
