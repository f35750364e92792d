//! What ends a request before its targets are used up.
//!
//! | what | ends with |
//! |---|---|
//! | a fault of the client's own (decision 50), a client that left | that failure |
//! | an input that no remaining target is known to have room for | that failure |
//! | the same fault of the request's shape at several targets in a row (`routing.md` §5.5) | that failure |
//! | a protected target that failed for another reason than its quota (§5.7) | its failure |

use crate::classify::{Classification, Reason};
use crate::config::{ComboTarget, Strategy};

use super::PriorAttempt;
use super::accounts::Scene;
use super::driver::position;
use super::exhaustion::{Exhaustion, is_input_bound};
use super::progress::results;

/// So many targets in a row that find the same fault in the shape of a request are believed (`routing.md` §16 leaves the
/// number open).
const SAME_FAULTS: usize = 3;

/// The request ends with its last failure, whatever targets are left.
pub(super) fn ends_request(scene: &Scene<'_>, last: &PriorAttempt) -> bool {
    let Classification { status, reason, .. } = last.classification;
    if status == 499 || reason == Reason::ClientFault {
        return true;
    }
    let of_pass = |attempt: &&PriorAttempt| attempt.pass == last.pass;
    let pass = || scene.input.so_far.attempts.iter().rev().take_while(of_pass);
    if !is_input_bound(&last.classification) {
        return false;
    }
    let (config, targets) = (scene.input.config, &scene.route.targets);
    let mut exhaustion = Exhaustion::default();
    for result in pass() {
        if let Some(target) = targets.get(position(result)) {
            exhaustion.add(target, result, config);
        }
    }
    let is_tried = |index: usize| pass().any(|attempt| position(attempt) == index);
    targets.iter().enumerate().all(|(index, target)| {
        exhaustion.is_too_small(target, &config.catalogue) || is_tried(index)
    })
}

/// Several targets in a row found the same fault in the shape of the request. An input that is too large for a model is
/// none: a larger model may take it (decision 50), and [`ends_request`] knows whether one is left.
pub(super) fn is_same_fault(attempts: &[PriorAttempt]) -> bool {
    let faults: Vec<&Classification> = results(attempts)
        .map(|result| &result.classification)
        .collect();
    let Some(last) = faults.last() else {
        return false;
    };
    let streak = faults.iter().rev().take_while(|fault| {
        fault.status == 400
            && fault.request_scoped
            && fault.reason == last.reason
            && !is_input_bound(fault)
    });
    streak.count() >= SAME_FAULTS
}

/// The walk may not go on from this target after these attempts at it.
pub(super) fn is_protected(
    strategy: Strategy,
    target: &ComboTarget,
    attempts: &[PriorAttempt],
) -> bool {
    strategy == Strategy::Priority
        && target.fallback_only_on_quota_exhaustion
        && !attempts.iter().all(|attempt| {
            matches!(
                attempt.classification.reason,
                Reason::QuotaExhausted | Reason::Credits
            )
        })
}
