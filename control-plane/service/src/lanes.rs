//! The pace of connections, kept in the hot store (`tidegate_core::admission::Pace`, decision 45).
//!
//! A connection that has a limit of its pace, or whose upstream told that little is left, has one value for the whole fleet.
//! Questions about one connection take
//! turns here, so that those of one replica never get in each other's way; replicas settle theirs by compare-and-set.
//!
//! **Stance:** while the store is away nothing is counted here. Whoever asks is told so and keeps to its part of the
//! limits ([`Counted::Nobody`]); a store that is only slow admits nobody for now, since others may be admitted by it.
//! **Staleness:** none, every answer rests on a compare-and-set or a read of its own. **Repair:** what a data plane lost
//! or forgot ends by its own message every 10 s, or by expiry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::admission::{
    self, Admitted, PACE_SCHEMA, Pace, PaceLimits, Place, Standing, Told,
};
use tidegate_core::ids::{AttemptId, ModelId, PlaneIncarnation, Shard};
use tidegate_core::state::codec::CodecError;
use tidegate_core::time::Timestamp;
use tidegate_store::hot::{Cell, HotStoreError, Swap, SwapOutcome};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::hot::{Hot, WRITE_LIMIT};
use crate::permits::{Held, PoolName, may_try_again};
use crate::telemetry::metrics::{AdmissionAnswer, Metrics};

/// Lanes above which those that nobody uses are put away.
const MANY_LANES: usize = 16_384;
/// Conflicts and late answers after which a change is given up.
const MAX_TRIES: u32 = 64;
/// Limit of one question, its turn included.
const ASK_LIMIT: Duration = Duration::from_millis(200);
/// Limit of ending and of renewing what a data plane names.
const KEEP_LIMIT: Duration = Duration::from_secs(1);
/// How soon to ask again when it could not be found out, in ms.
const ASK_AGAIN_MS: u64 = 50;
/// How long a pace is kept at least, so that it need not be made anew for each request.
const KEEP_MS: u64 = 10_000;

/// All lanes in use here.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) hot: Arc<Hot>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lanes: Mutex<BTreeMap<PoolName, Arc<Lane>>>,
}

/// The pace of one connection as seen here.
#[derive(Debug)]
pub(crate) struct Lane {
    key: String,
    shard: Shard,
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// `None`: absent, or never looked at.
    version: Option<u64>,
    pace: Pace,
}

/// What was found about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// For the whole fleet.
    Fleet(Admitted),
    /// The store is away.
    Nobody,
    /// It could not be found out, and the request may be counted: whoever asked gives back what it may have.
    Unknown,
}

/// Who asks whether a request may go.
#[derive(Clone, Debug)]
pub(crate) struct Asks {
    /// The request.
    pub(crate) request: AttemptId,
    /// It only asks; nothing is counted, but that its data plane waits.
    pub(crate) look: bool,
    /// What of its data plane ended, by number, before this is answered.
    pub(crate) ended: BTreeSet<u64>,
    /// What model it is for; unset where nobody learns.
    pub(crate) model: Option<ModelId>,
    /// What an answer told of the limits of that model, and which request that answered.
    pub(crate) told: Option<(Told, Option<Place>)>,
}

/// Why a pace could not be changed.
#[derive(Debug, thiserror::Error)]
enum Unchanged {
    #[error(transparent)]
    Store(#[from] HotStoreError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("others kept changing the pace")]
    Contended,
    #[error("the hot store is away")]
    Away,
    #[error("it took too long")]
    Late,
}

impl Lanes {
    /// Whether a request may go, which is counted then unless it only asks. With it, how it stands to what was learned of
    /// its model, if anything was.
    pub(crate) async fn admit(
        &self,
        name: &PoolName,
        asks: &Asks,
        limits: PaceLimits,
    ) -> (Counted, Option<Standing>) {
        let Asks {
            request,
            look,
            ref ended,
            ref model,
            told,
        } = *asks;
        let plane = request.plane;
        let step = |pace: &mut Pace, now| {
            for number in ended.iter().copied() {
                pace.running().release(AttemptId { plane, number });
            }
            let Some(model) = model else {
                let found = if look {
                    pace.look(plane, limits, now)
                } else {
                    pace.admit(request, limits, now)
                };
                return (found, None);
            };
            if let Some((told, place)) = told {
                pace.learn(model, told, place, now);
            }
            if look {
                pace.look_for(model, plane, limits, now)
            } else {
                pace.admit_for(model, request, limits, now)
            }
        };
        let changed = self.change(name, limits, ASK_LIMIT, step).await;
        let now = self.clock.now();
        let mut standing = None;
        let (counted, answer) = match changed {
            Ok((admitted, stands)) => {
                standing = stands;
                let answer = match admitted {
                    Admitted::Now => AdmissionAnswer::Now,
                    Admitted::NotBefore(_) => AdmissionAnswer::NotBefore,
                    Admitted::Spent(then) => {
                        let wait_ms = then.remaining_ms(now);
                        tracing::debug!(connection = %name.connection, model = ?model, wait_ms, "a request waits for its upstream's window");
                        AdmissionAnswer::Spent
                    }
                    Admitted::Full => AdmissionAnswer::Full,
                };
                (Counted::Fleet(admitted), answer)
            }
            Err(Unchanged::Away) => (Counted::Nobody, AdmissionAnswer::Nobody),
            // The store is there, and others may be admitted by it.
            Err(error) if look => {
                tracing::debug!(connection = %name.connection, %error, "nobody is admitted for now");
                let again = Admitted::NotBefore(now.plus_ms(ASK_AGAIN_MS));
                (Counted::Fleet(again), AdmissionAnswer::NotBefore)
            }
            // A change may have run of which nobody heard.
            Err(error) => {
                tracing::debug!(connection = %name.connection, %error, "nobody knows whether it is admitted");
                (Counted::Unknown, AdmissionAnswer::Unknown)
            }
        };
        if !look {
            self.metrics.admission(answer);
        }
        (counted, standing)
    }

    /// Ends what was admitted. `false` when not all of it was done in time.
    pub(crate) async fn release(
        &self,
        plane: PlaneIncarnation,
        released: Held,
        limits: PaceLimits,
    ) -> bool {
        let ends = released.into_iter().map(|(name, numbers)| async move {
            let step = |pace: &mut Pace, _now| {
                for number in &numbers {
                    let number = *number;
                    pace.running().release(AttemptId { plane, number });
                }
            };
            self.change(&name, limits, KEEP_LIMIT, step).await.is_ok()
        });
        let ended = futures::future::join_all(ends).await;
        ended.into_iter().all(|ended| ended)
    }

    /// Renews what a data plane has under way and ends its others, as far as this replica knows of them, up to `newest`.
    /// `asked` may be admitted anywhere. `false` when not all of it was done in time.
    pub(crate) async fn keep(
        &self,
        plane: PlaneIncarnation,
        newest: u64,
        asked: &BTreeSet<u64>,
        mut held: Held,
        limits: PaceLimits,
    ) -> bool {
        {
            let lanes = self.lanes.lock();
            let known = lanes.iter().filter(|(_, lane)| lane.knows(plane));
            for (name, _) in known {
                held.entry(name.clone()).or_default();
            }
        }
        let renewals = held.into_iter().map(|(name, mut keep)| async move {
            keep.extend(asked);
            let step = |pace: &mut Pace, now| pace.running().renew(plane, &keep, newest, now);
            self.change(&name, limits, KEEP_LIMIT, step).await.is_ok()
        });
        let renewed = futures::future::join_all(renewals).await;
        renewed.into_iter().all(|renewed| renewed)
    }

    async fn change<T>(
        &self,
        name: &PoolName,
        limits: PaceLimits,
        limit: Duration,
        step: impl FnMut(&mut Pace, Timestamp) -> T,
    ) -> Result<T, Unchanged> {
        let lane = self.lane(name);
        let changing = async {
            let _turn = lane.turn.lock().await;
            lane.change(&self.hot, &self.clock, limits, step).await
        };
        match timeout(limit, changing).await {
            Ok(changed) => changed,
            Err(_elapsed) if self.hot.is_gone() => Err(Unchanged::Away),
            Err(_elapsed) => Err(Unchanged::Late),
        }
    }

    fn lane(&self, name: &PoolName) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get(name) {
            return Arc::clone(lane);
        }
        if lanes.len() >= MANY_LANES {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let lane = Arc::new(Lane::new(name));
        lanes.insert(name.clone(), Arc::clone(&lane));
        lane
    }
}

impl Lane {
    fn new(name: &PoolName) -> Self {
        Self {
            key: admission::key_text(&name.provider, &name.connection),
            shard: Shard::of_provider(&name.provider),
            turn: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Whether the data plane is known here to have anything under way.
    fn knows(&self, plane: PlaneIncarnation) -> bool {
        self.known.lock().pace.running().knows(plane)
    }

    /// One step on the shared value. A step that changes nothing rests on a read of its own.
    async fn change<T>(
        &self,
        hot: &Hot,
        clock: &Clock,
        limits: PaceLimits,
        mut step: impl FnMut(&mut Pace, Timestamp) -> T,
    ) -> Result<T, Unchanged> {
        let mut known = self.known.lock().clone();
        let mut fresh = false;
        for _ in 0..MAX_TRIES {
            if hot.is_gone() {
                return Err(Unchanged::Away);
            }
            let now = clock.now();
            let mut pace = known.pace.clone();
            pace.prune(now);
            let result = step(&mut pace, now);
            if pace == known.pace {
                if fresh {
                    *self.known.lock() = known;
                    return Ok(result);
                }
                match hot.cell(self.shard, &self.key, WRITE_LIMIT).await {
                    Ok(found) => known = self.read(found)?,
                    Err(error) => {
                        may_try_again(error).await?;
                        continue;
                    }
                }
                fresh = true;
                continue;
            }
            let swap = Swap {
                shard: self.shard,
                key: self.key.clone(),
                expected: known.version,
                schema: PACE_SCHEMA,
                payload: admission::encode(&self.key, &pace)?,
                expires_at: pace.ends_at(limits).max(now.plus_ms(KEEP_MS)),
                not_after: now,
                sheddable: false,
            };
            match hot.swap(swap, WRITE_LIMIT).await {
                Ok(SwapOutcome::Swapped { version, .. }) => {
                    let version = Some(version);
                    *self.known.lock() = Known { version, pace };
                    return Ok(result);
                }
                Ok(SwapOutcome::Refused { found, .. }) => {
                    known = self.read(found)?;
                    fresh = true;
                }
                // It may have run; the next look tells.
                Err(error) => {
                    may_try_again(error).await?;
                    fresh = false;
                }
            }
        }
        Err(Unchanged::Contended)
    }

    fn read(&self, found: Option<Cell>) -> Result<Known, CodecError> {
        let Some(cell) = found else {
            return Ok(Known::default());
        };
        Ok(Known {
            version: Some(cell.version),
            pace: admission::decode(&self.key, cell.schema, &cell.payload)?,
        })
    }
}

#[cfg(test)]
mod tests;
