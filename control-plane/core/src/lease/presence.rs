//! A data plane's own side of a lease on a connection: what it may start, until when, what it cuts, and when it asks
//! (decision 42). With the authority away it goes on with what it was granted.
//!
//! Times are of one clock of the data plane that goes on while the machine sleeps. Every answer counts from the moment
//! before its question was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Timestamp;

use super::Grant;

/// Questions are at least this far apart, in ms, also when the authority is away; but for the last ones before a horizon.
pub const RENEWALS_APART_MS: u64 = 1_000;
/// Least distance of the last questions before a horizon, in ms. Each waits for half of what is left, so that a lease
/// that is extended in its last moments is heard of, and there are only a few.
pub const LAST_RENEWALS_APART_MS: u64 = 50;

/// Gives out the numbers of registrations, from 1, each once. One for each incarnation of a data plane: a number that came
/// twice would be ended by a delete that was meant for the first. Clones count on together.
#[derive(Clone, Debug)]
pub struct RegistrationNumbers(Arc<AtomicU64>);

/// What a data plane has under way under one lease on one connection.
#[derive(Clone, Debug)]
pub struct Presence {
    numbers: RegistrationNumbers,
    /// Of the registration that questions name now.
    number: u64,
    /// Attempts that have asked and not been sent.
    asking: u64,
    /// Attempts that were sent and have not ended.
    running: u64,
    /// The newest answer to this registration.
    known: Option<Known>,
    /// Only what was asked for after this moment lets anything start.
    barred_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    asked_at: Timestamp,
    deadline: Timestamp,
    horizon: Timestamp,
    guard_ms: u64,
    renew_at: Timestamp,
}

impl RegistrationNumbers {
    /// Of an incarnation that has not registered anything.
    #[must_use]
    pub fn of_new_incarnation() -> Self {
        Self(Arc::new(AtomicU64::new(1)))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Presence {
    /// Nothing is under way. An idle one may be dropped and another one made in its place.
    #[must_use]
    pub fn new(numbers: &RegistrationNumbers) -> Self {
        Self {
            numbers: numbers.clone(),
            number: numbers.next(),
            asking: 0,
            running: 0,
            known: None,
            barred_at: None,
        }
    }

    /// An attempt is about to be sent. It asks with the number that is returned, and is then either started or given
    /// up.
    pub fn ask(&mut self) -> u64 {
        self.asking = self.asking.saturating_add(1);
        self.number
    }

    /// Takes in what a fence or a renewal granted that was asked for at `asked_at`. An answer to an earlier
    /// registration, or an older one than was taken in, says nothing.
    pub fn granted(&mut self, number: u64, asked_at: Timestamp, grant: Grant) {
        let older = self.known.is_some_and(|known| asked_at < known.asked_at);
        if number != self.number || older {
            return;
        }
        let barred = self.barred_at.is_some_and(|barred| asked_at < barred);
        let deadline = if barred {
            asked_at
        } else {
            asked_at.plus_ms(grant.lease_ms)
        };
        let horizon = asked_at.plus_ms(grant.horizon_ms);
        let pause_ms = (grant.horizon_ms / 3).max(RENEWALS_APART_MS);
        self.known = Some(Known {
            asked_at,
            deadline,
            horizon,
            guard_ms: grant.guard_ms,
            renew_at: before(horizon, asked_at, pause_ms),
        });
    }

    /// The lease is over, or not on this connection any more: nothing starts but by a grant asked for from now on. What
    /// is in flight goes on to its horizon.
    pub fn bar(&mut self, now: Timestamp) {
        self.barred_at = Some(now);
        if let Some(known) = &mut self.known {
            known.deadline = known.deadline.min(now);
        }
    }

    /// A renewal that was asked for at `asked_at` found no registration: the connection may be somebody else's, so what
    /// is in flight is cut at once. As with [`Presence::granted`], an answer to an earlier registration, or an older one
    /// than was taken in, says nothing: a fence may have registered since.
    pub fn lose(&mut self, number: u64, asked_at: Timestamp, now: Timestamp) {
        if number == self.number
            && let Some(known) = &mut self.known
            && asked_at >= known.asked_at
        {
            known.asked_at = asked_at;
            known.horizon = known.horizon.min(now);
            // Nothing is left to renew, though what was cut has not ended yet.
            known.renew_at = known.renew_at.max(known.horizon);
        }
    }

    /// A renewal was not answered; the next one is tried a while later.
    pub fn put_off_renewal(&mut self, now: Timestamp) {
        if let Some(known) = &mut self.known {
            let again = before(known.horizon, now, RENEWALS_APART_MS);
            known.renew_at = known.renew_at.max(again);
        }
    }

    /// Whether something may be sent now: before the end of lease and horizon, less the guard.
    #[must_use]
    pub fn may_start(&self, now: Timestamp) -> bool {
        self.known.is_some_and(|known| {
            let end = known.deadline.min(known.horizon);
            now < end.minus_ms(known.guard_ms)
        })
    }

    /// Sends what has asked, if it may be sent now. `false`: it may not; it asks anew or is given up.
    #[must_use]
    pub fn start(&mut self, now: Timestamp) -> bool {
        if self.asking == 0 || !self.may_start(now) {
            return false;
        }
        self.asking = self.asking.saturating_sub(1);
        self.running = self.running.saturating_add(1);
        true
    }

    /// What has asked is not sent. Returns the registration to delete, as [`Presence::finish`] does.
    pub fn give_up(&mut self) -> Option<u64> {
        self.asking = self.asking.saturating_sub(1);
        self.close_if_idle()
    }

    /// An attempt has ended, or was cut. When nothing is in flight and nothing about to be sent, it returns the
    /// registration to delete; whoever asks after that registers anew, so a delete that comes late does no harm.
    pub fn finish(&mut self) -> Option<u64> {
        self.running = self.running.saturating_sub(1);
        self.close_if_idle()
    }

    /// The lease may have ended or moved: what is in flight is asked about now, not only when it is due.
    pub fn ask_soon(&mut self, now: Timestamp) {
        if let Some(known) = &mut self.known {
            known.renew_at = known.renew_at.min(now);
        }
    }

    /// When to renew next; `None` with nothing in flight, or when the horizon is too near.
    #[must_use]
    pub fn renew_at(&self) -> Option<Timestamp> {
        let known = self.known.filter(|_| self.running > 0)?;
        (known.renew_at < known.horizon).then_some(known.renew_at)
    }

    /// When everything in flight is cut; `None` with nothing in flight.
    #[must_use]
    pub fn cut_at(&self) -> Option<Timestamp> {
        let known = self.known.filter(|_| self.running > 0)?;
        Some(known.horizon)
    }

    /// The registration that renewals name.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    fn close_if_idle(&mut self) -> Option<u64> {
        if self.asking > 0 || self.running > 0 {
            return None;
        }
        let closed = self.number;
        self.number = self.numbers.next();
        self.known = None;
        Some(closed)
    }
}

/// So long after `from`; when the horizon comes first, half way to it.
fn before(horizon: Timestamp, from: Timestamp, pause_ms: u64) -> Timestamp {
    let left_ms = horizon.remaining_ms(from);
    let pause_ms = if pause_ms < left_ms {
        pause_ms
    } else {
        (left_ms / 2).max(LAST_RENEWALS_APART_MS)
    };
    from.plus_ms(pause_ms)
}
