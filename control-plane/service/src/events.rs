//! Events as they happen, for those who watch.
//!
//! Whatever replica records a change, its transition comes to the durable store, and so does the audit trail. While
//! anybody watches here, one task reads what was appended since its last look and hands it to all of them; so fifty
//! watchers cost the stores no more than one, and decisions nothing.
//!
//! **Stance:** fail-open. While the durable store is away nothing is told; what was appended meanwhile is told later.
//! **Bound:** [`MAX_WATCHERS`] watchers, of one caller [`MAX_OF_CALLER`]; each may be [`BEHIND`] events behind, then it is told how many it missed.
//! **Staleness:** what the writer of history takes, and [`EVERY`]. Of two replicas that append at the same time the later
//! number may be seen first, so each look goes back [`LOOK_BACK`] rows; what was seen is not told again. A row that this
//! release cannot read is counted, and passed over.

mod places;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::durable::{
    DurableStore, DurableStoreError, EventMarks, EventPosition, EventRow, EventSource, StoredEvent,
};
use tokio::sync::{broadcast, watch};

use crate::telemetry::admin_metrics::AdminMetrics;
use crate::telemetry::metrics::Metrics;

use places::{MAX_OF_CALLER, MAX_WATCHERS, NoPlace, Place, Places};

/// How often is looked.
const EVERY: Duration = Duration::from_millis(500);
/// Limit of a look (decision 54).
const LIMIT: Duration = Duration::from_millis(500);
/// How long a new watcher waits for the first look.
pub(crate) const BEGIN_LIMIT: Duration = Duration::from_secs(5);
/// Rows of each source in one look.
const ROWS: u32 = 1_000;
/// So many numbers each look goes back.
const LOOK_BACK: u64 = 256;
/// Events that a watcher may be behind.
const BEHIND: usize = 2_048;
/// Looks in vain of which one is logged.
const LOG_EACH_FAILURES: u32 = 20;

/// Events of the whole fleet.
#[derive(Debug)]
pub(crate) struct Events {
    durable: Arc<dyn DurableStore>,
    metrics: Arc<Metrics>,
    sender: broadcast::Sender<Arc<EventRow>>,
    /// From now on everything is told that is appended.
    following: watch::Sender<bool>,
    /// How many watch.
    watched: watch::Sender<usize>,
    places: Arc<Places>,
}

/// One who watches.
#[derive(Debug)]
pub(crate) struct Watcher {
    events: Arc<Events>,
    receiver: broadcast::Receiver<Arc<EventRow>>,
    _place: Place,
}

/// Why nobody can watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotWatched {
    #[error("{MAX_WATCHERS} watch already")]
    Full,
    #[error("this token has {MAX_OF_CALLER} watchers already, which is its share")]
    OfCaller,
    #[error("the durable store does not tell where history ends")]
    Away,
}

/// What a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Event(Arc<EventRow>),
    /// So many are lost for this watcher.
    Missed(u64),
}

impl Events {
    pub(crate) fn new(durable: Arc<dyn DurableStore>, metrics: Arc<Metrics>) -> Self {
        Self {
            durable,
            metrics,
            sender: broadcast::Sender::new(BEHIND),
            following: watch::Sender::new(false),
            watched: watch::Sender::new(0),
            places: Arc::default(),
        }
    }

    /// Watches for a caller. Everything is told that is appended after this returned.
    pub(crate) async fn watch(self: &Arc<Self>, caller: &str) -> Result<Watcher, NotWatched> {
        let place = self.places.take(caller).map_err(|none| {
            self.metrics.admin.refused_watchers.inc();
            match none {
                NoPlace::Full => NotWatched::Full,
                NoPlace::OfCaller => NotWatched::OfCaller,
            }
        })?;
        let watcher = Watcher {
            events: Arc::clone(self),
            receiver: self.sender.subscribe(),
            _place: place,
        };
        self.watched
            .send_modify(|count| *count = count.saturating_add(1));
        self.metrics.admin.event_watchers.inc();
        let mut following = self.following.subscribe();
        let begins = following.wait_for(|is_following| *is_following);
        match tokio::time::timeout(BEGIN_LIMIT, begins).await {
            Ok(Ok(_)) => Ok(watcher),
            Ok(Err(_)) | Err(_) => Err(NotWatched::Away),
        }
    }

    /// Follows history for ever, as long as anybody watches.
    pub(crate) async fn run(&self) {
        let mut watched = self.watched.subscribe();
        // The sender lives as long as this does.
        while watched.wait_for(|count| *count > 0).await.is_ok() {
            self.follow().await;
        }
    }

    /// Until nobody watches any more.
    async fn follow(&self) {
        let mut seen: Option<Seen> = None;
        let mut failures: u32 = 0;
        loop {
            while *self.watched.borrow() > 0 {
                self.look_and_wait(&mut seen, &mut failures).await;
            }
            self.following.send_replace(false);
            // Who came at the last moment may have been told that everything is told from then on; so it must be.
            if *self.watched.borrow() == 0 {
                return;
            }
        }
    }

    async fn look_and_wait(&self, seen: &mut Option<Seen>, failures: &mut u32) {
        match self.look(seen).await {
            Ok(more) => {
                *failures = 0;
                self.following
                    .send_if_modified(|following| !std::mem::replace(following, true));
                if more {
                    return;
                }
            }
            Err(error) => {
                if failures.is_multiple_of(LOG_EACH_FAILURES) {
                    tracing::warn!(%error, "history cannot be followed for watchers");
                }
                *failures = failures.wrapping_add(1);
            }
        }
        tokio::time::sleep(EVERY).await;
    }

    /// Tells what is new. Returns whether there may be more at once.
    async fn look(&self, seen: &mut Option<Seen>) -> Result<bool, LookError> {
        let Some(seen) = seen else {
            let marks = limited(self.durable.event_marks()).await?;
            let mut first = Seen::looking_back_from(marks);
            // What is stored by now is not told; a lower number that is stored only later is.
            for row in limited(self.durable.events_after(first.begin_look(), ROWS)).await? {
                first.is_new(&row.position);
            }
            *seen = Some(first);
            return Ok(false);
        };
        let rows = limited(self.durable.events_after(seen.begin_look(), ROWS)).await?;
        let mut told = false;
        for row in rows {
            if seen.is_new(&row.position) {
                told = true;
                note_unreadable(&row, &self.metrics.admin);
                // Nobody watches any more: then nobody need be told.
                _ = self.sender.send(Arc::new(row));
            }
        }
        Ok(told && seen.is_crowded())
    }
}

impl Watcher {
    /// What comes next.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        match self.receiver.recv().await {
            Ok(row) => Some(Told::Event(row)),
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                self.events.metrics.admin.missed_events.inc_by(missed);
                Some(Told::Missed(missed))
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.events
            .watched
            .send_modify(|count| *count = count.saturating_sub(1));
        self.events.metrics.admin.event_watchers.dec();
    }
}

/// Which rows were seen: all up to `base`, and these.
#[derive(Debug, Default)]
struct SeenRows {
    /// What is not above was seen, or is too old to be waited for.
    base: u64,
    above: BTreeSet<u64>,
}

impl SeenRows {
    fn up_to(mark: u64) -> Self {
        Self {
            base: mark,
            above: BTreeSet::new(),
        }
    }

    /// Notes a row. Returns whether it was not seen before.
    fn is_new(&mut self, seq: u64) -> bool {
        if seq <= self.base || !self.above.insert(seq) {
            return false;
        }
        let newest = self.above.last().copied().unwrap_or(seq);
        let base = newest.saturating_sub(LOOK_BACK);
        if base > self.base {
            self.base = base;
            self.above = self.above.split_off(&base.saturating_add(1));
        }
        true
    }
}

#[derive(Debug, Default)]
struct Seen {
    transitions: SeenRows,
    audit: SeenRows,
    /// New rows of this look.
    news: u32,
}

impl Seen {
    fn looking_back_from(marks: EventMarks) -> Self {
        Self {
            transitions: SeenRows::up_to(marks.transitions.saturating_sub(LOOK_BACK)),
            audit: SeenRows::up_to(marks.audit.saturating_sub(LOOK_BACK)),
            news: 0,
        }
    }

    /// From where the next look reads.
    fn begin_look(&mut self) -> EventMarks {
        self.news = 0;
        EventMarks {
            transitions: self.transitions.base,
            audit: self.audit.base,
        }
    }

    fn is_new(&mut self, position: &EventPosition) -> bool {
        let rows = match position.source {
            EventSource::Transitions => &mut self.transitions,
            EventSource::Audit => &mut self.audit,
        };
        let is_new = rows.is_new(position.seq);
        self.news = self.news.saturating_add(u32::from(is_new));
        is_new
    }

    /// So much was new that there may be more.
    fn is_crowded(&self) -> bool {
        u64::from(self.news).saturating_add(LOOK_BACK) >= u64::from(ROWS)
    }
}

/// Says and counts that a row cannot be read, if it is so.
pub(crate) fn note_unreadable(row: &EventRow, metrics: &AdminMetrics) {
    if let StoredEvent::Unreadable { reason } = &row.event {
        metrics.unreadable_events.inc();
        tracing::warn!(position = ?row.position, reason, "an event cannot be read, and is passed over");
    }
}

/// Why a look was in vain.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Store(#[from] DurableStoreError),
    #[error("the durable store did not answer in time")]
    Late,
}

async fn limited<T>(
    call: impl Future<Output = Result<T, DurableStoreError>>,
) -> Result<T, LookError> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(LookError::Late),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_new_once_though_a_later_number_came_first() {
        let mut rows = SeenRows::up_to(10);
        assert!(!rows.is_new(10));
        assert!(rows.is_new(12));
        assert!(rows.is_new(11));
        assert!(!rows.is_new(11));
        assert!(!rows.is_new(12));
        assert_eq!(rows.base, 10);
    }

    #[test]
    fn rows_that_come_very_late_are_given_up() {
        let mut rows = SeenRows::up_to(0);
        for seq in 2..=LOOK_BACK + 2 {
            assert!(rows.is_new(seq));
        }
        assert_eq!((rows.base, rows.above.len()), (2, 256));
        assert!(!rows.is_new(1));
    }
}
