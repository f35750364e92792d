//! Where a request under a lease goes (`sessions-and-streams.md` §1.8, §1.10).

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::config::{ApiKey, Config};
use tidegate_core::ids::ConnectionId;
use tidegate_core::lease::{Inference, LeaseError, LeaseName, Placement};
use tidegate_core::routing::OrdinarySelection;

use crate::clock::local_now;
use crate::telemetry::lease_call_metrics::{LeaseAction, LeaseAnswer};

use super::lifecycle::told;
use super::{Answered, LeaseFault, Leases, limited, new_id};

/// A request to place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToPlace<'a> {
    pub(crate) config: &'a Config,
    pub(crate) name: LeaseName,
    pub(crate) key: &'a Arc<ApiKey>,
    /// The connection it insists on.
    pub(crate) forced: Option<&'a ConnectionId>,
    pub(crate) selection: &'a OrdinarySelection,
}

impl Leases {
    /// Places a request on the connection of its lease, or moves the lease.
    pub(crate) async fn place(&self, asked: ToPlace<'_>) -> Answered<Placement> {
        let began = local_now();
        let answer = self.place_now(asked).await;
        let word = match &answer {
            Ok(Ok(Placement::Lease(_))) => LeaseAnswer::Granted,
            Ok(Ok(Placement::Ordinary(_))) => LeaseAnswer::Ordinary,
            Ok(Err(error)) => LeaseAnswer::of(*error),
            Err(fault) => self.fault(LeaseAction::Place, fault),
        };
        self.count(LeaseAction::Place, word, began);
        answer
    }

    /// Where a lease was placed last, while nobody can say where it is.
    pub(crate) fn placed_last(&self, name: LeaseName, key: &ApiKey) -> Option<ConnectionId> {
        self.placed.recall(name, &key.id, local_now())
    }

    async fn place_now(
        &self,
        asked: ToPlace<'_>,
    ) -> Result<Result<Placement, LeaseError>, LeaseFault> {
        let ToPlace {
            config,
            name,
            key,
            forced,
            selection,
        } = asked;
        // A rule asks why only of the connection that the lease is about to leave, if for a reason.
        let left: Mutex<Option<ConnectionId>> = Mutex::default();
        let why = |connection: &ConnectionId| {
            let reason = selection.why(config, key, connection);
            *left.lock() = reason.map(|_| connection.clone());
            reason
        };
        let id = new_id();
        let inference = Inference {
            id,
            name,
            key: &key.id,
            forced,
            candidates: selection.candidates(),
            why: &why,
        };
        let placed = limited(
            self.durable
                .place_under_lease(&inference, &config.settings.leases),
        )
        .await?;
        match &placed.answer {
            Ok(Placement::Lease(lease)) if lease.id == id => {
                self.remember(lease, placed.now);
                self.show(lease, placed.now).await;
                told(lease, "a lease moved");
            }
            Ok(Placement::Lease(lease) | Placement::Ordinary(Some(lease))) => {
                self.remember(lease, placed.now);
                return Ok(placed.answer);
            }
            Ok(Placement::Ordinary(None)) | Err(_) => self.placed.forget(name),
        }
        let left = left.lock().take();
        if let Some(left) = left {
            tracing::info!(key = %key.id, connection = %left, "a lease left its connection");
        }
        Ok(placed.answer)
    }
}
