//! The configuration document. Secrets are never part of it.

mod combo;
mod pool;

use tidegate_core::config::{
    ApiKey, Connection, Document, KeyScope, OauthClient, Provider, QuotaEndpoint, SecretSource,
};
use tidegate_core::ids::{ConnectionId, KeyId, ModelId, ProviderId};
use tidegate_core::settings::WrittenSettings;
use tidegate_proto::config::v1 as proto;

use crate::routing::serde_word;
use crate::{WireError, name};

/// A document as a message. Where a key is read from is left out; its hash must have been filled in.
#[must_use]
pub fn to_proto(document: &Document) -> proto::Document {
    proto::Document {
        providers: document.providers.iter().map(provider_to_proto).collect(),
        connections: document
            .connections
            .iter()
            .map(connection_to_proto)
            .collect(),
        combos: document.combos.iter().map(combo::to_proto).collect(),
        keys: document.keys.iter().map(key_to_proto).collect(),
        settings_json: serde_json::to_string(&document.settings).unwrap_or_default(),
        model_mappings: document
            .model_mappings
            .iter()
            .map(combo::mapping_to_proto)
            .collect(),
        quota_pools: document.quota_pools.iter().map(pool::to_proto).collect(),
        models: document.models.iter().map(pool::row_to_proto).collect(),
    }
}

/// A document from a message. Members are checked for form here, for sense by `Config::build`; settings may be
/// any object, since a newer control plane may send what is not known here.
///
/// # Errors
/// The first member that is not understood.
pub fn from_proto(document: proto::Document) -> Result<Document, WireError> {
    let settings = if document.settings_json.is_empty() {
        WrittenSettings::default()
    } else {
        serde_json::from_str(&document.settings_json)
            .map_err(|error| WireError::invalid("settings_json", error.to_string()))?
    };
    Ok(Document {
        providers: each(document.providers, provider_from_proto)?,
        connections: each(document.connections, connection_from_proto)?,
        combos: each(document.combos, combo::from_proto)?,
        model_mappings: each(document.model_mappings, combo::mapping_from_proto)?,
        quota_pools: each(document.quota_pools, pool::from_proto)?,
        models: each(document.models, pool::row_from_proto)?,
        keys: each(document.keys, key_from_proto)?,
        settings,
    })
}

fn each<M, T>(
    messages: Vec<M>,
    convert: fn(usize, M) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| convert(index, message))
        .collect()
}

fn word<T: serde::de::DeserializeOwned>(field: String, text: &str) -> Result<T, WireError> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|error| WireError::invalid(field, error.to_string()))
}

fn optional_word<T: serde::de::DeserializeOwned>(
    field: String,
    text: &str,
) -> Result<Option<T>, WireError> {
    if text.is_empty() {
        return Ok(None);
    }
    word(field, text).map(Some)
}

fn models(field: &str, models: Vec<String>) -> Result<Vec<ModelId>, WireError> {
    models
        .into_iter()
        .enumerate()
        .map(|(index, model)| name(format!("{field}[{index}]"), ModelId::new(model)))
        .collect()
}

fn provider_to_proto(provider: &Provider) -> proto::Provider {
    proto::Provider {
        id: provider.id.to_string(),
        protocol: serde_word(&provider.protocol),
        base_url: provider.base_url.clone(),
        class: provider.class.as_ref().map(serde_word).unwrap_or_default(),
        models: provider.models.iter().map(ToString::to_string).collect(),
        per_model_quota: provider.per_model_quota,
        account_strategy: serde_word(&provider.account_strategy),
        oauth: provider.oauth.as_ref().map(oauth_to_proto),
        quota_endpoint_json: quota_endpoint_to_json(provider.quota_endpoint.as_ref()),
    }
}

fn provider_from_proto(index: usize, message: proto::Provider) -> Result<Provider, WireError> {
    let field = |member: &str| format!("providers[{index}].{member}");
    Ok(Provider {
        id: name(field("id"), ProviderId::new(&message.id))?,
        protocol: word(field("protocol"), &message.protocol)?,
        base_url: message.base_url,
        class: optional_word(field("class"), &message.class)?,
        models: models(&field("models"), message.models)?,
        per_model_quota: message.per_model_quota,
        account_strategy: optional_word(field("accountStrategy"), &message.account_strategy)?
            .unwrap_or_default(),
        oauth: message
            .oauth
            .map(|oauth| oauth_from_proto(index, oauth))
            .transpose()?,
        quota_endpoint: quota_endpoint_from_json(
            field("quotaEndpoint"),
            &message.quota_endpoint_json,
        )?,
    })
}

fn oauth_to_proto(client: &OauthClient) -> proto::OauthClient {
    proto::OauthClient {
        token_endpoint: client.token_endpoint.clone(),
        client_id: client.client_id.clone().unwrap_or_default(),
        client_authentication: serde_word(&client.client_authentication),
        scope: client.scope.clone().unwrap_or_default(),
    }
}

fn oauth_from_proto(index: usize, message: proto::OauthClient) -> Result<OauthClient, WireError> {
    let field = format!("providers[{index}].oauth.clientAuthentication");
    Ok(OauthClient {
        token_endpoint: message.token_endpoint,
        client_id: unless_empty(message.client_id),
        client_authentication: optional_word(field, &message.client_authentication)?
            .unwrap_or_default(),
        scope: unless_empty(message.scope),
    })
}

fn quota_endpoint_to_json(endpoint: Option<&QuotaEndpoint>) -> String {
    let json = endpoint.map(serde_json::to_string).transpose();
    json.unwrap_or_default().unwrap_or_default()
}

fn quota_endpoint_from_json(field: String, json: &str) -> Result<Option<QuotaEndpoint>, WireError> {
    if json.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(json)
        .map(Some)
        .map_err(|error| WireError::invalid(field, error.to_string()))
}

fn unless_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn source_to_proto(source: Option<&SecretSource>) -> String {
    match source {
        Some(SecretSource::Env(variable)) => format!("env:{variable}"),
        Some(SecretSource::File(path)) => format!("file:{path}"),
        None => String::new(),
    }
}

fn source_from_proto(field: String, text: &str) -> Result<Option<SecretSource>, WireError> {
    match text.split_once(':') {
        None if text.is_empty() => Ok(None),
        Some(("env", variable)) => Ok(Some(SecretSource::Env(variable.to_owned()))),
        Some(("file", path)) => Ok(Some(SecretSource::File(path.to_owned()))),
        Some(_) | None => Err(WireError::invalid(field, "must be env:NAME or file:PATH")),
    }
}

fn connection_to_proto(connection: &Connection) -> proto::Connection {
    proto::Connection {
        id: connection.id.to_string(),
        provider: connection.provider.to_string(),
        priority: Some(connection.priority),
        disabled: !connection.enabled,
        credential_source: source_to_proto(connection.credential.as_ref()),
        disable_cooling: connection.disable_cooling,
        max_concurrent: connection.max_concurrent,
        rate_limit_protection: connection.rate_limit_protection,
        per_model_quota: connection.per_model_quota,
        models: connection.models.iter().map(ToString::to_string).collect(),
        refresh_token_source: source_to_proto(connection.refresh_token.as_ref()),
        client_id: connection.client_id.clone().unwrap_or_default(),
        client_secret_source: source_to_proto(connection.client_secret.as_ref()),
        quota_endpoint_json: quota_endpoint_to_json(connection.quota_endpoint.as_ref()),
    }
}

fn connection_from_proto(
    index: usize,
    message: proto::Connection,
) -> Result<Connection, WireError> {
    let field = |member: &str| format!("connections[{index}].{member}");
    Ok(Connection {
        id: name(field("id"), ConnectionId::new(&message.id))?,
        provider: name(field("provider"), ProviderId::new(&message.provider))?,
        priority: message.priority.unwrap_or(100),
        enabled: !message.disabled,
        credential: source_from_proto(field("credential"), &message.credential_source)?,
        disable_cooling: message.disable_cooling,
        max_concurrent: message.max_concurrent,
        rate_limit_protection: message.rate_limit_protection,
        per_model_quota: message.per_model_quota,
        models: models(&field("models"), message.models)?,
        refresh_token: source_from_proto(field("refreshToken"), &message.refresh_token_source)?,
        client_id: unless_empty(message.client_id),
        client_secret: source_from_proto(field("clientSecret"), &message.client_secret_source)?,
        quota_endpoint: quota_endpoint_from_json(
            field("quotaEndpoint"),
            &message.quota_endpoint_json,
        )?,
    })
}

fn key_to_proto(key: &ApiKey) -> proto::ApiKey {
    proto::ApiKey {
        id: key.id.to_string(),
        sha256: key.sha256.clone().unwrap_or_default(),
        allowed_connections: key
            .allowed_connections
            .iter()
            .map(ToString::to_string)
            .collect(),
        allowed_models: key.allowed_models.clone(),
        scopes: key
            .scopes
            .iter()
            .map(|scope| scope.as_str().to_owned())
            .collect(),
    }
}

fn key_from_proto(index: usize, message: proto::ApiKey) -> Result<ApiKey, WireError> {
    let field = |member: &str| format!("keys[{index}].{member}");
    Ok(ApiKey {
        id: name(field("id"), KeyId::new(&message.id))?,
        secret: None,
        sha256: Some(message.sha256),
        allowed_connections: message
            .allowed_connections
            .iter()
            .enumerate()
            .map(|(place, connection)| {
                name(
                    field(&format!("allowedConnections[{place}]")),
                    ConnectionId::new(connection),
                )
            })
            .collect::<Result<Vec<_>, WireError>>()?,
        allowed_models: message.allowed_models,
        scopes: message
            .scopes
            .iter()
            .enumerate()
            .map(|(place, scope)| {
                KeyScope::of_word(scope).ok_or_else(|| {
                    WireError::invalid(field(&format!("scopes[{place}]")), "unknown scope")
                })
            })
            .collect::<Result<Vec<_>, WireError>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{
        "providers": [{"id": "openai", "protocol": "openai", "baseUrl": "https://example.test/v1",
            "class": "oauth", "models": ["gpt-4o"], "perModelQuota": true,
            "oauth": {"tokenEndpoint": "https://id.test/token", "clientId": "app",
                "clientAuthentication": "client_secret_post", "scope": "chat"},
            "quotaEndpoint": {"url": "https://example.test/usage", "authentication": "bearer",
                "headers": {"x-beta": "1"}, "resetFormat": "seconds-from-now", "limitReached": "/full",
                "windows": {"weeklyByModel": {"gpt-4o": {"usedPercent": "/a", "resetsAt": "/b"}}}}}],
        "connections": [{"id": "main", "provider": "openai", "priority": 3, "enabled": false,
            "credential": {"env": "KEY"}, "disableCooling": true, "maxConcurrent": 2, "models": ["gpt-4o"],
            "perModelQuota": false, "rateLimitProtection": true,
            "refreshToken": {"file": "token"}, "clientId": "own", "clientSecret": {"env": "SECRET"},
            "quotaEndpoint": {"url": "http://127.0.0.1:1/usage", "limitReached": "/full"}}],
        "combos": [{"name": "smart", "strategy": "priority", "config": {"maxRetries": 0},
            "steps": ["openai/gpt-4o", "other", {"model": "openai/gpt-4o", "connection": "main"},
                {"model": "other"},
                {"model": "openai/*", "allowedConnections": ["main"], "weight": 12.5, "id": "a",
                    "label": "b", "tags": ["c"], "prompt": "d", "fallbackOnlyOnQuotaExhaustion": true},
                {"combo": "other", "weight": 3, "id": "e", "label": "f"}, {"combo": "other"}]}],
        "modelMappings": [{"pattern": "gpt-*", "combo": "smart"}],
        "quotaPools": [{"group": "Team A", "provider": "openai", "models": ["gpt-4o"],
            "connections": [{"connection": "main", "weight": 2.5}, {"connection": "other"}]}],
        "models": [{"model": "openai/gpt-4o", "inputPrice": 2.5, "tier": "pro"}, {"model": "openai/x"}],
        "keys": [{"id": "team", "sha256": "ab", "allowedConnections": ["main"],
            "allowedModels": ["smart"]}],
        "settings": {"modelLockout": {"enabled": true}}
    }"#;

    #[test]
    fn a_document_survives_the_wire() {
        let document: Document = serde_json::from_str(DOCUMENT).unwrap();
        assert_eq!(from_proto(to_proto(&document)), Ok(document));
    }

    #[test]
    fn members_that_are_not_understood_are_named() {
        let refused = |change: fn(&mut proto::Document)| {
            let mut message = to_proto(&serde_json::from_str(DOCUMENT).unwrap());
            change(&mut message);
            from_proto(message).unwrap_err().field().to_owned()
        };
        assert_eq!(
            refused(|message| message.providers[0].protocol = "smtp".to_owned()),
            "providers[0].protocol"
        );
        assert_eq!(
            refused(|message| message.connections[0].credential_source = "vault:x".to_owned()),
            "connections[0].credential"
        );
        assert_eq!(
            refused(|message| message.connections[0].refresh_token_source = "x".to_owned()),
            "connections[0].refreshToken"
        );
        assert_eq!(
            refused(|message| message.connections[0].client_secret_source = "x".to_owned()),
            "connections[0].clientSecret"
        );
        assert_eq!(
            refused(|message| {
                let oauth = message.providers[0].oauth.as_mut().unwrap();
                oauth.client_authentication = "magic".to_owned();
            }),
            "providers[0].oauth.clientAuthentication"
        );
        assert_eq!(
            refused(|message| message.providers[0].quota_endpoint_json = "{\"x\":1}".to_owned()),
            "providers[0].quotaEndpoint"
        );
        assert_eq!(
            refused(|message| message.connections[0].quota_endpoint_json = "3".to_owned()),
            "connections[0].quotaEndpoint"
        );
        assert_eq!(
            refused(|message| message.combos[0].strategy = "magic".to_owned()),
            "combos[0].strategy"
        );
        assert_eq!(
            refused(|message| message.combos[0].config_json = "{\"x\":1}".to_owned()),
            "combos[0].config"
        );
        assert_eq!(
            refused(|message| message.combos[0].steps[2].connection = "a b".to_owned()),
            "combos[0].steps[2].connection"
        );
        assert_eq!(
            refused(|message| message.combos[0].steps[4].weight = f64::NAN),
            "combos[0].steps[4].weight"
        );
        assert_eq!(
            refused(|message| {
                message.combos[0].steps[4].allowed_connections = vec![String::new()];
            }),
            "combos[0].steps[4].allowedConnections[0]"
        );
        assert_eq!(
            refused(|message| message.combos[0].steps[5].combo = "a b".to_owned()),
            "combos[0].steps[5].combo"
        );
        assert_eq!(
            refused(|message| message.combos[0].steps[5].model = "openai/gpt-4o".to_owned()),
            "combos[0].steps[5]"
        );
        assert_eq!(
            refused(|message| message.model_mappings[0].combo = String::new()),
            "modelMappings[0].combo"
        );
        assert_eq!(
            refused(|message| message.quota_pools[0].provider = "A".to_owned()),
            "quotaPools[0].provider"
        );
        assert_eq!(
            refused(|message| message.quota_pools[0].models.push(String::new())),
            "quotaPools[0].models[1]"
        );
        assert_eq!(
            refused(|message| message.quota_pools[0].connections[1].weight = f64::INFINITY),
            "quotaPools[0].connections[1].weight"
        );
        assert_eq!(
            refused(|message| message.models[0].info_json = "{\"x\":1}".to_owned()),
            "models[0]"
        );
        assert_eq!(
            refused(|message| message.keys[0].allowed_connections.push(String::new())),
            "keys[0].allowedConnections[1]"
        );
        assert_eq!(
            refused(|message| message.settings_json = "3".to_owned()),
            "settings_json"
        );
    }
}
