//! The members of health that the view does not have: queues, quotas and sessions. They are read as the lists of the gRPC
//! API are, and told in the contract's shape (`sessions-and-streams.md` §5.4).
//!
//! **Bounds:** one page of queues and of pins, what quotas this process knows, all leases that live, and [`LIMIT`] for all of
//! them together. **Stance:** health is told without what could
//! not be read by then; it is empty, and named.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_core::config::Config;
use tidegate_core::lease::Lease;
use tidegate_core::telemetry::quota::Standing;
use tidegate_core::time::Timestamp;
use tidegate_proto::admin::v1::{ConnectionQueue, SessionPin};
use tokio::time::timeout;

use crate::admin::{Admin, Known, Page, connections};

use super::super::shapes::MAX_LISTED;

/// How long all of it may take: as long as the question whether the durable store answers, beside which it is asked.
const LIMIT: Duration = Duration::from_millis(500);
/// Items of lists of which the contract tells the first ones only.
const MAX_FIRST: usize = 8;

/// What was read, and what was not.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) members: Map<String, Value>,
    /// Names of members that are empty because they could not be read.
    pub(super) not_read: Vec<&'static str>,
}

/// Every member, of which nothing is known. Three of them stay like that: they are of mechanisms that are not here.
fn nothing() -> Map<String, Value> {
    [
        ("rateLimitStatus", json!({})),
        ("learnedLimits", json!({})),
        ("quotaMonitor", quota_monitor(&[])),
        ("sessions", sessions(&[], false, &[], Timestamp(0))),
        ("adaptiveAdmission", Value::Null),
        ("chatAdmission", Value::Null),
        ("dedup", json!({"inflightRequests": 0})),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Reads everything.
pub(super) async fn read(admin: &Admin, config: &Config) -> Counted {
    let (queue_page, pin_page) = (Page::first("queues"), Page::first("pins"));
    let (queues, pins, leases) = tokio::join!(
        timeout(LIMIT, admin.queues(config, None, None, &queue_page)),
        timeout(LIMIT, admin.list_pins(None, None, &pin_page)),
        timeout(LIMIT, admin.leases.list()),
    );
    let mut members = nothing();
    let mut not_read = Vec::new();
    let mut put = |name: &'static str, value: Option<Value>| match value {
        Some(value) => drop(members.insert(name.to_owned(), value)),
        None => not_read.push(name),
    };
    let queues = queues.ok().map(|(queues, _)| queues);
    put("rateLimitStatus", queues.as_deref().map(rate_limits));
    put("learnedLimits", queues.as_deref().map(learned_limits));
    let quotas: Vec<Known<'_>> = connections(config, None, None)
        .map(|(_, connection)| admin.quotas_of(config, connection))
        .collect();
    put("quotaMonitor", Some(quota_monitor(&quotas)));
    let of_sessions = match (pins, leases) {
        (Ok(Ok((pins, next))), Ok(Ok((now, leases)))) => {
            Some(sessions(&pins, !next.is_empty(), &leases, now))
        }
        _ => None,
    };
    put("sessions", of_sessions);
    Counted { members, not_read }
}

/// Connections with a queue. How many requests wait is known to each data plane alone; here each counts once.
fn rate_limits(queues: &[ConnectionQueue]) -> Value {
    let entries = queues.iter().map(|queue| {
        let oldest = queue.waiting.iter().map(|waiter| waiter.oldest_ms).max();
        let told = json!({
            "queued": queue.waiting.len(),
            "running": queue.running,
            "oldestWaitMs": oldest,
            "stale": queue.stale,
        });
        (format!("{}:{}", queue.provider, queue.connection), told)
    });
    Value::Object(entries.collect())
}

/// Models whose requests wait for the next window of their upstream, as its answers told.
fn learned_limits(queues: &[ConnectionQueue]) -> Value {
    let models = queues.iter().flat_map(|queue| {
        queue.spent.iter().map(move |spent| {
            let (provider, connection, model) = (&queue.provider, &queue.connection, &spent.model);
            let told = json!({
                "provider": provider,
                "connectionId": connection,
                "model": model,
                "remainingMs": spent.remaining_ms,
            });
            (format!("{provider}:{connection}:{model}"), told)
        })
    });
    Value::Object(models.take(MAX_LISTED).collect())
}

/// Accounts of whose quota something is known, or is asked for; the worst are told one by one.
fn quota_monitor(quotas: &[Known<'_>]) -> Value {
    let mut watched: Vec<(Standing, &Known<'_>)> = quotas
        .iter()
        .filter_map(|known| Some((known.standing()?, known)))
        .collect();
    watched.sort_by_key(|(standing, _)| *standing);
    let of = |wanted: Standing| {
        let same = watched.iter().filter(|(standing, _)| *standing == wanted);
        same.count()
    };
    let mut by_provider: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, known) in &watched {
        let count = by_provider.entry(known.connection.provider.as_str());
        *count.or_default() += 1;
    }
    let mut counts: Map<String, Value> = Standing::ALL
        .into_iter()
        .map(|standing| (standing.word().to_owned(), json!(of(standing))))
        .collect();
    // A monitor of the contract's that asks for nothing; ours are there only if there is something to ask for.
    counts.insert("idle".to_owned(), json!(0));
    let monitors = watched.iter().take(MAX_FIRST).map(|(standing, known)| {
        let seen_at = known.combined.as_ref().map(|quota| quota.observed_at.iso());
        json!({
            "provider": known.connection.provider.as_str(),
            "accountId": known.connection.id.as_str(),
            "status": standing.word(),
            "lastSuccessAt": seen_at,
        })
    });
    json!({
        "active": watched.len(),
        "alerting": of(Standing::Warning),
        "exhausted": of(Standing::Exhausted),
        "errors": of(Standing::Error),
        "statusCounts": counts,
        "byProvider": by_provider.into_iter().take(MAX_LISTED).collect::<BTreeMap<_, _>>(),
        "monitors": monitors.collect::<Vec<_>>(),
    })
}

/// Sessions that have a place: by a pin, or by a lease, which has a key. Of a pin's key there is only a hash.
fn sessions(pins: &[SessionPin], goes_on: bool, leases: &[Lease], now: Timestamp) -> Value {
    let mut by_key: BTreeMap<&str, usize> = BTreeMap::new();
    let mut leased: usize = 0;
    for lease in leases.iter().filter(|lease| lease.is_live(now)) {
        *by_key.entry(lease.key.as_str()).or_default() += 1;
        leased = leased.saturating_add(1);
    }
    // All pins last equally long, so the last to end is the last that was used.
    let mut newest: Vec<&SessionPin> = pins.iter().collect();
    newest.sort_by_key(|pin| Reverse(pin.expires_at_unix_ms));
    let top = newest.into_iter().take(MAX_FIRST).map(|pin| {
        let created_at = Timestamp(pin.created_at_unix_ms);
        json!({
            "sessionId": pin.session_prefix,
            "provider": pin.provider,
            "connectionId": pin.connection,
            "createdAt": created_at.iso(),
            "ageMs": now.ms_since(created_at),
        })
    });
    json!({
        "activeCount": pins.len().saturating_add(leased),
        "stickyBoundCount": pins.len(),
        "leasedCount": leased,
        "goesOn": goes_on,
        "byApiKey": by_key.into_iter().take(MAX_LISTED).collect::<BTreeMap<_, _>>(),
        "top": top.collect::<Vec<_>>(),
    })
}
