//! Pins of sessions in the hot store (`sessions-and-streams.md` §2.5, decision 43).
//!
//! A pin is one value outside the change stream, changed only by who knows it: who is later adopts what stands there.
//! It is read at most once a second per replica and session, and written when it is made, moved, broken, or used so much
//! later that its end should move.
//!
//! **Stance:** fail-open. A store that is away or slow means that there is no pin, so that a session is placed by what is
//! eligible; no request fails or waits longer than its decision may. **Staleness:** a second. **Repair:** what is lost is
//! made anew where the session is next sent, which is where it was unless that is not eligible.

mod cache;
mod keep;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::affinity::{
    AttemptEnd, PIN_SCHEMA, Pin, PinKey, PinReading, PinWrite, after_attempt, decode, encode,
};
use tidegate_core::ids::ConnectionId;
use tidegate_core::time::Timestamp;
use tidegate_store::durable::DurableStore;
use tidegate_store::hot::{Cell, Swap, SwapOutcome};

use crate::clock::{Clock, local_now};
use crate::hot::Hot;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::pin_metrics::PinEvent;
use cache::Cache;
use keep::Waiting;

pub(crate) use keep::Keeper;

/// How often the end of an attempt is tried to be written before it is left to the next selection.
const MAX_TRIES: usize = 3;

/// What stands in the store, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pin: Option<Pin>,
    version: Option<u64>,
    /// It may be replaced: it was read, and no newer build wrote it.
    known: bool,
}

impl Standing {
    fn absent() -> Self {
        Self {
            pin: None,
            version: None,
            known: true,
        }
    }

    fn unknown() -> Self {
        Self {
            known: false,
            ..Self::absent()
        }
    }
}

/// Time that calls to the store may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Each.
    pub(crate) call: Duration,
    /// All of them.
    pub(crate) deadline: Instant,
}

impl Limits {
    /// As much for all calls as for one.
    fn of_one_call(self, now: Instant) -> Self {
        Self {
            deadline: self.deadline.min(now + self.call),
            ..self
        }
    }

    /// What is left for one call.
    fn left(self, now: Instant) -> Duration {
        self.call.min(self.deadline.saturating_duration_since(now))
    }
}

/// The pins that one decision read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadPins(BTreeMap<PinKey, Standing>);

impl ReadPins {
    /// What routing is told of a pin.
    pub(crate) fn reading(&self, key: &PinKey) -> PinReading {
        match self.0.get(key) {
            Some(standing) => PinReading::Read(standing.pin.clone()),
            None => PinReading::Unread,
        }
    }

    pub(crate) fn insert(&mut self, key: PinKey, standing: Standing) {
        self.0.insert(key, standing);
    }
}

/// Pins.
#[derive(Debug)]
pub(crate) struct Pins {
    hot: Arc<Hot>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    cache: Mutex<Cache>,
    waiting: Arc<Waiting>,
}

impl Pins {
    pub(crate) fn new(hot: Arc<Hot>, clock: Arc<Clock>, metrics: Arc<Metrics>) -> Self {
        Self {
            hot,
            clock,
            metrics,
            cache: Mutex::default(),
            waiting: Arc::default(),
        }
    }

    /// Who saves what is written here, and puts back what the hot store lost.
    pub(crate) fn keeper(&self, durable: Arc<dyn DurableStore>) -> Keeper {
        Keeper {
            waiting: Arc::clone(&self.waiting),
            hot: Arc::clone(&self.hot),
            clock: Arc::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
            durable,
        }
    }

    /// What stands under a key, at most a second ago.
    pub(crate) async fn read(&self, key: &PinKey, limits: Limits) -> Standing {
        let known = self.cache.lock().get(key, local_now());
        if let Some(standing) = known {
            self.count(PinEvent::CacheHit);
            return standing;
        }
        match self.ask(key, limits).await {
            Some(standing) => {
                self.count(PinEvent::Read);
                self.keep(key, standing.clone());
                standing
            }
            None => {
                self.count(PinEvent::ReadFailed);
                Standing::unknown()
            }
        }
    }

    /// Makes a change that a decision wishes for. Returns what stands now if somebody else was faster.
    pub(crate) async fn write(
        &self,
        write: &PinWrite,
        read: &mut ReadPins,
        limits: Limits,
    ) -> Result<(), Lost> {
        let PinWrite { key, change } = write;
        // Only what was read is replaced: in the meantime this decision may have found out what stands there.
        let read_then = |it: &&Standing| it.known && it.pin == change.before;
        let Some(standing) = read.0.get(key).filter(read_then) else {
            return Ok(());
        };
        match self
            .swap(key, standing, change.after.as_ref(), limits)
            .await
        {
            Swapped::Done(stands) => {
                self.count(match (&change.before, &change.after) {
                    (_, None) => PinEvent::Deleted,
                    (None, Some(_)) => PinEvent::Created,
                    (Some(before), Some(after)) if before.connection == after.connection => {
                        PinEvent::Touched
                    }
                    (Some(_), Some(_)) => PinEvent::Moved,
                });
                read.insert(key.clone(), stands);
                Ok(())
            }
            Swapped::Lost(stands) => {
                self.count(PinEvent::Lost);
                let is_same = stands.pin == standing.pin && stands.version == standing.version;
                read.insert(key.clone(), stands);
                if is_same { Ok(()) } else { Err(Lost) }
            }
            Swapped::Failed => {
                self.count(PinEvent::WriteFailed);
                Ok(())
            }
        }
    }

    /// An attempt of the session ended without success: its pin goes if it names the connection that was tried. All of it
    /// takes no longer than one call may, since what is decided next has more use for the time.
    pub(crate) async fn after_attempt(
        &self,
        key: &PinKey,
        tried: &ConnectionId,
        end: AttemptEnd,
        limits: Limits,
    ) {
        if end == AttemptEnd::Abandoned {
            return;
        }
        let limits = limits.of_one_call(local_now());
        // Not what was known a moment ago: the pin may be younger.
        let Some(mut standing) = self.ask(key, limits).await else {
            self.count(PinEvent::ReadFailed);
            return;
        };
        self.count(PinEvent::Read);
        self.keep(key, standing.clone());
        for _ in 0..MAX_TRIES {
            let change = after_attempt(standing.pin.as_ref(), tried, end);
            if change.is_none() || !standing.known {
                return;
            }
            match self.swap(key, &standing, None, limits).await {
                Swapped::Done(_) => {
                    self.count(PinEvent::Deleted);
                    return;
                }
                Swapped::Lost(stands) => {
                    self.count(PinEvent::Lost);
                    standing = stands;
                }
                Swapped::Failed => {
                    self.count(PinEvent::WriteFailed);
                    return;
                }
            }
        }
    }

    async fn swap(
        &self,
        key: &PinKey,
        before: &Standing,
        after: Option<&Pin>,
        limits: Limits,
    ) -> Swapped {
        let now = local_now();
        let left = limits.left(now);
        if left.is_zero() || self.hot.is_away_at(now) {
            return Swapped::Failed;
        }
        let Ok(payload) = after.map_or(Ok(Vec::new()), |pin| encode(key, pin)) else {
            return Swapped::Failed;
        };
        let swap = Swap {
            shard: key.shard(),
            key: key.cell_name(),
            expected: before.version,
            schema: PIN_SCHEMA,
            payload,
            // Of a pin that goes the end is past, so that nothing is left of it.
            expires_at: after.map_or(Timestamp(0), |pin| pin.expires_at),
            // Set by the call.
            not_after: self.clock.now(),
            sheddable: true,
        };
        match self.hot.swap(swap, left).await {
            Ok(SwapOutcome::Swapped { version, .. }) => {
                let stands = match after {
                    Some(pin) => Standing {
                        pin: Some(pin.clone()),
                        version: Some(version),
                        known: true,
                    },
                    None => Standing::absent(),
                };
                self.keep(key, stands.clone());
                if !self.waiting.note(key, before.pin.as_ref(), after) {
                    self.count(PinEvent::NotSaved);
                }
                Swapped::Done(stands)
            }
            Ok(SwapOutcome::Refused { found, .. }) => {
                let stands = standing(key, found);
                self.keep(key, stands.clone());
                Swapped::Lost(stands)
            }
            Err(_counted_by_the_call) => {
                // It may have run.
                self.cache.lock().forget(key);
                Swapped::Failed
            }
        }
    }

    async fn ask(&self, key: &PinKey, limits: Limits) -> Option<Standing> {
        let now = local_now();
        let left = limits.left(now);
        if left.is_zero() || self.hot.is_away_at(now) {
            return None;
        }
        let found = self.hot.cell(key.shard(), &key.cell_name(), left).await;
        Some(standing(key, found.ok()?))
    }

    fn keep(&self, key: &PinKey, standing: Standing) {
        let mut cache = self.cache.lock();
        cache.put(key.clone(), standing, local_now());
        self.metrics.pins.cached(cache.len());
    }

    fn count(&self, event: PinEvent) {
        self.metrics.pins.count(event);
    }
}

/// Somebody else changed the pin first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

enum Swapped {
    Done(Standing),
    Lost(Standing),
    Failed,
}

/// What was found under a key. What is not understood was written by a newer build: it is left alone.
fn standing(key: &PinKey, found: Option<Cell>) -> Standing {
    let Some(cell) = found else {
        return Standing::absent();
    };
    match decode(key, cell.schema, &cell.payload) {
        Ok(pin) => Standing {
            pin: Some(pin),
            version: Some(cell.version),
            known: true,
        },
        Err(error) => {
            tracing::debug!(%error, "a pin is not understood");
            Standing::unknown()
        }
    }
}

#[cfg(test)]
mod tests;
