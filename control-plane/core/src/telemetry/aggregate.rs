//! What one process saw of the past, in a shape that can be added to others': a data plane adds up what its attempts
//! came to, a control plane what its data planes send, and the fleet is the sum of its control planes (decision 51).
//!
//! There is one rule of adding ([`Aggregate::absorb`]), and one attempt is an aggregate of its own
//! ([`Aggregate::of_end`]). Counts are summed, tracks are merged by their samples, of the rest the newest counts, so
//! the order in which parts are added makes no difference.
//!
//! **Bounds.** Everything has one ([`Bounds`]). What has no room is left out and counted ([`Refused`]); what is too old
//! to be read leaves ([`Aggregate::prune`]). Conversations come from clients, so of those the oldest leave.
//!
//! **The last target that served** (`routing.md` §8.15) is not a record of its own: each target remembers when it last
//! served and last failed. So a failure clears it wherever it is told, and no replica can bring back what another one
//! cleared.

mod bounds;
mod prune;
mod shed;
mod sum;
mod trials;

use std::collections::BTreeMap;

use crate::classify::{Classification, Reason};
use crate::ids::{ComboName, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use crate::time::Timestamp;
use crate::tool_limit::lowered;

pub use bounds::{Bounds, Kind, Refused};
pub use sum::BoundedSum;
pub use trials::{Failure, MAX_FAILURES};

use super::quota::{self, QuotaSource, Told};
use super::track::Track;
use super::{LastKnownGood, QuotaSnapshot};

/// What was seen, by combo, connection, provider and data plane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aggregate {
    /// Combos.
    pub combos: BTreeMap<ComboName, ComboPast>,
    /// Connections.
    pub connections: BTreeMap<ConnectionId, ConnectionPast>,
    /// Tool limits that were learned (`routing.md` §13.3).
    pub tool_limits: BTreeMap<ProviderId, ToolLimit>,
    /// What is under way at each data plane.
    pub planes: BTreeMap<PlaneIncarnation, PlaneLoad>,
}

/// The past of a combo.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComboPast {
    /// Its targets, by execution key.
    pub targets: BTreeMap<String, TargetPast>,
    /// Its models (`routing.md` §8.6: by model, not by account).
    pub models: BTreeMap<ProviderId, BTreeMap<ModelId, Track>>,
    /// Which connection served the last turn of a conversation (`routing.md` §10.1).
    pub sessions: BTreeMap<String, Binding>,
}

/// The past of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetPast {
    /// Attempts that ended, ever (`routing.md` §8.8).
    pub ended: u64,
    /// When the last one ended.
    pub at: Timestamp,
    /// When and where it last served.
    pub good: Option<LastKnownGood>,
    /// When the youngest attempt that served had begun.
    pub good_began_at: Timestamp,
    /// Failures since, as far as they count for `auto` (`routing.md` §9.1), in order of time.
    pub failures: Vec<Failure>,
    /// When it last failed; the epoch when never.
    pub failed_at: Timestamp,
}

/// The past of a connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionPast {
    /// Attempts that ended, ever.
    pub ended: u64,
    /// When the last one ended.
    pub at: Timestamp,
    /// Its models.
    pub models: BTreeMap<ModelId, Track>,
    /// Its quotas, by who told them.
    pub quotas: Told,
}

/// A conversation's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Which one.
    pub connection: ConnectionId,
    /// When it served.
    pub at: Timestamp,
}

/// The most tools that a provider takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolLimit {
    /// How many.
    pub limit: u32,
    /// When that was learned.
    pub at: Timestamp,
}

/// What is under way at a data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneLoad {
    /// The number of its last message that was added; it is added once.
    pub number: u64,
    /// When it said so, in the store's time.
    pub at: Timestamp,
    /// Attempts under way, by connection.
    pub connections: BTreeMap<ConnectionId, u32>,
}

/// How long after a data plane's last word what was under way there still counts, in ms.
pub const LOAD_MS: u64 = 3_000;
/// How long a conversation stays with its connection, in ms: 15 minutes (`routing.md` §10.1).
pub const SESSION_MS: u64 = 15 * 60_000;
/// How long a learned tool limit counts, in ms: 24 hours (`routing.md` §13.3).
pub const TOOL_LIMIT_MS: u64 = 24 * 3_600_000;

/// What the end of an attempt says of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It served; the answer was ready after this long, in ms.
    Served {
        /// From dispatch until the first ready event, or the whole body.
        ready_ms: u64,
    },
    /// It failed.
    Failed,
    /// It had served, which is counted, and then its stream failed.
    Broke,
    /// Nothing: the fault is the client's own, or ours.
    None,
}

impl Verdict {
    /// Of a failure that was classified. What is the client's own doing, or ours, or concerns this request alone, says
    /// nothing of the target (decisions 5 and 50).
    #[must_use]
    pub fn of_failure(classification: &Classification) -> Self {
        let Classification {
            status,
            reason,
            request_scoped,
            account_fallback,
            ..
        } = classification;
        let not_its_own = matches!(reason, Reason::ClientFault | Reason::Local);
        // Too long for the model, or with more tools than it takes.
        let too_large = *status == 400 && *reason == Reason::ModelCapacity && !account_fallback;
        if *status == 499 || not_its_own || *request_scoped || too_large {
            Self::None
        } else {
            Self::Failed
        }
    }

    /// Of how a stream ended that had begun well: its success is counted, so where how it ended says nothing of the target
    /// either, there is nothing to be told.
    #[must_use]
    pub fn of_break(classification: &Classification) -> Option<Self> {
        (Self::of_failure(classification) == Self::Failed).then_some(Self::Broke)
    }
}

/// One attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The combo and the execution key of the target, where the request named a combo.
    pub target: Option<(ComboName, String)>,
    /// Provider.
    pub provider: ProviderId,
    /// Account.
    pub connection: ConnectionId,
    /// Model.
    pub model: ModelId,
    /// How.
    pub verdict: Verdict,
    /// When it had begun, in the store's time.
    pub began_at: Timestamp,
    /// When it ended.
    pub at: Timestamp,
    /// The conversation to be bound to the connection.
    pub session: Option<String>,
}

impl Aggregate {
    /// One attempt that ended.
    #[must_use]
    pub fn of_end(end: End) -> Self {
        let End {
            target,
            provider,
            connection,
            model,
            verdict,
            began_at,
            at,
            session,
        } = end;
        let began_at = began_at.min(at);
        let track = match verdict {
            Verdict::Served { ready_ms } => Track::success(ready_ms, at),
            Verdict::Failed => Track::failure(at),
            Verdict::Broke => Track {
                ended: 0,
                ..Track::failure(at)
            },
            Verdict::None => Track::without_verdict(at),
        };
        let ended = track.ended;
        let served = matches!(verdict, Verdict::Served { .. });
        let failed = matches!(verdict, Verdict::Failed | Verdict::Broke);
        let mut aggregate = Self::default();
        if let Some((combo, key)) = target {
            let mut past = ComboPast::default();
            let target = TargetPast {
                ended,
                at,
                good: served.then(|| LastKnownGood {
                    provider: provider.clone(),
                    connection: Some(connection.clone()),
                    at,
                }),
                good_began_at: if served {
                    began_at
                } else {
                    Timestamp::default()
                },
                failures: failed
                    .then_some(Failure { at, began_at })
                    .into_iter()
                    .collect(),
                failed_at: if failed { at } else { Timestamp::default() },
            };
            past.targets.insert(key, target);
            let models = BTreeMap::from([(model.clone(), track.clone())]);
            past.models.insert(provider, models);
            if let Some(session) = session.filter(|_| served) {
                let connection = connection.clone();
                past.sessions.insert(session, Binding { connection, at });
            }
            aggregate.combos.insert(combo, past);
        }
        let past = ConnectionPast {
            ended,
            at,
            models: BTreeMap::from([(model, track)]),
            quotas: BTreeMap::new(),
        };
        aggregate.connections.insert(connection, past);
        aggregate
    }

    /// A quota that was seen or told.
    #[must_use]
    pub fn of_quota(connection: ConnectionId, source: QuotaSource, quota: QuotaSnapshot) -> Self {
        let past = ConnectionPast {
            quotas: BTreeMap::from([(source, quota)]),
            ..ConnectionPast::default()
        };
        Self {
            connections: BTreeMap::from([(connection, past)]),
            ..Self::default()
        }
    }

    /// A tool limit that was learned.
    #[must_use]
    pub fn of_tool_limit(provider: ProviderId, limit: u32, at: Timestamp) -> Self {
        Self {
            tool_limits: BTreeMap::from([(provider, ToolLimit { limit, at })]),
            ..Self::default()
        }
    }

    /// There is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            combos,
            connections,
            tool_limits,
            planes,
        } = self;
        combos.is_empty() && connections.is_empty() && tool_limits.is_empty() && planes.is_empty()
    }

    /// Adds what another one holds, as far as there is room. Says what there was no room for. It has to count what is
    /// there; who adds much, one by one, has a [`BoundedSum`].
    #[must_use]
    pub fn absorb(&mut self, other: Self, bounds: &Bounds) -> Refused {
        self.absorb_into(other, bounds, &mut bounds.room(self))
    }

    fn absorb_into(&mut self, other: Self, bounds: &Bounds, room: &mut bounds::Room) -> Refused {
        let mut refused = Refused::default();
        for (name, past) in other.combos {
            let Some(own) = room.entry(&mut self.combos, name, Kind::Combos, &mut refused) else {
                continue;
            };
            for (key, target) in past.targets {
                let own = room.entry(&mut own.targets, key, Kind::Targets, &mut refused);
                if let Some(own) = own {
                    own.absorb(target);
                }
            }
            for (provider, models) in past.models {
                let own = own.models.entry(provider).or_default();
                absorb_tracks(own, models, room, &mut refused);
            }
            own.models.retain(|_, models| !models.is_empty());
            for (session, binding) in past.sessions {
                absorb_session(own, session, binding, room, &mut refused);
            }
        }
        for (id, past) in other.connections {
            let own = room.entry(&mut self.connections, id, Kind::Connections, &mut refused);
            if let Some(own) = own {
                own.ended = own.ended.saturating_add(past.ended);
                own.at = own.at.max(past.at);
                absorb_tracks(&mut own.models, past.models, room, &mut refused);
                for (source, told) in past.quotas {
                    quota::add(&mut own.quotas, source, told);
                }
            }
        }
        for (provider, learned) in other.tool_limits {
            let fresh = ToolLimit {
                limit: u32::MAX,
                at: Timestamp::default(),
            };
            let kind = Kind::ToolLimits;
            let own = room.entry_or(&mut self.tool_limits, provider, fresh, kind, &mut refused);
            if let Some(own) = own {
                own.absorb(learned);
            }
        }
        for (plane, mut load) in other.planes {
            load.shorten(bounds.plane_connections, &mut refused);
            let own = room.entry(&mut self.planes, plane, Kind::Planes, &mut refused);
            if let Some(own) = own {
                own.absorb(load);
            }
        }
        refused
    }
}

fn absorb_tracks(
    own: &mut BTreeMap<ModelId, Track>,
    others: BTreeMap<ModelId, Track>,
    room: &mut bounds::Room,
    refused: &mut Refused,
) {
    for (model, track) in others {
        if let Some(own) = room.entry(own, model, Kind::Tracks, refused) {
            own.absorb(&track);
        }
    }
}

fn absorb_session(
    own: &mut ComboPast,
    session: String,
    binding: Binding,
    room: &mut bounds::Room,
    refused: &mut Refused,
) {
    let kind = Kind::Sessions;
    let own = room.entry_or(&mut own.sessions, session, binding.clone(), kind, refused);
    if let Some(own) = own
        && own.at <= binding.at
    {
        *own = binding;
    }
}

impl TargetPast {
    fn absorb(&mut self, other: Self) {
        let at = |good: &Option<LastKnownGood>| good.as_ref().map(|good| good.at);
        self.ended = self.ended.saturating_add(other.ended);
        self.at = self.at.max(other.at);
        if at(&self.good) <= at(&other.good) {
            self.good = other.good;
        }
        self.good_began_at = self.good_began_at.max(other.good_began_at);
        self.failed_at = self.failed_at.max(other.failed_at);
        self.fail(other.failures);
    }

    /// Where it last served, unless it failed since.
    #[must_use]
    pub fn standing(&self) -> Option<&LastKnownGood> {
        self.good.as_ref().filter(|good| good.at >= self.failed_at)
    }
}

impl ToolLimit {
    /// A lower limit counts at once, a higher one when the lower one has lapsed.
    fn absorb(&mut self, other: Self) {
        let (earlier, later) = if self.at <= other.at {
            (*self, other)
        } else {
            (other, *self)
        };
        let lapsed = later.at.ms_since(earlier.at) >= TOOL_LIMIT_MS;
        let lowest = lowered(Some(earlier.limit), later.limit);
        *self = if lapsed || later.limit == lowest {
            later
        } else {
            earlier
        };
    }
}

impl PlaneLoad {
    fn shorten(&mut self, most: usize, refused: &mut Refused) {
        while self.connections.len() > most {
            self.connections.pop_last();
            refused.add(Kind::Planes);
        }
    }

    /// The message with the higher number was said later, whatever the clocks of those who heard them show; one that was
    /// sent again tells what is under way when it is.
    fn absorb(&mut self, other: Self) {
        if (self.number, self.at) <= (other.number, other.at) {
            *self = other;
        }
    }
}

#[cfg(test)]
mod tests;
