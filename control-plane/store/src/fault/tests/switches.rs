use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tidegate_core::ids::Shard;
use tidegate_core::version::{Incarnation, Version};
use tokio::time::Instant;

use crate::codec::NEVER_LATE;
use crate::fault::FaultyHotStore;
use crate::hot::{
    Followed, HotStore, HotStoreError, RefusalReason, ShardWrite, VersionVector, WriteOutcome,
    WriteValue,
};
use crate::memory::MemoryHotStore;

const LIMIT: Duration = Duration::from_millis(50);

fn shard() -> Shard {
    Shard::new(0).unwrap()
}

async fn store() -> (FaultyHotStore<MemoryHotStore>, Incarnation) {
    let memory = Arc::new(MemoryHotStore::default());
    let begun = memory.begin_incarnation(shard(), None, Incarnation(0), NEVER_LATE);
    let incarnation = begun.await.unwrap().unwrap();
    (FaultyHotStore::new(memory, LIMIT), incarnation)
}

fn write(incarnation: Incarnation, key: &str) -> ShardWrite {
    ShardWrite {
        shard: shard(),
        incarnation,
        not_after: NEVER_LATE,
        values: vec![WriteValue {
            key: key.to_owned(),
            expected: None,
            schema: 1,
            payload: vec![],
            expires_at: NEVER_LATE,
        }],
        marks: vec![],
    }
}

async fn keys(store: &FaultyHotStore<MemoryHotStore>) -> Vec<String> {
    let image = store.store().read(shard()).await.unwrap();
    image.entries.into_iter().map(|entry| entry.key).collect()
}

fn timed_out(answer: &Result<WriteOutcome, HotStoreError>) -> bool {
    matches!(answer, Err(HotStoreError::Timeout))
}

#[tokio::test(start_paused = true)]
async fn a_late_write_runs_when_it_is_told_to() {
    let (store, incarnation) = store().await;
    store.delay_next_writes_past_limit(1);
    assert!(timed_out(&store.write(write(incarnation, "late")).await));
    assert!(keys(&store).await.is_empty());
    let answer = store.write(write(incarnation, "on time")).await;
    assert!(matches!(answer, Ok(WriteOutcome::Written { .. })));
    let outcomes = store.run_parked().await;
    assert!(matches!(
        outcomes.as_slice(),
        [Ok(WriteOutcome::Written { .. })]
    ));
    assert_eq!(keys(&store).await, ["late", "on time"]);
    // Or never.
    store.delay_next_writes_past_limit(1);
    assert!(timed_out(&store.write(write(incarnation, "lost")).await));
    assert_eq!(store.drop_parked(), 1);
    assert!(store.run_parked().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_a_time_out_of_a_write_that_ran() {
    let (store, incarnation) = store().await;
    store.lose_next_answers(1);
    assert!(timed_out(&store.write(write(incarnation, "ran")).await));
    assert_eq!(keys(&store).await, ["ran"]);
    let again = store.write(write(incarnation, "ran")).await.unwrap();
    let WriteOutcome::Refused(refusal) = again else {
        panic!("written twice");
    };
    assert_eq!(refusal.reason, RefusalReason::Conflict);
}

#[tokio::test(start_paused = true)]
async fn calls_into_a_freeze_wait_until_it_ends_or_their_limit() {
    let (store, incarnation) = store().await;
    store.freeze();
    assert!(matches!(
        store.read(shard()).await,
        Err(HotStoreError::Timeout)
    ));
    assert!(timed_out(&store.write(write(incarnation, "held")).await));
    let waits = store.time();
    tokio::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(store.thaw().await.len(), 1);
    assert!(waits.await.is_ok());
    assert_eq!(keys(&store).await, ["held"]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_store_tells_its_followers_nothing() {
    let (store, incarnation) = store().await;
    let mut from = VersionVector::default();
    from[0] = Version {
        incarnation,
        ..Version::default()
    };
    let mut followed = store.follow(from);
    store.freeze();
    let behind = store.store().write(write(incarnation, "one")).await;
    assert!(behind.is_ok());
    let waiting = tokio::time::timeout(Duration::from_secs(5), followed.next()).await;
    assert!(waiting.is_err());
    store.thaw().await;
    let told = followed.next().await.unwrap();
    assert!(matches!(told, Followed::Changes(of, changes) if of == shard() && changes.len() == 1));
}

#[tokio::test(start_paused = true)]
async fn each_nth_call_fails() {
    let (store, _) = store().await;
    store.fail_each(NonZeroU64::new(3));
    let mut failed = Vec::new();
    for call in 1..=7 {
        if matches!(store.time().await, Err(HotStoreError::Unreachable(_))) {
            failed.push(call);
        }
    }
    assert_eq!(failed, [3, 6]);
    store.fail_each(None);
    for _ in 0..7 {
        assert!(store.time().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_paid_each_way() {
    let (store, incarnation) = store().await;
    store.delay_each_way(Duration::from_millis(20));
    let start = Instant::now();
    assert!(store.write(write(incarnation, "far")).await.is_ok());
    assert_eq!(start.elapsed(), Duration::from_millis(40));
    store.delay_each_way(Duration::from_millis(30));
    // It arrives within the limit, its answer does not.
    assert!(timed_out(&store.write(write(incarnation, "farther")).await));
    assert_eq!(keys(&store).await, ["far", "farther"]);
    store.delay_each_way(Duration::from_millis(60));
    assert!(timed_out(
        &store.write(write(incarnation, "farthest")).await
    ));
    assert_eq!(keys(&store).await, ["far", "farther"]);
    assert_eq!(store.run_parked().await.len(), 1);
    assert_eq!(keys(&store).await, ["far", "farther", "farthest"]);
}

#[tokio::test(start_paused = true)]
async fn changes_can_be_late_while_calls_are_answered() {
    const LATE: Duration = Duration::from_millis(20);
    let (store, incarnation) = store().await;
    let mut from = VersionVector::default();
    from[0] = Version {
        incarnation,
        ..Version::default()
    };
    let mut followed = store.follow(from);
    store.delay_changes(LATE);
    let start = Instant::now();
    assert!(store.write(write(incarnation, "late")).await.is_ok());
    assert_eq!(keys(&store).await, ["late"]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    followed.next().await.unwrap();
    assert_eq!(start.elapsed(), LATE);
}
