//! Records what happened: reports of data planes, grants, operators' resets.
//!
//! **One worker per shard.** Reports are acknowledged per data plane and shard, by one number: everything up to it
//! is applied. So a report may only be applied, and its mark moved, when every lower one of the same data plane and
//! shard is applied too, whichever provider it concerns. Each shard therefore has one worker that writes one batch at
//! a time: of each data plane the longest run from the front of its queue that fits into one write (a provider and
//! its connections are in one shard, so few providers share a worker; at most 65 values, 256 marks). Writing per
//! provider instead would need a window of numbers per plane and the mark would wait for the slowest provider anyway.
//!
//! **Folding.** A batch is sorted by event time and applied to the view's values; what changed is written with one
//! compare-and-set. A conflict brings the current values and the batch is folded again on those, so no failure is
//! lost and none counts twice. Between two writes of a shard is a pause ([`tidegate_store::pacing`]).
//!
//! **Numbers that are never written.** A batch that changes nothing is acknowledged without a write: there was
//! nothing to apply. Its numbers are then below no mark in the store, which is safe: a later write of the same data
//! plane moves the mark over them, and if one of them is delivered again before that (its acknowledgement was lost),
//! applying it then is its first effect. While the view is stale nothing can be said to change nothing, so such
//! batches wait.
//!
//! **Behind.** A report may come here before what another replica wrote for its attempt, such as the grant of its probe.
//! Then the view catches up first (`behind`).
//!
//! **Two replicas.** A data plane that gets no acknowledgement sends everything again, in order, to another replica.
//! The mark is checked and moved in the write itself: the slower replica is refused, learns the mark and drops what is
//! applied. A call without an answer may have run; the next try finds out the same way.
//!
//! **Store away.** The batch stays unacknowledged. Its events are applied, once, to the overlay of the view, so this
//! replica's own decisions know them; the overlay goes when the store has taken the batch. Acknowledgements resume
//! with the store. The queue is bounded by what data planes may have under way (256 per shard each).

mod adopt;
mod batch;
mod behind;
pub(crate) mod direct;
mod fold;
pub(crate) mod history;
mod overlay;
pub(crate) mod queue;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;

use tidegate_core::ids::{SHARDS, Shard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::Published;
use crate::follow::Follower;
use crate::hot::Hot;
use crate::schema::Schemas;
use crate::telemetry::metrics::Metrics;
use crate::view::View;

use history::History;
use queue::{Planes, ShardQueue};

/// Reports older than this are dropped, counted and acknowledged (`architecture.md` §2, Report).
pub(crate) const MAX_REPORT_AGE_MS: u64 = 300_000;

/// Everything that writes to the hot store on behalf of events.
#[derive(Debug)]
pub(crate) struct Recorder {
    hot: Arc<Hot>,
    view: Arc<View>,
    clock: Arc<Clock>,
    config: Arc<Published>,
    follower: Arc<Follower>,
    schemas: Arc<Schemas>,
    history: Arc<History>,
    metrics: Arc<Metrics>,
    shards: [ShardQueue; SHARDS as usize],
    planes: Planes,
}

/// What a recorder is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) hot: Arc<Hot>,
    pub(crate) view: Arc<View>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) config: Arc<Published>,
    pub(crate) follower: Arc<Follower>,
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) history: Arc<History>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Recorder {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            hot,
            view,
            clock,
            config,
            follower,
            schemas,
            history,
            metrics,
        } = parts;
        Self {
            hot,
            view,
            clock,
            config,
            follower,
            schemas,
            history,
            metrics,
            shards: std::array::from_fn(|_| ShardQueue::default()),
            planes: Planes::default(),
        }
    }

    /// Starts a worker per shard; they end with `stop`, after a last try to write what waits.
    pub(crate) fn start(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        for shard in Shard::all() {
            let recorder = Arc::clone(self);
            let stop = stop.clone();
            tasks.spawn(async move { recorder.work(shard, stop).await });
        }
    }

    fn queue(&self, shard: Shard) -> &ShardQueue {
        &self.shards[shard.index()]
    }
}
