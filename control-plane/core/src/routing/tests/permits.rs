//! Who needs a permit, and what a full pool does to a request.

use rstest::rstest;

use super::*;
use crate::config::Strategy;
use crate::permit;

/// Two providers with one account each; the combo `c` asks for both.
fn world(caps: [Option<u32>; 2], strategy: Strategy, combo: Value, settings: Value) -> World {
    let world = World::combo(&["p/a", "q/b"], &["p/m", "q/m"], combo, settings);
    with(world, strategy, caps)
}

fn with<const N: usize>(mut world: World, strategy: Strategy, caps: [Option<u32>; N]) -> World {
    let mut document = Document::clone(&world.config.document);
    for (connection, cap) in document.connections.iter_mut().zip(caps) {
        connection.max_concurrent = cap;
    }
    for combo in &mut document.combos {
        combo.strategy = strategy;
    }
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    world
}

fn queue(depth: u32, timeout_ms: u64) -> PermitQueue {
    PermitQueue { depth, timeout_ms }
}

fn demand(strategy: Strategy, cap: Option<u32>, settings: Value) -> Option<PermitDemand> {
    world([cap; 2], strategy, json!({}), settings)
        .dispatch()
        .permit
}

#[rstest]
#[case::absent(None)]
#[case::zero(Some(0))]
fn vector_routing_v_sm4_without_a_cap_no_permit_is_needed(#[case] cap: Option<u32>) {
    for strategy in [Strategy::QuotaShare, Strategy::Priority] {
        assert_eq!(demand(strategy, cap, json!({})), None);
    }
    assert!(demand(Strategy::QuotaShare, Some(1), json!({})).is_some());
}

#[test]
fn vector_routing_v_sm5_two_combos_on_one_account_share_its_pool() {
    let mut world = World::of(
        json!({
            "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [{"id": "a", "provider": "p", "maxConcurrent": 1}],
            "combos": [{"name": "one", "steps": ["p/m"]}, {"name": "two", "steps": ["p/n"]}],
        }),
        "one",
    );
    world = with(world, Strategy::QuotaShare, [Some(1), None]);
    let mut keys = BTreeSet::new();
    for combo in ["one", "two"] {
        world.facts.model = combo.to_owned();
        let dispatch = world.dispatch();
        assert_eq!(dispatch.permit.map(|demand| demand.cap), Some(1));
        keys.insert(permit::key_text(&dispatch.provider, &dispatch.connection));
    }
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["m:p/a"]);
}

#[test]
fn vector_routing_v_sm6_switched_off_quota_pools_need_no_permit() {
    let off = || json!({"quotaShareConcurrencyLimit": {"enabled": false}});
    assert_eq!(demand(Strategy::QuotaShare, Some(1), off()), None);
    // It is the switch of quota pools; the limit of the account holds for others all the same.
    assert!(demand(Strategy::Priority, Some(1), off()).is_some());
}

#[rstest]
#[case::priority(Strategy::Priority, PermitPolicy::WaitThenRefuse(queue(20, 30_000)))]
#[case::random(Strategy::Random, PermitPolicy::WaitThenRefuse(queue(20, 30_000)))]
#[case::round_robin(Strategy::RoundRobin, PermitPolicy::WaitThenSkip(queue(20, 30_000)))]
#[case::quota_share(Strategy::QuotaShare, PermitPolicy::WaitThenSend(queue(20, 30_000)))]
fn the_strategy_says_what_follows_when_no_permit_is_free(
    #[case] strategy: Strategy,
    #[case] policy: PermitPolicy,
) {
    let demanded = demand(strategy, Some(3), json!({})).unwrap();
    assert_eq!(demanded, PermitDemand { cap: 3, policy });
}

#[test]
fn the_combo_says_how_long_is_waited() {
    let combo = json!({"queueDepth": 0, "queueTimeoutMs": 700});
    let world = world([Some(1); 2], Strategy::RoundRobin, combo, json!({}));
    let policy = world.dispatch().permit.unwrap().policy;
    assert_eq!(policy.queue(), Some(queue(0, 700)));
    assert_eq!(PermitPolicy::Skip.queue(), None);
}

#[test]
fn a_request_that_names_no_combo_waits_as_long_as_accounts_have_it() {
    let mut world = world([Some(1); 2], Strategy::QuotaShare, json!({}), json!({}));
    world.facts.model = "p/m".to_owned();
    let policy = world.dispatch().permit.unwrap().policy;
    assert_eq!(policy, PermitPolicy::WaitThenRefuse(queue(20, 30_000)));
}

#[test]
fn a_combo_may_have_nobody_wait() {
    let combo = json!({"queueDepth": 0});
    let world = world([Some(1); 2], Strategy::Priority, combo, json!({}));
    let policy = world.dispatch().permit.unwrap().policy;
    assert_eq!(policy, PermitPolicy::Skip);
}

#[rstest]
#[case::full(WaitEnd::QueueFull, "SEMAPHORE_QUEUE_FULL")]
#[case::in_vain(WaitEnd::TimedOut, "SEMAPHORE_TIMEOUT")]
fn the_answer_says_how_the_wait_ended(#[case] end: WaitEnd, #[case] code: &str) {
    let mut world = world([Some(1); 2], Strategy::Priority, json!({}), json!({}));
    for connection in ["a", "b"] {
        let connection = ConnectionId::new(connection).unwrap();
        world.view.full.insert(connection);
    }
    let rejection = world.reject().after_wait(end);
    assert_eq!((rejection.status, rejection.code.as_str()), (429, code));
    assert_eq!(rejection.terminal_reason, "concurrency_cap");
    assert_eq!(rejection.retry_after_secs, Some(1));
    // What is refused for another reason says that.
    world.view.full.clear();
    world
        .without_credential
        .insert(ConnectionId::new("a").unwrap());
    world
        .without_credential
        .insert(ConnectionId::new("b").unwrap());
    let before = world.reject();
    assert_eq!(before.clone().after_wait(end), before);
}

#[test]
fn a_full_account_is_skipped_and_named() {
    let mut world = world([Some(1); 2], Strategy::Priority, json!({}), json!({}));
    world.view.full.insert(ConnectionId::new("a").unwrap());
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "b");
    let excluded = &dispatch.excluded[0];
    assert_eq!(excluded.reason, ExclusionReason::ConcurrencyCap);
    assert_eq!(
        excluded.connection.as_ref().map(ConnectionId::as_str),
        Some("a")
    );
    assert_eq!(excluded.until, None);
}

#[test]
fn full_accounts_are_worth_coming_back_for() {
    let mut world = world([Some(1); 2], Strategy::Priority, json!({}), json!({}));
    for connection in ["a", "b"] {
        world
            .view
            .full
            .insert(ConnectionId::new(connection).unwrap());
    }
    let rejection = world.reject();
    assert_eq!(
        (
            rejection.status,
            rejection.code.as_str(),
            rejection.retry_after_secs
        ),
        (429, "concurrency_cap", Some(1))
    );
    assert_eq!(rejection.terminal_reason, "concurrency_cap");
    assert_eq!(rejection.error_type, "rate_limit_error");
    assert_eq!(rejection.excluded.len(), 2);
    assert!(rejection.message.contains("concurrency_cap"));
}

#[test]
fn one_full_account_among_others_that_never_serve_is_worth_coming_back_for() {
    let mut world = world([Some(1); 2], Strategy::Priority, json!({}), json!({}));
    world.view.full.insert(ConnectionId::new("a").unwrap());
    world
        .without_credential
        .insert(ConnectionId::new("b").unwrap());
    let rejection = world.reject();
    assert_eq!(rejection.code, "concurrency_cap");
    assert_eq!(rejection.excluded.len(), 2);
}

#[rstest]
#[case::none_is_full(&[], &["a", "b", "c"], 60)]
#[case::as_many_cool(&["a"], &["b"], 60)]
#[case::most_are_full(&["a", "b"], &["c"], 1)]
fn the_soonest_end_is_told_unless_most_accounts_are_full(
    #[case] full: &[&str],
    #[case] cool: &[&str],
    #[case] retry_after_secs: u64,
) {
    let (connections, steps) = (["p/a", "q/b", "r/c"], ["p/m", "q/m", "r/m"]);
    let world = World::combo(&connections, &steps, json!({}), no_waits());
    let mut world = with(world, Strategy::Priority, [Some(1); 3]);
    for connection in ["a", "b", "c"] {
        let id = ConnectionId::new(connection).unwrap();
        if full.contains(&connection) {
            world.view.full.insert(id);
        } else if cool.contains(&connection) {
            world.connection_state(connection, cooling(60_000, Reason::ServerError));
        } else {
            world.without_credential.insert(id);
        }
    }
    let rejection = world.reject();
    assert_eq!(
        (
            rejection.status,
            rejection.code.as_str(),
            rejection.retry_after_secs
        ),
        (503, "all_targets_cooling_down", Some(retry_after_secs))
    );
    let names_full = rejection.message.contains("concurrency_cap");
    assert_eq!(names_full, !full.is_empty());
}
