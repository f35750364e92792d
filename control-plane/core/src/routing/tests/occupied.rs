//! OAuth accounts that other sessions are using (`sessions-and-streams.md` §1.12).

use rstest::rstest;

use super::*;
use crate::session_key::SessionKey;

/// Three accounts of a provider, the first preferred, the others one and two steps behind.
fn world(class: &str, settings: Value) -> World {
    let account =
        |id: &str, priority: u32| json!({"id": id, "provider": "p", "priority": priority});
    World::of(
        json!({
            "providers": [{
                "id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1", "class": class,
            }],
            "connections": [account("a", 1), account("b", 2), account("c", 3)],
            "combos": [{"name": "ordered", "strategy": "headroom", "steps": ["p/m"]}],
            "settings": settings,
        }),
        "p/m",
    )
}

fn connection(id: &str) -> ConnectionId {
    ConnectionId::new(id).unwrap()
}

impl World {
    fn occupied(mut self, accounts: &[(&str, u32)]) -> Self {
        self.so_far.occupied = accounts
            .iter()
            .map(|(account, sessions)| (connection(account), *sessions))
            .collect();
        self
    }

    fn goes_to(&self) -> String {
        self.dispatch().connection.to_string()
    }
}

#[rstest]
#[case::nobody(&[], "a")]
#[case::others_elsewhere(&[("b", 3)], "a")]
#[case::others_there(&[("a", 1)], "b")]
#[case::as_many_on_both(&[("a", 1), ("b", 1)], "a")]
#[case::fewer_on_the_next(&[("a", 2), ("b", 1)], "b")]
#[case::two_steps_behind(&[("a", 2), ("b", 2)], "a")]
fn a_session_avoids_accounts_that_others_use(#[case] others: &[(&str, u32)], #[case] to: &str) {
    let world = world("oauth", json!({})).occupied(others);
    assert_eq!(world.goes_to(), to);
}

#[test]
fn only_oauth_accounts_are_avoided() {
    assert_eq!(
        world("apikey", json!({})).occupied(&[("a", 5)]).goes_to(),
        "a"
    );
}

#[test]
fn an_account_that_may_not_be_used_is_no_way_out() {
    let mut world = world("oauth", json!({})).occupied(&[("a", 1)]);
    world.without_credential.insert(connection("b"));
    assert_eq!(world.goes_to(), "a");
}

#[test]
fn what_names_an_account_goes_first() {
    let mut forced = world("oauth", json!({})).occupied(&[("a", 5)]);
    forced.facts.forced_connection = Some(connection("a"));
    assert_eq!(forced.goes_to(), "a");
    let mut ordered = world("oauth", json!({})).occupied(&[]);
    ordered.facts.model = "ordered".to_owned();
    let before = ordered.goes_to();
    assert_eq!(ordered.occupied(&[(before.as_str(), 5)]).goes_to(), before);
}

#[test]
fn a_session_that_is_kept_together_stays() {
    let mut kept = world("oauth", json!({"sessionAffinityTtlMs": 60_000}));
    kept.facts.session_key = SessionKey::parse("header:s");
    let placed = kept.goes_to();
    assert!(!minds_occupancy(&kept.config, &kept.facts));
    assert_eq!(kept.occupied(&[(placed.as_str(), 5)]).goes_to(), placed);
    let mut off = world("oauth", json!({}));
    off.facts.session_key = SessionKey::parse("header:s");
    assert!(minds_occupancy(&off.config, &off.facts));
    off.facts.forced_connection = Some(connection("a"));
    assert!(!minds_occupancy(&off.config, &off.facts));
}

/// Who has no choice among OAuth accounts need not be told who uses them.
#[rstest]
#[case::a_choice("oauth", 3, "p/m", true)]
#[case::by_a_combo("oauth", 3, "plain", true)]
#[case::accounts_of_another_class("apikey", 3, "p/m", false)]
#[case::one_account("oauth", 1, "p/m", false)]
#[case::accounts_that_a_combo_orders("oauth", 3, "ordered", false)]
#[case::an_account_that_a_step_names("oauth", 3, "named", false)]
fn only_who_has_a_choice_is_told(
    #[case] class: &str,
    #[case] accounts: usize,
    #[case] model: &str,
    #[case] minds: bool,
) {
    let mut world = world(class, json!({}));
    let mut document = Document::clone(&world.config.document);
    document.connections.truncate(accounts);
    for combo in [
        json!({"name": "plain", "steps": ["p/m"]}),
        json!({"name": "named", "steps": [{"model": "p/m", "connection": "a"}]}),
    ] {
        document.combos.push(serde_json::from_value(combo).unwrap());
    }
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    world.facts.model = model.to_owned();
    assert_eq!(minds_occupancy(&world.config, &world.facts), minds);
}
