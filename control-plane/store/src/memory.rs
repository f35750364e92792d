//! The hot store inside this process: the store of the standalone binary, and of tests and simulations.
//!
//! **Stance:** as [`crate::hot`] says; nothing here can fail but by a bound of the contract. **Staleness:**
//! none, a follower is woken by the write itself. **Repair:** everything is lost with the process; it comes
//! back as after any loss of a hot store, from the checkpoint.
//!
//! It keeps the same contract as the adapter over a network, with a lock per shard where that one has a
//! script: a run id of the "server", refusals in the same order, expiry, and a change log that is bounded,
//! so that a follower which falls behind it is told [`Followed::Doubt`]. The clock is injected. What a real
//! server may suffer can be done to it on purpose: [`MemoryHotStore::flush`], [`MemoryHotStore::swap_server`],
//! [`MemoryHotStore::restart_from`], [`MemoryHotStore::lose_last_writes`], [`MemoryHotStore::step_clock`].

mod blobs;
mod cells;
pub mod clock;
mod damage;
mod follow;
mod shard;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::ids::{SHARDS, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Incarnation;
use tokio::sync::watch;

use crate::hot::bounds::{check_blob, check_incarnations, check_key, check_known};
use crate::hot::{
    Announcement, Blob, Cell, Followed, HotStore, HotStoreError, ShardCheck, ShardImage,
    ShardWrite, Swap, SwapOutcome, VersionVector, WriteOutcome,
};
use blobs::Blobs;
use clock::{Clock, SystemClock};
pub use damage::MemoryImage;
use damage::Undo;
use shard::MemoryShard;

/// How a [`MemoryHotStore`] is made.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// Changes kept per shard for followers; one that is further behind gets a doubt.
    pub log_entries: usize,
    /// Writes that [`MemoryHotStore::lose_last_writes`] can take back; 0 keeps nothing for it.
    pub undo_writes: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            log_entries: 1_024,
            undo_writes: 0,
        }
    }
}

/// A hot store in this process. Clones are the same store.
#[derive(Clone, Debug)]
pub struct MemoryHotStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    clock: Arc<dyn Clock>,
    options: MemoryOptions,
    /// Added to the clock, in ms.
    skew_ms: AtomicI64,
    /// The run id. Read and changed under the lock of a shard (changed under all of them).
    server: AtomicU64,
    shards: [Mutex<MemoryShard>; SHARDS as usize],
    /// What was written last, oldest first. Locked after shards.
    undo: Mutex<VecDeque<Undo>>,
    announced: Mutex<Announced>,
    blobs: Mutex<Blobs>,
    /// Counts changes of any shard; followers wait on it.
    changed: watch::Sender<u64>,
}

/// Schema and end of each replica's announcement.
type Announced = BTreeMap<String, (u32, Timestamp)>;

impl Default for MemoryHotStore {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), MemoryOptions::default())
    }
}

impl MemoryHotStore {
    /// An empty store with this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, options: MemoryOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                options,
                skew_ms: AtomicI64::new(0),
                server: AtomicU64::new(1),
                shards: std::array::from_fn(|_| Mutex::default()),
                undo: Mutex::default(),
                announced: Mutex::default(),
                blobs: Mutex::default(),
                changed: watch::Sender::new(0),
            }),
        }
    }

    /// The number of the "server" that keeps this memory now, as a run id.
    #[must_use]
    pub fn server(&self) -> u64 {
        self.inner.server.load(Ordering::Relaxed)
    }
}

impl Inner {
    fn now(&self) -> Timestamp {
        let skew = self.skew_ms.load(Ordering::Relaxed);
        Timestamp(self.clock.now().0.saturating_add_signed(skew))
    }

    fn server(&self) -> u64 {
        self.server.load(Ordering::Relaxed)
    }

    /// The shard's memory. There is one for each shard number by construction.
    fn lock(&self, shard: Shard) -> MutexGuard<'_, MemoryShard> {
        let [first, ..] = &self.shards;
        self.shards.get(shard.index()).unwrap_or(first).lock()
    }

    /// Wakes the followers. Called after the lock of the shard was let go.
    fn wake(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Keeps what takes a write back, for [`MemoryHotStore::lose_last_writes`]. Called under the shard's
    /// lock, so that the order here is the order of writing.
    fn remember(&self, undo: Undo) {
        if self.options.undo_writes == 0 {
            return;
        }
        let mut kept = self.undo.lock();
        while kept.len() >= self.options.undo_writes {
            kept.pop_front();
        }
        kept.push_back(undo);
    }
}

#[async_trait]
impl HotStore for MemoryHotStore {
    async fn write(&self, write: ShardWrite) -> Result<WriteOutcome, HotStoreError> {
        write.check_bounds()?;
        let inner = &*self.inner;
        let outcome = {
            let mut memory = inner.lock(write.shard);
            let now = inner.now();
            memory.prune(now);
            match memory.refusal(&write, inner.server(), now) {
                Some(refusal) => WriteOutcome::Refused(Box::new(refusal)),
                None => {
                    let shard = write.shard;
                    let (revision, before) = memory.write(write, now, inner.options.log_entries);
                    inner.remember(Undo { shard, before });
                    WriteOutcome::Written { revision, now }
                }
            }
        };
        if matches!(outcome, WriteOutcome::Written { .. }) {
            inner.wake();
        }
        Ok(outcome)
    }

    async fn read(&self, shard: Shard) -> Result<ShardImage, HotStoreError> {
        let inner = &*self.inner;
        let mut memory = inner.lock(shard);
        let now = inner.now();
        memory.prune(now);
        Ok(ShardImage {
            check: memory.check(inner.server(), now),
            entries: memory.entries(),
            marks: memory.report_marks(),
        })
    }

    async fn check(&self) -> Result<Vec<ShardCheck>, HotStoreError> {
        let inner = &*self.inner;
        Ok(Shard::all()
            .map(|shard| {
                let memory = inner.lock(shard);
                memory.check(inner.server(), inner.now())
            })
            .collect())
    }

    async fn begin_incarnation(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
        not_after: Timestamp,
    ) -> Result<Option<Incarnation>, HotStoreError> {
        check_incarnations(found, known)?;
        let inner = &*self.inner;
        let (stands, begun) = {
            let mut memory = inner.lock(shard);
            let now = inner.now();
            let server = inner.server();
            let begun = if now > not_after {
                None
            } else {
                memory.begin(found, known, server, now)
            };
            let stands = memory.check(server, now).incarnation;
            let is_new = begun.is_some();
            if let Some(before) = begun {
                inner.remember(Undo { shard, before });
            }
            (stands, is_new)
        };
        if begun {
            inner.wake();
        }
        Ok(stands)
    }

    fn follow(&self, from: VersionVector) -> BoxStream<'static, Followed> {
        follow::follow(Arc::clone(&self.inner), from)
    }

    async fn swap(&self, swap: Swap) -> Result<SwapOutcome, HotStoreError> {
        swap.check_bounds()?;
        let mut memory = self.inner.lock(swap.shard);
        let now = self.inner.now();
        Ok(memory.cells.swap(swap, now))
    }

    async fn cell(
        &self,
        shard: Shard,
        key: &str,
    ) -> Result<(Option<Cell>, Timestamp), HotStoreError> {
        check_key(key)?;
        let mut memory = self.inner.lock(shard);
        let now = self.inner.now();
        Ok((memory.cells.get(key, now), now))
    }

    async fn next_turn(
        &self,
        shard: Shard,
        key: &str,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        check_key(key)?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut memory = self.inner.lock(shard);
        let now = self.inner.now();
        Ok(memory.cells.next_turn(key, now, now.plus_ms(ttl_ms)))
    }

    async fn announce(
        &self,
        announcement: Announcement,
        ttl: Duration,
    ) -> Result<(), HotStoreError> {
        announcement.check_bounds()?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut announced = self.inner.announced.lock();
        let now = self.inner.now();
        announced.retain(|_, (_, end)| now <= *end);
        announced.insert(
            announcement.replica,
            (announcement.schema, now.plus_ms(ttl_ms)),
        );
        Ok(())
    }

    async fn announced(&self) -> Result<Vec<Announcement>, HotStoreError> {
        let mut announced = self.inner.announced.lock();
        let now = self.inner.now();
        announced.retain(|_, (_, end)| now <= *end);
        Ok(announced
            .iter()
            .map(|(replica, (schema, _))| Announcement {
                replica: replica.clone(),
                schema: *schema,
            })
            .collect())
    }

    async fn put_blob(
        &self,
        replica: &str,
        payload: Vec<u8>,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        check_blob(replica, &payload)?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut blobs = self.inner.blobs.lock();
        let now = self.inner.now();
        Ok(blobs.put(replica, payload, now, now.plus_ms(ttl_ms)))
    }

    async fn blobs(&self, known: &BTreeMap<String, u64>) -> Result<Vec<Blob>, HotStoreError> {
        check_known(known)?;
        let mut blobs = self.inner.blobs.lock();
        let now = self.inner.now();
        Ok(blobs.list(known, now))
    }

    async fn time(&self) -> Result<Timestamp, HotStoreError> {
        Ok(self.inner.now())
    }
}

#[cfg(test)]
mod tests;
