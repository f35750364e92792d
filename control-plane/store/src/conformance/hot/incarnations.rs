//! Rules of lost memories and new incarnations.

use std::sync::Arc;

use tidegate_core::version::{Incarnation, Version};
use tokio::task::JoinSet;

use crate::codec::NEVER_LATE;
use crate::conformance::Verdict;
use crate::hot::RefusalReason;

use super::HotStoreHost;
use super::steps::{
    Fault, begin, check, other_shard, refused, shard, standing, value, write_of, written,
};

/// The first answer of `check` after a flush says so, though nobody wrote.
pub async fn a_flushed_store_is_noticed_without_a_write(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let values = vec![value(&*store, "p:one", None, "1").await?];
    written(&*store, write_of(incarnation, values, vec![])).await?;
    assert_eq!(
        check(&*store, shard()).await?.incarnation,
        Some(incarnation)
    );
    host.flush().await?;
    let seen = check(&*store, shard()).await?;
    assert_eq!(
        (seen.incarnation, seen.found, seen.revision.0),
        (None, None, 0)
    );
    let image = store.read(shard()).await?;
    assert_eq!(image.check.incarnation, None);
    assert_eq!((image.entries.len(), image.marks.len()), (0, 0));
    let values = vec![value(&*store, "p:one", None, "1").await?];
    let refusal = refused(&*store, write_of(incarnation, values, vec![])).await?;
    assert_eq!(refusal.reason, RefusalReason::Empty);
    Ok(())
}

/// The first answer of `check` after a server was swapped for another with the same memory says so; until a
/// new incarnation begins nothing is written, and what survived is there afterwards.
pub async fn a_swapped_server_is_noticed_without_a_write(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let old = begin(&*store, shard()).await?;
    let values = vec![value(&*store, "p:one", None, "1").await?];
    written(&*store, write_of(old, values, vec![])).await?;
    let before = standing(&*store).await?;
    host.swap_server().await?;
    let seen = check(&*store, shard()).await?;
    assert_eq!((seen.incarnation, seen.found), (None, Some(old)));
    let image = store.read(shard()).await?;
    assert_eq!(
        (image.check.incarnation, image.check.found),
        (None, Some(old))
    );
    let values = vec![value(&*store, "p:two", None, "1").await?];
    let refusal = refused(&*store, write_of(old, values, vec![])).await?;
    assert_eq!(refusal.reason, RefusalReason::OtherServer);
    let new = begin(&*store, shard()).await?;
    assert!(new > old);
    assert_eq!(
        standing(&*store).await?,
        before,
        "what survived stays as it is"
    );
    let values = vec![
        value(
            &*store,
            "p:one",
            before.get("p:one").map(|entry| entry.version),
            "2",
        )
        .await?,
    ];
    written(&*store, write_of(new, values, vec![])).await?;
    Ok(())
}

/// Of sixteen that begin at once on the same finding one does, and all are told the same.
pub async fn sixteen_begin_one_incarnation(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let first = begin(&*store, shard()).await?;
    assert!(first.0 >= 1);
    // Larger than known counts also when that is ahead of the clock.
    let known = Incarnation(store.time().await?.0 + 86_400_000);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let store = host.replica().await?;
        tasks.spawn(async move {
            let begun = store
                .begin_incarnation(shard(), Some(first), known, NEVER_LATE)
                .await?;
            Ok::<_, Fault>(begun)
        });
    }
    let mut told = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        told.push(ended??.ok_or("no incarnation stands")?);
    }
    told.dedup();
    assert_eq!(told.len(), 1, "all are told the same: {told:?}");
    let stands = check(&*store, shard()).await?.incarnation;
    assert_eq!(told.first().copied(), stands);
    assert!(stands > Some(known));
    Ok(())
}

/// It begins on what was found or not at all, is at least the store's time, and larger than all that is
/// known, on either side.
pub async fn an_incarnation_begins_only_on_what_was_found(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let store: Arc<_> = store;
    let begin_on = |found, known| {
        let store = Arc::clone(&store);
        async move {
            store
                .begin_incarnation(shard(), found, known, NEVER_LATE)
                .await
        }
    };
    assert_eq!(begin_on(Some(Incarnation(7)), Incarnation(7)).await?, None);
    let before = store.time().await?;
    let first = begin_on(None, Incarnation(5)).await?.ok_or("none begun")?;
    assert!(first.0 >= before.0);
    assert_eq!(
        begin_on(None, Incarnation(first.0 + 10)).await?,
        Some(first)
    );
    assert_eq!(begin_on(Some(Incarnation(7)), first).await?, Some(first));
    let second = begin_on(Some(first), Incarnation(0))
        .await?
        .ok_or("none begun")?;
    assert!(second > first);
    assert_eq!(begin_on(Some(first), second).await?, Some(second));
    assert_eq!(
        check(&*store, other_shard()).await?.found,
        None,
        "other shards are left alone"
    );
    Ok(())
}

/// A call to begin that hung past its time does not act, and says what stands.
pub async fn a_late_beginning_does_nothing(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let late = store.time().await?.minus_ms(1);
    let begun = store
        .begin_incarnation(shard(), None, Incarnation(0), late)
        .await?;
    assert_eq!(begun, None);
    assert_eq!(check(&*store, shard()).await?.found, None);
    let stands = begin(&*store, shard()).await?;
    let late = store.time().await?.minus_ms(1);
    let begun = store
        .begin_incarnation(shard(), Some(stands), stands, late)
        .await?;
    assert_eq!(begun, Some(stands));
    assert_eq!(check(&*store, shard()).await?.incarnation, Some(stands));
    Ok(())
}

/// Versions of a new incarnation are larger than all of the old one, though its revisions start again.
pub async fn a_new_incarnation_is_after_all_of_the_old_one(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let old = begin(&*store, shard()).await?;
    let mut expected = None;
    for payload in ["1", "2", "3"] {
        let values = vec![value(&*store, "p:one", expected, payload).await?];
        let revision = written(&*store, write_of(old, values, vec![])).await?;
        expected = Some(Version {
            incarnation: old,
            revision,
        });
    }
    let new = begin(&*store, shard()).await?;
    assert_eq!(check(&*store, shard()).await?.revision.0, 0);
    // Who missed the beginning cannot write.
    let values = vec![value(&*store, "p:one", expected, "late").await?];
    let refusal = refused(&*store, write_of(old, values, vec![])).await?;
    assert_eq!(refusal.reason, RefusalReason::OtherIncarnation);
    assert_eq!(refusal.incarnation, Some(new));
    let values = vec![value(&*store, "p:one", expected, "4").await?];
    let revision = written(&*store, write_of(new, values, vec![])).await?;
    assert_eq!(revision.0, 1);
    let version = Version {
        incarnation: new,
        revision,
    };
    assert!(Some(version) > expected);
    assert_eq!(
        standing(&*store)
            .await?
            .get("p:one")
            .map(|entry| entry.version),
        Some(version)
    );
    Ok(())
}
