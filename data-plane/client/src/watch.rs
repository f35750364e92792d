//! Follows one replica: configuration, hot state, signs of life.
//!
//! The watch goes to home and says what is here already, so that a new replica continues where the old one
//! stopped. A replica that sends nothing for the silence limit is left, whatever its connection looks like. Every
//! few minutes the watch moves back to the data plane's own replica, so that load spreads after restarts.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_proto::common::v1::ShardVersion;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tidegate_proto::config::v1::watch_response::Kind;
use tidegate_proto::config::v1::{Heartbeat, WatchRequest, WatchResponse};
use tidegate_wire::version_from_proto;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Status, Streaming};

use crate::backoff::Backoff;
use crate::client::{Inner, Origin};
use crate::replicas::{Asked, Replica};
use crate::shadow::Scene;
use crate::view::Updated;

/// Largest message: a document with every list at its bound, or a whole shard.
const MAX_MESSAGE_BYTES: usize = 256 * 1024 * 1024;
/// How long one replica is followed before the data plane's own is preferred again.
const STAY: Duration = Duration::from_secs(300);
/// How often values that nobody can read any more are let go.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Why a watch ended.
enum Ended {
    /// It could not be opened, or broke off.
    Broken(Status),
    /// Nothing came for the silence limit.
    Silent,
    /// Home is elsewhere.
    HomeMoved,
    /// The data plane's own replica is preferred again.
    GoBack,
}

impl Inner {
    /// Watches until told to stop.
    pub(crate) async fn watch(self: Arc<Self>) {
        let stop = self.stop.clone();
        tokio::select! {
            () = self.follow_replicas() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn follow_replicas(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(50), self.limits.silence);
        let mut go_back = false;
        loop {
            let now = Instant::now();
            let own = if go_back {
                self.replicas.preferred(now)
            } else {
                None
            };
            let Some(replica) = own.or_else(|| self.replicas.choose(now, Asked::default())) else {
                return;
            };
            go_back = false;
            let (ended, worked) = self.follow_one(replica).await;
            self.set_following(false);
            if worked {
                backoff.reset();
            }
            match ended {
                Ended::HomeMoved => continue,
                Ended::GoBack => {
                    go_back = true;
                    continue;
                }
                Ended::Silent => {
                    self.metrics.silent_replicas.inc();
                    replica.is_silent();
                    tracing::warn!(replica = %replica.name, "left a silent control plane");
                }
                Ended::Broken(status) => {
                    tracing::info!(replica = %replica.name, error = %status, "watch ended");
                    if worked {
                        // Connections are closed for age; that says nothing against the replica.
                        sleep(backoff.next()).await;
                        continue;
                    }
                }
            }
            self.replicas.failed(replica, Instant::now());
            sleep(backoff.next_after(self.replicas.len())).await;
        }
    }

    /// Follows one replica; also says whether it sent anything.
    async fn follow_one(&self, replica: &Replica) -> (Ended, bool) {
        let mut stream = match timeout(self.limits.silence, self.open(replica)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(status)) => return (Ended::Broken(status), false),
            Err(_) => return (Ended::Silent, false),
        };
        self.metrics.watches.inc();
        let stay = STAY.mul_f64(0.8 + 0.4 * rand::random::<f64>());
        let leave_at = Instant::now() + stay;
        let mut prune_at = Instant::now() + PRUNE_EVERY;
        let mut worked = false;
        loop {
            let silent_at = Instant::now() + self.limits.silence;
            match timeout_at(silent_at, stream.message()).await {
                Err(_) => return (Ended::Silent, worked),
                Ok(Err(status)) => return (Ended::Broken(status), worked),
                Ok(Ok(None)) => {
                    return (
                        Ended::Broken(Status::unavailable("the stream ended")),
                        worked,
                    );
                }
                Ok(Ok(Some(message))) => {
                    if !worked {
                        worked = true;
                        self.replicas.move_home(replica);
                    }
                    self.take_in(replica, message);
                }
            }
            let now = Instant::now();
            if now >= prune_at {
                self.view.prune(self.clock.at(now));
                prune_at = now + PRUNE_EVERY;
            }
            let own = self.replicas.preferred(now);
            if now >= leave_at && own.is_some_and(|own| own.index != replica.index) {
                return (Ended::GoBack, worked);
            }
            let home = self.replicas.choose(now, Asked::default());
            if home.is_some_and(|home| home.index != replica.index) {
                return (Ended::HomeMoved, worked);
            }
        }
    }

    async fn open(&self, replica: &Replica) -> Result<Streaming<WatchResponse>, Status> {
        let mut client = SnapshotServiceClient::new(replica.channel())
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        let response = client
            .watch(WatchRequest {
                plane: self.incarnation.0,
                name: self.name.clone(),
                configuration_version: self.confirmed_version(),
                credentials_revision: self.snapshot_credentials_revision(),
                resume: self.view.resume_vector(),
            })
            .await?;
        Ok(response.into_inner())
    }

    fn take_in(&self, replica: &Replica, message: WatchResponse) {
        self.gate.heard(Instant::now());
        match message.kind {
            Some(Kind::Snapshot(snapshot)) => {
                // What is wrong with it was said where it was found; the last good one stays.
                let _refused = self.install(snapshot, Origin::ControlPlane);
            }
            Some(Kind::Shard(message)) => {
                if let Some((shard, version)) = place(message.version) {
                    let updated = self.view.replace(shard, version, &message.values);
                    self.updated(updated);
                }
            }
            Some(Kind::Delta(message)) => {
                if let Some((shard, version)) = place(message.version) {
                    let updated = self.view.change(shard, version, &message.values);
                    self.updated(updated);
                }
            }
            Some(Kind::Heartbeat(heartbeat)) => self.heard(replica, &heartbeat),
            Some(Kind::Credentials(delta)) => self.renew_credentials(delta),
            // A kind of a newer control plane.
            None => {}
        }
    }

    fn updated(&self, updated: Updated) {
        self.metrics.hot_values_skipped.inc_by(updated.skipped);
    }

    fn heard(&self, replica: &Replica, heartbeat: &Heartbeat) {
        let moment = Instant::now();
        if let Some(freshness) = &heartbeat.freshness {
            self.clock
                .told(moment, Timestamp(freshness.store_time_unix_ms));
            self.metrics.clock_steps.set(self.clock.steps());
        }
        self.replicas
            .heard(replica, heartbeat.freshness.as_ref(), moment);
        self.set_live_data_planes(heartbeat.live_data_planes);
        let stale = heartbeat
            .freshness
            .as_ref()
            .is_some_and(|freshness| freshness.stale);
        self.set_following(!stale);
        if let Some(snapshot) = self.snapshot.load_full() {
            let scene = Scene {
                config: &snapshot.config,
                view: &self.view,
                now: self.clock.at(moment),
                newest_attempt: self.newest_attempt(),
            };
            self.shadow.refresh(scene, moment, !stale);
        }
    }
}

fn place(version: Option<ShardVersion>) -> Option<(Shard, tidegate_core::version::Version)> {
    let version = version?;
    let shard = u8::try_from(version.shard).ok().and_then(Shard::new)?;
    Some((shard, version_from_proto(version.version)))
}
