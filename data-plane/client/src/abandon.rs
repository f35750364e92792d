//! Tells the control plane that an attempt will not be sent. What cannot be told in time ends by expiry, so
//! nothing here is retried for long.

use std::time::Duration;

use tidegate_proto::common::v1::AttemptId;
use tidegate_proto::routing::v1::AbandonRequest;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::notices::Notices;
use crate::replicas::{Asked, Replicas};

/// How long one replica may take.
const CALL_LIMIT: Duration = Duration::from_millis(500);

/// One notice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Abandoned {
    pub(crate) attempt: Option<AttemptId>,
    /// Provider whose probe it may hold; empty for none.
    pub(crate) provider: String,
}

/// Tells notices until told to stop. Runs once.
pub(crate) async fn tell_forever(
    notices: &Notices<Abandoned>,
    replicas: &Replicas,
    stop: &CancellationToken,
) {
    let Some(mut waiting) = notices.take() else {
        return;
    };
    while let Some(Some(abandoned)) = stop.run_until_cancelled(waiting.recv()).await {
        if !tell(replicas, abandoned).await {
            notices.lost();
        }
    }
}

async fn tell(replicas: &Replicas, abandoned: Abandoned) -> bool {
    let mut asked = Asked::default();
    while let Some(replica) = replicas.choose(Instant::now(), asked) {
        asked.add(replica.index);
        let mut client = RoutingServiceClient::new(replica.channel());
        let call = client.abandon(AbandonRequest {
            attempt: abandoned.attempt,
            provider: abandoned.provider.clone(),
        });
        match timeout(CALL_LIMIT, call).await {
            Ok(Ok(_)) => return true,
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "abandon was not taken");
            }
            Err(_) => tracing::debug!(replica = %replica.name, "abandon took too long"),
        }
    }
    false
}
