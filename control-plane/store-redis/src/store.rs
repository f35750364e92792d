//! The port, over scripts.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use futures::stream::BoxStream;
use redis::ScriptInvocation;
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Incarnation;
use tidegate_store::hot::bounds::{
    BLOB_PIECE_BYTES, MAX_BLOBS, check_blob, check_incarnations, check_key, check_known,
};
use tidegate_store::hot::{
    Announcement, Blob, Cell, Followed, HotStore, HotStoreError, MARK_TTL, ShardCheck, ShardImage,
    ShardWrite, Swap, SwapOutcome, VersionVector, WriteOutcome,
};

use crate::config::{RedisConfig, RedisConfigError, RedisLimits};
use crate::link::Link;
use crate::scripts::Scripts;
use crate::target::Target;
use crate::{follow, keys, reply, text};

/// The hot store in Redis.
#[derive(Debug)]
pub struct RedisHotStore {
    target: Target,
    limits: RedisLimits,
    stream_entries: usize,
    scripts: Scripts,
    link: Link,
}

impl RedisHotStore {
    /// Begins to connect in the background and returns at once, so that a process can start while its store is
    /// away. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`RedisConfigError`] when the configuration cannot be used.
    pub fn new(config: &RedisConfig) -> Result<Self, RedisConfigError> {
        let target = Target::new(config)?;
        Ok(Self {
            link: Link::new(target.clone(), config.limits),
            target,
            limits: config.limits,
            stream_entries: config.stream_entries,
            scripts: Scripts::new(),
        })
    }

    /// Ends what runs in the background. Calls after it fail. Dropping the store does the same without waiting.
    pub async fn close(&self) {
        self.link.close().await;
    }

    async fn call(&self, invocation: &ScriptInvocation<'_>) -> Result<redis::Value, HotStoreError> {
        self.link.invoke(self.limits.call, invocation).await
    }

    async fn check_shard(&self, shard: Shard) -> Result<ShardCheck, HotStoreError> {
        let mut check = self.scripts.check.prepare_invoke();
        check.key(keys::meta(shard)).key(keys::rev(shard));
        reply::check(self.call(&check).await?)
    }

    async fn announce_and_list(
        &self,
        replica: &str,
        schema: u32,
        ttl_ms: u64,
    ) -> Result<Vec<Announcement>, HotStoreError> {
        let mut announce = self.scripts.announce.key(keys::ANNOUNCED);
        announce.arg(replica).arg(schema).arg(ttl_ms);
        reply::announced(self.call(&announce).await?)
    }
}

#[async_trait]
impl HotStore for RedisHotStore {
    async fn write(&self, write: ShardWrite) -> Result<WriteOutcome, HotStoreError> {
        write.check_bounds()?;
        let shard = write.shard;
        let mut script = self.scripts.write.prepare_invoke();
        script
            .key(keys::meta(shard))
            .key(keys::rev(shard))
            .key(keys::stream(shard))
            .key(keys::index(shard))
            .arg(write.incarnation.0)
            .arg(write.not_after.0)
            .arg(self.stream_entries)
            .arg(write.values.len())
            .arg(write.marks.len())
            .arg(millis(MARK_TTL));
        for value in &write.values {
            script
                .key(keys::value(shard, &value.key))
                .arg(text::expected(value.expected))
                .arg(value.schema)
                .arg(value.expires_at.0)
                .arg(text::server_end(value.expires_at))
                .arg(value.payload.as_slice());
        }
        for run in &write.marks {
            script
                .key(keys::mark(shard, run.plane))
                .arg(run.first)
                .arg(run.last);
        }
        reply::write_outcome(self.call(&script).await?, &write)
    }

    async fn read(&self, shard: Shard) -> Result<ShardImage, HotStoreError> {
        let mut script = self.scripts.read.prepare_invoke();
        script
            .key(keys::meta(shard))
            .key(keys::rev(shard))
            .key(keys::index(shard));
        reply::image(self.link.invoke(self.limits.read, &script).await?)
    }

    async fn check(&self) -> Result<Vec<ShardCheck>, HotStoreError> {
        try_join_all(Shard::all().map(|shard| self.check_shard(shard))).await
    }

    async fn begin_incarnation(
        &self,
        shard: Shard,
        found: Option<Incarnation>,
        known: Incarnation,
        not_after: Timestamp,
    ) -> Result<Option<Incarnation>, HotStoreError> {
        check_incarnations(found, known)?;
        let mut script = self.scripts.begin.prepare_invoke();
        script
            .key(keys::meta(shard))
            .key(keys::rev(shard))
            .key(keys::stream(shard))
            .arg(found.map_or_else(String::new, |found| found.0.to_string()))
            .arg(known.0)
            .arg(not_after.0)
            .arg(self.stream_entries);
        reply::begun(self.call(&script).await?)
    }

    fn follow(&self, from: VersionVector) -> BoxStream<'static, Followed> {
        follow::follow(&self.target, self.limits, from)
    }

    async fn swap(&self, swap: Swap) -> Result<SwapOutcome, HotStoreError> {
        swap.check_bounds()?;
        let mut script = self.scripts.swap.key(keys::cell(swap.shard, &swap.key));
        script
            .arg(swap.not_after.0)
            .arg(
                swap.expected
                    .map_or_else(String::new, |version| version.to_string()),
            )
            .arg(swap.schema)
            .arg(swap.expires_at.0)
            .arg(text::server_end(swap.expires_at))
            .arg(swap.payload.as_slice());
        reply::swap_outcome(self.call(&script).await?)
    }

    async fn cell(
        &self,
        shard: Shard,
        key: &str,
    ) -> Result<(Option<Cell>, Timestamp), HotStoreError> {
        check_key(key)?;
        let script = self.scripts.cell.key(keys::cell(shard, key));
        reply::cell(self.call(&script).await?)
    }

    async fn next_turn(
        &self,
        shard: Shard,
        key: &str,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        check_key(key)?;
        let mut script = self.scripts.turn.key(keys::turn(shard, key));
        script.arg(millis(ttl).max(1));
        reply::turn(self.call(&script).await?)
    }

    async fn announce(
        &self,
        announcement: Announcement,
        ttl: Duration,
    ) -> Result<(), HotStoreError> {
        announcement.check_bounds()?;
        self.announce_and_list(&announcement.replica, announcement.schema, millis(ttl))
            .await
            .map(drop)
    }

    async fn announced(&self) -> Result<Vec<Announcement>, HotStoreError> {
        self.announce_and_list("", 0, 0).await
    }

    async fn put_blob(
        &self,
        replica: &str,
        payload: Vec<u8>,
        ttl: Duration,
    ) -> Result<u64, HotStoreError> {
        check_blob(replica, &payload)?;
        let mut put = self.scripts.put_blob.key(keys::BLOBS);
        // An end at once is none that the server takes.
        put.arg(replica).arg(millis(ttl).max(1));
        put.arg(payload).arg(MAX_BLOBS);
        reply::blob_put(self.link.invoke(self.limits.read, &put).await?)
    }

    async fn blobs(&self, known: &BTreeMap<String, u64>) -> Result<Vec<Blob>, HotStoreError> {
        check_known(known)?;
        let mut blobs = self.scripts.blobs.key(keys::BLOBS);
        blobs.arg(BLOB_PIECE_BYTES);
        for (replica, version) in known {
            blobs.arg(replica).arg(*version);
        }
        reply::blobs(self.link.invoke(self.limits.read, &blobs).await?)
    }

    async fn time(&self) -> Result<Timestamp, HotStoreError> {
        // Any shard's server will do; nodes of a cluster are expected to agree on the time.
        let shard = Shard::all()
            .next()
            .ok_or(HotStoreError::Bounds("no shard"))?;
        Ok(self.check_shard(shard).await?.now)
    }
}

fn millis(duration: Duration) -> u64 {
    // As far as the scripts count exactly.
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .min(tidegate_store::hot::bounds::MAX_EXACT_NUMBER / 2)
}
