//! Every combo there is: those people wrote, and those of [`super::auto`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::ids::ComboName;

use super::super::names::Names;
use super::super::{ComboConfig, ComboEntry, Document, Violations};
use super::auto;
use super::combos::{Resolved, Resolver, Room};

/// Combos by name. `bad` ones, by position, have no targets.
pub(super) fn of(
    document: &Document,
    catalogue: &Catalogue,
    bad: &BTreeSet<usize>,
    found: &mut Violations,
) -> BTreeMap<ComboName, ComboEntry> {
    let names = Names::of(document);
    let configs: BTreeMap<&str, Arc<ComboConfig>> = names
        .combos
        .iter()
        .map(|(name, (_, combo))| (*name, Arc::new(combo.config.clone())))
        .collect();
    let bad_names: BTreeSet<&str> = names
        .combos
        .iter()
        .filter(|(_, (index, _))| bad.contains(index))
        .map(|(name, _)| *name)
        .collect();
    let mut resolver = Resolver {
        names: &names,
        catalogue,
        configs: &configs,
        bad: &bad_names,
        room: Room::default(),
    };
    let mut entries = auto::entries(document);
    for (index, combo) in document.combos.iter().enumerate() {
        if !names.is_first(index, combo) {
            continue;
        }
        let resolved = if bad.contains(&index) {
            Resolved::default()
        } else {
            resolver.resolve(combo, &format!("combos[{index}]"), found)
        };
        let entry = ComboEntry {
            combo: combo.clone(),
            config: combo.config.clone(),
            targets: resolved.targets.into(),
            units: resolved.units,
            hidden: false,
        };
        // A combo that people call `auto` replaces the built-in one.
        entries.insert(combo.name.clone(), entry);
    }
    entries
}
