//! Following a store in this process.

use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};
use tidegate_core::ids::Shard;
use tidegate_core::version::Version;
use tokio::sync::watch;

use crate::hot::{Change, Followed, VersionVector};

use super::Inner;
use super::shard::Found;

/// Most writes in one item.
const BATCH: usize = 256;

struct Follower {
    store: Arc<Inner>,
    changed: watch::Receiver<u64>,
    /// Where it stands in each shard, and in which life of the shard's memory.
    positions: Vec<(Shard, Version, u64)>,
    /// Looked at next, so that a busy shard does not hide the others.
    turn: usize,
}

pub(super) fn follow(store: Arc<Inner>, from: VersionVector) -> BoxStream<'static, Followed> {
    let positions = Shard::all()
        .zip(from)
        .map(|(shard, version)| (shard, version, store.lock(shard).life))
        .collect();
    let follower = Follower {
        changed: store.changed.subscribe(),
        store,
        positions,
        turn: 0,
    };
    stream::unfold(follower, |mut follower| async move {
        let followed = follower.next().await?;
        Some((followed, follower))
    })
    .boxed()
}

impl Follower {
    async fn next(&mut self) -> Option<Followed> {
        loop {
            // Taken as seen before looking, so that a write in between wakes again.
            self.changed.mark_unchanged();
            for _ in 0..self.positions.len() {
                let at = self.turn;
                self.turn = (self.turn + 1) % self.positions.len();
                if let Some(followed) = self.look(at) {
                    return Some(followed);
                }
            }
            // The sender lives in `store`, so this ends only by a change.
            self.changed.changed().await.ok()?;
        }
    }

    fn look(&mut self, at: usize) -> Option<Followed> {
        let (shard, position, life) = self.positions.get_mut(at)?;
        let memory = self.store.lock(*shard);
        let found = if memory.life == *life {
            memory.after(*position, BATCH)
        } else {
            Found::Lost
        };
        match found {
            Found::Nothing => None,
            Found::Lost => {
                *position = memory.position();
                *life = memory.life;
                Some(Followed::Doubt(*shard))
            }
            Found::Changes(changes) => {
                drop(memory);
                if let Some(last) = changes.last() {
                    *position = last.version;
                }
                let changes = changes.iter().map(|change| Change::clone(change)).collect();
                Some(Followed::Changes(*shard, changes))
            }
        }
    }
}
