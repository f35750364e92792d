//! What one write takes: of each data plane the longest run from the front of its queue that fits.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate_core::ids::{PlaneIncarnation, Shard};
use tidegate_core::outcome::AttemptOutcome;
use tidegate_core::state::StateKey;
use tidegate_store::hot::{MAX_WRITE_MARKS, MAX_WRITE_VALUES, MarkMove};

use super::queue::{Report, ShardQueue};

/// Most reports in one batch; a fold is work on one core.
const MAX_REPORTS: usize = 1_024;

/// What one write takes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Reports with something to apply, sorted by event time.
    pub(super) outcomes: Vec<Arc<AttemptOutcome>>,
    /// The run of numbers of each data plane.
    pub(super) runs: Vec<MarkMove>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// What a batch has room for.
#[derive(Debug, Default)]
struct Room {
    keys: HashSet<StateKey>,
    reports: usize,
}

impl Room {
    /// Whether one more report fits; if so it is accounted for.
    fn take(&mut self, report: &Report) -> bool {
        if self.reports >= MAX_REPORTS {
            return false;
        }
        if let Some(outcome) = &report.outcome {
            let attempt = &outcome.attempt;
            let wanted = [
                StateKey::Provider(attempt.provider.clone()),
                StateKey::Connection(attempt.provider.clone(), attempt.connection.clone()),
            ];
            let new = wanted
                .iter()
                .filter(|key| !self.keys.contains(*key))
                .count();
            if self.keys.len().saturating_add(new) > MAX_WRITE_VALUES {
                return false;
            }
            self.keys.extend(wanted);
        }
        self.reports = self.reports.saturating_add(1);
        true
    }
}

impl ShardQueue {
    /// The next batch. Planes take turns at being first, `turn` says which.
    pub(super) fn next_batch(
        &self,
        shard: Shard,
        turn: usize,
        applied: impl Fn(PlaneIncarnation) -> u64,
    ) -> (Batch, u64) {
        let dropped = self.drop_applied(shard, applied);
        let planes = self.planes.lock();
        let mut batch = Batch::default();
        let mut room = Room::default();
        let first = turn.checked_rem(planes.len()).unwrap_or(0);
        let in_turn = planes.iter().cycle().skip(first).take(planes.len());
        for (&plane, queue) in in_turn.take(MAX_WRITE_MARKS) {
            let run = queue
                .waiting
                .iter()
                .map(|waiting| &waiting.report)
                .take_while(|report| room.take(report));
            let mut bounds: Option<(u64, u64)> = None;
            for report in run {
                let first = bounds.map_or(report.number, |(first, _)| first);
                bounds = Some((first, report.number));
                batch.outcomes.extend(report.outcome.clone());
            }
            if let Some((first, last)) = bounds {
                batch.runs.push(MarkMove { plane, first, last });
            }
        }
        drop(planes);
        batch.outcomes.sort_by_key(|outcome| {
            let id = outcome.attempt.id;
            (outcome.occurred_at, id.plane, id.number)
        });
        (batch, dropped)
    }

    /// Drops and acknowledges what another replica is known to have applied. Returns how many reports.
    fn drop_applied(&self, shard: Shard, applied: impl Fn(PlaneIncarnation) -> u64) -> u64 {
        let planes: Vec<PlaneIncarnation> = self.planes.lock().keys().copied().collect();
        let mut dropped: u64 = 0;
        for plane in planes {
            let number = applied(plane);
            if number > 0 {
                dropped = dropped.saturating_add(self.complete(shard, plane, number));
            }
        }
        dropped
    }

    /// The reports of these runs that are not in the overlay yet, sorted by event time; they count as in it
    /// from now on.
    pub(super) fn take_for_overlay(&self, runs: &[MarkMove]) -> Vec<Arc<AttemptOutcome>> {
        let mut planes = self.planes.lock();
        let mut outcomes = Vec::new();
        for run in runs {
            let Some(queue) = planes.get_mut(&run.plane) else {
                continue;
            };
            for waiting in &mut queue.waiting {
                if waiting.report.number <= run.last && !waiting.overlaid {
                    waiting.overlaid = true;
                    outcomes.extend(waiting.report.outcome.clone());
                }
            }
        }
        outcomes.sort_by_key(|outcome| outcome.occurred_at);
        outcomes
    }
}
