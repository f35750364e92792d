//! `GET /v1/models`: what a client may ask for, from the snapshot.

use http::Response;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tidegate_core::config::{ApiKey, Config};

use crate::endpoint::Format;
use crate::reply::{JSON, ReplyBody};

/// When models were made is not known; clients want to see a moment.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// The combos and models the key may ask for, each with who owns it.
pub(crate) fn offered<'a>(config: &'a Config, key: Option<&ApiKey>) -> Vec<(String, &'a str)> {
    let allowed = |name: &str| {
        key.is_none_or(|key| {
            key.allowed_models.is_empty() || key.allowed_models.iter().any(|model| model == name)
        })
    };
    let combos = config
        .combos
        .iter()
        .filter(|(_, entry)| !entry.hidden)
        .map(|(name, _)| (name.as_str().to_owned(), "combo"));
    let models = config.providers.values().flat_map(|entry| {
        let provider = entry.provider.id.as_str();
        let models = entry.provider.models.iter();
        models.map(move |model| (format!("{provider}/{model}"), provider))
    });
    combos
        .chain(models)
        .filter(|(name, _)| allowed(name))
        .collect()
}

/// The same in the client's format.
pub(crate) fn list(format: Format, config: &Config, key: Option<&ApiKey>) -> Response<ReplyBody> {
    let named = offered(config, key);
    let body = match format {
        Format::Openai => openai(&named),
        Format::Anthropic => anthropic(&named),
    };
    let mut response = Response::new(ReplyBody::whole(body.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn openai(named: &[(String, &str)]) -> Value {
    let data: Vec<Value> = named
        .iter()
        .map(|(id, owner)| json!({"id": id, "object": "model", "created": 0, "owned_by": owner}))
        .collect();
    json!({"object": "list", "data": data})
}

fn anthropic(named: &[(String, &str)]) -> Value {
    let data: Vec<Value> = named
        .iter()
        .map(
            |(id, _)| json!({"type": "model", "id": id, "display_name": id, "created_at": CREATED}),
        )
        .collect();
    json!({
        "data": data,
        "has_more": false,
        "first_id": named.first().map(|(id, _)| id),
        "last_id": named.last().map(|(id, _)| id),
    })
}
