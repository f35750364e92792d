//! `tidegatectl get KIND [NAME]`.

pub(crate) mod history;
pub(crate) mod state;

use serde_json::json;
use tidegate_proto::admin::v1::{GetConfigurationRequest, GetConfigurationResponse};
use tidegate_proto::config::v1::Document;

use crate::cli::{GetArguments, Kind, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::Listing;

/// Lists one kind of thing.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &GetArguments,
    output: Output,
) -> Result<(), Failure> {
    let provider = arguments.provider.as_deref();
    let (listing, named) = match arguments.kind {
        Kind::Providers => (providers(&document(client).await?), "id"),
        Kind::Combos => (combos(&document(client).await?), "name"),
        Kind::Keys => (keys(&document(client).await?), "id"),
        Kind::Connections => (state::connections(client, provider, output).await?, "id"),
        Kind::Breakers => (state::breakers(client, output).await?, "provider"),
        Kind::Cooldowns => (
            state::cooldowns(client, provider, output).await?,
            "connection",
        ),
        Kind::Lockouts => (
            state::lockouts(client, provider, output).await?,
            "connection",
        ),
        Kind::Leases => (state::leases(client, provider, output).await?, "connection"),
        Kind::Permits => (
            state::permits(client, provider, output).await?,
            "connection",
        ),
        Kind::Transitions => (history::transitions(client, arguments).await?, "connection"),
        // The control plane picks those of the connection.
        Kind::Events => return history::events(client, arguments).await?.print(output),
    };
    match &arguments.name {
        Some(name) => listing.only(named, name)?.print(output),
        None => listing.print(output),
    }
}

/// The configuration in force.
pub(crate) async fn document(client: &mut Client) -> Result<Document, Failure> {
    let (service, request) = client.call(GetConfigurationRequest {});
    let answer: GetConfigurationResponse = service.get_configuration(request).await?.into_inner();
    Ok(answer.document.unwrap_or_default())
}

fn providers(document: &Document) -> Listing {
    let mut listing = Listing::new(&["id", "protocol", "class", "base url", "models"]);
    for provider in &document.providers {
        listing.push(vec![
            json!(provider.id),
            json!(provider.protocol),
            json!(provider.class),
            json!(provider.base_url),
            json!(provider.models),
        ]);
    }
    listing
}

fn combos(document: &Document) -> Listing {
    let mut listing = Listing::new(&["name", "strategy", "steps"]);
    for combo in &document.combos {
        let steps: Vec<String> = combo
            .steps
            .iter()
            .map(
                |step| match (step.combo.as_str(), step.connection.as_str()) {
                    ("", "") => step.model.clone(),
                    ("", connection) => format!("{}@{connection}", step.model),
                    (combo, _) => format!("combo/{combo}"),
                },
            )
            .collect();
        listing.push(vec![json!(combo.name), json!(combo.strategy), json!(steps)]);
    }
    listing
}

fn keys(document: &Document) -> Listing {
    let mut listing = Listing::new(&["id", "allowed connections", "allowed models", "scopes"]);
    for key in &document.keys {
        listing.push(vec![
            json!(key.id),
            json!(key.allowed_connections),
            json!(key.allowed_models),
            json!(key.scopes),
        ]);
    }
    listing
}
