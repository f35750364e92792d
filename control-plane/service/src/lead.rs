//! Who does a task that one replica does for the whole fleet, by a claim in the durable store.
//!
//! **Stance:** without the durable store nobody is known to lead, so nobody does the task. **Staleness:** a leader
//! confirms its claim every second; for that long two may take themselves for it, so a task must be harmless when two do it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_store::durable::DurableStore;
use tokio::time::timeout;

/// Limit of a call (decision 54).
const LIMIT: Duration = Duration::from_millis(500);

/// The claim to a task.
#[derive(Debug)]
pub(crate) struct Lead {
    task: &'static str,
    durable: Arc<dyn DurableStore>,
    held: AtomicBool,
}

impl Lead {
    pub(crate) fn new(task: &'static str, durable: Arc<dyn DurableStore>) -> Self {
        Self {
            task,
            durable,
            held: AtomicBool::new(false),
        }
    }

    /// This replica does the task, as far as it knows.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// Asks for the lead, or confirms it. Returns whether it is held now and was not before.
    pub(crate) async fn claim(&self) -> bool {
        let leads = match timeout(LIMIT, self.durable.try_lead(self.task)).await {
            Ok(Ok(leads)) => leads,
            Ok(Err(_)) | Err(_) => false,
        };
        !self.set(leads) && leads
    }

    /// Gives the lead back, if it is held.
    pub(crate) async fn resign(&self) {
        if !self.set(false) {
            return;
        }
        match timeout(LIMIT, self.durable.resign(self.task)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(task = self.task, %error, "a lead was not given back"),
            Err(_elapsed) => tracing::warn!(task = self.task, "a lead was not given back in time"),
        }
    }

    /// Returns whether it was held.
    fn set(&self, held: bool) -> bool {
        let before = self.held.swap(held, Ordering::Relaxed);
        if before != held {
            tracing::info!(task = self.task, leads = held, "a lead changed");
        }
        before
    }
}
