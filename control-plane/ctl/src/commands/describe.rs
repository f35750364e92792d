//! `tidegatectl describe KIND NAME`: what was configured, how it stands, what happened to it.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_proto::admin::v1::{
    EventFilter, ExplainRequest, GetComboRequest, GetConnectionRequest, GetKeyRequest,
    GetProviderRequest,
};
use tidegate_proto::config::v1::Document;
use tidegate_wire::document;

use crate::cli::{DescribeArguments, Output, ResourceKind};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, print_value};

use super::explain;
use super::get::history;
use super::get::state::{self, Of};
use super::watch::as_value;

/// Events that are shown.
const EVENTS: u32 = 10;
/// Connections of a key that are looked at one by one.
const MAX_CONNECTIONS: usize = 100;

/// What is told, in the order in which it was put.
#[derive(Default)]
struct Told(Map<String, Value>);

impl Told {
    fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    fn list(&mut self, name: &str, listing: Listing) {
        self.put(name, listing.values());
    }

    /// The one thing that a document holds, as people write it.
    fn configured<T: Serialize>(
        &mut self,
        stored: Document,
        list: impl FnOnce(&tidegate_core::config::Document) -> &[T],
    ) -> Result<(), Failure> {
        let document = document::from_proto(stored).map_err(|error| {
            Failure::Output(format!("the configuration is not understood: {error}"))
        })?;
        let written = list(&document).first().map(serde_json::to_value);
        let written = written
            .transpose()
            .map_err(|error| Failure::Output(error.to_string()))?;
        self.put("configured", written.unwrap_or_default());
        Ok(())
    }
}

/// Tells everything about one thing.
pub(crate) async fn run(
    client: &mut Client,
    arguments: DescribeArguments,
    output: Output,
) -> Result<(), Failure> {
    let DescribeArguments { kind, name } = arguments;
    let mut told = Told::default();
    match kind {
        ResourceKind::Provider => of_provider(client, name, &mut told).await?,
        ResourceKind::Connection => of_connection(client, name, &mut told).await?,
        ResourceKind::Combo => of_combo(client, name, &mut told).await?,
        ResourceKind::Key => of_key(client, name, &mut told).await?,
    }
    // It has no columns, so that people read it best as YAML.
    let output = if output.is_for_people() {
        Output::Yaml
    } else {
        output
    };
    print_value(&Value::Object(told.0), output)
}

async fn of_provider(client: &mut Client, id: String, told: &mut Told) -> Result<(), Failure> {
    let (service, request) = client.call(GetProviderRequest { id: id.clone() });
    let found = service.get_provider(request).await?.into_inner();
    let stored = Document {
        providers: Vec::from_iter(found.provider),
        ..Document::default()
    };
    told.configured(stored, |document| document.providers.as_slice())?;
    let breaker = Vec::from_iter(found.breaker);
    told.list("breaker", state::breaker_rows(&breaker, Output::Json));
    let of = Of::provider(Some(&id));
    let connections = state::connections(client, of, Output::Json).await?;
    told.list("connections", connections);
    let cooldowns = state::cooldowns(client, of, Output::Json).await?;
    told.list("cooldowns", cooldowns);
    let lockouts = state::lockouts(client, of, Output::Json).await?;
    told.list("lockouts", lockouts);
    let filter = EventFilter {
        provider: id,
        ..EventFilter::default()
    };
    told.put("events", events(client, filter).await?);
    Ok(())
}

async fn of_connection(client: &mut Client, id: String, told: &mut Told) -> Result<(), Failure> {
    let (service, request) = client.call(GetConnectionRequest { id: id.clone() });
    let found = service.get_connection(request).await?.into_inner();
    let provider = found.connection.as_ref().map(|it| it.provider.clone());
    let stored = Document {
        connections: Vec::from_iter(found.connection),
        ..Document::default()
    };
    told.configured(stored, |document| document.connections.as_slice())?;
    let status = Vec::from_iter(found.status);
    told.list("status", state::connection_rows(&status, Output::Json));
    let of = Of::connection(&id);
    told.list(
        "cooldowns",
        state::cooldowns(client, of, Output::Json).await?,
    );
    told.list("lockouts", state::lockouts(client, of, Output::Json).await?);
    told.list("leases", state::leases(client, of, Output::Json).await?);
    told.list("permits", state::permits(client, of, Output::Json).await?);
    let filter = EventFilter {
        provider: provider.unwrap_or_default(),
        connection: id,
        ..EventFilter::default()
    };
    told.put("events", events(client, filter).await?);
    Ok(())
}

/// What a request for it would find: each target, whether it would be used, and else why not and until when.
async fn of_combo(client: &mut Client, name: String, told: &mut Told) -> Result<(), Failure> {
    let asked = GetComboRequest { name: name.clone() };
    let (service, request) = client.call(asked);
    let found = service.get_combo(request).await?.into_inner();
    let stored = Document {
        combos: Vec::from_iter(found.combo),
        ..Document::default()
    };
    told.configured(stored, |document| document.combos.as_slice())?;
    let (service, request) = client.call(ExplainRequest {
        model: name,
        ..ExplainRequest::default()
    });
    let explained = service.explain(request).await?.into_inner();
    told.put("now", explain::as_value(&explained));
    Ok(())
}

/// What it may do, what it has to itself, and how the connections stand that it is limited to.
async fn of_key(client: &mut Client, id: String, told: &mut Told) -> Result<(), Failure> {
    let (service, request) = client.call(GetKeyRequest { id });
    let found = service.get_key(request).await?.into_inner();
    let connections = found.key.as_ref().map(|it| it.allowed_connections.clone());
    let stored = Document {
        keys: Vec::from_iter(found.key),
        ..Document::default()
    };
    told.configured(stored, |document| document.keys.as_slice())?;
    told.put("leasesHeld", json!(found.leases.len()));
    told.list("leases", state::lease_rows(&found.leases, Output::Json));
    let connections = connections.unwrap_or_default();
    let mut statuses = Vec::new();
    for id in connections.iter().take(MAX_CONNECTIONS) {
        let (service, request) = client.call(GetConnectionRequest { id: id.clone() });
        statuses.extend(service.get_connection(request).await?.into_inner().status);
    }
    let usable = statuses.iter().filter(|it| it.state == "active").count();
    if !connections.is_empty() {
        told.put("connectionsAllowed", json!(connections.len()));
        told.put("connectionsActive", json!(usable));
        told.list(
            "connections",
            state::connection_rows(&statuses, Output::Json),
        );
    }
    Ok(())
}

async fn events(client: &mut Client, filter: EventFilter) -> Result<Value, Failure> {
    let events = history::read(client, &filter, 0, EVENTS).await?;
    Ok(events.iter().map(as_value).collect())
}
