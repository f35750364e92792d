//! `tidegatectl get KIND`.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{
    BreakerStatus, EgressLock, GetConfigurationRequest, GetConfigurationResponse,
    ListBreakersRequest, ListConnectionsRequest, ListLockoutsRequest, ListTransitionsRequest,
    TokenStatus,
};
use tidegate_proto::config::v1::Document;

use crate::cli::{GetArguments, Kind, Output};
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment_value, remaining};

/// Lists one kind of thing.
pub(crate) async fn run(
    client: &mut Client,
    arguments: &GetArguments,
    output: Output,
) -> Result<(), Failure> {
    let listing = match arguments.kind {
        Kind::Providers => providers(&document(client).await?),
        Kind::Combos => combos(&document(client).await?),
        Kind::Keys => keys(&document(client).await?),
        Kind::Connections => connections(client, output).await?,
        Kind::Breakers => breakers(client, output).await?,
        Kind::Lockouts => lockouts(client, output).await?,
        Kind::Transitions => transitions(client, arguments).await?,
    };
    listing.print(output)
}

async fn document(client: &mut Client) -> Result<Document, Failure> {
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

/// A remaining time: words for people, ms for programs.
fn time_left(ms: Option<u64>, output: Output) -> Value {
    match output {
        Output::Table => json!(remaining(ms)),
        Output::Json | Output::Yaml => json!(ms),
    }
}

async fn connections(client: &mut Client, output: Output) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListConnectionsRequest {});
    let answer = service.list_connections(request).await?.into_inner();
    let mut listing = Listing::new(&[
        "id",
        "provider",
        "priority",
        "state",
        "terminal",
        "cooldown",
        "until",
        "effective until",
        "gate",
        "level",
        "locked models",
        "last error",
        "reason",
        "last error at",
        "rule",
        "upstream said",
        "credential",
        "token expires",
        "refresh retries",
        "next refresh",
    ]);
    for connection in answer.connections {
        let token = connection.token.as_ref();
        listing.push(vec![
            json!(connection.id),
            json!(connection.provider),
            json!(connection.priority),
            json!(connection.state),
            json!(connection.terminal),
            time_left(connection.cooldown_remaining_ms, output),
            moment_value(connection.cooldown_until_unix_ms),
            moment_value(connection.effective_until_unix_ms),
            time_left(connection.gate_remaining_ms, output),
            json!(connection.backoff_level),
            json!(connection.locked_models),
            json!(connection.last_error_status),
            json!(connection.last_error_reason),
            moment_value(connection.last_error_unix_ms),
            json!(connection.rule),
            json!(connection.original_status),
            json!(connection.credential_version),
            moment_value(token.and_then(|token| token.expires_unix_ms)),
            json!(token.map(|token| token.retries)),
            next_refresh(token),
        ]);
    }
    Ok(listing)
}

/// When the next refresh may be tried, or a word: `now`, or `inactive` when none is allowed any more.
fn next_refresh(token: Option<&TokenStatus>) -> Value {
    match token {
        Some(token) if token.inactive => json!("inactive"),
        Some(token) if token.next_attempt_unix_ms == Some(0) => json!("now"),
        Some(token) => moment_value(token.next_attempt_unix_ms),
        None => Value::Null,
    }
}

async fn breakers(client: &mut Client, output: Output) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListBreakersRequest {});
    let answer = service.list_breakers(request).await?.into_inner();
    let mut listing = Listing::new(&[
        "provider",
        "state",
        "failures",
        "opens at",
        "retry after",
        "cycles",
        "last failure",
        "in window",
        "cools for",
        "why",
        "egress locks",
    ]);
    for breaker in answer.breakers {
        let egress_locks: Vec<Value> = breaker
            .egress_locks
            .iter()
            .map(|lock| egress_lock(lock, output))
            .collect();
        let wait = (breaker.retry_after_ms > 0).then_some(breaker.retry_after_ms);
        listing.push(vec![
            json!(breaker.provider),
            json!(breaker.state),
            json!(breaker.failure_count),
            json!(breaker.failure_threshold),
            time_left(wait, output),
            json!(breaker.open_cycle_count),
            moment_value(breaker.last_failure_unix_ms),
            window(&breaker),
            time_left(breaker.gate_remaining_ms, output),
            json!(breaker.gate_reason),
            json!(egress_locks),
        ]);
    }
    Ok(listing)
}

/// An identity and how long it is locked; words for people, members for programs.
fn egress_lock(lock: &EgressLock, output: Output) -> Value {
    match output {
        Output::Table => json!(format!(
            "{} {} ({})",
            lock.egress,
            remaining(Some(lock.remaining_ms)),
            lock.reason
        )),
        Output::Json | Output::Yaml => json!({
            "egress": lock.egress,
            "remainingMs": lock.remaining_ms,
            "untilUnixMs": lock.until_unix_ms,
            "reason": lock.reason,
        }),
    }
}

/// Failures in the window of the cooldown gate and how many cool the provider; nothing while the gate is off.
fn window(breaker: &BreakerStatus) -> Value {
    if !breaker.gate_enabled {
        return Value::Null;
    }
    json!(format!(
        "{}/{}",
        breaker.gate_failure_count, breaker.gate_failure_threshold
    ))
}

async fn lockouts(client: &mut Client, output: Output) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListLockoutsRequest {});
    let answer = service.list_lockouts(request).await?.into_inner();
    let mut listing = Listing::new(&[
        "provider",
        "connection",
        "model",
        "reason",
        "remaining",
        "failures",
        "until",
        "rule",
        "upstream said",
    ]);
    for lockout in answer.lockouts {
        listing.push(vec![
            json!(lockout.provider),
            json!(lockout.connection),
            json!(lockout.model),
            json!(lockout.reason),
            time_left(Some(lockout.remaining_ms), output),
            json!(lockout.failure_count),
            moment_value(Some(lockout.until_unix_ms)),
            json!(lockout.rule),
            json!(lockout.original_status),
        ]);
    }
    Ok(listing)
}

async fn transitions(client: &mut Client, arguments: &GetArguments) -> Result<Listing, Failure> {
    let (service, request) = client.call(ListTransitionsRequest {
        provider: arguments.provider.clone().unwrap_or_default(),
        limit: arguments.limit,
    });
    let answer = service.list_transitions(request).await?.into_inner();
    let mut listing = Listing::new(&[
        "at",
        "provider",
        "connection",
        "kind",
        "change",
        "rule",
        "upstream said",
        "attempt",
    ]);
    for transition in answer.transitions {
        listing.push(vec![
            moment_value(Some(transition.at_unix_ms)),
            json!(transition.provider),
            json!(transition.connection),
            json!(transition.kind),
            json!(transition.description),
            json!(transition.rule),
            json!(transition.original_status),
            json!(transition.attempt),
        ]);
    }
    Ok(listing)
}
