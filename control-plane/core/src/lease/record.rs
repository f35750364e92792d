//! A lease as it is stored (`sessions-and-streams.md` §1.4, §1.5).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{ConnectionId, KeyId, ProviderId};
use crate::time::Timestamp;

use super::{Generation, LeaseName, OwnerHash};

/// What one row is known by: a random number that is never used again. Owner, generation and connection are not enough,
/// since a lease may move away and come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u128);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// One row. At any moment at most one row of an owner, and at most one of a connection, has not ended; the store has a
/// unique index for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Of this row.
    pub id: LeaseId,
    /// Its place in the order in which rows were made, of which a later one is larger; 0 before it is stored.
    pub sequence: u64,
    /// Whose it is.
    pub owner: OwnerHash,
    /// The API key it was asked for with; no other may use it.
    pub key: KeyId,
    /// The connection's provider.
    pub provider: ProviderId,
    /// What the owner has to itself.
    pub connection: ConnectionId,
    /// Which lease of the owner; the same for all rows that it moved over.
    pub generation: Generation,
    /// Since when the owner has this connection.
    pub acquired_at: Timestamp,
    /// When it was last asked for, or renewed.
    pub renewed_at: Timestamp,
    /// From then on it holds no longer, whether or not somebody wrote that down.
    pub expires_at: Timestamp,
    /// How it ended; nothing changes the row after that.
    pub ended: Option<Ended>,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When it was written down; for an expired one that may be long after.
    pub at: Timestamp,
    /// Why.
    pub reason: EndReason,
}

/// What its owner is told of a lease, and nobody else: neither who owns it nor where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSummary {
    /// How it stands.
    pub state: LeaseState,
    /// Which of its owner's.
    pub generation: Generation,
    /// When it began on its connection.
    pub acquired_at: Timestamp,
    /// When it was last extended.
    pub renewed_at: Timestamp,
    /// When it ends that nobody extends.
    pub expires_at: Timestamp,
}

/// What state a row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseState {
    /// It holds.
    Active,
    /// Its owner gave it back.
    Released,
    /// Nobody renewed it in time.
    Expired,
    /// It was taken from its owner, or moved.
    Invalidated,
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndReason {
    /// Its owner is done.
    OwnerExit,
    /// Its owner gave up.
    ClientCancelled,
    /// Nobody renewed it in time.
    TtlExpired,
    /// The connection is switched off or gone.
    ConnectionIneligible,
    /// The connection, or all of its provider, is kept out by its failures.
    HealthOrCooldown,
    /// The connection's quota is used up.
    QuotaUnavailable,
    /// The connection does not serve what is asked for.
    ModelIneligible,
    /// The key may not use the connection, or may not lease, any more.
    AuthorizationChanged,
    /// The key is gone.
    ManagedKeyRevoked,
}

/// An answer that may tell a lease which was stored with it.
pub trait Stored {
    /// The lease was stored as a new row with this place in the order of rows.
    fn stored(&mut self, lease: LeaseId, sequence: u64);
}

impl Stored for Lease {
    fn stored(&mut self, lease: LeaseId, sequence: u64) {
        if self.id == lease {
            self.sequence = sequence;
        }
    }
}

impl Lease {
    /// What the lease is called, on whatever connection.
    #[must_use]
    pub fn name(&self) -> LeaseName {
        LeaseName {
            owner: self.owner,
            generation: self.generation,
        }
    }

    /// What its owner is told.
    #[must_use]
    pub fn summary(&self) -> LeaseSummary {
        LeaseSummary {
            state: self.state(),
            generation: self.generation,
            acquired_at: self.acquired_at,
            renewed_at: self.renewed_at,
            expires_at: self.expires_at,
        }
    }

    /// What was written down.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.ended
            .map_or(LeaseState::Active, |ended| ended.reason.state())
    }

    /// Whether it holds. At its very expiry it does not.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.over_since(now).is_none()
    }

    /// Since when it holds no longer; `None` while it does. An expiry counts from its time, not from when it was written
    /// down.
    #[must_use]
    pub fn over_since(&self, now: Timestamp) -> Option<Timestamp> {
        match self.ended {
            Some(ended) => Some(ended.at.min(self.expires_at)),
            None => (self.expires_at <= now).then_some(self.expires_at),
        }
    }
}

impl EndReason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::OwnerExit,
        Self::ClientCancelled,
        Self::TtlExpired,
        Self::ConnectionIneligible,
        Self::HealthOrCooldown,
        Self::QuotaUnavailable,
        Self::ModelIneligible,
        Self::AuthorizationChanged,
        Self::ManagedKeyRevoked,
    ];

    /// The word in rows and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OwnerExit => "OWNER_EXIT",
            Self::ClientCancelled => "CLIENT_CANCELLED",
            Self::TtlExpired => "TTL_EXPIRED",
            Self::ConnectionIneligible => "CONNECTION_INELIGIBLE",
            Self::HealthOrCooldown => "HEALTH_OR_COOLDOWN",
            Self::QuotaUnavailable => "QUOTA_UNAVAILABLE",
            Self::ModelIneligible => "MODEL_INELIGIBLE",
            Self::AuthorizationChanged => "AUTHORIZATION_CHANGED",
            Self::ManagedKeyRevoked => "MANAGED_KEY_REVOKED",
        }
    }

    /// The reason of a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == word)
    }

    /// What a row is after it ended so.
    #[must_use]
    pub fn state(self) -> LeaseState {
        match self {
            Self::OwnerExit | Self::ClientCancelled => LeaseState::Released,
            Self::TtlExpired => LeaseState::Expired,
            Self::ConnectionIneligible
            | Self::HealthOrCooldown
            | Self::QuotaUnavailable
            | Self::ModelIneligible
            | Self::AuthorizationChanged
            | Self::ManagedKeyRevoked => LeaseState::Invalidated,
        }
    }
}

impl LeaseState {
    /// Every state.
    pub const ALL: [Self; 4] = [
        Self::Active,
        Self::Released,
        Self::Expired,
        Self::Invalidated,
    ];

    /// The state of a word, if there is one.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// The word in rows and on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
            Self::Invalidated => "INVALIDATED",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_is_told_by_its_own_word() {
        let words: BTreeSet<&str> = EndReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect();
        assert_eq!(words.len(), EndReason::ALL.len());
        for reason in EndReason::ALL {
            assert_eq!(EndReason::of_word(reason.as_str()), Some(reason));
            assert_ne!(reason.state(), LeaseState::Active);
        }
        assert_eq!(EndReason::of_word("owner_exit"), None);
    }
}
