//! Leased and reserved connections (gate 3a; decisions 41 and 42b).

use rstest::rstest;

use super::*;
use crate::classify::TerminalKind;
use crate::cooldown::Terminal;
use crate::lease::{Capacity, Generation, LeaseError, LeaseId, LeaseName, OwnerHash};
use crate::outcome::LocalFault;
use crate::state::LeaseMirror;

/// `p1` has `c1`, which a key may lease, and `c3`, which nobody may.
fn world(settings: Value) -> World {
    let mut settings_of = no_waits();
    settings_of["leases"] = settings;
    World::of(
        json!({
            "providers": [{"id": "p1", "protocol": "openai", "baseUrl": "https://x.example/v1"}],
            "connections": [
                {"id": "c1", "provider": "p1", "priority": 1},
                {"id": "c3", "provider": "p1", "priority": 2},
            ],
            "keys": [
                {"id": "leasing", "sha256": "aa".repeat(32), "allowedConnections": ["c1"],
                 "scopes": ["lease:exclusive"]},
                {"id": "plain", "sha256": "bb".repeat(32)},
            ],
            "settings": settings_of,
        }),
        "p1/m",
    )
}

fn leased(left_ms: u64) -> ConnectionState {
    ConnectionState {
        lease: Some(LeaseMirror {
            sequence: 1,
            lease: LeaseId(1),
            since: START,
            until: START.plus_ms(left_ms),
            ended_at: None,
        }),
        ..ConnectionState::default()
    }
}

fn key(world: &World, sha256: &str) -> Option<Arc<ApiKey>> {
    world.config.key_by_hash(&sha256.repeat(32)).cloned()
}

fn lease_name() -> LeaseName {
    LeaseName {
        owner: OwnerHash::from_bytes([1; 32]),
        generation: Generation::after(None).unwrap(),
    }
}

fn only(world: &mut World, connection: &str) {
    world.facts.forced_connection = Some(ConnectionId::new(connection).unwrap());
}

#[rstest]
#[case::vector_sessions_24_free_may_be_used(false, false, "c1")]
#[case::vector_sessions_24_leased_may_not(false, true, "c3")]
#[case::vector_sessions_24_reserved_and_free(true, false, "c3")]
#[case::vector_sessions_24_reserved_and_leased(true, true, "c3")]
fn requests_without_a_lease_go_where_no_lease_is(
    #[case] reserve_pool: bool,
    #[case] is_leased: bool,
    #[case] goes_to: &str,
) {
    let mut world = world(json!({"reservePool": reserve_pool}));
    if is_leased {
        world.connection_state("c1", leased(60_000));
    }
    for key in [None, key(&world, "bb")] {
        world.facts.key = key;
        assert_eq!(world.dispatch().connection.as_str(), goes_to);
    }
}

#[rstest]
#[case::no_lease_named(true, false, false)]
#[case::a_key_that_may_not_lease(false, true, false)]
#[case::a_lease(true, true, true)]
fn only_a_key_that_may_lease_and_names_one_is_managed(
    #[case] leasing: bool,
    #[case] named: bool,
    #[case] managed: bool,
) {
    let mut world = world(json!({"reservePool": true}));
    world.connection_state("c1", leased(60_000));
    only(&mut world, "c1");
    world.facts.key = key(&world, if leasing { "aa" } else { "bb" });
    world.facts.lease = named.then(lease_name);
    assert_eq!(world.facts.is_managed(), managed);
    assert_eq!(matches!(world.decide(), Decision::Dispatch(_)), managed);
}

#[test]
fn a_lease_excludes_until_its_end() {
    let mut world = world(json!({}));
    world.connection_state("c1", leased(5_000));
    only(&mut world, "c1");
    let exclusion = world.reject().excluded[0].clone();
    assert_eq!(exclusion.reason, ExclusionReason::Leased);
    assert_eq!(exclusion.until, Some(START.plus_ms(5_000)));
    world.now = START.plus_ms(4_999);
    assert_eq!(world.reject().code, "lease-capacity-unavailable");
    world.now = START.plus_ms(5_000);
    assert_eq!(world.dispatch().connection.as_str(), "c1");
}

/// The contract's answer, at once even where cooldowns are waited for.
#[rstest]
#[case::rounded_up(59_001, 60)]
#[case::at_least_one_second(1, 1)]
#[case::at_most_an_hour(9_000_000, 3_600)]
fn all_being_leased_is_want_of_capacity(#[case] left_ms: u64, #[case] seconds: u64) {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m", "p1/n"], json!({}), json!({}));
    world.connection_state("k1", leased(left_ms));
    world.connection_state("k2", leased(left_ms.saturating_add(1)));
    let rejection = world.reject();
    let capacity = Capacity {
        retry_after_seconds: seconds,
        eligible: 2,
    };
    assert_eq!(rejection.lease, Some(LeaseError::Capacity(capacity)));
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (429, "lease-capacity-unavailable")
    );
    assert_eq!(rejection.error_type, "lease_error");
    assert_eq!(rejection.retry_after_secs, Some(seconds));
    assert_eq!(rejection.excluded.len(), 4);
    assert!(
        rejection
            .excluded
            .iter()
            .all(|it| it.reason == ExclusionReason::Leased)
    );
}

/// `k1` is leased; what becomes of the answer with `k2` in this state.
#[rstest]
#[case::never_usable(ConnectionState {
    terminal: Some(Terminal { kind: TerminalKind::Banned, since: START, credential_version: 1, switched_off: false }),
    ..ConnectionState::default()
}, 429, "lease-capacity-unavailable")]
#[case::cooling(
    cooling(9_000, Reason::RateLimitExceeded),
    503,
    "all_targets_cooling_down"
)]
fn other_timers_make_the_answer_the_ordinary_one(
    #[case] other: ConnectionState,
    #[case] status: u16,
    #[case] code: &str,
) {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    world.connection_state("k1", leased(5_000));
    world.connection_state("k2", other);
    let rejection = world.reject();
    assert_eq!((rejection.status, rejection.code.as_str()), (status, code));
    assert_eq!(rejection.lease.is_some(), status == 429);
    assert_eq!(rejection.retry_after_secs, Some(5));
}

#[test]
fn a_full_account_beside_leased_ones_makes_the_answer_the_ordinary_one() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    world.connection_state("k1", leased(5_000));
    world.view.full.insert(ConnectionId::new("k2").unwrap());
    let rejection = world.reject();
    assert_eq!(
        (rejection.lease, rejection.code.as_str()),
        (None, "all_targets_cooling_down")
    );
}

#[test]
fn reserved_connections_alone_are_no_want_of_capacity() {
    let mut world = world(json!({"reservePool": true}));
    world.connection_state("c1", leased(5_000));
    only(&mut world, "c1");
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (404, "no_executable_targets")
    );
    assert_eq!(rejection.excluded[0].reason, ExclusionReason::Reserved);
    let explained = world.with_input(explain);
    let reasons: Vec<&str> = explained.targets[0]
        .exclusions
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    assert_eq!(reasons, ["reserved", "leased"]);
}

/// The end of a lease is not waited for: of a leased account and one that cools, the cooldown is.
#[test]
fn a_lease_is_never_waited_for() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), json!({}));
    world.connection_state("k1", leased(500));
    world.connection_state("k2", cooling(3_000, Reason::RateLimitExceeded));
    let Decision::Wait(wait) = world.decide() else {
        panic!("it waits for the cooldown");
    };
    assert!(wait.wait_ms >= 3_000, "{wait:?}");
}

/// `k1` is the account of the request's lease and expires; `k2`, which it never goes to, cools down.
#[test]
fn vector_sessions_35_under_a_lease_no_other_account_is_waited_for() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), json!({}));
    world.connection_state("k2", cooling(3_000, Reason::RateLimitExceeded));
    let expired = Outcome::Local(LocalFault::ExecutionExpired);
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "k1");
    world.fail(&dispatch, &expired);
    assert!(matches!(world.decide(), Decision::Wait(_)));
    world.facts.leased = Some(ConnectionId::new("k1").unwrap());
    assert_eq!(world.reject().status, 504);
}

/// The cooldown of the leased account itself is.
#[test]
fn under_a_lease_its_own_account_is_waited_for() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), json!({}));
    world.connection_state("k1", cooling(3_000, Reason::RateLimitExceeded));
    world.facts.leased = Some(ConnectionId::new("k1").unwrap());
    assert!(matches!(world.decide(), Decision::Wait(_)));
}

/// A request that failed elsewhere gets the answer of its failures, not that of leases.
#[test]
fn failures_tell_more_than_leases() {
    let mut world = World::combo(&["p1/k1", "p1/k2"], &["p1/m"], json!({}), no_waits());
    world.connection_state("k2", leased(5_000));
    let journey = world.run(|_, _| status(503));
    assert!(journey.attempts.iter().all(|attempt| attempt == "p1/k1/m"));
    assert_eq!(journey.rejection().lease, None);
    assert_eq!(journey.rejection().code, "all_models_failed");
}

mod cut_off {
    use super::*;

    fn decided(world: &World) -> Decision {
        world.with_input(decide_cut_off)
    }

    fn sent_to(world: &World) -> String {
        match decided(world) {
            Decision::Dispatch(dispatch) => dispatch.connection.to_string(),
            other => panic!("expected a dispatch, got {other:?}"),
        }
    }

    #[test]
    fn what_may_be_leased_comes_last() {
        let mut world = world(json!({}));
        assert_eq!(sent_to(&world), "c3");
        world.connection_state("c3", cooling(9_000, Reason::ServerError));
        assert_eq!(sent_to(&world), "c1");
        world.connection_state("c1", leased(9_000));
        let Decision::Reject(rejection) = decided(&world) else {
            panic!("a lease that was heard of holds");
        };
        let reasons: Vec<ExclusionReason> = rejection.excluded.iter().map(|it| it.reason).collect();
        assert_eq!(
            reasons,
            [ExclusionReason::Leased, ExclusionReason::ConnectionCooldown]
        );
    }

    #[test]
    fn it_comes_before_any_wait() {
        let mut world = world(json!({}));
        let mut document = Document::clone(&world.config.document);
        document.settings = Default::default();
        world.config = Config::build(document, 1, &Overrides::default()).unwrap();
        world.connection_state("c3", cooling(3_000, Reason::RateLimitExceeded));
        assert_eq!(sent_to(&world), "c1");
        world.connection_state("c1", leased(9_000));
        assert!(matches!(decided(&world), Decision::Wait(_)));
    }

    #[test]
    fn with_the_pool_reserved_it_does_not_come_at_all() {
        let mut world = world(json!({"reservePool": true}));
        only(&mut world, "c1");
        assert!(matches!(decided(&world), Decision::Reject(_)));
    }

    #[test]
    fn a_request_with_a_lease_goes_where_it_goes_elsewhere() {
        let mut world = world(json!({}));
        world.facts.key = key(&world, "aa");
        world.facts.lease = Some(lease_name());
        world.connection_state("c1", leased(9_000));
        assert_eq!(sent_to(&world), "c1");
    }

    /// Of all targets, not only of the first: another target's ordinary account comes before the pool.
    #[test]
    fn it_comes_after_the_ordinary_accounts_of_every_target() {
        let mut world = World::of(
            json!({
                "providers": [
                    {"id": "p1", "protocol": "openai", "baseUrl": "https://x.example/v1"},
                    {"id": "p2", "protocol": "openai", "baseUrl": "https://y.example/v1"},
                ],
                "connections": [{"id": "c1", "provider": "p1"}, {"id": "c2", "provider": "p2"}],
                "combos": [{"name": "c", "steps": ["p1/m", "p2/m"]}],
                "keys": [{"id": "leasing", "sha256": "aa".repeat(32), "allowedConnections": ["c1"],
                          "scopes": ["lease:exclusive"]}],
                "settings": no_waits(),
            }),
            "c",
        );
        assert_eq!(sent_to(&world), "c2");
        let Decision::Dispatch(dispatch) = decided(&world) else {
            panic!("it is sent");
        };
        world.fail(&dispatch, &upstream_error(503, "", None));
        world.now = world.now.plus_ms(10_000);
        assert_eq!(sent_to(&world), "c1");
    }
}
