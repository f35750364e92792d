//! What this replica saw last of leases: of what a look would show, it foresees enough to write without one.
//!
//! Nothing is answered from here. A rule is run on what is foreseen, and what it says is written by a statement that looks
//! whether everything that the rule went by is so (`foreseen`). If not, nothing is written and there is a look. So what is
//! here may be wrong, or missing: that costs one round trip.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation};
use tidegate_core::lease::{
    ActivityName, Change, Fence, Generation, Lease, LeaseId, OwnerHash, Stored as _,
};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::Foresight;

use super::foreseen::Outcome;
use crate::number::moment;
use crate::rows::leases::{Found, Scope, generation};

/// Most owners, connections and registrations that are known, of each; with one more all are forgotten.
const MAX_KNOWN: usize = 16_384;

/// See the module's own text.
#[derive(Debug, Default)]
pub(in super::super) struct Recent {
    known: Mutex<Known>,
    counted: Counted,
}

/// What [`Foresight`] is made of.
#[derive(Debug, Default)]
struct Counted {
    foreseen: AtomicU64,
    wrong: AtomicU64,
    unknown: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// The database's time, and when it was told.
    clock: Option<(Timestamp, Instant)>,
    owners: BTreeMap<OwnerHash, Owner>,
    connections: BTreeMap<ConnectionId, Place>,
    /// Last registrations by data planes under leases of owners.
    registrations: BTreeMap<(OwnerHash, PlaneIncarnation), u64>,
}

#[derive(Debug)]
struct Owner {
    own: Option<Lease>,
    last_generation: Option<Generation>,
}

/// What keeps a connection from being given away.
#[derive(Debug)]
enum Place {
    /// The row that has not ended.
    Held(Lease),
    /// Something is registered on it, over or not.
    InFlight,
}

impl Recent {
    /// What a look would show now; `None` where that is not to be foreseen.
    pub(super) fn foresee(&self, scope: &Scope<'_>, at: Instant) -> Option<Found> {
        let known = self.known.lock();
        let now = known.now(at)?;
        let owner = known.owners.get(&scope.owner);
        let mut leases: Vec<Lease> = owner
            .and_then(|owner| owner.own.clone())
            .into_iter()
            .collect();
        for eligible in scope.eligible {
            match known.connections.get(&eligible.connection) {
                Some(Place::InFlight) => return None,
                Some(Place::Held(lease)) if lease.owner != scope.owner => {
                    leases.push(lease.clone());
                }
                Some(Place::Held(_)) | None => {}
            }
        }
        let last = owner.and_then(|owner| owner.last_generation);
        let present = (moment(now), last.map(generation));
        Found::new(scope, leases, Vec::new(), None, present).ok()
    }

    /// The owner's row that has not ended, and the present.
    pub(super) fn lease(&self, owner: OwnerHash, at: Instant) -> Option<(Lease, Timestamp)> {
        let known = self.known.lock();
        let own = known.owners.get(&owner)?.own.clone()?;
        Some((own, known.now(at)?))
    }

    /// Whether this registration was the last one of its data plane.
    pub(super) fn is_registered(&self, asked: &Fence<'_>) -> bool {
        let known = self.known.lock();
        known.registrations.get(&(asked.lease.owner, asked.plane)) == Some(&asked.number)
    }

    /// What a look showed, which was answered at this moment.
    pub(super) fn saw(&self, scope: &Scope<'_>, found: &Found, at: Instant) {
        let rows = found.rows();
        let mut known = self.known.lock();
        known.tell_time(found.now, at);
        for eligible in scope.eligible {
            known.connections.remove(&eligible.connection);
        }
        for in_flight in rows.in_flight {
            let there = in_flight.activity.connection.clone();
            known.connections.insert(there, Place::InFlight);
        }
        for lease in rows.held {
            known.holds(lease);
        }
        known.knows(scope.owner, rows.own.cloned(), rows.last_generation);
    }

    /// The owner's row, seen together with this time.
    pub(super) fn saw_lease(&self, lease: &Lease, now: Timestamp, at: Instant) {
        let mut known = self.known.lock();
        known.tell_time(now, at);
        // The last one is that of the row which has not ended.
        known.knows(lease.owner, Some(lease.clone()), Some(lease.generation));
    }

    /// What was written, and the places of rows that were made.
    pub(super) fn wrote(&self, owner: OwnerHash, changes: &[Change], opened: &[(LeaseId, u64)]) {
        let mut known = self.known.lock();
        for change in changes {
            known.changes(owner, change, opened);
        }
    }

    /// A data plane registered.
    pub(super) fn registered(&self, asked: &Fence<'_>) {
        let mut known = self.known.lock();
        let of = (asked.lease.owner, asked.plane);
        known.registrations.insert(of, asked.number);
        known.bound();
    }

    /// A registration ended.
    pub(super) fn ended(&self, name: &ActivityName) {
        let mut known = self.known.lock();
        let of = (name.lease.owner, name.plane);
        if known
            .registrations
            .get(&of)
            .is_some_and(|number| *number <= name.number)
        {
            known.registrations.remove(&of);
        }
    }

    /// The owner has nothing.
    pub(super) fn forget(&self, owner: OwnerHash) {
        self.known.lock().owners.remove(&owner);
    }

    /// What was foreseen for this owner was not so, be it the time.
    pub(super) fn was_wrong(&self, owner: OwnerHash) {
        let mut known = self.known.lock();
        known.owners.remove(&owner);
        known.clock = None;
    }

    /// Counts what became of what was foreseen, and gives what was written.
    pub(super) fn came_to<T>(&self, outcome: Outcome<T>) -> Option<T> {
        let (counted, written) = match outcome {
            Outcome::Foreseen(written) => (&self.counted.foreseen, Some(written)),
            Outcome::Wrong => (&self.counted.wrong, None),
            Outcome::Unknown => (&self.counted.unknown, None),
        };
        counted.fetch_add(1, Ordering::Relaxed);
        written
    }

    /// What was counted so far.
    pub(super) fn foresight(&self) -> Foresight {
        let of = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        Foresight {
            foreseen: of(&self.counted.foreseen),
            wrong: of(&self.counted.wrong),
            unknown: of(&self.counted.unknown),
        }
    }
}

impl Known {
    /// The database's time, or a little earlier.
    fn now(&self, at: Instant) -> Option<Timestamp> {
        let (told, since) = self.clock?;
        let passed = at.saturating_duration_since(since).as_millis();
        Some(told.plus_ms(u64::try_from(passed).ok()?))
    }

    /// Answers come late, each by another time, so the latest time is the nearest.
    fn tell_time(&mut self, now: Timestamp, at: Instant) {
        if self.now(at).is_none_or(|known| known < now) {
            self.clock = Some((now, at));
        }
    }

    fn knows(&mut self, owner: OwnerHash, own: Option<Lease>, last: Option<Generation>) {
        if let Some(own) = &own {
            self.holds(own);
        }
        let owner_now = Owner {
            own,
            last_generation: last,
        };
        self.owners.insert(owner, owner_now);
        self.bound();
    }

    fn holds(&mut self, lease: &Lease) {
        let place = Place::Held(lease.clone());
        self.connections.insert(lease.connection.clone(), place);
        self.bound();
    }

    fn changes(&mut self, owner: OwnerHash, change: &Change, opened: &[(LeaseId, u64)]) {
        match change {
            Change::Open { lease, .. } => {
                let mut own = lease.clone();
                for (made, sequence) in opened.iter().copied() {
                    own.stored(made, sequence);
                }
                self.knows(owner, Some(own), Some(lease.generation));
            }
            Change::Extend {
                lease,
                renewed_at,
                expires_at,
                ..
            } => {
                let own = self.owners.get(&owner).and_then(|known| known.own.clone());
                if let Some(own) = own.filter(|own| own.id == *lease) {
                    let (renewed_at, expires_at) = (*renewed_at, *expires_at);
                    let own = Lease {
                        renewed_at,
                        expires_at,
                        ..own
                    };
                    let last = Some(own.generation);
                    self.knows(owner, Some(own), last);
                }
            }
            Change::End { lease, .. } => {
                let Some(known) = self.owners.get_mut(&owner) else {
                    return;
                };
                if let Some(own) = known.own.take_if(|own| own.id == *lease) {
                    self.connections.remove(&own.connection);
                }
            }
            Change::Forget(_) => {}
        }
    }

    /// More is known after some looks anyway.
    fn bound(&mut self) {
        let most = (self.owners.len())
            .max(self.connections.len())
            .max(self.registrations.len());
        if most > MAX_KNOWN {
            self.owners.clear();
            self.connections.clear();
            self.registrations.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn owner(number: usize) -> OwnerHash {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        OwnerHash::from_bytes(bytes)
    }

    fn nothing(scope: &Scope<'_>, now: i64) -> Found {
        Found::new(scope, Vec::new(), Vec::new(), None, (now, Some(7))).unwrap()
    }

    #[test]
    fn the_present_is_the_latest_that_was_told() {
        let (recent, scope, began) = (Recent::default(), Scope::of(owner(1)), Instant::now());
        assert!(recent.foresee(&scope, began).is_none());
        recent.saw(&scope, &nothing(&scope, 1_000), began);
        let later = began + Duration::from_millis(50);
        assert_eq!(recent.foresee(&scope, later).unwrap().now, Timestamp(1_050));
        // The first answer was longer on its way than the one before, the second less long.
        for (told, known) in [(1_030, 1_050), (1_055, 1_055)] {
            recent.saw(&scope, &nothing(&scope, told), later);
            assert_eq!(recent.foresee(&scope, later).unwrap().now, Timestamp(known));
        }
        recent.was_wrong(owner(1));
        assert!(recent.foresee(&scope, later).is_none());
    }

    #[test]
    fn no_more_is_known_than_there_is_room_for() {
        let (recent, at) = (Recent::default(), Instant::now());
        let last = |number: usize| {
            let found = recent.foresee(&Scope::of(owner(number)), at).unwrap();
            found.rows().last_generation
        };
        for number in 0..MAX_KNOWN {
            let scope = Scope::of(owner(number));
            recent.saw(&scope, &nothing(&scope, 1_000), at);
        }
        assert!(last(0).is_some());
        let scope = Scope::of(owner(MAX_KNOWN));
        recent.saw(&scope, &nothing(&scope, 1_000), at);
        assert!(recent.known.lock().owners.is_empty());
        assert_eq!(last(0), None);
    }
}
