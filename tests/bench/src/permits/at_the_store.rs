//! The adapter of the hot store, called with what a control plane calls it with when nobody else wants the pool: one change
//! of its value, the rule and the encoding included.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tidegate_core::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId, Shard};
use tidegate_core::permit::{self, Asker, PERMIT_TTL_MS, POOL_SCHEMA, Pool, Term};
use tidegate_core::time::Timestamp;
use tidegate_store::hot::{HotStore as _, Swap, SwapOutcome};
use tidegate_store_redis::{RedisConfig, RedisHotStore};
use tidegate_test_support::eventually;

use super::PLANE;

/// A pool of one permit that nobody else knows.
pub(super) struct Store {
    store: RedisHotStore,
    shard: Shard,
    key: String,
    pool: Pool,
    version: Option<u64>,
    /// The store's time, and when it was asked for.
    time: (Timestamp, Instant),
    number: u64,
}

impl Store {
    pub(super) async fn open(url: &str) -> Result<Self> {
        let (provider, connection) = (ProviderId::new("bench")?, ConnectionId::new("bench-a")?);
        let mut config = RedisConfig::single(url);
        config.limits.call = Duration::from_secs(1);
        let store = RedisHotStore::new(&config)?;
        let time = eventually(Duration::from_secs(10), "a connection to Redis", || async {
            store.time().await.ok()
        })
        .await?;
        Ok(Self {
            time: (time, Instant::now()),
            store,
            shard: Shard::of_provider(&provider),
            key: permit::key_text(&provider, &connection),
            pool: Pool::default(),
            version: None,
            number: 0,
        })
    }

    pub(super) async fn acquire(&mut self) -> Result<()> {
        self.number += 1;
        let attempt = self.attempt();
        self.change(|pool, now| {
            let term = Term {
                now,
                ttl_ms: PERMIT_TTL_MS,
            };
            pool.acquire(attempt, None, 1, Asker::Newcomer, term)
        })
        .await
    }

    pub(super) async fn release(&mut self) -> Result<()> {
        let attempt = self.attempt();
        self.change(|pool, _| pool.release(attempt)).await
    }

    fn attempt(&self) -> AttemptId {
        AttemptId {
            plane: PlaneIncarnation(PLANE),
            number: self.number,
        }
    }

    async fn change(&mut self, step: impl FnOnce(&mut Pool, Timestamp) -> bool) -> Result<()> {
        let (then, asked) = self.time;
        let now = then.plus_ms(u64::try_from(asked.elapsed().as_millis())?);
        let mut pool = self.pool.clone();
        ensure!(step(&mut pool, now), "the pool is not as it was left");
        let swap = Swap {
            shard: self.shard,
            key: self.key.clone(),
            expected: self.version,
            schema: POOL_SCHEMA,
            payload: permit::encode(&self.key, &pool)?,
            expires_at: now.plus_ms(PERMIT_TTL_MS),
            not_after: now.plus_ms(PERMIT_TTL_MS),
            sheddable: false,
        };
        match self.store.swap(swap).await? {
            SwapOutcome::Swapped { version, .. } => {
                self.pool = pool;
                self.version = Some(version);
                Ok(())
            }
            refused @ SwapOutcome::Refused { .. } => bail!("{refused:?}"),
        }
    }
}
