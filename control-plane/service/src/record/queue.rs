//! Reports that wait to be applied, in the order of their numbers, and how far each data plane is acknowledged.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate_core::ids::{PlaneIncarnation, SHARDS, Shard};
use tidegate_core::outcome::AttemptOutcome;
use tokio::sync::{Notify, watch};

use crate::clock::local_now;
use crate::telemetry::metrics::{ReportFate, gauge_value};

use super::{MAX_REPORT_AGE_MS, Recorder};

/// Most reports of a data plane under way per shard (`architecture.md` §2, Report).
pub(crate) const MAX_UNDER_WAY: usize = 256;
/// Most reports of a data plane that wait per shard, those included that are applied already.
const MAX_WAITING: usize = 2 * MAX_UNDER_WAY;
/// Most data planes whose progress is kept; beyond it new ones are refused.
const MAX_PLANES: usize = 4_096;
/// How long the progress of a data plane that sends nothing is kept.
const KEEP_PLANE: Duration = Duration::from_secs(3_600);

/// How far the reports of a data plane are acknowledged, by shard.
#[derive(Debug)]
pub(crate) struct Progress {
    acknowledged: [AtomicU64; SHARDS as usize],
    changed: watch::Sender<()>,
    touched: Mutex<Instant>,
}

impl Progress {
    fn new(now: Instant) -> Self {
        Self {
            acknowledged: std::array::from_fn(|_| AtomicU64::new(0)),
            changed: watch::Sender::new(()),
            touched: Mutex::new(now),
        }
    }

    /// Everything of the shard up to this number is acknowledged.
    pub(crate) fn acknowledged(&self, shard: Shard) -> u64 {
        self.acknowledged[shard.index()].load(Ordering::Acquire)
    }

    /// Is told whenever a number of any shard rises.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn raise(&self, shard: Shard, number: u64) {
        let before = self.acknowledged[shard.index()].fetch_max(number, Ordering::AcqRel);
        if before < number {
            self.changed.send_replace(());
        }
    }
}

/// Progress of all data planes.
#[derive(Debug, Default)]
pub(super) struct Planes {
    by_incarnation: Mutex<HashMap<PlaneIncarnation, Arc<Progress>>>,
}

/// A report as it came.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Its number within (data plane, shard).
    pub(crate) number: u64,
    /// What happened; `None` when there is nothing in it to apply.
    pub(crate) outcome: Option<Arc<AttemptOutcome>>,
}

/// Why reports were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("more than {MAX_UNDER_WAY} reports of the shard are under way")]
    WindowFull,
    #[error("more data planes report here than this replica keeps track of")]
    TooManyPlanes,
}

/// Reports of one shard that wait.
#[derive(Debug, Default)]
pub(super) struct ShardQueue {
    pub(super) planes: Mutex<BTreeMap<PlaneIncarnation, PlaneQueue>>,
    pub(super) arrived: Notify,
    /// Held while the overlay is read and replaced or taken away, so that of two events the second sees the first.
    pub(super) overlay: Mutex<()>,
    /// An overlay lies over the shard.
    pub(super) overlaid: std::sync::atomic::AtomicBool,
}

/// Reports of one data plane that wait in a shard.
#[derive(Debug)]
pub(super) struct PlaneQueue {
    pub(super) waiting: VecDeque<Waiting>,
    last_queued: u64,
    pub(super) progress: Arc<Progress>,
}

/// A report that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) report: Report,
    /// It is in the overlay.
    pub(super) overlaid: bool,
}

impl PlaneQueue {
    /// Nothing more may be under way. What is applied up to `applied` is not under way for the data plane, which may
    /// have been told so already: the write's own change can come back through the stream before its answer, and then
    /// the mark is known while the reports still wait for their worker.
    pub(super) fn is_full(&self, applied: u64) -> bool {
        let settled = self
            .waiting
            .partition_point(|waiting| waiting.report.number <= applied);
        self.waiting.len().saturating_sub(settled) >= MAX_UNDER_WAY
            || self.waiting.len() >= MAX_WAITING
    }
}

impl ShardQueue {
    /// Acknowledges everything of a data plane up to `number` and drops it from the queue. Returns how many
    /// reports were dropped.
    pub(super) fn complete(&self, shard: Shard, plane: PlaneIncarnation, number: u64) -> u64 {
        let mut planes = self.planes.lock();
        let Some(queue) = planes.get_mut(&plane) else {
            return 0;
        };
        let mut done: u64 = 0;
        while queue
            .waiting
            .front()
            .is_some_and(|waiting| waiting.report.number <= number)
        {
            queue.waiting.pop_front();
            done = done.saturating_add(1);
        }
        queue.progress.raise(shard, number);
        if queue.waiting.is_empty() {
            // The numbers queued last are all acknowledged, which the progress remembers.
            planes.remove(&plane);
        }
        done
    }

    /// Nothing that waits is in the overlay.
    pub(super) fn nothing_overlaid(&self) -> bool {
        let planes = self.planes.lock();
        planes
            .values()
            .all(|queue| queue.waiting.iter().all(|waiting| !waiting.overlaid))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.planes.lock().is_empty()
    }

    /// Queues reports as if they had been submitted.
    #[cfg(test)]
    pub(super) fn fill(
        &self,
        plane: PlaneIncarnation,
        reports: impl IntoIterator<Item = Report>,
    ) -> Arc<Progress> {
        let progress = Arc::new(Progress::new(local_now()));
        let waiting = reports.into_iter().map(|report| Waiting {
            report,
            overlaid: false,
        });
        let queue = PlaneQueue {
            waiting: waiting.collect(),
            last_queued: u64::MAX,
            progress: Arc::clone(&progress),
        };
        self.planes.lock().insert(plane, queue);
        progress
    }

    fn len(&self) -> usize {
        self.planes
            .lock()
            .values()
            .map(|queue| queue.waiting.len())
            .sum()
    }
}

impl Recorder {
    /// The progress of a data plane, known or new.
    pub(crate) fn progress(&self, plane: PlaneIncarnation) -> Result<Arc<Progress>, NotTaken> {
        let now = local_now();
        let mut planes = self.planes.by_incarnation.lock();
        if let Some(progress) = planes.get(&plane) {
            *progress.touched.lock() = now;
            return Ok(Arc::clone(progress));
        }
        if planes.len() >= MAX_PLANES {
            planes.retain(|_, progress| {
                Arc::strong_count(progress) > 1
                    || now.saturating_duration_since(*progress.touched.lock()) < KEEP_PLANE
            });
        }
        if planes.len() >= MAX_PLANES {
            return Err(NotTaken::TooManyPlanes);
        }
        let progress = Arc::new(Progress::new(now));
        planes.insert(plane, Arc::clone(&progress));
        Ok(progress)
    }

    /// Takes reports of a shard in ascending order of number. What was applied before is dropped, also when it
    /// waits already because another stream of the same data plane brought it.
    pub(crate) fn submit(
        &self,
        plane: PlaneIncarnation,
        progress: &Arc<Progress>,
        shard: Shard,
        reports: Vec<Report>,
    ) -> Result<(), NotTaken> {
        *progress.touched.lock() = local_now();
        let mark = self.view.mark(shard, plane);
        progress.raise(shard, mark);
        let applied = progress.acknowledged(shard);
        let oldest = self.clock.now().minus_ms(MAX_REPORT_AGE_MS);
        let mut duplicates: u64 = 0;
        let mut too_old: u64 = 0;
        let mut full = false;
        {
            let mut planes = self.queue(shard).planes.lock();
            let queue = planes.entry(plane).or_insert_with(|| PlaneQueue {
                waiting: VecDeque::new(),
                last_queued: 0,
                progress: Arc::clone(progress),
            });
            for mut report in reports {
                if report.number <= applied || report.number <= queue.last_queued {
                    duplicates = duplicates.saturating_add(1);
                    continue;
                }
                if queue.is_full(applied) {
                    full = true;
                    break;
                }
                if let Some(outcome) = &report.outcome
                    && outcome.occurred_at < oldest
                {
                    too_old = too_old.saturating_add(1);
                    report.outcome = None;
                }
                queue.last_queued = report.number;
                queue.waiting.push_back(Waiting {
                    report,
                    overlaid: false,
                });
            }
            if queue.waiting.is_empty() {
                planes.remove(&plane);
            }
        }
        self.metrics.reports(ReportFate::Duplicate, duplicates);
        self.metrics.reports(ReportFate::TooOld, too_old);
        self.show_waiting();
        self.queue(shard).arrived.notify_one();
        if full {
            Err(NotTaken::WindowFull)
        } else {
            Ok(())
        }
    }

    /// Forgets data planes that have sent nothing for long.
    pub(crate) fn forget_planes(&self) {
        let now = local_now();
        self.planes.by_incarnation.lock().retain(|_, progress| {
            Arc::strong_count(progress) > 1
                || now.saturating_duration_since(*progress.touched.lock()) < KEEP_PLANE
        });
    }

    pub(super) fn show_waiting(&self) {
        let waiting: usize = self.shards.iter().map(ShardQueue::len).sum();
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        self.metrics.waiting_reports.set(gauge_value(waiting));
    }
}
