//! The lock of an egress identity (`failure-state.md` §6, decision 23).
//!
//! Some providers limit by the address that requests come from: a 429 of one account says that every account asked
//! from there is refused for as long. So the failing connection's end also locks the identity under which the
//! attempt left, for all accounts of the provider's family; a data plane that leaves under another identity goes on.
//!
//! The locks are part of the provider's value, so that they are written with the cooldown they come from, in one
//! call. The lock of a family is the latest over its providers ([`running`]). A success does not end one.

use serde::{Deserialize, Serialize};

use crate::classify::Reason;
use crate::ids::{EgressId, ProviderId};
use crate::time::Timestamp;
use crate::version::Mark;

/// Most locks one provider keeps; the one that ends first makes room.
pub const MAX_EGRESS_LOCKS: usize = 64;

/// Providers of one operator, who counts what reaches any of them. A provider named nowhere is a family of its own.
const FAMILIES: &[&[&str]] = &[&["opencode", "opencode-go", "opencode-cli"]];

/// An identity that a provider refuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressLock {
    /// Which.
    pub egress: EgressId,
    /// Not used from there before this.
    pub until: Timestamp,
    /// Why.
    pub reason: Reason,
}

/// The locks that failures of one provider caused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EgressLocks {
    /// By identity, at most [`MAX_EGRESS_LOCKS`].
    locks: Vec<EgressLock>,
    /// The last reset by an operator; failures of attempts decided before it lock nothing.
    pub reset: Mark,
}

/// The providers among `bucketed` that share their locks with this one, itself included; none when it is not
/// among them.
#[must_use]
pub fn family_of(provider: &ProviderId, bucketed: &[ProviderId]) -> Vec<ProviderId> {
    if !bucketed.contains(provider) {
        return Vec::new();
    }
    let named = FAMILIES
        .iter()
        .find(|family| family.contains(&provider.as_str()));
    let mut family: Vec<ProviderId> = match named {
        None => vec![provider.clone()],
        Some(named) => bucketed
            .iter()
            .filter(|id| named.contains(&id.as_str()))
            .cloned()
            .collect(),
    };
    family.sort();
    family.dedup();
    family
}

/// Of the locks of a family's providers on this identity the one that ends last, if it runs at `now`.
#[must_use]
pub fn running<'a>(
    family: impl IntoIterator<Item = &'a EgressLocks>,
    egress: &EgressId,
    now: Timestamp,
) -> Option<&'a EgressLock> {
    family
        .into_iter()
        .filter_map(|locks| locks.of(egress))
        .filter(|lock| lock.is_running(now))
        .max_by_key(|lock| (lock.until, lock.reason))
}

/// What of the locks of a family's providers runs at `now`, by identity; of too many those that end last.
#[must_use]
pub fn all_running<'a>(
    family: impl IntoIterator<Item = &'a EgressLocks>,
    now: Timestamp,
) -> Vec<EgressLock> {
    let mut all = EgressLocks::default();
    for locks in family {
        all = all.union(locks);
    }
    all.drop_passed(now);
    all.locks
}

impl EgressLock {
    /// Whether it has not passed at `now`.
    #[must_use]
    pub fn is_running(&self, now: Timestamp) -> bool {
        self.until > now
    }
}

impl EgressLocks {
    /// Locks an identity from `at` on, never for shorter than it is, and drops locks that have passed. Says whether
    /// the identity's lock changed.
    pub fn lock(&mut self, lock: EgressLock, at: Timestamp) -> bool {
        if !lock.is_running(at) {
            return false;
        }
        self.drop_passed(at);
        match self.find(&lock.egress) {
            Ok(place) => match self.locks.get_mut(place) {
                Some(standing) if standing.until < lock.until => *standing = lock,
                Some(_) | None => return false,
            },
            Err(place) => {
                let egress = lock.egress.clone();
                self.locks.insert(place, lock);
                self.make_room();
                return self.of(&egress).is_some();
            }
        }
        true
    }

    /// The lock of an identity, perhaps passed.
    #[must_use]
    pub fn of(&self, egress: &EgressId) -> Option<&EgressLock> {
        let place = self.find(egress).ok()?;
        self.locks.get(place)
    }

    /// All locks by identity, also those that have passed and were not dropped yet.
    pub fn iter(&self) -> impl Iterator<Item = &EgressLock> {
        self.locks.iter()
    }

    /// Drops locks that have passed. Says whether there were any.
    pub fn drop_passed(&mut self, at: Timestamp) -> bool {
        let before = self.locks.len();
        self.locks.retain(|lock| lock.is_running(at));
        self.locks.len() != before
    }

    /// An operator's reset: nothing is locked any more, nor by what attempts under way will report.
    pub fn clear(&mut self) {
        *self = Self {
            locks: Vec::new(),
            reset: Mark::ThisWrite,
        };
    }

    /// Whether nothing is locked.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.locks.is_empty()
    }

    /// The locks of both: of an identity the later, of too many those that end last. The reset is this one's.
    #[must_use]
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        for lock in &other.locks {
            match joined.find(&lock.egress) {
                Err(place) => joined.locks.insert(place, lock.clone()),
                Ok(place) => {
                    if let Some(kept) = joined.locks.get_mut(place)
                        && (kept.until, kept.reason) < (lock.until, lock.reason)
                    {
                        *kept = lock.clone();
                    }
                }
            }
        }
        joined.make_room();
        joined
    }

    /// After this moment nothing here can be read any more; `None` when that is so already.
    pub(crate) fn matters_until(&self) -> Option<Timestamp> {
        self.locks.iter().map(|lock| lock.until).max()
    }

    /// Where the lock of an identity is, or would be.
    fn find(&self, egress: &EgressId) -> Result<usize, usize> {
        self.locks.binary_search_by(|lock| lock.egress.cmp(egress))
    }

    /// Leaves the locks that end last.
    fn make_room(&mut self) {
        while self.locks.len() > MAX_EGRESS_LOCKS {
            let ends = self.locks.iter().enumerate();
            let first = ends.min_by_key(|(_, lock)| (lock.until, &lock.egress));
            let Some((first, _)) = first else { return };
            self.locks.remove(first);
        }
    }
}
