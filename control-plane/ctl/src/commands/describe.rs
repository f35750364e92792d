//! `tidegatectl describe KIND NAME`: what was configured, how it stands, what happened to it.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_core::config::Document;
use tidegate_proto::admin::v1::EventFilter;
use tidegate_wire::document;

use crate::cli::{DescribeArguments, Output, ResourceKind};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, print_value};

use super::get::{self, history, state};
use super::watch::as_value;

/// Events that are shown.
const EVENTS: u32 = 10;

/// Tells everything about one thing.
pub(crate) async fn run(
    client: &mut Client,
    arguments: DescribeArguments,
    output: Output,
) -> Result<(), Failure> {
    let DescribeArguments { kind, name } = arguments;
    let stored = get::document(client).await?;
    let document = document::from_proto(stored).map_err(|error| {
        Failure::Output(format!("the configuration is not understood: {error}"))
    })?;
    let mut told = Map::new();
    told.insert("configured".to_owned(), configured(&document, kind, &name)?);
    match kind {
        ResourceKind::Provider => of_provider(client, &name, &mut told).await?,
        ResourceKind::Connection => of_connection(client, &document, &name, &mut told).await?,
        ResourceKind::Combo | ResourceKind::Key => {}
    }
    // It has no columns, so that people read it best as YAML.
    let output = if output.is_for_people() {
        Output::Yaml
    } else {
        output
    };
    print_value(&Value::Object(told), output)
}

fn configured(document: &Document, kind: ResourceKind, name: &str) -> Result<Value, Failure> {
    let found = match kind {
        ResourceKind::Provider => find(&document.providers, |it| it.id.as_str() == name),
        ResourceKind::Connection => find(&document.connections, |it| it.id.as_str() == name),
        ResourceKind::Combo => find(&document.combos, |it| it.name.as_str() == name),
        ResourceKind::Key => find(&document.keys, |it| it.id.as_str() == name),
    };
    let kind = match kind {
        ResourceKind::Provider => "provider",
        ResourceKind::Connection => "connection",
        ResourceKind::Combo => "combo",
        ResourceKind::Key => "key",
    };
    found?.ok_or_else(|| Failure::Input(format!("there is no {kind} {name}")))
}

fn find<T: Serialize>(all: &[T], is_it: impl Fn(&&T) -> bool) -> Result<Option<Value>, Failure> {
    let found = all.iter().find(is_it).map(serde_json::to_value);
    found
        .transpose()
        .map_err(|error| Failure::Output(error.to_string()))
}

async fn of_provider(
    client: &mut Client,
    name: &str,
    told: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let breaker = state::breakers(client, Output::Json).await?;
    told.insert(
        "breaker".to_owned(),
        breaker.only("provider", name)?.values(),
    );
    let of = Some(name);
    let connections = state::connections(client, of, Output::Json).await?;
    told.insert("connections".to_owned(), connections.values());
    let cooldowns = state::cooldowns(client, of, Output::Json).await?;
    told.insert("cooldowns".to_owned(), cooldowns.values());
    let lockouts = state::lockouts(client, of, Output::Json).await?;
    told.insert("lockouts".to_owned(), lockouts.values());
    let filter = EventFilter {
        provider: name.to_owned(),
        ..EventFilter::default()
    };
    told.insert("events".to_owned(), events(client, filter).await?);
    Ok(())
}

async fn of_connection(
    client: &mut Client,
    document: &Document,
    name: &str,
    told: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let configured = document
        .connections
        .iter()
        .find(|it| it.id.as_str() == name);
    let provider = configured.map(|it| it.provider.to_string());
    let of = provider.as_deref();
    let mine = |listing: Listing, column| match listing.only(column, name) {
        Ok(listing) => listing.values(),
        // Nothing of the kind.
        Err(_) => json!([]),
    };
    let status = state::connections(client, of, Output::Json).await?;
    told.insert("status".to_owned(), mine(status, "id"));
    let cooldowns = state::cooldowns(client, of, Output::Json).await?;
    told.insert("cooldowns".to_owned(), mine(cooldowns, "connection"));
    let lockouts = state::lockouts(client, of, Output::Json).await?;
    told.insert("lockouts".to_owned(), mine(lockouts, "connection"));
    let leases = state::leases(client, of, Output::Json).await?;
    told.insert("leases".to_owned(), mine(leases, "connection"));
    let permits = state::permits(client, of, Output::Json).await?;
    told.insert("permits".to_owned(), mine(permits, "connection"));
    let filter = EventFilter {
        provider: of.unwrap_or_default().to_owned(),
        connection: name.to_owned(),
        ..EventFilter::default()
    };
    told.insert("events".to_owned(), events(client, filter).await?);
    Ok(())
}

async fn events(client: &mut Client, filter: EventFilter) -> Result<Value, Failure> {
    let events = history::read(client, &filter, 0, EVENTS).await?;
    Ok(events.iter().map(as_value).collect())
}
