//! What strategies know of the past: gathered from data planes, shared with the other replicas (decisions 37 and 51).
//!
//! Data planes send what was added; this replica adds it up, publishes its sum as one blob in the hot store and reads
//! those of the others, every half second, and at once when another connection serves a combo that follows the last one
//! that served. Of all of them a [`Fleet`] is made and put in place of the last one, so that a decision reads it without
//! a lock.
//!
//! **Staleness:** what an attempt came to is known to the replica its data plane reports to within half a second, and to
//! the others half a second to a second later. **Stance:** fail-open. While the hot store is away the others are known
//! as they were last, and this replica goes on adding up. **Loss:** a replica that starts takes over what its name had
//! published; the blob of one that is gone counts for a day. A store that lost its memory gets every replica's blob
//! anew. Nothing of it is in the durable store: what is lost is history that strategies can do without. What would make
//! the blob larger than one may be is left out of it, the oldest first, and counted; only this replica knows of it then.
//!
//! **Once.** A message of a data plane carries a number and is added once by each replica, and not by one that read in
//! another's blob that it was added. A message that went to two replicas within the second that a blob takes is added
//! twice: that is accepted, it is no more than what one message holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::config::LastServed;
use tidegate_core::ids::{ComboName, ConnectionId, PlaneIncarnation};
use tidegate_core::telemetry::aggregate::{
    Aggregate, BoundedSum, Bounds, LOAD_MS, PlaneLoad, Refused,
};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::telemetry::quota::{self, QuotaSource, Told};
use tidegate_core::telemetry::{QuotaSnapshot, Telemetry as _};
use tidegate_store::hot::bounds::MAX_BLOB_BYTES;
use tidegate_wire as wire;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::config::Published;
use crate::hot::Hot;
use crate::telemetry::metrics::{Metrics, gauge_value};

mod others;

use others::{Others, Taken};

/// Between two rounds of publishing and reading.
const EVERY: Duration = Duration::from_millis(500);
/// Between two rounds when something is urgent.
const EVERY_URGENT: Duration = Duration::from_millis(50);
/// How long a blob is kept: as long as latencies count.
const BLOB_TTL: Duration = Duration::from_secs(86_400);
/// The fleet is made anew so often, in ms, also when nothing was heard: half as long as loads count.
const RENEW_AFTER_MS: u64 = LOAD_MS / 2;
/// A blob that did not change is published anew so often, so that it does not end.
const RENEW_EVERY: Duration = Duration::from_secs(600);

/// Gathers.
#[derive(Debug)]
pub(crate) struct Gatherer {
    replica: String,
    hot: Arc<Hot>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    bounds: Bounds,
    own: Mutex<Own>,
    fleet: ArcSwap<Fleet>,
    urgent: Notify,
}

/// There is no room for another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("quotas of as many connections as there is room for are known")]
pub(crate) struct Full;

/// What this replica was told.
#[derive(Debug, Default)]
struct Own {
    sum: BoundedSum,
    /// It changed since it was published.
    changed: bool,
    /// It changed since the fleet was made of it.
    is_new: bool,
    /// Numbers of the last messages of data planes that other replicas added.
    elsewhere: BTreeMap<PlaneIncarnation, u64>,
}

impl Gatherer {
    pub(crate) fn new(
        replica: &str,
        hot: Arc<Hot>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            replica: replica.to_owned(),
            hot,
            clock,
            metrics,
            bounds: Bounds::default(),
            own: Mutex::default(),
            fleet: ArcSwap::default(),
            urgent: Notify::new(),
        }
    }

    /// The past of the fleet as known here.
    pub(crate) fn fleet(&self) -> Arc<Fleet> {
        self.fleet.load_full()
    }

    /// Adds a data plane's message, unless it was added before, and what is under way there. `follows`: what the
    /// combo's order depends on of who served last, so that it is urgent when another one does.
    pub(crate) fn add(
        &self,
        plane: PlaneIncarnation,
        number: u64,
        mut seen: Aggregate,
        under_way: BTreeMap<ConnectionId, u32>,
        follows: impl Fn(&ComboName) -> Option<LastServed>,
    ) {
        let now = self.clock.now();
        seen.end_at(now);
        let load = PlaneLoad {
            number,
            at: now,
            connections: under_way,
        };
        let urgent = changes_who_serves(&seen, &self.fleet(), follows);
        let mut own = self.own.lock();
        let here = own.sum.get().planes.get(&plane).map(|load| load.number);
        let last = here.max(own.elsewhere.get(&plane).copied());
        if last.is_some_and(|last| number <= last) {
            self.metrics.fleet.duplicates.inc();
            seen = Aggregate::default();
        } else {
            self.metrics.fleet.messages.inc();
        }
        seen.planes = BTreeMap::from([(plane, load)]);
        let refused = own.absorb(seen);
        drop(own);
        self.metrics.fleet.refused(&refused);
        if urgent {
            self.urgent.notify_one();
        }
    }

    /// Adds a quota that was told. Returns whether it is the newest of its source; otherwise what is newer stands.
    ///
    /// # Errors
    /// [`Full`] when there is no room for another connection.
    pub(crate) fn add_quota(
        &self,
        connection: ConnectionId,
        source: QuotaSource,
        quota: QuotaSnapshot,
    ) -> Result<bool, Full> {
        let mut seen = Aggregate::of_quota(connection.clone(), source, quota);
        seen.end_at(self.clock.now());
        let at = |told: &Told| told.get(&source).map(|quota| quota.observed_at);
        let told = seen.connections.values().map(|past| &past.quotas);
        let newest = told.filter_map(at).max();
        let taken = at(&self.told(&connection)) <= newest;
        let refused = self.own.lock().absorb(seen);
        self.metrics.fleet.refused(&refused);
        match refused.iter().next() {
            Some(_) => Err(Full),
            None => Ok(taken),
        }
    }

    /// Quotas of a connection, by who told them, also of what was added since the last round.
    pub(crate) fn told(&self, connection: &ConnectionId) -> Told {
        let now = self.clock.now();
        let mut known = self
            .fleet()
            .told_quotas(connection)
            .cloned()
            .unwrap_or_default();
        if let Some(past) = self.own.lock().sum.get().connections.get(connection) {
            for (source, quota) in &past.quotas {
                quota::add(&mut known, *source, quota.clone());
            }
        }
        known.retain(|_, quota| quota::counts(quota, now));
        known.values_mut().for_each(|quota| quota.forget(now));
        known
    }

    /// Publishes and reads for ever, and ranks accounts by what came.
    pub(crate) async fn run(self: Arc<Self>, config: Arc<Published>) {
        let mut others = Others::default();
        loop {
            let began = Instant::now();
            self.round(&mut others).await;
            self.rank(&config).await;
            let urgent = async {
                self.urgent.notified().await;
                sleep_until(began + EVERY_URGENT).await;
            };
            tokio::select! {
                () = sleep_until(began + EVERY) => {}
                () = urgent => {}
            }
        }
    }

    /// Ranks accounts, where there are any to rank, on a thread where that may take its time.
    async fn rank(&self, config: &Published) {
        let Some(current) = config.current() else {
            return;
        };
        if !current.counters.has_rankings() {
            return;
        }
        let fleet = self.fleet();
        let ranking = spawn_blocking(move || current.counters.rank(&current.config, &*fleet));
        if let Err(error) = ranking.await {
            tracing::error!(%error, "accounts were not ranked");
        }
    }

    async fn round(&self, others: &mut Others) {
        self.publish(others).await;
        self.read(others).await;
        self.renew(others);
    }

    /// Publishes what changed. Not before it is known what this replica's name had published: that would be lost.
    async fn publish(&self, others: &mut Others) {
        let due = others.published_before(RENEW_EVERY);
        let sum = {
            let mut own = self.own.lock();
            if !others.complete || !(own.changed || due) {
                return;
            }
            own.sum.prune(self.clock.now());
            own.changed = false;
            self.metrics.fleet.holds(own.sum.get());
            own.sum.get().clone()
        };
        // Only what is published is shortened: what this replica forgot would count as never used.
        let times_before = others.times_shed.saturating_sub(1);
        let shortened = wire::telemetry::shortened(sum, MAX_BLOB_BYTES, times_before);
        others.times_shed = shortened.times;
        self.metrics.fleet.shed(&shortened.shed);
        let bytes = shortened.encode();
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.metrics.fleet.blob_bytes.set(gauge_value(length));
        match self.hot.put_blob(&self.replica, bytes, BLOB_TTL).await {
            Ok(version) => {
                others.published(&self.replica, version);
            }
            Err(_logged) => {
                self.metrics.fleet.blob_failures.inc();
                self.own.lock().changed = true;
            }
        }
    }

    /// Reads what the others published since, a piece at a time; what is left waits for the next round.
    async fn read(&self, others: &mut Others) {
        let began = Instant::now();
        loop {
            let Ok(blobs) = self.hot.blobs(&others.known(&self.replica)).await else {
                return;
            };
            let Taken { own, skipped, more } =
                others.take(blobs, &self.replica, self.clock.now(), &self.bounds);
            if let Some(own) = own {
                let refused = self.own.lock().absorb(own);
                self.metrics.fleet.refused(&refused);
            }
            self.metrics.fleet.blobs_skipped.inc_by(skipped);
            self.metrics.fleet.others.set(gauge_value(others.count()));
            if !more || began.elapsed() >= EVERY {
                return;
            }
        }
    }

    /// Puts the sum of everything in place of the last one, if anything is new, or so much time has passed that some of
    /// it is over.
    fn renew(&self, others: &mut Others) {
        let now = self.clock.now();
        let own = {
            let mut own = self.own.lock();
            let is_due = now.ms_since(self.fleet().as_of()) >= RENEW_AFTER_MS;
            if !(own.is_new || others.is_new || is_due) {
                return;
            }
            own.is_new = false;
            if others.is_new {
                own.elsewhere = numbers(others.sums());
            }
            own.sum.get().clone()
        };
        others.is_new = false;
        // What is told here comes first: it is the newest, and its data planes decide here.
        let parts = std::iter::once(own).chain(others.sums().cloned());
        let fleet = Fleet::of(parts, &self.bounds, now);
        self.metrics.fleet.left_out(fleet.left_out());
        self.fleet.store(Arc::new(fleet));
    }
}

impl Own {
    fn absorb(&mut self, part: Aggregate) -> Refused {
        self.changed = true;
        self.is_new = true;
        self.sum.absorb(part)
    }
}

/// The highest message number of each data plane.
fn numbers<'a>(sums: impl Iterator<Item = &'a Aggregate>) -> BTreeMap<PlaneIncarnation, u64> {
    let mut numbers = BTreeMap::new();
    for (plane, load) in sums.flat_map(|sum| &sum.planes) {
        let number: &mut u64 = numbers.entry(*plane).or_default();
        *number = load.number.max(*number);
    }
    numbers
}

/// A combo whose order follows that is now served by another one than the fleet knows, or the one it knows failed.
fn changes_who_serves(
    seen: &Aggregate,
    fleet: &Fleet,
    follows: impl Fn(&ComboName) -> Option<LastServed>,
) -> bool {
    seen.combos.iter().any(|(combo, past)| {
        let Some(follows) = follows(combo) else {
            return false;
        };
        let mut served = past.targets.values();
        let Some(known) = fleet.last_known_good(combo) else {
            return served.any(|target| target.good.is_some());
        };
        served.any(|target| match &target.good {
            Some(good) if good.at >= known.at => {
                let good = (&good.provider, good.connection.as_ref());
                !follows.is_same(good, (&known.provider, known.connection.as_ref()))
            }
            // Whether it is the one that serves is for the sum to say.
            Some(_) | None => target.failed_at > known.at,
        })
    })
}

#[cfg(test)]
mod tests;
