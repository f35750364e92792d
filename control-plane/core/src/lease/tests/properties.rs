//! Random commands of several owners, keys and data planes, with lost answers, late cuts and an authority that is away.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::ids::{ConnectionId, PlaneIncarnation};
use crate::lease::{LeaseName, Placement, Presence, RegistrationNumbers};
use crate::settings::LeaseSettings;
use crate::time::Timestamp;

use super::table::{T0, Table, connection, owner};

const OWNERS: [char; 2] = ['A', 'B'];
const KEYS: [&str; 2] = ["k1", "k2"];
const CONNECTIONS: [&str; 2] = ["c1", "c2"];
const PLANES: u64 = 2;

/// Where a data plane has attempts.
type Spot = (PlaneIncarnation, LeaseName, ConnectionId);

#[derive(Clone, Debug)]
enum Command {
    Acquire {
        owner: char,
        key: &'static str,
        among: Vec<&'static str>,
    },
    Renew {
        owner: char,
        key: &'static str,
        generation: Option<u64>,
    },
    Release {
        owner: char,
        key: &'static str,
        generation: Option<u64>,
    },
    /// A request is placed, fenced and started; `late_ms` passed since the fence was asked for. Without the authority it
    /// starts on what the data plane knows.
    Dispatch {
        owner: char,
        generation: Option<u64>,
        plane: u64,
        among: Vec<&'static str>,
        late_ms: u64,
        away: bool,
    },
    /// An owner acquires whatever is free and sends at once: what a late end of somebody else's attempt would meet.
    Contend { owner: char, plane: u64 },
    /// One attempt ends; the delete may be under way for long.
    Finish { pick: usize, late: bool },
    /// A delete that was under way arrives.
    Delete { pick: usize },
    /// A data plane forgets what is idle.
    Tidy { plane: u64 },
    /// What is in flight is renewed; the answer may get lost.
    RenewActivity {
        pick: usize,
        late_ms: u64,
        lost: bool,
    },
}

fn among() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(CONNECTIONS.to_vec(), 1..=CONNECTIONS.len()).prop_shuffle()
}

fn command() -> impl Strategy<Value = Command> {
    let key = || prop_oneof![4 => Just(KEYS[0]), 1 => Just(KEYS[1])];
    let who = move || (proptest::sample::select(&OWNERS[..]), key());
    // Mostly the owner's lease of now.
    let generation = || prop_oneof![4 => Just(None), 1 => (1_u64..4).prop_map(Some)];
    let late_ms = || prop_oneof![Just(0), 0_u64..400];
    prop_oneof![
        4 => (who(), among()).prop_map(|((owner, key), among)| Command::Acquire { owner, key, among }),
        4 => (who(), 0..PLANES).prop_map(|((owner, _), plane)| Command::Contend { owner, plane }),
        2 => (who(), generation())
            .prop_map(|((owner, key), generation)| Command::Renew { owner, key, generation }),
        2 => (who(), generation())
            .prop_map(|((owner, key), generation)| Command::Release { owner, key, generation }),
        6 => (who(), generation(), 0..PLANES, among(), late_ms(), prop::bool::weighted(0.25)).prop_map(
            |((owner, _), generation, plane, among, late_ms, away)| Command::Dispatch {
                owner, generation, plane, among, late_ms, away,
            }
        ),
        3 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(pick, late)| Command::Finish { pick: pick.index(64), late }),
        2 => any::<prop::sample::Index>().prop_map(|pick| Command::Delete { pick: pick.index(64) }),
        2 => (0..PLANES).prop_map(|plane| Command::Tidy { plane }),
        3 => (any::<prop::sample::Index>(), late_ms(), any::<bool>()).prop_map(
            |(pick, late_ms, lost)| Command::RenewActivity { pick: pick.index(64), late_ms, lost }
        ),
    ]
}

/// How time goes on.
#[derive(Clone, Copy, Debug)]
enum Pass {
    By(u64),
    /// To the next moment at which a lease or a registration ends, or so long before it.
    ToNextEnd {
        before_ms: u64,
    },
}

fn pass() -> impl Strategy<Value = Pass> {
    prop_oneof![
        3 => (0_u64..50).prop_map(Pass::By),
        1 => (0_u64..5_000).prop_map(Pass::By),
        1 => Just(Pass::ToNextEnd { before_ms: 0 }),
        2 => (0_u64..1_000).prop_map(|before_ms| Pass::ToNextEnd { before_ms }),
    ]
}

struct World {
    table: Table,
    presences: BTreeMap<Spot, Presence>,
    /// Of each data plane.
    numbers: BTreeMap<PlaneIncarnation, RegistrationNumbers>,
    /// Deletes under way. What never arrives here is lost.
    deletes: Vec<(Spot, u64)>,
    now: Timestamp,
}

impl World {
    fn new(settings: LeaseSettings) -> Self {
        let mut table = Table::new();
        table.settings = settings;
        table.ttl_ms = 20_000;
        Self {
            table,
            presences: BTreeMap::new(),
            numbers: BTreeMap::new(),
            deletes: Vec::new(),
            now: T0,
        }
    }

    fn run(&mut self, command: Command) {
        let now = self.now;
        // Refusals are as good as grants here: only what they leave behind counts.
        match command {
            Command::Acquire {
                owner: letter,
                key,
                among,
            } => {
                drop(self.table.acquire_one_of(owner(letter), key, &among, now));
            }
            Command::Renew {
                owner: letter,
                key,
                generation,
            } => {
                let number = self.of_now(letter, generation);
                drop(self.table.renew(owner(letter), key, number, now));
            }
            Command::Release {
                owner: letter,
                key,
                generation,
            } => {
                let number = self.of_now(letter, generation);
                drop(self.table.release(owner(letter), key, number, now));
            }
            Command::Dispatch {
                owner: letter,
                generation,
                plane,
                among,
                late_ms,
                away,
            } => {
                let number = self.of_now(letter, generation);
                let placed = self.table.place(owner(letter), number, None, &among, now);
                if let Ok(Placement::Lease(lease)) = placed {
                    let spot = (PlaneIncarnation(plane), lease.name(), lease.connection);
                    self.dispatch(&spot, now.minus_ms(late_ms), away);
                }
            }
            Command::Contend {
                owner: letter,
                plane,
            } => {
                let acquired = self
                    .table
                    .acquire_one_of(owner(letter), KEYS[0], &CONNECTIONS, now);
                if let Ok(lease) = acquired {
                    let spot = (PlaneIncarnation(plane), lease.name(), lease.connection);
                    self.dispatch(&spot, now, false);
                }
            }
            Command::Finish { pick, late } => {
                if let Some(spot) = self.running(pick) {
                    self.finish(&spot, late);
                }
            }
            Command::Delete { pick } => {
                if let Some(pick) = pick.checked_rem(self.deletes.len()) {
                    let ((plane, lease, on), closed) = self.deletes.swap_remove(pick);
                    self.table.delete_activity(lease, &on, plane, closed);
                }
            }
            Command::Tidy { plane } => {
                let plane = PlaneIncarnation(plane);
                self.presences
                    .retain(|spot, presence| spot.0 != plane || presence.cut_at().is_some());
            }
            Command::RenewActivity {
                pick,
                late_ms,
                lost,
            } => {
                if let Some(spot) = self.running(pick) {
                    self.renew(&spot, now.minus_ms(late_ms), lost);
                }
            }
        }
    }

    /// The generation that is meant: the owner's lease of now, unless it is said.
    fn of_now(&self, letter: char, generation: Option<u64>) -> u64 {
        let own = self
            .table
            .own(owner(letter))
            .map(|own| own.generation.number());
        generation.or(own).unwrap_or(1)
    }

    fn dispatch(&mut self, spot: &Spot, asked_at: Timestamp, away: bool) {
        let (plane, lease, on) = spot;
        let numbers = self
            .numbers
            .entry(*plane)
            .or_insert_with(RegistrationNumbers::of_new_incarnation);
        let presence = self
            .presences
            .entry(spot.clone())
            .or_insert_with(|| Presence::new(numbers));
        let number = presence.ask();
        if !away {
            match self.table.fence(*lease, on, *plane, number, self.now) {
                Ok(grant) => presence.granted(number, asked_at, grant),
                Err(_) => presence.bar(self.now),
            }
        }
        if !presence.start(self.now)
            && let Some(closed) = presence.give_up()
        {
            self.table.delete_activity(*lease, on, *plane, closed);
        }
    }

    fn finish(&mut self, spot: &Spot, late: bool) {
        let (plane, lease, on) = spot;
        let closed = self.presences.get_mut(spot).and_then(Presence::finish);
        match closed {
            Some(closed) if late => self.deletes.push((spot.clone(), closed)),
            Some(closed) => self.table.delete_activity(*lease, on, *plane, closed),
            None => {}
        }
    }

    fn renew(&mut self, spot: &Spot, asked_at: Timestamp, lost: bool) {
        let (plane, lease, on) = spot;
        let Some(presence) = self.presences.get_mut(spot) else {
            return;
        };
        let number = presence.number();
        let answer = self
            .table
            .renew_activity(*lease, on, *plane, number, self.now);
        match answer {
            _ if lost => presence.put_off_renewal(self.now),
            Some(grant) => presence.granted(number, asked_at, grant),
            None => presence.lose(number, asked_at, self.now),
        }
    }

    /// One of those with something in flight.
    fn running(&self, pick: usize) -> Option<Spot> {
        let running: Vec<&Spot> = self
            .presences
            .iter()
            .filter(|(_, presence)| presence.cut_at().is_some())
            .map(|(spot, _)| spot)
            .collect();
        let index = pick.checked_rem(running.len())?;
        running.get(index).map(|spot| (*spot).clone())
    }

    /// Time passes. Every data plane stands still at its horizon and cuts as late as the guard lets it.
    fn pass(&mut self, pass: Pass) {
        let leases = self.table.leases.iter().filter(|row| row.ended.is_none());
        let ends = leases.map(|row| row.expires_at);
        let registered = self.table.activity.iter().map(|activity| activity.until);
        let next = ends.chain(registered).filter(|end| *end > self.now).min();
        self.now = match pass {
            Pass::By(ms) => self.now.plus_ms(ms),
            Pass::ToNextEnd { before_ms } => {
                next.map_or(self.now, |next| next.minus_ms(before_ms).max(self.now))
            }
        };
        let guard_ms = self.table.settings.guard_ms;
        while let Some(spot) = self.presences.iter().find_map(|(spot, presence)| {
            let late = presence.cut_at()?.plus_ms(guard_ms);
            (late <= self.now).then(|| spot.clone())
        }) {
            self.finish(&spot, true);
        }
    }

    fn check(&mut self) {
        let live: Vec<_> = self
            .table
            .leases
            .iter()
            .filter(|row| row.is_live(self.now))
            .collect();
        let owners: BTreeSet<_> = live.iter().map(|row| row.owner).collect();
        let connections: BTreeSet<_> = live.iter().map(|row| row.connection.clone()).collect();
        assert_eq!(owners.len(), live.len(), "one lease of an owner");
        assert_eq!(connections.len(), live.len(), "one lease of a connection");

        for row in &self.table.leases {
            assert!(
                self.table.last.get(&row.owner) >= Some(&row.generation),
                "no generation twice"
            );
        }
        for on in CONNECTIONS.map(connection) {
            let names: BTreeSet<LeaseName> = self
                .table
                .leases
                .iter()
                .map(crate::lease::Lease::name)
                .collect();
            let passing = names
                .into_iter()
                .filter(|name| {
                    let asker = PlaneIncarnation(u64::MAX);
                    let passes = self.table.fence(*name, &on, asker, 1, self.now).is_ok();
                    self.table.delete_activity(*name, &on, asker, 1);
                    passes
                })
                .count();
            assert!(passing <= 1, "a fence lets two leases pass");

            let sending: BTreeSet<LeaseName> = self
                .presences
                .iter()
                .filter(|((_, _, at), presence)| *at == on && presence.cut_at().is_some())
                .map(|((_, name, _), _)| *name)
                .collect();
            assert!(
                sending.len() <= 1,
                "two leases have attempts in flight on a connection"
            );
        }
    }
}

fn settings() -> impl Strategy<Value = LeaseSettings> {
    (
        3_000_u64..12_000,
        100_u64..1_000,
        prop_oneof![Just(0), 1_u64..10_000],
    )
        .prop_map(|(horizon_ms, guard_ms, drain_ms)| LeaseSettings {
            horizon_ms,
            guard_ms,
            drain_ms,
            ..LeaseSettings::default()
        })
}

proptest! {
    #[test]
    fn one_owner_at_a_time(
        settings in settings(),
        steps in proptest::collection::vec((command(), pass()), 1..80),
    ) {
        let mut world = World::new(settings);
        for (command, pass) in steps {
            world.run(command);
            world.check();
            world.pass(pass);
            world.check();
        }
    }
}
