//! The hot state and how it changes: two values per report, one rule book.
//!
//! A provider has one value ([`ProviderState`]), each of its connections another ([`ConnectionState`]).
//! Everything that happens is an [`Event`]; [`apply::apply`] is total, pure and the only way either
//! value changes. A store loads the values, applies, and replaces them together or not at all
//! (`architecture.md` §3).

pub mod apply;
pub mod codec;
mod lease;
pub mod restore;

use serde::{Deserialize, Serialize};

use crate::breaker::Breaker;
use crate::classify::Origin;
use crate::cooldown::{Cooldown, LastError, RefusalStreak, Terminal};
use crate::egress::EgressLocks;
use crate::gate::{ConnectionGate, ProviderGate};
use crate::ids::{AttemptId, ConnectionId, EgressId, ProviderId};
use crate::lockout::ModelLock;
use crate::outcome::AttemptOutcome;
use crate::settings::ProviderPolicy;
use crate::time::Timestamp;
use crate::version::Version;

pub use lease::LeaseMirror;

/// Schema of the values this build writes (`architecture.md` §3, Schemas).
pub const VALUE_SCHEMA: u32 = 1;

/// How long a value that holds nothing any more is kept, so that an offer of what was cleared finds it
/// (`architecture.md` §3, Incarnation and restore).
pub const KEEP_CLEAN_MS: u64 = 3_600_000;

/// How long counts and levels are kept that only a success ends, in ms, from when they last mattered: 30 days.
/// They have no decay (`failure-state.md` §1.4), so this bounds the memory of providers no longer used.
pub const KEEP_ESCALATION_MS: u64 = 30 * 86_400_000;

/// How long a terminal state is kept, in ms: ten years stand for ever. It must never lapse by time.
pub const KEEP_TERMINAL_MS: u64 = 10 * 365 * 86_400_000;

/// Which value of the hot state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StateKey {
    /// The provider's value.
    Provider(ProviderId),
    /// One connection's value.
    Connection(ProviderId, ConnectionId),
}

impl StateKey {
    /// The provider the value belongs to, which also chooses the shard.
    #[must_use]
    pub fn provider(&self) -> &ProviderId {
        match self {
            Self::Provider(provider) | Self::Connection(provider, _) => provider,
        }
    }
}

/// Hot state of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    /// The provider's circuit breaker.
    pub breaker: Breaker,
    /// Its cooldown gate.
    #[serde(default)]
    pub gate: ProviderGate,
    /// Identities that its failures locked for its family.
    #[serde(default)]
    pub egress_locks: EgressLocks,
}

/// Hot state of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Its cooldown.
    pub cooldown: Cooldown,
    /// Its terminal state, if any.
    pub terminal: Option<Terminal>,
    /// The credential this state was built on; a higher one clears what the old one caused.
    pub credential_version: u64,
    /// The last error seen on it.
    pub last_error: Option<LastError>,
    /// Refusals in a row.
    pub refusals: RefusalStreak,
    /// When the last failure that the breaker counted happened here (decision 10).
    pub last_counted_failure_at: Option<Timestamp>,
    /// Its entry in the cooldown gate.
    #[serde(default)]
    pub gate: ConnectionGate,
    /// Model and family locks, at most [`crate::lockout::MAX_LOCKS`].
    pub locks: Vec<ModelLock>,
    /// The last lease of it that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseMirror>,
}

/// Either value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateValue {
    /// A provider's value.
    Provider(ProviderState),
    /// A connection's value.
    Connection(ConnectionState),
}

/// A value as stored: what is true now and what it descends from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredValue {
    /// The value itself, with everything that happened in this incarnation.
    pub live: StateValue,
    /// What a restore brought and no event has touched since (see [`restore`]).
    pub restored: Option<Restored>,
    /// The newest version of an earlier incarnation that this value descends from.
    pub ancestor: Version,
    /// After this moment nothing can read the value any more; it is also its expiry in the store.
    pub forget_at: Timestamp,
}

/// What a restore brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The value as it was in an earlier incarnation.
    pub value: StateValue,
    /// When [`StoredValue::live`] alone could be forgotten, so that a newer offer replaces this one whole.
    pub live_forget_at: Timestamp,
}

/// What can happen to the hot state of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An attempt ended.
    Outcome(Box<AttemptOutcome>),
    /// An attempt asks for the half-open probe.
    TakeProbe {
        /// The attempt that asks.
        attempt: AttemptId,
    },
    /// An attempt that may hold the probe is still under way.
    RenewProbe {
        /// The attempt.
        attempt: AttemptId,
    },
    /// An attempt that may hold the probe will not be sent or ended without a verdict.
    ReturnProbe {
        /// The attempt.
        attempt: AttemptId,
    },
    /// An operator resets the breaker.
    ResetBreaker,
    /// An operator ends the provider's cooldown; those of its connections end with [`Event::ResetConnection`].
    ResetGate,
    /// An operator ends the egress locks that the provider's failures caused.
    ResetEgressLocks,
    /// An operator ends the cooldown of a connection; named explicitly, also its terminal state (decision 24).
    ResetConnection {
        /// The connection.
        connection: ConnectionId,
        /// The connection was named, so its terminal state ends too.
        terminal_too: bool,
    },
    /// An operator clears model locks of a connection.
    ClearLocks {
        /// The connection.
        connection: ConnectionId,
        /// Only the locks that cover this model; all when absent.
        model: Option<crate::ids::ModelId>,
    },
    /// A connection got a new credential.
    CredentialReplaced {
        /// The connection.
        connection: ConnectionId,
        /// The new credential's version.
        credential_version: u64,
    },
    /// The access token of a connection was renewed: the account is the same, only `expired` and what the old
    /// token was refused for end.
    TokenRefreshed {
        /// The connection.
        connection: ConnectionId,
        /// The new token's version.
        credential_version: u64,
    },
    /// Somebody saw how a lease of a connection stands. Of what others saw the later state counts, in whatever order it
    /// comes.
    LeaseShown {
        /// The connection.
        connection: ConnectionId,
        /// How it stands.
        lease: LeaseMirror,
    },
}

/// A change that history keeps and an operator may ask about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// When it happened, in the store's time.
    pub at: Timestamp,
    /// Provider concerned.
    pub provider: ProviderId,
    /// Connection concerned, if the change is not the provider's.
    pub connection: Option<ConnectionId>,
    /// What changed.
    pub kind: TransitionKind,
    /// The attempt whose outcome caused it; absent for operators.
    pub attempt: Option<AttemptId>,
    /// Which rule judged that outcome, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionKind {
    /// The breaker moved.
    Breaker {
        /// Its name before, as on the wire (`CLOSED`, ...).
        from: String,
        /// Its name after.
        to: String,
        /// The failure count after.
        failure_count: u32,
    },
    /// A cooldown began or its end moved later.
    Cooldown {
        /// Its end.
        until: Timestamp,
        /// Level after.
        backoff_level: u32,
        /// Why.
        reason: crate::classify::Reason,
    },
    /// Combos leave the provider alone: its failures filled the window, or a rule said so.
    ProviderCooldown {
        /// Until when.
        until: Timestamp,
        /// Why.
        reason: crate::classify::Reason,
    },
    /// Nobody uses the provider's family under an identity, or not for longer.
    EgressLock {
        /// The identity.
        egress: EgressId,
        /// Until when.
        until: Timestamp,
        /// Why.
        reason: crate::classify::Reason,
    },
    /// Combos leave a connection alone, longer with each failure in a row.
    ConnectionGate {
        /// Until when.
        until: Timestamp,
        /// Failures in a row.
        failures: u32,
        /// Why.
        reason: crate::classify::Reason,
    },
    /// A connection became terminal.
    Terminal {
        /// Which state.
        kind: crate::classify::TerminalKind,
    },
    /// A model or family was locked, or its lock's end moved later.
    Lock {
        /// What is locked.
        key: crate::lockout::LockKey,
        /// Its end.
        until: Timestamp,
        /// Why.
        reason: crate::classify::Reason,
    },
    /// A connection is as new: after a success, new credentials or an operator's reset.
    Cleared,
    /// A client's session got a connection to itself.
    Leased {
        /// When the lease ends that nobody extends.
        until: Timestamp,
    },
    /// A lease of a connection ended before its time.
    LeaseEnded,
    /// The access token of a connection was renewed.
    Refreshed,
    /// The access token of a connection could not be renewed.
    RefreshFailed {
        /// Why, as a fixed word such as `invalid_grant`.
        cause: String,
        /// Failed refreshes while `expired`; 0 when the connection is not.
        retries: u32,
    },
    /// The last refresh that an `expired` connection is allowed has failed (`failure-state.md` §3.9).
    Inactive,
}

impl ProviderState {
    /// Whether nothing here influences a decision.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.breaker.is_clean() && self.gate.is_clean() && self.egress_locks.is_clean()
    }

    /// Gives every mark of the write that stored the value its version ([`StateValue::resolve_marks`]).
    pub fn resolve_marks(&mut self, stored_under: Version) {
        self.breaker.epoch.resolve(stored_under);
        self.gate.reset.resolve(stored_under);
        self.egress_locks.reset.resolve(stored_under);
    }

    /// After this moment nothing can read the value any more.
    fn forget_at(&self, now: Timestamp, policy: &ProviderPolicy) -> Timestamp {
        let breaker_at = (!self.breaker.is_clean()).then(|| {
            let last = self.breaker.last_failure_at.unwrap_or(now);
            last.plus_ms(KEEP_ESCALATION_MS)
        });
        let gate_at = self.gate.matters_until(&policy.gate);
        let egress_at = self.egress_locks.matters_until();
        [breaker_at, gate_at, egress_at]
            .into_iter()
            .flatten()
            .fold(now.plus_ms(KEEP_CLEAN_MS), Timestamp::max)
    }
}

impl ConnectionState {
    /// Whether nothing here influences a decision and a success has nothing to clear, but for a lease: no outcome changes
    /// it.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cooldown.is_clean()
            && self.terminal.is_none()
            && self.last_error.is_none()
            && self.refusals.count == 0
            && self.gate.is_clean()
            && self.locks.is_empty()
    }

    /// Gives every mark of the write that stored the value its version ([`StateValue::resolve_marks`]).
    pub fn resolve_marks(&mut self, stored_under: Version) {
        self.cooldown.escalated.resolve(stored_under);
        self.cooldown.changed.resolve(stored_under);
        self.refusals.escalated.resolve(stored_under);
        self.gate.escalated.resolve(stored_under);
        for lock in &mut self.locks {
            lock.escalated.resolve(stored_under);
            lock.changed.resolve(stored_under);
        }
    }

    /// After this moment nothing can read the value any more.
    fn forget_at(&self, now: Timestamp, policy: &ProviderPolicy) -> Timestamp {
        let clean_at = now.plus_ms(KEEP_CLEAN_MS);
        if self.terminal.is_some() {
            return now.plus_ms(KEEP_TERMINAL_MS);
        }
        let level_at = (!self.cooldown.is_clean()).then(|| {
            let end = self.cooldown.until.unwrap_or(now);
            end.plus_ms(KEEP_ESCALATION_MS)
        });
        let error_at = self
            .last_error
            .as_ref()
            .map(|error| error.at.plus_ms(KEEP_ESCALATION_MS));
        let refusals_at = (self.refusals.count > 0).then(|| {
            self.refusals
                .last_at
                .plus_ms(crate::cooldown::REFUSAL_MEMORY_MS)
        });
        let mark_at = self
            .last_counted_failure_at
            .map(|at| at.plus_ms(policy.breaker.dedup_connection_ms));
        let locks_at = self
            .locks
            .iter()
            .map(|lock| lock.matters_until(&policy.lockout));
        let gate_at = self.gate.forgotten_at(&policy.gate);
        let lease_at = self.lease.as_ref().map(|lease| lease.until);
        [level_at, error_at, refusals_at, mark_at, gate_at, lease_at]
            .into_iter()
            .flatten()
            .chain(locks_at)
            .fold(clean_at, Timestamp::max)
    }
}

impl StateValue {
    /// A value of the same kind that holds nothing.
    #[must_use]
    pub fn clean_of_same_kind(&self) -> Self {
        match self {
            Self::Provider(_) => Self::Provider(ProviderState::default()),
            Self::Connection(_) => Self::Connection(ConnectionState::default()),
        }
    }

    /// Whether nothing here influences a decision.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        match self {
            Self::Provider(state) => state.is_clean(),
            Self::Connection(state) => state.is_clean(),
        }
    }

    /// Gives every mark of the write that stored the value its version ([`crate::version`]). To be called on
    /// what was read, before anything looks at it or writes it again.
    ///
    /// Who keeps applying to a value that no store gives a version (an overlay or a shadow while the store is
    /// away) passes the version its decisions rest on: an episode then ends with its cooldown, instead of
    /// never, since no later attempt could show that it was decided after it.
    pub fn resolve_marks(&mut self, stored_under: Version) {
        match self {
            Self::Provider(state) => state.resolve_marks(stored_under),
            Self::Connection(state) => state.resolve_marks(stored_under),
        }
    }
}

/// After this moment nothing can read the value any more, seen from `now`. Escalation outlives what it
/// escalates; a clean value is kept for [`KEEP_CLEAN_MS`], so that an offer of what was cleared finds it.
#[must_use]
pub fn forget_at(value: &StateValue, now: Timestamp, policy: &ProviderPolicy) -> Timestamp {
    match value {
        StateValue::Provider(state) => state.forget_at(now, policy),
        StateValue::Connection(state) => state.forget_at(now, policy),
    }
}
