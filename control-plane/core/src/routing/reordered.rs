//! A request whose configuration changed while it was under way.
//!
//! What a request carries along names targets by their position in the list of its combo. Another version of the document
//! may list others at these positions, so the order that was made under it is worth nothing: the targets are put in order
//! anew, and nobody pays or takes a turn for that a second time. What was tried already counts as tried where it is
//! found again, by provider, model and account.
//!
//! Version 0 is that of a data plane that does not tell: its positions are taken as they are.

use std::borrow::Cow;

use crate::config::ComboTarget;

use super::emergency::is_emergency;
use super::resolve::Route;
use super::{AttemptsSoFar, Input, PriorAttempt};

/// What stands for the position of a target that was in the list of another configuration.
pub const UNKNOWN_TARGET: u32 = u32::MAX - 1;

impl AttemptsSoFar {
    /// Takes over the order of a dispatch that was decided on this version of the configuration. Positions that belong to
    /// another one are forgotten.
    pub fn follow(&mut self, order: Vec<u32>, version: u64) {
        let is_other = is_other(self.order_version, version);
        if is_other {
            for prior in &mut self.attempts {
                if !is_emergency(prior) {
                    prior.target = UNKNOWN_TARGET;
                }
            }
        }
        if is_other || self.order.is_empty() {
            self.order = order;
        }
        self.order_version = version;
    }
}

/// Whether the order of the request was made under another version of the configuration, and attempts were made in it.
pub(super) fn is_stale(input: &Input<'_>) -> bool {
    let so_far = input.so_far;
    !so_far.attempts.is_empty() && is_other(so_far.order_version, input.config.version)
}

fn is_other(known: u64, version: u64) -> bool {
    known != 0 && known != version
}

/// What happened to the request, with the positions of this configuration.
pub(super) fn found_again<'a>(input: &Input<'a>, route: &Route<'_>) -> Cow<'a, AttemptsSoFar> {
    let so_far = input.so_far;
    let is_other = is_other(so_far.order_version, input.config.version);
    let is_lost =
        |prior: &PriorAttempt| !is_emergency(prior) && (is_other || prior.target == UNKNOWN_TARGET);
    if !is_other && !so_far.attempts.iter().any(is_lost) {
        return Cow::Borrowed(so_far);
    }
    let mut found = so_far.clone();
    if is_other {
        found.order.clear();
    }
    for prior in found.attempts.iter_mut().filter(|prior| is_lost(prior)) {
        prior.target = position(&route.targets, prior);
    }
    Cow::Owned(found)
}

/// The target that is pinned to the account of the attempt, else the first that stands for all accounts.
fn position(targets: &[ComboTarget], prior: &PriorAttempt) -> u32 {
    let attempt = &prior.attempt;
    let find = |is_pinned: bool| {
        let account = is_pinned.then_some(&attempt.connection);
        targets.iter().position(|target| {
            target.provider == attempt.provider
                && target.model == attempt.model
                && target.connection.as_ref() == account
        })
    };
    find(true)
        .or_else(|| find(false))
        .and_then(|position| u32::try_from(position).ok())
        .unwrap_or(UNKNOWN_TARGET)
}
