//! From a good document to what decisions look things up in.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::catalogue::Catalogue;
use crate::classify::{self, RuleBooks};
use crate::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use crate::number::Finite;
use crate::settings::{Overrides, ProviderPolicy, Settings, StoredReading};

use super::{
    ApiKey, ComboEntry, ComboTarget, Config, Connection, Document, ProviderEntry, Violation,
    base_url, split_model, validate,
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
        if !found.is_empty() {
            return Err(found.into_vec());
        }
        Ok(Self::index(
            document,
            version,
            overrides,
            settings,
            Vec::new(),
        ))
    }

    /// Checks a document that the store holds and indexes it; its settings are read leniently
    /// ([`crate::settings::WrittenSettings::stored`]), so they are never a reason not to use it.
    ///
    /// # Errors
    /// As [`Self::build`], but for the settings.
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
        Ok(Self::index(
            document, version, overrides, settings, warnings,
        ))
    }

    fn index(
        document: Document,
        version: u64,
        overrides: &Overrides,
        settings: Settings,
        mended: Vec<Violation>,
    ) -> Self {
        // Every process comes through here before it judges anything.
        classify::prepare();
        let connections: Vec<Arc<Connection>> =
            document.connections.iter().cloned().map(Arc::new).collect();
        Self {
            version,
            providers: providers(&document, &settings, &connections, overrides),
            combos: combos(&document),
            keys: keys(&document),
            connections: connections
                .into_iter()
                .map(|connection| (connection.id.clone(), connection))
                .collect(),
            bare_models: bare_models(&document),
            catalogue: Catalogue::default(),
            document: Arc::new(document),
            settings: Arc::new(settings),
            mended,
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

fn combos(document: &Document) -> BTreeMap<ComboName, ComboEntry> {
    document
        .combos
        .iter()
        .map(|combo| {
            let targets = combo
                .steps
                .iter()
                .enumerate()
                .filter_map(|(index, step)| {
                    let (provider, model) = split_model(step.model())?;
                    Some(ComboTarget {
                        provider,
                        model,
                        connection: step.connection().cloned(),
                        key: format!("{}-model-{}", combo.name, index.saturating_add(1)).into(),
                        group: u32::try_from(index).unwrap_or(u32::MAX),
                        weight: Finite::ZERO,
                        allowed_connections: Vec::new(),
                        tags: Vec::new(),
                        fallback_only_on_quota_exhaustion: false,
                    })
                })
                .collect();
            let entry = ComboEntry {
                combo: combo.clone(),
                config: combo.config.clone(),
                targets,
            };
            (combo.name.clone(), entry)
        })
        .collect()
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
