//! What is told again for a while.
//!
//! It is at most [`MAX_AGE`] old. From [`FRESH`] on it is made anew behind the answer, so that who polls never waits. Older than
//! [`MAX_AGE`] it is waited for, by all who ask together: it is made once for all of them, however long that takes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// What is older is made anew.
const FRESH: Duration = Duration::from_millis(500);
/// What is older is not told.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What was told last.
#[derive(Debug)]
pub(super) struct Told<T> {
    known: Mutex<Known<T>>,
    /// Held by who makes it.
    making: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Known<T> {
    /// With the moment before it was made, so that it is never older than it seems.
    last: Option<(Instant, Arc<T>)>,
    /// Grows when everything is forgotten.
    generation: u64,
}

impl<T> Default for Told<T> {
    fn default() -> Self {
        let known = Known {
            last: None,
            generation: 0,
        };
        Self {
            known: Mutex::new(known),
            making: Arc::default(),
        }
    }
}

impl<T: Send + Sync + 'static> Told<T> {
    /// What is known, however it was before; also what is being made.
    pub(super) fn forget(&self) {
        let mut known = self.known.lock();
        known.generation = known.generation.wrapping_add(1);
        known.last = None;
    }

    /// What is known, or what `making` comes to, which is begun only if it is needed.
    pub(super) async fn get(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        making: impl Future<Output = T> + Send + 'static,
    ) -> Arc<T> {
        let asked = Instant::now();
        if let Some((begun, told)) = self.last()
            && begun.elapsed() < MAX_AGE
        {
            if begun.elapsed() >= FRESH
                && let Ok(turn) = Arc::clone(&self.making).try_lock_owned()
            {
                let all = Arc::clone(self);
                tasks.spawn(async move {
                    all.make(making).await;
                    drop(turn);
                });
            }
            return told;
        }
        let _turn = self.making.lock().await;
        // Another one may have made it while this one waited. If it was begun after the question it answers that, however
        // long it took.
        match self.last() {
            Some((begun, told)) if begun >= asked || begun.elapsed() < MAX_AGE => told,
            _ => self.make(making).await,
        }
    }

    fn last(&self) -> Option<(Instant, Arc<T>)> {
        let known = self.known.lock();
        let (begun, told) = known.last.as_ref()?;
        Some((*begun, Arc::clone(told)))
    }

    async fn make(&self, making: impl Future<Output = T>) -> Arc<T> {
        let generation = self.known.lock().generation;
        let begun = Instant::now();
        let made = Arc::new(making.await);
        let mut known = self.known.lock();
        if known.generation == generation {
            known.last = Some((begun, Arc::clone(&made)));
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;
    use tokio::time::{advance, sleep};

    use super::*;

    /// Tells how often it was told anew.
    #[derive(Default)]
    struct Counted {
        told: Arc<Told<u32>>,
        tasks: TaskTracker,
        made: Arc<AtomicU32>,
    }

    impl Counted {
        async fn ask(&self, takes: Duration) -> u32 {
            let made = Arc::clone(&self.made);
            let making = async move {
                sleep(takes).await;
                made.fetch_add(1, Ordering::Relaxed) + 1
            };
            *self.told.get(&self.tasks, making).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_made_once_for_all_who_wait_however_long_that_takes() {
        let counted = Counted::default();
        for (number, takes) in [Duration::ZERO, FRESH, MAX_AGE, 3 * MAX_AGE]
            .into_iter()
            .enumerate()
        {
            let told = join_all((0..8).map(|_| counted.ask(takes))).await;
            let once = u32::try_from(number + 1).unwrap();
            assert_eq!(told, [once; 8], "{takes:?}");
            counted.told.forget();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_polls_does_not_wait_and_gets_nothing_old() {
        let counted = Counted::default();
        assert_eq!(counted.ask(FRESH).await, 1);
        // It is made anew behind this answer, and for this one alone.
        for _ in 0..3 {
            assert_eq!(counted.ask(Duration::ZERO).await, 1);
        }
        counted.tasks.close();
        counted.tasks.wait().await;
        assert_eq!(counted.ask(Duration::ZERO).await, 2);
        advance(MAX_AGE).await;
        assert_eq!(counted.ask(Duration::ZERO).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_made_while_all_is_forgotten_is_told_to_nobody_who_asks_later() {
        let counted = Counted::default();
        let mut early = Box::pin(counted.ask(FRESH));
        assert!(futures::poll!(early.as_mut()).is_pending());
        counted.told.forget();
        let late = counted.ask(FRESH);
        assert_eq!(tokio::join!(early, late), (1, 2));
    }
}
