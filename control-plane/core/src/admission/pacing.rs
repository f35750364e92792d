//! How fast requests may follow each other on a connection, in the whole fleet: so many a minute, so far apart, so many
//! at once. Only what an operator set or an upstream's headers taught is enforced, whichever is stricter (decision 45).
//! An operator's limits are those of a connection; upstreams tell theirs for each model.
//!
//! The value is shared by all replicas and changed by compare-and-set, so a step works on a copy. Who has to wait asks
//! again when told. Within a data plane the order is that of its queue; among data planes it is that of the words which
//! looks leave here, as far as those who look come back in time: a data plane whose first one went stands last again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptId, ConnectionId, ModelId, PlaneIncarnation, ProviderId};
use crate::permit::{self, Asker, MAX_PERMITS, PERMIT_TTL_MS, Pool, Term};
use crate::state::codec::CodecError;
use crate::time::Timestamp;

use super::learned::{Learned, Place, Standing};
use super::told::Told;

/// Schema of a stored pace.
pub const PACE_SCHEMA: u32 = 1;

/// Levels are counted in parts of a request so that a ms of refill is whole: one part for each request a minute.
const PARTS: u64 = 60_000;

/// How long it is remembered that an attempt went, in ms: longer than anybody asks again.
pub const ASKED_AGAIN_MS: u64 = 3_000;
/// Most attempts that are remembered; of more the oldest would be counted again.
const MAX_RECENT: usize = 256;
/// How long a data plane's word that one of its requests waits lasts after that one may come back, in ms: longer than
/// questions and a decision take. A place may stay free so long for one that left meanwhile.
pub const WORD_TTL_MS: u64 = 2_000;
/// Longest time until one that waits asks again, in ms, whatever it is told.
pub const LOOK_AGAIN_MS: u64 = 5_000;
/// Most data planes that are known to wait; more wait without an order.
const MAX_WAITING: usize = 64;
/// Most models of a connection of which anything is learned.
const MAX_LEARNED: usize = 16;
/// How far the clocks of replicas may differ, in ms.
const CLOCKS_DIFFER_MS: u64 = 1_000;

/// What is enforced. A member that nobody set enforces nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceLimits {
    /// Requests a minute; as many may come at once when none came for a minute.
    pub per_minute: Option<u32>,
    /// From one request to the next, in ms.
    pub apart_ms: u64,
    /// Requests at once, at most [`MAX_PERMITS`].
    pub concurrent: Option<u32>,
    /// How long one of them counts that its data plane does not renew, in ms.
    pub ttl_ms: u64,
}

impl Default for PaceLimits {
    /// Nothing is enforced.
    fn default() -> Self {
        Self {
            per_minute: None,
            apart_ms: 0,
            concurrent: None,
            ttl_ms: PERMIT_TTL_MS,
        }
    }
}

/// What went to a connection lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// The bucket; absent as long as nothing was taken from it.
    #[serde(default)]
    bucket: Option<Bucket>,
    /// The last request.
    #[serde(default)]
    last: Option<Timestamp>,
    /// What runs.
    #[serde(default)]
    running: Pool,
    /// What went lately, the newest last, where nothing counts what runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    recent: Vec<Went>,
    /// Data planes of which a request waits. A replica of an earlier release drops it, and keeps no order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waiting: BTreeMap<PlaneIncarnation, Word>,
    /// What headers taught. A replica of an earlier release drops it; the next answer teaches it anew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    learned: BTreeMap<ModelId, Learned>,
}

/// That a data plane's first one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    since: Timestamp,
    /// Not true any more from then on.
    until: Timestamp,
}

/// An attempt that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Went {
    plane: PlaneIncarnation,
    number: u64,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    /// Parts left.
    level: u64,
    at: Timestamp,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It goes now.
    Now,
    /// Not before then.
    NotBefore(Timestamp),
    /// Not before then, for the upstream told that little or nothing is left.
    Spent(Timestamp),
    /// Not before one of those that run ends.
    Full,
}

/// The name of a connection's pace within the shard of its provider, beside that of its permits.
#[must_use]
pub fn key_text(provider: &ProviderId, connection: &ConnectionId) -> String {
    format!("{}/pace", permit::key_text(provider, connection))
}

impl PaceLimits {
    /// Whether nothing is enforced.
    #[must_use]
    pub fn is_free(self) -> bool {
        self.per_minute.is_none() && self.apart_ms == 0 && self.concurrent.is_none()
    }

    /// The part that each of `planes` data planes may use while nobody counts for all of them: at least one request,
    /// so the parts may add up to more than the whole.
    #[must_use]
    pub fn share(self, planes: u32) -> Self {
        Self {
            per_minute: self.per_minute.map(|limit| permit::share(limit, planes)),
            apart_ms: self.apart_ms.saturating_mul(u64::from(planes.max(1))),
            concurrent: self.concurrent.map(|limit| permit::share(limit, planes)),
            ..self
        }
    }
}

impl Pace {
    /// Lets an attempt go if all limits allow it and those that waited longer, and counts it then; its data plane waits
    /// no longer. What is learned of `model`, where one is named, holds it back besides; how it stands to that is told.
    /// One that runs already, or went within [`ASKED_AGAIN_MS`], goes again uncounted: who hears nothing asks another
    /// replica.
    pub fn admit(
        &mut self,
        attempt: AttemptId,
        model: Option<&ModelId>,
        limits: PaceLimits,
        now: Timestamp,
    ) -> (Admitted, Option<Standing>) {
        let (admitted, place) = self.admit_counted(attempt, model, limits, now);
        (admitted, self.standing(model, place, now))
    }

    fn admit_counted(
        &mut self,
        attempt: AttemptId,
        model: Option<&ModelId>,
        limits: PaceLimits,
        now: Timestamp,
    ) -> (Admitted, Option<Place>) {
        if self.running.holds(attempt, now) || self.went_lately(attempt, now) {
            return (Admitted::Now, None);
        }
        self.pass_learned(now);
        let found = self.finds(attempt.plane, model, limits, now);
        if found != Admitted::Now {
            return (found, None);
        }
        let learned = model.and_then(|model| self.learned.get_mut(model));
        let place = learned.map(|learned| learned.goes(now));
        if let Some(cap) = limits.concurrent {
            let cap = cap.clamp(1, MAX_PERMITS);
            // There is room, as was just found.
            let term = Term {
                now,
                ttl_ms: limits.ttl_ms,
            };
            self.running
                .acquire(attempt, None, cap, Asker::Newcomer, term);
        }
        let is_paced = limits.per_minute.is_some() || limits.apart_ms > 0 || place.is_some();
        if is_paced && limits.concurrent.is_none() {
            self.goes(attempt, now);
        }
        let bucket = limits.per_minute.map(|limit| self.refilled(limit, now));
        self.last = Some(self.last.map_or(now, |last| not_back(last, now)));
        self.bucket = bucket.map(|bucket| Bucket {
            level: bucket.level.saturating_sub(PARTS),
            ..bucket
        });
        self.waiting.remove(&attempt.plane);
        (Admitted::Now, place)
    }

    /// Takes what an answer told of the limits of a model. `place` is that of its request, if it was counted. What holds
    /// nothing back begins nothing.
    pub fn learn(&mut self, model: &ModelId, told: Told, place: Option<Place>, now: Timestamp) {
        self.pass_learned(now);
        if let Some(learned) = self.learned.get_mut(model) {
            learned.take(told, place, now);
        } else if told.holds_back() && self.learned.len() < MAX_LEARNED {
            let mut learned = Learned::new(now);
            learned.take(told, None, now);
            self.learned.insert(model.clone(), learned);
        }
        self.pass_learned(now);
    }

    /// How one stands to what is learned of a model; `None` when that is nothing.
    fn standing(
        &self,
        model: Option<&ModelId>,
        place: Option<Place>,
        now: Timestamp,
    ) -> Option<Standing> {
        let until = self.learned.get(model?)?.ends_at();
        (until > now).then_some(Standing { place, until })
    }

    /// Whether the first one that waits in a data plane would go, which is remembered: those who come later let it go
    /// first, until [`WORD_TTL_MS`] after it should have come back. One that waits for its model's window leaves no word,
    /// for others of its data plane go before it; a word of theirs stays.
    pub fn look(
        &mut self,
        plane: PlaneIncarnation,
        model: Option<&ModelId>,
        limits: PaceLimits,
        now: Timestamp,
    ) -> (Admitted, Option<Standing>) {
        self.waiting.retain(|_, word| word.until > now);
        self.pass_learned(now);
        let found = self.finds(plane, model, limits, now);
        match found {
            Admitted::Now | Admitted::Full => self.leaves_word(plane, now, now),
            Admitted::NotBefore(then) => {
                self.leaves_word(plane, then.min(now.plus_ms(LOOK_AGAIN_MS)), now);
            }
            Admitted::Spent(_) => {}
        }
        (found, self.standing(model, None, now))
    }

    /// A data plane waits, and its first one comes back then.
    fn leaves_word(&mut self, plane: PlaneIncarnation, back: Timestamp, now: Timestamp) {
        let known = self.waiting.get(&plane).copied();
        // Said again only when half of its time has passed, so that waiting alone writes little.
        let holds = known.is_some_and(|word| word.until >= back.plus_ms(WORD_TTL_MS / 2));
        let has_room = known.is_some() || self.waiting.len() < MAX_WAITING;
        if has_room && !holds {
            let word = Word {
                since: known.map_or(now, |word| word.since),
                until: back.plus_ms(WORD_TTL_MS),
            };
            self.waiting.insert(plane, word);
        }
    }

    /// Forgets what has ended.
    pub fn prune(&mut self, now: Timestamp) {
        self.running.prune(now);
        self.waiting.retain(|_, word| word.until > now);
        self.pass_learned(now);
    }

    fn pass_learned(&mut self, now: Timestamp) {
        self.learned.retain(|_, learned| learned.passes(now));
    }

    /// What a request of a data plane finds, those that come first included.
    fn finds(
        &self,
        plane: PlaneIncarnation,
        model: Option<&ModelId>,
        limits: PaceLimits,
        now: Timestamp,
    ) -> Admitted {
        let ahead = self.ahead_of(plane, now);
        let bucket = limits.per_minute.map(|limit| self.refilled(limit, now));
        let ready = self.spaced(limits.apart_ms, ahead, now).max(
            bucket
                .zip(limits.per_minute)
                .map_or(now, |(bucket, limit)| bucket.ready_at(limit, ahead)),
        );
        let learned = model.and_then(|model| self.learned.get(model));
        let taught = learned.map_or(now, |learned| learned.ready_at(ahead, now));
        if taught > ready.max(now) {
            return Admitted::Spent(taught);
        }
        if ready > now {
            return Admitted::NotBefore(ready);
        }
        let is_full = limits.concurrent.is_some_and(|cap| {
            let taken = self.running.held(now).saturating_add(ahead);
            taken >= cap.clamp(1, MAX_PERMITS)
        });
        if is_full {
            return Admitted::Full;
        }
        Admitted::Now
    }

    /// How many data planes come first. One that did not look comes after all that did.
    fn ahead_of(&self, plane: PlaneIncarnation, now: Timestamp) -> u32 {
        let valid = self.waiting.iter().filter(|(_, word)| word.until > now);
        let own = valid.clone().find(|(name, _)| **name == plane);
        let own = own.map(|(name, word)| (word.since, *name));
        let ahead = valid.filter(|(name, word)| {
            **name != plane && own.is_none_or(|own| (word.since, **name) < own)
        });
        u32::try_from(ahead.count()).unwrap_or(u32::MAX)
    }

    /// Data planes of which a request waits, and since when the first of them does.
    pub fn waiting(&self, now: Timestamp) -> impl Iterator<Item = (PlaneIncarnation, Timestamp)> {
        let words = self
            .waiting
            .iter()
            .filter(move |(_, word)| word.until > now);
        words.map(|(plane, word)| (*plane, word.since))
    }

    /// How many requests run, where that is counted.
    #[must_use]
    pub fn held(&self, now: Timestamp) -> u32 {
        self.running.held(now)
    }

    /// Models that wait for the next window of their upstream, and when that begins, as answers told.
    pub fn spent(&self, now: Timestamp) -> impl Iterator<Item = (&ModelId, Timestamp)> {
        let learned = self.learned.iter().map(|(model, it)| (model, it.ends_at()));
        learned.filter(move |(_, until)| *until > now)
    }

    /// What runs: to be released, and renewed, as permits are.
    pub fn running(&mut self) -> &mut Pool {
        &mut self.running
    }

    /// When nothing of it is true any more.
    #[must_use]
    pub fn ends_at(&self, limits: PaceLimits) -> Timestamp {
        let spaced = self.last.map(|last| last.plus_ms(limits.apart_ms));
        // An empty bucket is full after a minute, whatever its size.
        let full = self.bucket.map(|bucket| bucket.at.plus_ms(PARTS));
        let running = self.running.ends_at();
        let newest = self.recent.last();
        let recent = newest.map(|went| went.at.plus_ms(ASKED_AGAIN_MS));
        let waiting = self.waiting.values().map(|word| word.until).max();
        let learned = self.learned.values().map(Learned::ends_at).max();
        let others = spaced.max(full).max(recent).max(waiting).max(learned);
        running.max(others.unwrap_or_default())
    }

    fn went_lately(&self, attempt: AttemptId, now: Timestamp) -> bool {
        self.recent.iter().any(|went| {
            (went.plane, went.number) == (attempt.plane, attempt.number)
                && now.ms_since(went.at) < ASKED_AGAIN_MS
        })
    }

    fn goes(&mut self, attempt: AttemptId, now: Timestamp) {
        self.recent
            .retain(|went| now.ms_since(went.at) < ASKED_AGAIN_MS);
        if self.recent.len() >= MAX_RECENT {
            self.recent.remove(0);
        }
        self.recent.push(Went {
            plane: attempt.plane,
            number: attempt.number,
            at: now,
        });
    }

    /// When one may go that lets so many go first. A last request that lies ahead is the clock's fault and counts as
    /// just now.
    fn spaced(&self, apart_ms: u64, ahead: u32, now: Timestamp) -> Timestamp {
        let distance = apart_ms.saturating_mul(u64::from(ahead).saturating_add(1));
        self.last
            .map_or(now, |last| last.min(now).plus_ms(distance))
    }

    fn refilled(&self, limit: u32, now: Timestamp) -> Bucket {
        let most = u64::from(limit.max(1)).saturating_mul(PARTS);
        let level = self.bucket.map_or(most, |bucket| {
            let refill = now
                .ms_since(bucket.at)
                .saturating_mul(u64::from(limit.max(1)));
            bucket.level.saturating_add(refill).min(most)
        });
        let at = self.bucket.map_or(now, |bucket| not_back(bucket.at, now));
        Bucket { level, at }
    }
}

/// The later of two times that different clocks say, so that nothing is counted twice between them. A time that lies
/// further ahead than clocks differ is that of a clock that stepped.
fn not_back(before: Timestamp, now: Timestamp) -> Timestamp {
    if before.ms_since(now) <= CLOCKS_DIFFER_MS {
        before.max(now)
    } else {
        now
    }
}

impl Bucket {
    /// When it holds a whole request beside those of so many others. Where it never holds as many, those others are gone
    /// by then, or their words have ended.
    fn ready_at(self, limit: u32, ahead: u32) -> Timestamp {
        let wanted = PARTS.saturating_mul(u64::from(ahead).saturating_add(1));
        let missing = wanted.saturating_sub(self.level);
        self.at.plus_ms(missing.div_ceil(u64::from(limit.max(1))))
    }
}

/// A pace as it is stored.
///
/// # Errors
/// [`CodecError::Payload`] when it cannot be encoded.
pub fn encode(key: &str, pace: &Pace) -> Result<Vec<u8>, CodecError> {
    serde_json::to_vec(pace).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })
}

/// Reads a stored pace back.
///
/// # Errors
/// [`CodecError`] for a higher schema or a payload that does not decode.
pub fn decode(key: &str, schema: u32, payload: &[u8]) -> Result<Pace, CodecError> {
    if schema > PACE_SCHEMA {
        return Err(CodecError::HigherSchema {
            key: key.to_owned(),
            schema,
        });
    }
    serde_json::from_slice(payload).map_err(|source| CodecError::Payload {
        key: key.to_owned(),
        source,
    })
}
