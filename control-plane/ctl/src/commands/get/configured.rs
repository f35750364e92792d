//! Lists of what is configured.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{
    GetComboRequest, GetKeyRequest, GetProviderRequest, ListCombosRequest, ListKeysRequest,
    ListProvidersRequest,
};
use tidegate_proto::config::v1::{ApiKey, Combo, Provider, Step};

use crate::cli::Output;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Column, Listing};
use crate::pages::read_all;

const PROVIDERS: &[Column<Provider>] = &[
    Column::new("id", |it, _| json!(it.id)),
    Column::new("protocol", |it, _| json!(it.protocol)),
    Column::new("class", |it, _| json!(it.class)),
    Column::new("base url", |it, _| json!(it.base_url)),
    Column::new("models", |it, _| json!(it.models)),
];

/// Providers, or the one that is named.
pub(crate) async fn providers(
    client: &mut Client,
    name: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let found = match name {
        Some(id) => {
            let (service, request) = client.call(GetProviderRequest { id: id.to_owned() });
            let found = service.get_provider(request).await?.into_inner();
            Vec::from_iter(found.provider)
        }
        None => read_all!(client, list_providers, providers, ListProvidersRequest {})?,
    };
    Ok(Listing::of(&found, PROVIDERS, output))
}

const COMBOS: &[Column<Combo>] = &[
    Column::new("name", |it, _| json!(it.name)),
    Column::new("strategy", |it, _| json!(it.strategy)),
    Column::new("steps", |it, _| it.steps.iter().map(step).collect()),
];

/// Combos, or the one that is named.
pub(crate) async fn combos(
    client: &mut Client,
    name: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let found = match name {
        Some(name) => {
            let name = name.to_owned();
            let (service, request) = client.call(GetComboRequest { name });
            let found = service.get_combo(request).await?.into_inner();
            Vec::from_iter(found.combo)
        }
        None => read_all!(client, list_combos, combos, ListCombosRequest {})?,
    };
    Ok(Listing::of(&found, COMBOS, output))
}

fn step(step: &Step) -> Value {
    json!(match (step.combo.as_str(), step.connection.as_str()) {
        ("", "") => step.model.clone(),
        ("", connection) => format!("{}@{connection}", step.model),
        (combo, _) => format!("combo/{combo}"),
    })
}

const KEYS: &[Column<ApiKey>] = &[
    Column::new("id", |it, _| json!(it.id)),
    Column::new("allowed connections", |it, _| json!(it.allowed_connections)),
    Column::new("allowed models", |it, _| json!(it.allowed_models)),
    Column::new("scopes", |it, _| json!(it.scopes)),
];

/// Clients' keys without the keys, or the one that is named.
pub(crate) async fn keys(
    client: &mut Client,
    name: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let found = match name {
        Some(id) => {
            let (service, request) = client.call(GetKeyRequest { id: id.to_owned() });
            let found = service.get_key(request).await?.into_inner();
            Vec::from_iter(found.key)
        }
        None => read_all!(client, list_keys, keys, ListKeysRequest {})?,
    };
    Ok(Listing::of(&found, KEYS, output))
}
