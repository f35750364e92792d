//! `p2c` and `least-used` (`routing.md` §8.6, §8.8).

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
        success_rate,
        mean_latency_ms,
        ..Performance::default()
    }
}

/// The targets A to D of §8.6.
fn desk() -> Desk {
    let mut desk = Desk::of("ABCD");
    for (letter, known) in [
        ('A', performance(0.95, 990.0)),
        ('B', performance(0.99, 9_990.0)),
        ('D', performance(1.0, 490.0)),
    ] {
        let model = desk.place(letter).model.clone();
        desk.of_model.insert(model, known);
    }
    desk.place('D').phase = HALF_OPEN;
    desk
}

/// The desk with only these targets, drawn as given.
fn drawn(desk: &mut Desk, letters: &str, first: char, second: char) {
    desk.places.retain(|place| letters.contains(&place.key));
    let count = desk.places.len();
    let wanted = (desk.position(first), desk.position(second));
    desk.seed = desk.seed_where(|random| two_of(random, count) == wanted);
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
    let mut desk = desk();
    drawn(&mut desk, letters, first, second);
    assert_eq!(desk.order(Strategy::P2c), expected);
}

#[test]
fn vector_routing_v_2c3() {
    let mut desk = Desk::of("ABC");
    drawn(&mut desk, "ABC", 'B', 'A');
    assert_eq!(desk.order(Strategy::P2c), "BAC");
    drawn(&mut desk, "ABC", 'A', 'B');
    assert_eq!(desk.order(Strategy::P2c), "ABC");
}

#[test]
fn vector_routing_v_2c4() {
    let mut desk = desk();
    desk.place('A').phase = OPEN;
    drawn(&mut desk, "ABC", 'A', 'C');
    assert_eq!(desk.order(Strategy::P2c), "CAB");
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
    assert_eq!(Desk::of("A").order(Strategy::P2c), "A");
}

#[rstest]
#[case::no_number(performance(f64::NAN, f64::NAN))]
#[case::no_latency(performance(f64::INFINITY, f64::INFINITY))]
#[case::nothing_counted(Performance { requests: 0, ..Performance::default() })]
fn what_says_nothing_is_unknown(#[case] known: Performance) {
    let mut desk = Desk::of("AB");
    let model = desk.place('A').model.clone();
    desk.of_model.insert(model, known);
    // As good as B, of which nothing is known: neither beats the other.
    drawn(&mut desk, "AB", 'A', 'B');
    assert_eq!(desk.order(Strategy::P2c), "AB");
    drawn(&mut desk, "AB", 'B', 'A');
    assert_eq!(desk.order(Strategy::P2c), "BA");
}

#[test]
fn what_only_fails_is_worse_than_unknown() {
    let mut desk = Desk::of("AB");
    let model = desk.place('A').model.clone();
    desk.of_model.insert(model, performance(0.0, 0.0));
    drawn(&mut desk, "AB", 'A', 'B');
    assert_eq!(desk.order(Strategy::P2c), "BA");
}

#[test]
fn accounts_are_compared_by_their_own_performance() {
    let mut desk = Desk::accounts("AB");
    desk.of_connection
        .insert(connection("ca"), performance(0.5, 5_000.0));
    desk.of_connection
        .insert(connection("cb"), performance(0.9, 500.0));
    let model = desk.place('A').model.clone();
    desk.of_model.insert(model, performance(1.0, 1.0));
    drawn(&mut desk, "AB", 'A', 'B');
    assert_eq!(desk.order(Strategy::P2c), "BA");
}

#[rstest]
#[case::vector_routing_v_lu1(&[('A', 10), ('B', 3), ('C', 3)], "BCA")]
#[case::vector_routing_v_lu2(&[], "ABC")]
#[case::never_counted_is_none(&[('A', 1), ('C', 2)], "BAC")]
fn the_least_used_is_first(#[case] counts: &[(char, u64)], #[case] expected: &str) {
    let mut desk = Desk::of("ABC");
    for (letter, count) in counts {
        desk.target_requests.insert(letter.to_string(), *count);
    }
    assert_eq!(desk.order(Strategy::LeastUsed), expected);
}

#[test]
fn vector_routing_v_lu3() {
    // Two accounts of one model, first as targets of a combo, then as accounts of an unpinned target.
    let mut targets = Desk::accounts("AB");
    targets.scope = Desk::of("A").scope;
    targets.target_requests.insert("A".to_owned(), 5);
    targets.target_requests.insert("B".to_owned(), 0);
    assert_eq!(targets.order(Strategy::LeastUsed), "BA");
    let mut accounts = Desk::accounts("AB");
    accounts.connection_requests.insert(connection("ca"), 5);
    accounts.target_requests.insert("B".to_owned(), 9);
    assert_eq!(accounts.order(Strategy::LeastUsed), "BA");
}
