//! Lists of state.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{
    BreakerStatus, CooldownKind, EgressLock, ListBreakersRequest, ListConnectionsRequest,
    ListCooldownsRequest, ListLeasesRequest, ListLockoutsRequest, ListPermitsRequest, TokenStatus,
};

use crate::cli::Output;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Listing, moment_value, remaining};
use crate::pages::all_pages;

/// A remaining time: words for people, ms for programs.
fn time_left(ms: Option<u64>, output: Output) -> Value {
    if output.is_for_people() {
        json!(remaining(ms))
    } else {
        json!(ms)
    }
}

/// Connections and what excludes them.
pub(crate) async fn connections(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let connections = all_pages(async |page_token| {
        let (service, request) = client.call(ListConnectionsRequest {
            page_token,
            provider: provider.unwrap_or_default().to_owned(),
            ..ListConnectionsRequest::default()
        });
        let answer = service.list_connections(request).await?.into_inner();
        Ok((answer.connections, answer.next_page_token))
    })
    .await?;
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
    ])
    .narrowed_to(&[
        "id",
        "provider",
        "priority",
        "state",
        "terminal",
        "cooldown",
        "gate",
        "locked models",
        "last error",
        "reason",
        "credential",
    ]);
    for connection in connections {
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

/// Provider breakers.
pub(crate) async fn breakers(client: &mut Client, output: Output) -> Result<Listing, Failure> {
    let breakers = all_pages(async |page_token| {
        let (service, request) = client.call(ListBreakersRequest {
            page_token,
            ..ListBreakersRequest::default()
        });
        let answer = service.list_breakers(request).await?.into_inner();
        Ok((answer.breakers, answer.next_page_token))
    })
    .await?;
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
    for breaker in breakers {
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
    if output.is_for_people() {
        let left = remaining(Some(lock.remaining_ms));
        return json!(format!("{} {left} ({})", lock.egress, lock.reason));
    }
    json!({
        "egress": lock.egress,
        "remainingMs": lock.remaining_ms,
        "untilUnixMs": lock.until_unix_ms,
        "reason": lock.reason,
    })
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

/// Model locks.
pub(crate) async fn lockouts(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let lockouts = all_pages(async |page_token| {
        let (service, request) = client.call(ListLockoutsRequest {
            page_token,
            provider: provider.unwrap_or_default().to_owned(),
            ..ListLockoutsRequest::default()
        });
        let answer = service.list_lockouts(request).await?.into_inner();
        Ok((answer.lockouts, answer.next_page_token))
    })
    .await?;
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
    for lockout in lockouts {
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

/// Everything that cools.
pub(crate) async fn cooldowns(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let cooldowns = all_pages(async |page_token| {
        let (service, request) = client.call(ListCooldownsRequest {
            page_token,
            provider: provider.unwrap_or_default().to_owned(),
            ..ListCooldownsRequest::default()
        });
        let answer = service.list_cooldowns(request).await?.into_inner();
        Ok((answer.cooldowns, answer.next_page_token))
    })
    .await?;
    let mut listing = Listing::new(&[
        "provider",
        "connection",
        "kind",
        "egress",
        "reason",
        "remaining",
        "until",
    ]);
    for cooldown in cooldowns {
        let kind = match cooldown.kind() {
            CooldownKind::Connection => "connection",
            CooldownKind::ConnectionGate => "connection_gate",
            CooldownKind::ProviderGate => "provider_gate",
            CooldownKind::Egress => "egress",
            CooldownKind::Unspecified => "unknown",
        };
        listing.push(vec![
            json!(cooldown.provider),
            json!(cooldown.connection),
            json!(kind),
            json!(cooldown.egress),
            json!(cooldown.reason),
            time_left(Some(cooldown.remaining_ms), output),
            moment_value(Some(cooldown.until_unix_ms)),
        ]);
    }
    Ok(listing)
}

/// Exclusive leases.
pub(crate) async fn leases(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let leases = all_pages(async |page_token| {
        let (service, request) = client.call(ListLeasesRequest {
            page_token,
            provider: provider.unwrap_or_default().to_owned(),
            ..ListLeasesRequest::default()
        });
        let answer = service.list_leases(request).await?.into_inner();
        Ok((answer.leases, answer.next_page_token))
    })
    .await?;
    let mut listing = Listing::new(&[
        "connection",
        "provider",
        "owner",
        "key",
        "generation",
        "remaining",
        "expires",
        "acquired",
        "renewed",
    ])
    .narrowed_to(&[
        "connection",
        "provider",
        "owner",
        "key",
        "generation",
        "remaining",
    ]);
    for lease in leases {
        listing.push(vec![
            json!(lease.connection),
            json!(lease.provider),
            json!(lease.owner_prefix),
            json!(lease.key_id),
            json!(lease.generation),
            time_left(Some(lease.remaining_ms), output),
            moment_value(Some(lease.expires_at_unix_ms)),
            moment_value(Some(lease.acquired_at_unix_ms)),
            moment_value(Some(lease.renewed_at_unix_ms)),
        ]);
    }
    Ok(listing)
}

/// Permits of connections with a limit.
pub(crate) async fn permits(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let pools = all_pages(async |page_token| {
        let (service, request) = client.call(ListPermitsRequest {
            page_token,
            provider: provider.unwrap_or_default().to_owned(),
            ..ListPermitsRequest::default()
        });
        let answer = service.list_permits(request).await?.into_inner();
        Ok((answer.pools, answer.next_page_token))
    })
    .await?;
    let mut listing = Listing::new(&[
        "connection",
        "provider",
        "limit",
        "held",
        "waiting",
        "stale",
        "holders",
        "queues",
    ])
    .narrowed_to(&["connection", "provider", "limit", "held", "waiting"]);
    for pool in pools {
        let holders: Vec<Value> = pool
            .holders
            .iter()
            .map(|holder| {
                if output.is_for_people() {
                    return json!(format!("{} x {}", holder.held, holder.incarnation));
                }
                json!({
                    "incarnation": holder.incarnation,
                    "held": holder.held,
                    "remainingMs": holder.remaining_ms,
                })
            })
            .collect();
        let queues: Vec<Value> = pool
            .queues
            .iter()
            .map(|queue| {
                if output.is_for_people() {
                    return json!(format!("{} at {}", queue.waiting, queue.replica));
                }
                json!({
                    "replica": queue.replica,
                    "waiting": queue.waiting,
                    "oldestMs": queue.oldest_ms,
                })
            })
            .collect();
        listing.push(vec![
            json!(pool.connection),
            json!(pool.provider),
            json!(pool.limit),
            json!(pool.held),
            json!(pool.waiting),
            json!(pool.stale),
            json!(holders),
            json!(queues),
        ]);
    }
    Ok(listing)
}
