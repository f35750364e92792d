//! Single events that somebody waits for: a probe, its return, an operator's reset, a new credential.
//!
//! They go past the queue of reports. A compare-and-set makes them safe beside it: whoever comes second folds again
//! on what the first one wrote.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::ids::{ConnectionId, ProviderId, Shard};
use tidegate_core::state::Event;
use tidegate_core::state::apply::Applied;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::hot::{Entry, HotStoreError, RefusalReason, ShardWrite, WriteOutcome};

use crate::clock::{Deadline, local_now};

use super::Recorder;
use super::fold::{Fold, FoldError, Shown, entries};

/// Refusals after which a single event gives up.
const MAX_REFUSALS: u32 = 64;

/// What a single event did.
#[derive(Debug)]
pub(crate) struct Done {
    /// As the rules say.
    pub(crate) applied: Applied,
    /// What was written; empty when nothing changed.
    pub(crate) entries: Vec<Entry>,
}

/// Why a single event was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDone {
    /// The store did not take it; it may have, when it did not answer.
    #[error(transparent)]
    Store(#[from] HotStoreError),
    /// The shard has no incarnation this replica knows; it is being restored.
    #[error("the hot state is being restored")]
    Restoring,
    /// Others wrote the same value again and again.
    #[error("others kept changing the same value")]
    Contended,
    /// The value is of a newer build.
    #[error("the value belongs to a newer release")]
    NewerSchema,
    /// There is no configuration yet.
    #[error("there is no configuration yet")]
    Unconfigured,
}

impl Recorder {
    /// Applies one event and writes what it changes. Each call to the store may take `limit`, all of it until
    /// `deadline`.
    pub(crate) async fn direct(
        &self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        event: &Event,
        limit: Duration,
        deadline: impl Into<Deadline>,
    ) -> Result<Done, NotDone> {
        let deadline = deadline.into();
        let shard = Shard::of_provider(provider);
        let mut shown = Shown::default();
        for _ in 0..MAX_REFUSALS {
            let incarnation = self.view.complete_to(shard).incarnation;
            if incarnation == Incarnation::default() {
                return Err(NotDone::Restoring);
            }
            let config = self.config.config().ok_or(NotDone::Unconfigured)?;
            let mut fold = Fold::new(&config, &self.view, &shown, incarnation, self.clock.now());
            let applied = fold.event(provider, connection, event).map_err(not_done)?;
            let values = fold.writes().map_err(not_done)?;
            if values.is_empty() {
                return Ok(Done {
                    applied,
                    entries: Vec::new(),
                });
            }
            if !self.schemas.may_write() {
                return Err(NotDone::NewerSchema);
            }
            let left = deadline.left(local_now());
            if left.is_zero() {
                return Err(NotDone::Store(HotStoreError::Timeout));
            }
            let write = ShardWrite {
                shard,
                incarnation,
                not_after: self.clock.now(),
                values: values.clone(),
                marks: Vec::new(),
            };
            let written = self.hot.write_until(write, limit.min(left), deadline.store);
            match written.await? {
                WriteOutcome::Written { revision, .. } => {
                    let version = Version {
                        incarnation,
                        revision,
                    };
                    let entries = entries(&values, version);
                    self.view.learn(shard, entries.clone(), Some(version));
                    self.history.append(shard, version, &applied.transitions);
                    return Ok(Done { applied, entries });
                }
                WriteOutcome::Refused(refusal) => match refusal.reason {
                    RefusalReason::Empty
                    | RefusalReason::OtherServer
                    | RefusalReason::OtherIncarnation => {
                        self.follower.doubt(shard);
                        return Err(NotDone::Restoring);
                    }
                    // There may be time left here, where the clock stood still in a machine that slept.
                    RefusalReason::Late if deadline.store.is_some_and(|it| it < refusal.now) => {
                        return Err(NotDone::Store(HotStoreError::Timeout));
                    }
                    RefusalReason::Late | RefusalReason::AlreadyApplied => {}
                    RefusalReason::Conflict => {
                        self.metrics.write_conflicts.inc();
                        let found = refusal.values.iter().flatten().cloned().collect();
                        self.view.learn(shard, found, None);
                        shown.take(&values, refusal.values);
                    }
                },
            }
        }
        Err(NotDone::Contended)
    }

    /// Applies one event to this replica's own view only, the store being away.
    pub(crate) fn apply_locally(
        &self,
        provider: &ProviderId,
        connection: Option<&ConnectionId>,
        event: &Event,
    ) -> Applied {
        self.overlay_event(provider, connection, event)
    }

    /// The same, if there is an overlay over the provider's shard at all.
    pub(crate) fn apply_locally_if_overlaid(&self, provider: &ProviderId, event: &Event) {
        let shard = Shard::of_provider(provider);
        if self.queue(shard).overlaid.load(Ordering::Acquire) {
            self.overlay_event(provider, None, event);
        }
    }
}

fn not_done(error: FoldError) -> NotDone {
    match error {
        FoldError::Unreadable => NotDone::NewerSchema,
        FoldError::Codec(error) => NotDone::Store(HotStoreError::Protocol(error.to_string())),
    }
}
