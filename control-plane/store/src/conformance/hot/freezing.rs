//! Rules of a server that stands still: what was sent to it may run much later, or must not.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::conformance::Verdict;
use crate::hot::{HotStore, HotStoreError, RefusalReason, WriteOutcome};

use super::FreezableHost;
use super::steps::{
    Fault, begin, check, eventually, run, shard, standing, value, within, write_of,
};

/// How long a write that meets the freeze has, in ms.
const WITHIN_MS: u64 = 400;

/// Sends a write into a freeze that lasts past `allowed_ms`; returns what its caller was told.
async fn write_into_freeze(
    host: &impl FreezableHost,
    store: &Arc<dyn HotStore>,
    allowed_ms: u64,
) -> Result<Result<WriteOutcome, HotStoreError>, Fault> {
    let incarnation = begin(&**store, shard()).await?;
    let values = vec![value(&**store, "p:late", None, "1").await?];
    let mut write = write_of(incarnation, values, vec![run(4, 1, 1)]);
    write.not_after = store.time().await?.plus_ms(allowed_ms);
    host.freeze().await?;
    let mut caller = JoinSet::new();
    let writer = Arc::clone(store);
    caller.spawn(async move { writer.write(write).await });
    sleep(Duration::from_millis(WITHIN_MS + 100)).await;
    host.thaw().await?;
    let told = within("the caller to be told", caller.join_next()).await?;
    Ok(told.ok_or("no caller")??)
}

/// The caller's bound holds also for a write that the server had in its hands all the time.
pub async fn a_write_into_a_freeze_does_not_run_after_its_time(
    host: &impl FreezableHost,
) -> Verdict {
    let store = host.replica().await?;
    match write_into_freeze(host, &store, WITHIN_MS).await? {
        Ok(WriteOutcome::Refused(refusal)) => assert_eq!(refusal.reason, RefusalReason::Late),
        Err(HotStoreError::Timeout | HotStoreError::Unreachable(_)) => {}
        other => return Err(format!("the write was answered with {other:?}").into()),
    }
    // This is answered after whatever the server still had before it.
    assert_eq!(check(&*store, shard()).await?.revision.0, 0);
    let image = store.read(shard()).await?;
    assert_eq!((image.entries.len(), image.marks.len()), (0, 0));
    Ok(())
}

/// The other side of it: a write with time left runs when the server goes on, whatever its caller was told.
/// Without this a store that forgets what it was sent would pass the rule before.
pub async fn a_write_into_a_freeze_may_run_within_its_time(host: &impl FreezableHost) -> Verdict {
    let store = host.replica().await?;
    match write_into_freeze(host, &store, 600_000).await? {
        Ok(WriteOutcome::Written { .. }) => {}
        Err(HotStoreError::Timeout | HotStoreError::Unreachable(_)) => {}
        other => return Err(format!("the write was answered with {other:?}").into()),
    }
    eventually("the write to run", || async {
        match standing(&*store).await {
            Ok(standing) => Ok(standing.contains_key("p:late").then_some(())),
            Err(_) => Ok(None),
        }
    })
    .await?;
    assert_eq!(store.read(shard()).await?.marks.len(), 1);
    Ok(())
}

/// No call waits for a frozen server without end.
pub async fn a_call_into_a_freeze_ends(host: &impl FreezableHost) -> Verdict {
    let store = host.replica().await?;
    begin(&*store, shard()).await?;
    host.freeze().await?;
    let told = within("calls to end", async {
        (
            store.read(shard()).await.is_err(),
            store.check().await.is_err(),
            store.time().await.is_err(),
            store.announced().await.is_err(),
        )
    })
    .await;
    host.thaw().await?;
    assert_eq!(told?, (true, true, true, true));
    check(&*store, shard()).await?;
    Ok(())
}
