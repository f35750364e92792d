//! Built-in combos over all models that providers list: `auto`, and `auto/<mode>` for each mode (`routing.md` §1.4,
//! §9.4, §9.6).
//!
//! A model is in it when some connection that is switched on serves it. Providers of both protocols are in it; gates
//! rule out the other protocol. They are taken in turns, model by model, so that a provider with very many models
//! leaves room for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{ComboName, ModelId, ProviderId};
use crate::number::Finite;
use crate::routing::strategy;
use crate::settings::Settings;

use super::super::{
    Combo, ComboConfig, ComboEntry, ComboTarget, Connection, Document, MAX_TARGETS, Strategy,
    cascade,
};

/// Modes of built-in combos alone, which keep the weights: the name of the combo says which tiers are preferred.
const PREFERENCES: [&str; 2] = ["smart", "coding"];

const AUTO: &str = "auto";

/// Whether the name is kept for built-in combos.
pub(in super::super) fn is_auto(name: &str) -> bool {
    name == AUTO || name.starts_with("auto/")
}

/// Whether there is a built-in combo of this name.
pub(in super::super) fn is_built_in(name: &str) -> bool {
    let mode = name.strip_prefix("auto/");
    name == AUTO || mode.is_some_and(|mode| modes().any(|(known, _)| known == mode))
}

/// Every mode with the pack of weights that it stands for.
fn modes() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let preferences = PREFERENCES.iter().map(|mode| (*mode, None));
    preferences.chain(strategy::auto::modes())
}

/// The built-in combos by name.
pub(super) fn entries(document: &Document, settings: &Settings) -> BTreeMap<ComboName, ComboEntry> {
    let targets = targets(document);
    let defaults = cascade::of(settings, None, &ComboConfig::default());
    let plain = [(AUTO.to_owned(), None)];
    let modes = modes().map(|(mode, pack)| (format!("{AUTO}/{mode}"), pack));
    plain
        .into_iter()
        .chain(modes)
        .filter_map(|(name, pack)| {
            let name = ComboName::new(name).ok()?;
            let mut config = defaults.clone();
            if let Some(pack) = pack {
                let auto = config.auto.get_or_insert_default();
                auto.mode_pack = Some(pack.to_owned());
            }
            let entry = ComboEntry {
                combo: Combo {
                    name: name.clone(),
                    strategy: Strategy::Auto,
                    steps: Vec::new(),
                    config: ComboConfig::default(),
                },
                config,
                targets: Arc::clone(&targets),
                units: Vec::new(),
                hidden: true,
            };
            Some((name, entry))
        })
        .collect()
}

fn targets(document: &Document) -> Arc<[ComboTarget]> {
    let mut served: BTreeMap<&ProviderId, Served<'_>> = BTreeMap::new();
    for connection in document.connections.iter().filter(|entry| entry.enabled) {
        served
            .entry(&connection.provider)
            .or_default()
            .add(connection);
    }
    let mut providers: Vec<_> = document
        .providers
        .iter()
        .filter_map(|provider| {
            let served = served.get(&provider.id)?;
            let mut seen = BTreeSet::new();
            let models = provider
                .models
                .iter()
                .filter(move |model| served.holds(model) && seen.insert(*model));
            Some((&provider.id, models))
        })
        .collect();
    let mut targets = Vec::new();
    while !providers.is_empty() && targets.len() < MAX_TARGETS {
        providers.retain_mut(|(provider, models)| match models.next() {
            Some(model) if targets.len() < MAX_TARGETS => {
                targets.push(target(provider, model, targets.len()));
                true
            }
            Some(_) | None => false,
        });
    }
    targets.into()
}

fn target(provider: &ProviderId, model: &ModelId, index: usize) -> ComboTarget {
    ComboTarget {
        key: format!("{provider}/{model}").into(),
        provider: provider.clone(),
        model: model.clone(),
        connection: None,
        expanded: false,
        group: u32::try_from(index).unwrap_or(u32::MAX),
        weight: Finite::ZERO,
        allowed_connections: BTreeSet::new(),
        tags: Vec::new(),
        fallback_only_on_quota_exhaustion: false,
    }
}

/// What the connections of a provider serve together.
#[derive(Default)]
struct Served<'a> {
    any: bool,
    models: BTreeSet<&'a ModelId>,
}

impl<'a> Served<'a> {
    fn add(&mut self, connection: &'a Connection) {
        self.any |= connection.models.is_empty();
        self.models.extend(&connection.models);
    }

    fn holds(&self, model: &ModelId) -> bool {
        self.any || self.models.contains(model)
    }
}
