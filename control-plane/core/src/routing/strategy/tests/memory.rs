//! `lkgp` and `cache-optimized` (`routing.md` §8.15, §8.17).

use rstest::rstest;

use super::super::rendezvous::{Identity, Rendezvous};
use super::*;

fn record(provider: &str, account: Option<&str>) -> LastKnownGood {
    LastKnownGood {
        provider: ProviderId::new(provider).unwrap(),
        connection: account.map(connection),
        at: NOW,
    }
}

#[rstest]
#[case::vector_routing_v_lk1(Some(record("pb", Some("cb"))), "BAC")]
#[case::vector_routing_v_lk2(Some(record("pa", Some("c9"))), "ABC")]
#[case::vector_routing_v_lk4(Some(record("removed", None)), "ABC")]
#[case::no_record(None, "ABC")]
#[case::a_provider_alone(Some(record("pc", None)), "CAB")]
fn the_last_one_that_served_is_first(#[case] known: Option<LastKnownGood>, #[case] expected: &str) {
    let mut stage = Stage::of("ABC");
    stage.last_known_good = known;
    assert_eq!(stage.written(Strategy::Lkgp), expected);
}

#[test]
fn of_a_provider_the_account_that_served_is_meant() {
    let mut stage = Stage::accounts("ABC");
    stage.scope = Stage::of("A").scope;
    stage.last_known_good = Some(record("pa", Some("cc")));
    assert_eq!(stage.written(Strategy::Lkgp), "CAB");
    // An account that is no longer there means the first of the provider, which a target without an account is too.
    stage.last_known_good = Some(record("pa", Some("c9")));
    stage.actor('A').connection = None;
    assert_eq!(stage.written(Strategy::Lkgp), "ABC");
    stage.last_known_good = Some(record("pa", None));
    assert_eq!(stage.written(Strategy::Lkgp), "ABC");
}

/// Accounts `acc-1` to `acc-3`, written as digits.
fn accounts(digits: &str, key: Option<&str>) -> Stage {
    let mut stage = Stage::of(digits);
    for actor in &mut stage.actors {
        actor.connection = Some(connection(&format!("acc-{}", actor.key)));
    }
    stage.facts.cache_key = key.map(str::to_owned);
    stage
}

#[rstest]
#[case::vector_routing_v_ca1("123", Some("pk-123"), "321")]
#[case::vector_routing_v_ca2("123", Some("pk-456"), "231")]
#[case::vector_routing_v_ca3("123", Some("alpha"), "312")]
#[case::vector_routing_v_ca4("12", Some("pk-123"), "21")]
#[case::without_a_key("213", None, "213")]
#[case::however_they_are_listed("213", Some("pk-123"), "321")]
fn a_prompt_prefix_has_its_account(
    #[case] digits: &str,
    #[case] key: Option<&str>,
    #[case] expected: &str,
) {
    let stage = accounts(digits, key);
    assert_eq!(stage.written(Strategy::CacheOptimized), expected);
}

#[test]
fn scores_are_the_first_128_bits_of_the_hash() {
    let rendezvous = Rendezvous::new("pk-123");
    let scores: Vec<String> = accounts("321", None).ask(|question| {
        let candidates = question.candidates.iter();
        candidates
            .map(|candidate| format!("{:032x}", rendezvous.score(Identity::of(&candidate))))
            .collect()
    });
    for (score, expected) in scores.iter().zip(["cd8f1a48", "bf453350", "0d587993"]) {
        assert!(score.starts_with(expected), "{score}");
    }
}

#[test]
fn targets_without_an_account_are_known_by_their_key_and_models_of_one_account_stand_together() {
    let mut stage = accounts("1234", Some("pk-123"));
    stage.actor('4').connection = stage.actor('3').connection.clone();
    assert_eq!(stage.written(Strategy::CacheOptimized), "3421");
    let mut unpinned = accounts("12", Some("pk-123"));
    for actor in &mut unpinned.actors {
        actor.connection = None;
    }
    let order = unpinned.written(Strategy::CacheOptimized);
    unpinned.actors.reverse();
    assert_eq!(unpinned.written(Strategy::CacheOptimized), order);
}
