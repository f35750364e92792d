//! Both sides together: a data plane with one attempt in flight, asking an authority that is never far away.

use rstest::rstest;

use crate::ids::PlaneIncarnation;
use crate::lease::{Capacity, Lease, LeaseError, Presence, RegistrationNumbers};
use crate::time::Timestamp;

use super::table::{Table, at, owner};

const PLANE: PlaneIncarnation = PlaneIncarnation(1);

/// An attempt of owner A on c1, started at 0.
struct Attempt {
    table: Table,
    presence: Presence,
    lease: Lease,
    ended_at: Option<Timestamp>,
}

impl Attempt {
    fn start(ttl_ms: u64, drain_ms: u64) -> Self {
        let mut table = Table::new();
        table.ttl_ms = ttl_ms;
        table.settings.drain_ms = drain_ms;
        let lease = table
            .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
            .unwrap();
        let mut presence = Presence::new(&RegistrationNumbers::of_new_incarnation());
        let number = presence.ask();
        let grant = table
            .fence(lease.name(), &lease.connection, PLANE, number, at(0))
            .unwrap();
        presence.granted(number, at(0), grant);
        assert!(presence.start(at(0)));
        Self {
            table,
            presence,
            lease,
            ended_at: None,
        }
    }

    /// Renews and cuts as the data plane would, until then.
    fn run_until(&mut self, end: Timestamp) {
        while let Some(cut_at) = self.presence.cut_at() {
            let next = self.presence.renew_at().unwrap_or(cut_at);
            if next > end {
                return;
            }
            if next >= cut_at {
                self.finish(next);
            } else {
                self.renew(next);
            }
        }
    }

    fn renew(&mut self, now: Timestamp) {
        let (lease, number) = (&self.lease, self.presence.number());
        let answer = self
            .table
            .renew_activity(lease.name(), &lease.connection, PLANE, number, now);
        match answer {
            Some(grant) => self.presence.granted(number, now, grant),
            None => self.presence.lose(number, now, now),
        }
    }

    fn finish(&mut self, now: Timestamp) {
        self.ended_at = Some(now);
        let number = self.presence.finish().expect("it is the only attempt");
        let lease = &self.lease;
        self.table
            .delete_activity(lease.name(), &lease.connection, PLANE, number);
    }

    /// Another owner asks for the connection.
    fn contend(&mut self, now: Timestamp) -> Result<(), u64> {
        match self.table.acquire_one_of(owner('B'), "k1", &["c1"], now) {
            Ok(_) => Ok(()),
            Err(LeaseError::Capacity(Capacity {
                retry_after_seconds,
                ..
            })) => Err(retry_after_seconds),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn vector_sessions_59_a_lease_given_back_with_an_attempt_in_flight() {
    let mut attempt = Attempt::start(120_000, 30_000);
    attempt
        .table
        .release(owner('A'), "k1", 1, at(5_000))
        .unwrap();
    assert_eq!(attempt.contend(at(5_000)), Err(30));
    attempt.run_until(at(20_500));
    assert_eq!(attempt.contend(at(20_500)), Err(15));
    assert_eq!(attempt.ended_at, None);
    attempt.finish(at(21_000));
    assert_eq!(attempt.contend(at(21_000)), Ok(()));
}

#[test]
fn vector_sessions_60_an_attempt_is_cut_when_the_drain_is_over() {
    let mut attempt = Attempt::start(60_000, 2_000);
    attempt.run_until(at(61_999));
    assert_eq!(attempt.ended_at, None);
    assert_eq!(attempt.contend(at(61_999)), Err(1));
    attempt.run_until(at(62_000));
    assert_eq!(attempt.ended_at, Some(at(62_000)));
    assert_eq!(attempt.contend(at(62_000)), Ok(()));
}

#[test]
fn vector_sessions_61_without_a_drain_an_attempt_is_cut_at_the_end() {
    let mut attempt = Attempt::start(60_000, 0);
    attempt.run_until(at(59_999));
    assert_eq!(attempt.ended_at, None);
    attempt.run_until(at(60_000));
    assert_eq!(attempt.ended_at, Some(at(60_000)));
    assert_eq!(attempt.contend(at(60_000)), Ok(()));
}

#[rstest]
#[case::in_time(55_000)]
#[case::in_the_last_second(59_700)]
#[case::in_the_last_moments(59_900)]
fn vector_sessions_62_a_renewed_lease_cuts_nothing(#[case] ms: u64) {
    let mut attempt = Attempt::start(60_000, 0);
    attempt.run_until(at(ms));
    attempt.table.renew(owner('A'), "k1", 1, at(ms)).unwrap();
    attempt.run_until(at(ms + 59_999));
    assert_eq!(attempt.ended_at, None);
    attempt.run_until(at(ms + 60_000));
    assert_eq!(attempt.ended_at, Some(at(ms + 60_000)));
}

#[test]
fn a_data_plane_that_died_blocks_its_connection_for_horizon_and_guard() {
    let mut attempt = Attempt::start(120_000, 30_000);
    attempt
        .table
        .release(owner('A'), "k1", 1, at(1_000))
        .unwrap();
    assert_eq!(attempt.contend(at(31_000)), Err(1));
    assert_eq!(attempt.contend(at(31_999)), Err(1));
    assert_eq!(attempt.contend(at(32_000)), Ok(()));
    // It was only slow: what it asks for now is not its own any more.
    attempt.renew(at(32_000));
    assert_eq!(attempt.presence.cut_at(), Some(at(30_000)));
}
