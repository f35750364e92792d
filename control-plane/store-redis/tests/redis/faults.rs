//! Servers that go away and networks that lie.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::hot::{HotStore as _, HotStoreError, RefusalReason, WriteOutcome};
use tidegate_store_redis::{RedisConfig, RedisHotStore, RedisLimits};
use tidegate_test_support::{Direction, FaultProxy, Redis};
use tokio::task::JoinSet;

use crate::host::{Fault, Hand, config, eventually, patient};

/// Calls may take this long in tests that wait for calls to fail.
const SHORT: Duration = Duration::from_millis(200);

fn impatient(url: String) -> RedisConfig {
    RedisConfig {
        limits: RedisLimits {
            call: SHORT,
            read: SHORT,
            silent_calls: 3,
            ..patient()
        },
        ..config(url)
    }
}

#[tokio::test]
async fn a_store_may_start_before_its_server() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    redis.kill().await?;
    let store = RedisHotStore::new(&impatient(redis.url()))?;
    assert!(matches!(
        store.time().await,
        Err(HotStoreError::Unreachable(_))
    ));
    redis.start_again().await?;
    eventually("the store to answer", || async { store.time().await.ok() }).await?;
    store.close().await;
    assert!(store.time().await.is_err());
    Ok(())
}

#[tokio::test]
async fn calls_fail_while_the_server_is_away_and_work_when_it_is_back() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&impatient(redis.url()), 4)?;
    eventually("the store to answer", || async { hand.check().await.ok() }).await?;
    redis.kill().await?;
    for _ in 0..10 {
        let answer = hand.check().await;
        assert!(
            matches!(
                answer,
                Err(HotStoreError::Unreachable(_) | HotStoreError::Timeout)
            ),
            "{answer:?}"
        );
    }
    redis.start_again().await?;
    eventually("the store to answer", || async { hand.check().await.ok() }).await?;
    Ok(())
}

#[tokio::test]
async fn a_restart_without_persistence_is_an_empty_store() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    hand.put(incarnation, "p:one", None, 1).await?;
    redis.kill().await?;
    redis.start_again().await?;
    let seen = eventually("the store to answer", || async { hand.check().await.ok() }).await?;
    assert_eq!((seen.incarnation, seen.found), (None, None));
    let write = hand.write(incarnation, "p:one", None, 2);
    let WriteOutcome::Refused(refusal) = hand.store.write(write).await? else {
        return Err("a store without memory was written to".into());
    };
    assert_eq!(refusal.reason, RefusalReason::Empty);
    assert!(hand.begin().await? > incarnation);
    Ok(())
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_known_by_its_mark() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let proxy = FaultProxy::start(redis.addr()).await?;
    let mut through_proxy = impatient(redis.url_through(proxy.addr()));
    through_proxy.limits.silent_calls = 1_000;
    let hand = Hand::new(&through_proxy, 4)?;
    let incarnation =
        eventually("the store to answer", || async { hand.begin().await.ok() }).await?;
    let near = Hand::new(&config(redis.url()), 4)?;
    // The server knows the script from here on, so that it can run without an answer in between.
    near.put(incarnation, "p:zero", None, 1).await?;
    proxy.freeze_direction(Direction::ToClient);
    let write = hand.write(incarnation, "p:one", None, 2);
    let answer = hand.store.write(write.clone()).await;
    assert!(matches!(answer, Err(HotStoreError::Timeout)), "{answer:?}");
    eventually("the write to have run", || async {
        near.check()
            .await
            .ok()
            .filter(|check| check.revision.0 == 2)
    })
    .await?;
    proxy.resume();
    let answer = eventually("an answer", || async {
        hand.store.write(write.clone()).await.ok()
    });
    let WriteOutcome::Refused(refusal) = answer.await? else {
        return Err("the same report was applied twice".into());
    };
    assert_eq!(refusal.reason, RefusalReason::AlreadyApplied);
    assert_eq!(refusal.marks.first().map(|mark| mark.number), Some(2));
    Ok(())
}

#[tokio::test]
async fn a_connection_that_answers_nothing_is_replaced() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let proxy = FaultProxy::start(redis.addr()).await?;
    let store = RedisHotStore::new(&impatient(redis.url_through(proxy.addr())))?;
    eventually("the store to answer", || async { store.time().await.ok() }).await?;
    let before = proxy.accepted();
    proxy.freeze();
    eventually("a new connection", || async {
        assert!(store.time().await.is_err(), "a frozen network answered");
        (proxy.accepted() > before).then_some(())
    })
    .await?;
    proxy.resume();
    eventually("the store to answer", || async { store.time().await.ok() }).await?;
    Ok(())
}

#[tokio::test]
async fn callers_that_give_up_early_are_enough_to_replace_a_dead_connection() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let proxy = FaultProxy::start(redis.addr()).await?;
    let mut limits = impatient(redis.url_through(proxy.addr()));
    limits.limits.call = Duration::from_secs(60);
    let store = RedisHotStore::new(&limits)?;
    eventually("the store to answer", || async { store.time().await.ok() }).await?;
    let before = proxy.accepted();
    proxy.freeze();
    eventually("a new connection", || async {
        let given_up = tokio::time::timeout(Duration::from_millis(15), store.time()).await;
        assert!(!matches!(given_up, Ok(Ok(_))), "a frozen network answered");
        (proxy.accepted() > before).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_given_them_again() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let first = hand.put(incarnation, "p:one", None, 1).await?;
    redis.command(&["SCRIPT", "FLUSH"]).await?;
    hand.put(incarnation, "p:one", Some(first), 2).await?;
    redis.command(&["SCRIPT", "FLUSH"]).await?;
    assert_eq!(hand.store.read(hand.shard).await?.entries.len(), 1);
    assert_eq!(hand.store.announced().await?, []);
    Ok(())
}

/// A server without memory refuses the script before its first write, and scripts that only read still run.
#[tokio::test]
async fn a_full_server_writes_nothing_and_still_reads() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let first = hand.put(incarnation, "p:one", None, 1).await?;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let refused = hand
        .store
        .write(hand.write(incarnation, "p:one", Some(first), 2))
        .await;
    assert!(
        matches!(refused, Err(HotStoreError::Unreachable(_))),
        "{refused:?}"
    );
    let image = hand.store.read(hand.shard).await?;
    assert_eq!(image.check.revision.0, 1);
    assert_eq!(image.marks.first().map(|mark| mark.number), Some(1));
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await?;
    assert_eq!(
        hand.put(incarnation, "p:one", Some(first), 2)
            .await?
            .revision
            .0,
        2
    );
    Ok(())
}

/// The rule of the suite with a real network between: 1 ms each way through a proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_behind_a_slow_network_gets_its_turn() -> Result<(), Fault> {
    use std::sync::atomic::{AtomicBool, Ordering};
    use tidegate_store::pacing::Pacing;

    async fn take_turns(
        hand: &Hand,
        incarnation: tidegate_core::version::Incarnation,
        plane: u64,
        mut turns: impl FnMut() -> bool,
    ) -> Result<u64, Fault> {
        let (mut pacing, mut seen, mut taken) = (Pacing::default(), None, 0);
        while turns() {
            tokio::time::sleep(pacing.wait(std::time::Instant::now())).await;
            let sent = std::time::Instant::now();
            loop {
                let mut write = hand.write(incarnation, "p:shared", seen, taken + 1);
                for run in &mut write.marks {
                    run.plane.0 = plane;
                }
                match hand.store.write(write).await? {
                    WriteOutcome::Written { revision, .. } => {
                        seen = Some(tidegate_core::version::Version {
                            incarnation,
                            revision,
                        });
                        break;
                    }
                    WriteOutcome::Refused(refusal) => {
                        assert_eq!(refusal.reason, RefusalReason::Conflict);
                        seen = refusal
                            .values
                            .into_iter()
                            .flatten()
                            .next()
                            .map(|entry| entry.version);
                    }
                }
            }
            pacing.written(sent, std::time::Instant::now());
            taken += 1;
        }
        Ok(taken)
    }

    let redis = Redis::start().await?;
    let proxy = FaultProxy::start(redis.addr()).await?;
    let far = Hand::new(&config(redis.url_through(proxy.addr())), 4)?;
    let incarnation = far.begin().await?;
    proxy.set_delay(Duration::from_millis(1));
    let done = Arc::new(AtomicBool::new(false));
    let mut near = JoinSet::new();
    for plane in [1, 2] {
        let hand = Hand::new(&config(redis.url()), 4)?;
        let done = Arc::clone(&done);
        near.spawn(async move {
            take_turns(&hand, incarnation, plane, || !done.load(Ordering::Relaxed)).await
        });
    }
    let mut left = 20;
    let turns = take_turns(&far, incarnation, 3, || {
        left -= 1;
        left >= 0
    });
    let mut writes = tokio::time::timeout(Duration::from_secs(60), turns).await??;
    assert_eq!(writes, 20);
    done.store(true, Ordering::Relaxed);
    while let Some(ended) = near.join_next().await {
        writes += ended??;
    }
    assert_eq!(far.check().await?.revision.0, writes);
    Ok(())
}
