//! Rules of values and counters outside the change stream.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tokio::task::JoinSet;

use crate::codec::NEVER_LATE;
use crate::conformance::Verdict;
use crate::hot::{Cell, HotStore, HotStoreError, Swap, SwapOutcome, SwapRefusal};

use super::HotStoreHost;
use super::steps::{Fault, LONG_MS, begin, eventually, other_shard, shard, within};

/// Long enough to be seen, short enough to be waited for, in ms.
const SHORT_MS: u64 = 150;
const KEY: &str = "m:provider/connection";
const LONG: Duration = Duration::from_millis(LONG_MS);

/// A swap that is never late.
async fn swap_of(
    store: &dyn HotStore,
    expected: Option<u64>,
    payload: &str,
    lasts_ms: u64,
) -> Result<Swap, Fault> {
    Ok(Swap {
        shard: shard(),
        key: KEY.to_owned(),
        expected,
        schema: 3,
        payload: payload.as_bytes().to_vec(),
        expires_at: store.time().await?.plus_ms(lasts_ms),
        not_after: NEVER_LATE,
        sheddable: false,
    })
}

/// Does a swap that must succeed; returns its version.
async fn swapped(store: &dyn HotStore, swap: Swap) -> Result<u64, Fault> {
    match store.swap(swap).await? {
        SwapOutcome::Swapped { version, .. } => Ok(version),
        SwapOutcome::Refused { reason, .. } => Err(format!("refused: {reason:?}").into()),
    }
}

/// Does a swap that must be refused.
async fn refused(store: &dyn HotStore, swap: Swap) -> Result<(SwapRefusal, Option<Cell>), Fault> {
    match store.swap(swap).await? {
        SwapOutcome::Refused { reason, found, .. } => Ok((reason, found)),
        SwapOutcome::Swapped { .. } => Err("a swap was done that must be refused".into()),
    }
}

async fn standing(store: &dyn HotStore) -> Result<Option<Cell>, Fault> {
    Ok(store.cell(shard(), KEY).await?.0)
}

/// What was swapped in is read back; a conflict answers with what stands. No incarnation is needed, and the shard
/// knows nothing of it.
pub async fn a_cell_is_swapped_only_by_who_knows_it(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    assert_eq!(standing(&*store).await?, None);
    let first = swap_of(&*store, None, "one\n\u{0}\u{ff}", LONG_MS).await?;
    let one = swapped(&*store, first.clone()).await?;
    let cell = Cell {
        version: one,
        schema: 3,
        payload: first.payload,
        expires_at: first.expires_at,
    };
    assert_eq!(standing(&*store).await?.as_ref(), Some(&cell));
    for expected in [None, Some(one.saturating_add(1))] {
        let swap = swap_of(&*store, expected, "two", LONG_MS).await?;
        let told = refused(&*store, swap).await?;
        assert_eq!(told, (SwapRefusal::Conflict, Some(cell.clone())));
    }
    let swap = swap_of(&*store, Some(one), "two", LONG_MS).await?;
    let two = swapped(&*store, swap).await?;
    assert!(two > one);
    // Other names and other shards are others; the change stream and its revisions are untouched.
    assert_eq!(store.cell(other_shard(), KEY).await?.0, None);
    assert_eq!(store.cell(shard(), "m:provider/other").await?.0, None);
    begin(&*store, shard()).await?;
    let image = store.read(shard()).await?;
    assert_eq!((image.check.revision.0, image.entries.len()), (0, 0));
    // A new incarnation leaves it as it is.
    let after = standing(&*store).await?.map(|cell| cell.payload);
    assert_eq!(after.as_deref(), Some(&b"two"[..]));
    Ok(())
}

/// A swap that comes too late is refused before anything else is looked at.
pub async fn a_late_swap_is_refused(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let mut swap = swap_of(&*store, Some(1), "late", LONG_MS).await?;
    swap.not_after = store.time().await?.minus_ms(1);
    assert_eq!(refused(&*store, swap).await?, (SwapRefusal::Late, None));
    let mut swap = swap_of(&*store, None, "in time", LONG_MS).await?;
    swap.not_after = store.time().await?.plus_ms(LONG_MS);
    swapped(&*store, swap).await?;
    Ok(())
}

/// After its end a cell is absent, and whoever knew it is refused: what came back has another version.
pub async fn a_cell_that_ended_is_absent_and_not_confused(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let swap = swap_of(&*store, None, "short", SHORT_MS).await?;
    let end = swap.expires_at;
    let one = swapped(&*store, swap).await?;
    eventually("a cell to end", || async {
        Ok(standing(&*store).await?.is_none().then_some(()))
    })
    .await?;
    assert!(store.time().await? > end, "a cell ended early");
    let mut ever = swap_of(&*store, None, "again", LONG_MS).await?;
    // Its end is far beyond what any server counts to.
    ever.expires_at = Timestamp(u64::MAX);
    let two = swapped(&*store, ever).await?;
    assert!(two > one);
    let stale = swap_of(&*store, Some(one), "stale", LONG_MS).await?;
    let (reason, found) = refused(&*store, stale).await?;
    assert_eq!(reason, SwapRefusal::Conflict);
    let found = found.map(|cell| (cell.version, cell.expires_at));
    assert_eq!(found, Some((two, Timestamp(u64::MAX))));
    Ok(())
}

/// A swap whose end is past takes the value away, for whoever knew it; what comes next has a later version.
pub async fn a_swap_that_has_ended_takes_the_cell_away(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let one = swapped(&*store, swap_of(&*store, None, "one", LONG_MS).await?).await?;
    let mut away = swap_of(&*store, Some(one.saturating_add(1)), "", 0).await?;
    away.expires_at = Timestamp(0);
    let (reason, found) = refused(&*store, away.clone()).await?;
    assert_eq!(reason, SwapRefusal::Conflict);
    assert_eq!(found.map(|cell| cell.version), Some(one));
    away.expected = Some(one);
    let two = swapped(&*store, away).await?;
    assert_eq!(standing(&*store).await?, None);
    let again = swapped(&*store, swap_of(&*store, None, "again", LONG_MS).await?).await?;
    assert!(one < two && one < again);
    Ok(())
}

/// Compare-and-set under 16 writers that each add to one number loses no addition.
pub async fn sixteen_swappers_lose_nothing(host: &impl HotStoreHost) -> Verdict {
    const WRITERS: usize = 16;
    const EACH: usize = 20;
    let store = host.replica().await?;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = host.replica().await?;
        writers.spawn(async move {
            for _ in 0..EACH {
                add_one(&*store).await?;
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
    let standing = standing(&*store).await?.ok_or("the number is gone")?;
    assert_eq!(standing.payload.len(), WRITERS * EACH);
    Ok(())
}

/// Adds to a number that is written in strokes.
async fn add_one(store: &dyn HotStore) -> Verdict {
    let mut found = standing(store).await?;
    loop {
        let expected = found.as_ref().map(|cell| cell.version);
        let mut swap = swap_of(store, expected, "", LONG_MS).await?;
        swap.payload = found.map_or_else(Vec::new, |cell| cell.payload);
        swap.payload.push(b'|');
        match store.swap(swap).await? {
            SwapOutcome::Swapped { .. } => return Ok(()),
            SwapOutcome::Refused { found: other, .. } => found = other,
        }
    }
}

/// No number is given out twice, and none is left out while nothing is lost.
pub async fn turns_are_taken_once_by_sixteen(host: &impl HotStoreHost) -> Verdict {
    const TAKERS: u64 = 16;
    const EACH: u64 = 25;
    let store = host.replica().await?;
    let mut takers = JoinSet::new();
    for _ in 0..TAKERS {
        let store: Arc<dyn HotStore> = host.replica().await?;
        takers.spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..EACH {
                taken.push(store.next_turn(shard(), "deck", LONG).await?);
            }
            Ok::<_, HotStoreError>(taken)
        });
    }
    let mut taken = BTreeSet::new();
    within("sixteen takers", async {
        while let Some(ended) = takers.join_next().await {
            for number in ended?? {
                assert!(taken.insert(number), "{number} was taken twice");
            }
        }
        Ok::<_, Fault>(())
    })
    .await??;
    assert_eq!(taken, (0..TAKERS * EACH).collect());
    // Other names and shards count for themselves.
    let elsewhere: [(Shard, &str); 2] = [(shard(), "other"), (other_shard(), "deck")];
    for (shard, key) in elsewhere {
        assert_eq!(store.next_turn(shard, key, LONG).await?, 0);
    }
    Ok(())
}

/// A counter that nobody uses begins anew; each turn puts that off.
pub async fn turns_begin_anew_when_nobody_takes_one(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let short = Duration::from_millis(SHORT_MS);
    assert_eq!(store.next_turn(shard(), "deck", LONG).await?, 0);
    assert_eq!(store.next_turn(shard(), "deck", short).await?, 1);
    let began = store.time().await?;
    eventually("a counter to begin anew", || async {
        if store.time().await?.ms_since(began) <= SHORT_MS {
            return Ok(None);
        }
        Ok(Some(()))
    })
    .await?;
    assert_eq!(store.next_turn(shard(), "deck", LONG).await?, 0);
    Ok(())
}

/// A flush takes cells and counters along.
pub async fn a_flush_takes_cells_and_turns_along(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let swap = swap_of(&*store, None, "gone", LONG_MS).await?;
    let one = swapped(&*store, swap).await?;
    store.next_turn(shard(), "deck", LONG).await?;
    host.flush().await?;
    assert_eq!(standing(&*store).await?, None);
    assert_eq!(store.next_turn(shard(), "deck", LONG).await?, 0);
    let stale = swap_of(&*store, Some(one), "stale", LONG_MS).await?;
    assert_eq!(
        refused(&*store, stale).await?,
        (SwapRefusal::Conflict, None)
    );
    Ok(())
}

/// What breaks a bound is not sent.
pub async fn cells_are_bounded(host: &impl HotStoreHost) -> Verdict {
    let store = host.replica().await?;
    let long = "k".repeat(513);
    for key in ["", long.as_str()] {
        let mut swap = swap_of(&*store, None, "x", LONG_MS).await?;
        swap.key = key.to_owned();
        assert!(matches!(
            store.swap(swap).await,
            Err(HotStoreError::Bounds(_))
        ));
        assert!(matches!(
            store.cell(shard(), key).await,
            Err(HotStoreError::Bounds(_))
        ));
        assert!(matches!(
            store.next_turn(shard(), key, LONG).await,
            Err(HotStoreError::Bounds(_))
        ));
    }
    let mut swap = swap_of(&*store, None, "", LONG_MS).await?;
    swap.payload = vec![b'x'; 256 * 1024];
    swapped(&*store, swap.clone()).await?;
    swap.payload.push(b'x');
    assert!(matches!(
        store.swap(swap).await,
        Err(HotStoreError::Bounds(_))
    ));
    Ok(())
}
