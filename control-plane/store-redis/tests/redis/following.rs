//! Followers of real streams.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tidegate_core::ids::{SHARDS, Shard};
use tidegate_core::version::{Revision, Version};
use tidegate_store::hot::{Followed, HotStore as _, VersionVector};
use tidegate_test_support::{FaultProxy, Redis};
use tokio::time::timeout;

use crate::host::{Fault, Hand, config};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a follower is told next.
pub(crate) async fn next(followed: &mut BoxStream<'static, Followed>) -> Result<Followed, Fault> {
    let next = timeout(PATIENCE, followed.next()).await?;
    Ok(next.ok_or("the stream of a follower ended")?)
}

fn from(shard: Shard, version: Version) -> VersionVector {
    let mut vector = VersionVector::default();
    if let Some(slot) = vector.get_mut(shard.index()) {
        *slot = version;
    }
    vector
}

#[tokio::test]
async fn a_follower_that_lost_its_connection_doubts_every_shard_and_goes_on() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let proxy = FaultProxy::start(redis.addr()).await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let start = Version {
        incarnation,
        ..Version::default()
    };
    let far = Hand::new(&config(redis.url_through(proxy.addr())), 4)?;
    let mut followed = far.store.follow(from(hand.shard, start));
    let first = hand.put(incarnation, "p:one", None, 1).await?;
    assert!(matches!(next(&mut followed).await?, Followed::Changes(of, _) if of == hand.shard));
    proxy.reset_connections();
    let mut doubted = BTreeSet::new();
    while doubted.len() < usize::from(SHARDS) {
        match next(&mut followed).await? {
            Followed::Doubt(shard) => assert!(doubted.insert(shard), "{shard} doubted twice"),
            Followed::Changes(..) => return Err("a change that was told before".into()),
        }
    }
    let second = hand.put(incarnation, "p:one", Some(first), 2).await?;
    let Followed::Changes(of, changes) = next(&mut followed).await? else {
        return Err("a doubt without need".into());
    };
    assert_eq!(of, hand.shard);
    assert_eq!(
        changes
            .iter()
            .map(|change| change.version)
            .collect::<Vec<_>>(),
        [second]
    );
    Ok(())
}

#[tokio::test]
async fn a_follower_is_told_of_a_flush_though_nobody_writes() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let at = hand.put(incarnation, "p:one", None, 1).await?;
    let mut followed = hand.store.follow(from(hand.shard, at));
    // It is connected once it was told of something.
    hand.put(incarnation, "p:two", None, 2).await?;
    assert!(matches!(next(&mut followed).await?, Followed::Changes(..)));
    redis.flush_all().await?;
    assert_eq!(next(&mut followed).await?, Followed::Doubt(hand.shard));
    Ok(())
}

#[tokio::test]
async fn a_trimmed_stream_is_doubted_though_nobody_writes() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    hand.put(incarnation, "p:one", None, 1).await?;
    hand.put(incarnation, "p:two", None, 2).await?;
    redis
        .command(&["XTRIM", "tidegate:1:{s04}:stream", "MAXLEN", "0"])
        .await?;
    let behind = Version {
        incarnation,
        revision: Revision(1),
    };
    let mut followed = hand.store.follow(from(hand.shard, behind));
    assert_eq!(next(&mut followed).await?, Followed::Doubt(hand.shard));
    Ok(())
}

#[tokio::test]
async fn an_entry_of_a_newer_layout_is_doubted_and_passed() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let at = Version {
        incarnation,
        ..Version::default()
    };
    let mut followed = hand.store.follow(from(hand.shard, at));
    redis.command(&["INCR", "tidegate:1:{s04}:rev"]).await?;
    let id = format!("{}-1", incarnation.0);
    redis
        .command(&["XADD", "tidegate:1:{s04}:stream", &id, "w:new", "something"])
        .await?;
    assert_eq!(next(&mut followed).await?, Followed::Doubt(hand.shard));
    let second = hand.put(incarnation, "p:one", None, 1).await?;
    assert_eq!(second.revision, Revision(2));
    assert!(matches!(next(&mut followed).await?, Followed::Changes(of, _) if of == hand.shard));
    Ok(())
}

/// A clock that went back and a replica that knows nothing can begin a lower incarnation than there was.
#[tokio::test]
async fn an_incarnation_that_went_back_is_doubted() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let incarnation = hand.begin().await?;
    let later = Version::new(incarnation.0 + 3_600_000, 9);
    let mut followed = hand.store.follow(from(hand.shard, later));
    assert_eq!(next(&mut followed).await?, Followed::Doubt(hand.shard));
    hand.put(incarnation, "p:one", None, 1).await?;
    assert!(matches!(next(&mut followed).await?, Followed::Changes(of, _) if of == hand.shard));
    Ok(())
}

/// `meta` alone may be lost (a hand, an eviction); the ids of the stream must not collide then.
#[tokio::test]
async fn an_incarnation_begins_after_all_that_the_stream_held() -> Result<(), Fault> {
    let redis = Redis::start().await?;
    let hand = Hand::new(&config(redis.url()), 4)?;
    let first = hand.begin().await?;
    let ahead = tidegate_core::version::Incarnation(first.0 + 3_600_000);
    let begun = hand
        .store
        .begin_incarnation(
            hand.shard,
            Some(first),
            ahead,
            tidegate_store::codec::NEVER_LATE,
        )
        .await?
        .ok_or("no incarnation stands")?;
    hand.put(begun, "p:one", None, 1).await?;
    redis.command(&["DEL", "tidegate:1:{s04}:meta"]).await?;
    assert_eq!(hand.check().await?.found, None);
    let again = hand.begin().await?;
    assert!(again > begun, "{again:?} is not after {begun:?}");
    hand.put(again, "p:two", None, 2).await?;
    // The same for the counter.
    redis.command(&["DEL", "tidegate:1:{s04}:rev"]).await?;
    let seen = hand.check().await?;
    assert_eq!((seen.incarnation, seen.found), (None, Some(again)));
    let last = hand.begin().await?;
    assert!(last > again);
    hand.put(last, "p:three", None, 3).await?;
    Ok(())
}
