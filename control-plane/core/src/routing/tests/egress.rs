//! Gate 2a: what decisions make of egress locks (`failure-state.md` §6, vectors 67 to 69).

use rstest::rstest;

use super::*;
use crate::egress::EgressLock;
use crate::outcome::AttemptOutcome;
use crate::state::apply::{Subject, apply};
use crate::state::{Event, StateValue};

const HOUR: u64 = 3_600_000;

fn egress(name: &str) -> EgressId {
    EgressId::new(name).unwrap()
}

/// The combo `c` of the accounts `a`, `b` and `d` of `opencode` and `g` of `opencode-go`, asked from `eu`.
fn world(settings: Value) -> World {
    let accounts = [
        "opencode/a",
        "opencode/b",
        "opencode/d",
        "opencode-go/g",
        "other/o",
    ];
    let steps = ["opencode/m", "opencode-go/m", "other/m"];
    let mut world = World::combo(&accounts, &steps, json!({}), settings);
    world.egress = Some(egress("eu"));
    world
}

/// A 429 about the month's quota on account `a`, of an attempt that left from `eu`, reported and stored.
fn month_is_used_up(world: &mut World) {
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "a");
    let provider = dispatch.provider.clone();
    let outcome = upstream_error(429, "monthly usage limit reached", None);
    let policy = &world.config.provider(&provider).unwrap().policy;
    let context = ClassifyContext::of(&provider, policy, &dispatch.model, START);
    let mut attempt = prior(&dispatch, classify(&outcome, &context), START, 0).attempt;
    attempt.egress = world.egress.clone();
    let mut provider_state = ProviderState::default();
    let mut state = ConnectionState::default();
    let config = world.config.connection(&dispatch.connection).unwrap();
    let event = Event::Outcome(Box::new(AttemptOutcome {
        attempt,
        outcome,
        occurred_at: START,
        next_target_same_provider: false,
        combo: true,
        count: 1,
    }));
    apply(
        Subject {
            provider: &mut provider_state,
            connection: Some((config, &mut state)),
        },
        &event,
        START,
        policy,
        &provider,
    );
    let mut stored = StateValue::Provider(provider_state);
    stored.resolve_marks(Version::new(7, 1));
    if let StateValue::Provider(provider_state) = stored {
        world
            .view
            .providers
            .insert(provider, Arc::new(provider_state));
    }
    world.connection_state("a", state);
}

/// `connection: reasons` of every account, as explained.
fn told(world: &World) -> Vec<String> {
    let explanation = world.with_input(explain);
    explanation
        .targets
        .iter()
        .map(|target| {
            let reasons: Vec<_> = target
                .exclusions
                .iter()
                .map(|exclusion| exclusion.reason.as_str())
                .collect();
            let connection = target.connection.as_ref().unwrap();
            format!("{connection}: {}", reasons.join(" "))
        })
        .collect()
}

/// The account that failed cools, all of the family are kept from the address, and nobody else is.
#[rstest]
#[case::vector_failure_67(json!({"waitForCooldown": {"enabled": false}}))]
fn the_family_is_left_alone_from_the_address_it_refuses(#[case] settings: Value) {
    let mut world = world(settings);
    let banned = ConnectionState {
        terminal: Some(crate::cooldown::Terminal {
            kind: crate::classify::TerminalKind::Banned,
            since: START,
            credential_version: 1,
            switched_off: false,
        }),
        ..ConnectionState::default()
    };
    world.connection_state("d", banned);
    month_is_used_up(&mut world);
    assert_eq!(
        told(&world),
        [
            "a: egress_locked connection_cooldown",
            "b: egress_locked",
            "d: terminal:banned egress_locked",
            "g: egress_locked",
            "o: ",
        ]
    );
    let dispatch = world.dispatch();
    assert_eq!(dispatch.connection.as_str(), "o");
    for exclusion in dispatch.excluded.iter().filter(|it| it.reason.is_timer()) {
        assert_eq!(exclusion.until, Some(START.plus_ms(HOUR)));
        assert_eq!(exclusion.cause, Some(Reason::QuotaExhausted));
    }
    // Named without a combo it is the same.
    world.facts.model = "opencode-go/m".to_owned();
    let rejection = world.reject();
    assert_eq!(
        (rejection.status, rejection.retry_after_secs),
        (503, Some(3_600))
    );
    world.now = START.plus_ms(HOUR);
    assert_eq!(world.dispatch().connection.as_str(), "g");
}

#[rstest]
#[case::vector_failure_67_another_identity(Some("us"))]
#[case::vector_failure_68_unknown(None)]
fn other_identities_are_not_concerned(#[case] from: Option<&str>) {
    let mut world = world(no_waits());
    month_is_used_up(&mut world);
    world.egress = from.map(egress);
    assert_eq!(
        told(&world),
        ["a: connection_cooldown", "b: ", "d: ", "g: ", "o: "]
    );
    assert_eq!(world.dispatch().connection.as_str(), "b");
}

#[rstest]
#[case::vector_failure_69(10_000)]
fn a_sibling_that_cools_for_less_is_used_when_both_have_ended(#[case] own_ms: u64) {
    let mut world = world(no_waits());
    world.connection_state("b", cooling(own_ms, Reason::RateLimitExceeded));
    month_is_used_up(&mut world);
    world.facts.model = "opencode/m".to_owned();
    world.facts.forced_connection = Some(ConnectionId::new("b").unwrap());
    world.now = START.plus_ms(own_ms);
    assert_eq!(
        world.reject().excluded[0].until,
        Some(START.plus_ms(HOUR)),
        "its own cooldown is over"
    );
    world.now = START.plus_ms(HOUR);
    assert_eq!(world.dispatch().connection.as_str(), "b");
}

/// An account that must not cool is used all the same, and a provider taken off the list is free at once.
#[test]
fn the_lock_acts_as_configured_now() {
    let mut world = world(no_waits());
    month_is_used_up(&mut world);
    let mut document = Document::clone(&world.config.document);
    document.connections[1].disable_cooling = true;
    world.config = Config::build(document.clone(), 1, &Overrides::default()).unwrap();
    assert_eq!(world.dispatch().connection.as_str(), "b");
    let unlisted = json!({"errorRules": {"egressBucketedProviders": []}});
    document.settings = serde_json::from_value(unlisted).unwrap();
    world.config = Config::build(document, 1, &Overrides::default()).unwrap();
    assert_eq!(
        told(&world),
        ["a: connection_cooldown", "b: ", "d: ", "g: ", "o: "]
    );
}

/// A request sees the lock of its own failure at once.
#[test]
fn a_request_does_not_go_on_to_the_family_from_the_same_address() {
    let mut world = world(no_waits());
    let dispatch = world.dispatch();
    let outcome = upstream_error(429, "", None);
    world.fail(&dispatch, &outcome);
    world.so_far.attempts[0].attempt.egress = world.egress.clone();
    assert_eq!(world.dispatch().connection.as_str(), "o");
    world.so_far.attempts[0].attempt.egress = None;
    assert_eq!(world.dispatch().connection.as_str(), "b");
}

/// A short lock is waited for like a cooldown.
#[test]
fn a_combo_waits_for_the_lock() {
    let waits = json!({"comboCooldownWait": {"maxWaitMs": 30_000}});
    let mut world = World::combo(&["opencode/a"], &["opencode/m"], json!({}), waits);
    world.egress = Some(egress("eu"));
    let mut state = ProviderState::default();
    let lock = EgressLock {
        egress: egress("eu"),
        until: START.plus_ms(2_000),
        reason: Reason::RateLimitExceeded,
    };
    assert!(state.egress_locks.lock(lock, START));
    let provider = ProviderId::new("opencode").unwrap();
    world.view.providers.insert(provider, Arc::new(state));
    let journey = world.run(|_, _| Reply::Success);
    assert_eq!(journey.cooldown_waits(), [2_050]);
    assert_eq!(journey.attempts, ["opencode/a/m"]);
}
