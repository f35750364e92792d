//! A data plane's own side of a lease on a connection: what it may start, until when, what it cuts, and when it asks
//! (decision 42). With the authority away it goes on with what it was granted.
//!
//! Times are of one clock of the data plane that goes on while the machine sleeps. Every answer counts from the moment
//! before its question was sent.

use crate::time::Timestamp;

use super::Grant;

/// Questions are at least this far apart, in ms, also when the horizon is near or the authority is away.
pub const RENEWALS_APART_MS: u64 = 1_000;

/// What a data plane has under way under one lease on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
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

impl Default for Presence {
    fn default() -> Self {
        Self::numbered(1)
    }
}

impl Presence {
    /// Whose first registration has this number, at least 1. Who forgets a presence that is idle begins the next one of
    /// the same name with a larger number than it had.
    #[must_use]
    pub fn numbered(number: u64) -> Self {
        Self {
            number: number.max(1),
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
        let pause_ms = (grant.horizon_ms / 3).max(RENEWALS_APART_MS);
        self.known = Some(Known {
            asked_at,
            deadline,
            horizon: asked_at.plus_ms(grant.horizon_ms),
            guard_ms: grant.guard_ms,
            renew_at: asked_at.plus_ms(pause_ms),
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

    /// The registration is gone: the connection may be somebody else's, so what is in flight is cut at once.
    pub fn lose(&mut self, number: u64, now: Timestamp) {
        if number == self.number
            && let Some(known) = &mut self.known
        {
            known.horizon = known.horizon.min(now);
        }
    }

    /// A renewal was not answered; the next one is tried a while later.
    pub fn put_off_renewal(&mut self, now: Timestamp) {
        if let Some(known) = &mut self.known {
            known.renew_at = known.renew_at.max(now.plus_ms(RENEWALS_APART_MS));
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

    /// When to renew next; `None` with nothing in flight, or when the horizon comes first.
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
        self.number = closed.saturating_add(1);
        self.known = None;
        Some(closed)
    }
}
