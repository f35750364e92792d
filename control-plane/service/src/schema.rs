//! Which schema of values this replica may write (`architecture.md` §3, Schemas).
//!
//! Replicas announce the highest schema they speak; writers use the lowest announced, so that an older replica can
//! read everything while both run. This build writes exactly one schema. If a lower one is in force, it may not
//! write: reports stay unacknowledged and go to a replica that can. A single refusal to start is not enough, since
//! the older replica may come later (a roll-back).
//!
//! **Stance:** fail-open. While nothing can be read, what was last known stays in force.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::state::VALUE_SCHEMA;
use tidegate_store::hot::Announcement;

use crate::hot::Hot;

const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
const ANNOUNCE_TTL: Duration = Duration::from_secs(15);

/// What replicas speak.
#[derive(Debug)]
pub(crate) struct Schemas {
    own: Announcement,
    in_force: AtomicU32,
    replicas: Mutex<Vec<String>>,
}

impl Schemas {
    pub(crate) fn new(replica: &str) -> Self {
        Self {
            own: Announcement {
                replica: replica.to_owned(),
                schema: VALUE_SCHEMA,
            },
            in_force: AtomicU32::new(VALUE_SCHEMA),
            replicas: Mutex::default(),
        }
    }

    /// This build can write the schema in force.
    pub(crate) fn may_write(&self) -> bool {
        self.in_force.load(Ordering::Relaxed) >= VALUE_SCHEMA
    }

    /// Replicas that are announced.
    pub(crate) fn replicas(&self) -> Vec<String> {
        self.replicas.lock().clone()
    }

    /// Takes what is announced.
    fn take(&self, announced: &[Announcement]) {
        let lowest = announced
            .iter()
            .map(|announcement| announcement.schema)
            .min()
            .unwrap_or(VALUE_SCHEMA);
        let before = self
            .in_force
            .swap(lowest.min(VALUE_SCHEMA), Ordering::Relaxed);
        if before != lowest.min(VALUE_SCHEMA) {
            tracing::warn!(
                before,
                lowest,
                own = VALUE_SCHEMA,
                "schema in force changed"
            );
        }
        let mut replicas: Vec<String> = announced
            .iter()
            .map(|announcement| announcement.replica.clone())
            .collect();
        replicas.sort();
        *self.replicas.lock() = replicas;
    }

    /// Announces and listens for ever.
    pub(crate) async fn run(self: Arc<Self>, hot: Arc<Hot>) {
        let mut ticks = tokio::time::interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Failures are logged by the guard; the next tick tries again, well within the announcement's life.
            if hot.announce(self.own.clone(), ANNOUNCE_TTL).await.is_ok()
                && let Ok(announced) = hot.announced().await
            {
                self.take(&announced);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(schema: u32) -> Announcement {
        Announcement {
            replica: format!("speaks-{schema}"),
            schema,
        }
    }

    #[test]
    fn lower_schema_of_another_replica_forbids_writing_until_it_is_gone() {
        let schemas = Schemas::new("own");
        assert!(schemas.may_write());
        schemas.take(&[announced(VALUE_SCHEMA), announced(0)]);
        assert!(!schemas.may_write());
        schemas.take(&[announced(VALUE_SCHEMA), announced(VALUE_SCHEMA + 1)]);
        assert!(schemas.may_write());
    }
}
