//! One shard of the view: its cells, how far they are complete, and the order in which they change.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::breaker::BreakerStatus;
use tidegate_core::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId, Shard};
use tidegate_core::state::{ConnectionState, ProviderState};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_store::hot::{Change, Entry, MARK_TTL, ReportMark, ShardCheck, ShardImage};
use tokio::sync::broadcast;

use crate::clock::local_now;

use super::cell::{Cells, ProviderCells};
use super::held::HeldValue;
use super::{Marks, ShardUpdate, Taken};

type Updates = broadcast::Sender<Arc<ShardUpdate>>;

/// Cells of a shard.
#[derive(Debug, Default)]
pub(super) struct ShardView {
    cells: ArcSwap<Cells>,
    version: ArcSwap<Version>,
    /// Held by whoever changes the shard, for as long as the change takes and never while waiting.
    writer: Mutex<Writer>,
}

/// What only writers look at.
#[derive(Debug, Default)]
struct Writer {
    marks: Marks,
    /// Number of the last doubt.
    doubts: u64,
    /// Number of the last doubt that a reading has ended.
    resolved: u64,
    /// The last change of this incarnation since the last doubt began.
    seen: Version,
    /// The last change of another incarnation, which was left out.
    left_out: Version,
    /// A check sent then found the store at this version, where the view was not yet.
    awaited: Option<(Instant, Version)>,
    /// Everything written until then is in the cells.
    complete_at: Option<Instant>,
}

impl Writer {
    fn in_doubt(&self) -> bool {
        self.doubts != self.resolved
    }

    fn reached(&mut self, version: Version) {
        if let Some((sent, wanted)) = self.awaited
            && wanted.incarnation == version.incarnation
            && version >= wanted
            && !self.in_doubt()
        {
            self.awaited = None;
            self.complete_at = self.complete_at.max(Some(sent));
        }
    }
}

impl ShardView {
    pub(super) fn version(&self) -> Version {
        **self.version.load()
    }

    pub(super) fn provider_cells(&self, provider: &ProviderId) -> Option<Arc<ProviderCells>> {
        self.cells.load().get(provider).cloned()
    }

    pub(super) fn probed_by(&self, attempt: AttemptId) -> Option<ProviderId> {
        let holds = |state: Arc<ProviderState>| match &state.breaker.status {
            BreakerStatus::HalfOpen { probe: Some(probe) } => probe.attempt == attempt,
            _ => false,
        };
        let cells = self.cells.load();
        let mut providers = cells.iter();
        providers
            .find(|(_, cells)| {
                let held = cells.provider.held().and_then(|it| it.effective.clone());
                cells.provider.read().is_some_and(holds) || held.is_some_and(holds)
            })
            .map(|(provider, _)| provider.clone())
    }

    pub(super) fn complete_at(&self) -> Option<Instant> {
        self.writer.lock().complete_at
    }

    pub(super) fn mark(&self, plane: PlaneIncarnation) -> u64 {
        let writer = self.writer.lock();
        writer.marks.get(&plane).map_or(0, |(number, _)| *number)
    }

    pub(super) fn marks(&self) -> Vec<ReportMark> {
        let writer = self.writer.lock();
        let marks = writer.marks.iter();
        marks
            .map(|(&plane, &(number, _))| ReportMark { plane, number })
            .collect()
    }

    pub(super) fn raise_marks(&self, marks: &[ReportMark]) {
        raise(&mut self.writer.lock().marks, marks);
    }

    pub(super) fn doubt(&self) -> u64 {
        let mut writer = self.writer.lock();
        writer.doubts = writer.doubts.saturating_add(1);
        writer.seen = Version::default();
        writer.doubts
    }

    pub(super) fn doubts(&self) -> u64 {
        self.writer.lock().doubts
    }

    pub(super) fn apply(&self, shard: Shard, change: Change, updates: &Updates) -> Taken {
        let mut writer = self.writer.lock();
        let current = self.version();
        raise(&mut writer.marks, &change.marks);
        if change.version.incarnation != current.incarnation {
            writer.left_out = writer.left_out.max(change.version);
            return if change.version.incarnation > current.incarnation {
                Taken::OtherIncarnation
            } else {
                Taken::Applied
            };
        }
        writer.seen = writer.seen.max(change.version);
        let taken = self.install(change.entries, &writer);
        let mut version = current;
        if change.version > current && !writer.in_doubt() {
            version = change.version;
            self.version.store(Arc::new(version));
            writer.reached(version);
        }
        if version != current || !taken.is_empty() {
            publish(updates, shard, version, Some(taken));
        }
        Taken::Applied
    }

    pub(super) fn learn(
        &self,
        shard: Shard,
        entries: Vec<Entry>,
        written: Option<Version>,
        updates: &Updates,
    ) {
        let mut writer = self.writer.lock();
        let mut version = self.version();
        let ours = entries
            .into_iter()
            .filter(|entry| entry.version.incarnation == version.incarnation)
            .collect();
        let taken = self.install(ours, &writer);
        if let Some(written) = written
            && written.incarnation == version.incarnation
            && written.revision.0 == version.revision.0.saturating_add(1)
            && !writer.in_doubt()
        {
            version = written;
            self.version.store(Arc::new(version));
            writer.reached(version);
        }
        if !taken.is_empty() {
            publish(updates, shard, version, Some(taken));
        }
    }

    pub(super) fn replace(
        &self,
        shard: Shard,
        image: ShardImage,
        read_at: Instant,
        doubt: u64,
        updates: &Updates,
    ) -> bool {
        let Some(incarnation) = image.check.incarnation else {
            return false;
        };
        let mut writer = self.writer.lock();
        let current = self.version();
        let read = Version {
            incarnation,
            revision: image.check.revision,
        };
        if read.incarnation < current.incarnation {
            return false;
        }
        if read.incarnation > current.incarnation {
            // Everything here is of another life of the store.
            self.cells.store(Arc::default());
            writer.seen = Version::default();
        }
        self.remove_missing(&image.entries, read, &writer);
        self.install(image.entries, &writer);
        raise(&mut writer.marks, &image.marks);
        let seen = Some(writer.seen).filter(|seen| seen.incarnation == read.incarnation);
        let version = seen.map_or(read, |seen| seen.max(read));
        self.version.store(Arc::new(version));
        let whole = writer.doubts == doubt && writer.left_out <= version;
        if whole {
            writer.resolved = doubt;
            writer.complete_at = writer.complete_at.max(Some(read_at));
        }
        writer.reached(version);
        publish(updates, shard, version, None);
        whole
    }

    pub(super) fn checked(&self, check: &ShardCheck, sent: Instant) {
        let Some(incarnation) = check.incarnation else {
            return;
        };
        let mut writer = self.writer.lock();
        writer.awaited = Some((
            sent,
            Version {
                incarnation,
                revision: check.revision,
            },
        ));
        let version = self.version();
        writer.reached(version);
    }

    pub(super) fn newer_than(&self, since: Version) -> (Version, Vec<Entry>) {
        let _writer = self.writer.lock();
        let version = self.version();
        let all = since.incarnation != version.incarnation;
        let mut entries = Vec::new();
        self.each(|value| {
            if all || value.entry().version > since {
                entries.push(value.entry().clone());
            }
        });
        (version, entries)
    }

    pub(super) fn held(&self) -> Vec<HeldValue> {
        let mut values = Vec::new();
        self.each(|value| values.push(value));
        values
    }

    pub(super) fn overlay_provider(&self, provider: &ProviderId, state: ProviderState) {
        let writer = self.writer.lock();
        let cells = self.add([provider], &writer);
        if let Some(cells) = cells.get(provider) {
            cells.provider.set_overlay(Some(Arc::new(state)));
        }
    }

    pub(super) fn overlay_connection(
        &self,
        provider: &ProviderId,
        connection: &ConnectionId,
        state: ConnectionState,
    ) {
        let writer = self.writer.lock();
        let cells = self.add([provider], &writer);
        if let Some(cells) = cells.get(provider) {
            cells.add([connection].into_iter());
            if let Some(cell) = cells.connection(connection) {
                cell.set_overlay(Some(Arc::new(state)));
            }
        }
    }

    pub(super) fn clear_overlays(&self) {
        let _writer = self.writer.lock();
        for cells in self.cells.load().values() {
            cells.provider.set_overlay(None);
            for cell in cells.connections().values() {
                cell.set_overlay(None);
            }
        }
    }

    pub(super) fn forget(&self, now: Timestamp) {
        let mut writer = self.writer.lock();
        let local = local_now();
        writer
            .marks
            .retain(|_, (_, raised)| local.saturating_duration_since(*raised) < MARK_TTL);
        let cells = self.cells.load_full();
        for provider in cells.values() {
            let gone = |entry: &Entry| entry.expires_at <= now;
            if provider
                .provider
                .held()
                .is_some_and(|held| gone(&held.entry))
            {
                provider.provider.clear_held();
            }
            for cell in provider.connections().values() {
                if cell.held().is_some_and(|held| gone(&held.entry)) {
                    cell.clear_held();
                }
            }
            provider.drop_empty();
        }
        if cells.values().any(|provider| provider.is_empty()) {
            let kept = cells
                .iter()
                .filter(|(_, provider)| !provider.is_empty())
                .map(|(name, provider)| (name.clone(), Arc::clone(provider)))
                .collect();
            self.cells.store(Arc::new(kept));
        }
    }

    /// Makes sure that there are cells for these providers.
    fn add<'a>(
        &self,
        providers: impl IntoIterator<Item = &'a ProviderId>,
        _writer: &MutexGuard<'_, Writer>,
    ) -> Arc<Cells> {
        let known = self.cells.load_full();
        let missing: Vec<&ProviderId> = providers
            .into_iter()
            .filter(|provider| !known.contains_key(*provider))
            .collect();
        if missing.is_empty() {
            return known;
        }
        let mut cells = Cells::clone(&known);
        for provider in missing {
            cells.entry(provider.clone()).or_default();
        }
        let cells = Arc::new(cells);
        self.cells.store(Arc::clone(&cells));
        cells
    }

    /// Puts values into their cells, unless a cell has a newer one. Returns what was taken.
    fn install(&self, entries: Vec<Entry>, writer: &MutexGuard<'_, Writer>) -> Vec<Entry> {
        let values: Vec<HeldValue> = entries.into_iter().filter_map(HeldValue::read).collect();
        let cells = self.add(values.iter().map(HeldValue::provider), writer);
        let mut connections: BTreeMap<&ProviderId, Vec<&ConnectionId>> = BTreeMap::new();
        for value in &values {
            if let HeldValue::Connection(provider, connection, _) = value {
                connections.entry(provider).or_default().push(connection);
            }
        }
        for (provider, names) in connections {
            if let Some(cells) = cells.get(provider) {
                cells.add(names.into_iter());
            }
        }
        let mut taken = Vec::new();
        for value in values {
            let Some(cells) = cells.get(value.provider()) else {
                continue;
            };
            let entry = value.entry().clone();
            let new = match value {
                HeldValue::Provider(_, held) => cells.provider.offer(held),
                HeldValue::Connection(_, connection, held) => cells
                    .connection(&connection)
                    .is_some_and(|cell| cell.offer(held)),
            };
            if new {
                taken.push(entry);
            }
        }
        taken
    }

    /// Empties cells that a reading of the shard does not have, unless they are newer than it.
    fn remove_missing(&self, entries: &[Entry], read: Version, _writer: &MutexGuard<'_, Writer>) {
        let present: HashSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
        let gone = |entry: &Entry| entry.version <= read && !present.contains(entry.key.as_str());
        for cells in self.cells.load().values() {
            if cells.provider.held().is_some_and(|held| gone(&held.entry)) {
                cells.provider.clear_held();
            }
            for cell in cells.connections().values() {
                if cell.held().is_some_and(|held| gone(&held.entry)) {
                    cell.clear_held();
                }
            }
        }
    }

    fn each(&self, mut visit: impl FnMut(HeldValue)) {
        for (provider, cells) in self.cells.load().iter() {
            if let Some(held) = cells.provider.held() {
                visit(HeldValue::Provider(provider.clone(), (*held).clone()));
            }
            for (connection, cell) in cells.connections().iter() {
                if let Some(held) = cell.held() {
                    visit(HeldValue::Connection(
                        provider.clone(),
                        connection.clone(),
                        (*held).clone(),
                    ));
                }
            }
        }
    }
}

fn raise(known: &mut Marks, marks: &[ReportMark]) {
    let now = local_now();
    for mark in marks {
        let (number, raised) = known.entry(mark.plane).or_insert((0, now));
        if mark.number > *number {
            *number = mark.number;
            *raised = now;
        }
    }
}

fn publish(updates: &Updates, shard: Shard, version: Version, entries: Option<Vec<Entry>>) {
    let update = ShardUpdate {
        shard,
        version,
        entries,
    };
    // Nobody watches: nothing to tell.
    drop(updates.send(Arc::new(update)));
}
