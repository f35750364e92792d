//! One pool's desk: where wishes queue, and the worker that serves them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::ids::{AttemptId, PlaneIncarnation, Shard};
use tidegate_core::permit::{self, Asker, POOL_SCHEMA, Pool, Queue, Shares};
use tidegate_core::state::codec::CodecError;
use tidegate_core::time::Timestamp;
use tidegate_store::hot::{Cell, HotStoreError, Swap, SwapOutcome};
use tokio::sync::Notify;

use crate::hot::WRITE_LIMIT;
use crate::telemetry::metrics::PermitGrant;

use super::line::{Line, Waiter};
use super::wish::{Grant, Outcome, Wish, fold, fold_shares, join};
use super::{Parts, Permits, PoolName, Taken, Waited};

/// Most wishes that wait at a desk.
const MAX_WISHES: usize = 4_096;
/// Most of them that are folded into one change.
const MAX_FOLDED: usize = 512;
/// How often those who wait look for what others gave back.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Conflicts and failures after which a change is given up.
const MAX_TRIES: u32 = 64;
/// Between two tries to reach a store.
const REACH_AGAIN: Duration = Duration::from_millis(5);
/// How long a pool is kept at least, so that an empty one need not be made anew for each request.
const KEEP_EMPTY_MS: u64 = 10_000;

/// What became of a wish that was put to a desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// Somebody works on it.
    Taken,
    /// The caller must start a worker.
    NeedsWorker,
    /// There are too many.
    NoRoom,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Desk {
    pool: PoolName,
    key: String,
    shard: Shard,
    inbox: Mutex<Inbox>,
    wake: Notify,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Inbox {
    wishes: Vec<Wish>,
    working: bool,
}

/// What outlasts a worker.
#[derive(Clone, Debug, Default)]
struct Kept {
    /// The pool as it was last seen.
    known: Known,
    /// Permits given out while the store is away, or was until a moment ago.
    shares: Shares,
    /// The store is away.
    away: bool,
}

impl Kept {
    /// What is given out while the store is away.
    fn away(&mut self) -> &mut Shares {
        if !std::mem::replace(&mut self.away, true) {
            self.shares.begin(&self.known.pool);
        }
        &mut self.shares
    }

    /// The pool was seen in the store; what was given out meanwhile is in it from now on.
    fn back(&mut self, known: Known) {
        *self = Self {
            known,
            ..Self::default()
        };
    }
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// `None`: absent, or never looked at.
    version: Option<u64>,
    pool: Pool,
    /// When it was like that; unset: never looked at.
    seen_at: Option<Timestamp>,
}

/// Whose permit is looked for, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking {
    pub(super) attempt: AttemptId,
    pub(super) replaces: Option<AttemptId>,
    pub(super) cap: u32,
}

/// Why the shared pool could not be changed.
#[derive(Debug, thiserror::Error)]
enum Unchanged {
    #[error(transparent)]
    Store(#[from] HotStoreError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("others kept changing the pool")]
    Contended,
    #[error("the hot store is away")]
    Away,
}

impl Desk {
    pub(super) fn new(pool: &PoolName) -> Self {
        Self {
            pool: pool.clone(),
            key: permit::key_text(&pool.provider, &pool.connection),
            shard: Shard::of_provider(&pool.provider),
            inbox: Mutex::default(),
            wake: Notify::new(),
            kept: Mutex::default(),
        }
    }

    /// Puts a wish. Never waits.
    pub(super) fn put(&self, wish: Wish) -> Put {
        let mut inbox = self.inbox.lock();
        if inbox.wishes.len() >= MAX_WISHES {
            return Put::NoRoom;
        }
        inbox.wishes.push(wish);
        if inbox.working {
            drop(inbox);
            self.wake.notify_one();
            return Put::Taken;
        }
        inbox.working = true;
        Put::NeedsWorker
    }

    /// Whether the data plane is known here to hold a permit.
    pub(super) fn knows(&self, plane: PlaneIncarnation) -> bool {
        let kept = self.kept.lock();
        kept.known.pool.knows(plane) || kept.shares.knows(plane)
    }

    /// How many permits are out.
    pub(super) async fn held(&self, parts: &Parts) -> u32 {
        let found = parts.hot.cell(self.shard, &self.key, WRITE_LIMIT).await;
        let now = parts.clock.now();
        let shared = match found.map(|found| self.read(found, now)) {
            Ok(Ok(known)) => known.pool.held(now),
            Ok(Err(_)) | Err(_) => self.kept.lock().known.pool.held(now),
        };
        shared.saturating_add(self.kept.lock().shares.given(now))
    }

    /// Whether there is no permit for whom it is looked for: as was seen here within [`LOOK_EVERY`], or else as the store
    /// says now. `None` when neither is known in time.
    pub(super) async fn is_full_for(
        &self,
        parts: &Parts,
        looking: Looking,
        limit: Duration,
    ) -> Option<bool> {
        let Looking {
            attempt,
            replaces,
            cap,
        } = looking;
        let now = parts.clock.now();
        if parts.hot.is_gone() {
            let share = permit::share(cap, parts.live.in_fleet());
            let mut kept = self.kept.lock();
            return Some(!kept.away().has_room(attempt, replaces, share, now));
        }
        let is_full = |pool: &Pool| !pool.has_room(attempt, replaces, cap, Asker::Newcomer, now);
        {
            let known = &self.kept.lock().known;
            let look_every = u64::try_from(LOOK_EVERY.as_millis()).unwrap_or(u64::MAX);
            if known
                .seen_at
                .is_some_and(|at| now.ms_since(at) < look_every)
            {
                return Some(is_full(&known.pool));
            }
        }
        // A call that cannot be answered would count against the store.
        if limit.is_zero() {
            return None;
        }
        let found = parts.hot.cell(self.shard, &self.key, limit).await.ok()?;
        let known = self.read(found, now).ok()?;
        let is_full = is_full(&known.pool);
        // What a worker wrote meanwhile may be newer; then its next change is refused once and reads again.
        self.kept.lock().known = known;
        Some(is_full)
    }

    /// Serves until there is nothing to do.
    pub(super) async fn work(self: Arc<Self>, permits: Arc<Permits>) {
        let mut line = Line::default();
        loop {
            line.forget_the_gone();
            let mut wishes = self.next_wishes();
            for take_back in line.end_over(permits.parts.clock.now()) {
                permits.parts.metrics.permit(PermitGrant::TimedOut);
                wishes.push(take_back);
            }
            if wishes.is_empty() && line.queue.is_empty() {
                self.take_word_back(&permits).await;
                if self.rests() {
                    return;
                }
                continue;
            }
            self.serve(&permits, wishes, &mut line).await;
            if line.queue.is_empty() {
                continue;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = permits.parts.drain.cancelled() => {
                    let waiters = line.leave();
                    // First, so that they are not counted where they ask next.
                    self.take_word_back(&permits).await;
                    for told in waiters {
                        // Who is gone need not be told.
                        _ = told.send(Waited::Draining);
                    }
                }
            }
        }
    }

    /// Nobody waits here any more: others need not count them, nor leave free what they wait for.
    async fn take_word_back(&self, permits: &Permits) {
        let Parts { clock, replica, .. } = &permits.parts;
        let told = self
            .kept
            .lock()
            .known
            .pool
            .tells_of_waiting(replica, clock.now());
        if told && let Err(error) = self.change(permits, &[], &Queue::default(), 0).await {
            tracing::debug!(pool = self.key, %error, "that nobody waits is not told; the word ends by itself");
        }
    }

    /// The cap of those who wait, as the configuration says now: without one nobody need wait. `None` where nothing is
    /// configured yet.
    fn cap_now(&self, permits: &Permits) -> Option<u32> {
        let config = permits.parts.config.config()?;
        let connection = config.connection(&self.pool.connection);
        let ours = connection.filter(|connection| connection.provider == self.pool.provider);
        let cap = ours.and_then(|connection| permit::cap(connection));
        Some(cap.unwrap_or(u32::MAX))
    }

    fn next_wishes(&self) -> Vec<Wish> {
        let mut inbox = self.inbox.lock();
        let count = inbox.wishes.len().min(MAX_FOLDED);
        let mut wishes: Vec<Wish> = inbox.wishes.drain(..count).collect();
        drop(inbox);
        // Whoever gave up meanwhile wants nothing any more.
        let wanted = |wish: &Wish| match wish {
            Wish::Take { told, .. } => !told.is_closed(),
            Wish::Wait { told, .. } => !told.is_closed(),
            Wish::Release { .. } | Wish::TakeBack { .. } | Wish::Renew { .. } => true,
        };
        wishes.retain(wanted);
        wishes
    }

    /// The worker ends, unless there is a new wish.
    fn rests(&self) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.working = !inbox.wishes.is_empty();
        !inbox.working
    }

    /// Grants what can be granted and tells everybody.
    async fn serve(&self, permits: &Arc<Permits>, wishes: Vec<Wish>, line: &mut Line) {
        let cap = self.cap_now(permits).unwrap_or_else(|| line.cap(&wishes));
        let (outcome, local) = match self.change(permits, &wishes, &line.queue, cap).await {
            Ok(outcome) => (outcome, false),
            // The store is there, and others may be granted permits by it.
            Err(error @ (Unchanged::Contended | Unchanged::Codec(_) | Unchanged::Store(_))) => {
                tracing::debug!(pool = self.key, %error, "no permits are given out for now");
                line.cap = cap;
                self.postpone(permits, wishes, line);
                tokio::time::sleep(LOOK_EVERY).await;
                return;
            }
            Err(error @ Unchanged::Away) => {
                tracing::debug!(pool = self.key, %error, "permits come from local shares");
                (
                    self.change_locally(permits, &wishes, &line.queue, cap),
                    true,
                )
            }
        };
        let Outcome {
            granted,
            queue,
            served,
        } = outcome;
        line.queue = queue;
        line.cap = cap;
        let metrics = &permits.parts.metrics;
        let grant = if local {
            PermitGrant::Local
        } else {
            PermitGrant::Shared
        };
        let mut unwanted = Vec::new();
        for (wish, granted) in wishes.into_iter().zip(granted) {
            match wish {
                Wish::Take {
                    attempt,
                    claim,
                    told,
                    ..
                } => {
                    let (taken, counted) = if granted {
                        (Taken::Held, grant)
                    } else {
                        (Taken::Refused, PermitGrant::Refused)
                    };
                    metrics.permit(counted);
                    if told.send(taken).is_err() && granted {
                        unwanted.push(Wish::TakeBack { attempt, claim });
                    }
                }
                Wish::Wait {
                    attempt,
                    claim,
                    told,
                    ..
                } => {
                    if granted {
                        line.told.insert(attempt, Waiter { claim, told });
                    } else {
                        metrics.permit(PermitGrant::QueueFull);
                        // Nobody waits for it any more; then nobody need be told.
                        _ = told.send(Waited::QueueFull);
                    }
                }
                Wish::Release { .. } | Wish::TakeBack { .. } => {}
                Wish::Renew { told, .. } => _ = told.send(!local),
            }
        }
        for attempt in served {
            metrics.permit(grant);
            unwanted.extend(line.tell(attempt, Waited::Granted).err());
        }
        // Before whatever the same attempt may have wished since.
        self.inbox.lock().wishes.splice(0..0, unwanted);
    }

    /// The pool could not be changed. Who waits goes on waiting, what ends something is tried again before all that is
    /// wished since, and who asked for a permit at once hears of none.
    fn postpone(&self, permits: &Permits, wishes: Vec<Wish>, line: &mut Line) {
        let Parts {
            clock,
            replica,
            metrics,
            ..
        } = &permits.parts;
        let now = clock.now();
        let seen = self.kept.lock().known.pool.clone();
        let mut again = Vec::new();
        for wish in wishes {
            match wish {
                // Whoever wants one at once did not wait that long. A change of which nobody knows whether it ran may
                // have granted it.
                Wish::Take { attempt, claim, .. } => {
                    again.push(Wish::TakeBack { attempt, claim });
                }
                Wish::Wait {
                    attempt,
                    claim,
                    terms,
                    told,
                    ..
                } => match join(
                    &mut line.queue,
                    &seen,
                    replica,
                    (attempt, claim),
                    terms,
                    now,
                ) {
                    Grant::Given | Grant::Waits => {
                        line.told.insert(attempt, Waiter { claim, told });
                    }
                    Grant::Refused => {
                        metrics.permit(PermitGrant::QueueFull);
                        // Nobody waits for it any more; then nobody need be told.
                        _ = told.send(Waited::QueueFull);
                    }
                },
                Wish::Release { .. } | Wish::TakeBack { .. } | Wish::Renew { .. } => {
                    again.push(wish);
                }
            }
        }
        self.inbox.lock().wishes.splice(0..0, again);
    }

    /// Changes the shared pool with a compare-and-set.
    async fn change(
        &self,
        permits: &Permits,
        wishes: &[Wish],
        queue: &Queue,
        cap: u32,
    ) -> Result<Outcome, Unchanged> {
        let hot = &permits.parts.hot;
        let (mut known, shares) = {
            let kept = self.kept.lock();
            (kept.known.clone(), kept.shares.clone())
        };
        let mut fresh = false;
        for _ in 0..MAX_TRIES {
            // Others may be granted permits by a store that is only slow.
            if hot.is_gone() {
                return Err(Unchanged::Away);
            }
            let now = permits.parts.clock.now();
            let mut pool = known.pool.clone();
            pool.prune(now);
            shares.hand_over(&mut pool, now);
            let outcome = fold(&mut pool, wishes, queue, &permits.parts.replica, cap, now);
            if pool == known.pool {
                if fresh {
                    self.kept.lock().back(known);
                    return Ok(outcome);
                }
                match hot.cell(self.shard, &self.key, WRITE_LIMIT).await {
                    Ok(found) => known = self.read(found, now)?,
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
                schema: POOL_SCHEMA,
                payload: permit::encode(&self.key, &pool)?,
                expires_at: pool.ends_at().max(now.plus_ms(KEEP_EMPTY_MS)),
                not_after: now,
                sheddable: false,
            };
            match hot.swap(swap, WRITE_LIMIT).await {
                Ok(SwapOutcome::Swapped { version, .. }) => {
                    let version = Some(version);
                    self.kept.lock().back(Known {
                        version,
                        pool,
                        seen_at: Some(now),
                    });
                    return Ok(outcome);
                }
                Ok(SwapOutcome::Refused { found, .. }) => {
                    known = self.read(found, now)?;
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

    fn read(&self, found: Option<Cell>, now: Timestamp) -> Result<Known, CodecError> {
        let seen_at = Some(now);
        let Some(cell) = found else {
            return Ok(Known {
                seen_at,
                ..Known::default()
            });
        };
        Ok(Known {
            version: Some(cell.version),
            pool: permit::decode(&self.key, cell.schema, &cell.payload)?,
            seen_at,
        })
    }

    /// Does the same to what this replica gives out by itself.
    fn change_locally(
        &self,
        permits: &Permits,
        wishes: &[Wish],
        queue: &Queue,
        cap: u32,
    ) -> Outcome {
        let Parts {
            clock,
            live,
            replica,
            ..
        } = &permits.parts;
        let mut kept = self.kept.lock();
        let (shares, planes) = (kept.away(), live.in_fleet());
        fold_shares(shares, wishes, queue, replica, cap, planes, clock.now())
    }
}

/// After a failure that may pass: a store that is away is told by [`crate::hot::Hot::is_gone`], not by one call.
pub(crate) async fn may_try_again(error: HotStoreError) -> Result<(), HotStoreError> {
    match error {
        HotStoreError::Timeout => Ok(()),
        HotStoreError::Unreachable(_) => {
            tokio::time::sleep(REACH_AGAIN).await;
            Ok(())
        }
        error @ (HotStoreError::Protocol(_) | HotStoreError::Bounds(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests;
