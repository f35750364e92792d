//! Rules of the bounds of the contract.

use std::time::Duration;

use tidegate_core::version::Incarnation;

use crate::codec::NEVER_LATE;
use crate::conformance::Verdict;
use crate::hot::bounds::{MAX_EXACT_NUMBER, MAX_KEY_BYTES, MAX_PAYLOAD_BYTES, MAX_REPLICA_BYTES};
use crate::hot::{Announcement, HotStoreError, MAX_WRITE_MARKS, MAX_WRITE_VALUES, ShardWrite};

use super::HotStoreHost;
use super::steps::{Fault, begin, check, run, shard, standing, value, write_of, written};

/// A write that breaks a bound is refused without being sent, and nothing is written.
pub async fn a_write_is_bounded(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let one = value(&*store, "p:one", None, "1").await?;
    let with = |values, marks| write_of(incarnation, values, marks);
    let mut too_many = Vec::new();
    for number in 0..=MAX_WRITE_VALUES {
        too_many.push(value(&*store, &format!("p:{number}"), None, "1").await?);
    }
    let too_many_marks = (0..)
        .take(MAX_WRITE_MARKS + 1)
        .map(|plane| run(plane, 1, 1));
    let mut long_key = one.clone();
    long_key.key = "x".repeat(MAX_KEY_BYTES + 1);
    let mut no_key = one.clone();
    no_key.key.clear();
    let mut large = one.clone();
    large.payload = vec![0; MAX_PAYLOAD_BYTES + 1];
    let writes: Vec<ShardWrite> = vec![
        with(vec![], vec![]),
        with(too_many, vec![]),
        with(vec![], too_many_marks.collect()),
        with(vec![long_key], vec![]),
        with(vec![no_key], vec![]),
        with(vec![large], vec![]),
        with(vec![one.clone(), one.clone()], vec![]),
        with(vec![one.clone()], vec![run(4, 1, 1), run(4, 2, 2)]),
        with(vec![one.clone()], vec![run(4, 0, 1)]),
        with(vec![one.clone()], vec![run(4, 2, 1)]),
        with(vec![one.clone()], vec![run(4, 1, MAX_EXACT_NUMBER + 1)]),
    ];
    for write in writes {
        let answer = store.write(write.clone()).await;
        assert!(
            matches!(answer, Err(HotStoreError::Bounds(_))),
            "{answer:?} for {} values and marks {:?}",
            write.values.len(),
            write.marks
        );
    }
    assert!(standing(&*store).await?.is_empty());
    assert_eq!(check(&*store, shard()).await?.revision.0, 0);
    let begun = store
        .begin_incarnation(
            shard(),
            Some(incarnation),
            Incarnation(u64::MAX),
            NEVER_LATE,
        )
        .await;
    assert!(matches!(begun, Err(HotStoreError::Bounds(_))), "{begun:?}");
    let announced = store
        .announce(
            Announcement {
                replica: "x".repeat(MAX_REPLICA_BYTES + 1),
                schema: 1,
            },
            Duration::from_secs(1),
        )
        .await;
    assert!(
        matches!(announced, Err(HotStoreError::Bounds(_))),
        "{announced:?}"
    );
    Ok(())
}

/// The largest write there may be is done whole.
pub async fn a_write_at_its_bounds_is_done(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut values = Vec::new();
    for number in 0..MAX_WRITE_VALUES {
        let mut value = value(&*store, &format!("c:p/{number:03}"), None, "").await?;
        value.payload = vec![b'x'; 4_096];
        values.push(value);
    }
    let marks: Vec<_> = (0..)
        .take(MAX_WRITE_MARKS)
        .map(|plane| run(plane, 1, 2))
        .collect();
    let write = write_of(incarnation, values, marks);
    written(&*store, write.clone()).await?;
    let image = store.read(shard()).await?;
    assert_eq!(image.entries.len(), MAX_WRITE_VALUES);
    assert_eq!(image.marks.len(), MAX_WRITE_MARKS);
    let refusal = super::steps::refused(&*store, write).await?;
    let found = refusal.values.iter().flatten().count();
    assert_eq!(
        (found, refusal.marks.len()),
        (MAX_WRITE_VALUES, MAX_WRITE_MARKS)
    );
    let mut largest = value(&*store, &"k".repeat(MAX_KEY_BYTES), None, "").await?;
    largest.payload = vec![0xff; MAX_PAYLOAD_BYTES];
    written(&*store, write_of(incarnation, vec![largest], vec![])).await?;
    let read = standing(&*store)
        .await?
        .remove(&"k".repeat(MAX_KEY_BYTES))
        .ok_or_else(|| Fault::from("the largest value is missing"))?;
    assert_eq!(read.payload.len(), MAX_PAYLOAD_BYTES);
    Ok(())
}
