//! When this process, and with it the upstream, did not get to run.
//!
//! What the upstream tells of an arrival or an end happened before it was noticed: on a machine that does something else
//! for a second, a second before. Nobody else can know of that time, so it is taken note of here.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::clients::Record;
use super::history::Span;

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(20);
/// From how late a look on the time before it counts: what is shorter the rules allow anyway.
const LATE: Duration = Duration::from_millis(100);
/// How long after such a time what has piled up is worked off.
const CATCHES_UP: Duration = Duration::from_millis(100);

/// Takes note until it is dropped.
pub(crate) struct Ticker {
    asleep: Arc<Mutex<Vec<Span>>>,
    _ticks: AbortOnDropHandle<()>,
}

impl Ticker {
    pub(crate) fn start(record: Arc<Record>) -> Self {
        let asleep: Arc<Mutex<Vec<Span>>> = Arc::default();
        let noted = Arc::clone(&asleep);
        let ticks = async move {
            let mut last = record.now();
            loop {
                tokio::time::sleep(EVERY).await;
                let now = record.now();
                if now.saturating_sub(last) > EVERY + LATE {
                    noted.lock().push(Span::new(last, now + CATCHES_UP));
                }
                last = now;
            }
        };
        let ticks = TaskTracker::new().spawn(ticks);
        Self {
            asleep,
            _ticks: AbortOnDropHandle::new(ticks),
        }
    }

    /// In their order. Each but the last ends before the next one begins, or a little later.
    pub(crate) fn asleep(&self) -> Vec<Span> {
        self.asleep.lock().clone()
    }
}
