//! `GET /v1/models/health`: whether each model that a client may ask for can be had now (`sessions-and-streams.md` §5.1).
//!
//! It is what this data plane would decide by: its configuration, the hot state as it follows it, and its own failures. That
//! somebody else may be asking for the same accounts is not looked at, so `ok` means that nothing is known to be in the way.
//! Accounts are counted, never named: clients have no business with them.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tidegate_core::config::{ApiKey, Config, Protocol};
use tidegate_core::routing::{
    Availability, ModelAvailability, RequestFacts, TargetAvailability, resolve,
};
use tokio::time::timeout;

use crate::control_port::ControlPort;
use crate::identify;
use crate::models;
use crate::proxy::Shared;
use crate::refusal::Refusal;
use crate::reply::{JSON, ReplyBody};

/// Most models that are told of.
const MAX_MODELS: usize = 1_000;
/// Member of the query that names models, separated by commas; it may be repeated.
const IDS: &str = "ids";
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Answers one request.
pub(super) async fn answer<C: ControlPort>(
    shared: &Arc<Shared<C>>,
    request: &Request<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let snapshot = shared.configured().ok_or(Refusal::NotConfigured)?;
    let config = &snapshot.config;
    let key = identify::key(request.headers(), config, shared.limits.require_key)?;
    let wanted = wanted(request.uri());
    let offered = models::offered(config, key.as_deref());
    let mut names: Vec<String> = offered
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| wanted.as_ref().is_none_or(|wanted| wanted.contains(name)))
        .collect();
    // What a key may not ask for is not there for it.
    let known: BTreeSet<String> = names.iter().cloned().collect();
    let unknown = wanted
        .into_iter()
        .flatten()
        .filter(|it| !known.contains(it));
    let unknown: Vec<String> = unknown.collect();
    let total = names.len();
    names.truncate(MAX_MODELS);
    // It walks every account of every model: one of them at a time, between other things.
    let turn = timeout(shared.limits.look_time, shared.models_health.acquire()).await;
    let _turn = turn.map_err(|_elapsed| Refusal::ModelsHealthBusy)?;
    let observed_at = shared.control.now().iso();
    let mut data = Vec::with_capacity(names.len());
    for name in names {
        let facts = facts(config, &name, key.clone());
        let egress = shared.limits.egress.as_ref();
        let told = shared.control.availability(&facts, egress);
        data.push(entry(&name, told.as_ref(), &observed_at));
        tokio::task::yield_now().await;
    }
    let unknown = unknown.iter().take(MAX_MODELS);
    data.extend(unknown.map(|name| entry(name, None, &observed_at)));
    let told = json!({"object": "list", "data": data, "total": total});
    let mut response = Response::new(ReplyBody::whole(told.to_string()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CACHE_CONTROL, NO_STORE);
    Ok(response)
}

/// The models that are asked for; all of them when none is named.
fn wanted(uri: &Uri) -> Option<BTreeSet<String>> {
    let query = form_urlencoded::parse(uri.query()?.as_bytes());
    let named: BTreeSet<String> = query
        .filter(|(name, _)| name == IDS)
        .flat_map(|(_, ids)| {
            let ids = ids.split(',').map(|id| id.trim().to_owned());
            ids.filter(|id| !id.is_empty()).collect::<Vec<_>>()
        })
        .collect();
    (!named.is_empty()).then_some(named)
}

/// A request for a model that says nothing else, in the protocol that its first target speaks.
fn facts(config: &Config, model: &str, key: Option<Arc<ApiKey>>) -> RequestFacts {
    let protocol = resolve(config, model).and_then(|route| {
        let first = route.targets.first()?;
        Some(config.provider(&first.provider)?.provider.protocol)
    });
    RequestFacts {
        key,
        ..RequestFacts::new(model, protocol.unwrap_or(Protocol::Openai))
    }
}

fn entry(name: &str, told: Option<&ModelAvailability>, observed_at: &str) -> Value {
    let availability = told.map_or(Availability::Unknown, |it| it.availability);
    let mut entry = json!({
        "id": name,
        "state": availability.as_str(),
        "observed_at": observed_at,
    });
    if let Some(members) = entry.as_object_mut() {
        add_end(members, availability);
        let targets = told.map(|it| it.targets.iter().map(target).collect::<Vec<_>>());
        members.insert("targets".to_owned(), targets.unwrap_or_default().into());
    }
    entry
}

fn target(target: &TargetAvailability) -> Value {
    let mut told = json!({
        "provider": target.provider.as_str(),
        "model": target.model.as_str(),
        "state": target.availability.as_str(),
        "accounts": target.accounts,
        "available": target.available,
        "excluded": target.excluded,
    });
    if let Some(members) = told.as_object_mut() {
        add_end(members, target.availability);
    }
    told
}

/// In ms, where something cools and it is known until when.
fn add_end(members: &mut Map<String, Value>, availability: Availability) {
    if let Availability::Cooling {
        retry_after_ms: Some(ms),
    } = availability
    {
        members.insert("retry_after".to_owned(), ms.into());
    }
}
