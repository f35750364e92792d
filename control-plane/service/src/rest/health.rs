//! How everything is, and how long it is told again (`sessions-and-streams.md` §5.4 and §5.5, `failure-state.md` §1.9).
//!
//! What is told is at most [`MAX_AGE`] old. From [`FRESH`] on it is made anew behind the answer, so that who polls never
//! waits; older than [`MAX_AGE`] it is waited for, by all who ask together. A reset forgets it, also what is being made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate_core::config::Config;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::admin::{Admin, Page};
use crate::watch::freshness;

use super::shapes::{MAX_LISTED, breaker, breaker_counts, cooldown, listed_locks, provider_health};

/// What is older is made anew.
const FRESH: Duration = Duration::from_millis(500);
/// What is older is not told.
const MAX_AGE: Duration = Duration::from_secs(1);

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

/// What was told last.
#[derive(Debug)]
pub(super) struct HealthCache {
    admin: Arc<Admin>,
    tasks: TaskTracker,
    known: Mutex<Known>,
    /// Held by who makes it.
    making: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Known {
    health: Option<(Instant, Arc<Health>)>,
    /// Grows when everything is forgotten.
    generation: u64,
}

impl HealthCache {
    pub(super) fn new(admin: Arc<Admin>, tasks: TaskTracker) -> Self {
        Self {
            admin,
            tasks,
            known: Mutex::default(),
            making: Arc::default(),
        }
    }

    /// What is known, however it was before.
    pub(super) fn forget(&self) {
        let mut known = self.known.lock();
        known.generation = known.generation.wrapping_add(1);
        known.health = None;
    }

    pub(super) async fn get(self: &Arc<Self>) -> Arc<Health> {
        if let Some((age, health)) = self.known()
            && age < MAX_AGE
        {
            if age >= FRESH
                && let Ok(turn) = Arc::clone(&self.making).try_lock_owned()
            {
                let cache = Arc::clone(self);
                self.tasks.spawn(async move {
                    cache.make().await;
                    drop(turn);
                });
            }
            return health;
        }
        let _turn = self.making.lock().await;
        // Another one may have made it while this one waited.
        match self.known() {
            Some((age, health)) if age < FRESH => health,
            _ => self.make().await,
        }
    }

    fn known(&self) -> Option<(Duration, Arc<Health>)> {
        let known = self.known.lock();
        let (made_at, health) = known.health.as_ref()?;
        Some((made_at.elapsed(), Arc::clone(health)))
    }

    async fn make(&self) -> Arc<Health> {
        let generation = self.known.lock().generation;
        // From before it is made, so that it is never older than it seems.
        let begun = Instant::now();
        let health = Arc::new(health(&self.admin).await);
        let mut known = self.known.lock();
        if known.generation == generation {
            known.health = Some((begun, Arc::clone(&health)));
        }
        health
    }
}

async fn health(admin: &Admin) -> Health {
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
        && let Value::Object(state) = state(admin, &config)
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
