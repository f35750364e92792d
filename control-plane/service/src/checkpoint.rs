//! Writes the hot state to the durable store, so that it survives the loss of the hot one and of every replica.
//!
//! One replica does it at a time, the one that leads the task: every 100 ms what changed in its view since the last
//! time. The durable store keeps the newer of two versions of a value, so two leaders, or a leader that lags, do no
//! harm. Recorders never come here; an operator's reset does, with the values it wrote ([`Checkpoint::save_now`]),
//! because its answer says whether it would survive.
//!
//! **Stance:** fail-open. What could not be written is written with the next success; the view remembers it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{SHARDS, Shard};
use tidegate_core::version::Version;
use tidegate_store::durable::{DurableStore, DurableStoreError};
use tidegate_store::hot::{Entry, ReportMark};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::lead::Lead;
use crate::telemetry::metrics::Metrics;
use crate::view::View;

/// The task that one replica leads.
const TASK: &str = "checkpoint";
const SAVE_EVERY: Duration = Duration::from_millis(100);
/// Ticks between two confirmations of the lead.
const LEAD_EVERY_TICKS: u32 = 10;
/// Ticks between two sweeps of expired rows.
const SWEEP_EVERY_TICKS: u32 = 600;
/// Most sweeps in a row.
const MAX_SWEEPS: u32 = 16;
/// Limit of a call (decision 54), and of one that may be large.
const LIMIT: Duration = Duration::from_millis(500);
const SAVE_LIMIT: Duration = Duration::from_secs(5);
/// Limit of everything that an operator waits for.
const NOW_LIMIT: Duration = Duration::from_secs(2);
/// Most values in one call.
const MAX_ENTRIES: usize = 1_000;
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The checkpoint and who writes it.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    durable: Arc<dyn DurableStore>,
    view: Arc<View>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    lead: Lead,
}

/// Up to where each shard is saved.
type Saved = [(Version, Vec<ReportMark>); SHARDS as usize];

impl Checkpoint {
    pub(crate) fn new(
        durable: Arc<dyn DurableStore>,
        view: Arc<View>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            lead: Lead::new(TASK, Arc::clone(&durable)),
            durable,
            view,
            clock,
            metrics,
        }
    }

    /// This replica writes the checkpoint.
    pub(crate) fn leads(&self) -> bool {
        self.lead.is_held()
    }

    /// Saves values that were just written; `false`: some are not known to be saved. After a call that fails there is no
    /// other, so that a store that does not answer costs the time of one.
    pub(crate) async fn save_now(&self, written: &BTreeMap<Shard, Vec<Entry>>) -> bool {
        let all = async {
            for (shard, entries) in written {
                for entries in entries.chunks(MAX_ENTRIES) {
                    let now = self.clock.now();
                    let save = self.durable.save_checkpoint(*shard, entries, &[], now);
                    if !matches!(tokio::time::timeout(LIMIT, save).await, Ok(Ok(()))) {
                        return false;
                    }
                }
            }
            true
        };
        tokio::time::timeout(NOW_LIMIT, all).await.unwrap_or(false)
    }

    /// Writes whenever this replica leads, until `stop`; then a last time, and gives the lead back.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SAVE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut saved: Saved = std::array::from_fn(|_| Default::default());
        let mut tick: u32 = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => break,
            }
            if tick.is_multiple_of(LEAD_EVERY_TICKS) {
                self.lead(&mut saved).await;
            }
            tick = tick.wrapping_add(1);
            if !self.leads() {
                continue;
            }
            if let Err(error) = self.save(&mut saved).await {
                self.metrics.checkpoint_failures.inc();
                tracing::warn!(%error, "checkpoint was not written");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = stop.cancelled() => break,
                }
            }
            if tick.is_multiple_of(SWEEP_EVERY_TICKS) {
                self.sweep().await;
            }
        }
        if self.leads() {
            if let Err(error) = self.save(&mut saved).await {
                tracing::warn!(%error, "last checkpoint was not written");
            }
            self.lead.resign().await;
            self.show_lead();
        }
    }

    async fn lead(&self, saved: &mut Saved) {
        if self.lead.claim().await {
            // What others saved is not known here: everything is saved once more, and changes nothing.
            *saved = std::array::from_fn(|_| Default::default());
        }
        self.show_lead();
    }

    fn show_lead(&self) {
        let leads = i64::from(self.leads());
        self.metrics.checkpoint_leader.set(leads);
    }

    async fn save(&self, saved: &mut Saved) -> Result<(), DurableStoreError> {
        for shard in Shard::all() {
            let (since, known_marks) = &saved[shard.index()];
            let version = self.view.complete_to(shard);
            if version == *since {
                continue;
            }
            let (version, entries) = self.view.newer_than(shard, *since);
            let mut marks = self.view.marks(shard);
            marks.sort();
            let raised: Vec<ReportMark> = marks
                .iter()
                .filter(|mark| known_marks.binary_search(mark).is_err())
                .copied()
                .collect();
            let mut rest = raised.as_slice();
            for part in entries.chunks(MAX_ENTRIES) {
                self.save_part(shard, part, rest).await?;
                rest = &[];
            }
            for part in rest.chunks(MAX_ENTRIES) {
                self.save_part(shard, &[], part).await?;
            }
            saved[shard.index()] = (version, marks);
        }
        Ok(())
    }

    async fn save_part(
        &self,
        shard: Shard,
        entries: &[Entry],
        marks: &[ReportMark],
    ) -> Result<(), DurableStoreError> {
        let now = self.clock.now();
        let save = self.durable.save_checkpoint(shard, entries, marks, now);
        match tokio::time::timeout(SAVE_LIMIT, save).await {
            Ok(result) => result,
            Err(_elapsed) => Err(DurableStoreError::Indeterminate(
                "no answer in time".to_owned(),
            )),
        }
    }

    /// Deletes what is past its end, of the checkpoint and of what else has one.
    async fn sweep(&self) {
        let durable = &self.durable;
        sweep("the checkpoint", || {
            durable.delete_expired_checkpoint(self.clock.now())
        })
        .await;
        sweep("notes of conversations", || {
            durable.delete_expired_handoffs(self.clock.now())
        })
        .await;
        sweep("pins of sessions", || {
            durable.delete_expired_pins(self.clock.now())
        })
        .await;
    }
}

async fn sweep<F: Future<Output = Result<u64, DurableStoreError>>>(
    what: &'static str,
    delete: impl Fn() -> F,
) {
    for _ in 0..MAX_SWEEPS {
        match tokio::time::timeout(SAVE_LIMIT, delete()).await {
            Ok(Ok(0)) => return,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, what, "expired rows were not deleted");
                return;
            }
            Err(_elapsed) => return,
        }
    }
}
