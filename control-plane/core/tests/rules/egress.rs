//! Egress locks: `failure-state.md` §6 and §8, vectors 67 to 70. How decisions look at them is tested with routing.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use tidegate_core::classify::{Reason, TerminalKind};
use tidegate_core::egress::{EgressLock, EgressLocks, MAX_EGRESS_LOCKS, family_of, running};
use tidegate_core::ids::{EgressId, ProviderId};
use tidegate_core::outcome::{Attempt, Outcome};
use tidegate_core::settings::ProviderClass::Apikey;
use tidegate_core::state::apply::Applied;
use tidegate_core::state::{Event, StateValue, TransitionKind};
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status, terminal, with_header};

const T: u64 = 1_000_000;
const HOUR: u64 = 3_600_000;
const MONTHLY: &str = "monthly usage limit reached";

fn eu() -> EgressId {
    EgressId::new("eu").unwrap()
}

/// `opencode` with the accounts `c1`, `c2` and, banned, `c3`.
fn opencode() -> World {
    let mut world = World::named("opencode", Apikey);
    world.add("c2");
    world.add("c3");
    world.connection_mut("c3").terminal = Some(terminal(TerminalKind::Banned));
    world
}

fn sent_from(world: &mut World, connection: &str, egress: Option<EgressId>) -> Attempt {
    let mut attempt = world.send(connection);
    attempt.egress = egress;
    attempt
}

/// An attempt from `eu` on an account ends.
fn ends(world: &mut World, connection: &str, at: u64, outcome: Outcome) -> Applied {
    let attempt = sent_from(world, connection, Some(eu()));
    world.end(&attempt, at, outcome)
}

fn locked_until(world: &World, egress: &str, now: u64) -> Option<u64> {
    let egress = EgressId::new(egress).unwrap();
    let lock = running([&world.state.egress_locks], &egress, Timestamp(now));
    lock.map(|lock| lock.until.0)
}

fn cooling_until(world: &World, connection: &str) -> Option<u64> {
    let until = world.connection(connection).cooldown.until;
    until.map(|until| until.0)
}

#[rstest]
#[case::vector_failure_67(MONTHLY, HOUR, Reason::QuotaExhausted)]
#[case::plain("", 3_000, Reason::RateLimitExceeded)]
fn a_429_locks_the_identity_it_was_seen_under(
    #[case] body: &str,
    #[case] length_ms: u64,
    #[case] reason: Reason,
) {
    let mut world = opencode();
    let banned = world.connection("c3").clone();
    let applied = ends(&mut world, "c1", T, answer(429, body));
    let end = T + length_ms;
    assert_eq!(cooling_until(&world, "c1"), Some(end));
    assert_eq!(locked_until(&world, "eu", end - 1), Some(end));
    assert_eq!(locked_until(&world, "eu", end), None);
    assert_eq!(locked_until(&world, "us", T), None);
    // Siblings are not written (decision 23).
    assert_eq!(world.connection("c2"), &Default::default());
    assert_eq!(world.connection("c3"), &banned);
    let locked = TransitionKind::EgressLock {
        egress: eu(),
        until: Timestamp(end),
        reason,
    };
    assert!(applied.transitions.iter().any(|it| it.kind == locked));
}

#[rstest]
#[case::vector_failure_68(status(429), 3_000)]
#[case::monthly(answer(429, MONTHLY), HOUR)]
fn an_unknown_identity_cools_the_failing_connection_only(
    #[case] outcome: Outcome,
    #[case] length_ms: u64,
) {
    let mut world = opencode();
    let attempt = sent_from(&mut world, "c1", None);
    world.end(&attempt, T, outcome);
    assert_eq!(cooling_until(&world, "c1"), Some(T + length_ms));
    assert!(world.state.egress_locks.is_clean());
}

#[rstest]
#[case::vector_failure_69(10_000)]
#[case::longer_cooldowns_stay(2 * HOUR)]
fn a_sibling_keeps_its_own_cooldown_and_the_later_end_counts(#[case] own_ms: u64) {
    let mut world = opencode();
    let hint = (own_ms / 1_000).to_string();
    let sibling = sent_from(&mut world, "c2", Some(EgressId::new("us").unwrap()));
    world.end(&sibling, T, with_header(429, "retry-after", &hint));
    ends(&mut world, "c1", T, answer(429, MONTHLY));
    assert_eq!(cooling_until(&world, "c2"), Some(T + own_ms));
    let locked = locked_until(&world, "eu", T);
    let effective = cooling_until(&world, "c2").max(locked);
    assert_eq!(effective, Some(T + own_ms.max(HOUR)));
}

#[rstest]
#[case::vector_failure_70(answer(403, "monthly usage quota limit reached"))]
#[case::overloaded(answer(503, "quota exceeded"))]
#[case::a_400_about_rates(answer(400, "too many requests"))]
#[case::out_of_credits(answer(429, "insufficient_quota"))]
#[case::success(Outcome::Success)]
fn anything_but_a_limit_at_429_locks_no_identity(#[case] outcome: Outcome) {
    let mut world = opencode();
    ends(&mut world, "c1", T, outcome);
    assert!(world.state.egress_locks.is_clean());
}

/// The address comes before the model: also where quotas are per model, and for combos, the connection cools.
#[rstest]
#[case::alone(false)]
#[case::of_a_combo(true)]
fn a_limit_of_the_address_cools_the_connection_where_quotas_are_per_model(#[case] combo: bool) {
    let mut world = opencode();
    world.policy.per_model_quota = true;
    let attempt = sent_from(&mut world, "c1", Some(eu()));
    if combo {
        world.end_combo(&attempt, T, status(429));
    } else {
        world.end(&attempt, T, status(429));
    }
    assert_eq!(cooling_until(&world, "c1"), Some(T + 3_000));
    assert!(world.c1().locks.is_empty());
    assert_eq!(locked_until(&world, "eu", T), Some(T + 3_000));
}

/// What says something about the account or the model alone stays with it.
#[rstest]
#[case::another_status(status(503))]
#[case::out_of_credits(answer(429, "insufficient_quota"))]
fn other_failures_still_lock_the_model_where_quotas_are_per_model(#[case] outcome: Outcome) {
    let mut world = opencode();
    world.policy.per_model_quota = true;
    ends(&mut world, "c1", T, outcome);
    assert_eq!(cooling_until(&world, "c1"), None);
    assert_eq!(world.c1().locks.len(), 1);
    assert!(world.state.egress_locks.is_clean());
}

#[test]
fn a_connection_that_must_not_cool_locks_nothing() {
    let mut world = opencode();
    world.config("c1").disable_cooling = true;
    ends(&mut world, "c1", T, status(429));
    assert_eq!(cooling_until(&world, "c1"), None);
    assert!(world.state.egress_locks.is_clean());
}

#[test]
fn what_is_flagged_as_synthetic_locks_nothing() {
    let mut world = opencode();
    let mut attempt = sent_from(&mut world, "c1", Some(eu()));
    attempt.synthetic = true;
    world.end(&attempt, T, status(429));
    assert!(world.state.egress_locks.is_clean());
}

#[test]
fn a_provider_that_is_not_listed_locks_nothing() {
    let mut world = World::new(Apikey);
    ends(&mut world, "c1", T, status(429));
    assert!(world.state.egress_locks.is_clean());
}

/// A gateway's 403 that means a used-up quota cools the account; it does not speak of the address.
#[test]
fn a_restated_403_locks_nothing() {
    let settings = json!({"errorRules": {"egressBucketedProviders": ["agentrouter"]}});
    let settings = serde_json::from_value(settings).unwrap();
    let mut world = World::under("agentrouter", Apikey, &settings);
    ends(&mut world, "c1", T, answer(403, "用户额度不足"));
    assert!(cooling_until(&world, "c1").is_some());
    assert!(world.state.egress_locks.is_clean());
    ends(&mut world, "c1", T + HOUR, status(429));
    assert!(locked_until(&world, "eu", T + HOUR).is_some());
}

/// A failure of a running episode locks what it was seen under until the end that stands, and raises nothing.
#[test]
fn failures_of_one_episode_lock_each_identity_until_its_end() {
    let mut world = opencode();
    let late = sent_from(&mut world, "c1", Some(EgressId::new("us").unwrap()));
    ends(&mut world, "c1", T, status(429));
    world.end(&late, T + 500, status(429));
    assert_eq!(world.cooldown(), (Some(T + 3_000), 1));
    assert_eq!(locked_until(&world, "us", T + 500), Some(T + 3_000));
    // Reported after the end, it has nothing to add.
    let before = world.state.clone();
    world.end(&late, T + 4_000, status(429));
    assert_eq!(locked_until(&world, "us", T + 4_000), None);
    assert_eq!(world.state.egress_locks, before.egress_locks);
}

#[test]
fn a_success_ends_no_lock_and_drops_what_has_passed() {
    let mut world = opencode();
    ends(&mut world, "c1", T, status(429));
    ends(&mut world, "c2", T + 1_000, Outcome::Success);
    assert_eq!(locked_until(&world, "eu", T + 1_000), Some(T + 3_000));
    assert!(!world.state.is_clean());
    ends(&mut world, "c2", T + 3_000, Outcome::Success);
    assert!(world.state.is_clean());
}

#[test]
fn an_operator_ends_locks_and_what_was_under_way_does_not_bring_them_back() {
    let mut world = opencode();
    let under_way = sent_from(&mut world, "c2", Some(eu()));
    ends(&mut world, "c1", T, status(429));
    let now = Timestamp(T + 500);
    assert!(world.event(None, &Event::ResetEgressLocks, now).changed);
    assert!(world.state.is_clean());
    world.end(&under_way, T + 600, status(429));
    assert_eq!(locked_until(&world, "eu", T + 600), None);
    ends(&mut world, "c2", T + 5_000, status(429));
    assert!(locked_until(&world, "eu", T + 5_000).is_some());
}

#[rstest]
#[case::opencode("opencode", &["opencode", "opencode-cli", "opencode-go"])]
#[case::its_sibling("opencode-go", &["opencode", "opencode-cli", "opencode-go"])]
#[case::alone("acme", &["acme"])]
#[case::not_listed("other", &[])]
fn families_are_told_by_id(#[case] provider: &str, #[case] family: &[&str]) {
    let ids = |ids: &[&str]| -> Vec<ProviderId> {
        ids.iter().map(|id| ProviderId::new(*id).unwrap()).collect()
    };
    let listed = ids(&["opencode-go", "acme", "opencode", "opencode-cli", "acme"]);
    let provider = ProviderId::new(provider).unwrap();
    assert_eq!(family_of(&provider, &listed), ids(family));
}

/// A value written before there were locks has none.
#[test]
fn a_value_without_locks_can_be_read() {
    let world = opencode();
    let mut written = serde_json::to_value(StateValue::Provider(world.state)).unwrap();
    let members = written["provider"].as_object_mut().unwrap();
    assert!(members.remove("egress_locks").is_some());
    let read: StateValue = serde_json::from_value(written).unwrap();
    assert!(read.is_clean());
}

fn named(number: u8) -> EgressId {
    EgressId::new(format!("e{number}")).unwrap()
}

/// What accounts of `opencode` may answer.
fn outcomes() -> Vec<Outcome> {
    vec![
        Outcome::Success,
        status(429),
        answer(429, MONTHLY),
        with_header(429, "retry-after", "600"),
        answer(429, "insufficient_quota"),
        status(503),
        status(401),
    ]
}

proptest! {
    /// Whatever is reported, in any order and twice: no running lock ends earlier, none outlasts the cooldowns that
    /// were ever set, and a report that comes again changes nothing.
    #[test]
    fn locks_follow_cooldowns_for_reports_in_any_order(
        steps in prop::collection::vec((0..2_usize, 0..3_u8, 0..7_usize, 0..9_000_u64, any::<bool>()), 1..40),
    ) {
        let mut world = opencode();
        let outcomes = outcomes();
        let mut longest = 0;
        let mut sent = Vec::new();
        for (connection, egress, ..) in &steps {
            let connection = ["c1", "c2"][*connection];
            sent.push((connection, sent_from(&mut world, connection, Some(named(*egress)))));
        }
        for ((connection, attempt), (.., outcome, at, renew)) in sent.into_iter().zip(steps) {
            let mut attempt = attempt;
            if renew {
                attempt.decided_on = world.send(connection).decided_on;
            }
            let before = world.state.egress_locks.clone();
            let at = T + at;
            world.end(&attempt, at, outcomes[outcome].clone());
            longest = longest.max(cooling_until(&world, connection).unwrap_or(0));
            let after = world.state.egress_locks.clone();
            for old in before.iter().filter(|old| old.until.0 > at) {
                prop_assert!(after.of(&old.egress).is_some_and(|kept| kept.until >= old.until));
            }
            prop_assert!(after.iter().all(|lock| lock.until.0 <= longest));
            world.end(&attempt, at, outcomes[outcome].clone());
            prop_assert_eq!(&after, &world.state.egress_locks);
        }
    }

    /// A lock never ends earlier unless it makes room, and what stays are the ones that end last.
    #[test]
    fn locks_never_become_shorter_and_are_bounded(
        steps in prop::collection::vec((0..100_u8, 1..1_000_u64, 0..200_u64), 1..300),
    ) {
        let mut locks = EgressLocks::default();
        for (name, end, at) in steps {
            let before = locks.clone();
            let at = Timestamp(at);
            let lock = EgressLock {
                egress: named(name),
                until: Timestamp(end),
                reason: Reason::RateLimitExceeded,
            };
            let changed = locks.lock(lock.clone(), at);
            prop_assert_eq!(changed, before.of(&lock.egress) != Some(&lock)
                && locks.of(&lock.egress) == Some(&lock));
            prop_assert!(locks.iter().count() <= MAX_EGRESS_LOCKS);
            prop_assert!(locks.iter().is_sorted_by(|one, other| one.egress < other.egress));
            let earliest = locks.iter().map(|lock| lock.until).min();
            for old in before.iter().filter(|old| old.is_running(at)) {
                match locks.of(&old.egress) {
                    Some(kept) => prop_assert!(kept.until >= old.until),
                    None => prop_assert!(earliest >= Some(old.until)),
                }
            }
        }
    }
}
