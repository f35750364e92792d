//! Notices for the control plane of which each is good for itself: taken without waiting, told in the order in which they
//! came by a task of their own, and dropped when too many wait. What is lost ends by expiry.

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

/// Most notices of a kind that wait.
const CAPACITY: usize = 1_024;

/// Notices of one kind.
#[derive(Debug)]
pub(crate) struct Notices<T> {
    sender: mpsc::Sender<T>,
    receiver: Mutex<Option<mpsc::Receiver<T>>>,
    dropped: Counter,
}

impl<T> Notices<T> {
    /// None waits. `dropped` counts those that are not told.
    pub(crate) fn new(dropped: Counter) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            dropped,
        }
    }

    /// Takes a notice. Never waits; without room it is dropped.
    pub(crate) fn push(&self, notice: T) {
        if self.sender.try_send(notice).is_err() {
            self.lost();
        }
    }

    /// A notice was told to nobody.
    pub(crate) fn lost(&self) {
        self.dropped.inc();
    }

    /// What waits and what comes, for the one who tells it; `None` for all others.
    pub(crate) fn take(&self) -> Option<mpsc::Receiver<T>> {
        self.receiver.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_wait_and_one_tells_them() {
        let notices = Notices::new(Counter::default());
        for number in 0..CAPACITY {
            notices.push(number);
        }
        assert_eq!(notices.dropped.get(), 0);
        notices.push(CAPACITY);
        assert_eq!(notices.dropped.get(), 1);
        let mut waiting = notices.take().unwrap();
        assert!(notices.take().is_none());
        let told: Vec<usize> = std::iter::from_fn(|| waiting.try_recv().ok()).collect();
        assert_eq!(told, (0..CAPACITY).collect::<Vec<_>>());
        // There is room again.
        notices.push(7);
        assert_eq!((waiting.try_recv(), notices.dropped.get()), (Ok(7), 1));
    }
}
