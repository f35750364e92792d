//! The queues between decision and dispatch (`sessions-and-streams.md` §3.2, decision 45): one per connection, first in,
//! first out, in this data plane alone.
//!
//! Only requests that must wait stand in a queue; where no pace is limited nobody does. The first one asks whether it may
//! go, the others wait for it to be gone. A [`Place`] that is dropped (its request went, went elsewhere, or its client
//! left) is free, and the next one moves up. How many may wait in one queue the settings say; how many in all is
//! [`MAX_QUEUED`].

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_core::admission::{AdmissionError, QueueName, check_depth};
use tidegate_core::ids::{ConnectionId, ModelId};
use tokio::sync::futures::Notified;
use tokio::sync::{MutexGuard, Notify, OwnedSemaphorePermit, Semaphore};

use crate::metrics::Counted;

/// Most requests that wait in all queues of a data plane together: as many as `maxQueueDepth` allows in one.
const MAX_QUEUED: usize = 100_000;
/// Queues above which those that nobody uses are forgotten.
const MANY_QUEUES: usize = 4_096;

/// A connection, and a model on it with a queue of its own.
type Key = (ConnectionId, Option<ModelId>);

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Mutex<BTreeMap<Key, Arc<Queue>>>,
    room: Arc<Semaphore>,
    queued: Gauge,
}

/// The queue of one connection, or of one model on it.
#[derive(Debug)]
pub(crate) struct Queue {
    name: QueueName,
    room: Arc<Semaphore>,
    queued: Gauge,
    /// Whoever asks without having waited does so alone.
    turn: tokio::sync::Mutex<()>,
    line: Mutex<Line>,
    /// A request that was under way ended here.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// Those that wait, by the order in which they came, each with what tells it that it is the first one: of a long line
    /// one is woken at a time.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    number: u64,
    is_first: Arc<Notify>,
    _room: OwnedSemaphorePermit,
    _queued: Counted,
}

impl Queues {
    /// Nobody waits. `queued` shows how many do.
    pub(crate) fn new(queued: Gauge) -> Self {
        Self {
            queues: Mutex::default(),
            room: Arc::new(Semaphore::new(MAX_QUEUED)),
            queued,
        }
    }

    /// The queue of a connection; of one model on it, where only what its upstream told of that model is waited for.
    pub(crate) fn of(&self, name: &QueueName, model: Option<&ModelId>) -> Arc<Queue> {
        let mut queues = self.queues.lock();
        let key = (name.connection.clone(), model.cloned());
        if let Some(queue) = queues.get(&key)
            && queue.name == *name
        {
            return Arc::clone(queue);
        }
        if queues.len() >= MANY_QUEUES {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        let queue = Arc::new(Queue {
            name: name.clone(),
            room: Arc::clone(&self.room),
            queued: self.queued.clone(),
            turn: tokio::sync::Mutex::default(),
            line: Mutex::default(),
            freed: Notify::new(),
        });
        queues.insert(key, Arc::clone(&queue));
        queue
    }
}

impl Queue {
    /// Somebody waits.
    pub(crate) fn is_used(&self) -> bool {
        !self.line.lock().waiting.is_empty()
    }

    /// The right to ask without having waited. Nobody waits in it longer than questions take.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Takes the last place, if fewer than `depth` wait; 0 sets no limit.
    ///
    /// # Errors
    /// [`AdmissionError::QueueFull`].
    pub(crate) fn enter(self: &Arc<Self>, depth: u64) -> Result<Place, AdmissionError> {
        let mut line = self.line.lock();
        let waiting = u64::try_from(line.waiting.len()).unwrap_or(u64::MAX);
        check_depth(waiting, depth, &self.name)?;
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_none_left| AdmissionError::QueueFull {
            queue: self.name.clone(),
            depth: u64::try_from(MAX_QUEUED).unwrap_or(u64::MAX),
        })?;
        let number = line.next;
        line.next = line.next.saturating_add(1);
        let is_first = Arc::new(Notify::new());
        line.waiting.insert(number, Arc::clone(&is_first));
        Ok(Place {
            queue: Arc::clone(self),
            number,
            is_first,
            _room: room,
            _queued: Counted::new(&self.queued),
        })
    }

    /// A request that was under way ended; the first one may ask again.
    pub(crate) fn frees(&self) {
        self.freed.notify_waiters();
    }

    /// Ends when a request ends that was under way here, from now on.
    pub(crate) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}

impl Place {
    /// The queue it is in.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Waits until it is the first one.
    pub(crate) async fn first(&self) {
        // Told before it waits for it, it is told all the same.
        while !self.stands_first() {
            self.is_first.notified().await;
        }
    }

    fn stands_first(&self) -> bool {
        let line = self.queue.line.lock();
        let first = line.waiting.first_key_value();
        first.is_some_and(|(number, _)| *number == self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        line.waiting.remove(&self.number);
        if let Some((number, first)) = line.waiting.first_key_value()
            && *number > self.number
        {
            first.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use tidegate_core::ids::ProviderId;
    use tokio::time::timeout;

    use super::*;

    fn queue() -> Arc<Queue> {
        Queues::new(Gauge::default()).of(&name(), None)
    }

    fn name() -> QueueName {
        QueueName {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
        }
    }

    async fn is_first(place: &Place) -> bool {
        timeout(Duration::from_millis(1), place.first())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_one_that_came_goes_first_and_whoever_leaves_lets_others_up() {
        let queue = queue();
        let [one, two, three] = [(); 3].map(|()| queue.enter(0).unwrap());
        assert!(is_first(&one).await);
        assert!(!is_first(&two).await);
        drop(two);
        assert!(!is_first(&three).await);
        drop(one);
        assert!(is_first(&three).await);
        assert!(queue.is_used());
        drop(three);
        assert!(!queue.is_used());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_is_told_when_it_is_first() {
        let queue = queue();
        let one = queue.enter(0).unwrap();
        let two = queue.enter(0).unwrap();
        let waits = two.first();
        tokio::pin!(waits);
        assert!(timeout(Duration::from_secs(1), &mut waits).await.is_err());
        drop(one);
        timeout(Duration::from_secs(1), waits).await.unwrap();
    }

    /// Counts how often a task is woken.
    #[derive(Debug, Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn of_a_long_line_one_is_woken_at_a_time() {
        let queue = queue();
        let mut places: VecDeque<Place> = (0..100).map(|_| queue.enter(0).unwrap()).collect();
        let gone = places.pop_front().unwrap();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut waits: Vec<_> = places.iter().map(|place| Box::pin(place.first())).collect();
        for wait in &mut waits {
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        drop(gone);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let polled = waits[0].as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_ready());
    }

    #[test]
    fn vector_sessions_34_only_those_that_wait_count() {
        let queue = queue();
        let places: Vec<Place> = (0..3).map(|_| queue.enter(3).unwrap()).collect();
        let full = queue.enter(3).unwrap_err();
        assert_eq!((full.status(), full.code()), (429, "RATE_LIMIT_QUEUE_FULL"));
        assert!(queue.enter(0).is_ok());
        drop(places);
        assert!(queue.enter(3).is_ok());
    }

    #[test]
    fn there_is_a_limit_over_all_queues() {
        let gauge = Gauge::default();
        let queues = Queues::new(gauge.clone());
        let queue = queues.of(&name(), None);
        let mut places: Vec<Place> = (0..MAX_QUEUED).map(|_| queue.enter(0).unwrap()).collect();
        let other = QueueName {
            connection: ConnectionId::new("d").unwrap(),
            ..name()
        };
        assert!(queues.of(&other, None).enter(0).is_err());
        places.pop();
        let place = queues.of(&other, None).enter(0).unwrap();
        assert_eq!(gauge.get(), 100_000);
        drop((place, places));
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn a_model_with_a_queue_of_its_own_does_not_hold_up_another() {
        let queues = Queues::new(Gauge::default());
        let [one, other] = ["a", "b"].map(|model| ModelId::new(model).unwrap());
        let _waits = queues.of(&name(), Some(&one)).enter(0).unwrap();
        assert!(queues.of(&name(), Some(&one)).is_used());
        assert!(!queues.of(&name(), Some(&other)).is_used());
        assert!(!queues.of(&name(), None).is_used());
    }

    #[test]
    fn queues_that_nobody_uses_are_forgotten() {
        let queues = Queues::new(Gauge::default());
        let of = |number: usize| {
            let name = QueueName {
                connection: ConnectionId::new(format!("c{number}")).unwrap(),
                ..name()
            };
            queues.of(&name, None)
        };
        let used = of(0);
        for number in 1..=MANY_QUEUES {
            drop(of(number));
        }
        assert!(queues.queues.lock().len() <= 2);
        assert!(Arc::ptr_eq(&used, &of(0)));
    }
}
