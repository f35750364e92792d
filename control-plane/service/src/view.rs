//! The hot state in this process: what decisions read, and what data planes follow.
//!
//! **Cells.** Each value has a cell of its own, an atomic pointer to an immutable value. A reader takes no lock
//! and never waits; a writer replaces one pointer. The maps from names to cells are immutable too and copied
//! when a name appears for the first time, which is rare: names come from the configuration, values change all
//! the time. Writers of a shard (follower, recorder, grants) take its lock for the moment of the change.
//!
//! **Two layers.** A cell holds the value as the store has it and, while the store is away, an *overlay*: the
//! value this replica would have written. Decisions read the overlay first. It is never sent to data planes,
//! never written anywhere and disappears when the store has taken what caused it.
//!
//! **Versions.** A shard is *complete* up to one version: everything the store wrote up to there is in its cells.
//! A cell may be ahead of it, when this replica knows of its own write before the writes of others in between.
//! A cell never goes back to an older version.
//!
//! **Doubt.** When something may be missing, the old view stays in force, since the ends in it are absolute. It
//! keeps taking changes of its own incarnation, but is not complete again until the shard was read whole *after*
//! the doubt began.

mod cell;
mod held;
mod shard;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId, SHARDS, Shard};
use tidegate_core::routing;
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_store::hot::{Change, Entry, ReportMark, ShardCheck, ShardImage, VersionVector};
use tokio::sync::broadcast;

pub(crate) use held::{Held, HeldValue};
use shard::ShardView;

/// Changes kept for a watcher that is slow; one that is further behind gets shards whole.
const UPDATES: usize = 1_024;
/// A view older than this does not follow the store (`architecture.md` §4, 1).
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(3);

/// What watchers are told.
#[derive(Clone, Debug)]
pub(crate) struct ShardUpdate {
    /// Which shard.
    pub(crate) shard: Shard,
    /// Complete up to here afterwards.
    pub(crate) version: Version,
    /// The values that changed; `None`: the shard was replaced whole.
    pub(crate) entries: Option<Vec<Entry>>,
}

/// What applying a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is in the view.
    Applied,
    /// It is of another incarnation: the shard must be reconciled.
    OtherIncarnation,
}

/// How fresh the view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    /// Time since every shard was last known to be complete.
    pub(crate) age: Duration,
    /// It does not follow the store.
    pub(crate) stale: bool,
}

/// The hot state in this process.
#[derive(Debug)]
pub(crate) struct View {
    shards: [ShardView; SHARDS as usize],
    updates: broadcast::Sender<Arc<ShardUpdate>>,
    /// When the process began; before the first reading the view is as old as the process.
    origin: Instant,
}

impl View {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            shards: std::array::from_fn(|_| ShardView::default()),
            updates: broadcast::Sender::new(UPDATES),
            origin: now,
        }
    }

    fn shard(&self, shard: Shard) -> &ShardView {
        &self.shards[shard.index()]
    }

    /// Follows all changes from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<ShardUpdate>> {
        self.updates.subscribe()
    }

    /// Up to which version a shard is complete.
    pub(crate) fn complete_to(&self, shard: Shard) -> Version {
        self.shard(shard).version()
    }

    /// The same for all shards.
    pub(crate) fn versions(&self) -> VersionVector {
        std::array::from_fn(|index| self.shards[index].version())
    }

    /// Every shard was read at least once, so that decisions can be made.
    pub(crate) fn is_filled(&self) -> bool {
        self.shards
            .iter()
            .all(|shard| shard.version() != Version::default())
    }

    /// Takes one write of the store.
    pub(crate) fn apply(&self, shard: Shard, change: Change) -> Taken {
        self.shard(shard).apply(shard, change, &self.updates)
    }

    /// Takes values that the store is known to hold: of this replica's own write (with the shard's version it
    /// got), or from a refusal.
    pub(crate) fn learn(&self, shard: Shard, entries: Vec<Entry>, written: Option<Version>) {
        self.shard(shard)
            .learn(shard, entries, written, &self.updates);
    }

    /// Raises marks of reports.
    pub(crate) fn raise_marks(&self, shard: Shard, marks: &[ReportMark]) {
        self.shard(shard).raise_marks(marks);
    }

    /// Highest number of a data plane's reports that is known to be applied; 0 when none is.
    pub(crate) fn mark(&self, shard: Shard, plane: PlaneIncarnation) -> u64 {
        self.shard(shard).mark(plane)
    }

    /// All marks of a shard.
    pub(crate) fn marks(&self, shard: Shard) -> Vec<ReportMark> {
        self.shard(shard).marks()
    }

    /// Something of the shard may be missing. Returns a number to hand to [`View::replace`].
    pub(crate) fn doubt(&self, shard: Shard) -> u64 {
        self.shard(shard).doubt()
    }

    /// The number of the last doubt.
    pub(crate) fn doubts(&self, shard: Shard) -> u64 {
        self.shard(shard).doubts()
    }

    /// Replaces the shard by a reading that was begun at `read_at` and after doubt number `doubt`. Returns
    /// whether that ends the doubt; otherwise the shard must be read again.
    pub(crate) fn replace(
        &self,
        shard: Shard,
        image: ShardImage,
        read_at: Instant,
        doubt: u64,
    ) -> bool {
        self.shard(shard)
            .replace(shard, image, read_at, doubt, &self.updates)
    }

    /// Takes the state of a shard in the store as found by a check sent at `sent`.
    pub(crate) fn checked(&self, shard: Shard, check: &ShardCheck, sent: Instant) {
        self.shard(shard).checked(check, sent);
    }

    /// How fresh the view is.
    pub(crate) fn age(&self, now: Instant) -> Age {
        let oldest = self
            .shards
            .iter()
            .map(|shard| shard.complete_at().unwrap_or(self.origin))
            .min()
            .unwrap_or(self.origin);
        let filled = self.is_filled();
        let age = now.saturating_duration_since(oldest);
        Age {
            age,
            stale: !filled || age > STALE_AFTER,
        }
    }

    /// The values that were written after `since`, and up to where they are complete. With `since` of another
    /// incarnation: all of them.
    pub(crate) fn newer_than(&self, shard: Shard, since: Version) -> (Version, Vec<Entry>) {
        self.shard(shard).newer_than(since)
    }

    /// Everything the shard holds, for a restore.
    pub(crate) fn held(&self, shard: Shard) -> Vec<HeldValue> {
        self.shard(shard).held()
    }

    /// A provider's value as the store has it.
    pub(crate) fn held_provider(&self, provider: &ProviderId) -> Option<Arc<Held<ProviderState>>> {
        self.shard(Shard::of_provider(provider))
            .provider_cells(provider)?
            .provider
            .held()
    }

    /// The provider whose probe an attempt holds, in the store or in this replica alone. Looks at every provider, so
    /// it is for rare questions.
    pub(crate) fn probed_by(&self, attempt: AttemptId) -> Option<ProviderId> {
        self.shards
            .iter()
            .find_map(|shard| shard.probed_by(attempt))
    }

    /// A connection's value as the store has it.
    pub(crate) fn held_connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<Held<ConnectionState>>> {
        self.shard(Shard::of_provider(provider))
            .provider_cells(provider)?
            .connection(connection)?
            .held()
    }

    /// Lays a provider's value over what the store has.
    pub(crate) fn overlay_provider(&self, provider: &ProviderId, state: ProviderState) {
        self.shard(Shard::of_provider(provider))
            .overlay_provider(provider, state);
    }

    /// Lays a connection's value over what the store has.
    pub(crate) fn overlay_connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
        state: ConnectionState,
    ) {
        self.shard(Shard::of_provider(provider))
            .overlay_connection(provider, connection, state);
    }

    /// Takes all overlays of a shard away.
    pub(crate) fn clear_overlays(&self, shard: Shard) {
        self.shard(shard).clear_overlays();
    }

    /// Forgets values that are past their expiry, and names without a value.
    pub(crate) fn forget(&self, now: Timestamp) {
        for shard in &self.shards {
            shard.forget(now);
        }
    }
}

impl routing::View for View {
    fn provider(&self, provider: &ProviderId) -> Option<Arc<ProviderState>> {
        self.shard(Shard::of_provider(provider))
            .provider_cells(provider)?
            .provider
            .read()
    }

    fn connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
    ) -> Option<Arc<ConnectionState>> {
        self.shard(Shard::of_provider(provider))
            .provider_cells(provider)?
            .connection(connection)?
            .read()
    }

    fn version(&self, shard: Shard) -> Version {
        self.complete_to(shard)
    }
}

/// Marks by data plane, with the moment each was last raised.
type Marks = HashMap<PlaneIncarnation, (u64, Instant)>;
