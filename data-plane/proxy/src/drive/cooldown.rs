//! Waits between attempts, for a cooldown to end or before a retry (decision 28).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::routing::WaitKind;

use super::Drive;
use crate::control_port::ControlPort;
use crate::refusal::Refusal;

/// Longest single wait that is believed.
const MAX_WAIT: Duration = Duration::from_secs(300);

impl<C: ControlPort> Drive<C> {
    /// Waits, if there is room to. Else the next question says that there is none, and whoever decides goes on without
    /// (decision 28).
    pub(super) async fn wait(&mut self, kind: WaitKind, wait: Duration) -> Result<(), Refusal> {
        let wait = wait.min(MAX_WAIT);
        let most = self.shared.control.snapshot().map_or(0, |snapshot| {
            let routing = &snapshot.config.settings.routing;
            routing.max_waiting_per_data_plane
        });
        let Some(_waits) = self.shared.waiting.enter(most) else {
            let so_far = Arc::make_mut(&mut self.so_far);
            // A control plane of an earlier release does not know of it, and would say the same again.
            if std::mem::replace(&mut so_far.no_wait, true) {
                return Err(Refusal::WaitingFull {
                    retry_after_secs: whole_seconds(wait),
                });
            }
            self.shared.metrics.waits_refused.inc();
            return Ok(());
        };
        tokio::time::sleep(wait).await;
        if kind == WaitKind::Cooldown {
            let so_far = Arc::make_mut(&mut self.so_far);
            so_far.waits = so_far.waits.saturating_add(1);
            let waited = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            so_far.waited_ms = so_far.waited_ms.saturating_add(waited);
        }
        Ok(())
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis().div_ceil(1_000))
        .unwrap_or(u64::MAX)
        .max(1)
}
