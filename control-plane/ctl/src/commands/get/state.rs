//! Lists of state.

use serde_json::{Value, json};
use tidegate_proto::admin::v1::{
    BreakerStatus, ConnectionStatus, Cooldown, CooldownKind, EgressLock, LeaseStatus,
    ListBreakersRequest, ListConnectionsRequest, ListCooldownsRequest, ListLeasesRequest,
    ListLockoutsRequest, ListPermitsRequest, Lockout, PermitHolder, PermitPool, PermitQueue,
    TokenStatus,
};

use crate::cli::Output;
use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Column, Listing, moment_value, remaining};
use crate::pages::read_all;

/// Whose state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Of<'a> {
    /// Only this provider's.
    pub(crate) provider: Option<&'a str>,
    /// Only this connection's.
    pub(crate) connection: Option<&'a str>,
}

impl<'a> Of<'a> {
    pub(crate) fn provider(provider: Option<&'a str>) -> Self {
        Self {
            provider,
            ..Self::default()
        }
    }

    pub(crate) fn connection(connection: &'a str) -> Self {
        Self {
            connection: Some(connection),
            ..Self::default()
        }
    }

    pub(super) fn provider_text(self) -> String {
        self.provider.unwrap_or_default().to_owned()
    }

    pub(super) fn connection_text(self) -> String {
        self.connection.unwrap_or_default().to_owned()
    }
}

/// A remaining time: words for people, ms for programs.
pub(super) fn time_left(ms: Option<u64>, output: Output) -> Value {
    if output.is_for_people() {
        json!(remaining(ms))
    } else {
        json!(ms)
    }
}

const CONNECTIONS: &[Column<ConnectionStatus>] = &[
    Column::new("id", |it, _| json!(it.id)),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("priority", |it, _| json!(it.priority)),
    Column::new("state", |it, _| json!(it.state)),
    Column::new("terminal", |it, _| json!(it.terminal)),
    Column::new("cooldown", |it, output| {
        time_left(it.cooldown_remaining_ms, output)
    }),
    Column::wide("until", |it, _| moment_value(it.cooldown_until_unix_ms)),
    Column::wide("effective until", |it, _| {
        moment_value(it.effective_until_unix_ms)
    }),
    Column::new("gate", |it, output| time_left(it.gate_remaining_ms, output)),
    Column::wide("level", |it, _| json!(it.backoff_level)),
    Column::new("locked models", |it, _| json!(it.locked_models)),
    Column::new("last error", |it, _| json!(it.last_error_status)),
    Column::new("reason", |it, _| json!(it.last_error_reason)),
    Column::wide("last error at", |it, _| moment_value(it.last_error_unix_ms)),
    Column::wide("rule", |it, _| json!(it.rule)),
    Column::wide("upstream said", |it, _| json!(it.original_status)),
    Column::new("credential", |it, _| json!(it.credential_version)),
    Column::wide("token expires", |it, _| {
        moment_value(it.token.as_ref().and_then(|token| token.expires_unix_ms))
    }),
    Column::wide("refresh retries", |it, _| {
        json!(it.token.as_ref().map(|token| token.retries))
    }),
    Column::wide("next refresh", |it, _| next_refresh(it.token.as_ref())),
];

/// Connections and what excludes them.
pub(crate) async fn connections(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let connections = read_all!(
        client,
        list_connections,
        connections,
        ListConnectionsRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(connection_rows(&connections, output))
}

/// Connections that are known already.
pub(crate) fn connection_rows(connections: &[ConnectionStatus], output: Output) -> Listing {
    Listing::of(connections, CONNECTIONS, output)
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

const BREAKERS: &[Column<BreakerStatus>] = &[
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("state", |it, _| json!(it.state)),
    Column::new("failures", |it, _| json!(it.failure_count)),
    Column::new("opens at", |it, _| json!(it.failure_threshold)),
    Column::new("retry after", |it, output| {
        let wait = (it.retry_after_ms > 0).then_some(it.retry_after_ms);
        time_left(wait, output)
    }),
    Column::new("cycles", |it, _| json!(it.open_cycle_count)),
    Column::new("last failure", |it, _| {
        moment_value(it.last_failure_unix_ms)
    }),
    Column::new("in window", |it, _| window(it)),
    Column::new("cools for", |it, output| {
        time_left(it.gate_remaining_ms, output)
    }),
    Column::new("why", |it, _| json!(it.gate_reason)),
    Column::new("egress locks", |it, output| {
        let locks = it.egress_locks.iter();
        locks.map(|lock| egress_lock(lock, output)).collect()
    }),
];

/// Provider breakers.
pub(crate) async fn breakers(
    client: &mut Client,
    provider: Option<&str>,
    output: Output,
) -> Result<Listing, Failure> {
    let breakers = read_all!(
        client,
        list_breakers,
        breakers,
        ListBreakersRequest {
            provider: provider.unwrap_or_default().to_owned(),
        }
    )?;
    Ok(breaker_rows(&breakers, output))
}

/// Breakers that are known already.
pub(crate) fn breaker_rows(breakers: &[BreakerStatus], output: Output) -> Listing {
    Listing::of(breakers, BREAKERS, output)
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

const LOCKOUTS: &[Column<Lockout>] = &[
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("model", |it, _| json!(it.model)),
    Column::new("reason", |it, _| json!(it.reason)),
    Column::new("remaining", |it, output| {
        time_left(Some(it.remaining_ms), output)
    }),
    Column::new("failures", |it, _| json!(it.failure_count)),
    Column::new("until", |it, _| moment_value(Some(it.until_unix_ms))),
    Column::new("rule", |it, _| json!(it.rule)),
    Column::new("upstream said", |it, _| json!(it.original_status)),
];

/// Model locks.
pub(crate) async fn lockouts(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let lockouts = read_all!(
        client,
        list_lockouts,
        lockouts,
        ListLockoutsRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(Listing::of(&lockouts, LOCKOUTS, output))
}

const COOLDOWNS: &[Column<Cooldown>] = &[
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("kind", |it, _| {
        json!(match it.kind() {
            CooldownKind::Connection => "connection",
            CooldownKind::ConnectionGate => "connection_gate",
            CooldownKind::ProviderGate => "provider_gate",
            CooldownKind::Egress => "egress",
            CooldownKind::Unspecified => "unknown",
        })
    }),
    Column::new("egress", |it, _| json!(it.egress)),
    Column::new("reason", |it, _| json!(it.reason)),
    Column::new("remaining", |it, output| {
        time_left(Some(it.remaining_ms), output)
    }),
    Column::new("until", |it, _| moment_value(Some(it.until_unix_ms))),
];

/// Everything that cools.
pub(crate) async fn cooldowns(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let cooldowns = read_all!(
        client,
        list_cooldowns,
        cooldowns,
        ListCooldownsRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(Listing::of(&cooldowns, COOLDOWNS, output))
}

const LEASES: &[Column<LeaseStatus>] = &[
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("owner", |it, _| json!(it.owner_prefix)),
    Column::new("key", |it, _| json!(it.key_id)),
    Column::new("generation", |it, _| json!(it.generation)),
    Column::new("remaining", |it, output| {
        time_left(Some(it.remaining_ms), output)
    }),
    Column::wide("expires", |it, _| moment_value(Some(it.expires_at_unix_ms))),
    Column::wide("acquired", |it, _| {
        moment_value(Some(it.acquired_at_unix_ms))
    }),
    Column::wide("renewed", |it, _| moment_value(Some(it.renewed_at_unix_ms))),
];

/// Exclusive leases.
pub(crate) async fn leases(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let leases = read_all!(
        client,
        list_leases,
        leases,
        ListLeasesRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(lease_rows(&leases, output))
}

/// Leases that are known already.
pub(crate) fn lease_rows(leases: &[LeaseStatus], output: Output) -> Listing {
    Listing::of(leases, LEASES, output)
}

const PERMITS: &[Column<PermitPool>] = &[
    Column::new("connection", |it, _| json!(it.connection)),
    Column::new("provider", |it, _| json!(it.provider)),
    Column::new("limit", |it, _| json!(it.limit)),
    Column::new("held", |it, _| json!(it.held)),
    Column::new("waiting", |it, _| json!(it.waiting)),
    Column::wide("stale", |it, _| json!(it.stale)),
    Column::wide("holders", |it, output| {
        let holders = it.holders.iter();
        holders
            .map(|holder| permit_holder(holder, output))
            .collect()
    }),
    Column::wide("queues", |it, output| {
        let queues = it.queues.iter();
        queues.map(|queue| permit_queue(queue, output)).collect()
    }),
];

/// Permits of connections with a limit.
pub(crate) async fn permits(
    client: &mut Client,
    of: Of<'_>,
    output: Output,
) -> Result<Listing, Failure> {
    let pools = read_all!(
        client,
        list_permits,
        pools,
        ListPermitsRequest {
            provider: of.provider_text(),
            connection: of.connection_text(),
        }
    )?;
    Ok(Listing::of(&pools, PERMITS, output))
}

fn permit_holder(holder: &PermitHolder, output: Output) -> Value {
    if output.is_for_people() {
        return json!(format!("{} x {}", holder.held, holder.incarnation));
    }
    json!({
        "incarnation": holder.incarnation,
        "held": holder.held,
        "remainingMs": holder.remaining_ms,
    })
}

fn permit_queue(queue: &PermitQueue, output: Output) -> Value {
    if output.is_for_people() {
        return json!(format!("{} at {}", queue.waiting, queue.replica));
    }
    json!({
        "replica": queue.replica,
        "waiting": queue.waiting,
        "oldestMs": queue.oldest_ms,
    })
}
