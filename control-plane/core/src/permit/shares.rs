//! Permits given out by one replica while the shared pool cannot be reached (decision 62).

use std::collections::BTreeSet;

use crate::ids::{AttemptId, PlaneIncarnation};
use crate::time::Timestamp;

use super::{Claim, MAX_PERMITS, Pool, Term};

/// What a replica knows of a connection's permits while the store is away: each data plane may hold its part of the cap,
/// and what it held before counts towards it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Given out here.
    given: Pool,
    /// Held when the store went away, as far as it has not ended since.
    before: Pool,
}

impl Shares {
    /// The store has gone away; the pool was last seen like this. What is given out here already stays.
    pub fn begin(&mut self, seen: &Pool) {
        self.before = seen.clone();
    }

    /// Takes a permit out of the part of one data plane. The permit of `replaces` is given back for it. Who waits does
    /// not count. `true` when the attempt holds one.
    pub fn acquire(
        &mut self,
        (attempt, claim): (AttemptId, Claim),
        replaces: Option<AttemptId>,
        share: u32,
        term: Term,
    ) -> bool {
        if let Some(old) = replaces.filter(|old| *old != attempt) {
            self.release(old);
        }
        if !self.has_room(attempt, None, share, term.now) {
            return false;
        }
        let mine = self.given.holders.entry(attempt.plane).or_default();
        mine.insert(attempt.number, term.ends_at());
        self.given.claim(attempt, claim);
        true
    }

    /// Whether [`Shares::acquire`] would give the attempt a permit.
    #[must_use]
    pub fn has_room(
        &self,
        attempt: AttemptId,
        replaces: Option<AttemptId>,
        share: u32,
        now: Timestamp,
    ) -> bool {
        let held = [&self.given, &self.before];
        if held.iter().any(|pool| pool.holds(attempt, now)) {
            return true;
        }
        let replaced = replaces.map(|old| old.number);
        let numbers = held
            .iter()
            .flat_map(|pool| pool.numbers_of(attempt.plane, now));
        let others: BTreeSet<u64> = numbers.filter(|number| Some(*number) != replaced).collect();
        super::count(others.len()) < share
    }

    /// An attempt gives its permit back.
    pub fn release(&mut self, attempt: AttemptId) {
        for pool in [&mut self.given, &mut self.before] {
            pool.release(attempt);
        }
    }

    /// See [`Pool::take_back`].
    pub fn take_back(&mut self, attempt: AttemptId, claim: Claim) {
        for pool in [&mut self.given, &mut self.before] {
            pool.take_back(attempt, claim);
        }
    }

    /// See [`Pool::renew`].
    pub fn renew(
        &mut self,
        plane: PlaneIncarnation,
        keep: &BTreeSet<u64>,
        newest: u64,
        term: Term,
    ) {
        for pool in [&mut self.given, &mut self.before] {
            pool.renew(plane, keep, newest, term);
        }
    }

    /// Forgets what has ended.
    pub fn prune(&mut self, now: Timestamp) {
        for pool in [&mut self.given, &mut self.before] {
            pool.prune(now);
        }
    }

    /// The store is back: what was given out here counts in the shared pool from now on, also above its cap, as far as a
    /// value holds it. Nothing is left here.
    pub fn hand_over(&self, pool: &mut Pool, now: Timestamp) {
        let mut held = pool.held(now);
        for (plane, numbers) in &self.given.holders {
            for (number, until) in numbers.iter().filter(|(_, until)| **until > now) {
                let attempt = AttemptId {
                    plane: *plane,
                    number: *number,
                };
                if pool.holds(attempt, now) || held >= MAX_PERMITS {
                    continue;
                }
                held = held.saturating_add(1);
                let mine = pool.holders.entry(*plane).or_default();
                mine.insert(*number, *until);
                let claims = self.given.claims.get(plane);
                for claim in claims.and_then(|it| it.get(number)).into_iter().flatten() {
                    pool.claim(attempt, *claim);
                }
            }
        }
    }

    /// How many were given out here.
    #[must_use]
    pub fn given(&self, now: Timestamp) -> u32 {
        self.given.held(now)
    }

    /// Nothing was given out here, and nothing is known of before.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the data plane holds any permit.
    #[must_use]
    pub fn knows(&self, plane: PlaneIncarnation) -> bool {
        self.given.knows(plane) || self.before.knows(plane)
    }
}
