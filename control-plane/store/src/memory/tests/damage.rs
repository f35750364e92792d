use std::sync::Arc;

use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Version};

use crate::codec::NEVER_LATE;
use crate::hot::{
    Announcement, HotStore as _, RefusalReason, ShardWrite, WriteOutcome, WriteValue,
};
use crate::memory::clock::ManualClock;
use crate::memory::{MemoryHotStore, MemoryOptions};

const START: Timestamp = Timestamp(1_000_000);

fn store() -> (Arc<ManualClock>, MemoryHotStore) {
    let clock = Arc::new(ManualClock::new(START));
    let options = MemoryOptions {
        log_entries: 16,
        undo_writes: 4,
    };
    let store = MemoryHotStore::new(Arc::clone(&clock) as _, options);
    (clock, store)
}

fn shard(number: u8) -> Shard {
    Shard::new(number).unwrap()
}

async fn begin(store: &MemoryHotStore, shard: Shard) -> Incarnation {
    let found = store.check().await.unwrap()[shard.index()].found;
    store
        .begin_incarnation(shard, found, found.unwrap_or_default(), NEVER_LATE)
        .await
        .unwrap()
        .unwrap()
}

async fn put(
    store: &MemoryHotStore,
    shard: Shard,
    incarnation: Incarnation,
    expected: Option<Version>,
    payload: &str,
) -> WriteOutcome {
    store
        .write(ShardWrite {
            shard,
            incarnation,
            not_after: NEVER_LATE,
            values: vec![WriteValue {
                key: "p:x".to_owned(),
                expected,
                schema: 1,
                payload: payload.into(),
                expires_at: START.plus_ms(60_000),
            }],
            marks: vec![],
        })
        .await
        .unwrap()
}

async fn payloads(store: &MemoryHotStore, shard: Shard) -> Vec<String> {
    let image = store.read(shard).await.unwrap();
    image
        .entries
        .into_iter()
        .map(|entry| String::from_utf8(entry.payload).unwrap())
        .collect()
}

#[tokio::test]
async fn a_restart_from_an_older_image_is_another_server_with_older_values() {
    let (_, store) = store();
    let incarnation = begin(&store, shard(1)).await;
    put(&store, shard(1), incarnation, None, "one").await;
    let image = store.image();
    let known = Some(Version::new(incarnation.0, 1));
    put(&store, shard(1), incarnation, known, "two").await;
    store.restart_from(&image);
    assert_eq!(payloads(&store, shard(1)).await, ["one"]);
    let refused = put(&store, shard(1), incarnation, known, "three").await;
    let WriteOutcome::Refused(refusal) = refused else {
        panic!("a write of an earlier server's incarnation was done");
    };
    assert_eq!(refusal.reason, RefusalReason::OtherServer);
    assert!(begin(&store, shard(1)).await > incarnation);
}

#[tokio::test]
async fn the_last_writes_can_be_lost_over_all_shards() {
    let (_, store) = store();
    let one = begin(&store, shard(1)).await;
    let two = begin(&store, shard(2)).await;
    put(&store, shard(1), one, None, "one").await;
    put(&store, shard(2), two, None, "two").await;
    let known = Some(Version::new(one.0, 1));
    put(&store, shard(1), one, known, "three").await;
    let server = store.server();
    assert_eq!(store.lose_last_writes(2), 2);
    assert_eq!(payloads(&store, shard(1)).await, ["one"]);
    assert_eq!(payloads(&store, shard(2)).await, Vec::<String>::new());
    let checks = store.check().await.unwrap();
    assert_eq!((checks[1].revision.0, checks[2].revision.0), (1, 0));
    assert!(store.server() > server);
    assert_eq!(checks[1].incarnation, None);
    // What is left: one write and the beginning of an incarnation (the other was dropped from the list).
    assert_eq!(store.lose_last_writes(9), 2);
    let checks = store.check().await.unwrap();
    assert_eq!((checks[1].found, checks[2].found), (Some(one), None));
}

#[tokio::test]
async fn a_restart_without_persistence_is_an_empty_other_server() {
    let (_, store) = store();
    let incarnation = begin(&store, shard(1)).await;
    put(&store, shard(1), incarnation, None, "one").await;
    let replica = Announcement {
        replica: "r".to_owned(),
        schema: 1,
    };
    let ttl = std::time::Duration::from_secs(60);
    store.announce(replica, ttl).await.unwrap();
    store.restart_empty();
    assert_eq!(payloads(&store, shard(1)).await, Vec::<String>::new());
    assert_eq!(store.check().await.unwrap()[1].found, None);
    assert_eq!(store.announced().await.unwrap(), []);
}

#[tokio::test]
async fn a_stepped_clock_ends_values_and_makes_writes_late() {
    let (clock, store) = store();
    let incarnation = begin(&store, shard(1)).await;
    put(&store, shard(1), incarnation, None, "one").await;
    clock.advance_ms(60_000);
    assert_eq!(payloads(&store, shard(1)).await, ["one"]);
    store.step_clock(1);
    assert_eq!(payloads(&store, shard(1)).await, Vec::<String>::new());
    assert_eq!(store.time().await.unwrap(), START.plus_ms(60_001));
    store.step_clock(-60_001);
    assert_eq!(store.time().await.unwrap(), START);
    assert_eq!(payloads(&store, shard(1)).await, Vec::<String>::new());
}
