//! Rules of the change stream.

use tidegate_core::version::{Incarnation, Revision, Version};
use tokio::task::JoinSet;

use crate::conformance::Verdict;
use crate::hot::HotStore;

use super::HotStoreHost;
use super::steps::{
    Counter, Fault, Watcher, begin, check, run, shard, standing, value, vector, write_of, written,
};

fn at(incarnation: Incarnation, revision: u64) -> Version {
    Version {
        incarnation,
        revision: Revision(revision),
    }
}

/// Adds to a counter until the shard's revision is `last`.
async fn write_up_to(
    store: &std::sync::Arc<dyn HotStore>,
    incarnation: Incarnation,
    last: u64,
) -> Result<(), Fault> {
    let mut counter = Counter::new(std::sync::Arc::clone(store), incarnation, "p:counter").await?;
    while check(&**store, shard()).await?.revision.0 < last {
        counter.add_one(&[]).await?;
    }
    Ok(())
}

/// Every follower is told of every write once, in the order of revisions, while several replicas write.
pub async fn changes_come_in_order_and_once(host: &impl HotStoreHost) -> Verdict {
    const WRITERS: u64 = 4;
    const EACH: u64 = 40;
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let start = vector(at(incarnation, 0));
    let mut watchers = [
        Watcher::new(&*host.replica().await?, start),
        Watcher::new(&*host.replica().await?, start),
    ];
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut counter =
            Counter::new(host.replica().await?, incarnation, &format!("p:w{writer}")).await?;
        writers.spawn(async move {
            for number in 1..=EACH {
                counter.add_one(&[run(writer + 1, number, number)]).await?;
            }
            Ok::<_, Fault>(())
        });
    }
    let last = at(incarnation, WRITERS * EACH);
    for watcher in &mut watchers {
        watcher.until_version(last).await?;
        assert_eq!(
            watcher.revisions(),
            (1..=WRITERS * EACH).collect::<Vec<_>>()
        );
        assert_eq!(watcher.doubts, 0);
        for change in &watcher.changes {
            assert_eq!(change.version.incarnation, incarnation);
            assert_eq!((change.entries.len(), change.marks.len()), (1, 1));
            assert!(
                change
                    .entries
                    .iter()
                    .all(|entry| entry.version == change.version)
            );
        }
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Who was away continues after what it knows: nothing twice, nothing left out.
pub async fn a_follower_resumes_after_its_vector(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    write_up_to(&store, incarnation, 10).await?;
    let mut watcher = Watcher::new(&*store, vector(at(incarnation, 4)));
    watcher.until_version(at(incarnation, 10)).await?;
    assert_eq!(watcher.revisions(), [5, 6, 7, 8, 9, 10]);
    drop(watcher);
    write_up_to(&store, incarnation, 13).await?;
    let mut watcher = Watcher::new(&*store, vector(at(incarnation, 10)));
    watcher.until_version(at(incarnation, 13)).await?;
    assert_eq!(watcher.revisions(), [11, 12, 13]);
    assert_eq!(watcher.doubts, 0);
    Ok(())
}

/// A follower that starts from a reading is told nothing but what comes after it.
pub async fn a_follower_with_nothing_to_fear_gets_no_doubt(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    write_up_to(&store, incarnation, 3).await?;
    let image = store.read(shard()).await?;
    assert_eq!(image.check.revision.0, 3);
    let mut watcher = Watcher::new(&*store, vector(at(incarnation, 3)));
    let empty_shards_are_no_doubt = check(&*store, super::steps::other_shard()).await?;
    assert_eq!(empty_shards_are_no_doubt.found, None);
    write_up_to(&store, incarnation, 4).await?;
    watcher.until_version(at(incarnation, 4)).await?;
    assert_eq!((watcher.revisions(), watcher.doubts), (vec![4], 0));
    Ok(())
}

/// A follower whose place is no longer in the log is told to read, and the reading with what comes after it
/// is everything.
pub async fn a_gap_is_doubted_and_reading_repairs_it(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let once = vec![value(&*store, "p:written-once", None, "kept").await?];
    written(&*store, write_of(incarnation, once, vec![run(5, 1, 3)])).await?;
    let last = u64::try_from(host.log_entries())? + 1;
    write_up_to(&store, incarnation, last).await?;
    let mut watcher = Watcher::new(&*store, vector(at(incarnation, 0)));
    watcher
        .until("a doubt", |watcher| watcher.doubts > 0)
        .await?;
    let image = store.read(shard()).await?;
    assert_eq!(image.check.incarnation, Some(incarnation));
    assert_eq!(image.marks.len(), 1);
    let mut keys: Vec<_> = image
        .entries
        .iter()
        .map(|entry| entry.key.as_str())
        .collect();
    keys.sort_unstable();
    assert_eq!(keys, ["p:counter", "p:written-once"]);
    let doubts = watcher.doubts;
    watcher.changes.clear();
    write_up_to(&store, incarnation, last + 3).await?;
    watcher.until_version(at(incarnation, last + 3)).await?;
    assert_eq!(watcher.doubts, doubts, "one doubt is enough");
    let new: Vec<_> = watcher
        .revisions()
        .into_iter()
        .filter(|revision| *revision > image.check.revision.0)
        .collect();
    assert_eq!(new, [last + 1, last + 2, last + 3]);
    Ok(())
}

/// A follower is told to read when an incarnation begins, and then follows that.
pub async fn a_follower_is_told_of_a_new_incarnation(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let old = begin(&*store, shard()).await?;
    write_up_to(&store, old, 2).await?;
    let mut watcher = Watcher::new(&*store, vector(at(old, 0)));
    watcher.until_version(at(old, 2)).await?;
    assert_eq!(watcher.doubts, 0);
    host.flush().await?;
    let new = begin(&*store, shard()).await?;
    watcher
        .until("a doubt", |watcher| watcher.doubts > 0)
        .await?;
    let seen = check(&*store, shard()).await?;
    assert_eq!(seen.incarnation, Some(new));
    write_up_to(&store, new, 2).await?;
    watcher.until_version(at(new, 2)).await?;
    // Again, without a loss.
    let doubts = watcher.doubts;
    let newest = begin(&*store, shard()).await?;
    watcher
        .until("a doubt", |watcher| watcher.doubts > doubts)
        .await?;
    write_up_to(&store, newest, 1).await?;
    watcher.until_version(at(newest, 1)).await?;
    assert!(standing(&*store).await?.contains_key("p:counter"));
    Ok(())
}

/// A vector from a life that this store knows nothing of, or has not reached, leads to a doubt without any
/// write.
pub async fn a_follower_of_another_life_is_told_at_once(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let mut watcher = Watcher::new(&*store, vector(Version::new(77, 5)));
    watcher
        .until("a doubt in an empty store", |watcher| watcher.doubts > 0)
        .await?;
    let incarnation = begin(&*store, shard()).await?;
    write_up_to(&store, incarnation, 2).await?;
    for elsewhere in [
        Version::new(incarnation.0 + 1, 1),
        Version::new(incarnation.0 - 1, 1),
        Version::new(incarnation.0, 3),
        Version::default(),
    ] {
        let mut watcher = Watcher::new(&*store, vector(elsewhere));
        watcher
            .until("a doubt", |watcher| watcher.doubts > 0)
            .await?;
    }
    Ok(())
}
