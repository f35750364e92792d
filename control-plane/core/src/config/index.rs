//! From a good document to what decisions look things up in.

pub(super) mod auto;
pub(super) mod combos;
mod entries;
mod expansion;
pub(super) mod nesting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::catalogue::Catalogue;
use crate::classify::{self, RuleBooks};
use crate::ids::{ConnectionId, ModelId, ProviderId};
use crate::settings::{Overrides, ProviderPolicy, Settings, StoredReading};

use entries::Bad;

use super::{
    ApiKey, ComboEntry, Config, Connection, Document, ProviderEntry, Step, Violation, Violations,
    base_url, meaning, validate,
};

/// The name a client's API key is looked up by: the lower-case hex SHA-256 of the whole key.
#[must_use]
pub fn key_hash(key: &str) -> String {
    hex::encode(Sha256::digest(key.as_bytes()))
}

impl Config {
    /// Checks a document that people send and indexes it; its settings are read strictly. `version` is its version
    /// in the durable store, `overrides` what the environment says.
    ///
    /// # Errors
    /// Everything that is wrong with the document, at most [`super::MAX_VIOLATIONS`] and a count of the rest.
    pub fn build(
        document: Document,
        version: u64,
        overrides: &Overrides,
    ) -> Result<Self, Vec<Violation>> {
        let mut found = validate::violations(&document);
        let settings = match document.settings.strict() {
            Ok(settings) => settings,
            Err(violations) => {
                validate::settings(violations, &mut found);
                Settings::default()
            }
        };
        for faults in validate::combos(&document) {
            found.extend(faults.all());
        }
        for faults in validate::pools(&document) {
            found.extend(faults);
        }
        if !found.is_empty() {
            return Err(found.into_vec());
        }
        let bad = Bad::default();
        let config = Self::index(document, version, overrides, settings, &bad, &mut found);
        if found.is_empty() {
            Ok(config)
        } else {
            Err(found.into_vec())
        }
    }

    /// Checks a document that the store holds and indexes it. Its settings, combos and quota pools are never a
    /// reason not to use it:
    /// settings are read leniently ([`crate::settings::WrittenSettings::stored`]); a combo that is no good has no
    /// targets, a quota pool that is none makes no combos, a step that leads nowhere is left out, and all of it is told
    /// in [`Config::mended`].
    ///
    /// # Errors
    /// As [`Self::build`], but for settings, combos and quota pools.
    pub fn build_stored(
        document: Document,
        version: u64,
        overrides: &Overrides,
    ) -> Result<Self, Vec<Violation>> {
        let found = validate::violations(&document);
        if !found.is_empty() {
            return Err(found.into_vec());
        }
        let StoredReading {
            settings,
            warnings,
            members: _,
        } = document.settings.stored();
        let mut mended = Violations::default();
        for Violation { field, message } in warnings {
            mended.push(field, message);
        }
        let mut bad = Bad::default();
        for (index, faults) in validate::combos(&document).into_iter().enumerate() {
            if !faults.of_combo.is_empty() {
                bad.combos.insert(index);
            }
            mended.extend(faults.all());
        }
        for (index, faults) in validate::pools(&document).into_iter().enumerate() {
            if !faults.is_empty() {
                bad.pools.insert(index);
            }
            mended.extend(faults);
        }
        let mut config = Self::index(document, version, overrides, settings, &bad, &mut mended);
        config.mended = mended.into_vec();
        Ok(config)
    }

    /// `bad` is what cannot be used; `found` gets what is wrong with what combos come to.
    fn index(
        document: Document,
        version: u64,
        overrides: &Overrides,
        settings: Settings,
        bad: &Bad,
        found: &mut Violations,
    ) -> Self {
        // Every process comes through here before it judges anything.
        classify::prepare();
        let connections: Vec<Arc<Connection>> =
            document.connections.iter().cloned().map(Arc::new).collect();
        let catalogue = Catalogue::of(&document.models);
        let providers = providers(&document, &settings, &connections, overrides);
        let mut combos = entries::of(&document, &settings, &catalogue, bad, found);
        expansion::expand(&mut combos, &providers);
        Self {
            version,
            providers,
            combos,
            keys: keys(&document),
            connections: connections
                .into_iter()
                .map(|connection| (connection.id.clone(), connection))
                .collect(),
            lease_pool: Arc::new(lease_pool(&document)),
            bare_models: bare_models(&document),
            catalogue,
            document: Arc::new(document),
            settings: Arc::new(settings.with_overrides(overrides)),
            mended: Vec::new(),
        }
    }

    /// The key with this SHA-256 in lower-case hex; see [`key_hash`].
    #[must_use]
    pub fn key_by_hash(&self, hash: &str) -> Option<&Arc<ApiKey>> {
        self.keys.get(hash)
    }

    /// A provider with its policy and connections.
    #[must_use]
    pub fn provider(&self, provider: &ProviderId) -> Option<&ProviderEntry> {
        self.providers.get(provider)
    }

    /// A connection by its id.
    #[must_use]
    pub fn connection(&self, connection: &ConnectionId) -> Option<&Arc<Connection>> {
        self.connections.get(connection)
    }

    /// A combo by its name.
    #[must_use]
    pub fn combo(&self, name: &str) -> Option<&ComboEntry> {
        self.combos.get(name)
    }

    /// The combo that a request for this name gets: the one of this name, `combo/<name>`, or the first that the name
    /// is mapped to (`routing.md` §1.4). Names that begin with `auto/` are never mapped, nor is `auto`.
    #[must_use]
    pub fn combo_for(&self, name: &str) -> Option<&ComboEntry> {
        if let Some(entry) = self.combo(name) {
            return Some(entry);
        }
        if auto::is_auto(name) {
            return None;
        }
        if let Some(entry) = name
            .strip_prefix("combo/")
            .and_then(|name| self.combo(name))
        {
            return Some(entry);
        }
        let mut mappings = self.document.model_mappings.iter();
        let mapping = mappings.find(|mapping| mapping.fits(name))?;
        self.combo(mapping.combo.as_str())
    }

    /// The combo that a step refers to; `None` where it means a model, or a combo that there is not.
    pub(crate) fn referred(&self, step: &Step) -> Option<&ComboEntry> {
        let written = |name: &str| self.combo(name).filter(|entry| !entry.hidden);
        match step {
            Step::Combo(step) => written(step.combo.as_str()),
            Step::Text(text) => {
                let is_provider = |provider: &str| self.providers.contains_key(provider);
                let is_combo = |name: &str| written(name).is_some();
                meaning::names_combo(text, is_provider, is_combo)
                    .then(|| written(text))
                    .flatten()
            }
            Step::Model(_) => None,
        }
    }
}

fn providers(
    document: &Document,
    settings: &Settings,
    connections: &[Arc<Connection>],
    overrides: &Overrides,
) -> BTreeMap<ProviderId, ProviderEntry> {
    let books = RuleBooks::new(settings);
    let mut entries: BTreeMap<ProviderId, ProviderEntry> = document
        .providers
        .iter()
        .map(|provider| {
            let mut written = provider.clone();
            let url = base_url::without_trailing_slash(&provider.base_url);
            url.clone_into(&mut written.base_url);
            let entry = ProviderEntry {
                policy: ProviderPolicy::resolve_with(settings, provider, overrides, &books),
                models: provider.models.iter().cloned().collect(),
                provider: written,
                connections: Vec::new(),
            };
            (provider.id.clone(), entry)
        })
        .collect();
    for connection in connections {
        if let Some(entry) = entries.get_mut(&connection.provider) {
            entry.connections.push(Arc::clone(connection));
        }
    }
    for entry in entries.values_mut() {
        // The sort is stable, so equal numbers stay as written.
        entry
            .connections
            .sort_by_key(|connection| connection.priority);
    }
    entries
}

fn keys(document: &Document) -> BTreeMap<String, Arc<ApiKey>> {
    document
        .keys
        .iter()
        .filter_map(|key| {
            let hash = key.sha256.as_ref()?.to_ascii_lowercase();
            Some((hash, Arc::new(key.clone())))
        })
        .collect()
}

fn lease_pool(document: &Document) -> BTreeSet<ConnectionId> {
    let leasing = document.keys.iter().filter(|key| key.may_lease());
    leasing
        .flat_map(|key| key.allowed_connections.iter().cloned())
        .collect()
}

fn bare_models(document: &Document) -> BTreeMap<ModelId, ProviderId> {
    let mut models = BTreeMap::new();
    for provider in &document.providers {
        for model in &provider.models {
            models
                .entry(model.clone())
                .or_insert_with(|| provider.id.clone());
        }
    }
    models
}
