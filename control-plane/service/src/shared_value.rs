//! One value of the hot store that all replicas change by compare-and-set, outside the change stream: who holds permits of
//! a connection, and its pace (`docs/adr/0010`). What becomes of it is a pure step on a copy.
//!
//! **Stance:** none of its own. Whoever changes a value is told whether the store is away ([`Unchanged::Away`]) or only
//! takes no change for now, and decides. **Staleness:** none: a step that changes nothing rests on a read of its own.
//! **Repair:** a change of which nobody knows whether it ran is looked at again before the step is repeated.

use std::marker::PhantomData;
use std::time::Duration;

use tidegate_core::admission::{self, PACE_SCHEMA, Pace};
use tidegate_core::ids::Shard;
use tidegate_core::permit::{self, POOL_SCHEMA, Pool};
use tidegate_core::state::codec::CodecError;
use tidegate_core::time::Timestamp;
use tidegate_store::hot::{Cell, HotStoreError, Swap, SwapOutcome};

use crate::clock::Clock;
use crate::hot::{Hot, WRITE_LIMIT};

/// Conflicts and failures after which a change is given up.
const MAX_TRIES: u32 = 64;
/// Between two tries to reach a store.
const REACH_AGAIN: Duration = Duration::from_millis(5);
/// How long a value is kept at least, in ms, so that an empty one need not be made anew for each request.
const KEEP_MS: u64 = 10_000;

/// What such a value is.
pub(crate) trait Shared: Clone + Default + PartialEq {
    /// Schema of a stored one.
    const SCHEMA: u32;

    /// As it is stored.
    fn encode(&self, key: &str) -> Result<Vec<u8>, CodecError>;

    /// Reads a stored one back.
    fn decode(key: &str, schema: u32, payload: &[u8]) -> Result<Self, CodecError>;

    /// Forgets what has ended.
    fn prune(&mut self, now: Timestamp);
}

impl Shared for Pool {
    const SCHEMA: u32 = POOL_SCHEMA;

    fn encode(&self, key: &str) -> Result<Vec<u8>, CodecError> {
        permit::encode(key, self)
    }

    fn decode(key: &str, schema: u32, payload: &[u8]) -> Result<Self, CodecError> {
        permit::decode(key, schema, payload)
    }

    fn prune(&mut self, now: Timestamp) {
        Self::prune(self, now);
    }
}

impl Shared for Pace {
    const SCHEMA: u32 = PACE_SCHEMA;

    fn encode(&self, key: &str) -> Result<Vec<u8>, CodecError> {
        admission::encode(key, self)
    }

    fn decode(key: &str, schema: u32, payload: &[u8]) -> Result<Self, CodecError> {
        admission::decode(key, schema, payload)
    }

    fn prune(&mut self, now: Timestamp) {
        Self::prune(self, now);
    }
}

/// Where the value is.
#[derive(Debug)]
pub(crate) struct SharedValue<V> {
    key: String,
    shard: Shard,
    kind: PhantomData<fn() -> V>,
}

/// A value as it was last seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known<V> {
    /// `None`: absent, or never looked at.
    version: Option<u64>,
    pub(crate) value: V,
    /// When it was like that; unset: never looked at.
    pub(crate) seen_at: Option<Timestamp>,
}

/// Why a value could not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unchanged {
    /// The store takes no change of this kind.
    #[error(transparent)]
    Store(#[from] HotStoreError),
    /// What is stored is not understood here.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Others were faster each time.
    #[error("others kept changing the value")]
    Contended,
    /// Nothing can be told of it.
    #[error("the hot store is away")]
    Away,
}

impl<V: Shared> SharedValue<V> {
    pub(crate) fn new(key: String, shard: Shard) -> Self {
        Self {
            key,
            shard,
            kind: PhantomData,
        }
    }

    /// Its name in the shard.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What is stored, within this limit.
    pub(crate) async fn look(
        &self,
        hot: &Hot,
        now: Timestamp,
        limit: Duration,
    ) -> Result<Known<V>, Unchanged> {
        let found = hot.cell(self.shard, &self.key, limit).await?;
        Ok(self.read(found, now)?)
    }

    /// One step on it, beginning with what is known of it, and what is known then. `ends_at` is when nothing of it is true
    /// any more.
    pub(crate) async fn change<T>(
        &self,
        (hot, clock): (&Hot, &Clock),
        mut known: Known<V>,
        mut step: impl FnMut(&mut V, Timestamp) -> T,
        ends_at: impl Fn(&V) -> Timestamp,
    ) -> Result<(T, Known<V>), Unchanged> {
        let mut fresh = false;
        for _ in 0..MAX_TRIES {
            // Others may change it in a store that is only slow.
            if hot.is_gone() {
                return Err(Unchanged::Away);
            }
            let now = clock.now();
            let mut value = known.value.clone();
            value.prune(now);
            let result = step(&mut value, now);
            if value == known.value {
                if fresh {
                    return Ok((result, known));
                }
                match hot.cell(self.shard, &self.key, WRITE_LIMIT).await {
                    Ok(found) => known = self.read(found, now)?,
                    Err(error) => {
                        may_try_again(error).await?;
                        continue;
                    }
                }
                fresh = true;
                continue;
            }
            let swap = Swap {
                shard: self.shard,
                key: self.key.clone(),
                expected: known.version,
                schema: V::SCHEMA,
                payload: value.encode(&self.key)?,
                expires_at: ends_at(&value).max(now.plus_ms(KEEP_MS)),
                not_after: now,
                sheddable: false,
            };
            match hot.swap(swap, WRITE_LIMIT).await {
                Ok(SwapOutcome::Swapped { version, .. }) => {
                    let known = Known {
                        version: Some(version),
                        value,
                        seen_at: Some(now),
                    };
                    return Ok((result, known));
                }
                Ok(SwapOutcome::Refused { found, .. }) => {
                    known = self.read(found, now)?;
                    fresh = true;
                }
                // It may have run; the next look tells.
                Err(error) => {
                    may_try_again(error).await?;
                    fresh = false;
                }
            }
        }
        Err(Unchanged::Contended)
    }

    fn read(&self, found: Option<Cell>, now: Timestamp) -> Result<Known<V>, CodecError> {
        let seen_at = Some(now);
        let Some(cell) = found else {
            return Ok(Known {
                seen_at,
                ..Known::default()
            });
        };
        Ok(Known {
            version: Some(cell.version),
            value: V::decode(&self.key, cell.schema, &cell.payload)?,
            seen_at,
        })
    }
}

/// After a failure that may pass: a store that is away is told by [`Hot::is_gone`], not by one call.
async fn may_try_again(error: HotStoreError) -> Result<(), HotStoreError> {
    match error {
        HotStoreError::Timeout => Ok(()),
        HotStoreError::Unreachable(_) => {
            tokio::time::sleep(REACH_AGAIN).await;
            Ok(())
        }
        error @ (HotStoreError::Protocol(_) | HotStoreError::Bounds(_)) => Err(error),
    }
}
