//! Telling the control plane what is held and what is given back.

use std::time::Duration;

use tidegate_proto::routing::v1::admission_service_client::AdmissionServiceClient;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{
    KeepAdmittedRequest, KeepPermitsRequest, ReleaseAdmittedRequest, ReleasePermitsRequest,
};
use tokio::time::{Instant, timeout};

use super::Kind;
use crate::replicas::{Asked, Replicas};

/// How long one replica may take.
const CALL_LIMIT: Duration = Duration::from_secs(1);

/// What is told.
#[derive(Clone)]
pub(super) enum Message {
    Keep(KeepPermitsRequest),
    Release(ReleasePermitsRequest),
}

/// Tells one replica after the other until one has heard.
pub(super) async fn tell(replicas: &Replicas, kind: Kind, message: Message) -> bool {
    let mut asked = Asked::default();
    while let Some(replica) = replicas.choose(Instant::now(), asked) {
        asked.add(replica.index);
        let mut permits = RoutingServiceClient::new(replica.channel());
        let mut admissions = AdmissionServiceClient::new(replica.channel());
        let message = message.clone();
        let call = async move {
            match (kind, message) {
                (Kind::Permits, Message::Keep(message)) => {
                    permits.keep_permits(message).await.map(drop)
                }
                (Kind::Permits, Message::Release(message)) => {
                    permits.release_permits(message).await.map(drop)
                }
                (Kind::Admissions, Message::Keep(message)) => {
                    let message = KeepAdmittedRequest {
                        plane: message.plane,
                        newest: message.newest,
                        asked: message.asked,
                        held: message.held,
                    };
                    admissions.keep_admitted(message).await.map(drop)
                }
                (Kind::Admissions, Message::Release(message)) => {
                    let message = ReleaseAdmittedRequest {
                        plane: message.plane,
                        released: message.released,
                    };
                    admissions.release_admitted(message).await.map(drop)
                }
            }
        };
        match timeout(CALL_LIMIT, call).await {
            Ok(Ok(())) => return true,
            Ok(Err(status)) => {
                tracing::debug!(replica = %replica.name, error = %status, "permits were not heard of");
            }
            Err(_) => tracing::debug!(replica = %replica.name, "permits took too long"),
        }
    }
    false
}
