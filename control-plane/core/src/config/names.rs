//! What the members of a document can refer to by name.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ComboName, ConnectionId, ProviderId};

use super::index::auto;
use super::{Combo, Document, Provider};

/// Names and what they stand for; of two of one name the first counts.
pub(super) struct Names<'a> {
    pub(super) providers: BTreeMap<&'a str, &'a Provider>,
    /// Connections with the provider they are at.
    pub(super) connections: BTreeMap<&'a ConnectionId, &'a ProviderId>,
    /// Combos with their position in the document.
    pub(super) combos: BTreeMap<&'a str, (usize, &'a Combo)>,
    /// Names of the combos of quota pools.
    pools: BTreeSet<ComboName>,
}

impl<'a> Names<'a> {
    pub(super) fn of(document: &'a Document) -> Self {
        let mut names = Self {
            providers: BTreeMap::new(),
            connections: BTreeMap::new(),
            combos: BTreeMap::new(),
            pools: BTreeSet::new(),
        };
        for provider in &document.providers {
            names
                .providers
                .entry(provider.id.as_str())
                .or_insert(provider);
        }
        for connection in &document.connections {
            names
                .connections
                .entry(&connection.id)
                .or_insert(&connection.provider);
        }
        for (index, combo) in document.combos.iter().enumerate() {
            names
                .combos
                .entry(combo.name.as_str())
                .or_insert((index, combo));
        }
        for pool in &document.quota_pools {
            let combos = pool
                .models
                .iter()
                .filter_map(|model| pool.combo_name(model));
            names.pools.extend(combos);
        }
        names
    }

    /// Whether requests may ask for a combo of this name.
    pub(super) fn is_combo(&self, name: &str) -> bool {
        self.combos.contains_key(name) || auto::is_built_in(name) || self.pools.contains(name)
    }

    /// Whether the combo is the one that its name stands for.
    pub(super) fn is_first(&self, index: usize, combo: &Combo) -> bool {
        self.combos
            .get(combo.name.as_str())
            .is_some_and(|(first, _)| *first == index)
    }
}
