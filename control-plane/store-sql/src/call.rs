//! One call of a store: a connection, a limit, and what is known when it fails.
//!
//! A connection goes back to the pool only when its call ended in a way that leaves it clean. Otherwise it is
//! closed: the driver would test it before reuse, and a test on a connection whose peer is frozen or gone
//! never ends, so that a few such calls would use the pool up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tidegate_store::durable::DurableStoreError;
use tokio::time::timeout;

use crate::sqlstate::{Verdict, text, verdict};

/// How far a call got: decides whether a lost answer means that nothing happened.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    deciding: AtomicBool,
}

impl Progress {
    /// What is sent next may make a change for good: a commit, or a write outside a transaction.
    pub(crate) fn decides(&self) {
        self.deciding.store(true, Ordering::Relaxed);
    }

    /// What was sent has made no change for good, and nothing before it has.
    pub(crate) fn has_decided_nothing(&self) {
        self.deciding.store(false, Ordering::Relaxed);
    }

    fn lost(&self, text: String) -> DurableStoreError {
        if self.deciding.load(Ordering::Relaxed) {
            DurableStoreError::Indeterminate(text)
        } else {
            DurableStoreError::Unreachable(text)
        }
    }

    /// No answer within the limit.
    pub(crate) fn late(&self, limit: Duration) -> DurableStoreError {
        self.lost(format!("no answer within {} ms", limit.as_millis()))
    }
}

/// Why the work of a call stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The driver says so.
    Sql(sqlx::Error),
    /// We say so; the connection is as good as before.
    Store(DurableStoreError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<DurableStoreError> for Failure {
    fn from(error: DurableStoreError) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    fn spoils_connection(&self) -> bool {
        matches!(self, Self::Sql(error) if verdict(error) == Verdict::Lost)
    }

    /// What it means for the caller.
    pub(crate) fn judge(self, progress: &Progress) -> DurableStoreError {
        let error = match self {
            Self::Store(error) => return error,
            Self::Sql(error) => error,
        };
        let text = text(&error);
        match verdict(&error) {
            Verdict::Lost => progress.lost(text),
            Verdict::Unavailable | Verdict::Late => DurableStoreError::Unreachable(text),
            Verdict::Contended => DurableStoreError::Contended(text),
            Verdict::Schema => DurableStoreError::Schema(text),
            Verdict::Corrupt => DurableStoreError::Corrupt(text),
            Verdict::Refused => DurableStoreError::Refused(text),
        }
    }
}

/// A connection that is closed when dropped, unless it was declared clean.
struct Borrowed<DB: Database> {
    connection: PoolConnection<DB>,
    clean: bool,
}

impl<DB: Database> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        if !self.clean {
            self.connection.close_on_drop();
        }
    }
}

/// Runs `work` on a connection of the pool. Waiting for the connection counts towards `limit`.
pub(crate) async fn run<DB, T, F>(
    pool: &Pool<DB>,
    limit: Duration,
    work: F,
) -> Result<T, DurableStoreError>
where
    DB: Database,
    F: AsyncFnOnce(&mut DB::Connection, &Progress) -> Result<T, Failure>,
{
    let progress = Progress::default();
    let attempt = async {
        let mut borrowed = Borrowed {
            connection: pool.acquire().await?,
            clean: false,
        };
        let outcome = work(&mut borrowed.connection, &progress).await;
        borrowed.clean = match &outcome {
            Ok(_) => true,
            Err(failure) => !failure.spoils_connection(),
        };
        outcome
    };
    match timeout(limit, attempt).await {
        Ok(outcome) => outcome.map_err(|failure| failure.judge(&progress)),
        Err(_) => Err(progress.late(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_written_is_in_doubt() {
        let progress = Progress::default();
        let is_in_doubt = || {
            let error = progress.late(Duration::from_secs(1));
            matches!(error, DurableStoreError::Indeterminate(_))
        };
        assert!(!is_in_doubt());
        progress.decides();
        assert!(is_in_doubt());
        progress.has_decided_nothing();
        assert!(!is_in_doubt());
    }
}
