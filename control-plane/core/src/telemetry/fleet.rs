//! The past as decisions read it: made of aggregates at one moment, immutable, read without locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::time::Timestamp;

use super::aggregate::{
    Aggregate, BoundedSum, Bounds, ComboPast, ConnectionPast, Kind, LOAD_MS, Refused, TargetPast,
};
use super::quota::{self, Told};
use super::{LastKnownGood, Performance, QuotaSnapshot, Telemetry};

/// The past of the whole fleet, as one process knows it.
#[derive(Debug, Default)]
pub struct Fleet {
    as_of: Timestamp,
    combos: BTreeMap<ComboName, Combo>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Kept apart: that something is under way on a connection does not mean that there is room to count it.
    in_flight: BTreeMap<ConnectionId, u32>,
    tool_limits: BTreeMap<ProviderId, u32>,
    sessions: BTreeMap<String, ConnectionId>,
    /// There are as many targets, or connections, as there is room for: of others nothing is known.
    targets_are_full: bool,
    connections_are_full: bool,
    left_out: Refused,
}

#[derive(Debug)]
struct Combo {
    targets: BTreeMap<String, Target>,
    models: BTreeMap<ProviderId, BTreeMap<ModelId, Performance>>,
    last_known_good: Option<LastKnownGood>,
}

#[derive(Debug)]
struct Target {
    requests: u64,
    adaptation_until: Option<Timestamp>,
}

#[derive(Debug)]
struct Connection {
    requests: u64,
    models: BTreeMap<ModelId, Performance>,
    quota: Option<Arc<QuotaSnapshot>>,
    told: Told,
}

impl Fleet {
    /// The sum of these at `now`, as far as it is within the bounds: the first part gets its room first, and of
    /// conversations the newest stay. What is over takes no room.
    #[must_use]
    pub fn of(parts: impl IntoIterator<Item = Aggregate>, bounds: &Bounds, now: Timestamp) -> Self {
        let fresh = |at: Timestamp| now.ms_since(at) < LOAD_MS;
        let mut sum = BoundedSum::new(bounds.clone());
        let mut left_out = Refused::default();
        for mut part in parts {
            part.prune(now, bounds);
            // Marks of messages are of no use here and would take the room of others' loads.
            part.planes.retain(|_, load| fresh(load.at));
            left_out.add_all(&sum.absorb_newest(part));
        }
        sum.keep_newest_conversations();
        let sum = sum.take();
        let is_full = |kind| sum.count(kind) >= bounds.most(kind);
        let mut fleet = Self {
            as_of: now,
            targets_are_full: is_full(Kind::Targets) || is_full(Kind::Combos),
            connections_are_full: is_full(Kind::Connections),
            left_out,
            ..Self::default()
        };
        let mut newest: BTreeMap<String, Timestamp> = BTreeMap::new();
        for (name, past) in sum.combos {
            for (session, binding) in &past.sessions {
                let before = newest.insert(session.clone(), binding.at);
                if before.is_none_or(|before| before <= binding.at) {
                    let connection = binding.connection.clone();
                    fleet.sessions.insert(session.clone(), connection);
                } else {
                    newest.extend(before.map(|before| (session.clone(), before)));
                }
            }
            fleet.combos.insert(name, combo(past));
        }
        for (id, past) in sum.connections {
            fleet.connections.insert(id, connection(past, now));
        }
        for load in sum.planes.into_values() {
            for (id, count) in load.connections {
                let under_way = fleet.in_flight.entry(id).or_default();
                *under_way = under_way.saturating_add(count);
            }
        }
        let limits = sum.tool_limits.into_iter();
        fleet.tool_limits = limits.map(|(id, learned)| (id, learned.limit)).collect();
        fleet
    }

    /// What there was no room for.
    #[must_use]
    pub fn left_out(&self) -> &Refused {
        &self.left_out
    }

    /// Quotas of a connection, by who told them.
    #[must_use]
    pub fn told_quotas(&self, connection: &ConnectionId) -> Option<&Told> {
        Some(&self.connections.get(connection)?.told)
    }
}

fn combo(past: ComboPast) -> Combo {
    let last_known_good = past
        .targets
        .values()
        .filter(|target| target.good.is_some())
        .max_by_key(|target| target.good.as_ref().map(|good| good.at))
        .and_then(TargetPast::standing)
        .cloned();
    Combo {
        last_known_good,
        targets: past
            .targets
            .into_iter()
            .map(|(key, past)| {
                let target = Target {
                    requests: past.ended,
                    adaptation_until: past.adaptation_until(),
                };
                (key, target)
            })
            .collect(),
        models: past
            .models
            .into_iter()
            .map(|(provider, models)| {
                let known = models.into_iter();
                let known = known.filter_map(|(model, track)| Some((model, track.ever()?)));
                (provider, known.collect())
            })
            .collect(),
    }
}

fn connection(past: ConnectionPast, now: Timestamp) -> Connection {
    Connection {
        requests: past.ended,
        quota: quota::combined(past.quotas.clone(), now).map(Arc::new),
        told: past.quotas,
        models: past
            .models
            .into_iter()
            .filter_map(|(model, track)| Some((model, track.recent(now)?)))
            .collect(),
    }
}

impl Telemetry for Fleet {
    fn as_of(&self) -> Timestamp {
        self.as_of
    }

    fn target_requests(&self, combo: &ComboName, key: &str) -> Option<u64> {
        Some(self.combos.get(combo)?.targets.get(key)?.requests)
    }

    fn of_combo(
        &self,
        combo: &ComboName,
        provider: &ProviderId,
        model: &ModelId,
    ) -> Option<Performance> {
        let models = self.combos.get(combo)?.models.get(provider)?;
        models.get(model).copied()
    }

    fn of_connection(&self, connection: &ConnectionId, model: &ModelId) -> Option<Performance> {
        self.connections.get(connection)?.models.get(model).copied()
    }

    fn connection_requests(&self, connection: &ConnectionId) -> u64 {
        self.connections
            .get(connection)
            .map_or(0, |connection| connection.requests)
    }

    fn in_flight(&self, connection: &ConnectionId) -> u32 {
        self.in_flight.get(connection).copied().unwrap_or(0)
    }

    fn quota(&self, connection: &ConnectionId) -> Option<Arc<QuotaSnapshot>> {
        self.connections.get(connection)?.quota.clone()
    }

    fn last_known_good(&self, combo: &ComboName) -> Option<LastKnownGood> {
        self.combos.get(combo)?.last_known_good.clone()
    }

    fn tool_limit(&self, provider: &ProviderId) -> Option<u32> {
        self.tool_limits.get(provider).copied()
    }

    fn session_connection(&self, session: &str) -> Option<ConnectionId> {
        self.sessions.get(session).cloned()
    }

    fn leaves_out_target(&self, combo: &ComboName, key: &str) -> bool {
        self.targets_are_full && self.target_requests(combo, key).is_none()
    }

    fn leaves_out_connection(&self, connection: &ConnectionId) -> bool {
        self.connections_are_full && !self.connections.contains_key(connection)
    }

    fn adaptation_until(&self, combo: &ComboName, key: &str) -> Option<Timestamp> {
        self.combos.get(combo)?.targets.get(key)?.adaptation_until
    }
}

#[cfg(test)]
mod tests;
