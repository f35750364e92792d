//! Those who wait, over replicas that come and go.

use super::*;

#[test]
fn the_queue_is_bounded_and_served_over_replicas() {
    let mut pool = Pool::default();
    let (mut here, mut there) = (Queue::default(), Queue::default());
    assert!(take(&mut pool, attempt(9, 1), 1, NOW));
    // Ten wait there, five of them from before, and ten here.
    for number in 1..=20 {
        let now = at(number);
        let (queue, name) = if (6..=15).contains(&number) {
            (&mut here, "here")
        } else {
            (&mut there, "there")
        };
        assert_eq!(
            join(queue, &pool, name, attempt(1, number), now),
            Joined::Waits
        );
        assert_eq!(queue.serve(&mut pool, name, 1, term(now)), []);
    }
    for (queue, name) in [(&mut here, "here"), (&mut there, "there")] {
        assert_eq!(
            join(queue, &pool, name, attempt(1, 21), at(21)),
            Joined::Full
        );
    }
    // Who waits already is not turned away.
    assert_eq!(
        join(&mut here, &pool, "here", attempt(1, 6), at(21)),
        Joined::Waits
    );
    assert_eq!(here.len(), 10);
    // The replica with the longest waiting one comes first, whoever asks first.
    pool.release(attempt(9, 1));
    assert_eq!(here.serve(&mut pool, "here", 1, term(at(30))), []);
    assert_eq!(
        there.serve(&mut pool, "there", 1, term(at(30))),
        [attempt(1, 1)]
    );
    // A replica that fell silent holds up nobody for longer than its word lasts.
    pool.release(attempt(1, 1));
    let silent = at(30 + WAITING_TTL_MS);
    assert_eq!(
        here.serve(&mut pool, "here", 1, term(silent)),
        [attempt(1, 6)]
    );
}

/// Decision 44: the word of how many wait in a replica expires after 3 s. So it blocks nobody for longer when it is killed.
#[test]
fn twenty_who_wait_in_a_replica_that_is_killed_block_nobody_longer_than_3_s() {
    const PROMISED_MS: u64 = 3_000;
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(9, 1), 1, NOW));
    let (mut killed, mut here) = (Queue::default(), Queue::default());
    for number in 1..=20 {
        let joined = join(&mut killed, &pool, "killed", attempt(1, number), NOW);
        assert_eq!(joined, Joined::Waits);
    }
    // Some time before its end it said so for the last time; at its end it could not say more.
    assert_eq!(killed.serve(&mut pool, "killed", 1, term(at(10))), []);
    pool.release(attempt(9, 1));
    // One of them asks again here, as all of them do.
    let who = (attempt(1, 20), Claim(1));
    let again = here.join(&pool, "here", who, terms(10), at(20));
    assert_eq!(again, Joined::Waits);
    let last = at(10 + PROMISED_MS - 1);
    assert_eq!(here.serve(&mut pool, "here", 1, term(last)), []);
    let over = at(10 + PROMISED_MS);
    assert_eq!(
        here.serve(&mut pool, "here", 1, term(over)),
        [attempt(1, 20)]
    );
}

/// Forty wait in a replica that is killed, and ask another one at once.
#[test]
fn who_stood_in_line_in_a_replica_that_died_is_not_counted_against_itself() {
    let many = WaitTerms {
        depth: 40,
        ..terms(0)
    };
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(9, 1), 1, NOW));
    let (mut dead, mut other) = (Queue::default(), Queue::default());
    for number in 1..=40 {
        let who = (attempt(1, number), Claim(1));
        assert_eq!(
            dead.join(&pool, "dead", who, many, at(number)),
            Joined::Waits
        );
        assert_eq!(dead.serve(&mut pool, "dead", 1, term(at(number))), []);
    }
    let newcomer = (attempt(2, 1), Claim(1));
    let now = at(1_000);
    assert_eq!(
        other.join(&pool, "other", newcomer, many, now),
        Joined::Full
    );
    // Not in the order in which they stood there.
    for number in (1..=40).rev() {
        let who = (attempt(3, number), Claim(1));
        let again = WaitTerms {
            waited_ms: 1_000 - number,
            ..many
        };
        assert_eq!(other.join(&pool, "other", who, again, now), Joined::Waits);
    }
    let who = (attempt(3, 41), Claim(1));
    let again = WaitTerms {
        waited_ms: 1,
        ..many
    };
    assert_eq!(other.join(&pool, "other", who, again, now), Joined::Full);
    // They are served in the order in which they stood there, once the word of the dead one is over.
    pool.release(attempt(9, 1));
    let over = at(40 + WAITING_TTL_MS);
    assert_eq!(
        other.serve(&mut pool, "other", 1, term(over)),
        [attempt(3, 1)]
    );
}

#[test]
fn a_wait_goes_on_in_another_replica_where_it_was() {
    let pool = Pool::default();
    let mut queue = Queue::default();
    assert_eq!(
        join(&mut queue, &pool, "a", attempt(1, 1), at(0)),
        Joined::Waits
    );
    let who = (attempt(2, 1), Claim(1));
    queue.join(&pool, "a", who, terms(29_000), at(1));
    assert_eq!(queue.take_ended(at(1_000)), []);
    assert_eq!(queue.take_ended(at(1_001)), [attempt(2, 1)]);
    // Who says that it waited longer than anybody may has waited that long.
    let who = (attempt(2, 2), Claim(1));
    queue.join(&pool, "a", who, terms(u64::MAX), at(1_001));
    assert_eq!(queue.take_ended(at(1_001)), [attempt(2, 2)]);
    assert_eq!(queue.take_ended(at(30_000)), [attempt(1, 1)]);
}

#[test]
fn a_word_that_is_taken_back_holds_up_nobody() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    assert!(gate.pool.tells_of_waiting("a", at(1)));
    assert!(!gate.pool.tells_of_waiting("b", at(1)));
    assert!(!gate.pool.tells_of_waiting("a", at(WAITING_TTL_MS)));
    gate.pool.release(attempt(1, 1));
    assert!(!take(&mut gate.pool, attempt(3, 1), 1, at(1)));
    gate.queue.leave(attempt(1, 2));
    assert_eq!(gate.serve(at(1)), []);
    assert!(!gate.pool.tells_of_waiting("a", at(1)));
    assert!(take(&mut gate.pool, attempt(3, 1), 1, at(1)));
}

#[test]
fn waiting_alone_changes_the_value_twice_in_its_words_time() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    let mut changes = 0;
    for ms in (0..WAITING_TTL_MS).step_by(25) {
        let before = gate.pool.clone();
        assert_eq!(gate.serve(at(ms)), []);
        changes += u32::from(gate.pool != before);
    }
    assert_eq!(changes, 1);
}
