//! Session stickiness and prompt-cache affinity (`routing.md` §10).

use rstest::rstest;

use super::*;
use crate::config::AutoConfig;
use crate::routing::layers::apply;

/// The conversation was served by the account of this target before.
fn stuck(letters: &str, bound: char) -> Desk {
    let mut desk = Desk::of(letters);
    desk.config.session_stickiness = Some(true);
    desk.facts.session = Some("185f8db32271fe25".to_owned());
    let account = desk.place(bound).connection.clone().unwrap();
    desk.sessions.insert("185f8db32271fe25".to_owned(), account);
    desk
}

/// Accounts `acc-1` to `acc-3`; the key orders them 3, 2, 1. Each is of the model at its place.
fn cached(digits: &str, models: &str) -> Desk {
    let mut desk = Desk::of(digits);
    for (place, model) in desk.places.iter_mut().zip(models.chars()) {
        place.connection = Some(connection(&format!("acc-{}", place.key)));
        place.provider = ProviderId::new("p").unwrap();
        place.model = ModelId::new(model.to_string()).unwrap();
    }
    desk.config.prompt_cache_affinity = Some(true);
    desk.facts.cache_key = Some("pk-123".to_owned());
    desk
}

impl Desk {
    fn layered(&self, strategy: Strategy) -> String {
        self.layered_within(strategy, self.places.len())
    }

    /// With so many, from the first on, that may be moved.
    fn layered_within(&self, strategy: Strategy, movable: usize) -> String {
        let order: Vec<usize> = (0..self.places.len()).collect();
        let mut ordered = Ordered {
            movable,
            ..order.into()
        };
        self.ask(|question| apply(&mut ordered, question, strategy));
        self.letters(&ordered.order)
    }
}

#[test]
fn the_account_of_the_conversation_is_first() {
    let mut desk = stuck("ABCD", 'C');
    assert_eq!(desk.layered(Strategy::LeastUsed), "CABD");
    assert_eq!(desk.layered(Strategy::RoundRobin), "CDAB");
    desk.config.session_stickiness = None;
    assert_eq!(desk.layered(Strategy::LeastUsed), "ABCD");
}

#[rstest]
#[case::excluded(|desk: &mut Desk| desk.exclude('C'))]
#[case::another_conversation(|desk: &mut Desk| desk.facts.session = Some("other".to_owned()))]
#[case::no_conversation(|desk: &mut Desk| desk.facts.session = None)]
#[case::no_account(|desk: &mut Desk| desk.place('C').connection = None)]
#[case::little_left(|desk: &mut Desk| desk.set_quota('C', QuotaSnapshot {
    session: Some(window(0.85, HOUR_MS)),
    ..seen()
}))]
#[case::limit_reached(|desk: &mut Desk| desk.set_quota('C', QuotaSnapshot {
    limit_reached: true,
    ..seen()
}))]
fn the_conversation_moves_on_when_its_account_cannot_serve(#[case] happens: fn(&mut Desk)) {
    let mut desk = stuck("ABC", 'C');
    happens(&mut desk);
    assert_eq!(desk.layered(Strategy::Priority), "ABC");
}

#[test]
fn enough_left_keeps_the_conversation() {
    let mut desk = stuck("ABC", 'C');
    let quota = QuotaSnapshot {
        session: Some(window(0.84, HOUR_MS)),
        ..seen()
    };
    desk.set_quota('C', quota);
    assert_eq!(desk.layered(Strategy::Priority), "CAB");
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
    let mut desk = cached("123", "xxy");
    assert_eq!(desk.layered(strategy), expected);
    desk.facts.cache_key = None;
    assert_eq!(desk.layered(strategy), "123");
    desk.facts.cache_key = Some("pk-123".to_owned());
    desk.config.prompt_cache_affinity = None;
    assert_eq!(desk.layered(strategy), "123");
}

#[test]
fn models_keep_their_places_even_where_they_alternate() {
    let desk = cached("123", "xyx");
    assert_eq!(desk.layered(Strategy::Priority), "321");
    let desk = cached("231", "xyx");
    assert_eq!(desk.layered(Strategy::Priority), "231");
}

#[test]
fn a_stuck_conversation_keeps_its_head() {
    let mut desk = cached("123", "xxx");
    desk.config.session_stickiness = Some(true);
    desk.facts.session = Some("s".to_owned());
    desk.sessions.insert("s".to_owned(), connection("acc-1"));
    assert_eq!(desk.layered(Strategy::LeastUsed), "132");
    assert_eq!(desk.layered(Strategy::Priority), "132");
    // By cache goes before stickiness, and without a key there is none.
    assert_eq!(desk.layered(Strategy::CacheOptimized), "123");
    desk.facts.cache_key = None;
    desk.places.swap(0, 2);
    assert_eq!(desk.layered(Strategy::CacheOptimized), "132");
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
    let mut desk = cached("123", "xxx");
    desk.config.auto = Some(AutoConfig {
        router: router.map(str::to_owned),
        weights: weight.map(|weight| [("cacheAffinity".to_owned(), finite(weight))].into()),
        mode_pack: mode_pack.map(str::to_owned),
        ..AutoConfig::default()
    });
    assert_eq!(desk.layered(Strategy::Auto), expected);
}

#[test]
fn what_the_strategy_put_behind_on_purpose_stays_behind() {
    let desk = cached("123", "xxx");
    assert_eq!(desk.layered_within(Strategy::Auto, 2), "213");
    assert_eq!(desk.layered_within(Strategy::Priority, 2), "213");
    let desk = stuck("ABCD", 'C');
    assert_eq!(desk.layered_within(Strategy::Auto, 2), "ABCD");
    assert_eq!(desk.layered_within(Strategy::Auto, 3), "CABD");
    assert_eq!(desk.layered_within(Strategy::RoundRobin, 0), "ABCD");
}
