//! An attempt that may be in flight under a lease.

use std::fmt;

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// An attempt may be in flight under its lease. Dropped, it is not any more; so whatever it sent must have been let go
/// of before.
pub struct Leased {
    cut: CancellationToken,
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Leased {
    /// With what ends it early, and what is done at its end.
    #[must_use]
    pub fn new(cut: CancellationToken, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            cut,
            end: Some(Box::new(end)),
        }
    }

    /// Comes when the attempt must end at once, since its connection may be somebody else's (decision 42).
    pub fn cut(&self) -> WaitForCancellationFutureOwned {
        self.cut.clone().cancelled_owned()
    }

    /// Whether that moment has come.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Leased")
            .field("is_cut", &self.is_cut())
            .finish_non_exhaustive()
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
