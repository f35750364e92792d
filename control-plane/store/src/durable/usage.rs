//! Tokens of attempts (`sessions-and-streams.md` §4.7).
//!
//! **What is stored.** One row for each attempt that gave an answer. Beside them, as long as they are under way, the
//! answers that take longer than a moment, and when their data planes were last heard: so that each of a data plane that
//! was lost leaves a row as well, that says so.
//!
//! **Stance:** fail-open. Traffic never waits for any of this. A data plane keeps what was not taken and tells it again;
//! everything here may be repeated without harm.

use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::ids::{AttemptId, PlaneIncarnation};
use tidegate_core::usage::{OpenAttempt, UsageRecord};

use super::DurableStoreError;

/// Most attempts that one call of [`UsageStore::reap_open_attempts`] records.
pub const MAX_REAPED_ATTEMPTS: u32 = 1_000;

/// What one look at silent data planes came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// A data plane was silent for so long; ask again, there may be more of it or another one.
    pub found: bool,
    /// So many of its attempts were recorded as unknown.
    pub unknown: u64,
}

/// Tokens of attempts.
#[async_trait]
pub trait UsageStore {
    /// Records usage, all or none. Each attempt counts once: the first record of it stands, unless a later one replaces it
    /// ([`tidegate_core::usage::UsageSource::replaces`]). The attempts are not under way any more. Returns those that
    /// count because of this call, in no particular order.
    async fn record_usage(
        &self,
        records: &[UsageRecord],
    ) -> Result<Vec<AttemptId>, DurableStoreError>;

    /// A data plane lives, and these answers of its are under way from now on, all or none. What is recorded already is
    /// not; what is known to be under way stays as it is. Attempts of other data planes are refused.
    async fn open_attempts(
        &self,
        plane: PlaneIncarnation,
        attempts: &[OpenAttempt],
    ) -> Result<(), DurableStoreError>;

    /// Looks for a data plane that was not heard of for `silence`, by the database's clock, and records up to
    /// [`MAX_REAPED_ATTEMPTS`] of its answers that are under way, unless they are recorded, as
    /// [`tidegate_core::usage::UsageSource::Unknown`], as of when it was last heard. Of one that has none left nothing is
    /// kept. Callers at once take different ones.
    async fn reap_open_attempts(&self, silence: Duration) -> Result<Reaped, DurableStoreError>;
}
