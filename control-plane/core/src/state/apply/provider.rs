//! What an outcome does to the provider's breaker: whose verdict it is, what is vetoed, what is a duplicate
//! (`failure-state.md` §1.6, decisions 8 to 10).

use crate::breaker::{Breaker, BreakerPolicy, BreakerStatus};
use crate::outcome::Attempt;
use crate::time::Timestamp;

use super::Judged;

/// Whether the breaker takes note of how the attempt ended: it holds the probe, or it was decided in this epoch and
/// the breaker admits.
pub(super) fn hears(breaker: &Breaker, attempt: &Attempt) -> bool {
    if breaker.probe_holder() == Some(attempt.id) {
        return true;
    }
    let admits = match breaker.status {
        BreakerStatus::Open | BreakerStatus::HalfOpen { .. } => false,
        BreakerStatus::Closed | BreakerStatus::Degraded => true,
    };
    admits && breaker.epoch.seen_by(attempt.epoch)
}

/// Applies a judged outcome. `mark` is when the last counted failure of the same connection happened.
pub(super) fn outcome(
    breaker: &mut Breaker,
    mark: Option<&mut Option<Timestamp>>,
    judged: &Judged<'_>,
    policy: &BreakerPolicy,
) {
    if breaker.probe_holder() == Some(judged.attempt.id) {
        probe_verdict(breaker, mark, judged);
        return;
    }
    if !hears(breaker, judged.attempt) {
        return;
    }
    if judged.classification.success {
        breaker.record_success(judged.count, policy);
        clear_mark(mark, judged.at);
        return;
    }
    let of_connection = mark.as_deref().copied().flatten();
    let of_network = breaker.last_network_failure_at;
    if !counts(judged) || is_duplicate(of_connection, of_network, judged, policy) {
        return;
    }
    breaker.record_failure(judged.at, policy);
    move_marks(breaker, mark, judged);
}

/// The holder's outcome always gives the probe back; de-duplication does not apply, since there is one probe.
fn probe_verdict(breaker: &mut Breaker, mark: Option<&mut Option<Timestamp>>, judged: &Judged<'_>) {
    if judged.classification.success {
        breaker.probe_succeeded();
        clear_mark(mark, judged.at);
    } else if counts(judged) {
        breaker.probe_failed(judged.at);
        move_marks(breaker, mark, judged);
    } else {
        breaker.return_probe(judged.attempt.id);
    }
}

/// Whether the breaker counts the failure, duplicates aside. An unreachable egress proxy counts for combos
/// only; a combo that goes on to the same provider waits for what its next target says, except then.
fn counts(judged: &Judged<'_>) -> bool {
    let classification = judged.classification;
    if !classification.counts_for_breaker {
        return false;
    }
    if classification.is_proxy_unreachable() {
        return judged.combo;
    }
    !(judged.combo && judged.next_target_same_provider)
}

/// Whether the failure is told by one that was counted shortly before or after it, on the same connection or, for a
/// fault of the network, at the same provider (decision 10).
pub(super) fn is_duplicate(
    of_connection: Option<Timestamp>,
    of_network: Option<Timestamp>,
    judged: &Judged<'_>,
    policy: &BreakerPolicy,
) -> bool {
    let within = |counted: Option<Timestamp>, limit_ms| {
        counted.is_some_and(|at| apart_ms(at, judged.at) < limit_ms)
    };
    within(of_connection, policy.dedup_connection_ms)
        || (judged.classification.network && within(of_network, policy.dedup_provider_ms))
}

/// How far two events are apart; reports come in any order.
fn apart_ms(one: Timestamp, other: Timestamp) -> u64 {
    one.0.abs_diff(other.0)
}

fn move_marks(breaker: &mut Breaker, mark: Option<&mut Option<Timestamp>>, judged: &Judged<'_>) {
    if let Some(mark) = mark {
        *mark = (*mark).max(Some(judged.at));
    }
    if judged.classification.network {
        breaker.last_network_failure_at = breaker.last_network_failure_at.max(Some(judged.at));
    }
}

/// A success ends the failure it follows; one that was seen before the failure does not.
fn clear_mark(mark: Option<&mut Option<Timestamp>>, at: Timestamp) {
    if let Some(mark) = mark
        && mark.is_some_and(|last| last <= at)
    {
        *mark = None;
    }
}
