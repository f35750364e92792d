//! The opt-in provider cooldown gate (`failure-state.md` §2).
//!
//! It remembers across requests what a combo should leave alone for a while. A *provider* cools when enough
//! failures fall into a sliding window (§2.1); each of its *connections* has an entry of its own that cools for
//! longer with each failure in a row (§2.2). Only the resolution of a combo's targets looks at either.
//!
//! Beside what it counts, a provider may be *held* until a moment that somebody stated: that is what a rule with
//! scope `provider` does, and it acts also where counting is off (decision 18).
//!
//! Reports come late, twice and in any order, so everything here compares when things happened. While the provider
//! cools, a failure changes nothing: it does not extend, it does not enter the window, and nothing is written.
//! Afterwards the window is as it was, so that one more failure in a window still full cools again. A success
//! empties the window up to when it was seen; the cooldown itself ends by time or by an operator.
//!
//! Which outcomes count, and which of them are duplicates, is decided before ([`crate::state::apply`]).

mod times;

use serde::{Deserialize, Serialize};

use crate::classify::Reason;
use crate::time::Timestamp;
use crate::version::{Mark, Version};

pub use times::{FailureTimes, MAX_FAILURE_TIMES};

/// An entry of a connection is forgotten after this long without a failure, in ms, or after its longest cooldown
/// if that is longer (`failure-state.md` §2.2).
pub const ENTRY_MEMORY_MS: u64 = 1_800_000;

/// Numbers of the gate (`failure-state.md` §2.1, §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatePolicy {
    /// Failures are counted and what they caused is looked at.
    pub enabled: bool,
    /// Failures within the window that cool the provider, 1..=[`MAX_FAILURE_TIMES`].
    pub failure_threshold: u32,
    /// Length of the window, in ms.
    pub failure_window_ms: u64,
    /// How long the provider cools, in ms.
    pub cooldown_ms: u64,
    /// First cooldown of a connection, in ms.
    pub min_retry_cooldown_ms: u64,
    /// Longest cooldown of a connection, in ms.
    pub max_retry_cooldown_ms: u64,
}

/// An end and why it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GateEnd {
    /// Not used by combos before this.
    pub until: Timestamp,
    /// Why.
    pub reason: Reason,
}

/// The gate of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderGate {
    /// When the failures in the window happened.
    pub failures: FailureTimes,
    /// A failure seen no later than this is of a time that a success has ended.
    pub emptied_at: Option<Timestamp>,
    /// When the last network fault happened that was counted here (decision 10).
    pub last_network_failure_at: Option<Timestamp>,
    /// What the failures caused. It stays after it has passed, until a success.
    pub cooled: Option<GateEnd>,
    /// What a rule asked for; acts also where counting is off.
    pub held: Option<GateEnd>,
    /// How long what it asked for was, in ms; absent in values written before it was kept.
    pub held_for_ms: u64,
    /// The last reset by an operator; outcomes of attempts decided before it change nothing.
    pub reset: Mark,
}

/// The gate's entry of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionGate {
    /// Failures in a row, each of an episode of its own.
    pub failures: u32,
    /// What the last of them caused. It stays after it has passed, until a success.
    pub cooled: Option<GateEnd>,
    /// When the last of them happened.
    pub last_failure_at: Option<Timestamp>,
    /// When the last failure happened that was counted in the provider's window (decision 10).
    pub last_counted_at: Option<Timestamp>,
    /// The escalation that still stands (episode rule, decision 9).
    pub escalated: Mark,
}

impl GatePolicy {
    /// How long a connection cools after so many failures in a row, in ms:
    /// `min(first · 2^(failures − 1), longest)`. Saturates.
    #[must_use]
    pub fn connection_cooldown_ms(&self, failures: u32) -> u64 {
        crate::cooldown::ladder_ms(
            self.min_retry_cooldown_ms,
            failures.saturating_sub(1),
            u32::MAX,
            self.max_retry_cooldown_ms,
        )
    }

    /// How long an entry of a connection is remembered after its last failure, in ms.
    #[must_use]
    pub fn entry_memory_ms(&self) -> u64 {
        ENTRY_MEMORY_MS.max(self.max_retry_cooldown_ms)
    }
}

impl GateEnd {
    /// Whether it has not passed at `now`.
    #[must_use]
    pub fn is_running(&self, now: Timestamp) -> bool {
        self.until > now
    }
}

impl ProviderGate {
    /// Why and until when combos leave the provider alone at `now`, if they do; of two ends the later.
    #[must_use]
    pub fn end(&self, now: Timestamp, policy: &GatePolicy) -> Option<GateEnd> {
        let counted = self.cooled.filter(|_| policy.enabled);
        counted.max(self.held).filter(|end| end.is_running(now))
    }

    /// Failures in the window that ends at `now`.
    #[must_use]
    pub fn failures_in_window(&self, now: Timestamp, policy: &GatePolicy) -> usize {
        self.failures
            .count_after(now.minus_ms(policy.failure_window_ms))
    }

    /// Counts a failure that happened at `at`. Says whether anything changed.
    pub fn record_failure(&mut self, at: Timestamp, reason: Reason, policy: &GatePolicy) -> bool {
        let cooling = self.cooled.is_some_and(|end| end.is_running(at));
        if cooling || self.emptied_at.is_some_and(|emptied| at <= emptied) {
            return false;
        }
        let threshold = usize::try_from(policy.failure_threshold.max(1)).unwrap_or(usize::MAX);
        // A failure reported late completes the window that ends with the newest one.
        let newest = self.failures.newest().map_or(at, |newest| newest.max(at));
        let begin = newest.minus_ms(policy.failure_window_ms);
        if at <= begin || !self.failures.insert(at, threshold) {
            return false;
        }
        self.failures.drop_until(begin);
        if self.failures.len() >= threshold {
            let until = newest.plus_ms(policy.cooldown_ms);
            self.cooled = self.cooled.max(Some(GateEnd { until, reason }));
        }
        true
    }

    /// Empties the window up to a success seen at `at`, and drops ends that have passed by then. A running end
    /// stays. Says whether anything changed.
    pub fn record_success(&mut self, at: Timestamp) -> bool {
        let emptied = self.failures.drop_until(at);
        if emptied {
            self.emptied_at = self.emptied_at.max(Some(at));
        }
        let passed = |end: &Option<GateEnd>| end.is_some_and(|end| !end.is_running(at));
        let mut changed = emptied;
        for end in [&mut self.cooled, &mut self.held] {
            if passed(end) {
                *end = None;
                changed = true;
            }
        }
        if self.held.is_none() {
            self.held_for_ms = 0;
        }
        changed
    }

    /// Holds the provider for so many ms after a failure at `at`. While it is held a further failure moves the end
    /// only for a longer length than the one that set it (§2.1). Says whether anything changed.
    pub fn hold(&mut self, at: Timestamp, length_ms: u64, reason: Reason) -> bool {
        let until = at.plus_ms(length_ms);
        if let Some(held) = self.held {
            let same_hold = held.is_running(at) && length_ms <= self.held_for_ms;
            if same_hold || held.until >= until {
                return false;
            }
        }
        self.held = Some(GateEnd { until, reason });
        self.held_for_ms = length_ms;
        true
    }

    /// An operator's reset: everything is forgotten, also what attempts under way will report.
    pub fn clear(&mut self) {
        *self = Self {
            reset: Mark::ThisWrite,
            ..Self::default()
        };
    }

    /// Whether nothing here influences a decision and a success has nothing to clear.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.cooled.is_none() && self.held.is_none()
    }

    /// After this moment nothing here can be read any more; `None` when that is so already.
    pub(crate) fn matters_until(&self, policy: &GatePolicy) -> Option<Timestamp> {
        let window = self
            .failures
            .newest()
            .map(|newest| newest.plus_ms(policy.failure_window_ms));
        let ends = [self.cooled, self.held].into_iter().flatten();
        ends.map(|end| end.until).chain(window).max()
    }
}

impl ConnectionGate {
    /// Why and until when combos leave the connection alone at `now`, if they do.
    #[must_use]
    pub fn end(&self, now: Timestamp, policy: &GatePolicy) -> Option<GateEnd> {
        self.cooled
            .filter(|end| policy.enabled && end.is_running(now))
    }

    /// Counts a failure that happened at `at` to an attempt decided on `decided_on`. While the entry cools, and
    /// for an attempt decided before it did, it is the same episode and changes nothing. Says whether it counted.
    pub fn record_failure(
        &mut self,
        at: Timestamp,
        decided_on: Version,
        reason: Reason,
        policy: &GatePolicy,
    ) -> bool {
        let cooling = self.cooled.is_some_and(|end| end.is_running(at));
        if cooling || !self.escalated.seen_by(decided_on) {
            return false;
        }
        if self.forgotten_at(policy).is_some_and(|end| end <= at) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        let length_ms = policy.connection_cooldown_ms(self.failures);
        self.cooled = Some(GateEnd {
            until: at.plus_ms(length_ms),
            reason,
        });
        self.last_failure_at = Some(at);
        self.escalated = Mark::ThisWrite;
        true
    }

    /// A success seen at `at` of an attempt decided on `decided_on` ends the row of failures it knew of.
    pub fn record_success(&mut self, at: Timestamp, decided_on: Version) {
        if self.last_counted_at.is_some_and(|counted| counted <= at) {
            self.last_counted_at = None;
        }
        if self.escalated.seen_by(decided_on) {
            self.failures = 0;
            self.cooled = None;
            self.last_failure_at = None;
        }
    }

    /// Whether nothing here influences a decision and a success has nothing to clear.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failures == 0 && self.cooled.is_none() && self.last_counted_at.is_none()
    }

    /// When the row of failures is forgotten, if there is one; no earlier than its cooldown ends.
    pub(crate) fn forgotten_at(&self, policy: &GatePolicy) -> Option<Timestamp> {
        let failed_at = self.last_failure_at?;
        Some(failed_at.plus_ms(policy.entry_memory_ms()))
    }
}
