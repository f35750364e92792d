//! Acquire, renew, release, status (`sessions-and-streams.md` §1.7, §1.8).

use std::fmt;

use crate::ids::{ConnectionId, KeyId};
use crate::settings::LeaseSettings;
use crate::time::Timestamp;

use super::{
    Change, Eligible, EndReason, Ended, Generation, Lease, LeaseError, LeaseId, LeaseState,
    OwnerHash, Rows, Step, expire,
};

/// How long a lease lasts that nobody renews, in ms (`sessions-and-streams.md` §1.5).
pub const LEASE_TTL_MS: u64 = 120_000;
/// Shortest and longest life of a lease, in ms. The store brings what it is asked for within them.
pub const LEASE_TTL_BOUNDS_MS: (u64, u64) = (1_000, 1_800_000);

/// What is asked for with an acquire.
#[derive(Clone, Copy)]
pub struct Acquire<'a> {
    /// The id of a new row, should there be one.
    pub id: LeaseId,
    /// Who asks.
    pub owner: OwnerHash,
    /// With which key.
    pub key: &'a KeyId,
    /// What could serve the model.
    pub eligibility: Eligibility<'a>,
    /// Why ordinary selection does not use a connection ([`EndReason::of_exclusion`]): `None` where the reason passes with
    /// the request, [`EndReason::ModelIneligible`] for a connection that the model does not lead to.
    pub why: &'a (dyn Fn(&ConnectionId) -> Option<EndReason> + Sync),
    /// How long the lease shall last, in ms.
    pub ttl_ms: u64,
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Acquire")
            .field("id", &self.id)
            .field("owner", &self.owner)
            .field("key", &self.key)
            .field("eligibility", &self.eligibility)
            .field("ttl_ms", &self.ttl_ms)
            .finish_non_exhaustive()
    }
}

/// What ordinary selection says of a model. It was asked once: the candidates stay the same when a race for one of them
/// is lost.
#[derive(Clone, Copy, Debug)]
pub enum Eligibility<'a> {
    /// The model means no provider.
    UnknownModel,
    /// No connection could serve it.
    None,
    /// All that could serve it cool down, are out of quota or have lost their authorization.
    Blocked,
    /// These could, in the order of the strategy.
    Some(&'a [Eligible]),
}

/// Which lease is meant, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The generation.
    pub generation: Generation,
    /// With which key.
    pub key: &'a KeyId,
}

/// Gives the owner a connection: the one it has, as long as that is eligible, else the first free one. It also keeps the
/// one it has when that is kept out for a reason that passes, say by its own attempts in flight. A refusal leaves the
/// lease that the owner has as it is.
#[must_use]
pub fn acquire(
    rows: &Rows<'_>,
    asked: &Acquire<'_>,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Step<Lease> {
    let mut changes = expire(rows.own, now);
    let answer = choose(rows, asked, settings, now).map(|(chosen, lease)| {
        changes.extend(chosen);
        lease
    });
    Step { changes, answer }
}

fn choose(
    rows: &Rows<'_>,
    asked: &Acquire<'_>,
    settings: &LeaseSettings,
    now: Timestamp,
) -> Result<(Vec<Change>, Lease), LeaseError> {
    let expires_at = now.plus_ms(clamped(asked.ttl_ms));
    let own = rows.live(now);
    if let Some(own) = own.filter(|own| asked.keeps(own)) {
        let (change, lease) = own.extended(expires_at, now);
        return Ok((vec![change], lease));
    }
    let candidates = asked.eligibility.candidates()?;
    let Some(own) = own else {
        let free = rows.first_free(candidates, settings.drain_ms, now)?;
        // 2⁵³ leases of one owner: nobody gets there, and a number that falls would be worse than none.
        let generation =
            Generation::after(rows.last_generation).ok_or(LeaseError::ServiceUnavailable)?;
        let lease = Lease {
            id: asked.id,
            sequence: 0,
            owner: asked.owner,
            key: asked.key.clone(),
            provider: free.provider.clone(),
            connection: free.connection.clone(),
            generation,
            acquired_at: now,
            renewed_at: now,
            expires_at,
            ended: None,
        };
        let mut changes = rows.vacate(free, now);
        changes.push(Change::Open {
            lease: lease.clone(),
            begins: true,
        });
        return Ok((changes, lease));
    };
    if own.key != *asked.key {
        return Err(LeaseError::FenceStale);
    }
    let free = rows.first_free(candidates, settings.drain_ms, now)?;
    let moved = Lease {
        renewed_at: now,
        expires_at,
        ..own.moved_to(free, asked.id, now)
    };
    // Without a reason it stays where it is.
    let reason = (asked.why)(&own.connection).unwrap_or(EndReason::ModelIneligible);
    let mut changes = vec![own.end(reason, now)];
    changes.extend(rows.vacate(free, now));
    changes.push(Change::Open {
        lease: moved.clone(),
        begins: false,
    });
    Ok((changes, moved))
}

/// Makes the lease last for `ttl_ms` from now on. `own` is the owner's row that has not ended.
#[must_use]
pub fn renew(own: Option<&Lease>, asked: Named<'_>, ttl_ms: u64, now: Timestamp) -> Step<Lease> {
    let mut changes = expire(own, now);
    let answer = asked.find(own, now).map(|lease| {
        let (change, lease) = lease.extended(now.plus_ms(clamped(ttl_ms)), now);
        changes.push(change);
        lease
    });
    Step { changes, answer }
}

/// Gives the lease back, once: what was given back before stays so, whatever its owner has now. `newest` is the newest
/// row of the owner with the generation asked for, `own` its row that has not ended.
#[must_use]
pub fn release(
    own: Option<&Lease>,
    newest: Option<&Lease>,
    asked: Named<'_>,
    reason: EndReason,
    now: Timestamp,
) -> Step<Lease> {
    let mut changes = expire(own, now);
    let answer = match asked.find(own, now) {
        Ok(lease) => {
            changes.push(lease.end(reason, now));
            Ok(Lease {
                ended: Some(Ended { at: now, reason }),
                ..lease.clone()
            })
        }
        Err(stale) => newest
            .filter(|lease| asked.is_of(lease) && lease.state() == LeaseState::Released)
            .cloned()
            .ok_or(stale),
    };
    Step { changes, answer }
}

/// How the lease stands. Everything that is not the lease of now looks the same.
///
/// # Errors
/// [`LeaseError::FenceStale`].
pub fn status<'a>(
    own: Option<&'a Lease>,
    asked: Named<'_>,
    now: Timestamp,
) -> Result<&'a Lease, LeaseError> {
    asked.find(own, now)
}

impl Acquire<'_> {
    /// Whether this lease of the owner stays on its connection.
    fn keeps(&self, own: &Lease) -> bool {
        let is_asked_for = match self.eligibility {
            Eligibility::UnknownModel => return false,
            Eligibility::None | Eligibility::Blocked => false,
            Eligibility::Some(candidates) => candidates
                .iter()
                .any(|candidate| candidate.connection == own.connection),
        };
        own.key == *self.key && (is_asked_for || (self.why)(&own.connection).is_none())
    }
}

impl<'a> Eligibility<'a> {
    fn candidates(self) -> Result<&'a [Eligible], LeaseError> {
        match self {
            Self::UnknownModel => Err(LeaseError::ModelInvalid),
            Self::None | Self::Some([]) => Err(LeaseError::NoEligibleConnection),
            Self::Blocked => Err(LeaseError::EligibilityUnavailable),
            Self::Some(candidates) => Ok(candidates),
        }
    }
}

impl Named<'_> {
    fn is_of(&self, lease: &Lease) -> bool {
        lease.generation == self.generation && lease.key == *self.key
    }

    pub(super) fn find<'l>(
        &self,
        own: Option<&'l Lease>,
        now: Timestamp,
    ) -> Result<&'l Lease, LeaseError> {
        own.filter(|lease| lease.is_live(now) && self.is_of(lease))
            .ok_or(LeaseError::FenceStale)
    }
}

impl Lease {
    fn extended(&self, expires_at: Timestamp, now: Timestamp) -> (Change, Self) {
        let change = Change::Extend {
            lease: self.id,
            seen: self.expires_at,
            renewed_at: now,
            expires_at,
        };
        let lease = Self {
            renewed_at: now,
            expires_at,
            ..self.clone()
        };
        (change, lease)
    }

    /// The row of the same lease on another connection. It lasts no longer than before.
    pub(super) fn moved_to(&self, to: &Eligible, id: LeaseId, now: Timestamp) -> Self {
        Self {
            id,
            sequence: 0,
            provider: to.provider.clone(),
            connection: to.connection.clone(),
            acquired_at: now,
            ..self.clone()
        }
    }
}

fn clamped(ttl_ms: u64) -> u64 {
    let (least, most) = LEASE_TTL_BOUNDS_MS;
    ttl_ms.clamp(least, most)
}
