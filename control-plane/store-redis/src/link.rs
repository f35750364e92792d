//! One connection for calls, kept alive.
//!
//! A task makes the connection, waits until it is given up, and makes the next one. The first attempt after a loss is
//! at once; further ones pause, doubling, within bounds. A call that finds no connection waits for the attempt that is
//! under way, but when that has failed it is told so at once: a store that is away must cost a decision nothing.
//!
//! The client library replaces a connection that broke, but one whose peer vanished would stay until TCP gives up,
//! after minutes. So a run of calls without any answer ends a connection too. With Sentinel each new connection asks
//! anew which server is the one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::{ScriptInvocation, Value};
use tidegate_store::hot::HotStoreError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::config::RedisLimits;
use crate::failure;
use crate::target::{Connection, Target};

/// A call that was given up sooner than this says nothing about its peer.
const SILENCE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Link {
    slot: Arc<watch::Sender<Slot>>,
    limits: RedisLimits,
    /// Calls without an answer since the last answer.
    silent: AtomicU32,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// Which connection is used, counted; a loss names the one it was seen on.
#[derive(Debug)]
struct Slot {
    generation: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// An attempt is under way, and the one before did not fail.
    Connecting,
    Up(Connection),
    /// The last attempt failed; the next one comes after a pause.
    Down(String),
}

impl Slot {
    fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }
}

impl Link {
    /// Begins to connect. Needs a tokio runtime.
    pub(crate) fn new(target: Target, limits: RedisLimits) -> Self {
        let slot = Arc::new(watch::Sender::new(Slot {
            generation: 0,
            state: State::Connecting,
        }));
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let keeper = keep(target, limits, Arc::clone(&slot));
        let stopped = stop.clone();
        tasks.spawn(async move { stopped.run_until_cancelled(keeper).await });
        tasks.close();
        Self {
            slot,
            limits,
            silent: AtomicU32::new(0),
            tasks,
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Runs a script; the answer is there within `limit` or not at all.
    pub(crate) async fn invoke(
        &self,
        limit: Duration,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<Value, HotStoreError> {
        let sent = Instant::now();
        let deadline = sent.checked_add(limit).unwrap_or(sent);
        let (generation, mut connection) = self.connection(deadline).await?;
        let mut awaited = Awaited {
            link: self,
            generation,
            sent: Instant::now(),
            answered: false,
        };
        let call = invocation.invoke_async::<Value>(&mut connection);
        match timeout_at(deadline, call).await {
            Err(_) => Err(HotStoreError::Timeout),
            Ok(Ok(answer)) => {
                awaited.answered = true;
                self.silent.store(0, Ordering::Relaxed);
                Ok(answer)
            }
            Ok(Err(error)) => {
                awaited.answered = !error.is_timeout();
                if failure::ends_connection(&error) {
                    self.give_up(generation);
                }
                Err(failure::told(&error))
            }
        }
    }

    /// Ends the task that keeps the connection, and waits for it.
    pub(crate) async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
        self.slot
            .send_modify(|slot| slot.state = State::Down("closed".to_owned()));
    }

    async fn connection(&self, deadline: Instant) -> Result<(u64, Connection), HotStoreError> {
        let mut slots = self.slot.subscribe();
        let settled = slots.wait_for(|slot| !matches!(slot.state, State::Connecting));
        let slot = timeout_at(deadline, settled)
            .await
            .map_err(|_| HotStoreError::Unreachable("still connecting".to_owned()))?
            .map_err(|_| HotStoreError::Unreachable("closed".to_owned()))?;
        match &slot.state {
            State::Up(connection) => Ok((slot.generation, connection.clone())),
            State::Down(reason) => Err(HotStoreError::Unreachable(reason.clone())),
            State::Connecting => Err(HotStoreError::Unreachable("still connecting".to_owned())),
        }
    }

    /// This connection is not used any more.
    fn give_up(&self, generation: u64) {
        self.slot.send_if_modified(|slot| {
            let is_it = slot.generation == generation && slot.is_up();
            if is_it {
                slot.state = State::Connecting;
            }
            is_it
        });
    }

    fn no_answer(&self, generation: u64) {
        let silent = self
            .silent
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        if silent >= self.limits.silent_calls {
            self.silent.store(0, Ordering::Relaxed);
            tracing::debug!(silent, "redis connection answers nothing and is replaced");
            self.give_up(generation);
        }
    }
}

/// A call whose answer is not there yet. Callers may give up at any moment, so the end of the wait is seen here.
struct Awaited<'a> {
    link: &'a Link,
    generation: u64,
    sent: Instant,
    answered: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.answered && self.sent.elapsed() >= SILENCE {
            self.link.no_answer(self.generation);
        }
    }
}

/// Keeps the slot filled, for ever.
async fn keep(target: Target, limits: RedisLimits, slot: Arc<watch::Sender<Slot>>) {
    let mut slots = slot.subscribe();
    let mut pause = limits.pause_min;
    loop {
        let attempt = timeout(limits.connect, target.connect(&limits)).await;
        let failed = match attempt {
            Ok(Ok(connection)) => {
                let up = Instant::now();
                slot.send_modify(|slot| {
                    slot.generation = slot.generation.wrapping_add(1);
                    slot.state = State::Up(connection);
                });
                // The sender is in this task, so this ends only when the connection is given up.
                if slots.wait_for(|slot| !slot.is_up()).await.is_err() {
                    return;
                }
                if up.elapsed() >= limits.pause_max {
                    pause = limits.pause_min;
                    continue;
                }
                "the connection ended soon".to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no connection in time".to_owned(),
        };
        tracing::debug!(error = %failed, ?target, "redis cannot be reached");
        slot.send_modify(|slot| slot.state = State::Down(failed));
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(limits.pause_max);
    }
}
