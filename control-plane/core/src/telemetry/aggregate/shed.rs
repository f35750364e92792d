//! What leaves because all of it together is too large to be passed on.
//!
//! Entries differ in size, so what is within the bounds of each kind can still be larger than a message may be. Then the
//! oldest leave: first a quarter of the latencies and conversations, which weigh most and are replaced soonest; when none
//! are left, of the targets; then of the connections, whose counts strategies miss most; and last what is under way.

use crate::time::Timestamp;

use super::bounds::{Kind, Refused};
use super::{Aggregate, ComboPast, ConnectionPast};

/// So many of a kind leave at once: one in four, and one at least.
const ONE_IN: usize = 4;

impl Aggregate {
    /// Drops the oldest quarter of what can be missed best. Says what left: nothing only if there was nothing.
    #[must_use]
    pub fn shed(&mut self) -> Refused {
        let mut shed = Refused::default();
        self.shed_tracks(&mut shed);
        self.shed_sessions(&mut shed);
        if shed == Refused::default() {
            self.shed_targets(&mut shed);
        }
        if shed == Refused::default() {
            self.shed_connections(&mut shed);
        }
        if shed == Refused::default() {
            self.shed_loads(&mut shed);
        }
        self.drop_empty();
        shed
    }

    fn shed_tracks(&mut self, shed: &mut Refused) {
        let of_combos = self.combos.values().flat_map(ComboPast::tracks);
        let of_connections = self.connections.values().flat_map(ConnectionPast::tracks);
        let mut leaving = Leaving::of(of_combos.chain(of_connections).map(|track| track.at));
        let combos = self.combos.values_mut();
        let of_combos = combos.flat_map(|past| past.models.values_mut());
        let of_connections = self.connections.values_mut().map(|past| &mut past.models);
        for models in of_combos.chain(of_connections) {
            models.retain(|_, track| leaving.stays(track.at));
        }
        shed.add_many(Kind::Tracks, leaving.left);
    }

    fn shed_sessions(&mut self, shed: &mut Refused) {
        let all = self.combos.values().flat_map(|past| past.sessions.values());
        let mut leaving = Leaving::of(all.map(|binding| binding.at));
        for past in self.combos.values_mut() {
            past.sessions.retain(|_, binding| leaving.stays(binding.at));
        }
        shed.add_many(Kind::Sessions, leaving.left);
    }

    fn shed_targets(&mut self, shed: &mut Refused) {
        let all = self.combos.values().flat_map(|past| past.targets.values());
        let mut leaving = Leaving::of(all.map(|target| target.at));
        for past in self.combos.values_mut() {
            past.targets.retain(|_, target| leaving.stays(target.at));
        }
        shed.add_many(Kind::Targets, leaving.left);
    }

    fn shed_connections(&mut self, shed: &mut Refused) {
        let mut leaving = Leaving::of(self.connections.values().map(ConnectionPast::newest));
        self.connections
            .retain(|_, past| leaving.stays(past.newest()));
        shed.add_many(Kind::Connections, leaving.left);
    }

    fn shed_loads(&mut self, shed: &mut Refused) {
        let mut leaving = Leaving::of(self.planes.values().map(|load| load.at));
        self.planes.retain(|_, load| leaving.stays(load.at));
        shed.add_many(Kind::Planes, leaving.left);
    }
}

/// The oldest of some entries.
struct Leaving {
    /// What is older leaves, and of what is as old so many.
    before: Timestamp,
    as_old: usize,
    left: u64,
}

impl Leaving {
    fn of(moments: impl Iterator<Item = Timestamp>) -> Self {
        let mut moments: Vec<Timestamp> = moments.collect();
        moments.sort_unstable();
        let count = moments.len().div_ceil(ONE_IN);
        let before = count.checked_sub(1).and_then(|last| moments.get(last));
        let before = before.copied().unwrap_or_default();
        let older = moments.partition_point(|at| *at < before);
        Self {
            before,
            as_old: count.saturating_sub(older),
            left: 0,
        }
    }

    fn stays(&mut self, at: Timestamp) -> bool {
        let leaves = at < self.before || (at == self.before && self.as_old > 0);
        if leaves {
            self.left = self.left.saturating_add(1);
            if at == self.before {
                self.as_old = self.as_old.saturating_sub(1);
            }
        }
        !leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ComboName, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
    use crate::telemetry::aggregate::{Bounds, End, PlaneLoad, Verdict};

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn part(number: u64) -> Aggregate {
        let name = format!("n{number:02}");
        let at = NOW.minus_ms(number);
        let mut part = Aggregate::of_end(End {
            target: Some((ComboName::new("combo").unwrap(), name.clone())),
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new(&name).unwrap(),
            model: ModelId::new(&name).unwrap(),
            verdict: Verdict::Served { ready_ms: 1 },
            began_at: at,
            at,
            session: Some(name),
        });
        let load = PlaneLoad {
            number,
            at,
            ..PlaneLoad::default()
        };
        part.planes.insert(PlaneIncarnation(number), load);
        part
    }

    fn sum(count: u64) -> Aggregate {
        let mut sum = Aggregate::default();
        for number in 0..count {
            let refused = sum.absorb(part(number), &Bounds::default());
            assert_eq!(refused, Refused::default());
        }
        sum
    }

    #[test]
    fn the_oldest_quarter_leaves_and_counts_last() {
        let mut sum = sum(8);
        let counts = |sum: &Aggregate| Kind::ALL.map(|kind| sum.count(kind));
        assert_eq!(counts(&sum), [1, 8, 16, 8, 8, 0, 8]);
        let shed = sum.shed();
        let told: Vec<_> = shed.iter().collect();
        assert_eq!(told, [(Kind::Tracks, 4), (Kind::Sessions, 2)]);
        assert_eq!(counts(&sum), [1, 8, 12, 6, 8, 0, 8]);
        let past = sum.combos.values().next().unwrap();
        let kept: Vec<_> = past.sessions.keys().map(String::as_str).collect();
        assert_eq!(kept, ["n00", "n01", "n02", "n03", "n04", "n05"]);
        while sum.count(Kind::Tracks) > 0 || sum.count(Kind::Sessions) > 0 {
            assert_eq!(
                (sum.count(Kind::Targets), sum.count(Kind::Connections)),
                (8, 8)
            );
            assert_ne!(sum.shed(), Refused::default());
        }
        let shed: Vec<_> = sum.shed().iter().collect();
        assert_eq!(shed, [(Kind::Targets, 2)]);
    }

    #[test]
    fn it_comes_to_an_end_with_nothing() {
        let mut sum = sum(9);
        let mut times = 0;
        while sum.shed() != Refused::default() {
            times += 1;
        }
        assert!(sum.is_empty(), "{sum:?}");
        assert!(times < 40);
    }

    #[test]
    fn of_many_at_the_same_moment_a_quarter_leaves_too() {
        let mut leaving = Leaving::of([NOW; 8].into_iter());
        let stay = (0..8).filter(|_| leaving.stays(NOW)).count();
        assert_eq!((stay, leaving.left), (6, 2));
        assert_eq!(Leaving::of(std::iter::empty()).as_old, 0);
    }
}
