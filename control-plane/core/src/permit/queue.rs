//! Those who wait in one replica for permits of one connection, first come, first served.

use std::collections::VecDeque;

use crate::ids::AttemptId;
use crate::time::Timestamp;

use super::{Asker, Claim, Pool, Shares, Term};

/// Most that wait in one replica for one connection, whatever the queues of combos allow.
const MAX_WAITERS: usize = 1_024;

/// The queue of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    waiters: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    attempt: AttemptId,
    claim: Claim,
    since: Timestamp,
    until: Timestamp,
}

/// How somebody may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTerms {
    /// Most that wait in the fleet.
    pub depth: u32,
    /// Longest wait, in ms.
    pub timeout_ms: u64,
    /// How much of it has passed in a replica that is gone, in ms; 0 for those who come for the first time. Who stood in
    /// line there keeps the place that it had, and may still be counted by the last word of that replica: those who
    /// wait elsewhere do not count against it.
    pub waited_ms: u64,
}

/// What became of a wish to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It waits.
    Waits,
    /// As many wait as may.
    Full,
}

impl Queue {
    /// An attempt waits on these terms, unless as many wait already. Who waits already goes on waiting.
    pub fn join(
        &mut self,
        pool: &Pool,
        replica: &str,
        (attempt, claim): (AttemptId, Claim),
        terms: WaitTerms,
        now: Timestamp,
    ) -> Joined {
        if self.waiters.iter().any(|waiter| waiter.attempt == attempt) {
            return Joined::Waits;
        }
        let elsewhere = if terms.waited_ms > 0 {
            0
        } else {
            pool.waiting_elsewhere(replica, now)
        };
        let waiting = elsewhere.saturating_add(self.len());
        if waiting >= terms.depth || self.waiters.len() >= MAX_WAITERS {
            return Joined::Full;
        }
        let since = now.minus_ms(terms.waited_ms.min(terms.timeout_ms));
        let place = self.waiters.partition_point(|waiter| waiter.since <= since);
        let waiter = Waiter {
            attempt,
            claim,
            since,
            until: since.plus_ms(terms.timeout_ms),
        };
        self.waiters.insert(place, waiter);
        Joined::Waits
    }

    /// An attempt waits no longer.
    pub fn leave(&mut self, attempt: AttemptId) {
        self.waiters.retain(|waiter| waiter.attempt != attempt);
    }

    /// Takes out those whose time is over.
    pub fn take_ended(&mut self, now: Timestamp) -> Vec<AttemptId> {
        let mut ended = Vec::new();
        self.waiters.retain(|waiter| {
            let waits = waiter.until > now;
            if !waits {
                ended.push(waiter.attempt);
            }
            waits
        });
        ended
    }

    /// Gives what is free to the first ones and says in the pool how many are left waiting. Returns who was given a
    /// permit; they leave when the pool is stored.
    pub fn serve(&self, pool: &mut Pool, replica: &str, cap: u32, term: Term) -> Vec<AttemptId> {
        let now = term.now;
        let mut granted = Vec::new();
        for (index, waiter) in self.waiters.iter().enumerate() {
            let left = self.waiters.len().saturating_sub(index);
            pool.tell_waiting(replica, super::count(left), waiter.since, now);
            let asker = Asker::Queued(replica);
            if !pool.acquire(waiter.attempt, None, cap, asker, term) {
                return granted;
            }
            pool.claim(waiter.attempt, waiter.claim);
            granted.push(waiter.attempt);
        }
        pool.tell_waiting(replica, 0, now, now);
        granted
    }

    /// The same from the parts of data planes, the store being away.
    pub fn serve_shares(&self, shares: &mut Shares, share: u32, term: Term) -> Vec<AttemptId> {
        self.waiters
            .iter()
            .filter(|waiter| shares.acquire((waiter.attempt, waiter.claim), None, share, term))
            .map(|waiter| waiter.attempt)
            .collect()
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> u32 {
        super::count(self.waiters.len())
    }

    /// Nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}
