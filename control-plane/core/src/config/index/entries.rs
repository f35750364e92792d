//! Every combo there is: those people wrote, those of quota pools, and those of [`super::auto`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::ids::ComboName;
use crate::settings::Settings;

use super::super::names::Names;
use super::super::{ComboConfig, ComboEntry, Document, Violations, cascade};
use super::auto;
use super::combos::{Resolved, Resolver, Room};

/// What of a document cannot be used, by position.
#[derive(Debug, Default)]
pub(super) struct Bad {
    pub(super) combos: BTreeSet<usize>,
    pub(super) pools: BTreeSet<usize>,
}

/// Combos by name. Bad ones have no targets.
pub(super) fn of(
    document: &Document,
    settings: &Settings,
    catalogue: &Catalogue,
    bad: &Bad,
    found: &mut Violations,
) -> BTreeMap<ComboName, ComboEntry> {
    let names = Names::of(document);
    let configs: BTreeMap<&str, Arc<ComboConfig>> = names
        .combos
        .iter()
        .map(|(name, (_, combo))| {
            let provider = cascade::provider(combo, &names);
            let config = cascade::of(settings, provider.as_deref(), &combo.config);
            (*name, Arc::new(config))
        })
        .collect();
    let bad_names: BTreeSet<&str> = names
        .combos
        .iter()
        .filter(|(_, (index, _))| bad.combos.contains(index))
        .map(|(name, _)| *name)
        .collect();
    let mut resolver = Resolver {
        names: &names,
        catalogue,
        configs: &configs,
        bad: &bad_names,
        room: Room::default(),
    };
    let mut entries = auto::entries(document, settings);
    for (index, combo) in document.combos.iter().enumerate() {
        if !names.is_first(index, combo) {
            continue;
        }
        let resolved = if bad.combos.contains(&index) {
            Resolved::default()
        } else {
            resolver.resolve(combo, &format!("combos[{index}]"), found)
        };
        let entry = ComboEntry {
            combo: combo.clone(),
            config: configs
                .get(combo.name.as_str())
                .map(|config| ComboConfig::clone(config))
                .unwrap_or_default(),
            targets: resolved.targets.into(),
            units: resolved.units,
            hidden: false,
        };
        // A combo that people call `auto` replaces the built-in one.
        entries.insert(combo.name.clone(), entry);
    }
    for (index, pool) in document.quota_pools.iter().enumerate() {
        if bad.pools.contains(&index) {
            continue;
        }
        let config = cascade::of(
            settings,
            Some(pool.provider.as_str()),
            &ComboConfig::default(),
        );
        for combo in pool.models.iter().filter_map(|model| pool.combo(model)) {
            let resolved = resolver.resolve(&combo, &format!("quotaPools[{index}]"), found);
            let entry = ComboEntry {
                config: config.clone(),
                targets: resolved.targets.into(),
                units: resolved.units,
                hidden: true,
                combo,
            };
            entries.insert(entry.combo.name.clone(), entry);
        }
    }
    entries
}
