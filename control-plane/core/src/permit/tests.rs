mod queue;
mod shares;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rstest::rstest;

use crate::ids::{AttemptId, ConnectionId, PlaneIncarnation, ProviderId};
use crate::time::Timestamp;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);
/// `queueDepth` and `queueTimeoutMs` unless set (`routing.md` §1.5).
const DEPTH: u32 = 20;
const TIMEOUT_MS: u64 = 30_000;

fn at(ms: u64) -> Timestamp {
    NOW.plus_ms(ms)
}

fn term(now: Timestamp) -> Term {
    Term {
        now,
        ttl_ms: PERMIT_TTL_MS,
    }
}

fn attempt(plane: u64, number: u64) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(plane),
        number,
    }
}

fn take(pool: &mut Pool, who: AttemptId, cap: u32, now: Timestamp) -> bool {
    let has_room = pool.has_room(who, None, cap, Asker::Newcomer, now);
    let taken = pool.acquire(who, None, cap, Asker::Newcomer, term(now));
    assert_eq!(has_room, taken);
    taken
}

/// Terms of one that waited so long in a replica that is gone.
fn terms(waited_ms: u64) -> WaitTerms {
    WaitTerms {
        depth: DEPTH,
        timeout_ms: TIMEOUT_MS,
        waited_ms,
    }
}

fn join(queue: &mut Queue, pool: &Pool, replica: &str, who: AttemptId, now: Timestamp) -> Joined {
    queue.join(pool, replica, (who, Claim(1)), terms(0), now)
}

/// One data plane, one replica, requests one after the other.
struct Gate {
    pool: Pool,
    queue: Queue,
    cap: u32,
}

/// How a request stands at the gate of a quota pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Holds,
    Waits,
    /// It goes on without a permit.
    Unheld,
}

impl Gate {
    fn new(cap: u32) -> Self {
        Self {
            pool: Pool::default(),
            queue: Queue::default(),
            cap,
        }
    }

    fn request(&mut self, number: u64, now: Timestamp) -> Stands {
        let who = attempt(1, number);
        if take(&mut self.pool, who, self.cap, now) {
            return Stands::Holds;
        }
        match join(&mut self.queue, &self.pool, "a", who, now) {
            Joined::Full => Stands::Unheld,
            Joined::Waits => {
                let granted = self.queue.serve(&mut self.pool, "a", self.cap, term(now));
                assert_eq!(granted, []);
                Stands::Waits
            }
        }
    }

    fn serve(&mut self, now: Timestamp) -> Vec<AttemptId> {
        let granted = self.queue.serve(&mut self.pool, "a", self.cap, term(now));
        for who in &granted {
            self.queue.leave(*who);
        }
        granted
    }
}

#[test]
fn vector_routing_v_sm1_the_second_waits_for_the_first() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    assert_eq!(gate.serve(at(5_000)), []);
    assert!(gate.pool.release(attempt(1, 1)));
    assert_eq!(gate.serve(at(5_001)), [attempt(1, 2)]);
    assert_eq!(gate.pool.held(at(5_001)), 1);
}

#[test]
fn vector_routing_v_sm2_one_runs_twenty_wait_and_one_goes_without() {
    let mut gate = Gate::new(1);
    let stands: Vec<Stands> = (1..=22).map(|number| gate.request(number, at(0))).collect();
    let count = |wanted| stands.iter().filter(|stands| **stands == wanted).count();
    assert_eq!(
        (
            count(Stands::Holds),
            count(Stands::Waits),
            count(Stands::Unheld)
        ),
        (1, 20, 1)
    );
    assert_eq!(stands.last(), Some(&Stands::Unheld));
    assert_eq!(gate.pool.held(at(0)), 1);
}

#[test]
fn vector_routing_v_sm3_who_waited_thirty_seconds_goes_without() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    // The holder runs for 31 seconds and is renewed meanwhile.
    for ms in [10_000, 20_000, 29_999] {
        let held = BTreeSet::from([1]);
        gate.pool.renew(PlaneIncarnation(1), &held, 2, term(at(ms)));
        assert_eq!(gate.serve(at(ms)), []);
    }
    assert_eq!(gate.queue.take_ended(at(29_999)), []);
    assert_eq!(gate.queue.take_ended(at(30_000)), [attempt(1, 2)]);
    assert!(gate.queue.is_empty());
    assert!(gate.pool.holds(attempt(1, 1), at(31_000)));
}

#[test]
fn vector_sessions_39_a_permit_taken_or_given_back_twice_is_one() {
    let mut pool = Pool::default();
    for _ in 0..3 {
        assert!(take(&mut pool, attempt(1, 1), 2, NOW));
    }
    assert_eq!(pool.held(NOW), 1);
    assert!(pool.release(attempt(1, 1)));
    assert!(!pool.release(attempt(1, 1)));
    assert_eq!(pool.held(NOW), 0);
}

#[test]
fn vector_sessions_39_a_permit_that_is_given_back_twice_is_one_place() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    assert!(gate.pool.release(attempt(1, 1)));
    assert!(!gate.pool.release(attempt(1, 1)));
    assert_eq!(gate.serve(at(1)), [attempt(1, 2)]);
    assert!(!gate.pool.release(attempt(1, 1)));
    assert_eq!(gate.request(3, at(2)), Stands::Waits);
    assert_eq!(gate.pool.held(at(2)), 1);
}

#[test]
fn a_retry_takes_the_permit_of_the_attempt_before_it_also_past_those_who_wait() {
    let mut gate = Gate::new(1);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Waits);
    let (retry, before) = (attempt(1, 3), attempt(1, 1));
    let asker = Asker::Newcomer;
    assert!(
        gate.pool
            .acquire(retry, Some(before), 1, asker, term(at(1)))
    );
    assert!(gate.pool.holds(retry, at(1)) && !gate.pool.holds(before, at(1)));
    // Of an attempt that holds none it is an ordinary wish.
    let (other, none) = (attempt(1, 5), attempt(1, 4));
    assert!(!gate.pool.acquire(other, Some(none), 1, asker, term(at(1))));
}

#[test]
fn a_smaller_cap_lets_nobody_in_before_enough_have_left() {
    let mut pool = Pool::default();
    for number in 1..=3 {
        assert!(take(&mut pool, attempt(1, number), 3, NOW));
    }
    assert!(!take(&mut pool, attempt(1, 4), 1, NOW));
    let handed_over = pool.acquire(
        attempt(1, 5),
        Some(attempt(1, 1)),
        1,
        Asker::Newcomer,
        term(NOW),
    );
    assert!(!handed_over);
    pool.release(attempt(1, 1));
    pool.release(attempt(1, 2));
    assert!(!take(&mut pool, attempt(1, 4), 1, NOW));
    pool.release(attempt(1, 3));
    assert!(take(&mut pool, attempt(1, 4), 1, NOW));
}

#[test]
fn renewal_keeps_what_is_named_frees_the_rest_and_adds_nothing() {
    let mut pool = Pool::default();
    for number in [1, 2, 3, 9] {
        assert!(take(&mut pool, attempt(1, number), 10, NOW));
    }
    assert!(take(&mut pool, attempt(2, 1), 10, NOW));
    let keep = BTreeSet::from([2, 3, 4]);
    pool.renew(PlaneIncarnation(1), &keep, 5, term(at(10_000)));
    // 1 ended without a word, 4 never held one, 9 is newer than the message.
    let holds = |number| pool.holds(attempt(1, number), at(10_000));
    let held: Vec<u64> = (1..=9).filter(|number| holds(*number)).collect();
    assert_eq!(held, [2, 3, 9]);
    assert!(pool.holds(attempt(2, 1), at(10_000)));
    // Only what was renewed outlives the first end.
    assert_eq!(pool.held(at(PERMIT_TTL_MS)), 2);
    assert_eq!(pool.held(at(10_000 + PERMIT_TTL_MS)), 0);
    // What has ended is not brought back.
    pool.renew(
        PlaneIncarnation(1),
        &keep,
        9,
        term(at(10_000 + PERMIT_TTL_MS)),
    );
    assert_eq!(pool, Pool::default());
}

#[test]
fn a_dead_data_planes_permits_end() {
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(1, 1), 1, NOW));
    assert!(!take(&mut pool, attempt(2, 1), 1, at(PERMIT_TTL_MS - 1)));
    assert!(take(&mut pool, attempt(2, 1), 1, at(PERMIT_TTL_MS)));
}

#[test]
fn who_did_not_wait_takes_only_what_nobody_waits_for() {
    let mut gate = Gate::new(2);
    assert_eq!(gate.request(1, at(0)), Stands::Holds);
    assert_eq!(gate.request(2, at(0)), Stands::Holds);
    assert_eq!(gate.request(3, at(1)), Stands::Waits);
    gate.pool.release(attempt(1, 1));
    assert!(!take(&mut gate.pool, attempt(1, 4), 2, at(2)));
    gate.pool.release(attempt(1, 2));
    assert!(take(&mut gate.pool, attempt(1, 4), 2, at(2)));
    assert_eq!(gate.serve(at(3)), [attempt(1, 3)]);
}

#[test]
fn a_pool_is_stored_in_a_form_that_people_can_read() {
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(7, 3), 1, NOW));
    pool.tell_waiting("cp-1", 2, at(1), at(2));
    let (provider, connection) = (
        ProviderId::new("openai").unwrap(),
        ConnectionId::new("Main").unwrap(),
    );
    let key = key_text(&provider, &connection);
    assert_eq!(key, "m:openai/Main");
    let payload = encode(&key, &pool).unwrap();
    assert_eq!(
        std::str::from_utf8(&payload).unwrap(),
        "{\"holders\":{\"7\":{\"3\":1030000}},\
         \"waiting\":{\"cp-1\":{\"count\":2,\"since\":1000001,\"until\":1003002}}}"
    );
    assert_eq!(decode(&key, POOL_SCHEMA, &payload).unwrap(), pool);
    assert!(decode(&key, POOL_SCHEMA + 1, &payload).is_err());
    assert!(decode(&key, POOL_SCHEMA, b"[1]").is_err());
    assert_eq!(decode(&key, POOL_SCHEMA, b"{}").unwrap(), Pool::default());
}

#[test]
fn the_largest_pool_fits_into_a_value() {
    let mut pool = Pool::default();
    for number in 0..u64::from(MAX_PERMITS) {
        let who = AttemptId {
            plane: PlaneIncarnation(u64::MAX - number % 64),
            number: 1_000_000_000_000 + number,
        };
        assert!(take(
            &mut pool,
            who,
            MAX_PERMITS,
            Timestamp(1_900_000_000_000)
        ));
    }
    let bytes = encode("m:p/c", &pool).unwrap().len();
    assert!(bytes < 256 * 1024, "{bytes}");
}

/// What happens to a pool.
#[derive(Clone, Debug)]
enum Step {
    Acquire(AttemptId),
    HandOver(AttemptId, AttemptId),
    Release(AttemptId),
    Renew(u64, BTreeSet<u64>, u64),
    Wait(AttemptId),
    Serve,
    Pass(u64),
}

fn an_attempt() -> impl Strategy<Value = AttemptId> {
    (1_u64..=3, 1_u64..=8).prop_map(|(plane, number)| attempt(plane, number))
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        an_attempt().prop_map(Step::Acquire),
        (an_attempt(), an_attempt()).prop_map(|(one, other)| Step::HandOver(one, other)),
        an_attempt().prop_map(Step::Release),
        (
            1_u64..=3,
            prop::collection::btree_set(1_u64..=8, 0..4),
            0_u64..=8
        )
            .prop_map(|(plane, keep, newest)| Step::Renew(plane, keep, newest)),
        an_attempt().prop_map(Step::Wait),
        Just(Step::Serve),
        (1_u64..20_000).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn permits_out_are_those_of_the_model_and_never_more_than_the_cap(
        cap in 1_u32..=4,
        steps in prop::collection::vec(a_step(), 1..80),
    ) {
        let mut pool = Pool::default();
        let mut queue = Queue::default();
        // Who holds one, and until when.
        let mut model: BTreeMap<AttemptId, Timestamp> = BTreeMap::new();
        let mut now = NOW;
        for step in steps {
            model.retain(|_, until| *until > now);
            let end = now.plus_ms(PERMIT_TTL_MS);
            match step {
                Step::Acquire(who) => {
                    let room = model.contains_key(&who) || model.len() < cap as usize;
                    let granted = take(&mut pool, who, cap, now);
                    // Those who wait may have what is free.
                    prop_assert!(room || !granted);
                    prop_assert!(granted || !room || !queue.is_empty());
                    if granted {
                        model.insert(who, end);
                    }
                }
                Step::HandOver(who, old) => {
                    let had = model.contains_key(&old) && who != old;
                    if pool.acquire(who, Some(old), cap, Asker::Newcomer, term(now)) {
                        model.remove(&old);
                        model.insert(who, end);
                    } else {
                        prop_assert!(!had && !model.contains_key(&who));
                    }
                }
                Step::Release(who) => {
                    prop_assert!(pool.release(who) || !model.contains_key(&who));
                    model.remove(&who);
                }
                Step::Renew(plane, keep, newest) => {
                    let plane = PlaneIncarnation(plane);
                    pool.renew(plane, &keep, newest, term(now));
                    model.retain(|who, until| {
                        if who.plane != plane {
                            return true;
                        }
                        if keep.contains(&who.number) {
                            *until = end;
                        }
                        keep.contains(&who.number) || who.number > newest
                    });
                }
                Step::Wait(who) => {
                    join(&mut queue, &pool, "a", who, now);
                }
                Step::Serve => {
                    queue.take_ended(now);
                    let before = queue.len();
                    let granted = queue.serve(&mut pool, "a", cap, term(now));
                    for who in &granted {
                        queue.leave(*who);
                        model.insert(*who, end);
                    }
                    let free = (cap as usize).saturating_sub(model.len());
                    prop_assert!(free == 0 || queue.is_empty(), "{before} {granted:?}");
                }
                Step::Pass(ms) => now = now.plus_ms(ms),
            }
            model.retain(|_, until| *until > now);
            prop_assert!(model.len() <= cap as usize);
            prop_assert_eq!(pool.held(now) as usize, model.len());
            for who in model.keys() {
                prop_assert!(pool.holds(*who, now));
            }
            let stored = encode("m:p/c", &pool).unwrap();
            prop_assert_eq!(&decode("m:p/c", POOL_SCHEMA, &stored).unwrap(), &pool);
        }
    }
}

/// Two replicas grant the same permit, and one of them takes it back because nobody heard of it.
#[rstest]
#[case::the_late_one_came_second([1, 2], 2)]
#[case::the_late_one_came_first([1, 2], 1)]
fn a_permit_stays_while_somebody_has_heard_of_it(#[case] claims: [u32; 2], #[case] unheard: u32) {
    let mut pool = Pool::default();
    let who = attempt(1, 1);
    for claim in claims {
        assert!(take(&mut pool, who, 1, NOW));
        pool.claim(who, Claim(claim));
    }
    assert!(!pool.take_back(who, Claim(unheard)));
    assert!(pool.holds(who, NOW));
    assert!(!pool.take_back(who, Claim(unheard)), "taken back twice");
    assert!(pool.holds(who, NOW));
    let heard = 3 - unheard;
    assert!(pool.take_back(who, Claim(heard)));
    assert_eq!(pool.held(NOW), 0);
}

#[rstest]
#[case::released(|pool: &mut Pool| _ = pool.release(attempt(1, 1)))]
#[case::forgotten_by_its_data_plane(|pool: &mut Pool| {
    pool.renew(PlaneIncarnation(1), &BTreeSet::new(), 9, term(NOW));
})]
#[case::ended(|pool: &mut Pool| pool.prune(at(PERMIT_TTL_MS)))]
#[case::handed_over(|pool: &mut Pool| {
    assert!(pool.acquire(attempt(1, 2), Some(attempt(1, 1)), 1, Asker::Newcomer, term(NOW)));
    assert!(pool.release(attempt(1, 2)));
})]
fn claims_end_with_the_permit(#[case] end: fn(&mut Pool)) {
    let mut pool = Pool::default();
    assert!(take(&mut pool, attempt(1, 1), 1, NOW));
    pool.claim(attempt(1, 1), Claim(1));
    end(&mut pool);
    assert_eq!(pool, Pool::default());
    // Nobody holds it, so there is nothing to claim or to take back.
    pool.claim(attempt(1, 1), Claim(2));
    assert!(!pool.take_back(attempt(1, 1), Claim(1)));
    assert_eq!(pool, Pool::default());
}

#[test]
fn claims_are_bounded() {
    let mut pool = Pool::default();
    let who = attempt(1, 1);
    assert!(take(&mut pool, who, 1, NOW));
    for claim in 0..100 {
        pool.claim(who, Claim(claim));
    }
    let at_the_limit = u32::try_from(MAX_CLAIMS).unwrap();
    assert!(!pool.take_back(who, Claim(at_the_limit)), "it was not kept");
    for claim in 1..at_the_limit {
        assert!(!pool.take_back(who, Claim(claim)));
    }
    assert!(pool.take_back(who, Claim(0)));
}

#[test]
fn a_permit_lasts_as_long_as_the_settings_say_when_it_is_taken_and_renewed() {
    let short = |ms| Term {
        now: at(ms),
        ttl_ms: 1_000,
    };
    let mut pool = Pool::default();
    assert!(pool.acquire(attempt(1, 1), None, 1, Asker::Newcomer, short(0)));
    assert_eq!((pool.held(at(999)), pool.held(at(1_000))), (1, 0));
    pool.renew(PlaneIncarnation(1), &BTreeSet::from([1]), 1, short(900));
    assert_eq!((pool.held(at(1_899)), pool.held(at(1_900))), (1, 0));
    pool.renew(
        PlaneIncarnation(1),
        &BTreeSet::from([1]),
        1,
        term(at(1_800)),
    );
    assert_eq!(pool.held(at(31_799)), 1);
}

#[test]
fn holders_and_queues_are_told_as_long_as_they_are_true_and_clearing_leaves_who_waits() {
    let mut pool = Pool::default();
    for number in 1..=2 {
        assert!(take(&mut pool, attempt(1, number), 9, at(number)));
    }
    assert!(take(&mut pool, attempt(2, 1), 9, at(5)));
    pool.tell_waiting("a", 3, at(1), at(5));
    let held: Vec<_> = pool.holders(at(6)).collect();
    let (one, two) = (PlaneIncarnation(1), PlaneIncarnation(2));
    let until = |ms: u64| at(ms + PERMIT_TTL_MS);
    assert_eq!(held, [(one, 2, until(2)), (two, 1, until(5))]);
    assert_eq!(pool.queues(at(6)).collect::<Vec<_>>(), [("a", 3, at(1))]);
    // At its very end a permit is out no more, and the word of a replica is true no more.
    let left: Vec<_> = pool.holders(until(2)).collect();
    assert_eq!(left, [(two, 1, until(5))]);
    assert_eq!(pool.queues(at(5 + WAITING_TTL_MS)).count(), 0);
    assert_eq!(pool.clear(at(6)), 3);
    assert_eq!((pool.held(at(6)), pool.holders(at(6)).count()), (0, 0));
    assert_eq!(pool.queues(at(6)).count(), 1);
    // Nobody brings back what was forgotten.
    pool.renew(one, &BTreeSet::from([1, 2]), 2, term(at(7)));
    assert_eq!(pool.held(at(7)), 0);
    assert_eq!(pool.clear(at(7)), 0);
}
