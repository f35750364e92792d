//! Cells: one atomic pointer per value.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::state::{ConnectionState, ProviderState};

use super::held::Held;

/// One value: as the store has it, and as this replica alone has it while the store is away.
#[derive(Debug)]
pub(crate) struct Cell<T> {
    held: ArcSwapOption<Held<T>>,
    overlay: ArcSwapOption<T>,
}

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Self {
            held: ArcSwapOption::empty(),
            overlay: ArcSwapOption::empty(),
        }
    }
}

impl<T> Cell<T> {
    /// What decisions read.
    pub(crate) fn read(&self) -> Option<Arc<T>> {
        if let Some(overlay) = self.overlay.load_full() {
            return Some(overlay);
        }
        self.held.load().as_ref()?.effective.clone()
    }

    /// As the store has it.
    pub(crate) fn held(&self) -> Option<Arc<Held<T>>> {
        self.held.load_full()
    }

    /// Takes a value unless the cell has a newer one. A value this build cannot read leaves what is read as it
    /// was. Returns whether it was taken. The caller holds the shard's lock.
    pub(super) fn offer(&self, mut value: Held<T>) -> bool {
        let before = self.held.load();
        if let Some(before) = before.as_ref() {
            if before.entry.version >= value.entry.version {
                return false;
            }
            if value.effective.is_none() {
                value.effective.clone_from(&before.effective);
            }
        }
        self.held.store(Some(Arc::new(value)));
        true
    }

    /// Replaces the value by what a whole reading has, unless the cell's is newer than the reading.
    pub(super) fn clear_held(&self) {
        self.held.store(None);
    }

    pub(super) fn set_overlay(&self, value: Option<Arc<T>>) {
        self.overlay.store(value);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.load().is_none() && self.overlay.load().is_none()
    }
}

/// Cells of a provider and its connections.
#[derive(Debug, Default)]
pub(crate) struct ProviderCells {
    pub(crate) provider: Cell<ProviderState>,
    connections: ArcSwap<ConnectionCells>,
}

/// Cells by connection.
pub(super) type ConnectionCells = HashMap<ConnectionId, Arc<Cell<ConnectionState>>>;

/// Cells by provider.
pub(super) type Cells = HashMap<ProviderId, Arc<ProviderCells>>;

impl ProviderCells {
    /// The cell of a connection, if it ever had a value.
    pub(crate) fn connection(
        &self,
        connection: &ConnectionId,
    ) -> Option<Arc<Cell<ConnectionState>>> {
        self.connections.load().get(connection).cloned()
    }

    /// All cells of connections.
    pub(super) fn connections(&self) -> Arc<ConnectionCells> {
        self.connections.load_full()
    }

    /// Makes sure that there is a cell for each of these. The caller holds the shard's lock.
    pub(super) fn add<'a>(&self, connections: impl Iterator<Item = &'a ConnectionId>) {
        let known = self.connections.load();
        let missing: Vec<&ConnectionId> = connections
            .filter(|connection| !known.contains_key(*connection))
            .collect();
        if missing.is_empty() {
            return;
        }
        let mut cells = ConnectionCells::clone(&known);
        for connection in missing {
            cells.entry(connection.clone()).or_default();
        }
        self.connections.store(Arc::new(cells));
    }

    /// Drops cells without a value. The caller holds the shard's lock.
    pub(super) fn drop_empty(&self) {
        let known = self.connections.load();
        if known.values().any(|cell| cell.is_empty()) {
            let kept = known
                .iter()
                .filter(|(_, cell)| !cell.is_empty())
                .map(|(connection, cell)| (connection.clone(), Arc::clone(cell)))
                .collect();
            self.connections.store(Arc::new(kept));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.provider.is_empty() && self.connections.load().is_empty()
    }
}
