//! Whether a dispatch needs a permit of its connection, and what follows when there is none (`routing.md` §11.4, §8.3,
//! decision 44).
//!
//! | strategy | no permit is free |
//! |---|---|
//! | `quota-share` | another target that has one; else wait, and in the end go on without |
//! | `round-robin` | another target that has one; else wait, and in the end another target |
//! | any other, and requests that name no combo | another target that has one; else wait, and in the end be refused (`sessions-and-streams.md` §3.1) |
//! | `fusion` and `pipeline`: members of a panel, and steps | another account that has one; no wait ([`plan::never_waits`]) |

use crate::config::{ComboConfig, Config, Connection, Strategy};
use crate::permit;

use super::plan;
use super::resolve::Route;
use super::{Rejection, RequestFacts};

/// Terminal reason, and code unless the request waited, where full accounts are all that is left.
pub(super) const ALL_FULL: &str = "concurrency_cap";
const QUEUE_FULL: &str = "SEMAPHORE_QUEUE_FULL";
const WAIT_TIMEOUT: &str = "SEMAPHORE_TIMEOUT";
const QUEUE_DEPTH: u32 = 20;
const QUEUE_TIMEOUT_MS: u64 = 30_000;
/// Largest `queueDepth`.
pub const MAX_QUEUE_DEPTH: u32 = 100;
/// Longest `queueTimeoutMs`.
pub const MAX_QUEUE_TIMEOUT_MS: u64 = 600_000;

/// A permit that must be taken before an attempt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitDemand {
    /// Most permits of the connection in the fleet.
    pub cap: u32,
    /// What follows when all are out.
    pub policy: PermitPolicy,
}

/// What follows when a connection's permits are all out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitPolicy {
    /// It is skipped.
    Skip,
    /// It is skipped, and waited for when nothing else is left; in vain: it stays skipped.
    WaitThenSkip(PermitQueue),
    /// It is skipped, and waited for when nothing else is left; in vain: the request is refused.
    WaitThenRefuse(PermitQueue),
    /// It is skipped, and waited for when nothing else is left; in vain: the attempt is sent without a permit.
    WaitThenSend(PermitQueue),
}

/// How long and with how many others a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitQueue {
    /// Most that wait for one connection in the fleet; 0 = never wait.
    pub depth: u32,
    /// Longest wait, in ms.
    pub timeout_ms: u64,
}

/// How a wait for a permit ended that was in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// As many waited as may, wherever it would have waited.
    QueueFull,
    /// None came free in time.
    TimedOut,
}

impl Rejection {
    /// The answer to a request that waited at the gate of an account, where full accounts are all that is left: its code
    /// says how the wait ended (`sessions-and-streams.md` §3.1). Status, Retry-After and terminal reason stay.
    #[must_use]
    pub fn after_wait(mut self, end: WaitEnd) -> Self {
        if self.terminal_reason != ALL_FULL {
            return self;
        }
        let (code, words) = match end {
            WaitEnd::QueueFull => (QUEUE_FULL, "as many requests wait for it as may"),
            WaitEnd::TimedOut => (WAIT_TIMEOUT, "none of them ended in time"),
        };
        code.clone_into(&mut self.code);
        self.message = format!("{}; {words}", self.message);
        self
    }
}

impl PermitPolicy {
    /// The queue, where there is one.
    #[must_use]
    pub fn queue(self) -> Option<PermitQueue> {
        match self {
            Self::Skip => None,
            Self::WaitThenSkip(queue) | Self::WaitThenRefuse(queue) | Self::WaitThenSend(queue) => {
                Some(queue)
            }
        }
    }
}

impl PermitQueue {
    fn of(config: &ComboConfig) -> Self {
        Self {
            depth: config
                .queue_depth
                .unwrap_or(QUEUE_DEPTH)
                .min(MAX_QUEUE_DEPTH),
            timeout_ms: config
                .queue_timeout_ms
                .unwrap_or(QUEUE_TIMEOUT_MS)
                .min(MAX_QUEUE_TIMEOUT_MS),
        }
    }
}

/// What a dispatch of this route to this connection needs.
pub(super) fn demand(
    config: &Config,
    facts: &RequestFacts,
    route: &Route<'_>,
    connection: &Connection,
) -> Option<PermitDemand> {
    let cap = permit::cap(connection)?;
    let queue = PermitQueue::of(route.config);
    let policy = match (route.combo, route.strategy) {
        (Some(_), Strategy::QuotaShare) => {
            if !config.settings.quota_share_concurrency_limit.enabled {
                return None;
            }
            PermitPolicy::WaitThenSend(queue)
        }
        _ if plan::never_waits(route, facts) => PermitPolicy::Skip,
        (Some(_), Strategy::RoundRobin) => PermitPolicy::WaitThenSkip(queue),
        (Some(_) | None, _) if queue.depth > 0 => PermitPolicy::WaitThenRefuse(queue),
        (Some(_) | None, _) => PermitPolicy::Skip,
    };
    Some(PermitDemand { cap, policy })
}
