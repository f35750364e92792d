//! Following the change streams.
//!
//! The id of an entry is the version of its write, so a vector of versions is all that is needed to resume, and a
//! missing number is a gap. A blocking read has a connection of its own: it would hold up every other call. One
//! connection follows all shards of a server; in a cluster each shard has one, to the node that has it.
//!
//! A read alone does not see everything: a stream that was deleted just stays silent. So the shard's own
//! (incarnation, revision) is compared with where the follower stands when it connects and once a second. A follower
//! that had to reconnect doubts every shard, also when nothing seems to be missing: what it talks to now may be
//! another server with another past.

mod place;

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::try_join_all;
use futures::stream::{self, BoxStream, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tidegate_core::ids::Shard;
use tidegate_core::version::Version;
use tidegate_store::hot::{Followed, HotStoreError, VersionVector};
use tokio::time::{Instant, sleep, timeout};

use crate::config::RedisLimits;
use crate::target::Target;
use crate::{failure, keys, reply};
use place::Place;

/// Most entries of a shard in one answer.
const BATCH: usize = 256;
/// How often the shards' own state is compared.
const COMPARE_EVERY: Duration = Duration::from_secs(1);
/// An answer may come this much after the end of its blocking time.
const GRACE: Duration = Duration::from_millis(500);

struct Follower {
    target: Target,
    limits: RedisLimits,
    places: Vec<Place>,
    connection: Option<MultiplexedConnection>,
    /// It was connected before, so what it missed is unknown.
    was_connected: bool,
    compared: Instant,
    pause: Duration,
    /// What is still to be told; at most one answer's worth.
    told: VecDeque<Followed>,
}

pub(crate) fn follow(
    target: &Target,
    limits: RedisLimits,
    from: VersionVector,
) -> BoxStream<'static, Followed> {
    let streams = target.shards_followed_together().into_iter().map(|shards| {
        let places = shards
            .into_iter()
            .map(|shard| {
                let version = from.get(shard.index()).copied().unwrap_or_default();
                Place::new(shard, version)
            })
            .collect();
        let follower = Follower {
            target: target.clone(),
            limits,
            places,
            connection: None,
            was_connected: false,
            compared: Instant::now(),
            pause: limits.pause_min,
            told: VecDeque::new(),
        };
        stream::unfold(follower, |mut follower| async move {
            let followed = follower.next().await;
            Some((followed, follower))
        })
        .boxed()
    });
    stream::select_all(streams).boxed()
}

impl Follower {
    async fn next(&mut self) -> Followed {
        loop {
            if let Some(followed) = self.told.pop_front() {
                return followed;
            }
            let went = match self.connection.take() {
                None => self.connect().await,
                Some(connection) => self.step(connection).await,
            };
            match went {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    tracing::debug!(%error, "the change stream of redis broke off");
                    sleep(self.pause).await;
                    self.pause = self.pause.saturating_mul(2).min(self.limits.pause_max);
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<MultiplexedConnection, HotStoreError> {
        let Some(shard) = self.places.first().map(|place| place.shard) else {
            return Err(HotStoreError::Bounds("no shard to follow"));
        };
        let answer = self.limits.block.saturating_add(GRACE);
        let connecting = self
            .target
            .connect_to_shard(shard, self.limits.connect, answer);
        // A redirection takes two connections.
        let limit = self.limits.connect.saturating_mul(2);
        let mut connection = timeout(limit, connecting)
            .await
            .map_err(|_| HotStoreError::Timeout)?
            .map_err(|error| failure::told(&error))?;
        let versions = self.versions(&mut connection).await?;
        for (place, version) in self.places.iter_mut().zip(versions) {
            if self.was_connected {
                place.start_again(version, &mut self.told);
            } else {
                place.compare(version, &mut self.told);
            }
        }
        self.was_connected = true;
        self.compared = Instant::now();
        Ok(connection)
    }

    /// Waits for entries and compares when it is time.
    async fn step(
        &mut self,
        mut connection: MultiplexedConnection,
    ) -> Result<MultiplexedConnection, HotStoreError> {
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT")
            .arg(BATCH)
            .arg("BLOCK")
            .arg(u64::try_from(self.limits.block.as_millis()).unwrap_or(u64::MAX))
            .arg("STREAMS");
        for place in &self.places {
            read.arg(keys::stream(place.shard));
        }
        for place in &self.places {
            read.arg(place.stream_id());
        }
        let limit = self.limits.block.saturating_add(GRACE);
        let answer: RedisResult<Value> = timeout(limit, read.query_async(&mut connection))
            .await
            .map_err(|_| HotStoreError::Timeout)?;
        let mut streams = reply::streams(answer.map_err(|error| failure::told(&error))?)?;
        // It answers, so the next break is a new one.
        self.pause = self.limits.pause_min;
        for place in &mut self.places {
            let key = keys::stream(place.shard);
            let entries = streams
                .iter()
                .position(|(of, _)| *of == key)
                .map(|at| streams.swap_remove(at).1)
                .unwrap_or_default();
            place.advance(entries, &mut self.told);
        }
        if self.compared.elapsed() >= COMPARE_EVERY {
            let versions = self.versions(&mut connection).await?;
            for (place, version) in self.places.iter_mut().zip(versions) {
                place.compare(version, &mut self.told);
            }
            self.compared = Instant::now();
        }
        Ok(connection)
    }

    /// Where each shard stands by its own account.
    async fn versions(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Version>, HotStoreError> {
        let asked = self
            .places
            .iter()
            .map(|place| version_of(connection.clone(), place.shard));
        timeout(self.limits.read, try_join_all(asked))
            .await
            .map_err(|_| HotStoreError::Timeout)?
    }
}

async fn version_of(
    mut connection: MultiplexedConnection,
    shard: Shard,
) -> Result<Version, HotStoreError> {
    let answer: RedisResult<Value> = redis::cmd("MGET")
        .arg(keys::meta(shard))
        .arg(keys::rev(shard))
        .query_async(&mut connection)
        .await;
    reply::position(answer.map_err(|error| failure::told(&error))?)
}
