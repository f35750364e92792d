//! What is given out while the shared pool cannot be reached.

use super::*;

#[rstest]
#[case::even(10, 2, 5)]
#[case::rounded_down(7, 2, 3)]
#[case::at_least_one(1, 10, 1)]
#[case::nobody_known(4, 0, 4)]
fn a_share_is_a_part_of_the_cap(#[case] cap: u32, #[case] planes: u32, #[case] expected: u32) {
    assert_eq!(share(cap, planes), expected);
}

#[test]
fn shares_are_counted_per_data_plane() {
    let mut shares = Shares::default();
    let mut take = |who, replaces| {
        let has_room = shares.has_room(who, replaces, 1, NOW);
        let taken = shares.acquire((who, Claim(1)), replaces, 1, term(NOW));
        assert_eq!(has_room, taken);
        taken
    };
    assert!(take(attempt(1, 1), None));
    assert!(!take(attempt(1, 2), None));
    assert!(take(attempt(1, 2), Some(attempt(1, 1))));
    assert!(take(attempt(2, 1), None));
    let mut queue = Queue::default();
    let nobody = Pool::default();
    join(&mut queue, &nobody, "a", attempt(1, 3), NOW);
    join(&mut queue, &nobody, "a", attempt(3, 1), NOW);
    assert_eq!(
        queue.serve_shares(&mut shares, 1, term(NOW)),
        [attempt(3, 1)]
    );
}

#[test]
fn what_was_held_before_counts_towards_the_share_until_it_ends() {
    let mut pool = Pool::default();
    for number in [1, 2] {
        assert!(take(&mut pool, attempt(1, number), 2, NOW));
    }
    let mut shares = Shares::default();
    shares.begin(&pool);
    let acquire = |shares: &mut Shares, number, now| {
        shares.acquire((attempt(1, number), Claim(1)), None, 2, term(now))
    };
    assert!(!acquire(&mut shares, 3, at(1)));
    // Who held one has it, once.
    assert!(acquire(&mut shares, 1, at(1)));
    assert!(!acquire(&mut shares, 3, at(1)));
    // What is renewed outlives its first end; what was not, ends.
    shares.renew(
        PlaneIncarnation(1),
        &BTreeSet::from([1, 2]),
        3,
        term(at(10_000)),
    );
    assert!(!acquire(&mut shares, 3, at(PERMIT_TTL_MS)));
    shares.release(attempt(1, 1));
    assert!(acquire(&mut shares, 3, at(PERMIT_TTL_MS)));
    assert!(acquire(&mut shares, 4, at(10_000 + PERMIT_TTL_MS)));
}

#[test]
fn what_was_given_out_meanwhile_counts_when_the_store_is_back() {
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(1, 1), 1, NOW));
    let mut shares = Shares::default();
    shares.begin(&pool);
    assert!(shares.acquire((attempt(2, 1), Claim(7)), None, 1, term(at(1))));
    shares.hand_over(&mut pool, at(2));
    assert_eq!(pool.held(at(2)), 2);
    pool.release(attempt(1, 1));
    assert!(!take(&mut pool, attempt(1, 2), 1, at(3)));
    assert!(pool.take_back(attempt(2, 1), Claim(7)));
    assert!(take(&mut pool, attempt(1, 2), 1, at(4)));
    // What ended there meanwhile is not brought back by what was known of before.
    assert_eq!(pool.held(at(4)), 1);
}

#[test]
fn no_more_is_handed_over_than_a_value_holds() {
    let mut shares = Shares::default();
    for number in 0..u64::from(MAX_PERMITS) + 10 {
        assert!(shares.acquire((attempt(1, number), Claim(1)), None, u32::MAX, term(NOW)));
    }
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(2, 1), 1, NOW));
    shares.hand_over(&mut pool, NOW);
    assert_eq!(pool.held(NOW), MAX_PERMITS);
}
