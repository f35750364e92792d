//! Keeps the view equal to the hot store.
//!
//! One task follows the stream of changes. One task per shard *reconciles* it whenever something may be wrong:
//! a gap in the stream, another incarnation, a store that lost its memory. One task asks once a second for the
//! state of all shards, since a store that was emptied or swapped says nothing by itself
//! (`architecture.md` §3, Incarnation and restore).
//!
//! Reconciling a shard reads it whole. If the store has no memory of it, a new incarnation begins; if the
//! incarnation is another than the view's, everything the view and the checkpoint hold is offered to it
//! ([`restore`]) *before* the view is replaced, so that what this replica knows is never lost to a replacement.
//! Until all that has succeeded the old view stays in force.
//!
//! **Stance:** fail-open. While the store is away, nothing here changes the view, and its age shows.

mod restore;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use tidegate_core::ids::{SHARDS, Shard};
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::durable::DurableStore;
use tidegate_store::hot::{Followed, HotStoreError, ShardCheck};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, local_now};
use crate::hot::Hot;
use crate::telemetry::metrics::{Metrics, gauge_value};
use crate::view::{Taken, View};

/// How often the state of all shards is asked for.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Ticks of the check between two sweeps of what is past its expiry.
const FORGET_EVERY_TICKS: u32 = 10;
/// First and longest pause between two tries to reconcile a shard.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// How long the stream of changes waits for a first reading, which spares it a doubt for each shard.
const FIRST_READING: Duration = Duration::from_secs(1);

/// Keeps the view equal to the hot store.
#[derive(Debug)]
pub(crate) struct Follower {
    hot: Arc<Hot>,
    durable: Arc<dyn DurableStore>,
    view: Arc<View>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    wanted: [Notify; SHARDS as usize],
    filled: Notify,
    /// The checkpoint of the shard could not be read when it was wanted, and has not been offered whole since.
    owed: [AtomicBool; SHARDS as usize],
}

/// Why a shard is not reconciled yet.
#[derive(Debug, thiserror::Error)]
enum Unreconciled {
    #[error(transparent)]
    Store(#[from] HotStoreError),
    #[error("the shard changed its incarnation meanwhile")]
    Moved,
}

impl Follower {
    pub(crate) fn new(
        hot: Arc<Hot>,
        durable: Arc<dyn DurableStore>,
        view: Arc<View>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            hot,
            durable,
            view,
            clock,
            metrics,
            wanted: std::array::from_fn(|_| Notify::new()),
            filled: Notify::new(),
            owed: std::array::from_fn(|_| AtomicBool::new(false)),
        }
    }

    fn owe_checkpoint(&self, shard: Shard, owed: bool) {
        self.owed[shard.index()].store(owed, Ordering::Relaxed);
    }

    fn owes_checkpoint(&self, shard: Shard) -> bool {
        self.owed[shard.index()].load(Ordering::Relaxed)
    }

    /// Starts the tasks; they end with `stop`.
    pub(crate) fn start(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        for shard in Shard::all() {
            self.doubt(shard);
            let follower = Arc::clone(self);
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                follower.reconcile_forever(shard).await;
            }));
        }
        let follower = Arc::clone(self);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            follower.follow_forever().await;
        }));
        let follower = Arc::clone(self);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            follower.check_forever().await;
        }));
    }

    /// Something of the shard may be missing or wrong: have it read whole.
    pub(crate) fn doubt(&self, shard: Shard) {
        self.view.doubt(shard);
        self.wanted[shard.index()].notify_one();
    }

    async fn follow_forever(&self) {
        // Not having it in time only makes the stream begin with doubts.
        drop(tokio::time::timeout(FIRST_READING, self.until_filled()).await);
        loop {
            let mut stream = self.hot.follow(self.view.versions());
            while let Some(followed) = stream.next().await {
                match followed {
                    Followed::Changes(shard, changes) => {
                        for change in changes {
                            match self.view.apply(shard, change) {
                                Taken::Applied => {}
                                Taken::OtherIncarnation => self.doubt(shard),
                            }
                        }
                    }
                    Followed::Doubt(shard) => self.doubt(shard),
                }
            }
            // The contract says that the stream does not end.
            tracing::error!("the hot store's stream of changes ended");
            tokio::time::sleep(RETRY_LONGEST).await;
            Shard::all().for_each(|shard| self.doubt(shard));
        }
    }

    async fn until_filled(&self) {
        while !self.view.is_filled() {
            self.filled.notified().await;
        }
    }

    async fn check_forever(&self) {
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut behind: [Version; SHARDS as usize] = [Version::default(); SHARDS as usize];
        let mut tick: u32 = 0;
        loop {
            ticks.tick().await;
            tick = tick.wrapping_add(1);
            if tick.is_multiple_of(FORGET_EVERY_TICKS) {
                self.view.forget(self.clock.now());
            }
            let sent = local_now();
            if let Ok(checks) = self.hot.check().await {
                for (shard, check) in Shard::all().zip(&checks) {
                    behind[shard.index()] = self.examine(shard, check, behind[shard.index()]);
                    self.view.checked(shard, check, sent);
                    if self.owes_checkpoint(shard) {
                        self.wanted[shard.index()].notify_one();
                    }
                }
            }
            let age = self.view.age(local_now()).age;
            let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            self.metrics.view_age_ms.set(gauge_value(age_ms));
            self.metrics
                .clock_steps
                .set(gauge_value(self.clock.steps()));
        }
    }

    /// Compares a shard's state with the view. Returns the version the store is ahead at, if it is.
    fn examine(&self, shard: Shard, check: &ShardCheck, was_ahead: Version) -> Version {
        let view = self.view.complete_to(shard);
        let Some(incarnation) = check.incarnation else {
            self.doubt(shard);
            return Version::default();
        };
        let store = Version {
            incarnation,
            revision: check.revision,
        };
        if incarnation != view.incarnation || store < view {
            self.doubt(shard);
            return Version::default();
        }
        if was_ahead != Version::default() && view < was_ahead {
            // A second later the stream has still not brought what was there then.
            self.doubt(shard);
            return Version::default();
        }
        if store > view {
            store
        } else {
            Version::default()
        }
    }

    async fn reconcile_forever(&self, shard: Shard) {
        let wanted = &self.wanted[shard.index()];
        loop {
            wanted.notified().await;
            let mut pause = RETRY_FIRST;
            loop {
                match self.reconcile(shard).await {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%shard, %error, "shard is not reconciled yet");
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_LONGEST);
            }
            self.filled.notify_waiters();
        }
    }

    /// Reads the shard whole, begins an incarnation and restores into it where needed, and replaces the view.
    /// `false`: a new doubt arose meanwhile.
    async fn reconcile(&self, shard: Shard) -> Result<bool, Unreconciled> {
        let doubt = self.view.doubts(shard);
        let view = self.view.complete_to(shard);
        let read_at = local_now();
        let image = self.hot.read(shard).await?;
        self.metrics.shard_readings.inc();
        let found = image.check.found;
        let Some(incarnation) = image.check.incarnation else {
            let known = self.newest_known(shard, view).await;
            self.begin(shard, found, known).await?;
            return Err(Unreconciled::Moved);
        };
        let store = Version {
            incarnation,
            revision: image.check.revision,
        };
        if store < view {
            // The store went back in time: a life that forgot something is another life.
            self.begin(shard, found, view.incarnation).await?;
            return Err(Unreconciled::Moved);
        }
        if incarnation == view.incarnation && !self.owes_checkpoint(shard) {
            return Ok(self.view.replace(shard, image, read_at, doubt));
        }
        let restored = restore::restore_into(self, shard, incarnation, image).await?;
        if restored > 0 {
            self.metrics.restores.inc();
            tracing::info!(%shard, incarnation = incarnation.0, restored, "restored hot state");
        }
        let read_at = local_now();
        let image = self.hot.read(shard).await?;
        if image.check.incarnation != Some(incarnation) {
            return Err(Unreconciled::Moved);
        }
        Ok(self.view.replace(shard, image, read_at, doubt))
    }

    async fn begin(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
    ) -> Result<(), Unreconciled> {
        let stands = self.hot.begin_incarnation(shard, found, known).await?;
        let stands = stands.map(|incarnation| incarnation.0);
        let found = found.map(|it| it.0);
        // A replica that has followed it knows that it forgot; one that starts finds a new store, or one in this process.
        if found.is_some() || self.view.complete_to(shard) != Version::default() {
            tracing::warn!(%shard, found, stands, "the hot store forgot a shard; a new incarnation stands");
        } else {
            tracing::debug!(%shard, stands, "a shard begins with nothing in the hot store");
        }
        Ok(())
    }

    /// The newest incarnation this replica knows of, so that the next one is larger: the view's, and, while the
    /// view is empty, the checkpoint's.
    async fn newest_known(&self, shard: Shard, view: Version) -> Incarnation {
        if view != Version::default() {
            return view.incarnation;
        }
        let checkpoint = restore::checkpoint(self, shard).await;
        checkpoint.map_or(view.incarnation, |(entries, _)| {
            entries
                .iter()
                .map(|entry| entry.version.incarnation)
                .max()
                .unwrap_or(view.incarnation)
        })
    }
}
