//! `tidegate.config.v1.SnapshotService`.

use std::sync::Arc;

use tidegate_core::ids::{PlaneIncarnation, SHARDS, Shard};
use tidegate_core::version::Version;
use tidegate_proto::config::v1 as proto;
use tidegate_proto::config::v1::snapshot_service_server::SnapshotService;
use tidegate_store::durable::StoredVersion;
use tidegate_store::hot::VersionVector;
use tidegate_wire as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::watch::{Plane, Watchers};

use super::error::Refusal;

/// Messages that wait for a watcher to take them, beyond what the connection buffers.
const QUEUE: usize = 16;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    pub(super) watchers: Arc<Watchers>,
    pub(super) tasks: TaskTracker,
    pub(super) drain: CancellationToken,
}

#[tonic::async_trait]
impl SnapshotService for Snapshots {
    type WatchStream = ReceiverStream<Result<proto::WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        if request.plane == 0 {
            return Err(Refusal::InvalidRequest.status("plane must not be 0"));
        }
        let resume = resume(&request)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let watchers = Arc::clone(&self.watchers);
        let plane = PlaneIncarnation(request.plane);
        tracing::info!(plane = %format_args!("{:016x}", plane.0), name = %request.name, "a data plane watches");
        let known = StoredVersion {
            document: request.configuration_version,
            secrets: request.credentials_revision,
        };
        let plane = Plane::new(plane, &request.name, known.document);
        let feed = async move { watchers.feed(plane, known, resume, sender).await };
        self.tasks
            .spawn(self.drain.clone().run_until_cancelled_owned(feed));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn report_configuration(
        &self,
        request: Request<proto::ReportConfigurationRequest>,
    ) -> Result<Response<proto::ReportConfigurationResponse>, Status> {
        let request = request.into_inner();
        let (version, refused) = (request.configuration_version, request.refused_version);
        let plane = PlaneIncarnation(request.plane);
        let watching = self.watchers.live.tell(plane, version, refused);
        if watching && refused > 0 {
            tracing::warn!(plane = %format_args!("{:016x}", plane.0), version = refused, "a data plane cannot use a configuration");
        }
        Ok(Response::new(proto::ReportConfigurationResponse {
            watching,
        }))
    }
}

fn resume(request: &proto::WatchRequest) -> Result<VersionVector, Status> {
    let mut resume: VersionVector = [Version::default(); SHARDS as usize];
    for version in &request.resume {
        let shard = u8::try_from(version.shard)
            .ok()
            .and_then(Shard::new)
            .ok_or_else(|| Refusal::InvalidRequest.status("resume: there is no such shard"))?;
        resume[shard.index()] = wire::version_from_proto(version.version);
    }
    Ok(resume)
}
