//! How much is kept of each kind.

use std::collections::BTreeMap;

use super::Aggregate;

/// Kinds of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Combos.
    Combos,
    /// Targets of all combos.
    Targets,
    /// Tracks of models, of combos and connections together.
    Tracks,
    /// Conversations of all combos.
    Sessions,
    /// Connections.
    Connections,
    /// Providers with a learned tool limit.
    ToolLimits,
    /// Data planes, and connections that one has something under way on.
    Planes,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Combos,
        Self::Targets,
        Self::Tracks,
        Self::Sessions,
        Self::Connections,
        Self::ToolLimits,
        Self::Planes,
    ];
}

/// The most that is kept of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Combos.
    pub combos: usize,
    /// Targets of all combos.
    pub targets: usize,
    /// Tracks of models.
    pub tracks: usize,
    /// Conversations of one combo (`routing.md` §10.1).
    pub sessions_per_combo: usize,
    /// Conversations of all combos.
    pub sessions: usize,
    /// Connections.
    pub connections: usize,
    /// Providers with a learned tool limit.
    pub tool_limits: usize,
    /// Data planes.
    pub planes: usize,
    /// Connections of one data plane with something under way.
    pub plane_connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            combos: 1_000,
            targets: 5_000,
            tracks: 10_000,
            sessions_per_combo: 500,
            sessions: 5_000,
            connections: 5_000,
            tool_limits: 500,
            planes: 256,
            plane_connections: 2_000,
        }
    }
}

/// How many of each kind there was no room for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused(BTreeMap<Kind, u64>);

impl Refused {
    pub(super) fn add(&mut self, kind: Kind) {
        self.add_many(kind, 1);
    }

    pub(super) fn add_many(&mut self, kind: Kind, count: u64) {
        if count > 0 {
            let held = self.0.entry(kind).or_default();
            *held = held.saturating_add(count);
        }
    }

    /// Adds what was refused elsewhere.
    pub fn add_all(&mut self, other: &Self) {
        for (kind, count) in other.iter() {
            self.add_many(kind, count);
        }
    }

    /// How many of a kind.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// Kinds and how many; none with 0.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }
}

/// What is left of the bounds while something is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room(BTreeMap<Kind, usize>);

impl Bounds {
    /// The most of a kind. Between two prunings there may be twice as many conversations, of which the oldest then
    /// leave.
    #[must_use]
    pub fn most(&self, kind: Kind) -> usize {
        match kind {
            Kind::Combos => self.combos,
            Kind::Targets => self.targets,
            Kind::Tracks => self.tracks,
            Kind::Sessions => self.sessions.saturating_mul(2),
            Kind::Connections => self.connections,
            Kind::ToolLimits => self.tool_limits,
            Kind::Planes => self.planes,
        }
    }

    pub(super) fn room(&self, aggregate: &Aggregate) -> Room {
        Room(
            Kind::ALL
                .into_iter()
                .map(|kind| (kind, self.most(kind).saturating_sub(aggregate.count(kind))))
                .collect(),
        )
    }
}

impl Room {
    /// How many more of a kind there may be.
    pub(super) fn left(&self, kind: Kind) -> usize {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// Counts one kind anew.
    pub(super) fn renew(&mut self, kind: Kind, aggregate: &Aggregate, bounds: &Bounds) {
        let left = bounds.most(kind).saturating_sub(aggregate.count(kind));
        self.0.insert(kind, left);
    }

    /// The entry of a key, made anew if there is room.
    pub(super) fn entry<'a, K: Ord, V: Default>(
        &mut self,
        map: &'a mut BTreeMap<K, V>,
        key: K,
        kind: Kind,
        refused: &mut Refused,
    ) -> Option<&'a mut V> {
        self.entry_or(map, key, V::default(), kind, refused)
    }

    /// The entry of a key, or this one if there is room.
    pub(super) fn entry_or<'a, K: Ord, V>(
        &mut self,
        map: &'a mut BTreeMap<K, V>,
        key: K,
        fresh: V,
        kind: Kind,
        refused: &mut Refused,
    ) -> Option<&'a mut V> {
        use std::collections::btree_map::Entry;
        match map.entry(key) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let left = self.0.get_mut(&kind)?;
                let Some(less) = left.checked_sub(1) else {
                    refused.add(kind);
                    return None;
                };
                *left = less;
                Some(entry.insert(fresh))
            }
        }
    }
}

impl Aggregate {
    /// How many of a kind there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        let combos = self.combos.values();
        match kind {
            Kind::Combos => self.combos.len(),
            Kind::Targets => combos.map(|past| past.targets.len()).sum(),
            Kind::Tracks => {
                let of_combos = combos.flat_map(|past| past.models.values());
                let of_connections = self.connections.values().map(|past| &past.models);
                of_combos.chain(of_connections).map(BTreeMap::len).sum()
            }
            Kind::Sessions => combos.map(|past| past.sessions.len()).sum(),
            Kind::Connections => self.connections.len(),
            Kind::ToolLimits => self.tool_limits.len(),
            Kind::Planes => self.planes.len(),
        }
    }
}
