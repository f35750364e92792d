//! The accounts of a target and the choice among them (`routing.md` §5.0, decision 25).
//!
//! `fill-first` takes the first account by priority number that no gate excludes; a provider's connections are
//! kept in that order, so a healthy choice looks at one account. Other strategies put the accounts in order first, if
//! any of them may be used.

use std::sync::Arc;

use crate::affinity::PinWrite;
use crate::breaker::{Breaker, Phase};
use crate::config::{ComboTarget, Connection, ProviderEntry};
use crate::egress::{self, EgressLock};
use crate::ids::ConnectionId;
use crate::state::{ConnectionState, ProviderState};
use crate::time::Timestamp;
use crate::tool_limit;

use super::exclusion::Exclusions;
use super::exhaustion::Exhaustion;
use super::filters::Filters;
use super::gates::{self, Candidate, Hit};
use super::occupied;
use super::order;
use super::pinned;
use super::private_view::PrivateView;
use super::resolve::Route;
use super::strategy::Halt;
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
    /// What the targets must be able to do.
    pub(super) filters: Filters,
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
    /// What becomes of the pin of the session that goes there.
    pub(super) pin: Option<PinWrite>,
}

impl<'a> Scene<'a> {
    /// The scene of a decision.
    pub(super) fn new(
        input: &'a Input<'a>,
        route: &'a Route<'a>,
        view: &'a PrivateView<'a>,
    ) -> Self {
        Self {
            input,
            route,
            view,
            filters: Filters::of(input, route),
        }
    }

    /// The account of the target to use at `at`, or `None`. What was excluded on the way is added.
    ///
    /// # Errors
    /// [`Halt`] of the provider's account strategy.
    pub(super) fn choose(
        &self,
        target: &ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        excluded: &mut Exclusions,
    ) -> Result<Option<Account<'a>>, Halt> {
        let mut found = Exclusions::default();
        let mut account = self.first_admitted(target, past, at, false, &mut found)?;
        if account.is_none() && !past.retry && past.exhaustion.relaxes_cooldown(target) {
            let mut relaxed = Exclusions::default();
            account = self.first_admitted(target, past, at, true, &mut relaxed)?;
            if account.is_some() {
                found = relaxed;
            }
        }
        excluded.append(found);
        Ok(account)
    }

    /// Whether any account of the target could be used now by a request that sent nothing yet.
    pub(super) fn has_eligible_account(&self, target: &ComboTarget) -> bool {
        let Some(entry) = self.input.config.provider(&target.provider) else {
            return false;
        };
        let exhaustion = Exhaustion::default();
        let past = Past::of_fresh_target(&exhaustion);
        self.surroundings(target, entry, self.input.now).admit_any(
            self.accounts(target, entry),
            past,
            false,
        )
    }

    /// Whether no account of the target can be used now, and one only until what excludes it ends by itself.
    pub(super) fn cools(&self, target: &ComboTarget) -> bool {
        let exhaustion = Exhaustion::default();
        let past = Past::of_fresh_target(&exhaustion);
        let (mut any_free, mut any_cools) = (false, false);
        self.for_each_account(target, past, self.input.now, |_, hits| {
            any_free |= hits.is_empty();
            any_cools |= hits.iter().all(|hit| hit.reason.is_timer());
        });
        any_cools && !any_free
    }

    /// Whether no account of the target can be used now, but one could if it were not reserved.
    pub(super) fn needs_reserved(&self, target: &ComboTarget) -> bool {
        let exhaustion = Exhaustion::default();
        let past = Past::of_fresh_target(&exhaustion);
        let (mut any_free, mut any_reserved) = (false, false);
        self.for_each_account(target, past, self.input.now, |_, hits| {
            any_free |= hits.is_empty();
            any_reserved |= matches!(hits, [hit] if hit.reason == ExclusionReason::Reserved);
        });
        any_reserved && !any_free
    }

    /// How many tools the target takes, where that is fewer than the request offers.
    pub(super) fn tool_limit_below(&self, target: &ComboTarget) -> Option<u32> {
        let (config, telemetry) = (self.input.config, self.input.telemetry);
        let offered = self.input.facts.tools;
        if offered == 0 {
            return None;
        }
        tool_limit::effective(
            &config.catalogue,
            telemetry,
            &target.provider,
            &target.model,
        )
        .filter(|limit| *limit < offered)
    }

    /// Where the breaker of the target's provider stands now.
    pub(super) fn phase(&self, target: &ComboTarget) -> Phase {
        match self.input.config.provider(&target.provider) {
            Some(entry) => {
                let state = self.view.provider(&target.provider);
                phase(state.as_deref(), entry, self.input.now)
            }
            None => Phase::Closed,
        }
    }

    fn surroundings<'b>(
        &'b self,
        target: &'b ComboTarget,
        entry: &'b ProviderEntry,
        at: Timestamp,
    ) -> Surroundings<'b> {
        let provider = self.view.provider(&target.provider);
        Surroundings {
            input: self.input,
            route: self.route,
            view: self.view,
            filters: self.filters,
            target,
            entry,
            phase: phase(provider.as_deref(), entry, at),
            provider,
            egress_lock: self.egress_lock(entry, at),
            at,
        }
    }

    fn first_admitted(
        &self,
        target: &ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        ignore_cooldown: bool,
        excluded: &mut Exclusions,
    ) -> Result<Option<Account<'a>>, Halt> {
        let entry = self.input.config.provider(&target.provider);
        let mut accounts = entry.map_or(&[][..], |entry| self.accounts(target, entry));
        let facts = self.input.facts;
        if let Some(leased) = &facts.leased {
            accounts = self.leased(target, leased);
        }
        if accounts.is_empty() && (facts.leased.is_some() || facts.granted.is_some()) {
            return Ok(None);
        }
        let (Some(entry), false) = (entry, accounts.is_empty()) else {
            excluded.push(no_account(target));
            return Ok(None);
        };
        let surroundings = self.surroundings(target, entry, at);
        let is_kept = match &target.connection {
            None => entry.connections.len() > 1,
            Some(_) => target.expanded,
        };
        let is_granted = self.input.facts.granted.is_some();
        let session = if is_kept {
            pinned::session(self, &target.provider)?
        } else {
            None
        };
        if target.connection.is_none()
            && !is_granted
            && let Some(session) = &session
            && let Some(account) = pinned::place(
                self,
                session,
                entry,
                accounts,
                &surroundings,
                past,
                ignore_cooldown,
            )
        {
            return Ok(Some(account));
        }
        let is_eligible = |connection: &Connection| {
            surroundings
                .hit(connection, past, ignore_cooldown)
                .1
                .is_none()
        };
        // Who cannot send anything takes no turn, and puts no account in order.
        let mut order = if surroundings.admit_any(accounts, past, ignore_cooldown) {
            order::accounts(self, target, accounts, &surroundings, &is_eligible)?
        } else {
            None
        };
        for rank in 0..accounts.len() {
            let position = match &mut order {
                None => Some(rank),
                Some(order) => order.next(),
            };
            let Some(connection) = position.and_then(|position| accounts.get(position)) else {
                continue;
            };
            let Some(hit) = surroundings.hit(connection, past, ignore_cooldown).1 else {
                let connection = if target.connection.is_none() {
                    occupied::less_occupied(self, entry, accounts, connection, &is_eligible)
                } else {
                    connection
                };
                let session = session.filter(|_| target.expanded || is_granted);
                return Ok(Some(Account {
                    pin: session.and_then(|session| {
                        pinned::follow(self, &session, connection, &surroundings, past)
                    }),
                    ..surroundings.account(entry, connection)
                }));
            };
            excluded.push(exclusion(target, &connection.id, &hit));
            if hit.whole_target {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Calls `visit` for every account of the target with everything that excludes it at `at`.
    pub(super) fn for_each_account(
        &self,
        target: &ComboTarget,
        past: Past<'_>,
        at: Timestamp,
        mut visit: impl FnMut(&'a Arc<Connection>, &[Hit]),
    ) {
        let Some(entry) = self.input.config.provider(&target.provider) else {
            return;
        };
        let surroundings = self.surroundings(target, entry, at);
        let mut hits = Vec::new();
        for connection in self.accounts(target, entry) {
            let state = surroundings.state(connection);
            hits.clear();
            hits.extend(gates::all_hits(&surroundings.candidate(
                connection,
                state.as_ref(),
                past,
                false,
            )));
            visit(connection, &hits);
        }
    }

    /// Calls `visit` for every account of the target, in the order in which they would be tried now, with the first gate
    /// that excludes it.
    pub(super) fn for_each_in_order(
        &self,
        target: &ComboTarget,
        past: Past<'_>,
        mut visit: impl FnMut(&ConnectionId, Option<ExclusionReason>),
    ) {
        let Some(entry) = self.input.config.provider(&target.provider) else {
            return;
        };
        let accounts = self.accounts(target, entry);
        let surroundings = self.surroundings(target, entry, self.input.now);
        let reason = |connection: &Connection| {
            let hit = surroundings.hit(connection, past, false).1;
            hit.map(|hit| hit.reason)
        };
        let is_eligible = |connection: &Connection| reason(connection).is_none();
        let order = order::accounts(self, target, accounts, &surroundings, &is_eligible);
        // A strategy that cannot say leaves them as they are.
        let mut order = order.ok().flatten();
        for rank in 0..accounts.len() {
            let position = match &mut order {
                None => Some(rank),
                Some(order) => order.next(),
            };
            if let Some(connection) = position.and_then(|position| accounts.get(position)) {
                visit(&connection.id, reason(connection));
            }
        }
    }

    /// The account of the request's lease, if the target could use it.
    fn leased(&self, target: &ComboTarget, leased: &ConnectionId) -> &'a [Arc<Connection>] {
        let may_be = |named: &Option<ConnectionId>| named.as_ref().is_none_or(|it| it == leased);
        match self.input.config.connections.get(leased) {
            Some(connection)
                if connection.provider == target.provider
                    && may_be(&target.connection)
                    && may_be(&self.input.facts.forced_connection)
                    && may_be(&self.input.facts.granted) =>
            {
                std::slice::from_ref(connection)
            }
            Some(_) | None => &[],
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
    /// operator named when that is at the provider, else all of the provider; of these only the one whose permit the
    /// request holds, if it waited for one.
    fn accounts(&self, target: &ComboTarget, entry: &'a ProviderEntry) -> &'a [Arc<Connection>] {
        let facts = self.input.facts;
        let named = (target.connection.as_ref()).or(facts.forced_connection.as_ref());
        let single = match (named, &facts.granted) {
            (None, None) => return &entry.connections,
            (Some(named), Some(granted)) if named != granted => return &[],
            (Some(one), _) | (None, Some(one)) => one,
        };
        match self.input.config.connections.get(single) {
            Some(connection) if connection.provider == target.provider => {
                std::slice::from_ref(connection)
            }
            Some(_) | None => &[],
        }
    }
}

/// What the gates look at that is the same for all accounts of a target.
pub(super) struct Surroundings<'a> {
    input: &'a Input<'a>,
    route: &'a Route<'a>,
    view: &'a PrivateView<'a>,
    filters: Filters,
    target: &'a ComboTarget,
    entry: &'a ProviderEntry,
    /// Where the breaker of the provider stands.
    pub(super) phase: Phase,
    provider: Option<Arc<ProviderState>>,
    egress_lock: Option<EgressLock>,
    /// For when.
    pub(super) at: Timestamp,
}

impl Surroundings<'_> {
    fn state(&self, connection: &Connection) -> Option<Arc<ConnectionState>> {
        self.view.connection(&self.target.provider, &connection.id)
    }

    /// The account, to be used.
    pub(super) fn account<'b>(
        &self,
        entry: &'b ProviderEntry,
        connection: &'b Arc<Connection>,
    ) -> Account<'b> {
        let state = self.state(connection);
        Account {
            entry,
            connection,
            phase: self.phase,
            clean: is_clean(self.provider.as_deref(), state.as_deref()),
            pin: None,
        }
    }

    /// Whether any of the accounts may be used. Looks no further than the first, or than what excludes them all.
    fn admit_any(
        &self,
        accounts: &[Arc<Connection>],
        past: Past<'_>,
        ignore_cooldown: bool,
    ) -> bool {
        for connection in accounts {
            match self.hit(connection, past, ignore_cooldown).1 {
                None => return true,
                Some(hit) if hit.whole_target => return false,
                Some(_) => {}
            }
        }
        false
    }

    /// The account's state, and the first gate that excludes it.
    pub(super) fn hit(
        &self,
        connection: &Connection,
        past: Past<'_>,
        ignore_cooldown: bool,
    ) -> (Option<Arc<ConnectionState>>, Option<Hit>) {
        let state = self.state(connection);
        let candidate = self.candidate(connection, state.as_ref(), past, ignore_cooldown);
        let hit = gates::first_hit(&candidate);
        (state, hit)
    }

    fn candidate<'b>(
        &'b self,
        connection: &'b Connection,
        state: Option<&'b Arc<ConnectionState>>,
        past: Past<'b>,
        ignore_cooldown: bool,
    ) -> Candidate<'b> {
        Candidate {
            input: self.input,
            route: self.route,
            filters: self.filters,
            target: self.target,
            entry: self.entry,
            provider: self.provider.as_deref(),
            phase: self.phase,
            egress_lock: self.egress_lock.as_ref(),
            connection,
            state,
            exhaustion: past.exhaustion,
            tried: past.tried,
            ignore_cooldown,
            at: self.at,
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
