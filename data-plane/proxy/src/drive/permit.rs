//! Waiting for a permit, on at another control plane where the one that was asked is gone.

use std::time::Duration;

use tidegate_core::ids::{AttemptId, ConnectionId};
use tidegate_plane_client::{PermitWait, PermitWaited, PermitWaits};
use tokio::time::Instant;

use crate::control_port::ControlPort;
use crate::refusal::Refusal;

use super::Drive;

/// A wait for a permit that broke. If the same one is waited for next, it goes on where it was.
pub(super) struct BrokenWait {
    connection: ConnectionId,
    began: Instant,
}

impl<C: ControlPort> Drive<C> {
    /// Waits for a permit. Returns the attempt of the next question: the one that holds it, if it was granted.
    pub(super) async fn await_permit(
        &mut self,
        mut wait: Box<PermitWait>,
    ) -> Result<AttemptId, Refusal> {
        let control = &self.shared.control;
        let attempt = control.next_attempt();
        let life = self.life.as_mut().ok_or(Refusal::Internal)?;
        life.asks(attempt);
        let broken = self.broken_wait.take();
        let began = broken.filter(|broken| broken.connection == wait.connection);
        wait.waited = began
            .as_ref()
            .map_or(Duration::ZERO, |broken| broken.began.elapsed());
        let began = began.map_or_else(Instant::now, |broken| broken.began);
        let PermitWaits {
            granted,
            in_vain,
            queues_full,
        } = &mut self.waited;
        *granted = None;
        match control.await_permit(attempt, &wait).await {
            PermitWaited::Granted => {
                *granted = Some(wait.connection);
                return Ok(attempt);
            }
            PermitWaited::InVain => in_vain.push(wait.connection),
            PermitWaited::QueueFull => {
                queues_full.push(wait.connection.clone());
                in_vain.push(wait.connection);
            }
            PermitWaited::Broken => {
                self.broken_wait = Some(BrokenWait {
                    connection: wait.connection,
                    began,
                });
            }
        }
        Ok(control.next_attempt())
    }
}
