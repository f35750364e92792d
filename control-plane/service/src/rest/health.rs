//! How everything is (`sessions-and-streams.md` §5.4 and §5.5, `failure-state.md` §1.9), which is told again for at most a second
//! ([`told`]). A reset forgets it.

mod counted;
mod told;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::config::{Config, Document};
use tidegate_core::settings::Overrides;
use tokio_util::task::TaskTracker;

use crate::admin::{Admin, Condition, Page};

use super::shapes::{MAX_LISTED, breaker, breaker_counts, cooldown, listed_locks, provider_health};
use told::Told;

/// All is well (`tidegate_core::condition`).
const HEALTHY: &str = "healthy";
/// Something is not. Requests may well go on (`architecture.md` §4).
const DEGRADED: &str = "degraded";

/// Tells it.
#[derive(Debug)]
pub(super) struct HealthCache {
    admin: Arc<Admin>,
    tasks: TaskTracker,
    word: Arc<Told<&'static str>>,
    whole: Arc<Told<Bytes>>,
}

impl HealthCache {
    pub(super) fn new(admin: Arc<Admin>, tasks: TaskTracker) -> Self {
        Self {
            admin,
            tasks,
            word: Arc::default(),
            whole: Arc::default(),
        }
    }

    /// What is known, however it was before.
    pub(super) fn forget(&self) {
        self.word.forget();
        self.whole.forget();
    }

    /// In one word, which everybody may ask for: it takes no more than asking whether the stores answer.
    pub(super) async fn word(&self) -> &'static str {
        let admin = Arc::clone(&self.admin);
        let making = async move { word(&admin.condition().await) };
        *self.word.get(&self.tasks, making).await
    }

    /// The whole, as JSON.
    pub(super) async fn whole(&self) -> Bytes {
        let making = whole(Arc::clone(&self.admin));
        self.whole.get(&self.tasks, making).await.as_ref().clone()
    }
}

fn word(condition: &Condition) -> &'static str {
    if condition.degraded.is_empty() {
        HEALTHY
    } else {
        DEGRADED
    }
}

async fn whole(admin: Arc<Admin>) -> Bytes {
    let config = admin.config.config().or_else(unconfigured);
    let counting = async {
        let config = config.as_ref()?;
        Some(counted::read(&admin, config).await)
    };
    let (condition, counted) = tokio::join!(admin.condition(), counting);
    let (counted, not_read) = counted.map_or_else(Default::default, |it| (it.members, it.not_read));
    let degraded = condition.degraded.iter().map(|it| it.word());
    let mut told = json!({
        "status": word(&condition),
        "timestamp": admin.clock.now().iso(),
        "version": env!("CARGO_PKG_VERSION"),
        "controlPlane": {
            "replica": admin.replica,
            "degraded": degraded.collect::<Vec<_>>(),
            "hotStoreReachable": condition.hot_store_answers,
            "durableStoreReachable": condition.durable_store_answers,
            "viewAgeMs": condition.view.age_ms,
            "viewStale": condition.view.stale,
            "configurationVersion": condition.config.as_ref().map_or(0, |config| config.version),
            "dataPlanes": condition.planes_in_fleet,
            "notRead": not_read,
        },
    });
    if let (Some(config), Some(members)) = (config, told.as_object_mut()) {
        members.extend(counted);
        if let Value::Object(state) = state(&admin, &config) {
            members.extend(state);
        }
    }
    told.to_string().into()
}

/// What health is told of while nothing was ever applied: every member is there, and empty.
fn unconfigured() -> Option<Arc<Config>> {
    let nothing = Config::build(Document::default(), 0, &Overrides::default());
    nothing.ok().map(Arc::new)
}

/// What the view tells.
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
