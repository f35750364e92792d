//! The queues between decision and dispatch (`sessions-and-streams.md` §3.2, decision 45): one per connection, first in,
//! first out, in this data plane alone.
//!
//! Only requests that must wait stand in a queue; where no pace is limited nobody does. The first one asks whether it may
//! go, the others wait for it to be gone. A [`Place`] that is dropped (its request went, went elsewhere, or its client
//! left) is free, and the next one moves up. How many may wait in one queue the settings say; how many in all is
//! [`MAX_QUEUED`].
//!
//! A first one whose upstream has nothing left for its model steps aside with all requests to that model
//! ([`Place::steps_aside`]), so that it does not hold up those to others, and comes back to where it stood.

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

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Mutex<BTreeMap<ConnectionId, Arc<Queue>>>,
    room: Arc<Semaphore>,
    queued: Gauge,
}

/// The queue of one connection.
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
    /// How many wait.
    count: u64,
    models: BTreeMap<ModelId, OfModel>,
    /// The first one of each model that does not stand aside.
    heads: BTreeMap<u64, ModelId>,
}

/// Requests to one model.
#[derive(Debug, Default)]
struct OfModel {
    /// Those that wait, by the order in which they came, each with what tells it that it is the first one: of a long line
    /// one is woken at a time.
    waiting: BTreeMap<u64, Arc<Notify>>,
    is_aside: bool,
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    model: ModelId,
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

    /// The queue of a connection.
    pub(crate) fn of(&self, name: &QueueName) -> Arc<Queue> {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get(&name.connection)
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
        queues.insert(name.connection.clone(), Arc::clone(&queue));
        queue
    }
}

impl Queue {
    /// Somebody waits that goes before a request to this model.
    pub(crate) fn is_used(&self, model: &ModelId) -> bool {
        let line = self.line.lock();
        !line.heads.is_empty() || line.models.contains_key(model)
    }

    /// The right to ask without having waited. Nobody waits in it longer than questions take.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Takes the last place, if fewer than `depth` wait; 0 sets no limit.
    ///
    /// # Errors
    /// [`AdmissionError::QueueFull`].
    pub(crate) fn enter(
        self: &Arc<Self>,
        model: &ModelId,
        depth: u64,
    ) -> Result<Place, AdmissionError> {
        let mut line = self.line.lock();
        check_depth(line.count, depth, &self.name)?;
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_none_left| AdmissionError::QueueFull {
            queue: self.name.clone(),
            depth: u64::try_from(MAX_QUEUED).unwrap_or(u64::MAX),
        })?;
        let number = line.next;
        line.next = line.next.saturating_add(1);
        line.count = line.count.saturating_add(1);
        let is_first = Arc::new(Notify::new());
        line.change(model, |of_model| {
            of_model.waiting.insert(number, Arc::clone(&is_first));
        });
        Ok(Place {
            queue: Arc::clone(self),
            model: model.clone(),
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

impl Line {
    /// Changes what waits for a model, and tells whoever becomes the first one by it.
    fn change(&mut self, model: &ModelId, step: impl FnOnce(&mut OfModel)) {
        let first = self.first();
        let of_model = self.models.entry(model.clone()).or_default();
        let head = of_model.head();
        step(of_model);
        let new_head = of_model.head();
        if of_model.waiting.is_empty() {
            self.models.remove(model);
        }
        if head != new_head {
            if let Some(head) = head {
                self.heads.remove(&head);
            }
            if let Some(head) = new_head {
                self.heads.insert(head, model.clone());
            }
        }
        if let Some((number, model)) = self.heads.first_key_value()
            && first != Some(*number)
            && let Some(of_model) = self.models.get(model)
            && let Some(is_first) = of_model.waiting.get(number)
        {
            is_first.notify_one();
        }
    }

    fn first(&self) -> Option<u64> {
        self.heads.first_key_value().map(|(number, _)| *number)
    }
}

impl OfModel {
    fn head(&self) -> Option<u64> {
        let (number, _) = self.waiting.first_key_value()?;
        (!self.is_aside).then_some(*number)
    }
}

/// While it lives, requests to a model hold up nobody.
#[derive(Debug)]
pub(crate) struct Aside<'a>(&'a Place);

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.0.stands_aside(false);
    }
}

impl Place {
    /// The queue it is in.
    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Whether it is one of those that wait for this model here.
    pub(crate) fn is_in(&self, queue: &Arc<Queue>, model: &ModelId) -> bool {
        Arc::ptr_eq(&self.queue, queue) && self.model == *model
    }

    /// Waits until it is the first one.
    pub(crate) async fn first(&self) {
        // Told before it waits for it, it is told all the same.
        while !self.stands_first() {
            self.is_first.notified().await;
        }
    }

    /// Lets those to other models go first, as do all others to its model, until it has come back.
    pub(crate) fn steps_aside(&self) -> Aside<'_> {
        self.stands_aside(true);
        Aside(self)
    }

    fn stands_aside(&self, is_aside: bool) {
        let mut line = self.queue.line.lock();
        line.change(&self.model, |of_model| of_model.is_aside = is_aside);
    }

    fn stands_first(&self) -> bool {
        self.queue.line.lock().first() == Some(self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = self.queue.line.lock();
        line.count = line.count.saturating_sub(1);
        line.change(&self.model, |of_model| {
            of_model.waiting.remove(&self.number);
        });
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
        Queues::new(Gauge::default()).of(&name())
    }

    fn name() -> QueueName {
        QueueName {
            provider: ProviderId::new("p").unwrap(),
            connection: ConnectionId::new("c").unwrap(),
        }
    }

    fn model(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    async fn is_first(place: &Place) -> bool {
        timeout(Duration::from_millis(1), place.first())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_one_that_came_goes_first_and_whoever_leaves_lets_others_up() {
        let queue = queue();
        let [one, two, three] = [(); 3].map(|()| queue.enter(&model("a"), 0).unwrap());
        assert!(is_first(&one).await);
        assert!(!is_first(&two).await);
        drop(two);
        assert!(!is_first(&three).await);
        drop(one);
        assert!(is_first(&three).await);
        assert!(queue.is_used(&model("a")));
        drop(three);
        assert!(!queue.is_used(&model("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_is_told_when_it_is_first() {
        let queue = queue();
        let one = queue.enter(&model("a"), 0).unwrap();
        let two = queue.enter(&model("a"), 0).unwrap();
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
        let mut places: VecDeque<Place> = (0..100)
            .map(|_| queue.enter(&model("a"), 0).unwrap())
            .collect();
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
        let places: Vec<Place> = (0..3)
            .map(|_| queue.enter(&model("a"), 3).unwrap())
            .collect();
        let full = queue.enter(&model("a"), 3).unwrap_err();
        assert_eq!((full.status(), full.code()), (429, "RATE_LIMIT_QUEUE_FULL"));
        assert!(queue.enter(&model("a"), 0).is_ok());
        drop(places);
        assert!(queue.enter(&model("a"), 3).is_ok());
    }

    #[test]
    fn there_is_a_limit_over_all_queues() {
        let gauge = Gauge::default();
        let queues = Queues::new(gauge.clone());
        let queue = queues.of(&name());
        let mut places: Vec<Place> = (0..MAX_QUEUED)
            .map(|_| queue.enter(&model("a"), 0).unwrap())
            .collect();
        let other = QueueName {
            connection: ConnectionId::new("d").unwrap(),
            ..name()
        };
        assert!(queues.of(&other).enter(&model("a"), 0).is_err());
        places.pop();
        let place = queues.of(&other).enter(&model("a"), 0).unwrap();
        assert_eq!(gauge.get(), 100_000);
        drop((place, places));
        assert_eq!(gauge.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_steps_aside_holds_up_no_other_and_comes_back_to_its_place() {
        let queue = queue();
        let [a1, b1, a2, b2] =
            ["a", "b", "a", "b"].map(|name| queue.enter(&model(name), 0).unwrap());
        assert!(is_first(&a1).await);
        let aside = a1.steps_aside();
        assert!(is_first(&b1).await && !is_first(&a2).await);
        drop(b1);
        assert!(is_first(&b2).await);
        // Whoever comes to that model stands behind them, to another behind the others.
        assert!(queue.is_used(&model("a")));
        let a3 = queue.enter(&model("a"), 0).unwrap();
        drop(b2);
        assert!(!queue.is_used(&model("b")) && queue.is_used(&model("a")));
        assert!(!is_first(&a1).await && !is_first(&a2).await && !is_first(&a3).await);
        assert!(
            queue.enter(&model("b"), 3).is_err(),
            "they wait all the same"
        );
        drop(aside);
        assert!(is_first(&a1).await);
        drop(a1);
        assert!(is_first(&a2).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_held_up_is_told_when_others_step_aside_and_when_one_leaves_there() {
        let queue = queue();
        let [a1, b1, a2] = ["a", "b", "a"].map(|name| queue.enter(&model(name), 0).unwrap());
        let aside = {
            let waits = b1.first();
            tokio::pin!(waits);
            assert!(timeout(Duration::from_secs(1), &mut waits).await.is_err());
            let aside = a1.steps_aside();
            timeout(Duration::from_secs(1), waits).await.unwrap();
            aside
        };
        drop(b1);
        let waits = a2.first();
        tokio::pin!(waits);
        assert!(timeout(Duration::from_secs(1), &mut waits).await.is_err());
        // Its client leaves.
        drop(aside);
        drop(a1);
        timeout(Duration::from_secs(1), waits).await.unwrap();
    }

    #[test]
    fn queues_that_nobody_uses_are_forgotten() {
        let queues = Queues::new(Gauge::default());
        let of = |number: usize| {
            let name = QueueName {
                connection: ConnectionId::new(format!("c{number}")).unwrap(),
                ..name()
            };
            queues.of(&name)
        };
        let used = of(0);
        for number in 1..=MANY_QUEUES {
            drop(of(number));
        }
        assert!(queues.queues.lock().len() <= 2);
        assert!(Arc::ptr_eq(&used, &of(0)));
    }
}
