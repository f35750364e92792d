//! A cluster of three nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use tidegate_core::ids::{SHARDS, Shard};
use tidegate_core::version::Version;
use tidegate_store::conformance::Verdict;
use tidegate_store::conformance::hot::{HotStoreHost, concurrency, following, marks, writes};
use tidegate_store::hot::{Followed, HotStore, VersionVector};
use tidegate_store_redis::{RedisConfig, RedisHotStore, RedisMode};
use tidegate_test_support::{Redis, RedisOptions};
use tokio::time::timeout;

use crate::host::{Fault, Hand, STREAM_ENTRIES, config, eventually};

struct Cluster {
    nodes: Vec<Redis>,
}

impl Cluster {
    async fn start() -> Result<Self, Fault> {
        let mut nodes = Vec::new();
        for slots in [("0", "5460"), ("5461", "10922"), ("10923", "16383")] {
            let node = Redis::start_with(RedisOptions {
                cluster: true,
                ..RedisOptions::default()
            })
            .await?;
            // It starts with all slots.
            node.command(&["CLUSTER", "FLUSHSLOTS"]).await?;
            node.command(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1])
                .await?;
            let epoch = (nodes.len() + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])
                .await?;
            nodes.push(node);
        }
        let cluster = Self { nodes };
        cluster.meet().await?;
        Ok(cluster)
    }

    async fn meet(&self) -> Result<(), Fault> {
        let (first, others) = self.nodes.split_first().ok_or("no node")?;
        for node in others {
            // "<id> <ip>:<port>@<bus port>[,...] myself,..."
            let known = node.command(&["CLUSTER", "NODES"]).await?;
            let bus = known
                .as_text()
                .and_then(|text| text.split_once('@'))
                .map(|(_, rest)| {
                    rest.chars()
                        .take_while(char::is_ascii_digit)
                        .collect::<String>()
                })
                .ok_or("no bus port")?;
            let port = node.addr().port().to_string();
            first
                .command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                .await?;
        }
        for node in &self.nodes {
            eventually("the cluster to be complete", || async {
                let info = node.command(&["CLUSTER", "INFO"]).await.ok()?;
                let info = info.as_text()?;
                let complete = info.contains("cluster_state:ok")
                    && info.contains("cluster_known_nodes:3")
                    && info.contains("cluster_slots_ok:16384");
                complete.then_some(())
            })
            .await?;
        }
        Ok(())
    }

    fn config(&self) -> RedisConfig {
        RedisConfig {
            mode: RedisMode::Cluster,
            // The second alone: the others must be found through it.
            urls: self.nodes.iter().skip(1).take(1).map(Redis::url).collect(),
            ..config(String::new())
        }
    }
}

#[async_trait]
impl HotStoreHost for Cluster {
    async fn replica(&self) -> Result<Arc<dyn HotStore>, Fault> {
        Ok(Arc::new(RedisHotStore::new(&self.config())?))
    }

    async fn flush(&self) -> Verdict {
        for node in &self.nodes {
            node.flush_all().await?;
        }
        Ok(())
    }

    async fn swap_server(&self) -> Verdict {
        Err("the nodes of this cluster keep nothing".into())
    }

    fn log_entries(&self) -> usize {
        STREAM_ENTRIES + 250
    }
}

/// Every kind of call, on shards of every node, and rules of the suite that need many writers and followers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_nodes_is_one_hot_store() -> Result<(), Fault> {
    let cluster = Cluster::start().await?;
    let mut from = VersionVector::default();
    let mut hands = Vec::new();
    for shard in Shard::all() {
        let hand = Hand::new(&cluster.config(), shard.number())?;
        let incarnation = hand.begin().await?;
        if let Some(slot) = from.get_mut(shard.index()) {
            *slot = Version {
                incarnation,
                ..Version::default()
            };
        }
        hands.push((hand, incarnation));
    }
    let (first, _) = hands.first().ok_or("no shard")?;
    let mut followed = first.store.follow(from);
    for (hand, incarnation) in &hands {
        hand.put(*incarnation, "p:one", None, 1).await?;
        let image = hand.store.read(hand.shard).await?;
        assert_eq!((image.entries.len(), image.marks.len()), (1, 1));
    }
    let mut told = BTreeSet::new();
    while told.len() < usize::from(SHARDS) {
        match timeout(Duration::from_secs(30), followed.next()).await? {
            Some(Followed::Changes(shard, changes)) => {
                assert_eq!(changes.len(), 1);
                assert!(told.insert(shard), "{shard} twice");
            }
            other => return Err(format!("a follower was told {other:?}").into()),
        }
    }
    let mut owners = 0;
    for node in &cluster.nodes {
        let keys = node.command(&["DBSIZE"]).await?;
        owners += usize::from(keys.as_integer() > Some(0));
    }
    assert_eq!(owners, 3, "shards are on all nodes");

    cluster.flush().await?;
    let checks = first.store.check().await?;
    assert!(checks.iter().all(|check| check.found.is_none()));
    concurrency::sixteen_writers_lose_nothing(&cluster).await?;
    cluster.flush().await?;
    following::changes_come_in_order_and_once(&cluster).await?;
    cluster.flush().await?;
    following::a_gap_is_doubted_and_reading_repairs_it(&cluster).await?;
    cluster.flush().await?;
    marks::a_batch_replayed_by_two_replicas_counts_once(&cluster).await?;
    cluster.flush().await?;
    writes::what_was_written_is_read_back_byte_for_byte(&cluster).await?;
    Ok(())
}
