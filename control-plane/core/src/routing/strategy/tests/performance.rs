//! `p2c` and `least-used` (`routing.md` §8.6, §8.8), and candidates that telemetry has no room for.

use rstest::rstest;

use super::super::p2c::two_of;
use super::*;

const HALF_OPEN: Phase = Phase::HalfOpen { probe_out: false };
const OPEN: Phase = Phase::Open {
    retry_after_ms: 1_000,
};

fn performance(success_rate: f64, mean_latency_ms: f64) -> Performance {
    Performance {
        requests: 100,
        success_rate: Some(success_rate),
        mean_latency_ms,
        ..Performance::default()
    }
}

/// The targets A to D of §8.6.
fn stage() -> Stage {
    let mut stage = Stage::of("ABCD");
    for (letter, known) in [
        ('A', performance(0.95, 990.0)),
        ('B', performance(0.99, 9_990.0)),
        ('D', performance(1.0, 490.0)),
    ] {
        stage.set_performance(letter, known);
    }
    stage.actor('D').phase = HALF_OPEN;
    stage
}

/// The stage with only these targets, drawn as given.
fn drawn(stage: &mut Stage, letters: &str, first: char, second: char) {
    stage.actors.retain(|actor| letters.contains(&actor.key));
    let count = stage.actors.len();
    let wanted = (stage.position(first), stage.position(second));
    stage.seed = stage.seed_where(|random| two_of(random, count) == wanted);
}

#[rstest]
#[case::vector_routing_v_2c1("ABC", 'A', 'B', "ABC")]
#[case::vector_routing_v_2c2("ABC", 'C', 'B', "BAC")]
#[case::the_loser_stays_where_it_is("ABCD", 'C', 'D', "DABC")]
#[case::half_open_costs_a_quarter("ABCD", 'D', 'B', "BACD")]
#[case::half_open_and_fast_beats_unknown("ABCD", 'D', 'C', "DABC")]
fn the_better_of_two_is_first(
    #[case] letters: &str,
    #[case] first: char,
    #[case] second: char,
    #[case] expected: &str,
) {
    let mut stage = stage();
    drawn(&mut stage, letters, first, second);
    assert_eq!(stage.written(Strategy::P2c), expected);
}

#[test]
fn vector_routing_v_2c3() {
    let mut stage = Stage::of("ABC");
    drawn(&mut stage, "ABC", 'B', 'A');
    assert_eq!(stage.written(Strategy::P2c), "BAC");
    drawn(&mut stage, "ABC", 'A', 'B');
    assert_eq!(stage.written(Strategy::P2c), "ABC");
}

#[test]
fn vector_routing_v_2c4() {
    let mut stage = stage();
    stage.actor('A').phase = OPEN;
    drawn(&mut stage, "ABC", 'A', 'C');
    assert_eq!(stage.written(Strategy::P2c), "CAB");
}

#[test]
fn pairs_are_drawn_evenly_and_never_twice_the_same() {
    let mut random = Random::new(5);
    let mut pairs: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    for _ in 0..6_000 {
        *pairs.entry(two_of(&mut random, 3)).or_default() += 1;
    }
    assert_eq!(pairs.len(), 6);
    for ((first, second), times) in pairs {
        assert_ne!(first, second);
        assert!((880..=1_120).contains(&times), "{times}");
    }
    assert_eq!(Stage::of("A").written(Strategy::P2c), "A");
}

#[rstest]
#[case::no_number(performance(f64::NAN, f64::NAN))]
#[case::no_latency(performance(f64::INFINITY, f64::INFINITY))]
#[case::nothing_counted(Performance { requests: 0, ..Performance::default() })]
#[case::ended_without_a_verdict(Performance { requests: 1, ..Performance::default() })]
fn what_says_nothing_is_unknown(#[case] known: Performance) {
    let mut stage = Stage::of("AB");
    stage.set_performance('A', known);
    // As good as B, of which nothing is known: neither beats the other.
    drawn(&mut stage, "AB", 'A', 'B');
    assert_eq!(stage.written(Strategy::P2c), "AB");
    drawn(&mut stage, "AB", 'B', 'A');
    assert_eq!(stage.written(Strategy::P2c), "BA");
}

#[test]
fn what_only_fails_is_worse_than_unknown() {
    let mut stage = Stage::of("AB");
    stage.set_performance('A', performance(0.0, 0.0));
    drawn(&mut stage, "AB", 'A', 'B');
    assert_eq!(stage.written(Strategy::P2c), "BA");
}

#[test]
fn accounts_are_compared_by_their_own_performance() {
    let mut stage = Stage::accounts("AB");
    stage.actor('A').performance = Some(performance(0.5, 5_000.0));
    stage.actor('B').performance = Some(performance(0.9, 500.0));
    stage.set_performance('A', performance(1.0, 1.0));
    drawn(&mut stage, "AB", 'A', 'B');
    assert_eq!(stage.written(Strategy::P2c), "BA");
}

#[rstest]
#[case::vector_routing_v_lu1(&[('A', 10), ('B', 3), ('C', 3)], "BCA")]
#[case::vector_routing_v_lu2(&[], "ABC")]
#[case::never_counted_is_none(&[('A', 1), ('C', 2)], "BAC")]
fn the_least_used_is_first(#[case] counts: &[(char, u64)], #[case] expected: &str) {
    let mut stage = Stage::of("ABC");
    for (letter, count) in counts {
        stage.actor(*letter).target_requests = Some(*count);
    }
    assert_eq!(stage.written(Strategy::LeastUsed), expected);
}

/// How often each of A to D is first in 4,000 orders: A and B are counted, there is no room to count C and D.
fn firsts(stage: &mut Stage, strategy: Strategy) -> [u32; 4] {
    stage.actor('C').left_out = true;
    stage.actor('D').left_out = true;
    let mut firsts = [0; 4];
    for seed in 0..4_000 {
        stage.seed = seed;
        let first = match stage.scope {
            Scope::Combo(_) => stage.head(strategy),
            Scope::Accounts(_) => stage.walked(strategy)[0],
        };
        firsts[first] += 1;
    }
    firsts
}

#[test]
fn what_there_is_no_room_to_count_is_first_as_often_as_its_share() {
    let mut targets = Stage::of("ABCD");
    targets.actor('A').target_requests = Some(1_000);
    targets.actor('B').target_requests = Some(999);
    let mut accounts = Stage::accounts("ABCD");
    accounts.actor('A').connection_requests = 1_000;
    accounts.actor('B').connection_requests = 999;
    for stage in [&mut targets, &mut accounts] {
        let [a, b, c, d] = firsts(stage, Strategy::LeastUsed);
        assert_eq!(a, 0);
        for (count, share) in [(b, 2_000), (c, 1_000), (d, 1_000)] {
            assert!(count.abs_diff(share) < 120, "{count} of {share}");
        }
    }
}

#[test]
fn whose_quota_there_is_no_room_for_is_first_as_often_as_its_share() {
    let mut stage = Stage::accounts("ABCD");
    for (letter, used) in [('A', 0.9), ('B', 0.5)] {
        stage.actor(letter).quota = Some(QuotaSnapshot {
            used: Some(Finite::new(used).unwrap()),
            ..seen()
        });
    }
    let [a, b, c, d] = firsts(&mut stage, Strategy::Headroom);
    assert_eq!(a, 0);
    for (count, share) in [(b, 2_000), (c, 1_000), (d, 1_000)] {
        assert!(count.abs_diff(share) < 120, "{count} of {share}");
    }
}

#[test]
fn vector_routing_v_lu3() {
    // Two accounts of one model, first as targets of a combo, then as accounts of an unpinned target.
    let mut targets = Stage::accounts("AB");
    targets.scope = Stage::of("A").scope;
    targets.actor('A').target_requests = Some(5);
    targets.actor('B').target_requests = Some(0);
    assert_eq!(targets.written(Strategy::LeastUsed), "BA");
    let mut accounts = Stage::accounts("AB");
    accounts.actor('A').connection_requests = 5;
    accounts.actor('B').target_requests = Some(9);
    assert_eq!(accounts.written(Strategy::LeastUsed), "BA");
}

/// With half of the accounts excluded, the others share what comes evenly.
#[test]
fn accounts_are_drawn_among_those_that_can_be_used() {
    let letters: String = ('A'..='T').collect();
    let mut stage = Stage::accounts(&letters);
    for actor in &mut stage.actors[..10] {
        actor.eligible = false;
    }
    let mut used: BTreeMap<usize, u32> = BTreeMap::new();
    for seed in 0..10_000 {
        stage.seed = seed;
        *used.entry(stage.walked(Strategy::P2c)[0]).or_default() += 1;
    }
    assert_eq!(used.len(), 10);
    assert!(
        used.values().all(|times| (850..1_150).contains(times)),
        "{used:?}"
    );

    // The only one that is left, and nobody.
    for actor in &mut stage.actors[..19] {
        actor.eligible = false;
    }
    assert_eq!(stage.walked(Strategy::P2c)[0], 19);
    stage.actors[19].eligible = false;
    assert_eq!(stage.walked(Strategy::P2c).len(), 20);
}

#[rstest]
#[case::alone("", "ABC")]
#[case::sent_to_the_first("A", "BCA")]
#[case::behind_equals("AABB", "CAB")]
fn what_was_sent_just_now_counts_as_used(#[case] sent: &str, #[case] expected: &str) {
    let mut targets = Stage::of("ABC");
    let mut accounts = Stage::accounts("ABC");
    for letter in sent.chars() {
        let key = letter.to_string();
        let account = accounts.actor(letter).connection.clone().unwrap();
        *targets.counters.sent_to_targets.entry(key).or_default() += 1;
        *accounts.counters.sent.entry(account).or_default() += 1;
    }
    assert_eq!(targets.written(Strategy::LeastUsed), expected);
    assert_eq!(accounts.written(Strategy::LeastUsed), expected);
}

proptest::proptest! {
    /// Who is first of many accounts is found without putting all of them in order.
    #[test]
    fn the_least_used_account_is_the_first_of_the_order_that_can_be_used(
        known in proptest::collection::vec((0..6_u64, 0..4_u32, proptest::bool::ANY), 1..20),
    ) {
        let letters: String = ('A'..).take(known.len()).collect();
        let mut stage = Stage::accounts(&letters);
        for (letter, (requests, sent, eligible)) in letters.chars().zip(known) {
            let actor = stage.actor(letter);
            actor.connection_requests = requests;
            actor.eligible = eligible;
            let account = actor.connection.clone().unwrap();
            stage.counters.sent.insert(account, sent);
        }
        let order = stage.order(Strategy::LeastUsed).unwrap().order;
        let wanted = order.into_iter().find(|position| stage.actors[*position].eligible);
        if let Some(wanted) = wanted {
            proptest::prop_assert_eq!(stage.walked(Strategy::LeastUsed)[0], wanted);
        }
    }
}
