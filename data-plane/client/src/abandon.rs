//! Tells the control plane that an attempt will not be sent. What cannot be told in time ends by expiry, so
//! nothing here is retried for long.

use std::time::Duration;

use parking_lot::Mutex;
use tidegate_proto::common::v1::AttemptId;
use tidegate_proto::routing::v1::AbandonRequest;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::ClientMetrics;
use crate::replicas::{Asked, Replicas};

/// Most notices that wait.
const CAPACITY: usize = 1_024;
/// How long one replica may take.
const CALL_LIMIT: Duration = Duration::from_millis(500);

/// One notice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Abandoned {
    pub(crate) attempt: Option<AttemptId>,
    /// Provider whose probe it may hold; empty for none.
    pub(crate) provider: String,
}

/// The notices.
#[derive(Debug)]
pub(crate) struct AbandonQueue {
    sender: mpsc::Sender<Abandoned>,
    receiver: Mutex<Option<mpsc::Receiver<Abandoned>>>,
    metrics: ClientMetrics,
}

impl AbandonQueue {
    pub(crate) fn new(metrics: ClientMetrics) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            metrics,
        }
    }

    /// Takes a notice. Never waits; when there is no room it is dropped.
    pub(crate) fn push(&self, abandoned: Abandoned) {
        if self.sender.try_send(abandoned).is_err() {
            self.metrics.abandons_dropped.inc();
        }
    }

    /// Tells them until told to stop. Runs once.
    pub(crate) async fn run(&self, replicas: &Replicas, stop: &CancellationToken) {
        let Some(mut receiver) = self.receiver.lock().take() else {
            return;
        };
        loop {
            let next = tokio::select! {
                next = receiver.recv() => next,
                () = stop.cancelled() => None,
            };
            let Some(abandoned) = next else {
                return;
            };
            if !tell(replicas, abandoned).await {
                self.metrics.abandons_dropped.inc();
            }
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
