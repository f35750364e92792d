//! Rules of values that end.

use tidegate_core::version::Version;

use crate::conformance::Verdict;

use super::HotStoreHost;
use super::steps::{Watcher, begin, eventually, shard, standing, value, vector, write_of, written};

/// Long enough to be seen, short enough to be waited for, in ms.
const SHORT_MS: u64 = 150;

/// After its end a value is neither read nor in the way; others stay.
pub async fn what_has_expired_is_absent(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut short = value(&*store, "p:short", None, "1").await?;
    short.expires_at = store.time().await?.plus_ms(SHORT_MS);
    let end = short.expires_at;
    let long = value(&*store, "p:long", None, "1").await?;
    // Its end is far beyond what any server counts to.
    let mut ever = value(&*store, "p:ever", None, "1").await?;
    ever.expires_at = tidegate_core::time::Timestamp(u64::MAX);
    written(
        &*store,
        write_of(incarnation, vec![short, long, ever.clone()], vec![]),
    )
    .await?;
    let left = eventually("a value to end", || async {
        let standing = standing(&*store).await?;
        Ok((!standing.contains_key("p:short")).then_some(standing))
    })
    .await?;
    assert!(store.time().await? > end, "a value ended early");
    assert_eq!(left.keys().collect::<Vec<_>>(), ["p:ever", "p:long"]);
    assert_eq!(
        left.get("p:ever").map(|entry| entry.expires_at),
        Some(ever.expires_at)
    );
    let again = value(&*store, "p:short", None, "2").await?;
    written(&*store, write_of(incarnation, vec![again], vec![])).await?;
    Ok(())
}

/// A key that ended and came back has a larger version than ever before, so that no follower takes the new
/// value for an old one.
pub async fn a_key_that_returns_is_newer_for_every_follower(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let start = Version {
        incarnation,
        ..Version::default()
    };
    let mut watchers = Vec::new();
    for _ in 0..3 {
        watchers.push(Watcher::new(&*host.replica().await?, vector(start)));
    }
    let mut first = value(&*store, "p:again", None, "first").await?;
    first.expires_at = store.time().await?.plus_ms(SHORT_MS);
    let first = written(&*store, write_of(incarnation, vec![first], vec![])).await?;
    eventually("a value to end", || async {
        Ok(standing(&*store).await?.is_empty().then_some(()))
    })
    .await?;
    let second = value(&*store, "p:again", None, "second").await?;
    let second = written(&*store, write_of(incarnation, vec![second], vec![])).await?;
    assert!(second > first);
    for watcher in &mut watchers {
        watcher
            .until_version(Version {
                incarnation,
                revision: second,
            })
            .await?;
        let told: Vec<_> = watcher
            .changes
            .iter()
            .flat_map(|change| &change.entries)
            .map(|entry| (entry.version.revision, entry.payload.as_slice()))
            .collect();
        assert_eq!(
            told,
            [(first, b"first".as_slice()), (second, b"second".as_slice())]
        );
    }
    Ok(())
}
