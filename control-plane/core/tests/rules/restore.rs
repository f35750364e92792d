//! How state comes back (`architecture.md` §3, Incarnation and restore).

use proptest::prelude::*;
use tidegate_core::breaker::{Breaker, BreakerStatus};
use tidegate_core::classify::{Origin, Reason, TerminalKind};
use tidegate_core::cooldown::{Cooldown, LastError, Terminal};
use tidegate_core::egress::{EgressLock, EgressLocks};
use tidegate_core::gate::{ConnectionGate, GateEnd, ProviderGate};
use tidegate_core::ids::{EgressId, ModelId, RuleId};
use tidegate_core::lease::LeaseId;
use tidegate_core::lockout::{LockKey, ModelLock};
use tidegate_core::settings::ProviderClass;
use tidegate_core::state::restore::restore;
use tidegate_core::state::{
    ConnectionState, KEEP_CLEAN_MS, LeaseMirror, ProviderState, StateValue, StoredValue, forget_at,
};
use tidegate_core::time::Timestamp;
use tidegate_core::version::{Incarnation, Mark, Version};

use super::world::World;

const NOW: Timestamp = Timestamp(1_000_000);
/// The incarnation that is being restored.
const THIS: Incarnation = Incarnation(5);

type Cell = Option<(StoredValue, Version)>;

type Offers = Vec<(StoredValue, Version)>;

/// Applies offers one after the other, each accepted one under the next version of this incarnation.
fn offer_all(start: &Cell, offers: &[(StoredValue, Version)]) -> Option<StoredValue> {
    let mut current = start.clone();
    for (number, (value, version)) in (100..).zip(offers) {
        let found = current.as_ref().map(|(stored, version)| (stored, *version));
        if let Some(restored) = restore(found, (value, *version), THIS, NOW) {
            current = Some((restored, Version::new(THIS.0, number)));
        }
    }
    current.map(|(stored, _)| stored)
}

fn marks() -> impl Strategy<Value = Mark> {
    prop_oneof![
        Just(Mark::Never),
        Just(Mark::ThisWrite),
        (1..5_u64, 1..4_u64)
            .prop_map(|(incarnation, revision)| { Mark::At(Version::new(incarnation, revision)) }),
    ]
}

fn times() -> impl Strategy<Value = Option<Timestamp>> {
    prop::option::of((0..4_u64).prop_map(|step| Timestamp(NOW.0 + step * 1_000)))
}

fn reasons() -> impl Strategy<Value = Reason> {
    prop_oneof![Just(Reason::ServerError), Just(Reason::AuthError)]
}

fn origins() -> impl Strategy<Value = Option<Origin>> {
    let ids = prop_oneof![Just("a"), Just("b")];
    prop::option::of(
        (ids, prop::option::of(400..402_u16)).prop_map(|(id, status)| Origin {
            rule: RuleId::new(id).unwrap(),
            original_status: status,
        }),
    )
}

fn cooldowns() -> impl Strategy<Value = Cooldown> {
    (
        times(),
        0..3_u32,
        prop::option::of(reasons()),
        origins(),
        marks(),
        marks(),
    )
        .prop_map(
            |(until, backoff_level, reason, origin, escalated, changed)| Cooldown {
                until,
                backoff_level,
                reason,
                origin,
                escalated,
                changed,
            },
        )
}

fn terminals() -> impl Strategy<Value = Option<Terminal>> {
    let kinds = prop_oneof![Just(TerminalKind::Banned), Just(TerminalKind::Expired)];
    let parts = (kinds, 0..2_u64, any::<bool>());
    prop::option::of(parts.prop_map(|(kind, since, switched_off)| Terminal {
        kind,
        since: Timestamp(since),
        credential_version: 0,
        switched_off,
    }))
}

fn locks() -> impl Strategy<Value = Vec<ModelLock>> {
    let lock = (times(), 1..4_u32, reasons(), origins(), marks());
    prop::collection::btree_map(0..3_u8, lock, 0..3).prop_map(|locks| {
        locks
            .into_iter()
            .map(
                |(name, (until, failure_count, reason, origin, mark))| ModelLock {
                    key: LockKey::Model(ModelId::new(format!("m{name}")).unwrap()),
                    until: until.unwrap_or_default(),
                    failure_count,
                    last_failure_at: NOW,
                    last_cooldown_ms: u64::from(failure_count) * 10,
                    reason,
                    origin,
                    locked_at: Timestamp(u64::from(failure_count)),
                    escalated: mark,
                    changed: mark,
                },
            )
            .collect()
    })
}

fn gate_ends() -> impl Strategy<Value = Option<GateEnd>> {
    let end = (times(), reasons());
    end.prop_map(|(until, reason)| until.map(|until| GateEnd { until, reason }))
}

fn provider_gates() -> impl Strategy<Value = ProviderGate> {
    let failures = prop::collection::vec(0..6_u64, 0..5);
    let hold = (gate_ends(), 0..3_u64);
    (failures, times(), gate_ends(), hold, marks()).prop_map(
        |(failures, emptied_at, cooled, (held, held_for_ms), reset)| {
            let times = failures
                .into_iter()
                .map(|step| Timestamp(NOW.0 + step * 500));
            let open = |time: &Timestamp| emptied_at.is_none_or(|emptied| *time > emptied);
            ProviderGate {
                failures: times.filter(open).collect(),
                emptied_at,
                last_network_failure_at: emptied_at,
                cooled,
                held,
                held_for_ms,
                reset,
            }
        },
    )
}

/// More identities than there is room for, by chance.
fn egress_locks() -> impl Strategy<Value = EgressLocks> {
    let lock = || (0..80_u8, 1..200_u64, reasons());
    let few = prop::collection::vec(lock(), 0..4);
    let many = prop::collection::vec(lock(), 50..70);
    (prop_oneof![3 => few, 1 => many], marks()).prop_map(|(locks, reset)| {
        let mut all = EgressLocks::default();
        all.reset = reset;
        for (name, end, reason) in locks {
            let lock = EgressLock {
                egress: EgressId::new(format!("e{name}")).unwrap(),
                until: NOW.plus_ms(end),
                reason,
            };
            all.lock(lock, NOW);
        }
        all
    })
}

fn connection_gates() -> impl Strategy<Value = ConnectionGate> {
    (0..3_u32, gate_ends(), times(), marks()).prop_map(|(failures, cooled, at, escalated)| {
        ConnectionGate {
            failures,
            cooled,
            last_failure_at: at,
            last_counted_at: at,
            escalated,
        }
    })
}

fn leases() -> impl Strategy<Value = Option<LeaseMirror>> {
    let ends = (times(), times());
    prop::option::of(
        (1..3_u128, 0..3_u64, ends).prop_map(|(id, since, (until, ended_at))| LeaseMirror {
            sequence: since,
            lease: LeaseId(id),
            since: Timestamp(since),
            until: until.unwrap_or_default(),
            ended_at,
        }),
    )
}

fn connections() -> impl Strategy<Value = StateValue> {
    (
        cooldowns(),
        terminals(),
        0..2_u64,
        times(),
        reasons(),
        origins(),
        locks(),
        (connection_gates(), leases()),
    )
        .prop_map(
            |(
                cooldown,
                terminal,
                credential_version,
                seen,
                reason,
                origin,
                locks,
                (gate, lease),
            )| {
                StateValue::Connection(ConnectionState {
                    cooldown,
                    terminal,
                    credential_version,
                    last_error: seen.map(|at| LastError {
                        status: 503,
                        reason,
                        at,
                        origin,
                    }),
                    last_counted_failure_at: seen,
                    locks,
                    gate,
                    lease,
                    ..ConnectionState::default()
                })
            },
        )
}

fn providers() -> impl Strategy<Value = StateValue> {
    let status = prop_oneof![
        Just(BreakerStatus::Closed),
        Just(BreakerStatus::Degraded),
        Just(BreakerStatus::Open),
        Just(BreakerStatus::HalfOpen { probe: None }),
    ];
    let breaker = (status, 0..5_u32, times(), 0..3_u32, marks());
    (breaker, provider_gates(), egress_locks()).prop_map(
        |((status, failure_count, last_failure_at, open_cycles, epoch), gate, egress_locks)| {
            StateValue::Provider(ProviderState {
                breaker: Breaker {
                    status,
                    failure_count,
                    last_failure_at,
                    open_cycles,
                    last_network_failure_at: last_failure_at,
                    epoch,
                },
                gate,
                egress_locks,
            })
        },
    )
}

fn stored(value: StateValue, forget_in_ms: u64) -> StoredValue {
    let forget_at = Timestamp(NOW.0 + forget_in_ms);
    StoredValue::from_live(value, Version::default(), forget_at)
}

/// Offers of different versions of one value; of a version there is only one value.
fn lineage(values: impl Strategy<Value = StateValue>) -> impl Strategy<Value = Offers> {
    prop::collection::btree_map((1..5_u64, 1..4_u64), (values, 0..3_u64), 1..6).prop_map(
        |versions| {
            versions
                .into_iter()
                .map(|((incarnation, revision), (value, forget_in))| {
                    let version = Version::new(incarnation, revision);
                    (stored(value, forget_in * 1_000), version)
                })
                .collect()
        },
    )
}

/// What the shard holds before the offers: nothing, a value of an earlier life, or one of this life.
fn starts(values: impl Strategy<Value = StateValue>) -> impl Strategy<Value = Cell> {
    let at = prop_oneof![(1..5_u64, 4..6_u64), Just((THIS.0, 1))];
    prop::option::of((values, at).prop_map(|(value, (incarnation, revision))| {
        (stored(value, 2_500), Version::new(incarnation, revision))
    }))
}

fn shuffled(
    values: fn() -> BoxedStrategy<StateValue>,
) -> impl Strategy<Value = (Cell, Offers, Offers)> {
    (starts(values()), lineage(values())).prop_flat_map(|(start, offers)| {
        let doubled: Vec<_> = offers.iter().chain(&offers).cloned().collect();
        (Just(start), Just(offers), Just(doubled).prop_shuffle())
    })
}

fn both_kinds() -> BoxedStrategy<StateValue> {
    connections().boxed()
}

fn provider_kind() -> BoxedStrategy<StateValue> {
    providers().boxed()
}

proptest! {
    #[test]
    fn offers_may_come_in_any_order_and_number((start, offers, doubled) in shuffled(both_kinds)) {
        prop_assert_eq!(offer_all(&start, &offers), offer_all(&start, &doubled));
    }

    #[test]
    fn offers_of_breakers_too((start, offers, doubled) in shuffled(provider_kind)) {
        prop_assert_eq!(offer_all(&start, &offers), offer_all(&start, &doubled));
    }

    #[test]
    fn nothing_that_the_newest_version_cleared_comes_back(
        (_, mut offers, _) in shuffled(both_kinds),
        clean_first in any::<bool>(),
    ) {
        let clean = StateValue::Connection(ConnectionState::default());
        let newest = (stored(clean.clone(), KEEP_CLEAN_MS), Version::new(4, 100));
        if clean_first {
            offers.insert(0, newest);
        } else {
            offers.push(newest);
        }
        let result = offer_all(&None, &offers).unwrap();
        prop_assert_eq!(result.effective(), clean);
        prop_assert_eq!(result.ancestor, Version::new(4, 100));
    }

    #[test]
    fn the_effective_value_has_at_least_what_happened_in_this_life(
        live in connections(),
        offer in connections(),
    ) {
        let start = Some((stored(live.clone(), 2_500), Version::new(THIS.0, 1)));
        let result = offer_all(&start, &[(stored(offer, 9_000), Version::new(4, 1))]).unwrap();
        let (StateValue::Connection(live), StateValue::Connection(effective)) =
            (live, result.effective()) else { panic!("kinds do not change") };
        if effective.credential_version == live.credential_version {
            prop_assert!(effective.cooldown.until >= live.cooldown.until);
            prop_assert!(effective.cooldown.backoff_level >= live.cooldown.backoff_level);
            prop_assert!(effective.terminal.is_some() || live.terminal.is_none());
        }
        for lock in &live.locks {
            let kept = effective.locks.iter().find(|kept| kept.key == lock.key).unwrap();
            prop_assert!(kept.until >= lock.until && kept.failure_count >= lock.failure_count);
        }
    }

    #[test]
    fn no_mark_of_an_earlier_write_becomes_one_of_a_later(
        (start, offers, _) in shuffled(both_kinds),
    ) {
        let mut result = offer_all(&start, &offers);
        if let Some(result) = &mut result && result.restored.is_some() {
            let before = result.clone();
            result.resolve_marks(Version::new(9, 9));
            prop_assert_eq!(&before, &*result);
        }
    }
}

fn banned() -> StateValue {
    StateValue::Connection(ConnectionState {
        terminal: Some(super::world::terminal(TerminalKind::Banned)),
        ..ConnectionState::default()
    })
}

fn clean() -> StateValue {
    StateValue::Connection(ConnectionState::default())
}

#[test]
fn an_offer_that_nothing_can_read_any_more_changes_nothing() {
    let expired = stored(banned(), 0);
    assert_eq!(
        restore(None, (&expired, Version::new(1, 1)), THIS, NOW),
        None
    );
}

#[test]
fn an_offer_of_this_life_changes_nothing() {
    let offer = stored(banned(), 9_000);
    assert_eq!(restore(None, (&offer, Version::new(5, 1)), THIS, NOW), None);
}

#[test]
fn a_value_the_store_still_has_is_lineage() {
    let (older, newer) = (stored(banned(), 9_000), stored(clean(), 9_000));
    let (first, second) = (Version::new(1, 1), Version::new(1, 2));
    let cleared = restore(Some((&older, first)), (&newer, second), THIS, NOW).unwrap();
    assert_eq!(cleared.effective(), clean());
    assert_eq!(
        restore(Some((&newer, second)), (&older, first), THIS, NOW),
        None
    );
}

/// An event was applied to a value of an earlier life: what it had cleared must not come back through offers
/// between its own ancestor and itself.
#[test]
fn a_value_written_again_descends_from_what_it_was_made_of() {
    let found = stored(clean(), 9_000);
    let (value, ancestor) = found.open(Version::new(4, 7), THIS);
    assert_eq!(ancestor, Version::new(4, 7));
    let written = StoredValue::from_live(value, ancestor, Timestamp(NOW.0 + 9_000));
    let offer = stored(banned(), 9_000);
    let current = Some((&written, Version::new(5, 1)));
    assert_eq!(
        restore(current, (&offer, Version::new(4, 6)), THIS, NOW),
        None
    );
    assert!(restore(current, (&offer, Version::new(4, 8)), THIS, NOW).is_some());
}

#[test]
fn an_event_makes_what_was_restored_live() {
    let restored = restore(
        None,
        (&stored(banned(), 9_000), Version::new(4, 1)),
        THIS,
        NOW,
    )
    .unwrap();
    let (value, ancestor) = restored.open(Version::new(5, 1), THIS);
    assert_eq!((value, ancestor), (banned(), Version::new(4, 1)));
}

/// What fell into the window of either life is in it, except what a success of either ended.
#[test]
fn windows_of_two_lives_are_one() {
    let of = |failures: &[u64], emptied_at| {
        let mut state = ProviderState::default();
        state.gate.failures = failures.iter().copied().map(Timestamp).collect();
        state.gate.emptied_at = emptied_at;
        StateValue::Provider(state)
    };
    let live = of(&[NOW.0 + 2, NOW.0 + 3], None);
    let offer = of(&[NOW.0 + 1, NOW.0 + 2], Some(NOW));
    let current = (stored(live, 9_000), Version::new(5, 1));
    let offers = [(stored(offer, 9_000), Version::new(4, 9))];
    let effective = offer_all(&Some(current), &offers).unwrap().effective();
    let all = [NOW.0 + 1, NOW.0 + 2, NOW.0 + 3];
    assert_eq!(effective, of(&all, Some(NOW)));
}

/// Of an identity the later end counts, and a lock of an earlier life that was reset in this one does not come back.
#[test]
fn egress_locks_of_two_lives_are_one_unless_they_were_reset() {
    let of = |locks: &[(&str, u64)], reset| {
        let mut state = ProviderState::default();
        state.egress_locks.reset = reset;
        for (egress, end) in locks {
            let lock = EgressLock {
                egress: EgressId::new(*egress).unwrap(),
                until: NOW.plus_ms(*end),
                reason: Reason::QuotaExhausted,
            };
            state.egress_locks.lock(lock, NOW);
        }
        StateValue::Provider(state)
    };
    let effective = |live: &StateValue, offer: &StateValue| {
        let current = (stored(live.clone(), 9_000), Version::new(5, 1));
        let offers = [(stored(offer.clone(), 9_000), Version::new(4, 9))];
        offer_all(&Some(current), &offers).unwrap().effective()
    };
    let offer = of(&[("eu", 9_000), ("us", 1_000)], Mark::Never);
    let live = of(&[("us", 2_000)], Mark::Never);
    let both = of(&[("eu", 9_000), ("us", 2_000)], Mark::Never);
    assert_eq!(effective(&live, &offer), both);
    let reset = of(&[], Mark::At(Version::new(5, 1)));
    assert_eq!(effective(&reset, &offer), reset);
}

/// A lease that ended in this life does not come back with what an earlier one knew of it, and one that began later in
/// an earlier life is not lost; the credential has nothing to do with it.
#[test]
fn the_later_lease_of_two_lives_is_shown() {
    let lease = |id: u128, since: u64, ended_at: Option<u64>| LeaseMirror {
        sequence: since,
        lease: LeaseId(id),
        since: Timestamp(since),
        until: NOW.plus_ms(60_000),
        ended_at: ended_at.map(Timestamp),
    };
    let of = |lease: Option<&LeaseMirror>, credential_version| {
        StateValue::Connection(ConnectionState {
            credential_version,
            lease: lease.cloned(),
            ..ConnectionState::default()
        })
    };
    let shown = |live: StateValue, offer: StateValue| {
        let current = (stored(live, 9_000), Version::new(5, 1));
        let offers = [(stored(offer, 9_000), Version::new(4, 9))];
        match offer_all(&Some(current), &offers).unwrap().effective() {
            StateValue::Connection(state) => state.lease,
            StateValue::Provider(_) => panic!("kinds do not change"),
        }
    };
    let (held, ended, later) = (lease(1, 5, None), lease(1, 5, Some(7)), lease(2, 8, None));
    assert_eq!(
        shown(of(Some(&ended), 1), of(Some(&held), 2)),
        Some(ended.clone())
    );
    assert_eq!(
        shown(of(Some(&ended), 2), of(Some(&later), 1)),
        Some(later.clone())
    );
    assert_eq!(shown(of(None, 2), of(Some(&later), 1)), Some(later));
}

/// A breaker that was reset in this life stays so, and one that opened later in an earlier life wins over
/// counts of this one.
#[test]
fn the_breaker_of_the_higher_epoch_wins_whole() {
    let of = |status, failure_count, epoch| {
        let mut state = ProviderState::default();
        state.breaker.status = status;
        state.breaker.failure_count = failure_count;
        state.breaker.epoch = epoch;
        StateValue::Provider(state)
    };
    let effective = |live: &StateValue, offer: &StateValue| {
        let current = (stored(live.clone(), 9_000), Version::new(5, 1));
        let offers = [(stored(offer.clone(), 9_000), Version::new(4, 9))];
        offer_all(&Some(current), &offers).unwrap().effective()
    };
    let opened = of(BreakerStatus::Open, 8, Mark::At(Version::new(4, 2)));
    let counted = of(BreakerStatus::Closed, 9, Mark::Never);
    let reset = of(BreakerStatus::Closed, 0, Mark::At(Version::new(5, 1)));
    assert_eq!(effective(&counted, &opened), opened);
    assert_eq!(effective(&reset, &opened), reset);
}

#[test]
fn nothing_that_matters_is_forgotten() {
    let world = World::new(ProviderClass::Apikey);
    let of = |value: StateValue| forget_at(&value, NOW, &world.policy);
    assert_eq!(of(clean()), NOW.plus_ms(KEEP_CLEAN_MS));
    assert!(of(banned()) > NOW.plus_ms(9 * 365 * 86_400_000));
    let mut locked = ConnectionState::default();
    locked.locks.push(ModelLock {
        key: LockKey::Exact("m".to_owned()),
        until: NOW.plus_ms(7_200_000),
        failure_count: 1,
        last_failure_at: NOW,
        last_cooldown_ms: 7_200_000,
        reason: Reason::ServerError,
        origin: None,
        locked_at: NOW,
        escalated: Mark::Never,
        changed: Mark::Never,
    });
    let window_ms = world.policy.lockout.window_ms;
    assert_eq!(
        of(StateValue::Connection(locked)),
        NOW.plus_ms(7_200_000 + window_ms)
    );
    let mut refused = ProviderState::default();
    let lock = EgressLock {
        egress: EgressId::new("eu").unwrap(),
        until: NOW.plus_ms(86_400_000),
        reason: Reason::QuotaExhausted,
    };
    refused.egress_locks.lock(lock, NOW);
    assert_eq!(of(StateValue::Provider(refused)), NOW.plus_ms(86_400_000));
    let mut counted = ProviderState::default();
    counted.breaker.failure_count = 1;
    counted.breaker.last_failure_at = Some(NOW);
    assert!(of(StateValue::Provider(counted)) > NOW.plus_ms(7 * 86_400_000));
}
