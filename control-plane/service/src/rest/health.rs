//! How everything is (`sessions-and-streams.md` §5.4 and §5.5, `failure-state.md` §1.9), which is told again for at most a second
//! ([`told`]). A reset forgets it.

mod told;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::config::Config;
use tokio_util::task::TaskTracker;

use crate::admin::{Admin, Page};
use crate::watch::freshness;

use super::shapes::{MAX_LISTED, breaker, breaker_counts, cooldown, listed_locks, provider_health};
use told::Told;

/// Every store answers, the view follows, and there is a configuration.
const HEALTHY: &str = "healthy";
/// Something of it is not so. Requests may well go on (`architecture.md` §4).
const DEGRADED: &str = "degraded";

/// How everything is.
#[derive(Debug)]
pub(super) struct Health {
    /// In one word.
    pub(super) status: &'static str,
    /// The whole, as JSON.
    pub(super) full: Bytes,
}

/// Tells it.
#[derive(Debug)]
pub(super) struct HealthCache {
    admin: Arc<Admin>,
    tasks: TaskTracker,
    told: Arc<Told<Health>>,
}

impl HealthCache {
    pub(super) fn new(admin: Arc<Admin>, tasks: TaskTracker) -> Self {
        Self {
            admin,
            tasks,
            told: Arc::default(),
        }
    }

    /// What is known, however it was before.
    pub(super) fn forget(&self) {
        self.told.forget();
    }

    pub(super) async fn get(&self) -> Arc<Health> {
        let making = health(Arc::clone(&self.admin));
        self.told.get(&self.tasks, making).await
    }
}

async fn health(admin: Arc<Admin>) -> Health {
    let durable_store = admin.durable_store_answers().await;
    let hot_store = admin.hot.answers();
    let view = freshness(&admin.view, &admin.clock);
    let config = admin.config.config();
    let is_well = durable_store && hot_store && !view.stale && config.is_some();
    let status = if is_well { HEALTHY } else { DEGRADED };
    let now = admin.clock.now();
    let mut told = json!({
        "status": status,
        "timestamp": now.iso(),
        "version": env!("CARGO_PKG_VERSION"),
        "controlPlane": {
            "replica": admin.replica,
            "hotStoreReachable": hot_store,
            "durableStoreReachable": durable_store,
            "viewAgeMs": view.age_ms,
            "viewStale": view.stale,
            "configurationVersion": config.as_ref().map_or(0, |config| config.version),
            "dataPlanes": admin.live.in_fleet(),
        },
    });
    if let (Some(config), Some(members)) = (config, told.as_object_mut())
        && let Value::Object(state) = state(&admin, &config)
    {
        members.extend(state);
    }
    Health {
        status,
        full: told.to_string().into(),
    }
}

fn state(admin: &Admin, config: &Config) -> Value {
    let now = admin.clock.now();
    let breakers = admin.breakers(config, None, &Page::whole("breakers")).0;
    let listed = breakers.get(..MAX_LISTED).unwrap_or(&breakers);
    let cooldowns = admin
        .cooldowns(config, None, None, &Page::first("cooldowns"))
        .0;
    let locks = admin.running_locks(config, None, None, now);
    let connections = config.connections.values();
    let enabled = connections.filter(|connection| connection.enabled).count();
    let providers = config.providers.values();
    let active = providers
        .filter(|entry| entry.connections.iter().any(|it| it.enabled))
        .count();
    json!({
        "setupComplete": active > 0,
        "activeConnections": enabled,
        "providerBreakers": listed.iter().map(breaker).collect::<Vec<_>>(),
        "circuitBreakers": breaker_counts(&breakers),
        "providerHealth": provider_health(listed),
        "providerSummary": {
            "configuredCount": config.providers.len(),
            "activeCount": active,
            "monitoredCount": breakers.len(),
        },
        "cooldowns": cooldowns.iter().take(MAX_LISTED).map(cooldown).collect::<Vec<_>>(),
        "lockouts": listed_locks(&locks, now),
        "lockoutCount": locks.len(),
    })
}
