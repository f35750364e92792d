//! Waiting for a permit at the control plane.

use std::future::pending;
use std::time::Duration;

use tidegate_core::ids::AttemptId;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{AwaitRequest, AwaitResponse};
use tidegate_wire::attempt::id_to_proto;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::grant::Awaited;
use crate::client::Inner;
use crate::permits::PoolName;
use crate::port::{PermitWait, PermitWaited};
use crate::replicas::Asked;

/// Longest wait for a permit, whatever the control plane says.
const MAX_WAIT: Duration = Duration::from_secs(600);
/// What the end of a wait may take until it is heard of here.
const GRACE: Duration = Duration::from_secs(2);

impl Inner {
    /// Waits; see [`crate::PlaneClient::await_permit`]. Dropped, it gives back what it may be granted.
    pub(crate) async fn await_permit(&self, attempt: AttemptId, wait: &PermitWait) -> PermitWaited {
        let waited = self.wait_at_some_replica(attempt, wait).await;
        if waited != PermitWaited::Granted {
            self.permits.answered(attempt.number);
        }
        waited
    }

    async fn wait_at_some_replica(&self, attempt: AttemptId, wait: &PermitWait) -> PermitWaited {
        let now = Instant::now();
        let deadline = now + wait.limit.saturating_add(GRACE).min(MAX_WAIT);
        let pool = PoolName {
            provider: wait.provider.clone(),
            connection: wait.connection.clone(),
        };
        let Some(replica) = self.replicas.choose(now, Asked::default()) else {
            return self.broken().await;
        };
        let mut silent = replica.fell_silent();
        let mut client = RoutingServiceClient::new(replica.channel());
        let awaited = Awaited::new(&self.permits, attempt.number, pool);
        let waiting = client.r#await(AwaitRequest {
            attempt: Some(id_to_proto(attempt)),
            ticket: wait.ticket.clone(),
            waited_ms: waited_ms(wait.waited),
        });
        let waiting = async {
            tokio::select! {
                answer = waiting => answer,
                // A replica that hangs answers no more than one that is gone, and those who wait are overtaken elsewhere.
                () = async { if silent.changed().await.is_err() { pending::<()>().await } } => {
                    Err(Status::unavailable("the replica fell silent"))
                }
            }
        };
        match timeout_at(deadline, waiting).await {
            Ok(Ok(answer)) => {
                let AwaitResponse {
                    granted,
                    queue_full,
                } = answer.into_inner();
                if granted {
                    awaited.granted();
                    PermitWaited::Granted
                } else {
                    awaited.refused();
                    if queue_full {
                        PermitWaited::QueueFull
                    } else {
                        PermitWaited::InVain
                    }
                }
            }
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "no grant");
                drop(awaited);
                self.broken().await
            }
            // Whatever became of the call, the time to wait is over.
            Err(_) => PermitWaited::InVain,
        }
    }

    /// The replica that queued us is gone: the next one queues us anew, but not in a hurry.
    async fn broken(&self) -> PermitWaited {
        tokio::time::sleep(self.limits.decide).await;
        PermitWaited::Broken
    }
}

/// As it travels: 0 is for those who come for the first time.
fn waited_ms(waited: Duration) -> u64 {
    if waited.is_zero() {
        return 0;
    }
    u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).max(1)
}
