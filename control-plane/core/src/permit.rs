//! Permits: how many attempts may be under way on a connection at once, in the whole fleet (decision 44).
//!
//! A connection with `maxConcurrent` has one [`Pool`]. Its value is shared by all replicas and changed by
//! compare-and-set, so everything here is a pure step on a copy. An attempt holds its permit until its body has ended;
//! its data plane renews it, so that the permits of a data plane that died come back by themselves.
//!
//! Who finds the pool full may wait in the [`Queue`] of the replica that holds its call. The value says of each replica
//! how many wait there and since when, so the limit of the queue holds for the fleet and the order of replicas is that
//! of their longest waiting ones. Who did not wait takes only what nobody waits for.

mod queue;
mod shares;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::Connection;
use crate::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId};
use crate::state::codec::CodecError;
use crate::time::Timestamp;

pub use queue::{Joined, Queue, WaitTerms};
pub use shares::Shares;

/// How long a permit lasts that nobody renews, in ms, where the settings say nothing (`permits.ttlMs`).
pub const PERMIT_TTL_MS: u64 = 30_000;
/// How often a data plane renews what it holds, in ms, where the settings say nothing (`permits.heartbeatMs`).
pub const RENEW_EVERY_MS: u64 = 10_000;
/// How long a replica's word about its waiting ones lasts, in ms.
pub const WAITING_TTL_MS: u64 = 3_000;
/// Largest `maxConcurrent`. The value of a full pool of this size is well below what a store takes.
pub const MAX_PERMITS: u32 = 4_096;
/// Most replicas that may have waiting ones in one pool.
pub const MAX_WAITING_REPLICAS: usize = 64;
/// Most claims to one permit; others are not kept, so that it ends when these are taken back.
pub const MAX_CLAIMS: usize = 16;
/// Schema of a stored pool.
pub const POOL_SCHEMA: u32 = 1;

/// Who holds the permits of a connection, and how many wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Ends of permits, by data plane and number of the attempt.
    #[serde(default)]
    holders: BTreeMap<PlaneIncarnation, BTreeMap<u64, Timestamp>>,
    /// Who granted them; none is named of a permit that an older replica granted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    claims: BTreeMap<PlaneIncarnation, BTreeMap<u64, BTreeSet<Claim>>>,
    /// By name of the replica.
    #[serde(default)]
    waiting: BTreeMap<String, Waiting>,
}

/// One wish for a permit. A data plane that hears nothing asks another replica for the same attempt, and both get the
/// same permit. A replica whose answer nobody hears takes back its own claim alone, so that a permit which the other
/// one's answer rests on stays. Any number; the same twice for an attempt is unlikely enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Claim(pub u32);

/// How many wait in one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    count: u32,
    /// Since when the one that waits longest.
    since: Timestamp,
    /// Not true any more from then on.
    until: Timestamp,
}

/// Who asks for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker<'a> {
    /// Somebody who did not wait.
    Newcomer,
    /// The first of those who wait in this replica.
    Queued(&'a str),
}

/// The most that a connection lets run at once; `None` without a limit.
#[must_use]
pub fn cap(connection: &Connection) -> Option<u32> {
    connection.max_concurrent.filter(|cap| *cap > 0)
}

/// The part of a cap that each of `planes` data planes may use while nobody counts for all of them: at least 1, so
/// the parts may add up to more than the cap (decision 62).
#[must_use]
pub fn share(cap: u32, planes: u32) -> u32 {
    cap.checked_div(planes).unwrap_or(cap).max(1)
}

/// The name of a connection's pool within the shard of its provider.
#[must_use]
pub fn key_text(provider: &ProviderId, connection: &ConnectionId) -> String {
    format!("m:{provider}/{connection}")
}

/// When a permit is taken or renewed, and how long it lasts from then on if nobody renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The moment.
    pub now: Timestamp,
    /// In ms.
    pub ttl_ms: u64,
}

impl Term {
    fn ends_at(self) -> Timestamp {
        self.now.plus_ms(self.ttl_ms)
    }
}

impl Pool {
    /// Takes a permit for an attempt if fewer than `cap` are out; one permit, however often it is asked for. The
    /// permit of `replaces`, an earlier attempt of the same request, becomes this one's. `true` when it holds one.
    pub fn acquire(
        &mut self,
        attempt: AttemptId,
        replaces: Option<AttemptId>,
        cap: u32,
        asker: Asker<'_>,
        term: Term,
    ) -> bool {
        let now = term.now;
        self.prune(now);
        if !self.has_room(attempt, replaces, cap, asker, now) {
            return false;
        }
        if let Some(old) = replaces.filter(|old| *old != attempt) {
            self.release(old);
        }
        self.holders
            .entry(attempt.plane)
            .or_default()
            .insert(attempt.number, term.ends_at());
        true
    }

    /// Whether [`Pool::acquire`] would give the attempt a permit.
    #[must_use]
    pub fn has_room(
        &self,
        attempt: AttemptId,
        replaces: Option<AttemptId>,
        cap: u32,
        asker: Asker<'_>,
        now: Timestamp,
    ) -> bool {
        let out = self.held(now);
        let hands_over = replaces.is_some_and(|old| old != attempt && self.holds(old, now));
        self.holds(attempt, now)
            || if hands_over {
                out.saturating_sub(1) < cap
            } else {
                out.saturating_add(self.ahead_of(asker, now)) < cap
            }
    }

    /// Gives a permit back. `false` when there was none.
    pub fn release(&mut self, attempt: AttemptId) -> bool {
        let Some(numbers) = self.holders.get_mut(&attempt.plane) else {
            return false;
        };
        let released = numbers.remove(&attempt.number).is_some();
        if numbers.is_empty() {
            self.holders.remove(&attempt.plane);
        }
        if let Some(numbers) = self.claims.get_mut(&attempt.plane) {
            numbers.remove(&attempt.number);
            if numbers.is_empty() {
                self.claims.remove(&attempt.plane);
            }
        }
        released
    }

    /// A wish was granted the permit that the attempt holds.
    pub fn claim(&mut self, attempt: AttemptId, claim: Claim) {
        if !self.is_held_by(attempt) {
            return;
        }
        let numbers = self.claims.entry(attempt.plane).or_default();
        let claims = numbers.entry(attempt.number).or_default();
        if claims.len() < MAX_CLAIMS {
            claims.insert(claim);
        }
    }

    /// Nobody heard that a wish was granted. The permit is given back if that was its only claim; `true` then.
    pub fn take_back(&mut self, attempt: AttemptId, claim: Claim) -> bool {
        let numbers = self.claims.get_mut(&attempt.plane);
        if let Some(claims) = numbers.and_then(|numbers| numbers.get_mut(&attempt.number)) {
            let is_claimed = claims.remove(&claim);
            if !(is_claimed && claims.is_empty()) {
                return false;
            }
        }
        self.release(attempt)
    }

    /// Renews the permits in `keep` and frees the data plane's others up to `newest`. It adds none: what ended, or
    /// was lost, stays so.
    pub fn renew(
        &mut self,
        plane: PlaneIncarnation,
        keep: &BTreeSet<u64>,
        newest: u64,
        term: Term,
    ) {
        self.prune(term.now);
        let Some(numbers) = self.holders.get_mut(&plane) else {
            return;
        };
        numbers.retain(|number, until| {
            if keep.contains(number) {
                *until = term.ends_at();
                return true;
            }
            *number > newest
        });
        if numbers.is_empty() {
            self.holders.remove(&plane);
        }
        self.forget_claims();
    }

    /// Keeps how many wait in a replica, and since when the first of them; none takes its word back. A word that is
    /// still true is said again only when half of its time has passed, so that waiting alone writes little.
    pub fn tell_waiting(&mut self, replica: &str, count: u32, since: Timestamp, now: Timestamp) {
        self.waiting.retain(|_, waiting| waiting.until > now);
        if count == 0 {
            self.waiting.remove(replica);
            return;
        }
        let known = self.waiting.get(replica);
        let holds = known.is_some_and(|known| {
            let lasts = known.until.remaining_ms(now) > WAITING_TTL_MS / 2;
            lasts && (known.count, known.since) == (count, since)
        });
        if holds {
            return;
        }
        if known.is_some() || self.waiting.len() < MAX_WAITING_REPLICAS {
            let waiting = Waiting {
                count,
                since,
                until: now.plus_ms(WAITING_TTL_MS),
            };
            self.waiting.insert(replica.to_owned(), waiting);
        }
    }

    /// Whether the replica's word that somebody waits there is still true for others.
    #[must_use]
    pub fn tells_of_waiting(&self, replica: &str, now: Timestamp) -> bool {
        let word = self.waiting.get(replica);
        word.is_some_and(|waiting| waiting.until > now)
    }

    /// How many wait in other replicas than this one.
    #[must_use]
    pub fn waiting_elsewhere(&self, replica: &str, now: Timestamp) -> u32 {
        self.waiting
            .iter()
            .filter(|(name, waiting)| *name != replica && waiting.until > now)
            .fold(0, |sum, (_, waiting)| sum.saturating_add(waiting.count))
    }

    /// Whether the attempt holds a permit.
    #[must_use]
    pub fn holds(&self, attempt: AttemptId, now: Timestamp) -> bool {
        self.holders
            .get(&attempt.plane)
            .and_then(|numbers| numbers.get(&attempt.number))
            .is_some_and(|until| *until > now)
    }

    /// Whether the data plane holds any permit.
    #[must_use]
    pub fn knows(&self, plane: PlaneIncarnation) -> bool {
        self.holders.contains_key(&plane)
    }

    /// How many permits are out.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> u32 {
        let numbers = self.holders.values().flat_map(BTreeMap::values);
        count(numbers.filter(|until| **until > now).count())
    }

    /// Who holds permits: how many, and when the last of them ends that nobody renews.
    pub fn holders(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (PlaneIncarnation, u32, Timestamp)> {
        self.holders.iter().filter_map(move |(plane, numbers)| {
            let ends = numbers.values().filter(|until| **until > now);
            let last = ends.clone().max()?;
            Some((*plane, count(ends.count()), *last))
        })
    }

    /// Where requests wait: name of the replica, how many, since when the first.
    pub fn queues(&self, now: Timestamp) -> impl Iterator<Item = (&str, u32, Timestamp)> {
        let true_words = self.waiting.iter();
        let true_words = true_words.filter(move |(_, waiting)| waiting.until > now);
        true_words.map(|(replica, waiting)| (replica.as_str(), waiting.count, waiting.since))
    }

    /// Forgets who holds permits, and not who waits. Returns how many were out. What runs without one is renewed by
    /// nobody ([`Pool::renew`] adds none).
    pub fn clear(&mut self, now: Timestamp) -> u32 {
        let out = self.held(now);
        self.holders.clear();
        self.claims.clear();
        out
    }

    /// When nothing of it is true any more.
    #[must_use]
    pub fn ends_at(&self) -> Timestamp {
        let holders = self.holders.values().flat_map(BTreeMap::values).copied();
        let waiting = self.waiting.values().map(|waiting| waiting.until);
        holders.chain(waiting).max().unwrap_or_default()
    }

    /// Forgets what has ended.
    pub fn prune(&mut self, now: Timestamp) {
        let mut any_ended = false;
        self.holders.retain(|_, numbers| {
            numbers.retain(|_, until| {
                any_ended |= *until <= now;
                *until > now
            });
            !numbers.is_empty()
        });
        if any_ended {
            self.forget_claims();
        }
        self.waiting.retain(|_, waiting| waiting.until > now);
    }

    /// Numbers of a data plane's attempts that hold permits.
    fn numbers_of(&self, plane: PlaneIncarnation, now: Timestamp) -> impl Iterator<Item = u64> {
        let of_plane = self.holders.get(&plane).into_iter().flatten();
        of_plane
            .filter(move |(_, until)| **until > now)
            .map(|(number, _)| *number)
    }

    fn is_held_by(&self, attempt: AttemptId) -> bool {
        self.holders
            .get(&attempt.plane)
            .is_some_and(|numbers| numbers.contains_key(&attempt.number))
    }

    /// Forgets the claims of permits that have ended.
    fn forget_claims(&mut self) {
        let holders = &self.holders;
        self.claims.retain(|plane, numbers| {
            let held = holders.get(plane);
            numbers.retain(|number, _| held.is_some_and(|held| held.contains_key(number)));
            !numbers.is_empty()
        });
    }

    /// How many come first.
    fn ahead_of(&self, asker: Asker<'_>, now: Timestamp) -> u32 {
        let own = match asker {
            Asker::Newcomer => None,
            Asker::Queued(replica) => self
                .waiting
                .get(replica)
                .map(|waiting| (waiting.since, replica)),
        };
        self.waiting
            .iter()
            .filter(|(_, waiting)| waiting.until > now)
            .filter(|(name, waiting)| own.is_none_or(|own| (waiting.since, name.as_str()) < own))
            .fold(0, |sum, (_, waiting)| sum.saturating_add(waiting.count))
    }
}

/// A pool as it is stored.
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode(key: &str, pool: &Pool) -> Result<Vec<u8>, CodecError> {
    serde_json::to_vec(pool).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })
}

/// Reads a stored pool back.
///
/// # Errors
/// [`CodecError`] for a higher schema or a payload that does not decode.
pub fn decode(key: &str, schema: u32, payload: &[u8]) -> Result<Pool, CodecError> {
    if schema > POOL_SCHEMA {
        return Err(CodecError::HigherSchema {
            key: key.to_owned(),
            schema,
        });
    }
    serde_json::from_slice(payload).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
