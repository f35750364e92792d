//! Rules of many writers and readers at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::conformance::Verdict;
use crate::fault::FaultyHotStore;
use crate::pacing::Pacing;

use super::HotStoreHost;
use super::steps::{
    Counter, Fault, PATIENCE, begin, count, shard, standing, value, within, write_of, written,
};

/// Compare-and-set under 16 writers that each add to one counter loses no addition.
pub async fn sixteen_writers_lose_nothing(host: &impl HotStoreHost) -> Verdict {
    const WRITERS: u64 = 16;
    const EACH: u64 = 20;
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let mut counter = Counter::new(host.replica().await?, incarnation, "p:shared").await?;
        writers.spawn(async move {
            for _ in 0..EACH {
                counter.add_one(&[]).await?;
            }
            Ok::<_, Fault>(())
        });
    }
    within("sixteen writers", async {
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        Ok::<_, Fault>(())
    })
    .await??;
    let standing = standing(&*store).await?;
    assert_eq!(count(standing.get("p:shared"))?, WRITERS * EACH);
    // Each addition took exactly one revision: no refused write took any.
    let entry = standing.get("p:shared").ok_or("the counter is gone")?;
    assert_eq!(entry.version.revision.0, WRITERS * EACH);
    Ok(())
}

/// Two near writers that never rest, but pace as [`Pacing`] says, leave a writer that is 1 ms away its turn.
pub async fn a_far_writer_gets_its_turn(host: &impl HotStoreHost) -> Verdict {
    const TURNS: usize = 20;
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut near = JoinSet::new();
    for _ in 0..2 {
        let mut counter = Counter::new(host.replica().await?, incarnation, "p:shared").await?;
        let done = Arc::clone(&done);
        near.spawn(async move {
            let mut additions = 0_u64;
            let mut pacing = Pacing::default();
            while !done.load(Ordering::Relaxed) {
                paced(&mut counter, &mut pacing).await?;
                additions += 1;
            }
            Ok::<_, Fault>(additions)
        });
    }
    let far = FaultyHotStore::new(host.replica().await?, PATIENCE);
    far.delay_each_way(Duration::from_millis(1));
    let mut counter = Counter::new(Arc::new(far), incarnation, "p:shared").await?;
    let mut pacing = Pacing::default();
    within("the far writer's turns", async {
        for _ in 0..TURNS {
            paced(&mut counter, &mut pacing).await?;
        }
        Ok::<_, Fault>(())
    })
    .await??;
    done.store(true, Ordering::Relaxed);
    let mut additions = u64::try_from(TURNS)?;
    while let Some(ended) = near.join_next().await {
        additions += ended??;
    }
    assert_eq!(count(standing(&*store).await?.get("p:shared"))?, additions);
    Ok(())
}

async fn paced(counter: &mut Counter, pacing: &mut Pacing) -> Result<(), Fault> {
    sleep(pacing.wait(Instant::now())).await;
    let sent = Instant::now();
    counter.add_one(&[]).await?;
    pacing.written(sent, Instant::now());
    Ok(())
}

/// A reading is one moment of the shard: two values that are always written together are always equal in it.
pub async fn a_reading_never_shows_half_a_write(host: &impl HotStoreHost) -> Verdict {
    const WRITES: u64 = 200;
    let store = host.replica().await?;
    let incarnation = begin(&*store, shard()).await?;
    let writer = host.replica().await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut expected = None;
        for number in 1..=WRITES {
            let payload = number.to_string();
            let values = vec![
                value(&*writer, "p:left", expected, &payload).await?,
                value(&*writer, "c:left/right", expected, &payload).await?,
            ];
            let revision = written(&*writer, write_of(incarnation, values, vec![])).await?;
            expected = Some(tidegate_core::version::Version {
                incarnation,
                revision,
            });
        }
        Ok::<_, Fault>(())
    });
    let mut seen = 0;
    within("the writer to end", async {
        while seen < WRITES {
            let image = store.read(shard()).await?;
            let mut entries = image.entries.iter();
            let (left, right) = (entries.next(), entries.next());
            assert_eq!(
                left.map(|entry| entry.version),
                right.map(|entry| entry.version)
            );
            assert_eq!(count(left)?, count(right)?);
            assert_eq!(
                left.map_or(0, |entry| entry.version.revision.0),
                image.check.revision.0
            );
            assert!(count(left)? >= seen, "a reading went back");
            seen = count(left)?;
        }
        Ok::<_, Fault>(())
    })
    .await??;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
