//! What is in flight under leases here: one [`Presence`] for each lease and connection.
//!
//! One is kept while something asks or runs, and forgotten when nothing does. All draw the numbers of their registrations
//! from one count, so that none comes twice.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::ids::{ConnectionId, KeyId, PlaneIncarnation};
use tidegate_core::lease::{
    ActivityName, Grant, LeaseError, LeaseId, LeaseName, Presence, RegistrationNumbers,
};
use tidegate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::clock::AwakeClock;
use super::leased::Leased;
use crate::metrics::ClientMetrics;
use crate::notices::Notices;

/// Most leases on connections with something in flight here; attempts of more are refused.
const MAX_PRESENCES: usize = 16_384;

/// A lease on a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) lease: LeaseName,
    pub(super) connection: ConnectionId,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Leases {
    plane: PlaneIncarnation,
    max: usize,
    clock: AwakeClock,
    numbers: RegistrationNumbers,
    state: Mutex<State>,
    /// Something began to run, or is known longer or shorter.
    pub(super) changed: Notify,
    pub(super) ends: Notices<ActivityName>,
    metrics: ClientMetrics,
}

#[derive(Debug)]
struct State {
    slots: BTreeMap<Place, Slot>,
    /// Nobody watches over what is in flight any more.
    is_closed: bool,
}

#[derive(Debug)]
struct Slot {
    presence: Presence,
    /// The key that it was last granted to.
    key: Option<KeyId>,
    /// The authority may know of it.
    registered: bool,
    /// A renewal is under way.
    renewing: bool,
    /// What the hot state showed last of the lease on its connection.
    shown: Option<Shown>,
    /// Cancelled when what is in flight is cut.
    cut: CancellationToken,
    guard_ms: u64,
}

/// What the hot state shows of the lease on a connection, whichever owner's it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) lease: LeaseId,
    pub(super) has_ended: bool,
}

/// What is due now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// To be renewed, and the registration that it is.
    pub(super) renewals: Vec<(Place, u64)>,
    /// When to look again, if anything is in flight.
    pub(super) next: Option<Timestamp>,
}

impl Leases {
    pub(crate) fn new(plane: PlaneIncarnation, metrics: ClientMetrics) -> Self {
        Self {
            plane,
            max: MAX_PRESENCES,
            clock: AwakeClock::start(),
            numbers: RegistrationNumbers::of_new_incarnation(),
            state: Mutex::new(State {
                slots: BTreeMap::new(),
                is_closed: false,
            }),
            changed: Notify::new(),
            ends: Notices::new(metrics.lease_ends_dropped.clone()),
            metrics,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// An attempt is about to be sent; `None` when there is no room for its lease, or it is too late.
    pub(super) fn ask(self: &Arc<Self>, place: Place) -> Option<Asking> {
        let mut state = self.state.lock();
        let State { slots, is_closed } = &mut *state;
        let is_full = *is_closed || slots.len() >= self.max;
        let slot = match slots.entry(place.clone()) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.metrics.lease_presences_refused.inc();
                return None;
            }
            Entry::Vacant(vacant) => {
                self.metrics.lease_presences.inc();
                vacant.insert(Slot {
                    presence: Presence::new(&self.numbers),
                    key: None,
                    registered: false,
                    renewing: false,
                    shown: None,
                    cut: CancellationToken::new(),
                    guard_ms: 0,
                })
            }
        };
        let number = slot.presence.ask();
        Some(Asking {
            leases: Arc::clone(self),
            place,
            number,
            is_over: false,
        })
    }

    pub(super) fn registration(&self, place: &Place, number: u64) -> ActivityName {
        ActivityName {
            connection: place.connection.clone(),
            lease: place.lease,
            plane: self.plane,
            number,
        }
    }

    /// Takes in what is shown of the leases on connections. Where that has changed, or is an end, the authority is asked
    /// at once about what is in flight, so that a release, a move or a new configuration is heard of without waiting for
    /// the next renewal.
    pub(super) fn hear(&self, shown: impl Fn(&ConnectionId) -> Option<Shown>) {
        let now = self.now();
        for (place, slot) in &mut self.state.lock().slots {
            let Some(shown) = shown(&place.connection) else {
                continue;
            };
            let before = slot.shown.replace(shown);
            let is_news = match before {
                Some(before) => before != shown,
                None => shown.has_ended,
            };
            if is_news {
                slot.presence.ask_soon(now);
            }
        }
    }

    /// Cuts what has come to its horizon, and says what is to be renewed. What it names is under way from then on.
    pub(super) fn due(&self) -> Due {
        let now = self.now();
        let mut due = Due::default();
        for (place, slot) in &mut self.state.lock().slots {
            if let Some(cut_at) = slot.presence.cut_at()
                && !slot.cut.is_cancelled()
            {
                if cut_at <= now {
                    slot.cut.cancel();
                    self.metrics.lease_cuts.inc();
                    // Until then nobody else was given the connection.
                    if cut_at.plus_ms(slot.guard_ms) < now {
                        self.metrics.lease_late_cuts.inc();
                        tracing::warn!(
                            connection = %place.connection,
                            late_ms = now.ms_since(cut_at),
                            "what was in flight under a lease was cut too late"
                        );
                    }
                } else {
                    due.look_at(cut_at);
                }
            }
            if !slot.renewing
                && let Some(renew_at) = slot.presence.renew_at()
            {
                if renew_at <= now {
                    slot.renewing = true;
                    due.renewals.push((place.clone(), slot.presence.number()));
                } else {
                    due.look_at(renew_at);
                }
            }
        }
        due
    }

    /// Nobody watches over it any more: everything in flight is cut, and nothing starts.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        for slot in state.slots.values() {
            slot.cut.cancel();
        }
    }

    /// Nothing starts any more.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Nothing asks or runs.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().slots.is_empty()
    }

    /// A renewal has ended: with a grant, with `Some(None)` when the registration is gone, without an answer.
    pub(super) fn renewed(
        &self,
        place: &Place,
        number: u64,
        asked_at: Timestamp,
        answer: Option<Option<Grant>>,
    ) {
        if let Some(slot) = self.state.lock().slots.get_mut(place) {
            slot.renewing = false;
            match answer {
                Some(Some(grant)) => slot.grant(number, asked_at, grant),
                Some(None) => {
                    self.metrics.lease_registrations_lost.inc();
                    slot.presence.lose(number, asked_at, self.now());
                }
                None => slot.presence.put_off_renewal(self.now()),
            }
        }
        self.changed.notify_one();
    }

    /// An attempt that was sent has ended.
    pub(super) fn finish(&self, place: &Place) {
        self.metrics.lease_attempts.dec();
        self.end(place, Presence::finish);
    }

    fn end(&self, place: &Place, end: impl FnOnce(&mut Presence) -> Option<u64>) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(place) else {
            return;
        };
        let Some(closed) = end(&mut slot.presence) else {
            return;
        };
        let registered = slot.registered;
        state.slots.remove(place);
        self.metrics.lease_presences.dec();
        drop(state);
        if registered {
            self.ends.push(self.registration(place, closed));
        }
    }
}

impl Due {
    fn look_at(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Slot {
    fn grant(&mut self, number: u64, asked_at: Timestamp, grant: Grant) {
        self.guard_ms = grant.guard_ms;
        self.presence.granted(number, asked_at, grant);
    }
}

/// An attempt that has asked. Dropped, it is not sent.
#[derive(Debug)]
pub(super) struct Asking {
    leases: Arc<Leases>,
    place: Place,
    pub(super) number: u64,
    is_over: bool,
}

impl Asking {
    fn with_slot<T>(&self, run: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.leases.state.lock().slots.get_mut(&self.place).map(run)
    }

    pub(super) fn registration(&self) -> ActivityName {
        self.leases.registration(&self.place, self.number)
    }

    /// The question goes out: the authority may know of the registration from now on.
    pub(super) fn sends(&self) {
        let _asked = self.with_slot(|slot| slot.registered = true);
    }

    /// The authority lets it pass.
    pub(super) fn granted(&self, key: &KeyId, asked_at: Timestamp, grant: Grant) {
        let _granted = self.with_slot(|slot| {
            slot.key = Some(key.clone());
            slot.grant(self.number, asked_at, grant);
        });
        self.leases.changed.notify_one();
    }

    /// The authority says no. What another key is told says nothing of the lease.
    pub(super) fn refused(&self, key: &KeyId, error: LeaseError) {
        let is_over = matches!(
            error,
            LeaseError::Required | LeaseError::FenceStale | LeaseError::ConnectionMismatch
        );
        let now = self.leases.now();
        let _refused = self.with_slot(|slot| {
            if is_over && slot.key.as_ref() == Some(key) {
                slot.presence.bar(now);
            }
        });
    }

    /// Whether what is known lets it be sent, if nothing more is heard.
    pub(super) fn may_start(&self, key: &KeyId) -> bool {
        let now = self.leases.now();
        self.with_slot(|slot| slot.key.as_ref() == Some(key) && slot.presence.may_start(now))
            .unwrap_or(false)
    }

    /// Sends it, if it may be sent by what was granted to its key; else it still asks.
    pub(super) fn start(mut self, key: &KeyId) -> Result<Leased, Self> {
        let Some(cut) = self.cut_if_started(key) else {
            return Err(self);
        };
        self.is_over = true;
        self.leases.metrics.lease_attempts.inc();
        self.leases.changed.notify_one();
        let (leases, place) = (Arc::clone(&self.leases), self.place.clone());
        Ok(Leased::new(cut, move || leases.finish(&place)))
    }
}

impl Asking {
    fn cut_if_started(&self, key: &KeyId) -> Option<CancellationToken> {
        let now = self.leases.now();
        let mut state = self.leases.state.lock();
        if state.is_closed {
            return None;
        }
        let slot = state.slots.get_mut(&self.place)?;
        if slot.key.as_ref() != Some(key) || !slot.presence.start(now) {
            return None;
        }
        if slot.cut.is_cancelled() {
            slot.cut = CancellationToken::new();
        }
        Some(slot.cut.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.is_over {
            self.leases.end(&self.place, Presence::give_up);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::lease::{Generation, OwnerHash};

    use super::*;

    fn place(generation: u64) -> Place {
        Place {
            lease: LeaseName {
                owner: OwnerHash::from_bytes([7; 32]),
                generation: Generation::try_from(generation).unwrap(),
            },
            connection: ConnectionId::new("c").unwrap(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_leases_have_something_in_flight() {
        let mut leases = Leases::new(PlaneIncarnation(1), ClientMetrics::default());
        leases.max = 2;
        let leases = Arc::new(leases);
        let held: Vec<Asking> = (1..=2).filter_map(|it| leases.ask(place(it))).collect();
        assert_eq!(held.len(), 2);
        assert!(leases.ask(place(3)).is_none());
        assert!(leases.ask(place(2)).is_some(), "it is known already");
        assert_eq!(leases.metrics.lease_presences_refused.get(), 1);
        drop(held);
        assert!(leases.ask(place(3)).is_some());
        assert_eq!(leases.metrics.lease_presences.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_never_fall_when_presences_are_forgotten() {
        let leases = Arc::new(Leases::new(PlaneIncarnation(1), ClientMetrics::default()));
        let mut last = 0;
        for generation in [1, 2, 1, 1, 2] {
            let asking = leases.ask(place(generation)).unwrap();
            assert!(asking.number > last);
            last = asking.number;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_flight_is_asked_about_when_something_else_is_shown() {
        let shown = |lease, has_ended| {
            Some(Shown {
                lease: LeaseId(lease),
                has_ended,
            })
        };
        let key = KeyId::new("k").unwrap();
        let leases = Arc::new(Leases::new(PlaneIncarnation(1), ClientMetrics::default()));
        let grant = Grant {
            lease_ms: 60_000,
            horizon_ms: 30_000,
            guard_ms: 500,
        };
        let asking = leases.ask(place(1)).unwrap();
        asking.granted(&key, leases.now(), grant);
        let _leased = asking.start(&key).unwrap();
        let number = leases.state.lock().slots[&place(1)].presence.number();
        // The end of the lease before, which is still seen; its own; its end; and that of its successor.
        for (seen, is_asked) in [
            (None, false),
            (shown(1, true), true),
            (shown(1, true), false),
            (shown(2, false), true),
            (shown(2, false), false),
            (shown(2, true), true),
            (shown(3, false), true),
        ] {
            leases.hear(|_| seen);
            let renewals = leases.due().renewals;
            let expected = if is_asked {
                vec![(place(1), number)]
            } else {
                Vec::new()
            };
            assert_eq!(renewals, expected, "{seen:?}");
            if is_asked {
                leases.renewed(&place(1), number, leases.now(), Some(Some(grant)));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_after_the_guard_is_counted() {
        let key = KeyId::new("k").unwrap();
        for (after_ms, late) in [(31_999, 0), (32_001, 1)] {
            let leases = Arc::new(Leases::new(PlaneIncarnation(1), ClientMetrics::default()));
            let asking = leases.ask(place(1)).unwrap();
            let grant = Grant {
                lease_ms: 60_000,
                horizon_ms: 30_000,
                guard_ms: 2_000,
            };
            asking.granted(&key, leases.now(), grant);
            let leased = asking.start(&key).unwrap();
            // As if the machine had stood still.
            tokio::time::advance(std::time::Duration::from_millis(after_ms)).await;
            leases.due();
            assert!(leased.is_cut());
            assert_eq!(leases.metrics.lease_late_cuts.get(), late);
        }
    }
}
