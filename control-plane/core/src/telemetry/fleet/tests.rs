use std::ops::Range;

use super::*;
use crate::ids::PlaneIncarnation;
use crate::telemetry::aggregate::{End, PlaneLoad, SESSION_MS, Verdict};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn combo() -> ComboName {
    ComboName::new("combo").unwrap()
}

fn account(number: u64) -> ConnectionId {
    ConnectionId::new(format!("n{number}")).unwrap()
}

fn few() -> Bounds {
    Bounds {
        sessions: 4,
        sessions_per_combo: 4,
        connections: 4,
        targets: 4,
        ..Bounds::default()
    }
}

/// A conversation, a target and a connection of each of these numbers.
fn served(numbers: Range<u64>, at: Timestamp) -> Aggregate {
    let mut sum = Aggregate::default();
    for number in numbers {
        let part = Aggregate::of_end(End {
            target: Some((combo(), format!("n{number}"))),
            provider: ProviderId::new("p").unwrap(),
            connection: account(number),
            model: ModelId::new("m").unwrap(),
            verdict: Verdict::Served { ready_ms: 1 },
            began_at: at,
            at,
            session: Some(format!("n{number}")),
        });
        assert_eq!(sum.absorb(part, &Bounds::default()), Refused::default());
    }
    sum
}

fn conversations(fleet: &Fleet, numbers: Range<u64>) -> Vec<u64> {
    let known = |number: &u64| fleet.session_connection(&format!("n{number}")).is_some();
    numbers.filter(known).collect()
}

#[test]
fn what_is_over_takes_no_room_from_what_lives() {
    let dead = NOW.minus_ms(SESSION_MS);
    let parts = [served(0..4, dead), served(4..8, dead), served(8..12, NOW)];
    let fleet = Fleet::of(parts, &few(), NOW);
    assert_eq!(conversations(&fleet, 0..12), [8, 9, 10, 11]);
}

#[test]
fn of_too_many_conversations_the_newest_stay_whoever_told_them() {
    let at = |age| NOW.minus_ms(age);
    let parts = [
        served(0..4, at(3)),
        served(4..8, at(2)),
        served(8..12, at(1)),
    ];
    for turn in 0..3 {
        let mut parts = parts.clone();
        parts.rotate_left(turn);
        let fleet = Fleet::of(parts, &few(), NOW);
        assert_eq!(conversations(&fleet, 0..12), [8, 9, 10, 11]);
    }
}

#[test]
fn the_first_part_has_its_room_first_and_what_has_none_is_told() {
    let fleet = Fleet::of([served(8..10, NOW), served(0..4, NOW)], &few(), NOW);
    let counts = [8, 9, 0, 1, 2, 3].map(|number| fleet.connection_requests(&account(number)));
    assert_eq!(counts, [1, 1, 1, 1, 0, 0]);
    assert_eq!(fleet.left_out().count(Kind::Connections), 2);
    let left_out = |number| fleet.leaves_out_connection(&account(number));
    assert_eq!([8, 1, 2, 77].map(left_out), [false, false, true, true]);
    let left_out = |key: &str| fleet.leaves_out_target(&combo(), key);
    assert_eq!(["n8", "n1", "n2"].map(left_out), [false, false, true]);
}

#[test]
fn what_is_under_way_on_a_connection_makes_no_room_to_count_it() {
    let load = PlaneLoad {
        number: 1,
        at: NOW,
        connections: BTreeMap::from([(account(0), 1), (account(77), 2)]),
    };
    let load = Aggregate {
        planes: BTreeMap::from([(PlaneIncarnation(1), load)]),
        ..Aggregate::default()
    };
    let fleet = Fleet::of([served(0..4, NOW), load], &few(), NOW);
    let seen = |number| {
        let account = account(number);
        let left_out = fleet.leaves_out_connection(&account);
        (left_out, fleet.in_flight(&account))
    };
    assert_eq!([0, 1, 77].map(seen), [(false, 1), (false, 0), (true, 2)]);
}

#[test]
fn where_there_is_room_what_is_not_known_did_not_happen() {
    let fleet = Fleet::of([served(0..3, NOW)], &few(), NOW);
    assert_eq!(fleet.left_out(), &Refused::default());
    assert!(!fleet.leaves_out_connection(&account(77)));
    assert!(!fleet.leaves_out_target(&combo(), "n77"));
}

#[test]
fn marks_of_silent_data_planes_take_no_room_from_what_is_under_way() {
    let bounds = Bounds {
        planes: 4,
        ..Bounds::default()
    };
    let of = |planes: Range<u64>, at| {
        let load = |plane| {
            let connections = BTreeMap::from([(account(plane), 1)]);
            let load = PlaneLoad {
                number: 1,
                at,
                connections,
            };
            (PlaneIncarnation(plane), load)
        };
        Aggregate {
            planes: planes.map(load).collect(),
            ..Aggregate::default()
        }
    };
    let silent = NOW.minus_ms(LOAD_MS);
    let parts = [of(0..2, silent), of(2..4, silent), of(4..8, NOW)];
    let fleet = Fleet::of(parts, &bounds, NOW);
    let under_way = [0, 3, 4, 7].map(|number| fleet.in_flight(&account(number)));
    assert_eq!(under_way, [0, 0, 1, 1]);
}

#[test]
fn marks_of_messages_are_kept_for_an_hour_within_half_of_the_room() {
    let bounds = Bounds {
        planes: 6,
        ..Bounds::default()
    };
    let hour_ms = 3_600_000;
    let mut sum = Aggregate::default();
    for (plane, age) in [(1, 0), (2, 5_000), (3, 10_000), (4, hour_ms), (5, 20_000)] {
        let load = PlaneLoad {
            number: 7,
            at: NOW.minus_ms(age),
            connections: BTreeMap::from([(account(1), 1)]),
        };
        sum.planes.insert(PlaneIncarnation(plane), load);
    }
    sum.prune(NOW, &bounds);
    let kept: Vec<_> = sum
        .planes
        .iter()
        .map(|it| (it.0.0, it.1.connections.len()))
        .collect();
    assert_eq!(kept, [(1, 1), (2, 0), (3, 0)]);
    sum.prune(NOW.minus_ms(10_000).plus_ms(hour_ms - 1), &bounds);
    assert_eq!(sum.planes.len(), 3);
}
