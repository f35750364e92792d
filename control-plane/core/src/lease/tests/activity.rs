//! The authority's side: who may send, and what is registered for it.

use rstest::rstest;

use crate::ids::PlaneIncarnation;
use crate::lease::{
    FenceError, Grant, Lease, LeaseError, LeaseName, Presence, RegistrationNumbers,
};

use super::table::{Table, at, connection, generation, owner};

const PLANE: PlaneIncarnation = PlaneIncarnation(1);
const OTHER_PLANE: PlaneIncarnation = PlaneIncarnation(2);

/// A lease of c1 by owner A, from 0 to 120 s. Horizon and drain are 30 s, the guard 2 s.
fn leased() -> (Table, Lease) {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    (table, lease)
}

fn grant(lease_ms: u64, horizon_ms: u64) -> Grant {
    Grant {
        lease_ms,
        horizon_ms,
        guard_ms: 2_000,
    }
}

/// A fence of the lease's own connection; what it grants, and whether it wrote.
fn fenced(table: &mut Table, lease: &Lease, number: u64, ms: u64) -> (Grant, bool) {
    let before = table.activity.clone();
    let grant = table
        .fence(lease.name(), &lease.connection, PLANE, number, at(ms))
        .unwrap();
    (grant, table.activity != before)
}

#[test]
fn a_first_fence_registers_and_later_ones_read_until_a_third_of_the_horizon_has_passed() {
    let (mut table, lease) = leased();
    assert_eq!(
        fenced(&mut table, &lease, 1, 0),
        (grant(120_000, 30_000), true)
    );
    assert_eq!(table.activity[0].until, at(32_000));
    assert_eq!(
        fenced(&mut table, &lease, 1, 10_000),
        (grant(110_000, 20_000), false)
    );
    assert_eq!(
        fenced(&mut table, &lease, 1, 10_001),
        (grant(109_999, 30_000), true)
    );
}

#[test]
fn a_fence_after_a_delete_was_sent_registers_anew() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    assert_eq!(
        fenced(&mut table, &lease, 2, 1),
        (grant(119_999, 30_000), true)
    );
    // The delete of the first registration comes late.
    table.delete_activity(lease.name(), &lease.connection, PLANE, 1);
    assert_eq!(table.activity.len(), 1);
    table.delete_activity(lease.name(), &lease.connection, PLANE, 2);
    assert_eq!(table.activity, []);
}

#[test]
fn a_delete_ends_earlier_registrations_too() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    table.delete_activity(lease.name(), &lease.connection, PLANE, 2);
    assert_eq!(table.activity, []);
}

#[test]
fn a_fence_of_an_earlier_registration_comes_too_late() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 2, 0);
    let late = table.fence(lease.name(), &lease.connection, PLANE, 1, at(1));
    assert_eq!(late, Err(FenceError::Superseded));
}

#[test]
fn a_registration_whose_end_got_lost_bars_earlier_numbers_until_its_own_end() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 5, 0);
    let mut fence = |ms: u64| table.fence(lease.name(), &lease.connection, PLANE, 4, at(ms));
    assert_eq!(fence(31_999), Err(FenceError::Superseded));
    assert_eq!(fence(32_000), Ok(grant(88_000, 30_000)));
}

#[test]
fn a_late_delete_leaves_what_a_new_presence_registered() {
    let (mut table, lease) = leased();
    let numbers = RegistrationNumbers::of_new_incarnation();
    let mut send = |ms: u64| {
        let mut presence = Presence::new(&numbers);
        let number = presence.ask();
        let (grant, _) = fenced(&mut table, &lease, number, ms);
        presence.granted(number, at(ms), grant);
        assert!(presence.start(at(ms)));
        presence
    };
    let mut before = send(0);
    // It is idle and forgotten; its delete is under way for long.
    let late = before.finish().unwrap();
    drop(before);
    let running = send(1);
    table.delete_activity(lease.name(), &lease.connection, PLANE, late);
    table.release(owner('A'), "k1", 1, at(2)).unwrap();
    let other = table.acquire_one_of(owner('B'), "k1", &["c1"], at(3));
    assert!(running.cut_at().is_some_and(|cut| cut > at(3)));
    assert!(other.is_err(), "two owners use a connection");
}

#[test]
fn data_planes_register_each_for_itself() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 5, 0);
    let other = table.fence(lease.name(), &lease.connection, OTHER_PLANE, 1, at(1));
    assert_eq!(other, Ok(grant(119_999, 30_000)));
    table.delete_activity(lease.name(), &lease.connection, PLANE, 5);
    assert_eq!(table.activity.len(), 1);
}

#[rstest]
#[case::no_lease('B', 1, "c1", 1, LeaseError::Required)]
#[case::over('A', 1, "c1", 120_000, LeaseError::Required)]
#[case::another_generation('A', 2, "c1", 1, LeaseError::FenceStale)]
#[case::another_connection('A', 1, "c2", 1, LeaseError::ConnectionMismatch)]
#[case::all_of_it_wrong('A', 2, "c2", 1, LeaseError::FenceStale)]
fn a_fence_lets_pass_only_the_lease_of_now(
    #[case] letter: char,
    #[case] number: u64,
    #[case] on: &str,
    #[case] ms: u64,
    #[case] error: LeaseError,
) {
    let (mut table, _) = leased();
    let name = LeaseName {
        owner: owner(letter),
        generation: generation(number),
    };
    let refused = table.fence(name, &connection(on), PLANE, 1, at(ms));
    assert_eq!(refused, Err(FenceError::Lease(error)));
    assert_eq!(table.activity, []);
}

#[test]
fn vector_sessions_14_a_fence_of_another_key_is_stale() {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k2", &["c1"], at(0))
        .unwrap();
    let refused = table.fence(lease.name(), &lease.connection, PLANE, 1, at(1));
    assert_eq!(refused, Err(FenceError::Lease(LeaseError::FenceStale)));
}

#[test]
fn vector_sessions_15_the_fence_follows_the_lease() {
    let (mut table, lease) = leased();
    table.place(owner('A'), 1, None, &["c2"], at(1)).unwrap();
    let mut fence = |on: &str| table.fence(lease.name(), &connection(on), PLANE, 1, at(2));
    assert_eq!(
        fence("c1"),
        Err(FenceError::Lease(LeaseError::ConnectionMismatch))
    );
    assert_eq!(fence("c2"), Ok(grant(119_998, 30_000)));
}

#[rstest]
#[case::long_before(0, 30_000, 120_000)]
#[case::reaching_into_the_drain(100_000, 30_000, 20_000)]
#[case::as_far_as_the_drain(119_999, 30_000, 1)]
fn a_horizon_ends_with_the_drain(#[case] ms: u64, #[case] horizon_ms: u64, #[case] lease_ms: u64) {
    let (mut table, lease) = leased();
    assert_eq!(
        fenced(&mut table, &lease, 1, ms).0,
        grant(lease_ms, horizon_ms)
    );
    table.activity.clear();
    table.settings.drain_ms = 5_000;
    let cut = horizon_ms.min(lease_ms + 5_000);
    assert_eq!(fenced(&mut table, &lease, 1, ms).0, grant(lease_ms, cut));
}

#[test]
fn a_horizon_that_cannot_grow_is_not_written_again() {
    let (mut table, lease) = leased();
    table.settings.drain_ms = 0;
    assert_eq!(
        fenced(&mut table, &lease, 1, 100_000),
        (grant(20_000, 20_000), true)
    );
    assert_eq!(
        fenced(&mut table, &lease, 1, 115_000),
        (grant(5_000, 5_000), false)
    );
}

#[rstest]
#[case::while_the_lease_lasts(10_000, None, Some(grant(110_000, 30_000)))]
#[case::after_it_was_given_back(10_000, Some(4_000), Some(grant(0, 24_000)))]
#[case::at_the_horizon(30_000, None, None)]
fn what_is_in_flight_is_renewed(
    #[case] ms: u64,
    #[case] released: Option<u64>,
    #[case] renewed: Option<Grant>,
) {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    if let Some(released) = released {
        table.release(owner('A'), "k1", 1, at(released)).unwrap();
    }
    let answer = table.renew_activity(lease.name(), &lease.connection, PLANE, 1, at(ms));
    assert_eq!(answer, renewed);
}

#[test]
fn a_drain_that_is_over_cuts_at_once_and_keeps_what_was_promised() {
    let (mut table, lease) = leased();
    table.settings.drain_ms = 0;
    fenced(&mut table, &lease, 1, 0);
    table.release(owner('A'), "k1", 1, at(1_000)).unwrap();
    let answer = table.renew_activity(lease.name(), &lease.connection, PLANE, 1, at(2_000));
    assert_eq!(answer, Some(grant(0, 0)));
    // The data plane may not have heard it.
    assert_eq!(table.activity[0].until, at(32_000));
}

#[rstest]
#[case::another_number(2, PLANE)]
#[case::another_data_plane(1, OTHER_PLANE)]
fn a_registration_that_is_not_there_is_not_renewed(
    #[case] number: u64,
    #[case] plane: PlaneIncarnation,
) {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    let answer = table.renew_activity(lease.name(), &lease.connection, plane, number, at(1));
    assert_eq!(answer, None);
}

#[test]
fn what_was_in_flight_is_forgotten_when_its_connection_is_given_away() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    table.release(owner('A'), "k1", 1, at(1)).unwrap();
    assert!(
        table
            .acquire_one_of(owner('B'), "k1", &["c1"], at(32_000))
            .is_ok()
    );
    assert_eq!(table.activity, []);
    // The store's clock went back.
    let answer = table.renew_activity(lease.name(), &lease.connection, PLANE, 1, at(2));
    assert_eq!(answer, None);
}

#[test]
fn a_lease_that_comes_back_does_not_wait_for_its_own_attempts() {
    let (mut table, lease) = leased();
    fenced(&mut table, &lease, 1, 0);
    table.place(owner('A'), 1, None, &["c2"], at(1)).unwrap();
    assert!(
        table
            .acquire_one_of(owner('B'), "k1", &["c1"], at(2))
            .is_err()
    );
    assert!(table.place(owner('A'), 1, None, &["c1"], at(3)).is_ok());
    let own = table.own(owner('A')).unwrap();
    assert_eq!(own.connection, connection("c1"));
}
