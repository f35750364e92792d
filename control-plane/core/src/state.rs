//! The hot state and how it changes: two values per report, one rule book.
//!
//! A provider has one value ([`ProviderState`]), each of its connections another ([`ConnectionState`]).
//! Everything that happens is an [`Event`]; [`apply::apply`] is total, pure and the only way either
//! value changes. A store loads the values, applies, and replaces them together or not at all
//! (`architecture.md` §3).

pub mod apply;
pub mod codec;
pub mod restore;

use serde::{Deserialize, Serialize};

use crate::breaker::Breaker;
use crate::cooldown::{Cooldown, LastError, RefusalStreak, Terminal};
use crate::ids::{AttemptId, ConnectionId, ProviderId};
use crate::lockout::ModelLock;
use crate::outcome::AttemptOutcome;
use crate::time::Timestamp;
use crate::version::Version;

/// Schema of the values this build writes (`architecture.md` §3, Schemas).
pub const VALUE_SCHEMA: u32 = 1;

/// How long a value that holds nothing any more is kept, so that an offer of what was cleared finds it
/// (`architecture.md` §3, Incarnation and restore).
pub const KEEP_CLEAN_MS: u64 = 3_600_000;

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
    /// Model and family locks, at most [`crate::lockout::MAX_LOCKS`].
    pub locks: Vec<ModelLock>,
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
    pub restored: Option<StateValue>,
    /// The newest version of an earlier incarnation that this value descends from.
    pub ancestor: Version,
    /// After this moment nothing can read the value any more; it is also its expiry in the store.
    pub forget_at: Timestamp,
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
    /// An attempt that may hold the probe will not be sent or ended without a verdict.
    ReturnProbe {
        /// The attempt.
        attempt: AttemptId,
    },
    /// An operator resets the breaker.
    ResetBreaker,
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
}
