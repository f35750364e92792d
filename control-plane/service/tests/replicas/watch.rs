//! What data planes follow.

use std::collections::BTreeMap;

use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::config::v1::watch_response::Kind;
use tonic::Streaming;

use crate::fleet::{Fleet, apply_request, document, eventually, shard, within};

/// A data plane's side of a watch.
#[derive(Default)]
struct Follower {
    configuration: u64,
    credentials: Vec<config::Credential>,
    shards: BTreeMap<u32, common::Version>,
    values: BTreeMap<String, common::Version>,
    heartbeats: u32,
    wholes: u32,
}

fn order(version: common::Version) -> (u64, u64) {
    (version.incarnation, version.revision)
}

impl Follower {
    fn take(&mut self, message: config::WatchResponse) {
        match message.kind.unwrap() {
            Kind::Snapshot(snapshot) => {
                assert!(snapshot.version >= self.configuration);
                self.configuration = snapshot.version;
                self.credentials = snapshot.credentials;
            }
            Kind::Shard(whole) => {
                self.wholes += 1;
                self.reach(whole.version.unwrap());
                self.put(whole.values);
            }
            Kind::Delta(delta) => {
                self.reach(delta.version.unwrap());
                self.put(delta.values);
            }
            Kind::Credentials(delta) => {
                assert_eq!(delta.configuration_version, self.configuration);
                self.credentials = delta.credentials;
            }
            Kind::Heartbeat(heartbeat) => {
                assert!(heartbeat.live_data_planes >= 1);
                assert!(!heartbeat.freshness.unwrap().stale);
                self.heartbeats += 1;
            }
        }
    }

    fn reach(&mut self, version: common::ShardVersion) {
        let reached = version.version.unwrap();
        let before = self.shards.insert(version.shard, reached);
        if let Some(before) = before {
            assert!(
                order(before) <= order(reached),
                "shard {} went back",
                version.shard
            );
        }
    }

    fn put(&mut self, values: Vec<config::HotValue>) {
        for value in values {
            self.values.insert(value.key, value.version.unwrap());
        }
    }

    async fn until(
        &mut self,
        stream: &mut Streaming<config::WatchResponse>,
        done: impl Fn(&Self) -> bool,
    ) {
        within("the watch", async {
            while !done(self) {
                let message = stream.message().await.unwrap().unwrap();
                self.take(message);
            }
        })
        .await;
    }

    fn resume(&self) -> Vec<common::ShardVersion> {
        self.shards
            .iter()
            .map(|(&shard, &version)| common::ShardVersion {
                shard,
                version: Some(version),
            })
            .collect()
    }
}

#[tokio::test]
async fn watch_brings_configuration_shards_changes_and_heartbeats() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let mut stream = one.watch(7, Vec::new()).await;
    let mut follower = Follower::default();
    follower
        .until(&mut stream, |it| it.shards.len() == 16 && it.heartbeats > 0)
        .await;
    assert_eq!(follower.configuration, 1);
    assert_eq!(follower.credentials[0].secret, b"secret of a1");
    other.open_breaker(8).await;
    follower
        .until(&mut stream, |it| it.values.contains_key("p:alpha"))
        .await;
    let mut changed = document();
    changed.connections[0].priority = Some(5);
    other.apply(apply_request(changed)).await.unwrap();
    follower
        .until(&mut stream, |it| it.configuration == 2)
        .await;
    assert_eq!(one.status().await.data_planes, 1);
    drop(stream);
    eventually("the data plane to be gone", async || {
        one.status().await.data_planes == 0
    })
    .await;
}

#[tokio::test]
async fn resumed_watch_brings_only_what_is_newer() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    let mut stream = one.watch(7, Vec::new()).await;
    let mut follower = Follower::default();
    follower
        .until(&mut stream, |it| it.shards.len() == 16)
        .await;
    drop(stream);
    let wholes = follower.wholes;
    one.open_breaker(8).await;
    other.breaker_becomes("OPEN").await;
    let mut stream = other.watch(7, follower.resume()).await;
    follower
        .until(&mut stream, |it| it.values.contains_key("p:alpha"))
        .await;
    assert_eq!(
        follower.wholes, wholes,
        "a resume must not send shards whole"
    );
}

#[tokio::test]
async fn watcher_that_is_ahead_is_never_sent_back() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut stream = one.watch(7, Vec::new()).await;
    let mut follower = Follower::default();
    follower
        .until(&mut stream, |it| it.shards.len() == 16)
        .await;
    let mut resume = follower.resume();
    let ahead = resume
        .iter_mut()
        .find(|it| it.shard == u32::from(shard().number()))
        .unwrap();
    ahead.version.as_mut().unwrap().revision += 1;
    let ahead = *ahead;
    let mut stream = one.watch(7, resume).await;
    let mut resumed = Follower::default();
    resumed.shards.insert(ahead.shard, ahead.version.unwrap());
    // The first write is one it has already; the second is new. `reach` fails when the shard goes back.
    one.open_breaker(8).await;
    let reset = tidegate_proto::admin::v1::ResetRequest::default();
    one.admin().reset(reset).await.unwrap();
    resumed
        .until(&mut stream, |it| it.values.contains_key("p:alpha"))
        .await;
    resumed.until(&mut stream, |it| it.heartbeats >= 2).await;
    assert!(order(resumed.shards[&ahead.shard]) >= order(ahead.version.unwrap()));
}
