//! What a replica's decisions rest on, followed as a data plane follows it: its watch says up to which version each
//! shard is complete.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use secrecy::SecretString;
use tidegate_core::ids::SHARDS;
use tidegate_core::version::Version;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel};
use tidegate_proto::common::v1::ShardVersion;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tidegate_proto::config::v1::watch_response::Kind;
use tidegate_proto::config::v1::{WatchRequest, WatchResponse};
use tidegate_test_support::DATA_PLANE_TOKEN;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Streaming;

/// Largest message of a watch, in bytes; the configuration is one.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// The newest version of each shard that the replica has shown.
pub(super) type Versions = [Version; SHARDS as usize];

/// Follows a replica until the set of tasks is dropped.
pub(super) async fn follow(
    replica: SocketAddr,
    plane: u64,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<watch::Receiver<Versions>> {
    let address = Address::Tcp(format!("http://{replica}").parse()?);
    let token = SecretString::from(DATA_PLANE_TOKEN);
    let channel = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
    let mut client = SnapshotServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let request = WatchRequest {
        plane,
        name: "bench".to_owned(),
        ..WatchRequest::default()
    };
    let inbound = client.watch(request).await?.into_inner();
    let (versions, shown) = watch::channel([Version::default(); SHARDS as usize]);
    tasks.spawn(read(inbound, versions));
    Ok(shown)
}

async fn read(
    mut inbound: Streaming<WatchResponse>,
    versions: watch::Sender<Versions>,
) -> Result<()> {
    loop {
        let message = inbound.message().await?.context("the watch ended")?;
        let version = match message.kind {
            Some(Kind::Shard(shard)) => shard.version,
            Some(Kind::Delta(delta)) => delta.version,
            Some(Kind::Snapshot(_) | Kind::Credentials(_) | Kind::Heartbeat(_)) | None => None,
        };
        if let Some(version) = version {
            versions.send_modify(|versions| learn(versions, &version));
        }
    }
}

fn learn(versions: &mut Versions, shown: &ShardVersion) {
    let place = usize::try_from(shown.shard)
        .ok()
        .and_then(|shard| versions.get_mut(shard));
    if let (Some(place), Some(version)) = (place, &shown.version) {
        *place = Version::new(version.incarnation, version.revision);
    }
}
