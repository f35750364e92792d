//! Rules of report marks: a report counts once, whoever delivers it how often.

use tokio::task::JoinSet;

use crate::conformance::Verdict;
use crate::hot::RefusalReason;

use super::HotStoreHost;
use super::steps::{
    Counter, Fault, begin, count, refused, run, shard, standing, value, write_of, written,
};

async fn marks_of(store: &dyn crate::hot::HotStore) -> Result<Vec<(u64, u64)>, Fault> {
    let mut marks: Vec<_> = store
        .read(shard())
        .await?
        .marks
        .iter()
        .map(|mark| (mark.plane.0, mark.number))
        .collect();
    marks.sort_unstable();
    Ok(marks)
}

/// Values and marks move together or not at all.
pub async fn marks_move_together_with_values(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let values = vec![value(&*store, "p:one", None, "1").await?];
    written(
        &*store,
        write_of(incarnation, values.clone(), vec![run(4, 1, 3)]),
    )
    .await?;
    assert_eq!(marks_of(&*store).await?, [(4, 3)]);
    // The value conflicts, so the mark does not move.
    let refusal = refused(&*store, write_of(incarnation, values, vec![run(4, 4, 8)])).await?;
    assert_eq!(refusal.reason, RefusalReason::Conflict);
    assert_eq!(marks_of(&*store).await?, [(4, 3)]);
    // Marks alone: reports that changed nothing.
    let revision = written(&*store, write_of(incarnation, vec![], vec![run(4, 4, 8)])).await?;
    assert_eq!(revision.0, 2);
    assert_eq!(marks_of(&*store).await?, [(4, 8)]);
    Ok(())
}

/// One report that was applied before stops the whole write; the answer says up to where each plane is.
pub async fn a_write_with_an_applied_report_is_refused_whole(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    written(
        &*store,
        write_of(incarnation, vec![], vec![run(4, 1, 3), run(5, 1, 9)]),
    )
    .await?;
    for marks in [
        vec![run(4, 3, 6), run(6, 1, 1)],
        vec![run(6, 1, 1), run(4, 1, 1)],
        vec![run(6, 1, 1), run(4, 4, 5), run(5, 9, 9)],
    ] {
        let planes: Vec<_> = marks.iter().map(|run| run.plane.0).collect();
        let values = vec![value(&*store, "p:one", None, "1").await?];
        let refusal = refused(&*store, write_of(incarnation, values, marks)).await?;
        assert_eq!(refusal.reason, RefusalReason::AlreadyApplied);
        for mark in &refusal.marks {
            assert!(planes.contains(&mark.plane.0));
            assert_eq!(mark.number, if mark.plane.0 == 4 { 3 } else { 9 });
        }
        assert!(refusal.marks.iter().any(|mark| mark.plane.0 == 4));
    }
    assert!(standing(&*store).await?.is_empty());
    assert_eq!(marks_of(&*store).await?, [(4, 3), (5, 9)]);
    // A gap before the run is none: reports may have had nothing to apply.
    written(
        &*store,
        write_of(incarnation, vec![], vec![run(4, 7, 7), run(5, 10, 12)]),
    )
    .await?;
    assert_eq!(marks_of(&*store).await?, [(4, 7), (5, 12)]);
    Ok(())
}

/// Each of two replicas delivers every batch three times, all at once: each batch counts once.
pub async fn a_batch_replayed_by_two_replicas_counts_once(host: &impl HotStoreHost) -> Verdict {
    const BATCHES: u64 = 20;
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut replicas = JoinSet::new();
    for _ in 0..2 {
        let mut counter = Counter::new(host.replica().await?, incarnation, "p:counted").await?;
        replicas.spawn(async move {
            let mut applied = 0_u64;
            for batch in 0..BATCHES {
                for _ in 0..3 {
                    let reports = run(4, batch * 5 + 1, batch * 5 + 5);
                    applied += u64::from(counter.add_one(&[reports]).await?);
                }
            }
            Ok::<_, Fault>(applied)
        });
    }
    let mut applied = 0;
    while let Some(ended) = replicas.join_next().await {
        applied += ended??;
    }
    assert_eq!(applied, BATCHES);
    assert_eq!(count(standing(&*store).await?.get("p:counted"))?, BATCHES);
    assert_eq!(marks_of(&*store).await?, [(4, BATCHES * 5)]);
    Ok(())
}

/// Marks of any plane are part of a reading, also the largest number there may be.
pub async fn marks_are_read_back_with_their_shard(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let largest = crate::hot::bounds::MAX_EXACT_NUMBER;
    let marks = vec![run(0, 1, 1), run(u64::MAX, largest - 1, largest - 1)];
    written(&*store, write_of(incarnation, vec![], marks)).await?;
    assert_eq!(marks_of(&*store).await?, [(0, 1), (u64::MAX, largest - 1)]);
    let again = write_of(
        incarnation,
        vec![],
        vec![run(u64::MAX, largest - 1, largest)],
    );
    let refusal = refused(&*store, again).await?;
    assert_eq!(refusal.reason, RefusalReason::AlreadyApplied);
    let next = write_of(incarnation, vec![], vec![run(u64::MAX, largest, largest)]);
    written(&*store, next).await?;
    assert_eq!(marks_of(&*store).await?, [(0, 1), (u64::MAX, largest)]);
    Ok(())
}
