//! What leaves because it is too old to be read, or because newer conversations need its room.

use std::collections::BTreeMap;

use crate::ids::PlaneIncarnation;
use crate::telemetry::track::Track;
use crate::time::Timestamp;

use super::{
    Aggregate, Binding, Bounds, ComboPast, ConnectionPast, LOAD_MS, SESSION_MS, TOOL_LIMIT_MS,
    quota,
};

/// How long a count that nothing is added to is kept, in ms: 7 days.
const COUNT_MS: u64 = 7 * 86_400_000;
/// How long the last message number of a silent data plane is kept, in ms: an hour, as the marks of reports are. So long
/// a message whose answer was lost may come again.
const PLANE_MS: u64 = 3_600_000;

impl Aggregate {
    /// Drops what is too old, and the oldest conversations beyond the bounds.
    pub fn prune(&mut self, now: Timestamp, bounds: &Bounds) {
        let old = |at: Timestamp, ms: u64| now.ms_since(at) >= ms;
        for past in self.combos.values_mut() {
            past.targets.retain(|_, target| !old(target.at, COUNT_MS));
            for models in past.models.values_mut() {
                models.retain(|_, track| !track.is_silent(now));
            }
            past.sessions
                .retain(|_, binding| !old(binding.at, SESSION_MS));
        }
        self.keep_newest_conversations(bounds);
        for past in self.connections.values_mut() {
            past.models.retain(|_, track| !track.is_silent(now));
            past.quotas.retain(|_, told| quota::counts(told, now));
            past.quotas
                .values_mut()
                .for_each(|told| told.forget_old(now));
        }
        let is_old = |past: &ConnectionPast| {
            past.models.is_empty() && past.quotas.is_empty() && old(past.at, COUNT_MS)
        };
        self.connections.retain(|_, past| !is_old(past));
        self.drop_empty();
        self.tool_limits
            .retain(|_, learned| !old(learned.at, TOOL_LIMIT_MS));
        self.planes.retain(|_, load| !old(load.at, PLANE_MS));
        for load in self.planes.values_mut() {
            if old(load.at, LOAD_MS) {
                load.connections.clear();
            }
        }
        self.keep_newest_planes(bounds.planes / 2);
    }

    /// Takes moments after `latest` for that: a clock that is ahead must not make something the newest for ever.
    pub fn end_at(&mut self, latest: Timestamp) {
        let cut = |at: &mut Timestamp| *at = (*at).min(latest);
        for past in self.combos.values_mut() {
            for target in past.targets.values_mut() {
                cut(&mut target.at);
                cut(&mut target.failed_at);
                if let Some(good) = &mut target.good {
                    cut(&mut good.at);
                }
                cut(&mut target.good_began_at);
                for failure in &mut target.failures {
                    cut(&mut failure.at);
                    cut(&mut failure.began_at);
                }
            }
            let tracks = past.models.values_mut().flat_map(BTreeMap::values_mut);
            tracks.for_each(|track| cut(&mut track.at));
            let bindings = past.sessions.values_mut();
            bindings.for_each(|binding| cut(&mut binding.at));
        }
        for past in self.connections.values_mut() {
            cut(&mut past.at);
            let tracks = past.models.values_mut();
            tracks.for_each(|track| cut(&mut track.at));
            let quotas = past.quotas.values_mut();
            quotas.for_each(|quota| quota.end_at(latest));
        }
        let limits = self.tool_limits.values_mut();
        limits.for_each(|learned| cut(&mut learned.at));
        let loads = self.planes.values_mut();
        loads.for_each(|load| cut(&mut load.at));
    }

    /// Drops combos that nothing is left of.
    pub(super) fn drop_empty(&mut self) {
        for past in self.combos.values_mut() {
            past.models.retain(|_, models| !models.is_empty());
        }
        self.combos.retain(|_, past| !past.is_empty());
    }

    /// Drops the marks of data planes with nothing under way beyond so many, the oldest first: others need the room.
    fn keep_newest_planes(&mut self, most: usize) {
        let mut idle: Vec<(Timestamp, PlaneIncarnation)> = self
            .planes
            .iter()
            .filter(|(_, load)| load.connections.is_empty())
            .map(|(plane, load)| (load.at, *plane))
            .collect();
        idle.sort_unstable();
        let excess = self.planes.len().saturating_sub(most);
        for (_, plane) in idle.iter().take(excess) {
            self.planes.remove(plane);
        }
    }

    /// Drops the oldest conversations beyond the bounds, of each combo and of all.
    pub(super) fn keep_newest_conversations(&mut self, bounds: &Bounds) {
        for past in self.combos.values_mut() {
            past.keep_newest_sessions(bounds.sessions_per_combo);
        }
        self.keep_newest_sessions(bounds.sessions);
    }

    fn keep_newest_sessions(&mut self, most: usize) {
        let moments = self.combos.values().flat_map(|past| past.sessions.values());
        if let Some(oldest) = oldest_kept(moments, most) {
            for past in self.combos.values_mut() {
                past.sessions.retain(|_, binding| binding.at > oldest);
            }
        }
    }
}

impl ConnectionPast {
    pub(super) fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.models.values()
    }

    /// When the newest of what is known of it was true.
    pub(super) fn newest(&self) -> Timestamp {
        let told = self.quotas.values().map(|quota| quota.observed_at);
        told.max().unwrap_or_default().max(self.at)
    }
}

impl ComboPast {
    pub(super) fn tracks(&self) -> impl Iterator<Item = &Track> {
        self.models.values().flat_map(BTreeMap::values)
    }

    fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.models.is_empty() && self.sessions.is_empty()
    }

    fn keep_newest_sessions(&mut self, most: usize) {
        if let Some(oldest) = oldest_kept(self.sessions.values(), most) {
            self.sessions.retain(|_, binding| binding.at > oldest);
        }
    }
}

/// The moment of the newest binding that must leave so that at most `most` stay; `None` when all may stay.
fn oldest_kept<'a>(bindings: impl Iterator<Item = &'a Binding>, most: usize) -> Option<Timestamp> {
    let mut moments: Vec<Timestamp> = bindings.map(|binding| binding.at).collect();
    if moments.len() <= most {
        return None;
    }
    moments.sort_unstable_by(|one, two| two.cmp(one));
    moments.get(most).copied()
}
