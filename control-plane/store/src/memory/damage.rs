//! What a server may suffer, done to the store in this process on purpose.

use std::sync::atomic::Ordering;

use tidegate_core::ids::Shard;

use super::blobs::Held;
use super::shard::{Before, MemoryShard};
use super::{Announced, Inner, MemoryHotStore};

/// All that a store remembers at one moment.
#[derive(Clone, Debug)]
pub struct MemoryImage {
    shards: Vec<MemoryShard>,
    announced: Announced,
    blobs: Held,
}

/// What takes a write back.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) shard: Shard,
    pub(super) before: Before,
}

impl MemoryHotStore {
    /// Everything is forgotten; the server stays the same.
    pub fn flush(&self) {
        self.inner.replace(false, |shards, announced| {
            for shard in shards.iter_mut() {
                **shard = MemoryShard::default();
            }
            announced.clear();
            self.inner.blobs.lock().restore(Held::default());
            self.inner.undo.lock().clear();
        });
    }

    /// The same memory on another server: a fail-over or a restart that lost nothing.
    pub fn swap_server(&self) {
        self.inner.replace(true, |_, _| {});
    }

    /// A copy of all that is remembered, for [`Self::restart_from`].
    #[must_use]
    pub fn image(&self) -> MemoryImage {
        let shards: Vec<_> = Shard::all().map(|shard| self.inner.lock(shard)).collect();
        MemoryImage {
            shards: shards
                .iter()
                .map(|shard| MemoryShard::clone(shard))
                .collect(),
            announced: self.inner.announced.lock().clone(),
            blobs: self.inner.blobs.lock().image(),
        }
    }

    /// Another server with an older memory: a restart from a snapshot on disk.
    pub fn restart_from(&self, image: &MemoryImage) {
        self.inner.replace(true, |shards, announced| {
            for (shard, old) in shards.iter_mut().zip(&image.shards) {
                **shard = MemoryShard::clone(old);
            }
            announced.clone_from(&image.announced);
            self.inner.blobs.lock().restore(image.blobs.clone());
            self.inner.undo.lock().clear();
        });
    }

    /// Another server without any memory: a restart without persistence.
    pub fn restart_empty(&self) {
        self.inner.replace(true, |shards, announced| {
            for shard in shards.iter_mut() {
                **shard = MemoryShard::default();
            }
            announced.clear();
            self.inner.blobs.lock().restore(Held::default());
            self.inner.undo.lock().clear();
        });
    }

    /// Another server that lacks the last `count` writes, over all shards: a fail-over to a replica that was
    /// behind. Returns how many were taken back: at most what [`super::MemoryOptions::undo_writes`] keeps.
    /// The beginning of an incarnation counts as a write.
    pub fn lose_last_writes(&self, count: usize) -> usize {
        let mut lost = 0;
        self.inner.replace(true, |shards, _| {
            let mut undo = self.inner.undo.lock();
            for _ in 0..count {
                let Some(Undo { shard, before }) = undo.pop_back() else {
                    break;
                };
                if let Some(memory) = shards.get_mut(shard.index()) {
                    memory.take_back(before);
                }
                lost += 1;
            }
        });
        lost
    }

    /// The server's clock jumps by this many ms, also back.
    pub fn step_clock(&self, by_ms: i64) {
        self.inner.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Inner {
    /// Changes the whole memory at once. Followers doubt every shard.
    fn replace(
        &self,
        other_server: bool,
        change: impl FnOnce(&mut [parking_lot::MutexGuard<'_, MemoryShard>], &mut Announced),
    ) {
        {
            let mut shards: Vec<_> = Shard::all().map(|shard| self.lock(shard)).collect();
            let lives: Vec<u64> = shards.iter().map(|shard| shard.life).collect();
            change(&mut shards, &mut self.announced.lock());
            for (shard, life) in shards.iter_mut().zip(lives) {
                shard.life = life.saturating_add(1);
            }
            if other_server {
                self.server.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.wake();
    }
}
