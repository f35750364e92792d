//! What data planes are about to send, and what they have in flight (decision 42).

use tidegate_core::ids::KeyId;
use tidegate_core::lease::{ActivityName, Fence, FenceError, Grant};

use crate::clock::local_now;
use crate::telemetry::lease_call_metrics::{LeaseAction, LeaseAnswer};

use super::{LeaseFault, Leases, limited};

impl Leases {
    /// Whether an attempt may be sent, and until when.
    pub(crate) async fn fence(
        &self,
        asked: &ActivityName,
        key: &KeyId,
    ) -> Result<Result<Grant, FenceError>, LeaseFault> {
        let began = local_now();
        let answer = self.fence_now(asked, key).await;
        let word = match &answer {
            Ok(Ok(_)) => LeaseAnswer::Granted,
            Ok(Err(FenceError::Lease(error))) => LeaseAnswer::of(*error),
            Ok(Err(FenceError::Superseded)) => LeaseAnswer::Superseded,
            Err(fault) => self.fault(LeaseAction::Fence, fault),
        };
        self.count(LeaseAction::Fence, word, began);
        answer
    }

    async fn fence_now(
        &self,
        asked: &ActivityName,
        key: &KeyId,
    ) -> Result<Result<Grant, FenceError>, LeaseFault> {
        let config = self.config_now()?;
        let fence = Fence {
            lease: asked.lease,
            key,
            connection: &asked.connection,
            plane: asked.plane,
            number: asked.number,
        };
        limited(self.durable.fence(&fence, &config.settings.leases)).await
    }

    /// Lets go on what is in flight; `None`: it must be cut.
    pub(crate) async fn renew_activity(
        &self,
        activity: &ActivityName,
    ) -> Result<Option<Grant>, LeaseFault> {
        let began = local_now();
        let answer = match self.config_now() {
            Ok(config) => {
                let settings = &config.settings.leases;
                limited(self.durable.renew_activity(activity, settings)).await
            }
            Err(fault) => Err(fault),
        };
        let word = match &answer {
            Ok(Some(_)) => LeaseAnswer::Granted,
            Ok(None) => LeaseAnswer::Over,
            Err(fault) => self.fault(LeaseAction::RenewActivity, fault),
        };
        self.count(LeaseAction::RenewActivity, word, began);
        answer
    }

    /// Nothing is in flight under a registration any more.
    pub(crate) async fn end_activity(&self, activity: &ActivityName) -> Result<(), LeaseFault> {
        let began = local_now();
        let answer = limited(self.durable.delete_activity(activity)).await;
        let word = match &answer {
            Ok(()) => LeaseAnswer::Granted,
            Err(fault) => self.fault(LeaseAction::EndActivity, fault),
        };
        self.count(LeaseAction::EndActivity, word, began);
        answer
    }
}
