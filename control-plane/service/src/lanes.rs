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
use tidegate_core::admission::{self, Admitted, Pace, PaceLimits, Place, Standing, Told};
use tidegate_core::ids::{AttemptId, ModelId, PlaneIncarnation, Shard};
use tidegate_core::permit::Term;
use tidegate_core::time::Timestamp;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::hot::Hot;
use crate::permits::{Held, PoolName};
use crate::shared_value::{self, Known, SharedValue};
use crate::telemetry::metrics::{AdmissionAnswer, Metrics};

/// Lanes above which those that nobody uses are put away.
const MANY_LANES: usize = 16_384;
/// Limit of one question, its turn included.
const ASK_LIMIT: Duration = Duration::from_millis(200);
/// Limit of ending and of renewing what a data plane names.
const KEEP_LIMIT: Duration = Duration::from_secs(1);
/// How soon to ask again when it could not be found out, in ms.
const ASK_AGAIN_MS: u64 = 50;

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
    value: SharedValue<Pace>,
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Known<Pace>>,
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
    Value(shared_value::Unchanged),
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
            let model = model.as_ref();
            if let Some((model, (told, place))) = model.zip(told) {
                pace.learn(model, told, place, now);
            }
            if look {
                pace.look(plane, model, limits, now)
            } else {
                pace.admit(request, model, limits, now)
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
            let step = |pace: &mut Pace, now| {
                let term = Term {
                    now,
                    ttl_ms: limits.ttl_ms,
                };
                pace.running().renew(plane, &keep, newest, term);
            };
            self.change(&name, limits, KEEP_LIMIT, step).await.is_ok()
        });
        let renewed = futures::future::join_all(renewals).await;
        renewed.into_iter().all(|renewed| renewed)
    }

    /// The pace of a connection, as the store says; `true` with what was last seen here, while it does not answer.
    pub(crate) async fn pace(&self, name: &PoolName) -> (Pace, bool) {
        let lane = self.lane(name);
        let now = self.clock.now();
        match lane.value.look(&self.hot, now, ASK_LIMIT).await {
            Ok(known) => (known.value, false),
            Err(_) => {
                let known = lane.known.lock().value.clone();
                (known, true)
            }
        }
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
            Ok(Err(shared_value::Unchanged::Away)) => Err(Unchanged::Away),
            Ok(changed) => changed.map_err(Unchanged::Value),
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
            value: SharedValue::new(
                admission::key_text(&name.provider, &name.connection),
                Shard::of_provider(&name.provider),
            ),
            turn: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// Whether the data plane is known here to have anything under way.
    fn knows(&self, plane: PlaneIncarnation) -> bool {
        self.known.lock().value.running().knows(plane)
    }

    /// One step on the shared value.
    async fn change<T>(
        &self,
        hot: &Hot,
        clock: &Clock,
        limits: PaceLimits,
        step: impl FnMut(&mut Pace, Timestamp) -> T,
    ) -> Result<T, shared_value::Unchanged> {
        let known = self.known.lock().clone();
        let ends_at = |pace: &Pace| pace.ends_at(limits);
        let changed = self.value.change((hot, clock), known, step, ends_at);
        let (result, known) = changed.await?;
        *self.known.lock() = known;
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
