//! Session stickiness and prompt-cache affinity (`routing.md` §10).

use rstest::rstest;

use super::*;
use crate::config::AutoConfig;
use crate::routing::layers::apply;

/// The conversation was served by the account of this target before.
fn stuck(letters: &str, bound: char) -> Stage {
    let mut stage = Stage::of(letters);
    stage.config.session_stickiness = Some(true);
    stage.facts.session = Some("185f8db32271fe25".to_owned());
    let account = stage.actor(bound).connection.clone().unwrap();
    stage
        .sessions
        .insert("185f8db32271fe25".to_owned(), account);
    stage
}

/// Accounts `acc-1` to `acc-3`; the key orders them 3, 2, 1. Each is of the model at its actor.
fn cached(digits: &str, models: &str) -> Stage {
    let mut stage = Stage::of(digits);
    for (actor, model) in stage.actors.iter_mut().zip(models.chars()) {
        actor.connection = Some(connection(&format!("acc-{}", actor.key)));
        actor.provider = ProviderId::new("p").unwrap();
        actor.model = ModelId::new(model.to_string()).unwrap();
    }
    stage.config.prompt_cache_affinity = Some(true);
    stage.facts.cache_key = Some("pk-123".to_owned());
    stage
}

impl Stage {
    fn layered(&self, strategy: Strategy) -> String {
        self.layered_within(strategy, self.actors.len())
    }

    /// With so many, from the first on, that may be moved.
    fn layered_within(&self, strategy: Strategy, movable: usize) -> String {
        let order: Vec<usize> = (0..self.actors.len()).collect();
        let mut ordered = Ordered {
            movable,
            ..order.into()
        };
        self.ask(|question| apply(&mut ordered, question, strategy));
        self.names(&ordered.order)
    }
}

#[test]
fn the_account_of_the_conversation_is_first() {
    let mut stage = stuck("ABCD", 'C');
    assert_eq!(stage.layered(Strategy::LeastUsed), "CABD");
    assert_eq!(stage.layered(Strategy::RoundRobin), "CDAB");
    stage.config.session_stickiness = None;
    assert_eq!(stage.layered(Strategy::LeastUsed), "ABCD");
}

#[rstest]
#[case::excluded(|stage: &mut Stage| stage.exclude('C'))]
#[case::another_conversation(|stage: &mut Stage| stage.facts.session = Some("other".to_owned()))]
#[case::no_conversation(|stage: &mut Stage| stage.facts.session = None)]
#[case::no_account(|stage: &mut Stage| stage.actor('C').connection = None)]
#[case::little_left(|stage: &mut Stage| stage.set_quota('C', QuotaSnapshot {
    session: Some(window(0.85, HOUR_MS)),
    ..seen()
}))]
#[case::limit_reached(|stage: &mut Stage| stage.set_quota('C', QuotaSnapshot {
    limit_reached: true,
    ..seen()
}))]
fn the_conversation_moves_on_when_its_account_cannot_serve(#[case] happens: fn(&mut Stage)) {
    let mut stage = stuck("ABC", 'C');
    happens(&mut stage);
    assert_eq!(stage.layered(Strategy::Priority), "ABC");
}

#[test]
fn enough_left_keeps_the_conversation() {
    let mut stage = stuck("ABC", 'C');
    let quota = QuotaSnapshot {
        session: Some(window(0.84, HOUR_MS)),
        ..seen()
    };
    stage.set_quota('C', quota);
    assert_eq!(stage.layered(Strategy::Priority), "CAB");
}

#[rstest]
#[case::all(Strategy::LeastUsed, "321")]
#[case::accounts_of_each_model(Strategy::Priority, "213")]
#[case::accounts_of_each_drawn_model(Strategy::Weighted, "213")]
#[case::accounts_of_each_filled_model(Strategy::FillFirst, "213")]
#[case::accounts_of_each_shared_model(Strategy::QuotaShare, "213")]
#[case::by_cache_already(Strategy::CacheOptimized, "123")]
#[case::a_panel(Strategy::Fusion, "123")]
#[case::a_pipeline(Strategy::Pipeline, "123")]
fn equal_prompts_go_to_the_same_account(#[case] strategy: Strategy, #[case] expected: &str) {
    let mut stage = cached("123", "xxy");
    assert_eq!(stage.layered(strategy), expected);
    stage.facts.cache_key = None;
    assert_eq!(stage.layered(strategy), "123");
    stage.facts.cache_key = Some("pk-123".to_owned());
    stage.config.prompt_cache_affinity = None;
    assert_eq!(stage.layered(strategy), "123");
}

#[test]
fn models_keep_their_places_even_where_they_alternate() {
    let stage = cached("123", "xyx");
    assert_eq!(stage.layered(Strategy::Priority), "321");
    let stage = cached("231", "xyx");
    assert_eq!(stage.layered(Strategy::Priority), "231");
}

#[test]
fn a_stuck_conversation_keeps_its_head() {
    let mut stage = cached("123", "xxx");
    stage.config.session_stickiness = Some(true);
    stage.facts.session = Some("s".to_owned());
    stage.sessions.insert("s".to_owned(), connection("acc-1"));
    assert_eq!(stage.layered(Strategy::LeastUsed), "132");
    assert_eq!(stage.layered(Strategy::Priority), "132");
    // By cache goes before stickiness, and without a key there is none.
    assert_eq!(stage.layered(Strategy::CacheOptimized), "123");
    stage.facts.cache_key = None;
    stage.actors.swap(0, 2);
    assert_eq!(stage.layered(Strategy::CacheOptimized), "132");
}

#[rstest]
#[case::no_router(None, None, None, "321")]
#[case::the_router_that_is_used_anyway(Some("rules"), None, None, "321")]
#[case::a_router_picked_the_head(Some("cost"), None, None, "132")]
#[case::weighs_the_cache_itself(None, Some(0.1), None, "123")]
#[case::weighs_it_with_nothing(None, Some(0.0), None, "321")]
#[case::a_pack_replaces_the_weights(None, Some(0.1), Some("ship-fast"), "321")]
fn auto_may_have_looked_at_the_cache(
    #[case] router: Option<&str>,
    #[case] weight: Option<f64>,
    #[case] mode_pack: Option<&str>,
    #[case] expected: &str,
) {
    let mut stage = cached("123", "xxx");
    stage.config.auto = Some(AutoConfig {
        router: router.map(str::to_owned),
        weights: weight.map(|weight| [("cacheAffinity".to_owned(), finite(weight))].into()),
        mode_pack: mode_pack.map(str::to_owned),
        ..AutoConfig::default()
    });
    assert_eq!(stage.layered(Strategy::Auto), expected);
}

#[test]
fn what_the_strategy_put_behind_on_purpose_stays_behind() {
    let stage = cached("123", "xxx");
    assert_eq!(stage.layered_within(Strategy::Auto, 2), "213");
    assert_eq!(stage.layered_within(Strategy::Priority, 2), "213");
    let stage = stuck("ABCD", 'C');
    assert_eq!(stage.layered_within(Strategy::Auto, 2), "ABCD");
    assert_eq!(stage.layered_within(Strategy::Auto, 3), "CABD");
    assert_eq!(stage.layered_within(Strategy::RoundRobin, 0), "ABCD");
}
