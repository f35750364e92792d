//! A shard's worker: takes what waits, folds it, writes it, acknowledges it.

use std::time::Duration;

use tidegate_core::ids::Shard;
use tidegate_core::version::{Incarnation, Version};
use tidegate_store::hot::{RefusalReason, ReportMark, ShardWrite, WriteOutcome, WriteValue};
use tidegate_store::pacing::Pacing;
use tokio_util::sync::CancellationToken;

use crate::clock::local_now;
use crate::hot::WRITE_LIMIT;
use crate::telemetry::metrics::ReportFate;

use super::batch::Batch;
use super::fold::{Fold, FoldError, Shown, entries};
use super::{MAX_REPORT_AGE_MS, Recorder};

/// Refusals after which a batch pauses like after a write.
const MAX_REFUSALS: u32 = 16;
/// First and longest pause while the store does not take a batch.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LONGEST: Duration = Duration::from_millis(500);
/// How often an idle worker looks whether an overlay can go.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// What a turn of the worker came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing waits.
    Idle,
    /// A batch is done without a write.
    Unwritten,
    /// A batch is written, or gave way to other writers.
    Written,
    /// The store cannot take the batch now.
    Held,
}

/// What folding a batch came to.
struct Folded {
    values: Vec<WriteValue>,
    transitions: Vec<tidegate_core::state::Transition>,
    unknown: u64,
    /// Reports that have become too old while they waited.
    too_old: u64,
}

impl Recorder {
    /// Works until `stop`, then tries once more.
    pub(super) async fn work(&self, shard: Shard, stop: CancellationToken) {
        let mut pacing = Pacing::default();
        let mut pause = RETRY_FIRST;
        let mut turns: usize = 0;
        loop {
            let wait = pacing.wait(local_now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            turns = turns.wrapping_add(1);
            let sent = local_now();
            match self.turn(shard, turns).await {
                Turn::Written => {
                    pacing.written(sent, local_now());
                    pause = RETRY_FIRST;
                }
                Turn::Unwritten => pause = RETRY_FIRST,
                Turn::Idle => {
                    if stop.is_cancelled() {
                        return;
                    }
                    tokio::select! {
                        () = self.queue(shard).arrived.notified() => {}
                        () = tokio::time::sleep(SETTLE_EVERY) => self.settle_overlay(shard),
                        () = stop.cancelled() => {}
                    }
                }
                Turn::Held => {
                    if stop.is_cancelled() {
                        return;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = stop.cancelled() => {}
                    }
                    pause = (pause * 2).min(RETRY_LONGEST);
                }
            }
            self.show_waiting();
        }
    }

    async fn turn(&self, shard: Shard, turns: usize) -> Turn {
        let mut shown = Shown::default();
        let mut caught_up = false;
        for _ in 0..MAX_REFUSALS {
            let (batch, dropped) = self
                .queue(shard)
                .next_batch(shard, turns, |plane| self.view.mark(shard, plane));
            self.metrics.reports(ReportFate::Duplicate, dropped);
            if batch.is_empty() {
                self.settle_overlay(shard);
                return Turn::Idle;
            }
            let incarnation = self.view.complete_to(shard).incarnation;
            if incarnation == Incarnation::default() || self.config.config().is_none() {
                self.overlay_batch(shard, &batch.runs);
                return Turn::Held;
            }
            if !caught_up {
                if let Err(_held_and_tried_again) = self.catch_up_with(shard, &batch.outcomes).await
                {
                    self.overlay_batch(shard, &batch.runs);
                    return Turn::Held;
                }
                caught_up = true;
            }
            let folded = match self.fold(&batch, incarnation, &shown) {
                Ok(folded) => folded,
                Err(FoldError::Unreadable) => return Turn::Held,
                Err(FoldError::Codec(error)) => {
                    tracing::error!(%shard, %error, "cannot write down what reports changed");
                    return Turn::Held;
                }
            };
            if folded.values.is_empty() {
                if !self.view_can_be_trusted() {
                    self.overlay_batch(shard, &batch.runs);
                    return Turn::Held;
                }
                self.finish(shard, &batch, &folded, ReportFate::Unchanged);
                return Turn::Unwritten;
            }
            if !self.schemas.may_write() {
                return Turn::Held;
            }
            let write = ShardWrite {
                shard,
                incarnation,
                not_after: self.clock.now(),
                values: folded.values.clone(),
                marks: batch.runs.clone(),
            };
            match self.hot.write(write, WRITE_LIMIT).await {
                Ok(WriteOutcome::Written { revision, .. }) => {
                    let version = Version {
                        incarnation,
                        revision,
                    };
                    let marks = batch.runs.iter().map(|run| ReportMark {
                        plane: run.plane,
                        number: run.last,
                    });
                    self.view.raise_marks(shard, &marks.collect::<Vec<_>>());
                    let entries = entries(&folded.values, version);
                    self.view.learn(shard, entries, Some(version));
                    self.history.append(shard, version, &folded.transitions);
                    self.finish(shard, &batch, &folded, ReportFate::Applied);
                    self.settle_overlay(shard);
                    return Turn::Written;
                }
                Ok(WriteOutcome::Refused(refusal)) => {
                    self.view.raise_marks(shard, &refusal.marks);
                    match refusal.reason {
                        RefusalReason::Empty
                        | RefusalReason::OtherServer
                        | RefusalReason::OtherIncarnation => {
                            self.follower.doubt(shard);
                            self.overlay_batch(shard, &batch.runs);
                            return Turn::Held;
                        }
                        // The refusal has set the clock.
                        RefusalReason::Late => {}
                        // The raised marks shorten the next batch.
                        RefusalReason::AlreadyApplied => {}
                        RefusalReason::Conflict => {
                            self.metrics.write_conflicts.inc();
                            let found = refusal.values.iter().flatten().cloned().collect();
                            self.view.learn(shard, found, None);
                            shown.take(&folded.values, refusal.values);
                        }
                    }
                }
                Err(_logged_by_the_guard) => {
                    self.overlay_batch(shard, &batch.runs);
                    return Turn::Held;
                }
            }
        }
        Turn::Written
    }

    /// The view follows the store, so that what it says changes nothing does change nothing.
    pub(super) fn view_can_be_trusted(&self) -> bool {
        !self.hot.is_away() && !self.view.age(local_now()).stale
    }

    fn fold(
        &self,
        batch: &Batch,
        incarnation: Incarnation,
        shown: &Shown,
    ) -> Result<Folded, FoldError> {
        let Some(config) = self.config.config() else {
            return Err(FoldError::Unreadable);
        };
        let now = self.clock.now();
        let oldest = now.minus_ms(MAX_REPORT_AGE_MS);
        let mut too_old: u64 = 0;
        let mut fold = Fold::new(&config, &self.view, shown, incarnation, now);
        for outcome in &batch.outcomes {
            if outcome.occurred_at < oldest {
                too_old = too_old.saturating_add(1);
                continue;
            }
            fold.outcome(outcome)?;
        }
        Ok(Folded {
            values: fold.writes()?,
            unknown: fold.unknown,
            too_old,
            transitions: fold.transitions,
        })
    }

    fn finish(&self, shard: Shard, batch: &Batch, folded: &Folded, fate: ReportFate) {
        for run in &batch.runs {
            self.queue(shard).complete(shard, run.plane, run.last);
        }
        let outcomes = u64::try_from(batch.outcomes.len()).unwrap_or(u64::MAX);
        self.metrics.reports(ReportFate::Invalid, folded.unknown);
        self.metrics.reports(ReportFate::TooOld, folded.too_old);
        let aside = folded.unknown.saturating_add(folded.too_old);
        self.metrics.reports(fate, outcomes.saturating_sub(aside));
    }
}
