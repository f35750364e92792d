//! What makes a document a good one. Everything is checked and told at once, each with the path of the member
//! that is wrong. Names are valid by their types already.

mod combo_config;
mod combos;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::permit::MAX_PERMITS;

use crate::catalogue::{MAX_MODELS, ModelRow};

use super::mapping::MAX_PATTERN_BYTES;
use super::names::Names;
use super::{
    ApiKey, Connection, Document, MAX_ENTRIES, MAX_LIMITED_TO, MAX_MAPPINGS, MAX_PROVIDER_MODELS,
    ModelMapping, Provider, SecretSource, Violation, Violations, base_url, oauth, pool,
    split_model,
};

pub(crate) use combo_config::check_alone as check_combo_config;
pub(super) use combos::combos;

const MAX_CONCURRENT: RangeInclusive<u32> = 0..=MAX_PERMITS;
const MAX_VARIABLE_BYTES: usize = 256;
const MAX_PATH_BYTES: usize = 4_096;
const SHA256_HEX_DIGITS: usize = 64;

/// Everything wrong with the document but for its settings and combos.
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
    mappings(&document.model_mappings, &names, &mut found);
    models(&document.models, &names, &mut found);
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
        if let Some(endpoint) = &provider.quota_endpoint {
            endpoint.check(&format!("{path}.quotaEndpoint"), found);
        }
    }
}

fn connections(connections: &[Connection], names: &Names<'_>, found: &mut Violations) {
    let mut ids = Unique::new();
    for (index, connection) in connections.iter().enumerate() {
        let path = format!("connections[{index}]");
        ids.check(&connection.id, || format!("{path}.id"), found);
        if !names.providers.contains_key(connection.provider.as_str()) {
            found.push(
                format!("{path}.provider"),
                format!("there is no provider {}", connection.provider),
            );
        }
        if let Some(source) = &connection.credential {
            secret_source(&format!("{path}.credential"), source, found);
        }
        if let Some(cap) = connection.max_concurrent {
            found.within(format!("{path}.maxConcurrent"), cap, &MAX_CONCURRENT);
        }
        found.at_most(
            format!("{path}.models"),
            connection.models.len(),
            MAX_LIMITED_TO,
        );
        oauth_members(&path, connection, names, found);
        if let Some(endpoint) = &connection.quota_endpoint {
            endpoint.check(&format!("{path}.quotaEndpoint"), found);
        }
    }
}

/// Members that are of use at a provider with a token endpoint only.
fn oauth_members(path: &str, connection: &Connection, names: &Names<'_>, found: &mut Violations) {
    let sources = [
        ("refreshToken", &connection.refresh_token),
        ("clientSecret", &connection.client_secret),
    ];
    let provider = names.providers.get(connection.provider.as_str());
    let client = provider.and_then(|provider| provider.oauth.as_ref());
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

/// Everything wrong with each quota pool, in order.
pub(super) fn pools(document: &Document) -> Vec<Violations> {
    pool::check(&document.quota_pools, &Names::of(document))
}

fn models(rows: &[ModelRow], names: &Names<'_>, found: &mut Violations) {
    if !found.at_most("models", rows.len(), MAX_MODELS) {
        return;
    }
    let mut taken = BTreeSet::new();
    for (index, row) in rows.iter().enumerate() {
        let path = format!("models[{index}]");
        let subject = row.subject();
        match &subject {
            Some((provider, _)) if names.providers.contains_key(provider.as_str()) => {}
            Some(_) | None => {
                let message = "must be provider/model of a known provider";
                found.push(format!("{path}.model"), message);
            }
        }
        if subject.is_some() && !taken.insert(subject) {
            found.push(format!("{path}.model"), "has a row already");
        }
        row.check(&path, found);
    }
}

fn mappings(mappings: &[ModelMapping], names: &Names<'_>, found: &mut Violations) {
    if !found.at_most("modelMappings", mappings.len(), MAX_MAPPINGS) {
        return;
    }
    for (index, mapping) in mappings.iter().enumerate() {
        let path = format!("modelMappings[{index}]");
        let length = mapping.pattern.len();
        if !(1..=MAX_PATTERN_BYTES).contains(&length) {
            let message = format!("must have 1 to {MAX_PATTERN_BYTES} bytes, has {length}");
            found.push(format!("{path}.pattern"), message);
        }
        if !names.is_combo(mapping.combo.as_str()) {
            let message = format!("there is no combo {}", mapping.combo);
            found.push(format!("{path}.combo"), message);
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
    let field = format!("{path}.scopes");
    let mut scopes = Unique::new();
    for (number, scope) in key.scopes.iter().enumerate() {
        scopes.check(scope, || format!("{field}[{number}]"), found);
    }
    if key.may_lease() && key.allowed_connections.is_empty() {
        found.push(
            format!("{path}.allowedConnections"),
            "must name the connections that a key with the scope lease:exclusive may lease",
        );
    }
    let field = format!("{path}.allowedModels");
    if found.at_most(field.as_str(), key.allowed_models.len(), MAX_LIMITED_TO) {
        for (number, model) in key.allowed_models.iter().enumerate() {
            let known = names.is_combo(model)
                || split_model(model)
                    .is_some_and(|(provider, _)| names.providers.contains_key(provider.as_str()));
            if !known {
                found.push(
                    format!("{field}[{number}]"),
                    "must be the name of a combo, or provider/model of a known provider",
                );
            }
        }
    }
}
