//! What earlier targets of the same pass rule out (`routing.md` §4).
//!
//! The sets live within one pass over the targets: a repeat of the list and a cooldown wait begin with empty
//! ones. Nothing is kept; they are derived from the attempts that the request carries along. Only the last
//! result of each target's account loop fills them (§5.0).
//!
//! One thing outlives a cooldown wait: an account that took its whole time for a model. It fills no set (§5.3, 2a) and
//! nothing cools because of it, so that after each wait for somebody else's account it would take its whole time again.

use std::collections::BTreeSet;

use crate::catalogue::Catalogue;
use crate::classify::{Classification, Reason};
use crate::config::{ComboTarget, Config};
use crate::ids::{ConnectionId, ModelId, ProviderId};
use crate::settings::RuleScope;

use super::terminal::is_expired;
use super::{AttemptsSoFar, PriorAttempt};

/// The three sets, the models whose context window was too small, and the accounts that took their whole time.
#[derive(Clone, Debug, Default)]
pub(super) struct Exhaustion<'a> {
    /// For these models.
    expired: BTreeSet<(&'a ConnectionId, &'a ModelId)>,
    /// The largest known window that was too small, in tokens.
    too_small: Option<u64>,
    connections: BTreeSet<&'a ConnectionId>,
    providers: BTreeSet<&'a ProviderId>,
    transient: BTreeSet<&'a ProviderId>,
    overflowed: BTreeSet<&'a ModelId>,
}

/// What one result adds to the sets, top to bottom of the table in §4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    Nothing,
    /// The connection, for a pinned target, else the whole provider.
    PinnedOrProvider,
    /// The connection that was used, pinned or not.
    Connection,
    /// The whole provider.
    Provider,
    /// The provider's accounts may be used although they cool down.
    Transient,
    /// Only targets of another model with a larger known window (decision 50).
    Overflow,
}

/// The effect of a result of a provider, and whether the target counts as exhausted, which also forbids a
/// retry on it.
pub(super) fn effect(classification: &Classification, per_model_quota: bool) -> (Effect, bool) {
    let Classification { status, reason, .. } = *classification;
    if is_input_bound(classification) {
        return (Effect::Overflow, false);
    }
    let of_this_request =
        classification.request_scoped || matches!(reason, Reason::Local | Reason::ClientFault);
    match status {
        _ if of_this_request => (Effect::Nothing, false),
        _ if classification.scope == Some(RuleScope::Provider) => (Effect::Provider, true),
        // The model is locked; other models of the provider are not concerned.
        _ if classification.scope == Some(RuleScope::Model) => (Effect::Nothing, true),
        // The cooldown filter stays active for the provider's other accounts (`routing.md` §4.3).
        _ if classification.is_connection_quota() => (Effect::Connection, true),
        401 | 403 => (Effect::PinnedOrProvider, true),
        _ if reason == Reason::QuotaExhausted && !per_model_quota => (Effect::Provider, true),
        429 => (Effect::Transient, false),
        500 if per_model_quota => (Effect::Nothing, false),
        408 | 500 | 502 | 503 | 504 | 524 => (Effect::PinnedOrProvider, false),
        _ => (Effect::Nothing, false),
    }
}

/// The input does not fit the model, so every account of it would say the same (`failure-state.md` §7.3,
/// context overflow). Other faults of a request's shape may be seen differently by another account.
pub(super) fn is_input_bound(classification: &Classification) -> bool {
    classification.status == 400
        && classification.reason == Reason::ModelCapacity
        && classification.request_scoped
        && !classification.account_fallback
}

impl<'a> Exhaustion<'a> {
    /// What a pass begins with that is numbered from `first` on: empty sets, and the accounts that took their whole time in
    /// a pass before it.
    pub(super) fn begin(so_far: &'a AttemptsSoFar, first: u32) -> Self {
        let expired = so_far
            .attempts
            .iter()
            .filter(|attempt| attempt.pass < first && is_expired(&attempt.classification))
            .map(|attempt| (&attempt.attempt.connection, &attempt.attempt.model))
            .collect();
        Self {
            expired,
            ..Self::default()
        }
    }

    /// Takes in the last result of a target.
    pub(super) fn add(&mut self, target: &'a ComboTarget, last: &'a PriorAttempt, config: &Config) {
        let per_model_quota = config.provider(&target.provider).is_some_and(|entry| {
            let connection = config.connection(&last.attempt.connection);
            entry
                .policy
                .keeps_quota_per_model(connection.map(AsRef::as_ref))
        });
        match effect(&last.classification, per_model_quota).0 {
            Effect::Nothing => {}
            Effect::PinnedOrProvider => match &target.connection {
                Some(connection) => {
                    self.connections.insert(connection);
                }
                None => {
                    self.providers.insert(&target.provider);
                }
            },
            Effect::Connection => {
                self.connections.insert(&last.attempt.connection);
            }
            Effect::Provider => {
                self.providers.insert(&target.provider);
            }
            Effect::Transient => {
                self.transient.insert(&target.provider);
            }
            Effect::Overflow => {
                self.overflowed.insert(&target.model);
                let window = config
                    .catalogue
                    .get(&target.provider, &target.model)
                    .context_window;
                self.too_small = self.too_small.max(window);
            }
        }
    }

    /// Every target of the provider is ruled out, or the input is not known to fit this one.
    pub(super) fn rules_out_target(&self, target: &ComboTarget, catalogue: &Catalogue) -> bool {
        self.providers.contains(&target.provider) || self.is_too_small(target, catalogue)
    }

    /// The input was too large for a model, and this one is the same or not known to be larger.
    pub(super) fn is_too_small(&self, target: &ComboTarget, catalogue: &Catalogue) -> bool {
        if self.overflowed.is_empty() {
            return false;
        }
        let window = catalogue
            .get(&target.provider, &target.model)
            .context_window;
        // An unknown window is smaller than every known one.
        self.overflowed.contains(&target.model) || window <= self.too_small
    }

    /// The connection is ruled out for this model.
    pub(super) fn rules_out_connection(&self, connection: &ConnectionId, model: &ModelId) -> bool {
        self.connections.contains(connection) || self.expired.contains(&(connection, model))
    }

    /// An account of the target may be chosen although it cools down. Not for a pinned target, whose own
    /// connection would be asked again before its time (`routing.md` §3, gate 3).
    pub(super) fn relaxes_cooldown(&self, target: &ComboTarget) -> bool {
        target.connection.is_none() && self.transient.contains(&target.provider)
    }
}
