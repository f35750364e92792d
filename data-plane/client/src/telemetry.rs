//! What attempts came to, added up and on its way to the control plane (decisions 37 and 51).
//!
//! Every half second one message goes out with what was added since the last one and what is under way; at once when
//! another target serves a combo that follows the last one that served. A message that is not taken keeps its number and
//! is sent again as it is, while new things are added up behind it; so a control plane that took it and could not say so
//! adds it once. Where it gives no answer in time, another one gets the message, and both may add it: that is soft data, and
//! no more than half a second of it. Everything is bounded; what has no room is dropped and counted.
//!
//! The sum of this process's own is kept too, for decisions that are made here. It goes on whether anybody takes
//! messages or not: it is read when nobody does.

mod sender;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::config::LastServed;
use tidegate_core::ids::{ComboName, ConnectionId, PlaneIncarnation, ProviderId};
use tidegate_core::telemetry::aggregate::{
    Aggregate, BoundedSum, Bounds, End, PlaneLoad, Refused, Verdict,
};
use tidegate_core::telemetry::fleet::Fleet;
use tidegate_core::telemetry::quota::QuotaSource;
use tidegate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock::PlaneClock;
use crate::metrics::ClientMetrics;
use crate::port::Observation;
use crate::replicas::Replicas;

use sender::Sender;

/// Between two messages, and between two looks at what came in.
const EVERY: Duration = Duration::from_millis(500);

/// What is to be sent, and what is known here.
#[derive(Debug)]
pub(crate) struct TelemetryQueue {
    plane: PlaneIncarnation,
    flush: Duration,
    bounds: Bounds,
    gathered: Mutex<Gathered>,
    learned: Mutex<Learned>,
    urgent: Notify,
    view: ArcSwap<Fleet>,
    metrics: ClientMetrics,
}

/// What came in since it was looked at.
#[derive(Debug, Default)]
struct Gathered {
    added: BoundedSum,
    under_way: BTreeMap<ConnectionId, u32>,
    /// Who served a combo last.
    served: BTreeMap<ComboName, (ProviderId, ConnectionId)>,
}

/// What came in and was looked at.
#[derive(Debug, Default)]
struct Learned {
    /// All of it.
    own: BoundedSum,
    /// What is in no message yet.
    waiting: BoundedSum,
    /// When that was.
    at: Option<Instant>,
    /// Something was under way then.
    was_busy: bool,
}

impl TelemetryQueue {
    pub(crate) fn new(plane: PlaneIncarnation, flush: Duration, metrics: ClientMetrics) -> Self {
        Self {
            plane,
            flush,
            bounds: Bounds::default(),
            gathered: Mutex::default(),
            learned: Mutex::default(),
            urgent: Notify::new(),
            view: ArcSwap::default(),
            metrics,
        }
    }

    /// What this process saw by itself, as of half a second ago.
    pub(crate) fn view(&self) -> Arc<Fleet> {
        self.view.load_full()
    }

    /// Takes an observation. Never waits. `follows`: what the combo's order depends on of who served last.
    pub(crate) fn take(
        &self,
        observation: Observation,
        follows: impl Fn(&ComboName) -> Option<LastServed>,
    ) {
        let mut gathered = self.gathered.lock();
        let refused = match observation {
            Observation::Began(connection) => {
                gathered.began(connection, self.bounds.plane_connections);
                return;
            }
            Observation::Over(connection) => {
                gathered.over(&connection);
                return;
            }
            Observation::Ended(end) => {
                if gathered.serves_anew(&end, self.bounds.combos, follows) {
                    self.urgent.notify_one();
                }
                gathered.added.absorb(Aggregate::of_end(end))
            }
            Observation::Quota(connection, quota) => {
                let seen = Aggregate::of_quota(connection, QuotaSource::Headers, quota);
                gathered.added.absorb(seen)
            }
            Observation::ToolLimit(provider, limit, at) => {
                let learned = Aggregate::of_tool_limit(provider, limit, at);
                gathered.added.absorb(learned)
            }
        };
        drop(gathered);
        self.count(&refused);
    }

    fn count(&self, refused: &Refused) {
        let dropped = refused.iter().map(|(_, count)| count).sum();
        self.metrics.telemetry_dropped.inc_by(dropped);
    }

    /// Takes in what was added, and renews what is known here. What is under way was told by nobody else.
    fn learn(&self, now: Timestamp) {
        let (added, under_way) = {
            let mut gathered = self.gathered.lock();
            (gathered.added.take(), gathered.under_way.clone())
        };
        let mut learned = self.learned.lock();
        learned.at = Some(Instant::now());
        let is_busy = !under_way.is_empty();
        if added.is_empty() && !is_busy && !learned.was_busy {
            return;
        }
        learned.was_busy = is_busy;
        self.count(&learned.waiting.absorb(added.clone()));
        let load = PlaneLoad {
            number: 0,
            at: now,
            connections: under_way,
        };
        let here = Aggregate {
            planes: BTreeMap::from([(self.plane, load)]),
            ..Aggregate::default()
        };
        for part in [added, here] {
            // Nothing is lost: what has no room here is in the message all the same.
            let _refused = learned.own.absorb(part);
        }
        learned.own.prune(now);
        let own = learned.own.get().clone();
        drop(learned);
        let view = Fleet::of([own], &self.bounds, now);
        self.view.store(Arc::new(view));
    }

    /// Learns for ever, where no message did lately: none is made while one waits.
    async fn keep_learning(&self, clock: &PlaneClock) {
        loop {
            let last = self.learned.lock().at;
            let due = last.map_or_else(Instant::now, |last| last + EVERY);
            if due <= Instant::now() {
                self.learn(clock.at(Instant::now()));
            } else {
                sleep_until(due).await;
            }
        }
    }

    /// Sends until told to stop, and then what is left, within the limit. Runs once.
    pub(crate) async fn run(
        &self,
        replicas: &Replicas,
        clock: &PlaneClock,
        stop: &CancellationToken,
    ) {
        let mut sender = Sender::new(self, replicas, clock);
        let limit = async {
            stop.cancelled().await;
            sleep(self.flush).await;
        };
        tokio::select! {
            () = sender.run(stop) => {}
            () = self.keep_learning(clock) => {}
            () = limit => {}
        }
    }
}

impl Gathered {
    fn began(&mut self, connection: ConnectionId, most: usize) {
        if self.under_way.len() < most || self.under_way.contains_key(&connection) {
            let count = self.under_way.entry(connection).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn over(&mut self, connection: &ConnectionId) {
        if let Some(count) = self.under_way.get_mut(connection) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.under_way.remove(connection);
            }
        }
    }

    /// A combo that follows that is now served by another one than the last time. Where there is no room to remember
    /// it, it waits for the next message.
    fn serves_anew(
        &mut self,
        end: &End,
        most: usize,
        follows: impl Fn(&ComboName) -> Option<LastServed>,
    ) -> bool {
        let (Some((combo, _)), Verdict::Served { .. }) = (&end.target, end.verdict) else {
            return false;
        };
        let Some(follows) = follows(combo) else {
            return false;
        };
        let now = (end.provider.clone(), end.connection.clone());
        let room = self.served.len() < most;
        match self.served.get_mut(combo) {
            Some(before) => {
                let is_same = follows.is_same((&before.0, Some(&before.1)), (&now.0, Some(&now.1)));
                *before = now;
                !is_same
            }
            None if room => {
                self.served.insert(combo.clone(), now);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
