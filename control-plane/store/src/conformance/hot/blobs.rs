//! Rules of the blobs of replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::conformance::Verdict;
use crate::hot::bounds::{BLOB_PIECE_BYTES, MAX_BLOB_BYTES, MAX_BLOBS, MAX_REPLICA_BYTES};
use crate::hot::{Blob, HotStore, HotStoreError};

use super::HotStoreHost;
use super::steps::{Fault, eventually};

const LONG: Duration = Duration::from_secs(600);

async fn all(store: &dyn HotStore) -> Result<BTreeMap<String, Vec<u8>>, Fault> {
    let blobs = store.blobs(&BTreeMap::new()).await?.into_iter();
    Ok(blobs
        .filter_map(
            |Blob {
                 replica, payload, ..
             }| Some((replica, payload?)),
        )
        .collect())
}

async fn versions(store: &dyn HotStore) -> Result<BTreeMap<String, u64>, Fault> {
    let blobs = store.blobs(&BTreeMap::new()).await?.into_iter();
    Ok(blobs.map(|blob| (blob.replica, blob.version)).collect())
}

/// What is read is what was published last, byte for byte, by whoever reads.
pub async fn a_blob_replaces_the_last_of_its_replica(host: &impl HotStoreHost) -> Verdict {
    let (store, other) = (host.replica().await?, host.replica().await?);
    assert!(all(&*other).await?.is_empty());
    let bytes: Vec<u8> = (0..=255).collect();
    store.put_blob("one: a b", vec![1], LONG).await?;
    store.put_blob("one: a b", bytes.clone(), LONG).await?;
    store.put_blob("two", Vec::new(), LONG).await?;
    let expected = [
        ("one: a b".to_owned(), bytes),
        ("two".to_owned(), Vec::new()),
    ];
    assert_eq!(all(&*other).await?, BTreeMap::from(expected));
    Ok(())
}

/// Whoever has the newest version is told so, and no more.
pub async fn a_known_blob_comes_without_its_payload(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    store.put_blob("one", vec![1], LONG).await?;
    let version = store.put_blob("two", vec![2], LONG).await?;
    let known = versions(&*store).await?;
    assert_eq!(known.get("two"), Some(&version));
    store.put_blob("two", vec![2], LONG).await?;
    let mut told = store.blobs(&known).await?;
    told.sort_by(|one, two| one.replica.cmp(&two.replica));
    let payloads: Vec<_> = told.iter().map(|blob| blob.payload.clone()).collect();
    assert_eq!(payloads, [None, Some(vec![2])]);
    Ok(())
}

/// A store that lost its memory does not repeat versions.
pub async fn no_blob_after_a_loss_is_taken_for_a_known_one(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    store.put_blob("one", vec![1], LONG).await?;
    let known = versions(&*store).await?;
    host.flush().await?;
    assert!(store.blobs(&known).await?.is_empty());
    store.put_blob("one", vec![2], LONG).await?;
    let told = store.blobs(&known).await?;
    assert_eq!(
        told.first().map(|blob| blob.payload.clone()),
        Some(Some(vec![2]))
    );
    Ok(())
}

/// However much is held, an answer is at most a piece and a blob; who asks again with what came gets the rest.
pub async fn large_blobs_come_in_pieces(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let bytes = BLOB_PIECE_BYTES / 2 + 1;
    for number in 0..5 {
        store
            .put_blob(&number.to_string(), vec![number; bytes], LONG)
            .await?;
    }
    let mut known = BTreeMap::new();
    for expected in [2, 4, 5] {
        let told = store.blobs(&known).await?;
        assert_eq!(told.len(), 5, "all are told of");
        for blob in told {
            if let Some(payload) = blob.payload {
                assert_eq!(payload.len(), bytes);
                assert_eq!(known.insert(blob.replica, blob.version), None);
            }
        }
        assert_eq!(known.len(), expected);
    }
    Ok(())
}

/// A blob is there until its time to live has passed, and publishing it again renews it.
pub async fn blobs_expire(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    store
        .put_blob("goes", vec![1], Duration::from_millis(100))
        .await?;
    store
        .put_blob("stays", vec![1], Duration::from_millis(100))
        .await?;
    store.put_blob("stays", vec![2], LONG).await?;
    eventually("a blob to end", || async {
        let blobs = all(&*store).await?;
        Ok((blobs == BTreeMap::from([("stays".to_owned(), vec![2])])).then_some(()))
    })
    .await
}

/// What is too large is refused, and of too many the one that would end first leaves.
pub async fn blobs_are_bounded(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let long_name = "x".repeat(MAX_REPLICA_BYTES + 1);
    for (replica, bytes) in [
        ("one", MAX_BLOB_BYTES + 1),
        ("", 0),
        (long_name.as_str(), 0),
    ] {
        let answer = store.put_blob(replica, vec![0; bytes], LONG).await;
        assert!(
            matches!(answer, Err(HotStoreError::Bounds(_))),
            "{answer:?}"
        );
    }
    let too_many = (0..=MAX_BLOBS)
        .map(|number| (number.to_string(), 1))
        .collect();
    let answer = store.blobs(&too_many).await;
    assert!(
        matches!(answer, Err(HotStoreError::Bounds(_))),
        "{answer:?}"
    );
    store
        .put_blob("largest", vec![7; MAX_BLOB_BYTES], LONG)
        .await?;
    assert_eq!(
        all(&*store).await?.get("largest").map(Vec::len),
        Some(MAX_BLOB_BYTES)
    );
    store
        .put_blob("first", vec![1], Duration::from_secs(300))
        .await?;
    for number in 2..=MAX_BLOBS {
        store.put_blob(&number.to_string(), vec![1], LONG).await?;
    }
    let held = versions(&*store).await?;
    assert_eq!(held.len(), MAX_BLOBS);
    assert!(!held.contains_key("first") && held.contains_key("largest"));
    Ok(())
}
