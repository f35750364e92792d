//! The rows of a store, with its unique indexes.

use std::collections::BTreeMap;

use crate::ids::{ConnectionId, KeyId, PlaneIncarnation, ProviderId};
use crate::lease::{
    Acquire, Activity, Change, Eligibility, Eligible, EndReason, Fence, FenceError, Generation,
    Grant, Granted, InFlight, Inference, LEASE_TTL_MS, Lease, LeaseError, LeaseId, LeaseName,
    Named, OwnerHash, Placement, Rows, Step, acquire, fence, place, release, renew, renew_activity,
    status,
};
use crate::settings::LeaseSettings;
use crate::time::Timestamp;

/// 2026-08-12T19:30:00.000Z
pub(super) const T0: Timestamp = Timestamp(1_786_563_000_000);

pub(super) fn at(ms: u64) -> Timestamp {
    T0.plus_ms(ms)
}

/// The owner whose token is 43 times this letter.
pub(super) fn owner(letter: char) -> OwnerHash {
    let token = format!("vlo_{}", String::from(letter).repeat(43));
    OwnerHash::of_header(Some(token.as_bytes())).unwrap()
}

pub(super) fn key(name: &str) -> KeyId {
    KeyId::new(name).unwrap()
}

pub(super) fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

pub(super) fn generation(number: u64) -> Generation {
    Generation::try_from(number).unwrap()
}

pub(super) fn eligible(names: &[&str]) -> Vec<Eligible> {
    names
        .iter()
        .map(|name| Eligible {
            provider: ProviderId::new("p").unwrap(),
            connection: connection(name),
        })
        .collect()
}

/// The table, and how long leases last that are asked for.
pub(super) struct Table {
    pub(super) leases: Vec<Lease>,
    pub(super) last: BTreeMap<OwnerHash, Generation>,
    pub(super) activity: Vec<Activity>,
    pub(super) settings: LeaseSettings,
    pub(super) ttl_ms: u64,
    /// Why ordinary selection excludes what it excludes.
    pub(super) why: Option<EndReason>,
    ids: u128,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            leases: Vec::new(),
            last: BTreeMap::new(),
            activity: Vec::new(),
            settings: LeaseSettings {
                guard_ms: 2_000,
                ..LeaseSettings::default()
            },
            ttl_ms: LEASE_TTL_MS,
            why: Some(EndReason::HealthOrCooldown),
            ids: 0,
        }
    }

    pub(super) fn acquire(
        &mut self,
        who: OwnerHash,
        with: &str,
        eligibility: Eligibility<'_>,
        now: Timestamp,
    ) -> Result<Lease, LeaseError> {
        let (id, with, why) = (self.next_id(), key(with), self.why);
        let why = |_: &ConnectionId| why;
        let asked = Acquire {
            id,
            owner: who,
            key: &with,
            eligibility,
            why: &why,
            ttl_ms: self.ttl_ms,
        };
        let candidates = match eligibility {
            Eligibility::Some(candidates) => candidates,
            Eligibility::UnknownModel | Eligibility::None | Eligibility::Blocked => &[],
        };
        let step = self.with_rows(who, candidates, |rows, settings| {
            acquire(rows, &asked, settings, now)
        });
        self.commit(step)
    }

    pub(super) fn acquire_one_of(
        &mut self,
        who: OwnerHash,
        with: &str,
        names: &[&str],
        now: Timestamp,
    ) -> Result<Lease, LeaseError> {
        self.acquire(who, with, Eligibility::Some(&eligible(names)), now)
    }

    /// An inference request with key `k1` and this generation.
    pub(super) fn place(
        &mut self,
        who: OwnerHash,
        number: u64,
        forced: Option<&str>,
        names: &[&str],
        now: Timestamp,
    ) -> Result<Placement, LeaseError> {
        let (id, with, why, forced) = (self.next_id(), key("k1"), self.why, forced.map(connection));
        let why = |_: &ConnectionId| why;
        let candidates = eligible(names);
        let asked = Inference {
            id,
            name: LeaseName {
                owner: who,
                generation: generation(number),
            },
            key: &with,
            forced: forced.as_ref(),
            candidates: &candidates,
            why: &why,
        };
        let step = self.with_rows(who, &candidates, |rows, settings| {
            place(rows, &asked, settings, now)
        });
        self.commit(step)
    }

    pub(super) fn renew(
        &mut self,
        who: OwnerHash,
        with: &str,
        number: u64,
        now: Timestamp,
    ) -> Result<Lease, LeaseError> {
        let with = key(with);
        let step = renew(self.own(who), named(&with, number), self.ttl_ms, now);
        self.commit(step)
    }

    pub(super) fn release(
        &mut self,
        who: OwnerHash,
        with: &str,
        number: u64,
        now: Timestamp,
    ) -> Result<Lease, LeaseError> {
        let with = key(with);
        let named = named(&with, number);
        let newest = self
            .leases
            .iter()
            .rfind(|lease| lease.owner == who && lease.generation == named.generation);
        let step = release(
            self.own(who),
            newest,
            named,
            EndReason::ClientCancelled,
            now,
        );
        self.commit(step)
    }

    pub(super) fn status(
        &self,
        who: OwnerHash,
        with: &str,
        number: u64,
        now: Timestamp,
    ) -> Result<Lease, LeaseError> {
        status(self.own(who), named(&key(with), number), now).cloned()
    }

    /// A data plane asks with key `k1` whether it may send.
    pub(super) fn fence(
        &mut self,
        lease: LeaseName,
        on: &ConnectionId,
        plane: PlaneIncarnation,
        number: u64,
        now: Timestamp,
    ) -> Result<Grant, FenceError> {
        let with = key("k1");
        let asked = Fence {
            lease,
            key: &with,
            connection: on,
            plane,
            number,
        };
        let stored = self.registered(lease, on, plane);
        let granted = fence(self.own(lease.owner), stored, &asked, &self.settings, now)?;
        Ok(self.register(granted, now))
    }

    /// A data plane asks to go on.
    pub(super) fn renew_activity(
        &mut self,
        lease: LeaseName,
        on: &ConnectionId,
        plane: PlaneIncarnation,
        number: u64,
        now: Timestamp,
    ) -> Option<Grant> {
        let stored = self.registered(lease, on, plane);
        let newest = self.newest_on(lease, on);
        let granted = renew_activity(stored, newest, number, &self.settings, now)?;
        Some(self.register(granted, now))
    }

    /// A data plane says that nothing is in flight any more.
    pub(super) fn delete_activity(
        &mut self,
        lease: LeaseName,
        on: &ConnectionId,
        plane: PlaneIncarnation,
        number: u64,
    ) {
        self.activity
            .retain(|stored| !is_of(stored, lease, on, plane) || !stored.ends_with(number));
    }

    fn registered(
        &self,
        lease: LeaseName,
        on: &ConnectionId,
        plane: PlaneIncarnation,
    ) -> Option<&Activity> {
        self.activity
            .iter()
            .find(|stored| is_of(stored, lease, on, plane))
    }

    fn register(&mut self, granted: Granted, now: Timestamp) -> Grant {
        if let Some(write) = granted.write {
            let before = self
                .activity
                .iter()
                .position(|stored| is_of(stored, write.lease, &write.connection, write.plane))
                .map(|index| self.activity.remove(index));
            if let Some(before) = before {
                assert!(before.until <= write.until, "what was promised stays");
                assert!(
                    before.number <= write.number || before.until <= now,
                    "numbers do not fall"
                );
            }
            self.activity.push(write);
        }
        granted.grant
    }

    /// The row of the owner that has not ended.
    pub(super) fn own(&self, who: OwnerHash) -> Option<&Lease> {
        self.leases
            .iter()
            .find(|lease| lease.owner == who && lease.ended.is_none())
    }

    pub(super) fn by_id(&self, id: LeaseId) -> &Lease {
        self.leases.iter().find(|lease| lease.id == id).unwrap()
    }

    /// The newest row of a lease on a connection.
    pub(super) fn newest_on(&self, lease: LeaseName, on: &ConnectionId) -> &Lease {
        self.leases
            .iter()
            .rfind(|row| row.name() == lease && row.connection == *on)
            .unwrap()
    }

    fn with_rows<T>(
        &self,
        who: OwnerHash,
        candidates: &[Eligible],
        rule: impl FnOnce(&Rows<'_>, &LeaseSettings) -> Step<T>,
    ) -> Step<T> {
        let on_candidate = |held: &ConnectionId| candidates.iter().any(|to| to.connection == *held);
        let held: Vec<Lease> = self
            .leases
            .iter()
            .filter(|lease| lease.ended.is_none() && on_candidate(&lease.connection))
            .cloned()
            .collect();
        let in_flight: Vec<InFlight> = self
            .activity
            .iter()
            .filter(|activity| on_candidate(&activity.connection))
            .map(|activity| InFlight {
                activity: activity.clone(),
                lease: self.newest_on(activity.lease, &activity.connection).clone(),
            })
            .collect();
        let rows = Rows {
            last_generation: self.last.get(&who).copied(),
            own: self.own(who),
            held: &held,
            in_flight: &in_flight,
        };
        rule(&rows, &self.settings)
    }

    pub(super) fn commit<T>(&mut self, step: Step<T>) -> Result<T, LeaseError> {
        for change in step.changes {
            self.write(change);
        }
        step.answer
    }

    /// Writes a row and holds the indexes against all rows.
    pub(super) fn write(&mut self, change: Change) {
        match change {
            Change::End { lease, seen, ended } => {
                let row = self.row(lease);
                assert_eq!(row.ended, None, "a row ends once");
                assert_eq!(row.expires_at, seen);
                row.ended = Some(ended);
            }
            Change::Extend {
                lease,
                seen,
                renewed_at,
                expires_at,
            } => {
                let row = self.row(lease);
                assert_eq!(row.ended, None, "what ended does not last longer");
                assert_eq!(row.expires_at, seen);
                (row.renewed_at, row.expires_at) = (renewed_at, expires_at);
            }
            Change::Forget(activity) => self.activity.retain(|stored| *stored != activity),
            Change::Open { lease, begins } => {
                if begins {
                    let before = self.last.insert(lease.owner, lease.generation);
                    assert!(before.is_none_or(|before| before < lease.generation));
                }
                let mut active = self.leases.iter().filter(|row| row.ended.is_none());
                assert!(
                    active.all(|row| row.id != lease.id
                        && row.owner != lease.owner
                        && row.connection != lease.connection),
                    "one row of an owner and of a connection"
                );
                self.leases.push(lease);
            }
        }
    }

    fn row(&mut self, id: LeaseId) -> &mut Lease {
        self.leases.iter_mut().find(|lease| lease.id == id).unwrap()
    }

    fn next_id(&mut self) -> LeaseId {
        self.ids += 1;
        LeaseId(self.ids)
    }
}

fn is_of(stored: &Activity, lease: LeaseName, on: &ConnectionId, plane: PlaneIncarnation) -> bool {
    stored.lease == lease && stored.connection == *on && stored.plane == plane
}

fn named(with: &KeyId, number: u64) -> Named<'_> {
    Named {
        generation: generation(number),
        key: with,
    }
}
