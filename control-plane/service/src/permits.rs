//! Permits of connections, taken, renewed and given back in the hot store (`tidegate_core::permit`).
//!
//! Each pool that is in use here has a [`desk`]: wishes queue at it, and one worker at a time folds all that wait into
//! one compare-and-set. So many requests for one connection cost one round trip together, and those who wait for a
//! permit stand in one line.
//!
//! **Stance:** while the store is away, permits come from local shares: each data plane may use its part of the cap, what
//! it held before included, as far as this replica counts them, so that the sum may exceed the cap (decision 62). They
//! count in the shared pool when the store is back. A store that is there and takes no change in time, or none at all,
//! has nothing given out here: others may be granted by it. **Staleness:** none, a permit is
//! taken with a compare-and-set; those who wait look again every 25 ms for what other replicas gave back.
//! **Repair:** what a data plane lost or forgot ends by its own message (`permits.heartbeatMs`), or by expiry.

mod desk;
mod line;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use parking_lot::Mutex;
use tidegate_core::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId};
use tidegate_core::permit::{Claim, PERMIT_TTL_MS, Pool, WaitTerms};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::hot::Hot;
use crate::shared_value::Unchanged;
use crate::telemetry::metrics::Metrics;
use crate::watch::Live;

use desk::{Desk, Looking};
use wish::Wish;

/// Desks above which those that nobody uses are put away.
const MANY_DESKS: usize = 16_384;
/// Pools that are read at once for one decision.
const LOOKS_AT_ONCE: usize = 64;
/// Limit of renewing everything that a data plane holds.
const KEEP_LIMIT: Duration = Duration::from_secs(1);

/// All pools in use here.
#[derive(Debug)]
pub(crate) struct Permits {
    parts: Parts,
    desks: Mutex<BTreeMap<PoolName, Arc<Desk>>>,
}

/// What permits need of the rest.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) hot: Arc<Hot>,
    pub(crate) clock: Arc<Clock>,
    /// Caps of those who wait, and how long permits last, as they are now.
    pub(crate) config: Arc<Published>,
    pub(crate) live: Live,
    pub(crate) metrics: Arc<Metrics>,
    /// Name of this replica.
    pub(crate) replica: String,
    /// Where workers run.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when this replica ends: nobody waits here any more.
    pub(crate) drain: CancellationToken,
}

impl Parts {
    /// How long a permit lasts that nobody renews, in ms.
    fn ttl_ms(&self) -> u64 {
        let config = self.config.config();
        config.map_or(PERMIT_TTL_MS, |config| config.settings.permits.ttl_ms)
    }
}

/// Whose permits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolName {
    pub(crate) provider: ProviderId,
    pub(crate) connection: ConnectionId,
}

/// What became of a wish for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The attempt holds one.
    Held,
    /// All are out.
    Refused,
    /// It could not be found out in time; a permit that is granted after all is given back.
    Unknown,
}

/// How a wait for a permit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The attempt holds one.
    Granted,
    /// As many wait as may.
    QueueFull,
    /// Its time is over.
    TimedOut,
    /// This replica ends; another one is to be asked.
    Draining,
}

/// What a data plane says of its permits of one connection.
pub(crate) type Held = BTreeMap<PoolName, BTreeSet<u64>>;

impl Permits {
    /// No pool is in use.
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            parts,
            desks: Mutex::default(),
        }
    }

    /// Takes a permit if one of `cap` is free now.
    pub(crate) async fn take(
        self: &Arc<Self>,
        pool: &PoolName,
        attempt: AttemptId,
        replaces: Option<AttemptId>,
        cap: u32,
        deadline: Instant,
    ) -> Taken {
        let (told, answer) = oneshot::channel();
        let wish = Wish::Take {
            attempt,
            claim: Claim(rand::random()),
            replaces,
            cap,
            told,
        };
        if !self.wish(pool, wish) {
            return Taken::Unknown;
        }
        match tokio::time::timeout_at(deadline.into(), answer).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) | Err(_) => Taken::Unknown,
        }
    }

    /// Waits for a permit in the queue. Dropped, it waits no longer.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        pool: &PoolName,
        attempt: AttemptId,
        cap: u32,
        terms: WaitTerms,
    ) -> Waited {
        let (told, answer) = oneshot::channel();
        let wish = Wish::Wait {
            attempt,
            claim: Claim(rand::random()),
            cap,
            terms,
            told,
        };
        if !self.wish(pool, wish) {
            return Waited::QueueFull;
        }
        answer.await.unwrap_or(Waited::Draining)
    }

    /// The connections of these pools, each with its cap, that have no permit for the attempt, as far as that is known by then.
    /// Nothing is taken.
    pub(crate) async fn full_of(
        self: &Arc<Self>,
        pools: Vec<(PoolName, u32)>,
        attempt: AttemptId,
        replaces: Option<AttemptId>,
        call_limit: Duration,
        deadline: Instant,
    ) -> BTreeSet<ConnectionId> {
        let looks = pools.into_iter().map(|(pool, cap)| {
            let permits = Arc::clone(self);
            let looking = Looking {
                attempt,
                replaces,
                cap,
            };
            async move {
                let left = deadline.saturating_duration_since(local_now());
                let limit = call_limit.min(left);
                let desk = permits.desk(&pool);
                let is_full = desk.is_full_for(&permits.parts, looking, limit).await;
                (pool.connection, is_full)
            }
        });
        let mut looks = futures::stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE);
        let mut full = BTreeSet::new();
        while let Ok(Some((connection, is_full))) =
            tokio::time::timeout_at(deadline.into(), looks.next()).await
        {
            if is_full == Some(true) {
                full.insert(connection);
            }
        }
        full
    }

    /// Gives a permit back, soon.
    pub(crate) fn release(self: &Arc<Self>, pool: &PoolName, attempt: AttemptId) {
        // Without room at the desk it ends with the data plane's next message.
        self.wish(pool, Wish::Release { attempt });
    }

    /// Renews what a data plane holds and frees its others, as far as this replica knows of them, up to `newest`.
    /// `asked` may hold a permit anywhere. `false` when not all of it was done in time.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        plane: PlaneIncarnation,
        newest: u64,
        asked: &BTreeSet<u64>,
        mut held: Held,
    ) -> bool {
        let known: Vec<PoolName> = {
            let desks = self.desks.lock();
            let known = desks.iter().filter(|(_, desk)| desk.knows(plane));
            known.map(|(name, _)| name.clone()).collect()
        };
        for name in known {
            held.entry(name).or_default();
        }
        let mut answers = Vec::with_capacity(held.len());
        for (pool, mut keep) in held {
            keep.extend(asked);
            let (told, answer) = oneshot::channel();
            let wish = Wish::Renew {
                plane,
                keep,
                newest,
                told,
            };
            if self.wish(&pool, wish) {
                answers.push(answer);
            }
        }
        let all = futures::future::join_all(answers);
        match tokio::time::timeout(KEEP_LIMIT, all).await {
            Ok(answers) => answers.into_iter().all(|answer| answer.unwrap_or(false)),
            Err(_) => false,
        }
    }

    /// Whether all permits are out, as the store says, or as was last seen here while it does not answer.
    pub(crate) async fn is_full(&self, pool: &PoolName, cap: u32) -> bool {
        self.desk(pool).held(&self.parts).await >= cap
    }

    /// Who holds permits and who waits, as the store says; `true` with what was last seen here, while it does not answer.
    pub(crate) async fn look(&self, pool: &PoolName) -> (Pool, bool) {
        self.desk(pool).look(&self.parts).await
    }

    /// Forgets who holds permits. Returns how many were out.
    pub(crate) async fn clear(&self, pool: &PoolName) -> Result<u32, Unchanged> {
        self.desk(pool).clear(&self.parts).await
    }

    fn wish(self: &Arc<Self>, pool: &PoolName, wish: Wish) -> bool {
        let desk = self.desk(pool);
        match desk.put(wish) {
            desk::Put::Taken => true,
            desk::Put::NeedsWorker => {
                let worker = Arc::clone(&desk).work(Arc::clone(self));
                self.parts.tasks.spawn(worker);
                true
            }
            desk::Put::NoRoom => false,
        }
    }

    fn desk(&self, pool: &PoolName) -> Arc<Desk> {
        let mut desks = self.desks.lock();
        if let Some(desk) = desks.get(pool) {
            return Arc::clone(desk);
        }
        if desks.len() >= MANY_DESKS {
            desks.retain(|_, desk| Arc::strong_count(desk) > 1);
        }
        let desk = Arc::new(Desk::new(pool));
        desks.insert(pool.clone(), Arc::clone(&desk));
        desk
    }
}
