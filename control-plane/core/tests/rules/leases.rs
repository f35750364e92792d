//! What is shown of leases (decision 42b): the later state counts, whatever comes first, and nothing else changes it.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{EndReason, Ended, Generation, Lease, LeaseId, OwnerHash};
use tidegate_core::settings::ProviderClass::Apikey;
use tidegate_core::state::apply::Applied;
use tidegate_core::state::{
    ConnectionState, Event, KEEP_CLEAN_MS, LeaseMirror, StateValue, TransitionKind, forget_at,
};
use tidegate_core::time::Timestamp;

use super::world::{World, status};

const NOW: Timestamp = Timestamp(1_000_000);

fn at(ms: u64) -> Timestamp {
    NOW.plus_ms(ms)
}

/// Row `id`, made as the `since`th `since` ms after the start, to end at `until`; `ended` if it ended before.
fn mirror(id: u128, since: u64, until: u64, ended: Option<u64>) -> LeaseMirror {
    LeaseMirror {
        lease: LeaseId(id),
        sequence: since,
        since: at(since),
        until: at(until),
        ended_at: ended.map(at),
    }
}

fn show(world: &mut World, lease: &LeaseMirror, now: u64) -> Applied {
    let event = Event::LeaseShown {
        connection: ConnectionId::new("c1").unwrap(),
        lease: lease.clone(),
    };
    world.event(Some("c1"), &event, at(now))
}

/// A row has one beginning; two rows may have the same.
fn mirrors() -> impl Strategy<Value = LeaseMirror> {
    let ended = prop::option::of(0..3_u64);
    (0..4_u8, 0..4_u64, ended).prop_map(|(row, until, ended)| {
        mirror(u128::from(row), u64::from(row / 2), until * 1_000, ended)
    })
}

proptest! {
    /// However what was seen is shuffled and doubled, the same is shown at the end.
    #[test]
    fn the_order_in_which_leases_are_seen_does_not_matter(
        (seen, shuffled) in prop::collection::vec(mirrors(), 1..8).prop_flat_map(|seen| {
            let doubled: Vec<_> = seen.iter().chain(&seen).cloned().collect();
            (Just(seen), Just(doubled).prop_shuffle())
        })
    ) {
        let shown = |seen: &[LeaseMirror]| {
            let mut world = World::new(Apikey);
            for lease in seen {
                show(&mut world, lease, 0);
            }
            world.c1().lease.clone()
        };
        prop_assert_eq!(shown(&seen), shown(&shuffled));
    }

    /// What is not worth showing would change nothing that anybody sees, or only an end by less than a call takes.
    #[test]
    fn what_is_not_news_changes_nothing(known in mirrors(), seen in mirrors()) {
        let mut world = World::new(Apikey);
        show(&mut world, &known, 0);
        if !seen.is_news(Some(&known), NOW) {
            let before = world.c1().lease.as_ref().and_then(|lease| lease.holds_until(NOW));
            show(&mut world, &seen, 0);
            let after = world.c1().lease.as_ref().and_then(|lease| lease.holds_until(NOW));
            prop_assert_eq!(before, after);
        }
    }
}

#[rstest]
#[case::the_later_row(mirror(1, 0, 9_000, None), mirror(2, 5, 1_000, None), Some(1_000))]
#[case::a_row_after_one_that_ended(
    mirror(1, 0, 9_000, Some(4)),
    mirror(2, 5, 1_000, None),
    Some(1_000)
)]
#[case::the_end_of_the_earlier_row(
    mirror(2, 5, 1_000, None),
    mirror(1, 0, 9_000, Some(4)),
    Some(1_000)
)]
#[case::its_end(mirror(1, 0, 9_000, None), mirror(1, 0, 1_000, Some(500)), None)]
#[case::a_later_expiry(mirror(1, 0, 1_000, None), mirror(1, 0, 9_000, None), Some(9_000))]
fn the_later_state_of_two_holds(
    #[case] one: LeaseMirror,
    #[case] other: LeaseMirror,
    #[case] until: Option<u64>,
) {
    for (first, second) in [(&one, &other), (&other, &one)] {
        let mut world = World::new(Apikey);
        show(&mut world, first, 0);
        show(&mut world, second, 0);
        let shown = world.c1().lease.as_ref().unwrap();
        assert_eq!(shown.holds_until(NOW), until.map(at));
    }
}

#[test]
fn a_lease_holds_until_its_end_and_not_at_it() {
    let lease = mirror(1, 0, 1_000, None);
    assert_eq!(lease.holds_until(at(999)), Some(at(1_000)));
    assert_eq!(lease.holds_until(at(1_000)), None);
    assert_eq!(lease.ended(at(10)).holds_until(at(20)), None);
}

#[test]
fn history_tells_when_a_connection_is_leased_and_no_longer() {
    let mut world = World::new(Apikey);
    let kinds = |applied: Applied| -> Vec<TransitionKind> {
        applied.transitions.into_iter().map(|it| it.kind).collect()
    };
    let lease = mirror(1, 0, 1_000, None);
    let leased = |until| vec![TransitionKind::Leased { until: at(until) }];
    assert_eq!(kinds(show(&mut world, &lease, 0)), leased(1_000));
    let renewed = mirror(1, 0, 2_000, None);
    let applied = show(&mut world, &renewed, 1);
    assert!(applied.changed);
    assert_eq!(kinds(applied), []);
    let next = mirror(2, 100, 3_000, None);
    assert_eq!(kinds(show(&mut world, &next, 101)), leased(3_000));
    let ended = next.ended(at(200));
    assert_eq!(
        kinds(show(&mut world, &ended, 201)),
        [TransitionKind::LeaseEnded]
    );
    let again = show(&mut world, &next, 202);
    assert_eq!((again.changed, kinds(again)), (false, Vec::new()));
}

#[rstest]
#[case::success(200)]
#[case::failure(429)]
#[case::refusal(401)]
fn no_outcome_changes_a_lease(#[case] answered: u16) {
    let mut world = World::new(Apikey);
    let lease = mirror(1, 0, 60_000, None);
    show(&mut world, &lease, 0);
    assert!(world.c1().is_clean());
    let outcome = if answered == 200 {
        tidegate_core::outcome::Outcome::Success
    } else {
        status(answered)
    };
    world.fail(NOW.0 + 1, outcome);
    let connection = ConnectionId::new("c1").unwrap();
    let resets = [
        Event::ResetConnection {
            connection: connection.clone(),
            terminal_too: true,
        },
        Event::ClearLocks {
            connection: connection.clone(),
            model: None,
        },
        Event::CredentialReplaced {
            connection,
            credential_version: 9,
        },
    ];
    for reset in resets {
        world.event(Some("c1"), &reset, at(2));
        assert_eq!(world.c1().lease.as_ref(), Some(&lease));
    }
}

#[rstest]
#[case::unseen(None, mirror(1, 0, 1_000, None), true)]
#[case::an_end_that_nobody_saw_begin(None, mirror(1, 0, 1_000, Some(1)), true)]
#[case::passed(None, mirror(1, 0, 10, None), false)]
#[case::the_same(Some(mirror(1, 0, 1_000, None)), mirror(1, 0, 1_000, None), false)]
#[case::as_read_anew(Some(mirror(1, 0, 1_000, None)), mirror(1, 0, 1_500, None), false)]
#[case::renewed(Some(mirror(1, 0, 1_000, None)), mirror(1, 0, 1_501, None), true)]
#[case::ended(Some(mirror(1, 0, 1_000, None)), mirror(1, 0, 1_000, Some(5)), true)]
#[case::the_same_end(
    Some(mirror(1, 0, 1_000, Some(5))),
    mirror(1, 0, 1_000, Some(6)),
    false
)]
#[case::before_its_end(Some(mirror(1, 0, 1_000, Some(5))), mirror(1, 0, 9_000, None), false)]
#[case::an_earlier_row(Some(mirror(2, 5, 1_000, None)), mirror(1, 0, 9_000, None), false)]
#[case::a_later_row_that_has_passed(Some(mirror(1, 0, 9_000, None)), mirror(2, 5, 6, None), true)]
#[case::a_later_row(Some(mirror(1, 0, 9_000, None)), mirror(2, 5, 1_000, None), true)]
fn only_what_tells_something_new_is_shown(
    #[case] shown: Option<LeaseMirror>,
    #[case] seen: LeaseMirror,
    #[case] is_news: bool,
) {
    assert_eq!(seen.is_news(shown.as_ref(), at(10)), is_news);
}

/// Neither store's clock has to be right; what is left of a lease is.
#[rstest]
#[case::the_same_clock(0)]
#[case::the_database_is_ahead(3_600_000)]
fn what_is_left_of_a_row_is_what_is_left_of_what_is_shown(#[case] ahead_ms: u64) {
    let there = |ms: u64| at(ms).plus_ms(ahead_ms);
    let row = |ended: Option<u64>| Lease {
        id: LeaseId(7),
        owner: OwnerHash::from_bytes([1; 32]),
        key: KeyId::new("k").unwrap(),
        provider: ProviderId::new("acme").unwrap(),
        connection: ConnectionId::new("c1").unwrap(),
        generation: Generation::after(None).unwrap(),
        sequence: 3,
        acquired_at: there(100),
        renewed_at: there(100),
        expires_at: there(5_100),
        ended: ended.map(|ended| Ended {
            at: there(ended),
            reason: EndReason::OwnerExit,
        }),
    };
    let shown = |ended| LeaseMirror::of(&row(ended), there(1_100), at(1_100));
    let expected = LeaseMirror {
        sequence: 3,
        since: there(100),
        ..mirror(7, 0, 5_100, None)
    };
    assert_eq!(shown(None), expected);
    assert_eq!(shown(Some(300)), expected.ended(at(300)));
}

/// The database's clock stepped back by an hour between the two.
#[test]
fn a_lease_that_was_given_later_is_shown_whatever_its_clock_says() {
    let hour = 3_600_000;
    let before = LeaseMirror {
        since: at(hour),
        ..mirror(9, 4, 60_000, None)
    };
    let after = LeaseMirror {
        since: at(0),
        ..mirror(2, 5, 90_000, None)
    };
    for (shown, seen) in [(&before, &after), (&after, &before)] {
        assert_eq!(LeaseMirror::later(Some(shown), Some(seen)), Some(&after));
    }
    assert!(after.is_news(Some(&before), at(10)));
    assert!(!before.is_news(Some(&after), at(10)));
    // One that a replica of an earlier release showed comes before both.
    let earlier = LeaseMirror {
        since: at(2 * hour),
        ..mirror(7, 0, 60_000, None)
    };
    assert!(before.is_news(Some(&earlier), at(10)));
}

#[test]
fn a_value_names_no_owner_and_one_written_before_leases_is_read() {
    let mut state = ConnectionState {
        lease: Some(mirror(0xab, 1, 2, None)),
        ..ConnectionState::default()
    };
    let written = serde_json::to_value(&state).unwrap();
    assert_eq!(
        written["lease"],
        json!({
            "lease": "000000000000000000000000000000ab",
            "sequence": 1,
            "since": 1_000_001,
            "until": 1_000_002,
            "ended_at": null,
        })
    );
    let read: ConnectionState = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(read, state);
    for bad in [
        "ab",
        "+00000000000000000000000000000ab",
        "zz0000000000000000000000000000ab",
    ] {
        let mut damaged = written.clone();
        damaged["lease"]["lease"] = json!(bad);
        assert!(serde_json::from_value::<ConnectionState>(damaged).is_err());
    }
    state.lease = None;
    let before = serde_json::to_value(&state).unwrap();
    assert_eq!(before.get("lease"), None);
    let read: ConnectionState = serde_json::from_value(before).unwrap();
    assert_eq!(read, state);
}

#[test]
fn a_lease_is_kept_as_long_as_it_may_hold() {
    let world = World::new(Apikey);
    let of = |until| {
        let state = ConnectionState {
            lease: Some(mirror(1, 0, until, None)),
            ..ConnectionState::default()
        };
        forget_at(&StateValue::Connection(state), NOW, &world.policy)
    };
    assert_eq!(of(1_000), at(KEEP_CLEAN_MS));
    assert_eq!(of(KEEP_CLEAN_MS + 1), at(KEEP_CLEAN_MS + 1));
}
