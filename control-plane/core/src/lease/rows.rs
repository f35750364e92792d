//! What a command about leases reads and writes. A rule sees rows as they stood at one moment and answers with the rows to
//! write; it is run again when one of them does not stand as it was seen any more, or a unique index says that another
//! command was first.

use std::collections::BTreeMap;

use crate::ids::{ConnectionId, ProviderId};
use crate::time::Timestamp;

use super::{Activity, Capacity, EndReason, Ended, Generation, Lease, LeaseError, LeaseId};

/// A connection that ordinary selection would use for the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eligible {
    /// Its provider.
    pub provider: ProviderId,
    /// The connection.
    pub connection: ConnectionId,
}

/// What is looked at to give a connection away, all of it at one moment, and not later than the time that the rule is
/// given.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The last generation that the owner ever had.
    pub last_generation: Option<Generation>,
    /// The owner's row that has not ended, overdue or not.
    pub own: Option<&'a Lease>,
    /// The rows of eligible connections that have not ended, overdue or not.
    pub held: &'a [Lease],
    /// What is registered on eligible connections, over or not.
    pub in_flight: &'a [InFlight],
}

/// Attempts that a data plane has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The registration.
    pub activity: Activity,
    /// The newest row of its lease on its connection, over or not.
    pub lease: Lease,
}

/// A row to write. They are written in order: one row ends before the next one of its owner or connection begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A row ends.
    End {
        /// Which.
        lease: LeaseId,
        /// Its expiry as it was seen: one that was extended since does not end.
        seen: Timestamp,
        /// When and why.
        ended: Ended,
    },
    /// A row lasts longer.
    Extend {
        /// Which.
        lease: LeaseId,
        /// Its expiry as it was seen. Once that is past, nothing makes the row hold again.
        seen: Timestamp,
        /// When it was asked for.
        renewed_at: Timestamp,
        /// Its new end.
        expires_at: Timestamp,
    },
    /// A registration is over: nobody may renew it any more.
    Forget(Activity),
    /// A new row.
    Open {
        /// It.
        lease: Lease,
        /// Whether it begins its generation, which is then remembered as the owner's last and must be larger than the one
        /// before. Otherwise the lease moves here.
        begins: bool,
    },
}

impl Change {
    /// The row that it ends, if it does nothing else.
    #[must_use]
    pub fn ends(&self) -> Option<LeaseId> {
        match self {
            Self::End { lease, .. } => Some(*lease),
            Self::Extend { .. } | Self::Forget(_) | Self::Open { .. } => None,
        }
    }
}

/// What a rule says. The changes hold also with a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<T> {
    /// What to write, in order.
    pub changes: Vec<Change>,
    /// What to answer once that is committed.
    pub answer: Result<T, LeaseError>,
}

/// Ends what is overdue among these rows, so that it does not hold their indexes any more.
#[must_use]
pub fn expire<'a>(leases: impl IntoIterator<Item = &'a Lease>, now: Timestamp) -> Vec<Change> {
    leases
        .into_iter()
        .filter(|lease| lease.ended.is_none() && lease.expires_at <= now)
        .map(|lease| lease.end(EndReason::TtlExpired, now))
        .collect()
}

impl Lease {
    pub(super) fn end(&self, reason: EndReason, now: Timestamp) -> Change {
        Change::End {
            lease: self.id,
            seen: self.expires_at,
            ended: Ended { at: now, reason },
        }
    }
}

impl<'a> Rows<'a> {
    /// The owner's lease, while it holds.
    pub(super) fn live(&self, now: Timestamp) -> Option<&'a Lease> {
        self.own.filter(|own| own.is_live(now))
    }

    /// The first of the connections that nobody has and on which nothing is in flight; without one, when to ask again.
    pub(super) fn first_free<'c>(
        &self,
        candidates: &'c [Eligible],
        drain_ms: u64,
        now: Timestamp,
    ) -> Result<&'c Eligible, LeaseError> {
        let taken = self.taken(drain_ms, now);
        let free = candidates
            .iter()
            .find(|candidate| !taken.contains_key(&candidate.connection));
        free.ok_or_else(|| {
            let ends = candidates
                .iter()
                .filter_map(|candidate| taken.get(&candidate.connection).copied());
            LeaseError::Capacity(Capacity::new(candidates.len(), ends.min(), now))
        })
    }

    /// Makes way on a connection that is given away: ends its row that is overdue, and forgets what was in flight, so that
    /// nothing of it is renewed, whatever a clock says. Others that are overdue are left to the sweep. The owner's own row
    /// is the caller's.
    pub(super) fn vacate(&self, given: &Eligible, now: Timestamp) -> Vec<Change> {
        let own = self.own.map(|own| own.id);
        let held = self
            .held
            .iter()
            .filter(|lease| lease.connection == given.connection && Some(lease.id) != own);
        let past = self
            .in_flight
            .iter()
            .map(|in_flight| &in_flight.activity)
            .filter(|activity| activity.connection == given.connection && activity.until <= now)
            .cloned()
            .map(Change::Forget);
        let mut changes = expire(held, now);
        changes.extend(past);
        changes
    }

    /// Connections that cannot be given away, and until when at least. What drains counts with its whole drain. What is
    /// in flight under the owner's own lease, before it moved, stands in no way when it moves back.
    fn taken(&self, drain_ms: u64, now: Timestamp) -> BTreeMap<&'a ConnectionId, Timestamp> {
        let mut taken = BTreeMap::new();
        for in_flight in self.in_flight {
            let activity = &in_flight.activity;
            let own = self
                .live(now)
                .is_some_and(|own| own.name() == activity.lease);
            if own || activity.until <= now {
                continue;
            }
            let drained = in_flight
                .lease
                .over_since(now)
                .map(|end| end.plus_ms(drain_ms))
                .filter(|drained| *drained > now)
                .unwrap_or(activity.until);
            let end = taken.entry(&activity.connection).or_insert(drained);
            *end = drained.max(*end);
        }
        let live = self.held.iter().filter(|lease| lease.is_live(now));
        taken.extend(live.map(|lease| (&lease.connection, lease.expires_at)));
        taken
    }
}
