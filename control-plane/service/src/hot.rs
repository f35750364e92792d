//! The hot store behind a guard: time limits, the store's clock, health and metrics in one place.
//!
//! **Stance:** fail-open. A call that fails changes nothing here but the health; whoever called goes on with
//! the view. A store that failed three times in a row is left alone for a moment by callers that have an
//! alternative ([`Hot::is_away`]); the recorder and the follower go on asking, which is how its return is
//! noticed. One log line a second at most (decision 54).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use parking_lot::Mutex;
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Incarnation;
use tidegate_store::hot::{
    Announcement, Blob, Cell, Followed, HotStore, HotStoreError, ShardCheck, ShardImage,
    ShardWrite, Swap, SwapOutcome, VersionVector, WriteOutcome,
};

use crate::clock::{Clock, local_now};
use crate::telemetry::metrics::{Metrics, StoreCall};

/// Limit of a write outside a decision (decision 54).
pub(crate) const WRITE_LIMIT: Duration = Duration::from_millis(50);
/// Limit of the cheap reads.
const CHECK_LIMIT: Duration = Duration::from_millis(500);
/// Limit of reading a shard whole, which may be large.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Failures in a row after which the store counts as away.
const AWAY_AFTER: u32 = 3;
/// How long after the last failure it counts as away.
const AWAY_FOR: Duration = Duration::from_millis(200);
/// How long nothing may be answered before a store that is away for lack of time counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(1);
/// How long a store must not have been reached before it counts as gone: a connection that broke is made anew sooner.
const UNREACHED_AFTER: Duration = Duration::from_millis(250);
/// Pause between two log lines about failures.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// The guarded hot store.
#[derive(Debug)]
pub(crate) struct Hot {
    store: Arc<dyn HotStore>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    failures: AtomicU32,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    failed: Option<Instant>,
    /// The first failure of those in a row.
    failing_since: Option<Instant>,
    logged: Option<Instant>,
    /// The last failure was no lack of time.
    unreachable: bool,
    answered: Option<Instant>,
    /// A time of the store that has certainly passed, and when it was heard.
    heard: Option<(Timestamp, Instant)>,
}

impl Last {
    /// Of a store that is away: whether it is gone.
    fn is_gone(&self, now: Instant) -> bool {
        let is_ago =
            |at: Option<Instant>, ago| at.is_none_or(|at| now.saturating_duration_since(at) >= ago);
        (self.unreachable && is_ago(self.failing_since, UNREACHED_AFTER))
            || is_ago(self.answered, GONE_AFTER)
    }
}

impl Hot {
    pub(crate) fn new(store: Arc<dyn HotStore>, clock: Arc<Clock>, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            clock,
            metrics,
            failures: AtomicU32::new(0),
            last: Mutex::default(),
        }
    }

    /// Writes all of it or nothing, unless the store's time is more than `limit` later by then.
    pub(crate) async fn write(
        &self,
        write: ShardWrite,
        limit: Duration,
    ) -> Result<WriteOutcome, HotStoreError> {
        self.write_until(write, limit, None).await
    }

    /// The same, unless the store's time is past `end` by then.
    pub(crate) async fn write_until(
        &self,
        mut write: ShardWrite,
        limit: Duration,
        end: Option<Timestamp>,
    ) -> Result<WriteOutcome, HotStoreError> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let sent = local_now();
        let not_after = self.store_now(sent).plus_ms(limit_ms);
        write.not_after = end.map_or(not_after, |end| end.min(not_after));
        let outcome = self
            .call(StoreCall::Write, limit, self.store.write(write))
            .await?;
        let time = match &outcome {
            WriteOutcome::Written { now, .. } => *now,
            WriteOutcome::Refused(refusal) => refusal.now,
        };
        self.clock.observe(sent, time);
        self.last.lock().heard = Some((time, local_now()));
        Ok(outcome)
    }

    /// Replaces a value outside the change stream, unless the store's time is more than `limit` later by then.
    pub(crate) async fn swap(
        &self,
        mut swap: Swap,
        limit: Duration,
    ) -> Result<SwapOutcome, HotStoreError> {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let sent = local_now();
        swap.not_after = self.store_now(sent).plus_ms(limit_ms);
        let outcome = self
            .call(StoreCall::Swap, limit, self.store.swap(swap))
            .await?;
        let (SwapOutcome::Swapped { now, .. } | SwapOutcome::Refused { now, .. }) = &outcome;
        self.clock.observe(sent, *now);
        self.last.lock().heard = Some((*now, local_now()));
        Ok(outcome)
    }

    /// Reads a value outside the change stream.
    pub(crate) async fn cell(
        &self,
        shard: Shard,
        key: &str,
        limit: Duration,
    ) -> Result<Option<Cell>, HotStoreError> {
        let sent = local_now();
        let (found, now) = self
            .call(StoreCall::Cell, limit, self.store.cell(shard, key))
            .await?;
        self.clock.observe(sent, now);
        Ok(found)
    }

    /// Takes the next number of a counter that all replicas share.
    pub(crate) async fn next_turn(
        &self,
        shard: Shard,
        key: &str,
        ttl: Duration,
        limit: Duration,
    ) -> Result<u64, HotStoreError> {
        let taken = self.store.next_turn(shard, key, ttl);
        self.call(StoreCall::Turn, limit, taken).await
    }

    /// The store's time as the store tells it, or the clock's while it does not answer, which is behind in a machine that
    /// slept. For what must not be done late.
    pub(crate) async fn time(&self) -> Timestamp {
        let sent = local_now();
        let told = self.call(StoreCall::Time, CHECK_LIMIT, self.store.time());
        if let Ok(time) = told.await {
            self.clock.observe(sent, time);
            self.last.lock().heard = Some((time, local_now()));
        }
        self.store_now(local_now())
    }

    /// The store's time at least: the clock's, or what the last answer showed if that is later. A clock that is
    /// behind by more than a call's limit would have every write refused as late until it is calibrated anew.
    fn store_now(&self, now: Instant) -> Timestamp {
        let clock = self.clock.now();
        self.last.lock().heard.map_or(clock, |(time, at)| {
            let since = now.saturating_duration_since(at).as_millis();
            clock.max(time.plus_ms(u64::try_from(since).unwrap_or(u64::MAX)))
        })
    }

    /// Reads a shard whole.
    pub(crate) async fn read(&self, shard: Shard) -> Result<ShardImage, HotStoreError> {
        let sent = local_now();
        let image = self
            .call(StoreCall::Read, READ_LIMIT, self.store.read(shard))
            .await?;
        self.clock.observe(sent, image.check.now);
        Ok(image)
    }

    /// Reads the state of every shard.
    pub(crate) async fn check(&self) -> Result<Vec<ShardCheck>, HotStoreError> {
        let sent = local_now();
        let checks = self
            .call(StoreCall::Check, CHECK_LIMIT, self.store.check())
            .await?;
        if let Some(check) = checks.first() {
            self.clock.observe(sent, check.now);
        }
        Ok(checks)
    }

    /// Begins a new incarnation unless someone else did.
    pub(crate) async fn begin_incarnation(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
    ) -> Result<Option<Incarnation>, HotStoreError> {
        let limit_ms = u64::try_from(CHECK_LIMIT.as_millis()).unwrap_or(u64::MAX);
        let not_after = self.clock.now().plus_ms(limit_ms);
        self.call(
            StoreCall::Begin,
            CHECK_LIMIT,
            self.store.begin_incarnation(shard, found, known, not_after),
        )
        .await
    }

    /// Follows the writes of all shards.
    pub(crate) fn follow(&self, from: VersionVector) -> BoxStream<'static, Followed> {
        self.store.follow(from)
    }

    /// Announces this replica's schema.
    pub(crate) async fn announce(
        &self,
        announcement: Announcement,
        ttl: Duration,
    ) -> Result<(), HotStoreError> {
        self.call(
            StoreCall::Announce,
            CHECK_LIMIT,
            self.store.announce(announcement, ttl),
        )
        .await
    }

    /// Everything announced.
    pub(crate) async fn announced(&self) -> Result<Vec<Announcement>, HotStoreError> {
        self.call(StoreCall::Announce, CHECK_LIMIT, self.store.announced())
            .await
    }

    /// Publishes this replica's blob. Returns its version.
    pub(crate) async fn put_blob(
        &self,
        replica: &str,
        payload: Vec<u8>,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        let put = self.store.put_blob(replica, payload, ttl);
        self.call(StoreCall::Blob, CHECK_LIMIT, put).await
    }

    /// All blobs; without payloads where they are known or left for the next call.
    pub(crate) async fn blobs(
        &self,
        known: &BTreeMap<String, u64>,
    ) -> Result<Vec<Blob>, HotStoreError> {
        self.call(StoreCall::Blob, CHECK_LIMIT, self.store.blobs(known))
            .await
    }

    /// The store failed several times in a row and a moment ago; who has an alternative takes it.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away_at(local_now())
    }

    /// The same at this moment.
    pub(crate) fn is_away_at(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < AWAY_FOR;
        self.failures.load(Ordering::Relaxed) >= AWAY_AFTER
            && self.last.lock().failed.is_some_and(is_recent)
    }

    /// As [`Hot::is_away`], and it is not only slow: it cannot be reached, or has answered nothing for a while. For who
    /// would otherwise give out what the store goes on giving out to others.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_away() && self.last.lock().is_gone(local_now())
    }

    /// The last call was answered.
    pub(crate) fn answers(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == 0
    }

    async fn call<T>(
        &self,
        call: StoreCall,
        limit: Duration,
        future: impl Future<Output = Result<T, HotStoreError>>,
    ) -> Result<T, HotStoreError> {
        let sent = local_now();
        let result = match tokio::time::timeout(limit, future).await {
            Ok(result) => result,
            Err(_elapsed) => Err(HotStoreError::Timeout),
        };
        let took = local_now().saturating_duration_since(sent);
        match &result {
            Ok(_) => {
                let mut last = self.last.lock();
                self.failures.store(0, Ordering::Relaxed);
                last.answered = Some(local_now());
                last.failing_since = None;
                drop(last);
                self.metrics.hot_call(call, true, took);
            }
            Err(error) => {
                self.metrics.hot_call(call, false, took);
                self.failed(call, error);
            }
        }
        result
    }

    fn failed(&self, call: StoreCall, error: &HotStoreError) {
        let now = local_now();
        let mut last = self.last.lock();
        // What breaks a bound is the caller's fault, and was never sent.
        if !matches!(error, HotStoreError::Bounds(_)) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            last.failed = Some(now);
            last.failing_since.get_or_insert(now);
            last.unreachable = matches!(error, HotStoreError::Unreachable(_));
        }
        let quiet = last
            .logged
            .is_some_and(|at| now.saturating_duration_since(at) < LOG_PAUSE);
        if !quiet {
            last.logged = Some(now);
            drop(last);
            tracing::warn!(?call, %error, "call to the hot store failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_lacks_time_is_gone_when_it_answered_nothing_for_a_while() {
        let answered = local_now();
        let late = |answered| Last {
            failing_since: Some(local_now()),
            answered,
            ..Last::default()
        };
        let just_before = answered + GONE_AFTER - Duration::from_millis(1);
        assert!(!late(Some(answered)).is_gone(just_before));
        assert!(late(Some(answered)).is_gone(answered + GONE_AFTER));
        assert!(late(None).is_gone(just_before));
    }

    #[test]
    fn a_store_is_gone_when_it_could_not_be_reached_for_a_while() {
        let broke = local_now();
        let last = Last {
            unreachable: true,
            failing_since: Some(broke),
            answered: Some(broke),
            ..Last::default()
        };
        // A connection that broke is made anew meanwhile.
        assert!(!last.is_gone(broke));
        assert!(!last.is_gone(broke + UNREACHED_AFTER - Duration::from_millis(1)));
        assert!(last.is_gone(broke + UNREACHED_AFTER));
    }
}
