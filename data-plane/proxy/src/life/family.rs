//! What a request and the parts of its plan have in common.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::outcome::Attempt;
use tokio::time::Instant;

/// Shared by the lives of a request and of its parts.
#[derive(Debug)]
pub(super) struct Family {
    /// When the request began: its time limit is one for all parts.
    pub(super) begun: Instant,
    /// Where the attempts went, in order.
    sent: Mutex<Vec<(ProviderId, ModelId)>>,
    /// Parts that end now do so because we need them no more.
    dismissed: AtomicBool,
}

impl Family {
    /// Of a request that began then.
    pub(super) fn new(begun: Instant) -> Self {
        Self {
            begun,
            sent: Mutex::new(Vec::with_capacity(1)),
            dismissed: AtomicBool::default(),
        }
    }

    /// An attempt goes out.
    pub(super) fn sends(&self, attempt: &Attempt) {
        let sent = (attempt.provider.clone(), attempt.model.clone());
        self.sent.lock().push(sent);
    }

    /// How many were sent.
    pub(super) fn attempts(&self) -> usize {
        self.sent.lock().len()
    }

    /// `provider/model` of each, in order.
    pub(super) fn attempt_order(&self) -> Vec<String> {
        let sent = self.sent.lock();
        sent.iter()
            .map(|(provider, model)| format!("{provider}/{model}"))
            .collect()
    }

    /// Parts that still run are not needed any more.
    pub(super) fn dismiss(&self) {
        self.dismissed.store(true, Ordering::Relaxed);
    }

    /// Whether parts that end now do so because of that.
    pub(super) fn is_dismissed(&self) -> bool {
        self.dismissed.load(Ordering::Relaxed)
    }
}
