//! Tells the control plane which configuration is in force here, so that operators see a change arrive.
//!
//! Each watch says it when it opens; this tells what changes while it lasts, to the replica that is watched. Only
//! the newest state is told, one call at a time; what is not taken is told again.

use std::sync::Arc;
use std::time::Duration;

use tidegate_proto::config::v1::ReportConfigurationRequest;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Inner;
use crate::replicas::Asked;

const CALL_LIMIT: Duration = Duration::from_secs(1);
/// Before what was not taken is told again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Inner {
    /// Tells until told to stop.
    pub(crate) async fn tell_configuration(self: Arc<Self>) {
        let mut installed = self.installed.subscribe();
        let mut refused = self.refused.subscribe();
        let telling = async {
            loop {
                if !self.told().await {
                    sleep(AGAIN_AFTER).await;
                    continue;
                }
                let changed = tokio::select! {
                    changed = installed.changed() => changed,
                    changed = refused.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = telling => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn told(&self) -> bool {
        let Some(replica) = self.replicas.choose(Instant::now(), Asked::default()) else {
            return false;
        };
        let mut client = SnapshotServiceClient::new(replica.channel());
        let call = client.report_configuration(ReportConfigurationRequest {
            plane: self.incarnation.0,
            configuration_version: self.configuration_version(),
            refused_version: *self.refused.borrow(),
        });
        match timeout(CALL_LIMIT, call).await {
            Ok(Ok(response)) => response.into_inner().watching,
            // A replica of an older release cannot be told.
            Ok(Err(status)) => status.code() == tonic::Code::Unimplemented,
            Err(_elapsed) => false,
        }
    }
}
