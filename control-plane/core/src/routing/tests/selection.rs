//! What leases ask of ordinary selection, and decisions that may not leave the connection of a lease.

use rstest::rstest;

use crate::classify::TerminalKind;
use crate::config::{ApiKey, KeyScope};
use crate::cooldown::Terminal;
use crate::ids::KeyId;
use crate::lease::{Capacity, Eligibility, EndReason};

use super::*;

/// A world whose request comes with a key that may lease these connections.
fn managed(mut world: World, allowed: &[&str]) -> World {
    world.facts.key = Some(Arc::new(ApiKey {
        id: KeyId::new("k").unwrap(),
        secret: None,
        sha256: None,
        allowed_connections: allowed.iter().map(|name| id(name)).collect(),
        allowed_models: Vec::new(),
        scopes: vec![KeyScope::ExclusiveLease],
    }));
    world
}

fn id(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

/// Two accounts of provider `p` and one of `q`; the combo tries `p` before `q`.
fn world() -> World {
    let connections = ["p/c1", "p/c2", "q/c3"];
    let world = World::combo(&connections, &["p/m", "q/m"], json!({}), no_waits());
    managed(world, &["c1", "c2", "c3"])
}

fn selection(world: &World) -> OrdinarySelection {
    world.with_input(|input| ordinary_selection(input, Speaks::Request))
}

fn candidates(selection: &OrdinarySelection) -> Vec<&str> {
    selection
        .candidates()
        .iter()
        .map(|candidate| candidate.connection.as_str())
        .collect()
}

fn why(world: &World, connection: &str) -> Option<EndReason> {
    let key = world.facts.key.clone().unwrap();
    selection(world).why(&world.config, &key, &id(connection))
}

fn terminal(kind: TerminalKind) -> ConnectionState {
    ConnectionState {
        terminal: Some(Terminal {
            kind,
            since: START,
            credential_version: 1,
            switched_off: false,
        }),
        ..ConnectionState::default()
    }
}

#[test]
fn candidates_come_in_the_order_of_strategy_and_accounts_each_once() {
    assert_eq!(candidates(&selection(&world())), ["c1", "c2", "c3"]);
    let steps = ["q/m", "p/m", "p/n", "p/c2/m"];
    let world = World::combo(&["p/c1", "p/c2", "q/c3"], &steps, json!({}), no_waits());
    let world = managed(world, &["c2", "c3"]);
    assert_eq!(candidates(&selection(&world)), ["c3", "c2"]);
    assert_eq!(why(&world, "c1"), Some(EndReason::AuthorizationChanged));
}

#[test]
fn an_account_strategy_has_its_say() {
    let document = json!({
        "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1",
            "accountStrategy": "round-robin"}],
        "connections": [{"id": "c1", "provider": "p"}, {"id": "c2", "provider": "p"},
            {"id": "c3", "provider": "p"}],
    });
    let mut world = managed(World::of(document, "p/m"), &["c1", "c2", "c3"]);
    world.counters = Counters::of(&world.config, None, 1);
    let first = candidates(&selection(&world)).join(" ");
    assert_eq!(
        candidates(&selection(&world)).join(" "),
        first,
        "no turn is taken"
    );
    let dispatch = world.dispatch();
    assert!(first.starts_with(dispatch.connection.as_str()), "{first}");
    let next = candidates(&selection(&world)).join(" ");
    assert_ne!(next, first, "the dispatch took one");
}

/// What the state of c1 says.
#[rstest]
#[case::clean(ConnectionState::default(), None)]
#[case::cooling(
    cooling(9_000, Reason::RateLimitExceeded),
    Some(EndReason::HealthOrCooldown)
)]
#[case::banned(terminal(TerminalKind::Banned), Some(EndReason::HealthOrCooldown))]
#[case::expired(terminal(TerminalKind::Expired), Some(EndReason::HealthOrCooldown))]
#[case::out_of_credits(
    terminal(TerminalKind::CreditsExhausted),
    Some(EndReason::QuotaUnavailable)
)]
fn what_keeps_a_connection_out_is_why_its_lease_ends(
    #[case] state: ConnectionState,
    #[case] reason: Option<EndReason>,
) {
    let mut world = world();
    world.connection_state("c1", state);
    let expected: &[&str] = if reason.is_none() {
        &["c1", "c2", "c3"]
    } else {
        &["c2", "c3"]
    };
    assert_eq!(candidates(&selection(&world)), expected);
    if reason.is_some() {
        assert_eq!(why(&world, "c1"), reason);
    }
    assert_eq!(
        why(&world, "unknown"),
        Some(EndReason::ConnectionIneligible)
    );
}

#[test]
fn a_provider_that_is_out_keeps_out_each_of_its_accounts() {
    let mut world = world();
    world.open_breaker("p", 5_000);
    assert_eq!(candidates(&selection(&world)), ["c3"]);
    for connection in ["c1", "c2"] {
        assert_eq!(why(&world, connection), Some(EndReason::HealthOrCooldown));
    }
}

#[test]
fn a_connection_that_the_request_does_not_lead_to_keeps_its_lease() {
    let mut world = world();
    world.facts.model = "q/m".to_owned();
    assert_eq!(candidates(&selection(&world)), ["c3"]);
    assert_eq!(why(&world, "c1"), Some(EndReason::ModelIneligible));
    // Neither may the key ask for this, which says nothing of its connections.
    let mut key = ApiKey::clone(world.facts.key.as_deref().unwrap());
    key.allowed_models = vec!["other".to_owned()];
    world.facts.key = Some(Arc::new(key));
    assert_eq!(candidates(&selection(&world)), [""; 0]);
    assert_eq!(why(&world, "c3"), Some(EndReason::ModelIneligible));
}

/// What an acquire is told of a model, with the states of c1 and c2, the only ones.
#[rstest]
#[case::one_is_free("p/m", None, Some(TerminalKind::Banned), "some")]
#[case::vector_sessions_13_banned(
    "p/m",
    Some(TerminalKind::Banned),
    Some(TerminalKind::Banned),
    "none"
)]
#[case::expired(
    "p/m",
    Some(TerminalKind::Expired),
    Some(TerminalKind::Banned),
    "blocked"
)]
#[case::out_of_quota(
    "p/m",
    Some(TerminalKind::CreditsExhausted),
    Some(TerminalKind::Banned),
    "blocked"
)]
#[case::no_such_model("x/m", None, None, "unknown")]
fn eligibility_of_a_model(
    #[case] model: &str,
    #[case] c1: Option<TerminalKind>,
    #[case] c2: Option<TerminalKind>,
    #[case] expected: &str,
) {
    let mut world = world();
    world.facts.model = model.to_owned();
    for (connection, kind) in [("c1", c1), ("c2", c2)] {
        if let Some(kind) = kind {
            world.connection_state(connection, terminal(kind));
        }
    }
    assert_eq!(told(&world, Speaks::Request), expected);
}

fn told(world: &World, speaks: Speaks) -> &'static str {
    let selection = world.with_input(|input| ordinary_selection(input, speaks));
    match selection.eligibility() {
        Eligibility::UnknownModel => "unknown",
        Eligibility::None => "none",
        Eligibility::Blocked => "blocked",
        Eligibility::Some(_) => "some",
    }
}

#[test]
fn vector_sessions_13_what_cools_comes_back() {
    let mut world = world();
    world.facts.model = "p/m".to_owned();
    for connection in ["c1", "c2"] {
        world.connection_state(connection, cooling(9_000, Reason::RateLimitExceeded));
    }
    assert_eq!(told(&world, Speaks::Request), "blocked");
    // What the key may not use is nothing to wait for.
    let world = managed(world, &["c3"]);
    assert_eq!(told(&world, Speaks::Request), "none");
}

#[test]
fn an_acquire_takes_either_protocol() {
    let document = json!({
        "providers": [
            {"id": "a", "protocol": "anthropic", "baseUrl": "https://x.example/v1"},
            {"id": "o", "protocol": "openai", "baseUrl": "https://y.example/v1"},
        ],
        "connections": [{"id": "c1", "provider": "a"}, {"id": "c2", "provider": "o"}],
        "combos": [{"name": "c", "steps": ["a/m", "o/m"]}],
    });
    let world = managed(World::of(document, "c"), &["c1", "c2"]);
    assert_eq!(candidates(&selection(&world)), ["c2"]);
    assert_eq!(why(&world, "c1"), Some(EndReason::ModelIneligible));
    let of_acquire = world.with_input(|input| ordinary_selection(input, Speaks::Anything));
    assert_eq!(candidates(&of_acquire), ["c1", "c2"]);
}

#[test]
fn what_a_request_may_not_repeat_keeps_no_connection_out() {
    let mut world = world().without_cooling();
    let first = world.dispatch();
    assert_eq!(first.connection.as_str(), "c1");
    world.fail(&first, &upstream_error(500, "", None));
    world.so_far.spent_providers = vec![first.provider];
    assert_eq!(candidates(&selection(&world)), ["c1", "c2", "c3"]);
}

#[test]
fn a_failure_of_the_request_itself_is_seen_at_once() {
    let mut world = world();
    let first = world.dispatch();
    world.fail(&first, &upstream_error(429, "", None));
    assert_eq!(candidates(&selection(&world)), ["c2", "c3"]);
    assert_eq!(why(&world, "c1"), Some(EndReason::HealthOrCooldown));
}

#[test]
fn nothing_is_sent_past_the_connection_of_the_lease() {
    let mut world = world();
    for connection in ["c2", "c3"] {
        world.facts.leased = Some(id(connection));
        let dispatch = world.dispatch();
        assert_eq!(dispatch.connection.as_str(), connection);
        assert_eq!(dispatch.excluded, []);
    }
    world.facts.leased = Some(id("c2"));
    world.facts.forced_connection = Some(id("c1"));
    let rejection = world.reject();
    assert_eq!(rejection.excluded, []);
}

#[test]
fn a_request_under_a_lease_ends_with_its_connection() {
    let mut world = world().without_cooling();
    world.facts.leased = Some(id("c1"));
    let journey = world.run(|_, _| status(500));
    let all_c1 = journey.attempts.iter().all(|attempt| attempt == "p/c1/m");
    assert!(all_c1 && !journey.attempts.is_empty(), "{journey:?}");
    assert_eq!(journey.rejection().status, 500);
}

#[test]
fn a_request_goes_on_where_its_lease_moved_to() {
    for (moved_to, next) in [("c2", "p/c2/m"), ("c3", "q/c3/m")] {
        let mut world = world();
        world.facts.leased = Some(id("c1"));
        let first = world.dispatch();
        world.fail(&first, &upstream_error(429, "", None));
        world.facts.leased = Some(id(moved_to));
        let journey = world.run(|_, _| Reply::Success);
        assert_eq!(journey.attempts, [next]);
    }
}

#[test]
fn the_last_resort_does_not_leave_the_lease() {
    let settings = json!({
        "emergencyFallback": {"enabled": true, "provider": "q", "model": "m"},
        "waitForCooldown": {"enabled": false},
    });
    let world = World::combo(&["p/c1", "q/c3"], &["p/m"], json!({}), settings);
    let mut world = managed(world, &["c1", "c3"]);
    world.facts.model = "p/m".to_owned();
    world.connection_state("c1", terminal(TerminalKind::CreditsExhausted));
    assert_eq!(
        world.dispatch().connection.as_str(),
        "c3",
        "without a lease"
    );
    world.facts.leased = Some(id("c1"));
    assert_eq!(world.reject().code, "no_executable_targets");
}

#[test]
fn a_refusal_of_a_lease_is_told_in_its_own_words() {
    let capacity = Capacity {
        retry_after_seconds: 7,
        eligible: 2,
    };
    let rejection = Rejection::from(LeaseError::Capacity(capacity));
    assert_eq!(
        (
            rejection.status,
            rejection.code.as_str(),
            rejection.retry_after_secs
        ),
        (429, "lease-capacity-unavailable", Some(7))
    );
    assert_eq!(rejection.error_type, "lease_error");
}

/// Two accounts at `p`; the combos that a lease does not cover, and those that it does.
fn routes() -> World {
    let pinned = |connection: &str| json!({"model": "p/m", "connection": connection});
    let document = json!({
        "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
        "connections": [{"id": "c1", "provider": "p"}, {"id": "c2", "provider": "p"}],
        "combos": [
            {"name": "plain", "steps": ["p/m", "p/n"]},
            {"name": "fusion", "strategy": "fusion", "steps": ["p/m", "p/n"]},
            {"name": "fusion-of-one", "strategy": "fusion", "steps": ["p/m"]},
            {"name": "relay", "strategy": "context-relay", "steps": ["p/m", "p/n"]},
            {"name": "pipeline", "strategy": "pipeline", "steps": ["p/m", "p/n"]},
            {"name": "pipeline-of-one", "strategy": "pipeline", "steps": ["p/m"]},
            {"name": "one-account", "steps": [pinned("c1"), pinned("c1"), "p/n"]},
            {"name": "two-accounts", "steps": [pinned("c1"), pinned("c2")]},
            {"name": "around-fusion", "steps": ["p/m", {"combo": "fusion"}]},
            {"name": "around-that", "steps": ["around-fusion"]},
            {"name": "another-account", "steps": [pinned("c2")]},
            {"name": "account-and-account", "steps": [pinned("c1"), "another-account"]},
            {"name": "around-plain", "steps": ["plain", {"combo": "pipeline-of-one"}, "p/m"]},
            {"name": "twice", "steps": ["plain", "around-plain", "one-account"]},
        ],
        "quotaPools": [{"group": "g", "provider": "p", "models": ["m"],
            "connections": [{"connection": "c1"}, {"connection": "c2"}]}],
    });
    World::of(document, "plain")
}

#[rstest]
#[case::vector_sessions_21_fusion("fusion", true)]
#[case::vector_sessions_21_fusion_of_one("fusion-of-one", true)]
#[case::vector_sessions_21_relay("relay", true)]
#[case::vector_sessions_21_pipeline("pipeline", true)]
#[case::vector_sessions_21_pipeline_of_one("pipeline-of-one", false)]
#[case::vector_sessions_21_one_account("one-account", false)]
#[case::vector_sessions_21_two_accounts("two-accounts", true)]
#[case::vector_sessions_21_nested("around-fusion", true)]
#[case::vector_sessions_21_nested_twice("around-that", true)]
#[case::vector_sessions_21_nested_accounts("account-and-account", true)]
#[case::vector_sessions_21_nested_but_single("around-plain", false)]
#[case::vector_sessions_21_met_twice("twice", false)]
#[case::vector_sessions_21_pool("qtSd/g/p/m", true)]
#[case::vector_sessions_21_with_prefix("combo/fusion", true)]
#[case::vector_sessions_21_plain("plain", false)]
#[case::vector_sessions_21_model("p/m", false)]
#[case::vector_sessions_21_nothing("nobody", false)]
fn routes_over_several_connections(#[case] model: &str, #[case] expected: bool) {
    let config = routes().config;
    assert_eq!(uses_several_connections(&config, model), expected);
}
