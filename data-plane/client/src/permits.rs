//! The permits that this data plane holds: kept alive, given back, and given out here while nobody else can
//! (decisions 44, 62). With them it keeps alive the probes of attempts without a verdict.
//!
//! Every attempt is known here from when it gets its number until it is answered, and longer if it holds a permit. Every
//! 10 s (`permits.heartbeatMs`) the control plane is told all of them, so that what is not in that message can be freed: a permit that was lost
//! on its way, or whose return was. Permits of ended attempts are given back at once and together, again and again until
//! it was heard, and until then every question names them. Nothing waits for either message.
//!
//! Requests that were admitted to connections with a limited pace are kept in the same way, with numbers of their own
//! ([`Kind::Admissions`]).

mod telling;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tidegate_core::ids::{ConnectionId, PlaneIncarnation, ProviderId};
use tidegate_proto::routing::v1::{
    HeldPermits, HeldProbe, KeepPermitsRequest, ReleasePermitsRequest,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::metrics::ClientMetrics;
use crate::replicas::Replicas;
use telling::{Message, tell};

/// Most attempts that are told in one message; the oldest of more are left out.
const MAX_NUMBERS: usize = 65_536;
/// Most probes that are kept in mind, and told in one message.
const MAX_PROBES: usize = 1_024;
/// Most permits that are given back in one message.
const MAX_RELEASED: usize = 1_024;
/// Most of those that are named in a question.
const MAX_NAMED: usize = 256;
/// How soon a changed interval is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon what could not be renewed, or given back, is tried again; where renewals are closer together, as soon as they.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Whose permit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolName {
    pub(crate) provider: ProviderId,
    pub(crate) connection: ConnectionId,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Permits of connections; the numbers are those of attempts.
    Permits,
    /// Places among the requests that may be under way at once; the numbers are their own.
    Admissions,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Permits {
    kind: Kind,
    plane: PlaneIncarnation,
    newest: AtomicU64,
    state: Mutex<State>,
    wake: Notify,
    metrics: ClientMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// Attempts without an answer.
    asked: BTreeSet<u64>,
    /// Attempts that are being decided on, with what came by answers nobody waited for any more.
    deciding: BTreeMap<u64, Late>,
    /// Attempts that were sent as probes, without a verdict yet, with their providers.
    probing: BTreeMap<u64, ProviderId>,
    held: BTreeMap<u64, PoolName>,
    /// To be given back.
    released: BTreeSet<(PoolName, u64)>,
    /// Being given back: nobody said yet that it was heard.
    releasing: BTreeSet<(PoolName, u64)>,
    /// The control plane may know of permits that are not here.
    tell: bool,
}

/// What an attempt was granted by answers that came too late.
#[derive(Debug, Default)]
struct Late {
    permits: BTreeSet<PoolName>,
    probes: BTreeSet<ProviderId>,
}

impl Permits {
    pub(crate) fn new(kind: Kind, plane: PlaneIncarnation, metrics: ClientMetrics) -> Self {
        Self {
            kind,
            plane,
            newest: AtomicU64::new(0),
            state: Mutex::default(),
            wake: Notify::new(),
            metrics,
        }
    }

    /// The number of the next attempt. From now on it is among those that asked.
    pub(crate) fn next_number(&self) -> u64 {
        let mut state = self.state.lock();
        // Under the lock, so that no message says a number is the newest whose attempt it does not know.
        let before = self.newest.fetch_add(1, Ordering::Relaxed);
        let number = before.saturating_add(1);
        state.asked.insert(number);
        if state.asked.len() > MAX_NUMBERS {
            state.asked.pop_first();
        }
        number
    }

    /// The number of an attempt that is sent without a question: nothing is granted to it.
    pub(crate) fn next_unasked_number(&self) -> u64 {
        let _in_order = self.state.lock();
        let before = self.newest.fetch_add(1, Ordering::Relaxed);
        before.saturating_add(1)
    }

    /// The newest number given out.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Relaxed)
    }

    /// An attempt has its answer, or wants none any more.
    pub(crate) fn answered(&self, number: u64) {
        self.state.lock().asked.remove(&number);
    }

    /// An attempt holds a permit of this pool, and none of another.
    pub(crate) fn hold(&self, number: u64, pool: PoolName) {
        self.hold_in(&mut self.state.lock(), number, pool);
    }

    /// Takes a permit for an attempt unless `share` of this pool are held here already.
    pub(crate) fn take_share(&self, number: u64, pool: &PoolName, share: u32) -> bool {
        let mut state = self.state.lock();
        if state.held.get(&number) == Some(pool) {
            return true;
        }
        let held = state.held.values().filter(|held| *held == pool).count();
        let free = u32::try_from(held).is_ok_and(|held| held < share);
        if free {
            self.hold_in(&mut state, number, pool.clone());
        }
        free
    }

    /// Whether fewer than `share` of this pool are held here.
    pub(crate) fn has_room(&self, pool: &PoolName, share: u32) -> bool {
        let state = self.state.lock();
        let held = state.held.values().filter(|held| *held == pool).count();
        u32::try_from(held).is_ok_and(|held| held < share)
    }

    /// Who holds permits of a provider's connections.
    pub(crate) fn held_of(&self, provider: &ProviderId) -> BTreeMap<ConnectionId, Vec<u64>> {
        let mut of: BTreeMap<ConnectionId, Vec<u64>> = BTreeMap::new();
        for (number, pool) in &self.state.lock().held {
            if pool.provider == *provider {
                of.entry(pool.connection.clone()).or_default().push(*number);
            }
        }
        of
    }

    fn held_gauge(&self) -> &Gauge {
        match self.kind {
            Kind::Permits => &self.metrics.permits_held,
            Kind::Admissions => &self.metrics.admissions_held,
        }
    }

    fn hold_in(&self, state: &mut State, number: u64, pool: PoolName) {
        state.tell = true;
        let again = (pool.clone(), number);
        state.released.remove(&again);
        state.releasing.remove(&again);
        match state.held.insert(number, pool.clone()) {
            Some(other) if other != pool => self.give_back(state, other, number),
            Some(_) => {}
            None => _ = self.held_gauge().inc(),
        }
    }

    /// An attempt holds no permit any more; it is given back.
    pub(crate) fn release(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(pool) = state.held.remove(&number) {
            self.held_gauge().dec();
            self.give_back(&mut state, pool, number);
        }
    }

    /// An attempt may have been granted a permit that it does not use.
    pub(crate) fn release_unused(&self, number: u64, pool: PoolName) {
        let mut state = self.state.lock();
        if state.held.get(&number) != Some(&pool) {
            self.give_back(&mut state, pool, number);
        }
    }

    /// An attempt is being decided on, until [`Permits::decided`].
    pub(crate) fn deciding(&self, number: u64) {
        self.state.lock().deciding.insert(number, Late::default());
    }

    /// An attempt is not decided on any more. What it was granted too late and does not use is given back; the providers
    /// are those whose probe it may hold so.
    pub(crate) fn decided(&self, number: u64) -> Vec<ProviderId> {
        let mut state = self.state.lock();
        let Late { permits, probes } = state.deciding.remove(&number).unwrap_or_default();
        for pool in permits {
            if state.held.get(&number) != Some(&pool) {
                self.give_back(&mut state, pool, number);
            }
        }
        let probed = state.probing.get(&number);
        let unused = probes.into_iter().filter(|it| probed != Some(it));
        unused.collect()
    }

    /// An attempt was granted a permit by an answer that came too late. While it is still being decided on, the next
    /// answer may rest on the same permit, so it is given back only afterwards.
    pub(crate) fn release_late(&self, number: u64, pool: PoolName) {
        let mut state = self.state.lock();
        if let Some(late) = state.deciding.get_mut(&number) {
            late.permits.insert(pool);
        } else if state.held.get(&number) != Some(&pool) {
            self.give_back(&mut state, pool, number);
        }
    }

    /// The same with a probe; `true` when it is to be given back now.
    pub(crate) fn gives_back_late_probe(&self, number: u64, provider: &ProviderId) -> bool {
        let mut state = self.state.lock();
        if let Some(late) = state.deciding.get_mut(&number) {
            late.probes.insert(provider.clone());
            return false;
        }
        state.probing.get(&number) != Some(provider)
    }

    /// An attempt is sent as the probe of this provider. Of more than are remembered, a late answer gives the probe back.
    pub(crate) fn probes(&self, number: u64, provider: &ProviderId) {
        let probing = &mut self.state.lock().probing;
        if probing.len() < MAX_PROBES {
            probing.insert(number, provider.clone());
        }
    }

    /// There is a verdict about an attempt, or it was given up.
    pub(crate) fn probe_is_over(&self, number: u64) {
        self.state.lock().probing.remove(&number);
    }

    fn give_back(&self, state: &mut State, pool: PoolName, number: u64) {
        self.keep_released(state, (pool, number));
        self.wake.notify_one();
    }

    /// Of more than are kept in mind, the next renewal frees the permit.
    fn keep_released(&self, state: &mut State, permit: (PoolName, u64)) {
        if state.released.len() < MAX_NUMBERS {
            state.released.insert(permit);
        } else {
            self.metrics.permit_releases_dropped.inc();
        }
    }

    /// Nobody heard what was being given back: it is to be given back still.
    fn was_unheard(&self) {
        self.metrics.permit_releases_failed.inc();
        let mut state = self.state.lock();
        for permit in std::mem::take(&mut state.releasing) {
            self.keep_released(&mut state, permit);
        }
    }

    /// What is held and asked for; `None` when there is nothing to tell.
    fn message(&self) -> Option<KeepPermitsRequest> {
        let mut state = self.state.lock();
        if !state.tell && state.probing.is_empty() {
            return None;
        }
        // One message more tells that there is nothing left.
        state.tell = !state.held.is_empty();
        let held = state
            .held
            .iter()
            .rev()
            .take(MAX_NUMBERS)
            .map(|(number, pool)| (pool.clone(), *number));
        Some(KeepPermitsRequest {
            plane: self.plane.0,
            newest: self.newest(),
            asked: state.asked.iter().copied().collect(),
            held: by_pool(held),
            probes: state.probing.iter().map(probe).collect(),
        })
    }

    /// What is to be given back next; it is being given back from now on.
    fn take_released(&self) -> Option<ReleasePermitsRequest> {
        let mut state = self.state.lock();
        let count = state.released.len().min(MAX_RELEASED);
        if count == 0 {
            return None;
        }
        state.releasing = std::iter::from_fn(|| state.released.pop_first())
            .take(count)
            .collect();
        Some(ReleasePermitsRequest {
            plane: self.plane.0,
            released: by_pool(state.releasing.iter().cloned()),
        })
    }

    /// What was given back and may not have been heard of: the request that follows needs the permit at once. The newest
    /// where there is more than may be named, of as many as are looked at: nobody waits while a backlog is sorted.
    pub(crate) fn unheard(&self) -> Vec<HeldPermits> {
        let state = self.state.lock();
        let released = state.released.iter().take(MAX_RELEASED);
        let mut unheard: Vec<&(PoolName, u64)> = released.chain(&state.releasing).collect();
        unheard.sort_unstable_by_key(|(_, number)| Reverse(*number));
        by_pool(unheard.into_iter().take(MAX_NAMED).cloned())
    }

    /// Keeps permits alive until told to stop; `every` says how often, now.
    pub(crate) async fn keep(
        &self,
        replicas: &Replicas,
        every: impl Fn() -> Duration,
        stop: &CancellationToken,
    ) {
        let mut told = Instant::now();
        let mut failed = false;
        loop {
            // What was granted under a setting that has become shorter meanwhile ends sooner, so it is looked at often.
            let pause = pause(every(), failed);
            let left = pause.saturating_sub(told.elapsed());
            if !left.is_zero() {
                let pause = sleep(left.min(LOOK_EVERY));
                if stop.run_until_cancelled(pause).await.is_none() {
                    return;
                }
                continue;
            }
            told = Instant::now();
            failed = false;
            let Some(message) = self.message() else {
                continue;
            };
            if !tell(replicas, self.kind, Message::Keep(message)).await {
                self.metrics.permit_renewals_failed.inc();
                self.state.lock().tell = true;
                failed = true;
            }
        }
    }

    /// Gives permits back until told to stop, and then those that are left.
    pub(crate) async fn give_back_forever(&self, replicas: &Replicas, stop: &CancellationToken) {
        let mut heard = true;
        loop {
            let next = async {
                if heard {
                    self.wake.notified().await;
                } else {
                    sleep(TRY_AGAIN).await;
                }
            };
            let stopped = stop.run_until_cancelled(next).await.is_none();
            heard = self.give_back_all(replicas).await;
            if stopped {
                return;
            }
        }
    }

    /// Gives back all that is to be given back; `false` when somebody did not hear of it.
    async fn give_back_all(&self, replicas: &Replicas) -> bool {
        while let Some(message) = self.take_released() {
            if !tell(replicas, self.kind, Message::Release(message)).await {
                self.was_unheard();
                return false;
            }
            self.state.lock().releasing.clear();
        }
        true
    }
}

/// Between two renewals.
fn pause(every: Duration, failed: bool) -> Duration {
    if failed { TRY_AGAIN.min(every) } else { every }
}

fn probe((number, provider): (&u64, &ProviderId)) -> HeldProbe {
    HeldProbe {
        provider: provider.to_string(),
        number: *number,
    }
}

fn by_pool(permits: impl Iterator<Item = (PoolName, u64)>) -> Vec<HeldPermits> {
    let mut pools: BTreeMap<PoolName, Vec<u64>> = BTreeMap::new();
    for (pool, number) in permits {
        pools.entry(pool).or_default().push(number);
    }
    pools
        .into_iter()
        .map(|(pool, numbers)| HeldPermits {
            provider: pool.provider.to_string(),
            connection: pool.connection.to_string(),
            numbers,
        })
        .collect()
}

#[cfg(test)]
mod tests;
