use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tidegate_core::ids::{PlaneIncarnation, SHARDS, Shard};
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_proto::config::v1::watch_response::Kind;
use tidegate_store::durable::StoredVersion;
use tidegate_store::hot::{Change, ShardCheck, ShardImage};
use tidegate_store::seal::{Sealer, SealingKey};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::{Live, Plane, Present, Watchers};
use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::telemetry::metrics::{Metrics, SharedRegistry};
use crate::test_durable;
use crate::view::View;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

async fn watchers(directory: &std::path::Path) -> Watchers {
    let durable = test_durable::open(directory).await;
    let key = SealingKey::parse(&SecretString::from(KEY)).unwrap();
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let config = Published::new(
        Arc::new(durable),
        Arc::new(Sealer::new(&key).unwrap()),
        BTreeMap::new(),
        Arc::clone(&metrics),
    );
    Watchers {
        view: Arc::new(View::new(local_now())),
        config: Arc::new(config),
        clock: Arc::new(Clock::new()),
        metrics,
        live: Live::default(),
    }
}

fn read_whole(view: &View, shard: Shard, at: Version) {
    let doubt = view.doubt(shard);
    let image = ShardImage {
        check: ShardCheck {
            incarnation: Some(at.incarnation),
            found: Some(at.incarnation),
            revision: at.revision,
            now: Timestamp(0),
        },
        entries: Vec::new(),
        marks: Vec::new(),
    };
    assert!(view.replace(shard, image, local_now(), doubt));
}

#[tokio::test]
async fn watcher_that_lags_gets_the_shards_whole_and_slows_down_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let watchers = Arc::new(watchers(directory.path()).await);
    let view = Arc::clone(&watchers.view);
    for shard in Shard::all() {
        read_whole(&view, shard, Version::new(1, 1));
    }
    // It takes one message and then none for a long time.
    let (sender, mut receiver) = mpsc::channel(1);
    let tasks = TaskTracker::new();
    let feeding = Arc::clone(&watchers);
    tasks.spawn(async move {
        let nothing = [Version::default(); SHARDS as usize];
        let plane = Plane::new(PlaneIncarnation(7), "slow", 0);
        let known = StoredVersion::default();
        feeding.feed(plane, known, nothing, sender).await;
    });
    receiver.recv().await.unwrap().unwrap();
    let busy = Shard::new(3).unwrap();
    let last = Version::new(1, 5_001);
    for revision in 2..=last.revision.0 {
        let change = Change {
            version: Version::new(1, revision),
            entries: Vec::new(),
            marks: Vec::new(),
        };
        view.apply(busy, change);
    }
    let mut whole_at_the_end = false;
    let reading = async {
        while !whole_at_the_end {
            let message = receiver.recv().await.unwrap().unwrap();
            if let Some(Kind::Shard(whole)) = message.kind {
                let version = whole.version.unwrap();
                whole_at_the_end = version.shard == 3
                    && version.version.unwrap().revision == last.revision.0
                    && watchers.metrics.lagging_watchers.get() > 0;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading)
        .await
        .expect("the shard whole");
    drop(receiver);
    tasks.close();
    tasks.wait().await;
    assert_eq!(watchers.live.count(), 0);
}

#[test]
fn who_watches_is_told_once_with_the_configuration_it_uses() {
    let live = Live::default();
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let plane = |number, name, version| Plane::new(PlaneIncarnation(number), name, version);
    let first = Present::new(&live, plane(1, "b", 3), &metrics);
    let again = Present::new(&live, plane(1, "b", 0), &metrics);
    let second = Present::new(&live, plane(2, "a", 0), &metrics);
    let seen = |live: &Live| -> Vec<(String, u64, u64)> {
        let planes = live.planes().into_iter();
        planes
            .map(|it| (it.name, it.configuration, it.refused))
            .collect()
    };
    assert_eq!(
        seen(&live),
        [("a".to_owned(), 0, 0), ("b".to_owned(), 3, 0)]
    );
    assert!(live.tell(PlaneIncarnation(2), 4, 5));
    assert!(
        !live.tell(PlaneIncarnation(9), 4, 0),
        "it does not watch here"
    );
    drop(first);
    assert_eq!(live.count(), 2);
    drop(again);
    assert_eq!(seen(&live), [("a".to_owned(), 4, 5)]);
    drop(second);
    assert_eq!(live.count(), 0);
}
