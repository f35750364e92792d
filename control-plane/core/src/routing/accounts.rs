//! The accounts of a target and the choice among them (`routing.md` §5.0, decision 25).
//!
//! `fill-first` takes the first account by priority number that no gate excludes; a provider's connections are
//! kept in that order, so a healthy choice looks at one account.

use std::sync::Arc;

use crate::breaker::{Breaker, Phase};
use crate::config::{ComboTarget, Connection, ProviderEntry};
use crate::egress::{self, EgressLock};
use crate::ids::ConnectionId;
use crate::state::{ConnectionState, ProviderState};
use crate::time::Timestamp;

use super::exclusion::Exclusions;
use super::exhaustion::Exhaustion;
use super::gates::{self, Candidate, Hit};
use super::private_view::PrivateView;
use super::resolve::Route;
use super::{Exclusion, ExclusionReason, Input};

/// What is the same for all targets of a decision.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    /// The decision's input.
    pub(super) input: &'a Input<'a>,
    /// What the request named.
    pub(super) route: &'a Route<'a>,
    /// The view with the request's own failures.
    pub(super) view: &'a PrivateView<'a>,
}

/// What the request did before, as far as it bears on one target.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    /// What earlier targets rule out.
    pub(super) exhaustion: &'a Exhaustion<'a>,
    /// Accounts tried in this round of the target.
    pub(super) tried: &'a [&'a ConnectionId],
    /// This is a retry on the same target, which respects cooldowns even where earlier targets relaxed them: its
    /// own failure began one.
    pub(super) retry: bool,
}

impl<'a> Past<'a> {
    /// Of a target that was not tried yet in this pass.
    pub(super) fn of_fresh_target(exhaustion: &'a Exhaustion<'a>) -> Self {
        Self {
            exhaustion,
            tried: &[],
            retry: false,
        }
    }
}

/// An account that may be used.
#[derive(Clone, Debug)]
pub(super) struct Account<'a> {
    /// The provider.
    pub(super) entry: &'a ProviderEntry,
    /// The account.
    pub(super) connection: &'a Arc<Connection>,
    /// Where the provider's breaker stands.
    pub(super) phase: Phase,
    /// Neither the provider nor the connection has anything to report or forget.
    pub(super) clean: bool,
}

impl<'a> Scene<'a> {
    /// The account of the target to use at `at`, or `None`. What was excluded on the way is added.
    pub(super) fn choose(
        &self,
        target: &'a ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        excluded: &mut Exclusions,
    ) -> Option<Account<'a>> {
        let mut found = Exclusions::default();
        let mut account = self.first_admitted(target, past, at, false, &mut found);
        if account.is_none() && !past.retry && past.exhaustion.relaxes_cooldown(target) {
            let mut relaxed = Exclusions::default();
            account = self.first_admitted(target, past, at, true, &mut relaxed);
            if account.is_some() {
                found = relaxed;
            }
        }
        excluded.append(found);
        account
    }

    fn first_admitted(
        &self,
        target: &'a ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        ignore_cooldown: bool,
        excluded: &mut Exclusions,
    ) -> Option<Account<'a>> {
        let entry = self.input.config.provider(&target.provider);
        let accounts = entry.map_or(&[][..], |entry| self.accounts(target, entry));
        let (Some(entry), false) = (entry, accounts.is_empty()) else {
            excluded.push(no_account(target));
            return None;
        };
        let provider = self.view.provider(&target.provider);
        let phase = phase(provider.as_deref(), entry, at);
        let egress_lock = self.egress_lock(entry, at);
        for connection in accounts {
            let state = self.view.connection(&target.provider, &connection.id);
            let candidate = Candidate {
                input: self.input,
                route: self.route,
                target,
                entry,
                provider: provider.as_deref(),
                phase,
                egress_lock: egress_lock.as_ref(),
                connection,
                state: state.as_ref(),
                exhaustion: past.exhaustion,
                tried: past.tried,
                ignore_cooldown,
                at,
            };
            let Some(hit) = gates::first_hit(&candidate) else {
                return Some(Account {
                    entry,
                    connection,
                    phase,
                    clean: is_clean(provider.as_deref(), state.as_deref()),
                });
            };
            excluded.push(exclusion(target, &connection.id, &hit));
            if hit.whole_target {
                return None;
            }
        }
        None
    }

    /// Calls `visit` for every account of the target with everything that excludes it at `at`.
    pub(super) fn for_each_account(
        &self,
        target: &'a ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        mut visit: impl FnMut(&'a Arc<Connection>, &[Hit]),
    ) {
        let Some(entry) = self.input.config.provider(&target.provider) else {
            return;
        };
        let provider = self.view.provider(&target.provider);
        let phase = phase(provider.as_deref(), entry, at);
        let egress_lock = self.egress_lock(entry, at);
        let mut hits = Vec::new();
        for connection in self.accounts(target, entry) {
            let state = self.view.connection(&target.provider, &connection.id);
            let candidate = Candidate {
                input: self.input,
                route: self.route,
                target,
                entry,
                provider: provider.as_deref(),
                phase,
                egress_lock: egress_lock.as_ref(),
                connection,
                state: state.as_ref(),
                exhaustion: past.exhaustion,
                tried: past.tried,
                ignore_cooldown: false,
                at,
            };
            hits.clear();
            hits.extend(gates::all_hits(&candidate));
            visit(connection, &hits);
        }
    }

    /// The lock that keeps the provider's accounts from the identity of this decision.
    fn egress_lock(&self, entry: &ProviderEntry, at: Timestamp) -> Option<EgressLock> {
        let egress = self.input.egress?;
        let family = entry.policy.egress_family.iter();
        let states: Vec<_> = family.filter_map(|id| self.view.provider(id)).collect();
        let locks = states.iter().map(|state| &state.egress_locks);
        egress::running(locks, egress, at).cloned()
    }

    /// The accounts that a target could use, in order: its own connection when it is pinned, the one the
    /// operator named when that is at the provider, else all of the provider.
    fn accounts(&self, target: &ComboTarget, entry: &'a ProviderEntry) -> &'a [Arc<Connection>] {
        let single = match (&target.connection, &self.input.facts.forced_connection) {
            (Some(pinned), _) => pinned,
            (None, Some(forced)) => forced,
            (None, None) => return &entry.connections,
        };
        match self.input.config.connections.get(single) {
            Some(connection) if connection.provider == target.provider => {
                std::slice::from_ref(connection)
            }
            Some(_) | None => &[],
        }
    }
}

/// The exclusion of a target that has no account at all, or not the one that was named.
pub(super) fn no_account(target: &ComboTarget) -> Exclusion {
    Exclusion {
        provider: target.provider.clone(),
        connection: None,
        model: target.model.clone(),
        reason: ExclusionReason::Unavailable,
        until: None,
        cause: None,
        origin: None,
    }
}

/// What a gate found, as told to others.
pub(super) fn exclusion(target: &ComboTarget, connection: &ConnectionId, hit: &Hit) -> Exclusion {
    Exclusion {
        provider: target.provider.clone(),
        connection: (!hit.whole_target).then(|| connection.clone()),
        model: target.model.clone(),
        reason: hit.reason,
        until: hit.until,
        cause: hit.cause,
        origin: hit.origin.clone(),
    }
}

fn phase(state: Option<&ProviderState>, entry: &ProviderEntry, at: Timestamp) -> Phase {
    match state {
        Some(state) => state.breaker.phase(at, &entry.policy.breaker),
        None => Breaker::default().phase(at, &entry.policy.breaker),
    }
}

/// A success would have nothing to clear and lower.
fn is_clean(provider: Option<&ProviderState>, connection: Option<&ConnectionState>) -> bool {
    provider.is_none_or(ProviderState::is_clean) && connection.is_none_or(ConnectionState::is_clean)
}
