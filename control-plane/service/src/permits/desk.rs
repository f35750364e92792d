//! One pool's desk: where wishes queue, and the worker that serves them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::ids::{AttemptId, PlaneIncarnation, Shard};
use tidegate_core::permit::{self, Asker, Pool, Queue, Shares, Term};
use tokio::sync::Notify;

use crate::hot::WRITE_LIMIT;
use crate::shared_value::{Known, SharedValue, Unchanged};
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
    value: SharedValue<Pool>,
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
    known: Known<Pool>,
    /// Permits given out while the store is away, or was until a moment ago.
    shares: Shares,
    /// The store is away.
    away: bool,
}

impl Kept {
    /// What is given out while the store is away.
    fn away(&mut self) -> &mut Shares {
        if !std::mem::replace(&mut self.away, true) {
            self.shares.begin(&self.known.value);
        }
        &mut self.shares
    }

    /// The pool was seen in the store; what was given out meanwhile is in it from now on.
    fn back(&mut self, known: Known<Pool>) {
        *self = Self {
            known,
            ..Self::default()
        };
    }
}

/// Whose permit is looked for, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looking {
    pub(super) attempt: AttemptId,
    pub(super) replaces: Option<AttemptId>,
    pub(super) cap: u32,
}

impl Desk {
    pub(super) fn new(pool: &PoolName) -> Self {
        Self {
            pool: pool.clone(),
            value: SharedValue::new(
                permit::key_text(&pool.provider, &pool.connection),
                Shard::of_provider(&pool.provider),
            ),
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
        kept.known.value.knows(plane) || kept.shares.knows(plane)
    }

    /// How many permits are out.
    pub(super) async fn held(&self, parts: &Parts) -> u32 {
        let now = parts.clock.now();
        let shared = match self.value.look(&parts.hot, now, WRITE_LIMIT).await {
            Ok(known) => known.value.held(now),
            Err(_) => self.kept.lock().known.value.held(now),
        };
        shared.saturating_add(self.kept.lock().shares.given(now))
    }

    /// Who holds permits and who waits, and whether that is only what was last seen here.
    pub(super) async fn look(&self, parts: &Parts) -> (Pool, bool) {
        let now = parts.clock.now();
        match self.value.look(&parts.hot, now, WRITE_LIMIT).await {
            Ok(known) => (known.value, false),
            Err(_) => (self.kept.lock().known.value.clone(), true),
        }
    }

    /// Forgets who holds permits. Returns how many were out. What a worker knows is older then; its next change is refused
    /// once and reads again.
    pub(super) async fn clear(&self, parts: &Parts) -> Result<u32, Unchanged> {
        let Parts { hot, clock, .. } = parts;
        let known = self.value.look(hot, clock.now(), WRITE_LIMIT).await?;
        let changed = self
            .value
            .change((hot, clock), known, Pool::clear, Pool::ends_at);
        let (out, _) = changed.await?;
        Ok(out)
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
                return Some(is_full(&known.value));
            }
        }
        // A call that cannot be answered would count against the store.
        if limit.is_zero() {
            return None;
        }
        let known = self.value.look(&parts.hot, now, limit).await.ok()?;
        let is_full = is_full(&known.value);
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
            .value
            .tells_of_waiting(replica, clock.now());
        if told && let Err(error) = self.change(permits, &[], &Queue::default(), 0).await {
            tracing::debug!(pool = self.value.key(), %error, "that nobody waits is not told; the word ends by itself");
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
                tracing::debug!(pool = self.value.key(), %error, "no permits are given out for now");
                line.cap = cap;
                self.postpone(permits, wishes, line);
                tokio::time::sleep(LOOK_EVERY).await;
                return;
            }
            Err(error @ Unchanged::Away) => {
                tracing::debug!(pool = self.value.key(), %error, "permits come from local shares");
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
        let seen = self.kept.lock().known.value.clone();
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
        let Parts {
            hot,
            clock,
            replica,
            ..
        } = &permits.parts;
        let (known, shares) = {
            let kept = self.kept.lock();
            (kept.known.clone(), kept.shares.clone())
        };
        let ttl_ms = permits.parts.ttl_ms();
        let step = |pool: &mut Pool, now| {
            shares.hand_over(pool, now);
            fold(pool, wishes, queue, replica, cap, Term { now, ttl_ms })
        };
        let changed = self.value.change((hot, clock), known, step, Pool::ends_at);
        let (outcome, known) = changed.await?;
        self.kept.lock().back(known);
        Ok(outcome)
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
        let term = Term {
            now: clock.now(),
            ttl_ms: permits.parts.ttl_ms(),
        };
        fold_shares(shares, wishes, queue, replica, cap, planes, term)
    }
}

#[cfg(test)]
mod tests;
