//! Servers of the tests' own, as the suite wants them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::codec::NEVER_LATE;
use tidegate_store::conformance::Verdict;
use tidegate_store::conformance::hot::{FreezableHost, HotStoreHost};
use tidegate_store::hot::{
    HotStore, HotStoreError, MarkMove, ShardCheck, ShardWrite, WriteOutcome, WriteValue,
};
use tidegate_store_redis::{RedisConfig, RedisHotStore, RedisLimits};
use tidegate_test_support::{Redis, RedisOptions};

pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Limits under which a busy machine does not fail a test.
pub(crate) fn patient() -> RedisLimits {
    RedisLimits {
        call: Duration::from_secs(5),
        read: Duration::from_secs(5),
        connect: Duration::from_secs(5),
        ..RedisLimits::default()
    }
}

/// Entries kept per stream in tests. The server trims in steps of 100.
pub(crate) const STREAM_ENTRIES: usize = 200;

/// How to reach this server.
pub(crate) fn config(url: String) -> RedisConfig {
    RedisConfig {
        limits: patient(),
        stream_entries: STREAM_ENTRIES,
        ..RedisConfig::single(url)
    }
}

/// One server that keeps its memory over a restart.
pub(crate) struct SingleHost {
    pub(crate) redis: Redis,
}

impl SingleHost {
    pub(crate) async fn start() -> Result<Self, Fault> {
        let options = RedisOptions {
            append_only: true,
            ..RedisOptions::default()
        };
        Ok(Self {
            redis: Redis::start_with(options).await?,
        })
    }
}

#[async_trait]
impl HotStoreHost for SingleHost {
    async fn replica(&self) -> Result<Arc<dyn HotStore>, Fault> {
        Ok(Arc::new(RedisHotStore::new(&config(self.redis.url()))?))
    }

    async fn flush(&self) -> Verdict {
        Ok(self.redis.flush_all().await?)
    }

    async fn swap_server(&self) -> Verdict {
        self.redis.kill().await?;
        Ok(self.redis.start_again().await?)
    }

    fn log_entries(&self) -> usize {
        STREAM_ENTRIES + 250
    }
}

#[async_trait]
impl FreezableHost for SingleHost {
    async fn freeze(&self) -> Verdict {
        Ok(self.redis.pause()?)
    }

    async fn thaw(&self) -> Verdict {
        Ok(self.redis.resume()?)
    }
}

/// What the tests beside the suite do with a store.
pub(crate) struct Hand {
    pub(crate) store: RedisHotStore,
    pub(crate) shard: Shard,
}

impl Hand {
    pub(crate) fn new(config: &RedisConfig, shard: u8) -> Result<Self, Fault> {
        Ok(Self {
            store: RedisHotStore::new(config)?,
            shard: Shard::new(shard).ok_or("no such shard")?,
        })
    }

    pub(crate) async fn check(&self) -> Result<ShardCheck, HotStoreError> {
        let checks = self.store.check().await?;
        checks
            .get(self.shard.index())
            .copied()
            .ok_or(HotStoreError::Bounds("no such shard"))
    }

    pub(crate) async fn begin(&self) -> Result<Incarnation, Fault> {
        let found = self.check().await?.found;
        let known = found.unwrap_or_default();
        let begun = self
            .store
            .begin_incarnation(self.shard, found, known, NEVER_LATE);
        Ok(begun.await?.ok_or("no incarnation stands")?)
    }

    /// A write of one value and one report.
    pub(crate) fn write(
        &self,
        incarnation: Incarnation,
        key: &str,
        expected: Option<Version>,
        report: u64,
    ) -> ShardWrite {
        ShardWrite {
            shard: self.shard,
            incarnation,
            not_after: NEVER_LATE,
            values: vec![WriteValue {
                key: key.to_owned(),
                expected,
                schema: 1,
                payload: report.to_string().into_bytes(),
                expires_at: Timestamp(u64::MAX),
            }],
            marks: vec![MarkMove {
                plane: PlaneIncarnation(1),
                first: report,
                last: report,
            }],
        }
    }

    pub(crate) async fn put(
        &self,
        incarnation: Incarnation,
        key: &str,
        expected: Option<Version>,
        report: u64,
    ) -> Result<Version, Fault> {
        let write = self.write(incarnation, key, expected, report);
        match self.store.write(write).await? {
            WriteOutcome::Written { revision, .. } => Ok(Version {
                incarnation,
                revision,
            }),
            WriteOutcome::Refused(refusal) => Err(format!("refused: {refusal:?}").into()),
        }
    }
}

/// Looks until there is something.
pub(crate) async fn eventually<T, F>(what: &str, look: impl FnMut() -> F) -> Result<T, Fault>
where
    F: Future<Output = Option<T>>,
{
    Ok(tidegate_test_support::eventually(Duration::from_secs(30), what, look).await?)
}
