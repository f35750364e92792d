//! What an outcome does to the lock of the identity that it left under (`failure-state.md` §6, decision 23).

use crate::config::Connection;
use crate::egress::{EgressLock, EgressLocks};
use crate::settings::ProviderPolicy;
use crate::state::{ConnectionState, TransitionKind};

use super::{Judged, Log};

/// Locks the identity until the failing connection can be used again. To be called after the outcome was applied to
/// the connection. Says whether the locks changed.
pub(super) fn outcome(
    locks: &mut EgressLocks,
    config: &Connection,
    state: &ConnectionState,
    judged: &Judged<'_>,
    policy: &ProviderPolicy,
    log: &mut Log<'_>,
) -> bool {
    if judged.classification.success {
        // It ends no lock that runs, but nobody else would take away those that have passed.
        return locks.drop_passed(judged.at);
    }
    let classification = judged.classification;
    let bucketed = !policy.egress_family.is_empty() && !config.disable_cooling;
    if !bucketed || !classification.limits_egress() || state.terminal.is_some() {
        return false;
    }
    let (Some(egress), Some(until)) = (&judged.attempt.egress, state.cooldown.until) else {
        return false;
    };
    if !locks.reset.seen_by(judged.attempt.decided_on) {
        return false;
    }
    let lock = EgressLock {
        egress: egress.clone(),
        until,
        reason: classification.reason,
    };
    let before = locks.clone();
    if locks.lock(lock, judged.at) {
        log.provider(TransitionKind::EgressLock {
            egress: egress.clone(),
            until,
            reason: classification.reason,
        });
    }
    before != *locks
}
