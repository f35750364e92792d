//! What a data plane follows: the configuration, the hot state, and a sign of life.
//!
//! A watch begins with the configuration, unless the data plane has that version, then brings each shard from where the
//! data plane has it, then changes as they come. Each watcher has a cursor per shard; nothing older than the cursor is
//! sent, so no shard goes back, also when this replica is behind the one the data plane watched before. A watcher that
//! is too slow for the bounded queue of changes gets the shards whole again; it slows down nobody else.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation, SHARDS, Shard};
use tidegate_core::version::Version;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as proto;
use tidegate_store::durable::StoredVersion;
use tidegate_store::hot::{Entry, VersionVector};
use tidegate_wire as wire;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use crate::clock::{Clock, local_now};
use crate::config::{Current, Published};
use crate::telemetry::metrics::{Metrics, gauge_value};
use crate::view::{ShardUpdate, View};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

/// A message on its way to a data plane.
type Message = Result<proto::WatchResponse, tonic::Status>;

/// Feeds watchers.
#[derive(Debug)]
pub(crate) struct Watchers {
    pub(crate) view: Arc<View>,
    pub(crate) config: Arc<Published>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) live: Live,
}

/// Data planes that watch here, and how many watch elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// Those of other replicas, as last heard.
    elsewhere: Arc<AtomicU32>,
    /// One for each stream; a data plane may have two for a moment, when it reconnects.
    planes: Arc<Mutex<Vec<Plane>>>,
}

/// A data plane that watches here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Plane {
    pub(crate) incarnation: PlaneIncarnation,
    /// For people.
    pub(crate) name: String,
    /// Version of the configuration in force there; 0 = none.
    pub(crate) configuration: u64,
    /// A later version that it could not use; 0 = none.
    pub(crate) refused: u64,
}

/// Longest name of a data plane that is kept, in characters.
const MAX_NAME: usize = 128;

impl Plane {
    /// As it is when it begins to watch.
    pub(crate) fn new(incarnation: PlaneIncarnation, name: &str, configuration: u64) -> Self {
        Self {
            incarnation,
            name: name.chars().take(MAX_NAME).collect(),
            configuration,
            refused: 0,
        }
    }
}

impl Live {
    /// All of them, each once, by name.
    pub(crate) fn planes(&self) -> Vec<Plane> {
        let mut planes = self.planes.lock().clone();
        // Of two streams the one that heard more speaks.
        planes.sort_unstable_by_key(|plane| {
            let heard = plane.configuration.max(plane.refused);
            (plane.incarnation, std::cmp::Reverse(heard))
        });
        planes.dedup_by_key(|plane| plane.incarnation);
        planes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        planes
    }

    /// How many watch here.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.planes().len()).unwrap_or(u32::MAX)
    }

    /// How many live in the fleet, as last heard.
    pub(crate) fn in_fleet(&self) -> u32 {
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        self.count().saturating_add(elsewhere)
    }

    /// So many watch other replicas.
    pub(crate) fn hears(&self, elsewhere: u32) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// Keeps which configuration a data plane uses; `false` when it does not watch here.
    pub(crate) fn tell(&self, plane: PlaneIncarnation, configuration: u64, refused: u64) -> bool {
        let mut watching = false;
        for known in self.planes.lock().iter_mut() {
            if known.incarnation == plane {
                (known.configuration, known.refused) = (configuration, refused);
                watching = true;
            }
        }
        watching
    }
}

/// Counts a watcher for as long as it lives.
pub(crate) struct Present {
    live: Live,
    plane: PlaneIncarnation,
    metrics: Arc<Metrics>,
}

impl Present {
    pub(crate) fn new(live: &Live, plane: Plane, metrics: &Arc<Metrics>) -> Self {
        let incarnation = plane.incarnation;
        live.planes.lock().push(plane);
        let present = Self {
            live: live.clone(),
            plane: incarnation,
            metrics: Arc::clone(metrics),
        };
        present.show();
        present
    }

    fn show(&self) {
        let count = u64::from(self.live.count());
        self.metrics.data_planes.set(gauge_value(count));
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        {
            let mut planes = self.live.planes.lock();
            if let Some(index) = planes
                .iter()
                .position(|plane| plane.incarnation == self.plane)
            {
                planes.swap_remove(index);
            }
        }
        self.show();
    }
}

/// The watcher has gone.
struct Gone;

/// Which configuration a data plane has.
enum Known {
    /// As it says.
    Version(StoredVersion),
    /// This one was sent.
    Sent(Arc<Current>),
}

impl Known {
    fn version(&self) -> StoredVersion {
        match self {
            Self::Version(version) => *version,
            Self::Sent(current) => current.stored_version(),
        }
    }

    /// Credentials that it does not have, or may not have.
    fn outdated(&self, current: &Current) -> Vec<proto::Credential> {
        let has = |connection: &ConnectionId, version: u64| match self {
            Self::Version(_) => false,
            Self::Sent(sent) => sent
                .credentials
                .get(connection)
                .is_some_and(|it| it.version == version),
        };
        current
            .credentials
            .iter()
            .filter(|(connection, credential)| !has(connection, credential.version))
            .map(|(connection, credential)| credential.to_proto(connection))
            .collect()
    }
}

/// One watcher's side.
struct Watcher<'a> {
    watchers: &'a Watchers,
    sender: mpsc::Sender<Message>,
    cursor: VersionVector,
    /// Shards that were never sent; a data plane without them is to get them also when they are empty.
    begun: [bool; SHARDS as usize],
}

impl Watchers {
    /// Feeds one watcher, which has the configuration `known`, until it goes.
    pub(crate) async fn feed(
        &self,
        plane: Plane,
        known: StoredVersion,
        resume: VersionVector,
        sender: mpsc::Sender<Message>,
    ) {
        let _present = Present::new(&self.live, plane, &self.metrics);
        let mut watcher = Watcher {
            watchers: self,
            sender,
            cursor: resume,
            begun: [false; SHARDS as usize],
        };
        // Whether it left by itself or was too slow to take anything makes no difference here.
        let Gone = watcher.feed(known).await;
    }
}

impl Watcher<'_> {
    async fn feed(&mut self, known: StoredVersion) -> Gone {
        let mut updates = self.watchers.view.subscribe();
        let mut versions = self.watchers.config.subscribe();
        let mut heartbeat = tokio::time::interval(HEARTBEAT_EVERY);
        versions.mark_unchanged();
        let mut known = Known::Version(known);
        if self.configuration(&mut known).await.is_err() {
            return Gone;
        }
        for shard in Shard::all() {
            if self.catch_up(shard, false).await.is_err() {
                return Gone;
            }
        }
        loop {
            let sent = tokio::select! {
                update = updates.recv() => match update {
                    Ok(update) => self.update(&update).await,
                    Err(RecvError::Lagged(missed)) => {
                        self.watchers.metrics.lagging_watchers.inc();
                        tracing::warn!(missed, "a watcher is too slow and gets the shards whole");
                        self.all_again().await
                    }
                    Err(RecvError::Closed) => return Gone,
                },
                changed = versions.changed() => match changed {
                    Ok(()) => self.configuration(&mut known).await,
                    Err(_closed) => return Gone,
                },
                _ = heartbeat.tick() => self.heartbeat().await,
                () = self.sender.closed() => return Gone,
            };
            if sent.is_err() {
                return Gone;
            }
        }
    }

    /// Sends the configuration unless it is the known one; of one whose credentials alone changed, those. A data plane
    /// may know a newer one from elsewhere.
    async fn configuration(&self, known: &mut Known) -> Result<(), Gone> {
        let Some(current) = self.watchers.config.current() else {
            return Ok(());
        };
        let here = current.stored_version();
        let at = known.version();
        let same = at.document == here.document;
        let never_sent = here.document == 0 && matches!(known, Known::Version(_));
        if at.document < here.document || (same && never_sent) {
            let snapshot = proto::Snapshot::clone(&current.snapshot);
            self.send(proto::watch_response::Kind::Snapshot(snapshot))
                .await?;
        } else if same && at.secrets < here.secrets {
            let delta = proto::CredentialsDelta {
                configuration_version: here.document,
                revision: here.secrets,
                credentials: known.outdated(&current),
            };
            self.send(proto::watch_response::Kind::Credentials(delta))
                .await?;
        } else if at != here {
            return Ok(());
        }
        *known = Known::Sent(current);
        Ok(())
    }

    async fn all_again(&mut self) -> Result<(), Gone> {
        for shard in Shard::all() {
            self.catch_up(shard, true).await?;
        }
        Ok(())
    }

    /// Brings a shard from the cursor to where the view is.
    async fn catch_up(&mut self, shard: Shard, whole: bool) -> Result<(), Gone> {
        let cursor = self.cursor[shard.index()];
        let at = self.watchers.view.complete_to(shard);
        if at == Version::default() || at < cursor {
            // Nothing to send yet; changes do as soon as the view is past the cursor.
            return Ok(());
        }
        let resumes = !whole && cursor.incarnation == at.incarnation;
        let since = if resumes { cursor } else { Version::default() };
        let (version, entries) = self.watchers.view.newer_than(shard, since);
        if version < cursor {
            return Ok(());
        }
        if resumes && version == cursor && entries.is_empty() {
            self.begun[shard.index()] = true;
            return Ok(());
        }
        self.cursor[shard.index()] = version;
        self.begun[shard.index()] = true;
        let values = entries.iter().map(hot_value).collect();
        let version = Some(shard_version(shard, version));
        let kind = if resumes {
            proto::watch_response::Kind::Delta(proto::ShardDelta { version, values })
        } else {
            proto::watch_response::Kind::Shard(proto::ShardSnapshot { version, values })
        };
        self.send(kind).await
    }

    async fn update(&mut self, update: &ShardUpdate) -> Result<(), Gone> {
        let shard = update.shard;
        let cursor = self.cursor[shard.index()];
        let Some(entries) = &update.entries else {
            return self.catch_up(shard, true).await;
        };
        if !self.begun[shard.index()] || update.version.incarnation != cursor.incarnation {
            return self.catch_up(shard, false).await;
        }
        let values: Vec<proto::HotValue> = entries
            .iter()
            .filter(|entry| entry.version > cursor)
            .map(hot_value)
            .collect();
        if values.is_empty() && update.version <= cursor {
            return Ok(());
        }
        let version = update.version.max(cursor);
        self.cursor[shard.index()] = version;
        self.send(proto::watch_response::Kind::Delta(proto::ShardDelta {
            version: Some(shard_version(shard, version)),
            values,
        }))
        .await
    }

    async fn heartbeat(&self) -> Result<(), Gone> {
        let freshness = freshness(&self.watchers.view, &self.watchers.clock);
        self.send(proto::watch_response::Kind::Heartbeat(proto::Heartbeat {
            freshness: Some(freshness),
            live_data_planes: self.watchers.live.in_fleet().max(1),
        }))
        .await
    }

    async fn send(&self, kind: proto::watch_response::Kind) -> Result<(), Gone> {
        let message = proto::WatchResponse { kind: Some(kind) };
        self.sender.send(Ok(message)).await.map_err(|_closed| Gone)
    }
}

/// How fresh this replica's view is, as every answer says.
pub(crate) fn freshness(view: &View, clock: &Clock) -> common::Freshness {
    let age = view.age(local_now());
    common::Freshness {
        age_ms: u64::try_from(age.age.as_millis()).unwrap_or(u64::MAX),
        stale: age.stale,
        store_time_unix_ms: clock.now().0,
    }
}

fn shard_version(shard: Shard, version: Version) -> common::ShardVersion {
    common::ShardVersion {
        shard: u32::from(shard.number()),
        version: Some(wire::version_to_proto(version)),
    }
}

fn hot_value(entry: &Entry) -> proto::HotValue {
    proto::HotValue {
        key: entry.key.clone(),
        version: Some(wire::version_to_proto(entry.version)),
        schema: entry.schema,
        payload: Bytes::copy_from_slice(&entry.payload),
        expires_at_unix_ms: entry.expires_at.0,
    }
}
