//! Waiting for conditions, never for times.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const EVERY: Duration = Duration::from_millis(10);

/// Asks `condition` until it gives a value, at most for `limit`; `what` says what was waited for, for the error.
///
/// # Errors
/// When the limit passes first. A call of `condition` that hangs is not cut short: give it a limit of its own.
pub async fn eventually<T, F, Fut>(limit: Duration, what: &str, mut condition: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("gave up after {limit:?} waiting for {what}");
        }
        sleep(EVERY).await;
    }
}
