//! What an operator began goes on to its end, whoever still waits for it: half of it would be done, and nobody would have written
//! down who did it.

use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// It broke off; what of it happened is not known.
#[derive(Debug, thiserror::Error)]
#[error("the change was not made to its end")]
pub(crate) struct NotEnded;

/// Makes a change in a task of its own. Dropped before it has ended, the change still goes on.
pub(crate) async fn to_its_end<T: Send + 'static>(
    tasks: &TaskTracker,
    change: impl Future<Output = T> + Send + 'static,
) -> Result<T, NotEnded> {
    tasks
        .spawn(change.in_current_span())
        .await
        .map_err(|error| {
            tracing::error!(%error, "a change was not made to its end");
            NotEnded
        })
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_that_nobody_waits_for_any_more_goes_on_to_its_end() {
        let tasks = TaskTracker::new();
        let (go_on, told) = oneshot::channel::<()>();
        let (ended, end) = oneshot::channel();
        let change = async move {
            told.await.unwrap();
            ended.send("audited").unwrap();
        };
        let mut caller = Box::pin(to_its_end(&tasks, change));
        assert!(futures::poll!(caller.as_mut()).is_pending());
        drop(caller);
        go_on.send(()).unwrap();
        assert_eq!(end.await, Ok("audited"));
        // Who waits gets what it came to.
        assert_eq!(to_its_end(&tasks, async { 7 }).await.unwrap(), 7);
        tasks.close();
        tasks.wait().await;
    }
}
