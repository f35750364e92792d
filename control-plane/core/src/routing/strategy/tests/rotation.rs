//! `round-robin` and `strict-random` (`routing.md` §8.3, §8.13, decision 51).

use rstest::rstest;

use super::*;

/// A replica that walks requests through the rotation as the driver does.
struct Rotation {
    stage: Stage,
    limit: u32,
}

impl Rotation {
    fn of(letters: &str, limit: u32) -> Self {
        let mut stage = Stage::of(letters);
        stage.config.sticky_round_robin_limit = Some(limit);
        Self { stage, limit }
    }

    /// One request, served by the first that is not excluded, or by `served` after that one failed. Which is tried
    /// first.
    fn request(&self, served: Option<char>) -> char {
        let order = self.stage.written(Strategy::RoundRobin);
        let mut tried = order
            .chars()
            .filter(|letter| self.stage.actors[self.stage.position(*letter)].eligible);
        let first = tried.next().unwrap();
        let served = served.unwrap_or(first);
        if !order.starts_with(served) {
            let next = self.stage.next_turn(TurnPurpose::RoundRobin);
            let served = self.stage.position(served);
            let raised = served_position(next, self.limit, order.len(), served);
            self.stage.set_turn(TurnPurpose::RoundRobin, raised);
        }
        first
    }
}

#[rstest]
#[case::vector_routing_v_rr1(1, &[], "ABCAB")]
#[case::vector_routing_v_rr2(3, &[], "AAABBBCCCA")]
#[case::a_failure_within_a_block(3, &[(3, 'B')], "AAABBC")]
#[case::a_failure_in_turn(1, &[(1, 'B')], "ACA")]
#[case::a_failure_early_in_a_block(3, &[(1, 'C')], "ACCAAABBB")]
#[case::the_one_before_serves(2, &[(3, 'A')], "AABABB")]
fn heads_of_successive_requests(
    #[case] limit: u32,
    #[case] served_elsewhere: &[(usize, char)],
    #[case] expected: &str,
) {
    let rotation = Rotation::of("ABC", limit);
    let heads: String = (1..=expected.len())
        .map(|request| {
            let served = served_elsewhere.iter().find(|(at, _)| *at == request);
            rotation.request(served.map(|(_, letter)| *letter))
        })
        .collect();
    assert_eq!(heads, expected);
}

#[test]
fn an_excluded_head_is_passed_over() {
    let mut rotation = Rotation::of("ABC", 3);
    assert_eq!([rotation.request(None), rotation.request(None)], ['A', 'A']);
    rotation.stage.exclude('A');
    // The counter still stands at A, which the gates skip; B serves, and its block begins.
    let heads: String = (0..4).map(|_| rotation.request(None)).collect();
    assert_eq!(heads, "BBBC");
}

#[test]
fn three_requests_stay_with_a_target_unless_configured_otherwise() {
    assert_eq!(Stage::of("ABC").heads(Strategy::RoundRobin, 7), "AAABBBC");
}

#[test]
fn the_rest_follows_cyclically() {
    let stage = Stage::of("ABCD");
    stage.set_turn(TurnPurpose::RoundRobin, 6);
    assert_eq!(stage.written(Strategy::RoundRobin), "CDAB");
}

#[rstest]
#[case::of_the_current_block(7, 3, 3, 2, 7)]
#[case::of_the_current_block_when_it_just_began(6, 3, 3, 2, 7)]
#[case::of_the_next_round(7, 3, 3, 1, 13)]
#[case::a_limit_of_none_is_one(5, 0, 3, 0, 7)]
#[case::no_such_target(7, 3, 3, 3, 7)]
#[case::no_targets(7, 3, 0, 0, 7)]
#[case::never_back(8, 3, 3, 2, 8)]
#[case::at_the_end_of_numbers(u64::MAX, 3, 3, 1, u64::MAX)]
fn where_the_rotation_goes_on(
    #[case] next: u64,
    #[case] limit: u32,
    #[case] count: usize,
    #[case] served: usize,
    #[case] expected: u64,
) {
    assert_eq!(served_position(next, limit, count, served), expected);
}

/// Every aligned block of as many requests as there are targets has each of them once.
fn assert_dealt_evenly(heads: &str, targets: usize) {
    for block in heads.as_bytes().chunks_exact(targets) {
        let different: BTreeSet<u8> = block.iter().copied().collect();
        assert_eq!(different.len(), targets, "{heads}");
    }
}

#[test]
fn vector_routing_v_sr1() {
    let stage = Stage::of("ABC");
    let heads = stage.heads(Strategy::StrictRandom, 300);
    assert_dealt_evenly(&heads, 3);
    // Shuffled, not rotated.
    let decks: BTreeSet<&[u8]> = heads.as_bytes().chunks_exact(3).collect();
    assert_eq!(decks.len(), 6);
}

#[test]
fn vector_routing_v_sr2() {
    // The same targets, listed otherwise, since one replica has a newer configuration.
    let replicas = [Stage::of("ABC"), Stage::of("CAB")];
    let mut random = Random::new(3);
    let mut heads = String::new();
    for turn in 0..300 {
        let replica = &replicas[random.below(2)];
        replica.set_turn(TurnPurpose::StrictRandom, turn);
        heads.push_str(&replica.heads(Strategy::StrictRandom, 1));
    }
    assert_dealt_evenly(&heads, 3);
}

#[test]
fn decks_differ_between_combos_and_with_the_targets() {
    let heads = |stage: &Stage| stage.heads(Strategy::StrictRandom, 60);
    let mut other = Stage::of("ABC");
    other.scope = Scope::Combo(ComboName::new("d").unwrap());
    assert_ne!(heads(&Stage::of("ABC")), heads(&other));
    let more = Stage::of("ABCD");
    assert_dealt_evenly(&heads(&more), 4);
    // Without the new target the others do not just close ranks.
    let without_d: String = heads(&more).replace('D', "");
    let of_three = heads(&Stage::of("ABC"));
    assert_ne!(without_d.as_bytes()[..30], of_three.as_bytes()[..30]);
    // A counter in the middle of a deck of three deals from a deck of four as if it had always done so.
    more.set_turn(TurnPurpose::StrictRandom, 40);
    assert_dealt_evenly(&heads(&more), 4);
}

#[test]
fn the_shared_turn_is_asked_for() {
    let mut stage = Stage::of("ABC");
    stage.counters.shared_are_elsewhere = true;
    let halt = stage.ask(|question| of(Strategy::StrictRandom).order(question));
    let key = TurnKey {
        scope: stage.scope,
        purpose: TurnPurpose::StrictRandom,
    };
    assert_eq!(halt, Err(Halt::TakeTurn(key)));
    // One target needs no deck.
    let mut single = Stage::of("A");
    single.counters.shared_are_elsewhere = true;
    assert_eq!(single.written(Strategy::StrictRandom), "A");
}
