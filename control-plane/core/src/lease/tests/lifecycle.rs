use rstest::rstest;

use crate::lease::{
    Capacity, Eligibility, EndReason, LEASE_TTL_MS, LeaseError, LeaseState, expire, lifecycle_body,
};

use crate::routing::ExclusionReason;

use super::table::{Table, at, connection, eligible, generation, owner};

fn capacity(retry_after_seconds: u64, eligible: u64) -> LeaseError {
    LeaseError::Capacity(Capacity {
        retry_after_seconds,
        eligible,
    })
}

#[test]
fn vector_sessions_04_a_first_lease() {
    let lease = Table::new()
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    assert_eq!(
        lifecycle_body(&lease.summary()),
        serde_json::json!({
            "state": "ACTIVE",
            "generation": 1,
            "acquiredAt": "2026-08-12T19:30:00.000Z",
            "renewedAt": "2026-08-12T19:30:00.000Z",
            "expiresAt": "2026-08-12T19:32:00.000Z",
        })
    );
}

#[test]
fn vector_sessions_05_asking_again_gives_the_same_lease_and_more_time() {
    let mut table = Table::new();
    let first = table
        .acquire_one_of(owner('A'), "k1", &["c1", "c2"], at(0))
        .unwrap();
    let again = table
        .acquire_one_of(owner('A'), "k1", &["c2", "c1"], at(7))
        .unwrap();
    assert_eq!((again.id, again.generation), (first.id, generation(1)));
    assert_eq!(again.acquired_at, at(0));
    assert_eq!(again.expires_at, at(7 + LEASE_TTL_MS));
}

#[test]
fn vector_sessions_06_only_the_lease_of_now_is_renewed() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let renewed = table.renew(owner('A'), "k1", 1, at(5)).unwrap();
    assert_eq!(
        (renewed.renewed_at, renewed.expires_at),
        (at(5), at(5 + LEASE_TTL_MS))
    );
    assert_eq!(
        table.renew(owner('A'), "k1", 2, at(6)),
        Err(LeaseError::FenceStale)
    );
    assert_eq!(table.own(owner('A')), Some(&renewed));
}

#[test]
fn vector_sessions_07_giving_back_twice_is_giving_back_once() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let released = table.release(owner('A'), "k1", 1, at(1)).unwrap();
    assert_eq!(released.state(), LeaseState::Released);
    assert_eq!(table.release(owner('A'), "k1", 1, at(2)), Ok(released));
    assert_eq!(
        table.renew(owner('A'), "k1", 1, at(3)),
        Err(LeaseError::FenceStale)
    );
}

#[test]
fn vector_sessions_08_an_old_lease_given_back_again_leaves_the_new_one() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table.release(owner('A'), "k1", 1, at(1)).unwrap();
    let second = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(2))
        .unwrap();
    assert_eq!(second.generation, generation(2));
    let released = table.release(owner('A'), "k1", 1, at(3)).unwrap();
    assert_eq!(released.state(), LeaseState::Released);
    assert_eq!(table.own(owner('A')), Some(&second));
}

#[test]
fn vector_sessions_09_a_lease_ends_at_its_very_expiry() {
    let mut table = Table::new();
    table.ttl_ms = 1_000;
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    assert!(table.renew(owner('A'), "k1", 1, at(999)).is_ok());

    let mut table = Table::new();
    table.ttl_ms = 1_000;
    let first = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    assert_eq!(
        table.renew(owner('A'), "k1", 1, at(1_000)),
        Err(LeaseError::FenceStale)
    );
    assert_eq!(table.by_id(first.id).state(), LeaseState::Expired);
    assert!(
        table
            .acquire_one_of(owner('B'), "k1", &["c1"], at(1_000))
            .is_ok()
    );
    let again = table
        .acquire_one_of(owner('A'), "k1", &["c1", "c2"], at(1_000))
        .unwrap();
    assert_eq!(
        (again.generation, again.connection),
        (generation(2), connection("c2"))
    );
}

#[test]
fn vector_sessions_10_a_renewed_lease_holds_until_its_new_expiry() {
    let mut table = Table::new();
    table.ttl_ms = 1_000;
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table.renew(owner('A'), "k1", 1, at(500)).unwrap();
    let busy = table.acquire_one_of(owner('B'), "k1", &["c1"], at(1_000));
    assert_eq!(busy, Err(capacity(1, 1)));
    assert!(
        table
            .acquire_one_of(owner('B'), "k1", &["c1"], at(1_500))
            .is_ok()
    );
}

#[rstest]
#[case::at_once(0, 120)]
#[case::later(119_500, 1)]
fn vector_sessions_11_the_only_connection_is_leased(#[case] ms: u64, #[case] seconds: u64) {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let refused = table.acquire_one_of(owner('B'), "k1", &["c1"], at(ms));
    assert_eq!(refused, Err(capacity(seconds, 1)));
}

#[test]
fn retry_after_is_of_the_first_eligible_connection_to_come_free() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table
        .acquire_one_of(owner('B'), "k1", &["c2"], at(30_000))
        .unwrap();
    table
        .acquire_one_of(owner('C'), "k1", &["c3"], at(60_000))
        .unwrap();
    let refused = table.acquire_one_of(owner('D'), "k1", &["c2", "c3"], at(60_000));
    assert_eq!(refused, Err(capacity(90, 2)));
}

#[rstest]
#[case::nothing(Eligibility::None, 409, "LEASE_NO_ELIGIBLE_CONNECTION")]
#[case::an_empty_list(Eligibility::Some(&[]), 409, "LEASE_NO_ELIGIBLE_CONNECTION")]
#[case::all_blocked(Eligibility::Blocked, 429, "LEASE_ELIGIBILITY_UNAVAILABLE")]
#[case::no_provider(Eligibility::UnknownModel, 400, "LEASE_MODEL_INVALID")]
fn vector_sessions_13_without_candidates_there_is_no_waiting_for_capacity(
    #[case] eligibility: Eligibility<'_>,
    #[case] status: u16,
    #[case] code: &str,
) {
    let mut table = Table::new();
    let before = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let refused = table
        .acquire(owner('A'), "k1", eligibility, at(1))
        .unwrap_err();
    assert_eq!((refused.status(), refused.code()), (status, code));
    assert_eq!(refused.retry_after_seconds(), None);
    assert_eq!(table.own(owner('A')), Some(&before));
}

#[test]
fn vector_sessions_14_another_key_has_no_say() {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let stale = Err(LeaseError::FenceStale);
    assert_eq!(table.renew(owner('A'), "k2", 1, at(1)), stale);
    assert_eq!(table.release(owner('A'), "k2", 1, at(1)), stale);
    assert_eq!(table.status(owner('A'), "k2", 1, at(1)), stale);
    assert_eq!(
        table.acquire_one_of(owner('A'), "k2", &["c1", "c2"], at(1)),
        stale
    );
    assert_eq!(table.own(owner('A')), Some(&lease));
    assert!(table.renew(owner('A'), "k1", 1, at(1)).is_ok());
}

#[test]
fn a_released_lease_is_told_to_nobody_else() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table.release(owner('A'), "k1", 1, at(1)).unwrap();
    let stale = Err(LeaseError::FenceStale);
    assert_eq!(table.release(owner('A'), "k2", 1, at(2)), stale);
    assert_eq!(table.release(owner('B'), "k1", 1, at(2)), stale);
    assert_eq!(table.release(owner('A'), "k1", 2, at(2)), stale);
}

#[rstest]
#[case::expired(None)]
#[case::invalidated(Some(EndReason::HealthOrCooldown))]
fn what_ended_by_itself_cannot_be_given_back(#[case] taken: Option<EndReason>) {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let now = match taken {
        Some(reason) => {
            table.write(lease.end(reason, at(1)));
            at(2)
        }
        None => lease.expires_at,
    };
    let stale = Err(LeaseError::FenceStale);
    assert_eq!(table.release(owner('A'), "k1", 1, now), stale);
    assert_eq!(table.renew(owner('A'), "k1", 1, now), stale);
    assert_eq!(table.status(owner('A'), "k1", 1, now), stale);
}

#[test]
fn status_tells_the_lease_of_now() {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    assert_eq!(table.status(owner('A'), "k1", 1, at(1)), Ok(lease));
    assert_eq!(
        table.status(owner('A'), "k1", 2, at(1)),
        Err(LeaseError::FenceStale)
    );
    assert_eq!(
        table.status(owner('B'), "k1", 1, at(1)),
        Err(LeaseError::FenceStale)
    );
}

#[test]
fn an_acquire_moves_a_lease_whose_connection_is_not_eligible() {
    let mut table = Table::new();
    let first = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let moved = table
        .acquire_one_of(owner('A'), "k1", &["c2"], at(10))
        .unwrap();
    assert_eq!(
        (moved.generation, moved.connection.as_str()),
        (generation(1), "c2")
    );
    assert_eq!(moved.expires_at, at(10 + LEASE_TTL_MS));
    let before = table.by_id(first.id);
    assert_eq!(
        before.ended.map(|ended| ended.reason),
        Some(EndReason::HealthOrCooldown)
    );
    let taken = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(11))
        .unwrap();
    assert_eq!(
        (taken.generation, taken.connection.as_str()),
        (generation(1), "c1")
    );
}

#[rstest]
#[case::others_are_free(Eligibility::Some(&eligible(&["c2"])))]
#[case::none_is_left(Eligibility::None)]
#[case::all_are_busy(Eligibility::Blocked)]
fn an_acquire_keeps_a_lease_that_is_kept_out_for_a_reason_that_passes(
    #[case] eligibility: Eligibility<'_>,
) {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    // Its own attempt in flight fills its connection.
    table.why = EndReason::of_exclusion(ExclusionReason::ConcurrencyCap);
    let again = table
        .acquire(owner('A'), "k1", eligibility, at(10))
        .unwrap();
    assert_eq!((again.id, again.generation), (lease.id, lease.generation));
    assert_eq!(again.expires_at, at(10 + LEASE_TTL_MS));
    assert_eq!(table.by_id(lease.id).ended, None);
}

#[rstest]
#[case::of_another_key("k2", Eligibility::Some(&eligible(&["c2"])), LeaseError::FenceStale)]
#[case::of_no_model("k1", Eligibility::UnknownModel, LeaseError::ModelInvalid)]
fn a_reason_that_passes_excuses_nothing_else(
    #[case] with: &str,
    #[case] eligibility: Eligibility<'_>,
    #[case] error: LeaseError,
) {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table.why = None;
    let refused = table.acquire(owner('A'), with, eligibility, at(10));
    assert_eq!(refused, Err(error));
    assert_eq!(table.own(owner('A')), Some(&lease));
}

#[test]
fn an_acquire_ends_no_more_of_what_is_overdue_than_it_needs_to() {
    let mut table = Table::new();
    let names = ["c1", "c2", "c3", "c4"];
    let before: Vec<_> = ('A'..='D')
        .map(|letter| table.acquire_one_of(owner(letter), "k1", &names, at(0)))
        .collect::<Result<_, _>>()
        .unwrap();
    table
        .acquire_one_of(owner('D'), "k1", &["c2", "c3", "c1"], at(LEASE_TTL_MS))
        .unwrap();
    let states: Vec<_> = before
        .iter()
        .map(|lease| table.by_id(lease.id).state())
        .collect();
    // The second, on the connection that it got, and the last, its own.
    let (active, expired) = (LeaseState::Active, LeaseState::Expired);
    assert_eq!(states, [active, expired, active, expired]);
}

#[test]
fn an_acquire_that_finds_nothing_free_keeps_the_lease() {
    let mut table = Table::new();
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    table
        .acquire_one_of(owner('B'), "k1", &["c2"], at(0))
        .unwrap();
    let refused = table.acquire_one_of(owner('A'), "k1", &["c2"], at(0));
    assert_eq!(refused, Err(capacity(120, 1)));
    assert_eq!(table.own(owner('A')), Some(&lease));
}

#[test]
fn vector_sessions_22_every_owner_gets_its_own_connection() {
    let names = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];
    let mut table = Table::new();
    let mut given: Vec<String> = ('A'..='I')
        .map(|letter| {
            table
                .acquire_one_of(owner(letter), "k1", &names, at(0))
                .unwrap()
        })
        .map(|lease| lease.connection.as_str().to_owned())
        .collect();
    given.sort();
    assert_eq!(given, names);
    let refused = table.acquire_one_of(owner('J'), "k1", &names, at(0));
    assert_eq!(refused, Err(capacity(120, 9)));
}

#[test]
fn a_lost_race_leads_to_the_next_candidate() {
    let mut table = Table::new();
    table
        .acquire_one_of(owner('B'), "k1", &["c2"], at(0))
        .unwrap();
    // Run again after the index said that somebody was first, the rule sees the winner's row.
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c2", "c1"], at(0))
        .unwrap();
    assert_eq!(lease.connection, connection("c1"));
}

#[rstest]
#[case::shortest(0, 1_000)]
#[case::longest(u64::MAX, 1_800_000)]
#[case::as_asked(5_000, 5_000)]
fn the_life_of_a_lease_is_bounded(#[case] asked: u64, #[case] lasts: u64) {
    let mut table = Table::new();
    table.ttl_ms = asked;
    let lease = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    assert_eq!(lease.expires_at, at(lasts));
    let renewed = table.renew(owner('A'), "k1", 1, at(1)).unwrap();
    assert_eq!(renewed.expires_at, at(1 + lasts));
}

#[test]
fn an_owner_that_ran_out_of_generations_gets_none() {
    let mut table = Table::new();
    table
        .last
        .insert(owner('A'), generation(crate::lease::MAX_GENERATION));
    let refused = table.acquire_one_of(owner('A'), "k1", &["c1"], at(0));
    assert_eq!(refused, Err(LeaseError::ServiceUnavailable));
    assert_eq!(table.own(owner('A')), None);
}

#[test]
fn a_sweep_ends_what_is_overdue_and_nothing_else() {
    let mut table = Table::new();
    let first = table
        .acquire_one_of(owner('A'), "k1", &["c1"], at(0))
        .unwrap();
    let second = table
        .acquire_one_of(owner('B'), "k1", &["c2"], at(1))
        .unwrap();
    for change in expire(&table.leases, at(LEASE_TTL_MS)) {
        table.write(change);
    }
    assert_eq!(table.by_id(first.id).state(), LeaseState::Expired);
    assert_eq!(table.by_id(second.id).state(), LeaseState::Active);
    assert_eq!(expire(&table.leases, at(LEASE_TTL_MS)), []);
}

#[test]
fn candidates_are_taken_in_the_order_of_the_strategy() {
    let mut table = Table::new();
    let candidates = eligible(&["c3", "c1", "c2"]);
    let lease = table
        .acquire(owner('A'), "k1", Eligibility::Some(&candidates), at(0))
        .unwrap();
    assert_eq!(lease.connection, connection("c3"));
}
