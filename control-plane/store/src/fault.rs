//! A hot store that misbehaves on demand, for tests and simulations.
//!
//! It stands between one replica and a store and does to the calls what a network and a frozen server do.
//! Everything is a switch that the test sets and nothing is random, so a run can be repeated. What happens
//! to the memory itself (flush, lost writes, an older state, another server, a clock that steps) is done to
//! the store behind it: see [`crate::memory::MemoryHotStore`] and [`FaultyHotStore::store`].

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};
use parking_lot::Mutex;
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Incarnation;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::hot::{
    Announcement, Blob, Cell, Followed, HotStore, HotStoreError, ShardCheck, ShardImage,
    ShardWrite, Swap, SwapOutcome, VersionVector, WriteOutcome,
};

/// Most writes that wait to run late; the oldest is lost when there are more.
const MAX_PARKED: usize = 1_024;

/// A store that misbehaves on demand. Clones share switches and the store.
#[derive(Debug)]
pub struct FaultyHotStore<S: ?Sized> {
    store: Arc<S>,
    faults: Arc<Faults>,
}

impl<S: ?Sized> Clone for FaultyHotStore<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            faults: Arc::clone(&self.faults),
        }
    }
}

#[derive(Debug)]
struct Faults {
    /// How long a caller waits for an answer.
    limit: Duration,
    frozen: watch::Sender<bool>,
    switches: Mutex<Switches>,
}

#[derive(Debug, Default)]
struct Switches {
    delay_each_way: Duration,
    delay_changes: Duration,
    fail_each: Option<NonZeroU64>,
    calls: u64,
    late_writes: u64,
    lost_answers: u64,
    slow_swaps: bool,
    lost_swaps: bool,
    parked: VecDeque<ShardWrite>,
}

/// What is to become of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteFault {
    None,
    /// It does not arrive before its caller has given up.
    Late,
    /// It runs, but its answer never arrives.
    AnswerLost,
}

impl<S: HotStore + ?Sized> FaultyHotStore<S> {
    /// Stands before `store`. Its callers wait for an answer for at most `limit`.
    #[must_use]
    pub fn new(store: Arc<S>, limit: Duration) -> Self {
        Self {
            store,
            faults: Arc::new(Faults {
                limit,
                frozen: watch::Sender::new(false),
                switches: Mutex::default(),
            }),
        }
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// Each call takes this long to arrive, its answer as long again, and each change as long to a follower.
    pub fn delay_each_way(&self, delay: Duration) {
        self.faults.switches.lock().delay_each_way = delay;
    }

    /// Each change takes this long more to a follower, so that who follows is behind what calls are answered by.
    pub fn delay_changes(&self, delay: Duration) {
        self.faults.switches.lock().delay_changes = delay;
    }

    /// Each nth call from here on fails before it arrives; `None` ends that.
    pub fn fail_each(&self, nth: Option<NonZeroU64>) {
        let mut switches = self.faults.switches.lock();
        switches.fail_each = nth;
        switches.calls = 0;
    }

    /// The next `count` writes arrive too late: the caller gets a time-out, and the write waits for
    /// [`Self::run_parked`].
    pub fn delay_next_writes_past_limit(&self, count: u64) {
        self.faults.switches.lock().late_writes = count;
    }

    /// The next `count` writes run at once, but the caller gets a time-out.
    pub fn lose_next_answers(&self, count: u64) {
        self.faults.switches.lock().lost_answers = count;
    }

    /// As long as this is on, no swap of a value outside the change stream arrives before its caller has given up, or ever.
    pub fn answer_no_swap_in_time(&self, on: bool) {
        self.faults.switches.lock().slow_swaps = on;
    }

    /// As long as this is on, each swap of a value outside the change stream runs, but its caller gets a time-out.
    pub fn lose_answers_of_swaps(&self, on: bool) {
        self.faults.switches.lock().lost_swaps = on;
    }

    /// The server stands still: no call arrives, no change leaves, until [`Self::thaw`].
    pub fn freeze(&self) {
        self.faults.frozen.send_replace(true);
    }

    /// The server goes on. Writes whose callers gave up meanwhile run first, as they do in a server whose
    /// socket held them. Returns what became of those.
    pub async fn thaw(&self) -> Vec<Result<WriteOutcome, HotStoreError>> {
        let outcomes = self.run_parked().await;
        self.faults.frozen.send_replace(false);
        outcomes
    }

    /// Runs the writes whose callers were told of a time-out, in their order.
    pub async fn run_parked(&self) -> Vec<Result<WriteOutcome, HotStoreError>> {
        let parked = std::mem::take(&mut self.faults.switches.lock().parked);
        let mut outcomes = Vec::with_capacity(parked.len());
        for write in parked {
            outcomes.push(self.store.write(write).await);
        }
        outcomes
    }

    /// Loses the writes whose callers were told of a time-out. Returns how many there were.
    pub fn drop_parked(&self) -> usize {
        std::mem::take(&mut self.faults.switches.lock().parked).len()
    }

    /// Does a call that is not parked: cut off at its limit, it has run or never will.
    async fn pass<T>(
        &self,
        call: impl Future<Output = Result<T, HotStoreError>> + Send,
    ) -> Result<T, HotStoreError> {
        self.faults.count()?;
        let deadline = self.faults.deadline();
        let whole = async {
            self.faults.travel().await;
            let answer = call.await;
            self.faults.delay().await;
            answer
        };
        timeout_at(deadline, whole)
            .await
            .map_err(|_| HotStoreError::Timeout)?
    }
}

impl Faults {
    fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.limit).unwrap_or(now)
    }

    /// Counts a call, which may be the one that fails.
    fn count(&self) -> Result<(), HotStoreError> {
        let mut switches = self.switches.lock();
        switches.calls = switches.calls.wrapping_add(1);
        match switches.fail_each {
            Some(nth) if switches.calls.is_multiple_of(nth.get()) => Err(
                HotStoreError::Unreachable("a fault that was asked for".to_owned()),
            ),
            _ => Ok(()),
        }
    }

    fn next_write_fault(&self) -> WriteFault {
        let mut switches = self.switches.lock();
        if let Some(left) = switches.late_writes.checked_sub(1) {
            switches.late_writes = left;
            return WriteFault::Late;
        }
        if let Some(left) = switches.lost_answers.checked_sub(1) {
            switches.lost_answers = left;
            return WriteFault::AnswerLost;
        }
        WriteFault::None
    }

    fn park(&self, write: ShardWrite) {
        let mut switches = self.switches.lock();
        if switches.parked.len() >= MAX_PARKED {
            switches.parked.pop_front();
        }
        switches.parked.push_back(write);
    }

    async fn delay(&self) {
        let delay = self.switches.lock().delay_each_way;
        wait(delay).await;
    }

    /// The way to the server, or of a change from it: a delay, and a wait while it is frozen.
    async fn travel(&self) {
        self.delay().await;
        let mut frozen = self.frozen.subscribe();
        // The sender is in `self`, so this ends only when the server goes on.
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            tracing::debug!("the switch of a faulty store is gone");
        }
    }
}

async fn wait(delay: Duration) {
    if !delay.is_zero() {
        sleep(delay).await;
    }
}

#[async_trait]
impl<S: HotStore + ?Sized> HotStore for FaultyHotStore<S> {
    async fn write(&self, write: ShardWrite) -> Result<WriteOutcome, HotStoreError> {
        write.check_bounds()?;
        self.faults.count()?;
        let deadline = self.faults.deadline();
        let fault = self.faults.next_write_fault();
        if fault == WriteFault::Late {
            self.faults.park(write);
            sleep_until(deadline).await;
            return Err(HotStoreError::Timeout);
        }
        if timeout_at(deadline, self.faults.travel()).await.is_err() {
            self.faults.park(write);
            return Err(HotStoreError::Timeout);
        }
        let answer = timeout_at(deadline, async {
            let outcome = self.store.write(write).await;
            self.faults.delay().await;
            outcome
        });
        let outcome = answer.await.map_err(|_| HotStoreError::Timeout)?;
        if fault == WriteFault::AnswerLost {
            sleep_until(deadline).await;
            return Err(HotStoreError::Timeout);
        }
        outcome
    }

    async fn read(&self, shard: Shard) -> Result<ShardImage, HotStoreError> {
        self.pass(self.store.read(shard)).await
    }

    async fn check(&self) -> Result<Vec<ShardCheck>, HotStoreError> {
        self.pass(self.store.check()).await
    }

    async fn begin_incarnation(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
        not_after: Timestamp,
    ) -> Result<Option<Incarnation>, HotStoreError> {
        self.pass(self.store.begin_incarnation(shard, found, known, not_after))
            .await
    }

    fn follow(&self, from: VersionVector) -> BoxStream<'static, Followed> {
        let followed = self.store.follow(from);
        let faults = Arc::clone(&self.faults);
        stream::unfold((followed, faults), |(mut followed, faults)| async move {
            let item = followed.next().await?;
            faults.travel().await;
            let late = faults.switches.lock().delay_changes;
            wait(late).await;
            Some((item, (followed, faults)))
        })
        .boxed()
    }

    async fn swap(&self, swap: Swap) -> Result<SwapOutcome, HotStoreError> {
        let (is_slow, is_lost) = {
            let switches = self.faults.switches.lock();
            (switches.slow_swaps, switches.lost_swaps)
        };
        let deadline = self.faults.deadline();
        if is_slow {
            self.faults.count()?;
        } else {
            let outcome = self.pass(self.store.swap(swap)).await;
            if !is_lost {
                return outcome;
            }
        }
        sleep_until(deadline).await;
        Err(HotStoreError::Timeout)
    }

    async fn cell(
        &self,
        shard: Shard,
        key: &str,
    ) -> Result<(Option<Cell>, Timestamp), HotStoreError> {
        self.pass(self.store.cell(shard, key)).await
    }

    async fn next_turn(
        &self,
        shard: Shard,
        key: &str,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        self.pass(self.store.next_turn(shard, key, ttl)).await
    }

    async fn announce(
        &self,
        announcement: Announcement,
        ttl: Duration,
    ) -> Result<(), HotStoreError> {
        self.pass(self.store.announce(announcement, ttl)).await
    }

    async fn announced(&self) -> Result<Vec<Announcement>, HotStoreError> {
        self.pass(self.store.announced()).await
    }

    async fn put_blob(
        &self,
        replica: &str,
        payload: Vec<u8>,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        self.pass(self.store.put_blob(replica, payload, ttl)).await
    }

    async fn blobs(&self, known: &BTreeMap<String, u64>) -> Result<Vec<Blob>, HotStoreError> {
        self.pass(self.store.blobs(known)).await
    }

    async fn time(&self) -> Result<Timestamp, HotStoreError> {
        self.pass(self.store.time()).await
    }
}

#[cfg(test)]
mod tests;
