//! The join of two states of one value: a later end, a terminal state, a higher epoch and a larger count win.
//!
//! Each part is joined by the larger under some order, so that the whole is associative, commutative and
//! idempotent. Parts that make sense only together are compared together: a breaker within its epoch, what a
//! credential caused within its version, an end with its reason.

use std::cmp::Ordering;

use crate::breaker::{Breaker, BreakerStatus, Probe};
use crate::classify::{Origin, Reason, TerminalKind};
use crate::cooldown::{Cooldown, LastError, RefusalStreak, Terminal};
use crate::egress::EgressLocks;
use crate::gate::{ConnectionGate, ProviderGate};
use crate::ids::AttemptId;
use crate::lockout::{MAX_LOCKS, ModelLock};
use crate::time::Timestamp;
use crate::version::{Mark, Version};

use super::super::{ConnectionState, LeaseMirror, ProviderState, StateValue};

/// Joins two states of one value. Values of different kinds never meet under one key; the first stands.
pub(super) fn join(one: &StateValue, other: &StateValue) -> StateValue {
    match (one, other) {
        (StateValue::Provider(one), StateValue::Provider(other)) => {
            StateValue::Provider(ProviderState {
                breaker: breaker(&one.breaker, &other.breaker),
                gate: provider_gate(&one.gate, &other.gate),
                egress_locks: egress_locks(&one.egress_locks, &other.egress_locks),
            })
        }
        (StateValue::Connection(one), StateValue::Connection(other)) => {
            StateValue::Connection(connection(one, other))
        }
        (StateValue::Provider(_), StateValue::Connection(_))
        | (StateValue::Connection(_), StateValue::Provider(_)) => one.clone(),
    }
}

fn mark_order(mark: Mark) -> (u8, Version) {
    match mark {
        Mark::Never => (0, Version::default()),
        Mark::At(version) => (1, version),
        Mark::ThisWrite => (2, Version::default()),
    }
}

/// Within an epoch and a cycle a breaker only moves in this order; a probe that expires later is the later one.
fn status_order(status: BreakerStatus) -> (u8, Option<(Timestamp, AttemptId)>) {
    let probe_order = |probe: Probe| (probe.expires_at, probe.attempt);
    match status {
        BreakerStatus::Closed => (0, None),
        BreakerStatus::Degraded => (1, None),
        BreakerStatus::Open => (2, None),
        BreakerStatus::HalfOpen { probe } => (3, probe.map(probe_order)),
    }
}

fn breaker(one: &Breaker, other: &Breaker) -> Breaker {
    let order = |breaker: &Breaker| (mark_order(breaker.epoch), breaker.open_cycles);
    if order(one) != order(other) {
        let newer = if order(one) > order(other) {
            one
        } else {
            other
        };
        return newer.clone();
    }
    let status = if status_order(one.status) >= status_order(other.status) {
        one.status
    } else {
        other.status
    };
    Breaker {
        status,
        failure_count: one.failure_count.max(other.failure_count),
        last_failure_at: one.last_failure_at.max(other.last_failure_at),
        open_cycles: one.open_cycles,
        last_network_failure_at: one
            .last_network_failure_at
            .max(other.last_network_failure_at),
        epoch: one.epoch,
    }
}

/// Of two gates the one that was reset last; of one life all failures that no success of either ended.
fn provider_gate(one: &ProviderGate, other: &ProviderGate) -> ProviderGate {
    let order = |gate: &ProviderGate| mark_order(gate.reset);
    if order(one) != order(other) {
        let newer = if order(one) > order(other) {
            one
        } else {
            other
        };
        return newer.clone();
    }
    let emptied_at = one.emptied_at.max(other.emptied_at);
    let mut failures = one.failures.union(&other.failures);
    if let Some(emptied_at) = emptied_at {
        failures.drop_until(emptied_at);
    }
    let (held, held_for_ms) = (one.held, one.held_for_ms).max((other.held, other.held_for_ms));
    ProviderGate {
        failures,
        emptied_at,
        last_network_failure_at: one
            .last_network_failure_at
            .max(other.last_network_failure_at),
        cooled: one.cooled.max(other.cooled),
        held,
        held_for_ms,
        reset: one.reset,
    }
}

/// Of two lists the one that was reset last; of one life all locks.
fn egress_locks(one: &EgressLocks, other: &EgressLocks) -> EgressLocks {
    match mark_order(one.reset).cmp(&mark_order(other.reset)) {
        Ordering::Greater => one.clone(),
        Ordering::Less => other.clone(),
        Ordering::Equal => one.union(other),
    }
}

fn connection_gate(one: &ConnectionGate, other: &ConnectionGate) -> ConnectionGate {
    ConnectionGate {
        failures: one.failures.max(other.failures),
        cooled: one.cooled.max(other.cooled),
        last_failure_at: one.last_failure_at.max(other.last_failure_at),
        last_counted_at: one.last_counted_at.max(other.last_counted_at),
        escalated: one.escalated.max(other.escalated),
    }
}

fn connection(one: &ConnectionState, other: &ConnectionState) -> ConnectionState {
    let mut joined = if one.credential_version >= other.credential_version {
        one.clone()
    } else {
        other.clone()
    };
    if one.credential_version == other.credential_version {
        joined.cooldown = cooldown(&one.cooldown, &other.cooldown);
        joined.terminal = one
            .terminal
            .as_ref()
            .max_by(other.terminal.as_ref(), terminal_order);
        joined.last_error = one
            .last_error
            .as_ref()
            .max_by(other.last_error.as_ref(), error_order);
        joined.refusals = refusals(&one.refusals, &other.refusals);
        joined.gate = connection_gate(&one.gate, &other.gate);
    }
    joined.last_counted_failure_at = one
        .last_counted_failure_at
        .max(other.last_counted_failure_at);
    joined.locks = locks(&one.locks, &other.locks);
    joined.lease = LeaseMirror::later(one.lease.as_ref(), other.lease.as_ref()).cloned();
    joined
}

/// The larger of two optional things under an order; something is larger than nothing.
trait MaxBy<T> {
    fn max_by<K: Ord>(self, other: Self, order: fn(&T) -> K) -> Option<T>;
}

impl<T: Clone> MaxBy<T> for Option<&T> {
    fn max_by<K: Ord>(self, other: Self, order: fn(&T) -> K) -> Option<T> {
        let larger = if self.map(order) >= other.map(order) {
            self
        } else {
            other
        };
        larger.cloned()
    }
}

fn terminal_order(terminal: &Terminal) -> (u64, Timestamp, TerminalKind, bool) {
    (
        terminal.credential_version,
        terminal.since,
        terminal.kind,
        terminal.switched_off,
    )
}

fn error_order(error: &LastError) -> (Timestamp, u16, Reason, Option<Origin>) {
    (error.at, error.status, error.reason, error.origin.clone())
}

fn cooldown(one: &Cooldown, other: &Cooldown) -> Cooldown {
    let (until, reason, origin) =
        (one.until, one.reason, &one.origin).max((other.until, other.reason, &other.origin));
    Cooldown {
        until,
        backoff_level: one.backoff_level.max(other.backoff_level),
        reason,
        origin: origin.clone(),
        escalated: one.escalated.max(other.escalated),
        changed: one.changed.max(other.changed),
    }
}

fn refusals(one: &RefusalStreak, other: &RefusalStreak) -> RefusalStreak {
    RefusalStreak {
        count: one.count.max(other.count),
        last_at: one.last_at.max(other.last_at),
        escalated: one.escalated.max(other.escalated),
    }
}

/// All locks of both, in the order of their keys; of too many those that end last.
fn locks(one: &[ModelLock], other: &[ModelLock]) -> Vec<ModelLock> {
    let mut all: std::collections::BTreeMap<&crate::lockout::LockKey, ModelLock> =
        std::collections::BTreeMap::new();
    for found in one.iter().chain(other) {
        all.entry(&found.key)
            .and_modify(|kept| *kept = lock(kept, found))
            .or_insert_with(|| found.clone());
    }
    let mut kept: Vec<ModelLock> = all.into_values().collect();
    if kept.len() > MAX_LOCKS {
        kept.sort_by(|one, other| (other.until, &other.key).cmp(&(one.until, &one.key)));
        kept.truncate(MAX_LOCKS);
        kept.sort_by(|one, other| one.key.cmp(&other.key));
    }
    kept
}

fn lock(one: &ModelLock, other: &ModelLock) -> ModelLock {
    let (until, reason, origin) =
        (one.until, one.reason, &one.origin).max((other.until, other.reason, &other.origin));
    ModelLock {
        key: one.key.clone(),
        until,
        failure_count: one.failure_count.max(other.failure_count),
        last_failure_at: one.last_failure_at.max(other.last_failure_at),
        last_cooldown_ms: one.last_cooldown_ms.max(other.last_cooldown_ms),
        reason,
        origin: origin.clone(),
        locked_at: one.locked_at.min(other.locked_at),
        escalated: one.escalated.max(other.escalated),
        changed: one.changed.max(other.changed),
    }
}
