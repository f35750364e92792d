//! What makes a document a good one. Everything is checked and told at once, each with the path of the member
//! that is wrong. Names are valid by their types already.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::ids::{ConnectionId, ProviderId};

use super::{
    ApiKey, Combo, ComboConfig, Connection, Document, MAX_ENTRIES, MAX_LIMITED_TO,
    MAX_PROVIDER_MODELS, MAX_STEPS, OauthClient, Provider, SecretSource, Step, Violation,
    Violations, base_url, oauth, split_model,
};

const RETRIES: RangeInclusive<u32> = 0..=10;
const RETRY_DELAY_MS: RangeInclusive<u64> = 0..=60_000;
const GLOBAL_ATTEMPTS: RangeInclusive<u32> = 1..=200;
const MAX_VARIABLE_BYTES: usize = 256;
const MAX_PATH_BYTES: usize = 4_096;
const SHA256_HEX_DIGITS: usize = 64;

/// Everything wrong with the document but for its settings.
pub(super) fn violations(document: &Document) -> Violations {
    let mut found = Violations::default();
    let sizes = [
        ("providers", document.providers.len()),
        ("connections", document.connections.len()),
        ("combos", document.combos.len()),
        ("keys", document.keys.len()),
    ];
    let fits = sizes.map(|(field, entries)| found.at_most(field, entries, MAX_ENTRIES));
    if fits.contains(&false) {
        return found;
    }
    let names = Names::of(document);
    providers(&document.providers, &mut found);
    connections(&document.connections, &names, &mut found);
    combos(&document.combos, &names, &mut found);
    keys(&document.keys, &names, &mut found);
    found
}

/// Adds what is wrong with the settings.
pub(super) fn settings(violations: Vec<Violation>, found: &mut Violations) {
    for Violation { field, message } in violations {
        let field = if field.is_empty() {
            "settings".to_owned()
        } else {
            format!("settings.{field}")
        };
        found.push(field, message);
    }
}

/// What can be referred to.
struct Names<'a> {
    providers: BTreeSet<&'a ProviderId>,
    /// Providers that have a token endpoint.
    token_endpoints: BTreeMap<&'a ProviderId, &'a OauthClient>,
    connections: BTreeMap<&'a ConnectionId, &'a ProviderId>,
    combos: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(document: &'a Document) -> Self {
        Self {
            providers: document.providers.iter().map(|entry| &entry.id).collect(),
            token_endpoints: document
                .providers
                .iter()
                .filter_map(|entry| Some((&entry.id, entry.oauth.as_ref()?)))
                .collect(),
            connections: document
                .connections
                .iter()
                .map(|entry| (&entry.id, &entry.provider))
                .collect(),
            combos: document
                .combos
                .iter()
                .map(|entry| entry.name.as_str())
                .collect(),
        }
    }
}

/// Notices the second and every further use of a name.
struct Unique<T>(BTreeSet<T>);

impl<T: Ord + Display> Unique<T> {
    fn new() -> Self {
        Self(BTreeSet::new())
    }

    fn check(&mut self, name: T, field: impl FnOnce() -> String, found: &mut Violations) {
        if self.0.contains(&name) {
            found.push(field(), format!("{name} is used more than once"));
        } else {
            self.0.insert(name);
        }
    }
}

fn providers(providers: &[Provider], found: &mut Violations) {
    let mut ids = Unique::new();
    for (index, provider) in providers.iter().enumerate() {
        let path = format!("providers[{index}]");
        ids.check(&provider.id, || format!("{path}.id"), found);
        if provider.id.as_str() == "combo" {
            let message = "combo is reserved: combo/<name> asks for a combo";
            found.push(format!("{path}.id"), message);
        }
        if let Err(message) = base_url::check(&provider.base_url) {
            found.push(format!("{path}.baseUrl"), message);
        }
        found.at_most(
            format!("{path}.models"),
            provider.models.len(),
            MAX_PROVIDER_MODELS,
        );
        if let Some(client) = &provider.oauth {
            client.check(&format!("{path}.oauth"), found);
        }
    }
}

fn connections(connections: &[Connection], names: &Names<'_>, found: &mut Violations) {
    let mut ids = Unique::new();
    for (index, connection) in connections.iter().enumerate() {
        let path = format!("connections[{index}]");
        ids.check(&connection.id, || format!("{path}.id"), found);
        if !names.providers.contains(&connection.provider) {
            found.push(
                format!("{path}.provider"),
                format!("there is no provider {}", connection.provider),
            );
        }
        if let Some(source) = &connection.credential {
            secret_source(&format!("{path}.credential"), source, found);
        }
        found.at_most(
            format!("{path}.models"),
            connection.models.len(),
            MAX_LIMITED_TO,
        );
        oauth_members(&path, connection, names, found);
    }
}

/// Members that are of use at a provider with a token endpoint only.
fn oauth_members(path: &str, connection: &Connection, names: &Names<'_>, found: &mut Violations) {
    let sources = [
        ("refreshToken", &connection.refresh_token),
        ("clientSecret", &connection.client_secret),
    ];
    let client = names.token_endpoints.get(&connection.provider);
    for (member, source) in sources {
        let Some(source) = source else { continue };
        let field = format!("{path}.{member}");
        secret_source(&field, source, found);
        if client.is_none() {
            let message = format!(
                "provider {} has no oauth.tokenEndpoint",
                connection.provider
            );
            found.push(field, message);
        }
    }
    if connection.client_secret.is_some() {
        let named = connection.client_id.as_ref();
        let named = named.or_else(|| client.and_then(|client| client.client_id.as_ref()));
        if named.is_none() || connection.refresh_token.is_none() {
            found.push(
                format!("{path}.clientSecret"),
                "is of no use without refreshToken and a clientId",
            );
        }
    }
    if let Some(client) = &connection.client_id {
        oauth::check_text(format!("{path}.clientId"), client, found);
    }
}

fn secret_source(path: &str, source: &SecretSource, found: &mut Violations) {
    match source {
        SecretSource::Env(name) => {
            let starts_with_digit = name.starts_with(|first: char| first.is_ascii_digit());
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.is_empty()
                || name.len() > MAX_VARIABLE_BYTES
                || starts_with_digit
                || !name.bytes().all(allowed)
            {
                let message = "must be the name of an environment variable: letters, digits and _";
                found.push(format!("{path}.env"), message);
            }
        }
        SecretSource::File(file) => {
            if file.is_empty() || file.len() > MAX_PATH_BYTES || file.contains('\0') {
                found.push(format!("{path}.file"), "must be the path of a file");
            }
        }
    }
}

fn combos(combos: &[Combo], names: &Names<'_>, found: &mut Violations) {
    let mut taken = Unique::new();
    for (index, combo) in combos.iter().enumerate() {
        let path = format!("combos[{index}]");
        taken.check(&combo.name, || format!("{path}.name"), found);
        let reserved = ["auto/", "qtSd/"];
        if reserved
            .iter()
            .any(|prefix| combo.name.as_str().starts_with(prefix))
        {
            found.push(
                format!("{path}.name"),
                "names that begin with auto/ or qtSd/ are reserved",
            );
        }
        if combo.steps.is_empty() {
            found.push(format!("{path}.steps"), "must have at least one step");
        }
        if found.at_most(format!("{path}.steps"), combo.steps.len(), MAX_STEPS) {
            for (number, entry) in combo.steps.iter().enumerate() {
                step(&path, number, entry, names, found);
            }
        }
        combo_config(&path, &combo.config, found);
    }
}

fn step(combo: &str, number: usize, step: &Step, names: &Names<'_>, found: &mut Violations) {
    let path = || match step {
        Step::Model(_) => format!("{combo}.steps[{number}]"),
        Step::Detailed(_) => format!("{combo}.steps[{number}].model"),
    };
    let Some((provider, _)) = split_model(step.model()) else {
        found.push(path(), "must be provider/model");
        return;
    };
    if !names.providers.contains(&provider) {
        found.push(path(), format!("there is no provider {provider}"));
    }
    let Some(connection) = step.connection() else {
        return;
    };
    let field = || format!("{combo}.steps[{number}].connection");
    match names.connections.get(connection) {
        None => found.push(field(), format!("there is no connection {connection}")),
        Some(owner) if **owner != provider => found.push(
            field(),
            format!("connection {connection} is at {owner}, not at {provider}"),
        ),
        Some(_) => {}
    }
}

fn combo_config(combo: &str, config: &ComboConfig, found: &mut Violations) {
    let counts = [
        ("maxRetries", config.max_retries, &RETRIES),
        ("maxSetRetries", config.max_set_retries, &RETRIES),
        (
            "maxGlobalAttempts",
            config.max_global_attempts,
            &GLOBAL_ATTEMPTS,
        ),
    ];
    for (member, value, bounds) in counts {
        if let Some(value) = value {
            found.within(format!("{combo}.config.{member}"), value, bounds);
        }
    }
    let delays = [
        ("retryDelayMs", config.retry_delay_ms),
        ("setRetryDelayMs", config.set_retry_delay_ms),
    ];
    for (member, value) in delays {
        if let Some(value) = value {
            found.within(format!("{combo}.config.{member}"), value, &RETRY_DELAY_MS);
        }
    }
}

fn keys(keys: &[ApiKey], names: &Names<'_>, found: &mut Violations) {
    let mut ids = Unique::new();
    let mut hashes = Unique::new();
    for (index, key) in keys.iter().enumerate() {
        let path = format!("keys[{index}]");
        ids.check(&key.id, || format!("{path}.id"), found);
        match (&key.secret, &key.sha256) {
            (Some(source), None) => secret_source(&format!("{path}.secret"), source, found),
            (None, Some(hash)) => {
                let digits = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
                if hash.len() == SHA256_HEX_DIGITS && digits {
                    let hash = hash.to_ascii_lowercase();
                    hashes.check(hash, || format!("{path}.sha256"), found);
                } else {
                    found.push(format!("{path}.sha256"), "must be 64 hexadecimal digits");
                }
            }
            (Some(_), Some(_)) | (None, None) => {
                found.push(path.as_str(), "must have exactly one of secret and sha256");
            }
        }
        key_limits(&path, key, names, found);
    }
}

fn key_limits(path: &str, key: &ApiKey, names: &Names<'_>, found: &mut Violations) {
    let field = format!("{path}.allowedConnections");
    if found.at_most(
        field.as_str(),
        key.allowed_connections.len(),
        MAX_LIMITED_TO,
    ) {
        for (number, connection) in key.allowed_connections.iter().enumerate() {
            if !names.connections.contains_key(connection) {
                found.push(
                    format!("{field}[{number}]"),
                    format!("there is no connection {connection}"),
                );
            }
        }
    }
    let field = format!("{path}.allowedModels");
    if found.at_most(field.as_str(), key.allowed_models.len(), MAX_LIMITED_TO) {
        for (number, model) in key.allowed_models.iter().enumerate() {
            let known = names.combos.contains(model.as_str())
                || split_model(model)
                    .is_some_and(|(provider, _)| names.providers.contains(&provider));
            if !known {
                found.push(
                    format!("{field}[{number}]"),
                    "must be the name of a combo, or provider/model of a known provider",
                );
            }
        }
    }
}
