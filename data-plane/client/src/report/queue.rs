//! Reports on their way to the control plane: the only log of what happened while it is away.
//!
//! A report is first *waiting*: without a number, so that it may be merged with others, dropped for age or
//! dropped for room, and numbers stay without gaps. Being sent gives it the next number of its shard and makes
//! it *under way*: from then on it never changes and is kept until it is acknowledged, whatever its age (the
//! control plane acknowledges what it finds too old). At most [`WINDOW`] of a shard are under way, and not many
//! more bytes than [`WINDOW_BYTES`], so that all of them fit into one message.
//!
//! When there is no room, waiting successes go first, the oldest before the others, then the oldest failure.
//!
//! Pure: moments are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use prost::Message as _;
use tidegate_core::ids::{PlaneIncarnation, ProviderId, SHARDS, Shard};
use tidegate_core::outcome::{AttemptOutcome, Outcome};
use tidegate_proto::report::v1::{NumberedReport, ReportRequest};
use tidegate_wire::attempt::report_to_proto;
use tokio::time::Instant;

use super::coalesce::{Open, Place};

/// Most reports of a shard that are under way (`architecture.md` §2, Report).
pub(crate) const WINDOW: usize = 256;
/// So many bytes of a shard under way admit no more; well below what a message may have (4 MiB).
const WINDOW_BYTES: usize = 1024 * 1024;
/// What a report takes besides its texts, about.
const REPORT_BYTES: usize = 512;
/// This many waiting reports of a shard are sent without waiting for more.
const FULL_BATCH: usize = 64;

/// What the queue may hold and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    /// Most waiting reports.
    pub(crate) max_waiting: usize,
    /// Most bytes of waiting reports, about.
    pub(crate) max_bytes: usize,
    /// Oldest waiting report.
    pub(crate) max_age: Duration,
    /// How long a report that is not urgent waits for company.
    pub(crate) batch: Duration,
}

/// What became of a report that was pushed, and of others because of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// It was merged into one that waited.
    pub(crate) coalesced: bool,
    /// Successes dropped to make room, as counted.
    pub(crate) dropped_successes: u64,
    /// Other reports dropped to make room.
    pub(crate) dropped_failures: u64,
}

/// What an acknowledgement settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// How many reports.
    pub(crate) reports: u64,
    /// Providers of which nothing is waiting or under way any more.
    pub(crate) settled: Vec<ProviderId>,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct ReportQueue {
    plane: PlaneIncarnation,
    limits: QueueLimits,
    next_seq: u64,
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    /// The waiting successes.
    droppable: BTreeSet<u64>,
    open: Open,
    shards: [ShardQueue; SHARDS as usize],
    outstanding: BTreeMap<ProviderId, usize>,
}

#[derive(Debug)]
struct Waiting {
    report: AttemptOutcome,
    urgent: bool,
    /// When it, or the last one merged into it, came.
    since: Instant,
    /// When it is sent at the latest, if there is room.
    due: Instant,
}

#[derive(Debug, Default)]
struct ShardQueue {
    /// Sequence numbers of waiting reports.
    waiting: BTreeSet<u64>,
    /// How many of them are urgent.
    urgent: usize,
    under_way: VecDeque<UnderWay>,
    under_way_bytes: usize,
    last_number: u64,
}

#[derive(Debug)]
struct UnderWay {
    message: NumberedReport,
    provider: ProviderId,
    bytes: usize,
    urgent: bool,
    /// When it was last sent.
    sent: Instant,
}

impl ReportQueue {
    pub(crate) fn new(plane: PlaneIncarnation, limits: QueueLimits) -> Self {
        Self {
            plane,
            limits,
            next_seq: 1,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            droppable: BTreeSet::new(),
            open: Open::default(),
            shards: std::array::from_fn(|_| ShardQueue::default()),
            outstanding: BTreeMap::new(),
        }
    }

    /// Takes a report.
    pub(crate) fn push(&mut self, report: AttemptOutcome, urgent: bool, now: Instant) -> Pushed {
        let seq = self.next_seq;
        let waiting = &self.waiting;
        let place = self
            .open
            .place(&report, seq, |seq| waiting.contains_key(&seq));
        match place {
            Place::CountInto(into) => self.merge(into, report, urgent, now, true),
            Place::Replace(into) => self.merge(into, report, urgent, now, false),
            Place::New => self.add(seq, report, urgent, now),
        }
    }

    fn merge(
        &mut self,
        seq: u64,
        report: AttemptOutcome,
        urgent: bool,
        now: Instant,
        count: bool,
    ) -> Pushed {
        if let Some(waiting) = self.waiting.get_mut(&seq) {
            let bytes_before = bytes_of(&waiting.report);
            let before = waiting.report.count;
            // The later of the two stands for both, whichever came first.
            if report.occurred_at >= waiting.report.occurred_at {
                waiting.report = report;
                if count {
                    waiting.report.count =
                        waiting.report.count.max(1).saturating_add(before.max(1));
                }
            } else if count {
                waiting.report.count = before.max(1).saturating_add(report.count.max(1));
            }
            self.waiting_bytes = self
                .waiting_bytes
                .saturating_sub(bytes_before)
                .saturating_add(bytes_of(&waiting.report));
            waiting.since = now;
            if urgent && !waiting.urgent {
                waiting.urgent = true;
                waiting.due = now;
                let shard = Shard::of_provider(&waiting.report.attempt.provider);
                if let Some(shard) = self.shards.get_mut(shard.index()) {
                    shard.urgent = shard.urgent.saturating_add(1);
                }
            }
        }
        Pushed {
            coalesced: true,
            ..Pushed::default()
        }
    }

    fn add(&mut self, seq: u64, report: AttemptOutcome, urgent: bool, now: Instant) -> Pushed {
        let bytes = bytes_of(&report);
        let pushed = self.make_room(bytes);
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.next_seq = self.next_seq.saturating_add(1);
        let provider = report.attempt.provider.clone();
        let shard = Shard::of_provider(&provider);
        if report.outcome == Outcome::Success && !report.attempt.probe {
            self.droppable.insert(seq);
        }
        let due = if urgent { now } else { now + self.limits.batch };
        let waiting = Waiting {
            report,
            urgent,
            since: now,
            due,
        };
        self.waiting.insert(seq, waiting);
        if let Some(shard) = self.shards.get_mut(shard.index()) {
            shard.waiting.insert(seq);
            shard.urgent = shard.urgent.saturating_add(usize::from(urgent));
        }
        let outstanding = self.outstanding.entry(provider).or_default();
        *outstanding = outstanding.saturating_add(1);
        pushed
    }

    fn make_room(&mut self, bytes: usize) -> Pushed {
        let mut pushed = Pushed::default();
        while self.waiting.len() >= self.limits.max_waiting
            || self.waiting_bytes.saturating_add(bytes) > self.limits.max_bytes
        {
            let oldest = || self.waiting.keys().next();
            let Some(&seq) = self.droppable.first().or_else(oldest) else {
                break;
            };
            let Some(dropped) = self.drop_waiting(seq) else {
                break;
            };
            if dropped.report.outcome == Outcome::Success {
                let count = u64::from(dropped.report.count.max(1));
                pushed.dropped_successes = pushed.dropped_successes.saturating_add(count);
            } else {
                pushed.dropped_failures = pushed.dropped_failures.saturating_add(1);
            }
        }
        pushed
    }

    /// Drops what has waited too long; says how many, successes as counted.
    pub(crate) fn expire(&mut self, now: Instant) -> u64 {
        let mut dropped: u64 = 0;
        while let Some((&seq, oldest)) = self.waiting.first_key_value() {
            if now.saturating_duration_since(oldest.since) <= self.limits.max_age {
                break;
            }
            let Some(gone) = self.drop_waiting(seq) else {
                break;
            };
            dropped = dropped.saturating_add(u64::from(gone.report.count.max(1)));
        }
        dropped
    }

    fn drop_waiting(&mut self, seq: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&seq)?;
        self.droppable.remove(&seq);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes_of(&waiting.report));
        let provider = waiting.report.attempt.provider.clone();
        if let Some(shard) = self.shards.get_mut(Shard::of_provider(&provider).index()) {
            shard.left(seq, &waiting);
        }
        self.settle(&provider);
        Some(waiting)
    }

    /// One fewer of the provider is outstanding; true when it was the last.
    fn settle(&mut self, provider: &ProviderId) -> bool {
        let Some(outstanding) = self.outstanding.get_mut(provider) else {
            return false;
        };
        *outstanding = outstanding.saturating_sub(1);
        let settled = *outstanding == 0;
        if settled {
            self.outstanding.remove(provider);
        }
        settled
    }

    /// The next message to send, if a shard has something due (or anything, with `all`) and room under way.
    /// What is in it is under way afterwards.
    pub(crate) fn take(&mut self, now: Instant, all: bool) -> Option<ReportRequest> {
        let shard = Shard::all().find(|shard| self.is_ready(*shard, now, all))?;
        let queue = self.shards.get_mut(shard.index())?;
        let mut reports = Vec::new();
        while queue.has_room() {
            let Some(&seq) = queue.waiting.first() else {
                break;
            };
            let Some(waiting) = self.waiting.remove(&seq) else {
                queue.waiting.remove(&seq);
                continue;
            };
            queue.left(seq, &waiting);
            self.droppable.remove(&seq);
            self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes_of(&waiting.report));
            self.open.close(&waiting.report.attempt.connection);
            queue.last_number = queue.last_number.saturating_add(1);
            let message = NumberedReport {
                number: queue.last_number,
                report: Some(report_to_proto(&waiting.report)),
            };
            reports.push(message.clone());
            let bytes = message.encoded_len();
            queue.under_way_bytes = queue.under_way_bytes.saturating_add(bytes);
            queue.under_way.push_back(UnderWay {
                message,
                bytes,
                provider: waiting.report.attempt.provider,
                urgent: waiting.urgent,
                sent: now,
            });
        }
        if self.waiting.is_empty() {
            self.open.close_all();
        }
        (!reports.is_empty()).then(|| self.message(shard, reports))
    }

    fn is_ready(&self, shard: Shard, now: Instant, all: bool) -> bool {
        let Some(queue) = self.shards.get(shard.index()) else {
            return false;
        };
        if queue.waiting.is_empty() || !queue.has_room() {
            return false;
        }
        all || self.first_due(queue).is_some_and(|due| due <= now)
    }

    fn first_due(&self, queue: &ShardQueue) -> Option<Instant> {
        let seq = queue.waiting.first()?;
        if queue.urgent > 0 || queue.waiting.len() >= FULL_BATCH {
            // Due since it is there.
            return self.waiting.get(seq).map(|waiting| waiting.since);
        }
        self.waiting.get(seq).map(|waiting| waiting.due)
    }

    /// When something becomes due that has room under way.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.shards
            .iter()
            .filter(|queue| queue.has_room())
            .filter_map(|queue| self.first_due(queue))
            .min()
    }

    /// Everything under way, to be sent again on a new stream, in order.
    pub(crate) fn resend(&mut self, now: Instant) -> Vec<ReportRequest> {
        let mut messages = Vec::new();
        for shard in Shard::all() {
            let Some(queue) = self.shards.get_mut(shard.index()) else {
                continue;
            };
            let reports: Vec<NumberedReport> = queue
                .under_way
                .iter_mut()
                .map(|under_way| {
                    under_way.sent = now;
                    under_way.message.clone()
                })
                .collect();
            if !reports.is_empty() {
                messages.push(self.message(shard, reports));
            }
        }
        messages
    }

    /// Everything of a shard up to a number is applied.
    pub(crate) fn acknowledge(&mut self, shard: Shard, number: u64) -> Acknowledged {
        let mut acknowledged = Acknowledged::default();
        while let Some(gone) = self.pop_covered(shard, number) {
            acknowledged.reports = acknowledged.reports.saturating_add(1);
            if self.settle(&gone.provider) {
                acknowledged.settled.push(gone.provider);
            }
        }
        acknowledged
    }

    fn pop_covered(&mut self, shard: Shard, number: u64) -> Option<UnderWay> {
        let queue = self.shards.get_mut(shard.index())?;
        let gone = queue
            .under_way
            .pop_front_if(|oldest| oldest.message.number <= number)?;
        queue.under_way_bytes = queue.under_way_bytes.saturating_sub(gone.bytes);
        Some(gone)
    }

    /// When the urgent report that has been under way the longest was sent.
    pub(crate) fn oldest_urgent(&self) -> Option<Instant> {
        self.under_way()
            .filter(|under_way| under_way.urgent)
            .map(|under_way| under_way.sent)
            .min()
    }

    /// When the report that has been under way the longest was sent.
    pub(crate) fn oldest_under_way(&self) -> Option<Instant> {
        self.shards
            .iter()
            .filter_map(|queue| queue.under_way.front())
            .map(|under_way| under_way.sent)
            .min()
    }

    fn under_way(&self) -> impl Iterator<Item = &UnderWay> {
        self.shards.iter().flat_map(|queue| &queue.under_way)
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn under_way_count(&self) -> usize {
        self.shards.iter().map(|queue| queue.under_way.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way_count() == 0
    }

    fn message(&self, shard: Shard, reports: Vec<NumberedReport>) -> ReportRequest {
        ReportRequest {
            plane: self.plane.0,
            shard: u32::from(shard.number()),
            reports,
        }
    }
}

impl ShardQueue {
    /// One more may be under way.
    fn has_room(&self) -> bool {
        self.under_way.len() < WINDOW && self.under_way_bytes < WINDOW_BYTES
    }

    fn left(&mut self, seq: u64, waiting: &Waiting) {
        self.waiting.remove(&seq);
        self.urgent = self.urgent.saturating_sub(usize::from(waiting.urgent));
    }
}

/// How much memory a report takes, about. Only what an upstream sent can be long.
fn bytes_of(report: &AttemptOutcome) -> usize {
    match &report.outcome {
        Outcome::Response(error) => error
            .headers
            .iter()
            .map(|(name, value)| name.len().saturating_add(value.len()))
            .fold(
                REPORT_BYTES.saturating_add(error.body.len()),
                usize::saturating_add,
            ),
        Outcome::Success
        | Outcome::Transport(_)
        | Outcome::Stream(_)
        | Outcome::Local(_)
        | Outcome::ClientAbort => REPORT_BYTES,
    }
}

#[cfg(test)]
mod tests;
