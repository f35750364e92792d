//! The reasons to skip an account, in the fixed order of `routing.md` §3. A new mechanism that excludes is one
//! function here and one line in [`GATES`].
//!
//! The first gate that hits skips the account. Some hits are the same for every account of the target; they
//! skip the whole target at once, so a provider whose breaker is open costs one look and one exclusion however
//! many accounts it has.

use std::sync::Arc;

use crate::breaker::Phase;
use crate::classify::{Origin, Reason};
use crate::config::{ComboTarget, Connection, ProviderEntry, Strategy};
use crate::egress::EgressLock;
use crate::ids::ConnectionId;
use crate::lockout;
use crate::state::{ConnectionState, ProviderState};
use crate::time::Timestamp;

use super::exhaustion::Exhaustion;
use super::filters::Filters;
use super::quota;
use super::resolve::Route;
use super::{ExclusionReason, Input};

/// One account of one target, with everything the gates look at.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    /// The decision's input.
    pub(super) input: &'a Input<'a>,
    /// What the request named.
    pub(super) route: &'a Route<'a>,
    /// What the combo's targets must be able to do.
    pub(super) filters: Filters,
    /// The target.
    pub(super) target: &'a ComboTarget,
    /// Its provider.
    pub(super) entry: &'a ProviderEntry,
    /// The provider's state; absent when nothing ever happened.
    pub(super) provider: Option<&'a ProviderState>,
    /// Where its breaker stands.
    pub(super) phase: Phase,
    /// The lock of the identity that the attempt would leave under, if one runs.
    pub(super) egress_lock: Option<&'a EgressLock>,
    /// The account.
    pub(super) connection: &'a Connection,
    /// Its state; absent when nothing ever happened.
    pub(super) state: Option<&'a Arc<ConnectionState>>,
    /// What earlier targets rule out.
    pub(super) exhaustion: &'a Exhaustion<'a>,
    /// Accounts tried in this round of the target.
    pub(super) tried: &'a [&'a ConnectionId],
    /// Cooldowns are not looked at (`routing.md` §4.1, transient set).
    pub(super) ignore_cooldown: bool,
    /// For when.
    pub(super) at: Timestamp,
}

/// What a gate found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    /// Which gate.
    pub(super) reason: ExclusionReason,
    /// It holds for every account of the target.
    pub(super) whole_target: bool,
    /// When it ends by itself, if it does.
    pub(super) until: Option<Timestamp>,
    /// Why what excludes came about.
    pub(super) cause: Option<Reason>,
    /// Which rule said so, if one did.
    pub(super) origin: Option<Origin>,
}

type Gate = fn(&Candidate<'_>) -> Option<Hit>;

/// All gates in order. The gates of mechanisms that are not there yet (7 and 11) have no line; 9 is a part of 0d.
const GATES: [Gate; 17] = [
    filtered,            // before all
    not_allowed,         // 0a
    protocol_mismatch,   // 0b
    terminal,            // 0c
    disabled,            // 0d
    circuit_open,        // 1
    provider_cooldown,   // 2
    egress_locked,       // 2a
    connection_cooldown, // 3
    reserved,            // 3a, free or not
    leased,              // 3a
    request_exhaustion,  // 4
    retry_budget,        // 4a
    model_lockout,       // 5
    quota_cutoff,        // 6
    unavailable,         // 8
    concurrency_cap,     // 10
];

/// The first gate that excludes the account; `None` when it may be used.
pub(super) fn first_hit(candidate: &Candidate<'_>) -> Option<Hit> {
    GATES.iter().find_map(|gate| gate(candidate))
}

/// Every gate that excludes the account, in order.
pub(super) fn all_hits(candidate: &Candidate<'_>) -> impl Iterator<Item = Hit> {
    GATES.iter().filter_map(|gate| gate(candidate))
}

impl Hit {
    fn of_account(reason: ExclusionReason) -> Self {
        Self {
            reason,
            whole_target: false,
            until: None,
            cause: None,
            origin: None,
        }
    }

    fn of_target(reason: ExclusionReason) -> Self {
        Self {
            whole_target: true,
            ..Self::of_account(reason)
        }
    }
}

/// The target cannot take the request (`filters`).
fn filtered(candidate: &Candidate<'_>) -> Option<Hit> {
    let input = candidate.input;
    candidate
        .filters
        .drops(input.facts, &input.config.catalogue, candidate.target)
        .map(Hit::of_target)
}

/// 0a: the step of the combo names other accounts, or the key may not ask for this, or not use this connection, or the operator named another one.
fn not_allowed(candidate: &Candidate<'_>) -> Option<Hit> {
    let facts = candidate.input.facts;
    let connection = &candidate.connection.id;
    let of_step = &candidate.target.allowed_connections;
    if !of_step.is_empty() && !of_step.contains(connection) {
        return Some(Hit::of_account(ExclusionReason::NotAllowed));
    }
    if let Some(key) = &facts.key {
        if !candidate.route.allowed_by(key) {
            return Some(Hit::of_target(ExclusionReason::NotAllowed));
        }
        if !key.allowed_connections.is_empty() && !key.allowed_connections.contains(connection) {
            return Some(Hit::of_account(ExclusionReason::NotAllowed));
        }
    }
    match &facts.forced_connection {
        Some(forced) if forced != connection => Some(Hit::of_account(ExclusionReason::NotAllowed)),
        Some(_) | None => None,
    }
}

/// 0b: bodies pass through, so a target must speak what the client speaks (decision 48).
fn protocol_mismatch(candidate: &Candidate<'_>) -> Option<Hit> {
    let speaks = candidate.entry.provider.protocol;
    (speaks != candidate.input.facts.protocol)
        .then(|| Hit::of_target(ExclusionReason::ProtocolMismatch))
}

/// 0c: nothing relaxes a terminal state (decision 29).
fn terminal(candidate: &Candidate<'_>) -> Option<Hit> {
    let state = candidate.state?;
    let terminal = state.terminal.as_ref()?;
    let error = state.last_error.as_ref();
    Some(Hit {
        cause: error.map(|error| error.reason),
        origin: error.and_then(|error| error.origin.clone()),
        ..Hit::of_account(ExclusionReason::Terminal(terminal.kind))
    })
}

/// 0d: switched off, by the operator or with a ban, or nothing to authenticate with.
fn disabled(candidate: &Candidate<'_>) -> Option<Hit> {
    let connection = candidate.connection;
    let switched_off = candidate
        .state
        .and_then(|state| state.terminal.as_ref())
        .is_some_and(|terminal| terminal.switched_off);
    let usable =
        connection.enabled && !switched_off && (candidate.input.has_credential)(&connection.id);
    (!usable).then(|| Hit::of_account(ExclusionReason::Disabled))
}

/// 1: open, or half-open with the probe out.
fn circuit_open(candidate: &Candidate<'_>) -> Option<Hit> {
    if candidate.phase.admits() {
        return None;
    }
    let remaining_ms = candidate.phase.retry_after_ms();
    Some(Hit {
        until: Some(candidate.at.plus_ms(remaining_ms)),
        ..Hit::of_target(ExclusionReason::CircuitOpen)
    })
}

/// 2: combos leave the provider, or this account of it, alone (`failure-state.md` §2).
fn provider_cooldown(candidate: &Candidate<'_>) -> Option<Hit> {
    candidate.route.combo?;
    let (at, policy) = (candidate.at, &candidate.entry.policy.gate);
    let reason = ExclusionReason::ProviderCooldown;
    let provider = candidate
        .provider
        .and_then(|state| state.gate.end(at, policy));
    let (end, hit) = match provider {
        Some(end) => (end, Hit::of_target(reason)),
        None => (
            candidate.state?.gate.end(at, policy)?,
            Hit::of_account(reason),
        ),
    };
    Some(Hit {
        until: Some(end.until),
        cause: Some(end.reason),
        ..hit
    })
}

/// 2a: the provider's family refuses the address. An account that must not cool is tried all the same, as after a
/// failure of its own (`failure-state.md` §6).
fn egress_locked(candidate: &Candidate<'_>) -> Option<Hit> {
    let lock = candidate
        .egress_lock
        .filter(|_| !candidate.connection.disable_cooling)?;
    Some(Hit {
        until: Some(lock.until),
        cause: Some(lock.reason),
        ..Hit::of_account(ExclusionReason::EgressLocked)
    })
}

/// 3: the connection cools down.
fn connection_cooldown(candidate: &Candidate<'_>) -> Option<Hit> {
    if candidate.ignore_cooldown {
        return None;
    }
    let cooldown = &candidate.state?.cooldown;
    cooldown.is_running(candidate.at).then(|| Hit {
        until: cooldown.until,
        cause: cooldown.reason,
        origin: cooldown.origin.clone(),
        ..Hit::of_account(ExclusionReason::ConnectionCooldown)
    })
}

/// 3a: kept for requests with a lease (decisions 41 and 42b). It comes before [`leased`], since it has no end.
fn reserved(candidate: &Candidate<'_>) -> Option<Hit> {
    let input = candidate.input;
    let reserved = input.config.lease_pool.contains(&candidate.connection.id)
        && (input.config.settings.leases.reserve_pool || input.view.reserves_pool())
        && !input.facts.is_managed();
    reserved.then(|| Hit::of_account(ExclusionReason::Reserved))
}

/// 3a: somebody else has it to itself. Whether a request with a lease may use it says the durable store alone.
fn leased(candidate: &Candidate<'_>) -> Option<Hit> {
    let lease = candidate.state?.lease.as_ref()?;
    let until = lease.holds_until(candidate.at)?;
    (!candidate.input.facts.is_managed()).then(|| Hit {
        until: Some(until),
        ..Hit::of_account(ExclusionReason::Leased)
    })
}

/// 4: earlier attempts of this request rule it out.
fn request_exhaustion(candidate: &Candidate<'_>) -> Option<Hit> {
    let catalogue = &candidate.input.config.catalogue;
    if candidate
        .exhaustion
        .rules_out_target(candidate.target, catalogue)
    {
        return Some(Hit::of_target(ExclusionReason::RequestExhaustion));
    }
    let connection = &candidate.connection.id;
    let ruled_out = candidate
        .exhaustion
        .rules_out_connection(connection, &candidate.target.model)
        || candidate.tried.contains(&connection);
    ruled_out.then(|| Hit::of_account(ExclusionReason::RequestExhaustion))
}

/// 4a: what follows a failure is a retry, and the provider can take no more of them.
fn retry_budget(candidate: &Candidate<'_>) -> Option<Hit> {
    let so_far = candidate.input.so_far;
    let is_retry = !so_far.attempts.is_empty();
    (is_retry && so_far.spent_providers.contains(&candidate.target.provider))
        .then(|| Hit::of_target(ExclusionReason::RetryBudget))
}

/// 5: the model, its family or exactly this model is locked on the connection.
fn model_lockout(candidate: &Candidate<'_>) -> Option<Hit> {
    let target = candidate.target;
    let locks = &candidate.state?.locks;
    let lock = lockout::covering(locks, &target.provider, &target.model, candidate.at)?;
    Some(Hit {
        until: Some(lock.until),
        cause: Some(lock.reason),
        origin: lock.origin.clone(),
        ..Hit::of_account(ExclusionReason::ModelLockout)
    })
}

/// 6: too little of the account's quota is left. `auto` has a cut-off of its own.
fn quota_cutoff(candidate: &Candidate<'_>) -> Option<Hit> {
    let settings = &candidate.input.config.settings.quota_preflight;
    if !settings.enabled || candidate.route.strategy == Strategy::Auto {
        return None;
    }
    let snapshot = candidate.input.telemetry.quota(&candidate.connection.id)?;
    let provider = &candidate.connection.provider;
    let end = quota::cut_off(
        &snapshot,
        &candidate.target.model,
        |window| f64::from(settings.threshold_percent(provider, window.name)) / 100.0,
        candidate.at,
    )?;
    Some(Hit {
        until: Some(end.until),
        cause: Some(Reason::QuotaExhausted),
        ..Hit::of_account(ExclusionReason::QuotaCutoff)
    })
}

/// 8: the provider or the connection does not serve the model.
fn unavailable(candidate: &Candidate<'_>) -> Option<Hit> {
    let model = &candidate.target.model;
    let models = &candidate.entry.models;
    if !models.is_empty() && !models.contains(model) {
        return Some(Hit::of_target(ExclusionReason::Unavailable));
    }
    let models = &candidate.connection.models;
    let serves = models.is_empty() || models.contains(model);
    (!serves).then(|| Hit::of_account(ExclusionReason::Unavailable))
}

/// 10: all permits of the connection are out.
fn concurrency_cap(candidate: &Candidate<'_>) -> Option<Hit> {
    let full = candidate.input.view.is_full(&candidate.connection.id);
    full.then(|| Hit::of_account(ExclusionReason::ConcurrencyCap))
}
