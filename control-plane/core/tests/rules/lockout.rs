//! `failure-state.md` §8: model lockout, vectors 36, 55 to 63.

use rstest::rstest;
use tidegate_core::classify::Reason;
use tidegate_core::daily_reset::DailyReset;
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::lockout::{LockKey, MAX_LOCKS, ModelLock, covering, quota_family};
use tidegate_core::outcome::Outcome;
use tidegate_core::settings::ProviderClass;
use tidegate_core::settings::ProviderClass::{Apikey, Oauth};
use tidegate_core::state::Event;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Mark;

use super::world::{MODEL, World, answer, status, with_header};

fn on(class: ProviderClass) -> World {
    let mut world = World::new(class);
    world.policy.lockout.enabled = true;
    world
}

/// End and count of the lock on the model that attempts ask for.
fn lock(world: &World) -> Option<(u64, u32)> {
    world
        .c1()
        .locks
        .first()
        .map(|lock| (lock.until.0, lock.failure_count))
}

fn blocked(world: &World, model: &str, now: u64) -> bool {
    let model = ModelId::new(model).unwrap();
    covering(&world.c1().locks, &world.provider, &model, Timestamp(now)).is_some()
}

fn put(world: &mut World, until: u64, count: u32, last_failure_at: u64) {
    world.connection_mut("c1").locks = vec![ModelLock {
        key: LockKey::Exact(MODEL.to_owned()),
        until: Timestamp(until),
        failure_count: count,
        last_failure_at: Timestamp(last_failure_at),
        last_cooldown_ms: until.saturating_sub(last_failure_at),
        reason: Reason::ServerError,
        origin: None,
        locked_at: Timestamp(0),
        escalated: Mark::Never,
        changed: Mark::Never,
    }];
}

#[rstest]
#[case::vector_failure_36(a_402_without_text_locks_the_model_where_quotas_are_per_model)]
#[case::vector_failure_55(a_combo_failure_locks_exactly_the_model)]
#[case::vector_failure_56(failures_within_the_window_escalate)]
#[case::vector_failure_57(the_fifth_lock_is_the_longest)]
#[case::vector_failure_58(each_success_halves_the_count)]
#[case::vector_failure_59(codex_locks_a_family_on_429_and_a_model_on_502)]
#[case::vector_failure_60(a_used_up_quota_lasts_until_midnight_within_the_cap)]
#[case::vector_failure_61(a_lock_never_becomes_shorter)]
#[case::vector_failure_62(without_growth_every_lock_lasts_the_base)]
#[case::vector_failure_63(switched_off_combos_lock_nothing)]
#[case::in_flight(failures_in_flight_are_one)]
#[case::authoritative(only_an_authoritative_hint_exceeds_the_cap)]
#[case::shapes(a_look_up_finds_the_latest_ending_of_all_shapes)]
#[case::decay_in_flight(a_slow_success_does_not_erase_a_fresh_lock)]
#[case::no_combo(a_success_outside_of_combos_lowers_nothing)]
#[case::pruned(a_lock_that_matters_no_more_is_dropped)]
#[case::clear(an_operator_clears_by_model_or_all)]
#[case::cap(a_connection_keeps_a_bounded_number)]
#[case::per_model(per_model_quotas_keep_the_connection_active)]
#[case::families(antigravity_shares_quotas_by_family)]
#[case::own_word(a_connection_says_for_itself_how_its_quota_is_kept)]
#[case::tiers(factory_shares_quotas_by_tier)]
fn lockout(#[case] run: fn()) {
    run();
}

fn a_402_without_text_locks_the_model_where_quotas_are_per_model() {
    let mut world = World::new(Apikey);
    world.policy.per_model_quota = true;
    world.fail(0, status(402));
    assert_eq!(lock(&world), Some((3_000, 1)));
    assert_eq!(world.c1().locks[0].reason, Reason::Credits);
    assert_eq!((world.cooldown(), &world.c1().terminal), ((None, 0), &None));
}

fn a_combo_failure_locks_exactly_the_model() {
    let mut world = on(Apikey);
    world.fail_combo(0, status(503));
    assert_eq!(lock(&world), Some((120_000, 1)));
    assert_eq!(world.c1().locks[0].key, LockKey::Exact(MODEL.to_owned()));
    assert!(blocked(&world, MODEL, 120_000) && !blocked(&world, MODEL, 120_001));
    assert!(blocked(&world, "M", 1), "names are compared in lower case");
    assert!(!blocked(&world, "other", 1));
}

fn failures_within_the_window_escalate() {
    for (at, expected) in [
        (140_000, (380_000, 2)),
        (150_000, (390_000, 2)),
        (150_001, (270_001, 1)),
    ] {
        let mut world = on(Apikey);
        world.fail_combo(0, status(503));
        world.fail_combo(at, status(503));
        assert_eq!(lock(&world), Some(expected), "at {at}");
    }
}

fn the_fifth_lock_is_the_longest() {
    let mut world = on(Apikey);
    put(&mut world, 960_000, 4, 0);
    world.fail_combo(970_000, status(503));
    assert_eq!(lock(&world), Some((970_000 + 1_800_000, 5)));
}

fn each_success_halves_the_count() {
    let mut world = on(Apikey);
    put(&mut world, 1_800_000, 5, 0);
    for expected in [Some((1_800_000, 2)), Some((1_800_000, 1)), None] {
        world.fail_combo(1_900_000, Outcome::Success);
        assert_eq!(lock(&world), expected);
    }
}

fn codex_locks_a_family_on_429_and_a_model_on_502() {
    let send = |code: u16| {
        let mut world = World::named("codex", Oauth);
        world.policy.lockout.enabled = true;
        let mut attempt = world.send("c1");
        attempt.model = ModelId::new("gpt-5.1").unwrap();
        world.end_combo(&attempt, 0, status(code));
        world
    };
    let limited = send(429);
    assert_eq!(limited.cooldown(), (None, 0), "the account is untouched");
    assert!(blocked(&limited, "gpt-5.1", 1) && blocked(&limited, "gpt-5.2", 1));
    assert!(
        !blocked(&limited, "gpt-5.3-codex-spark", 1),
        "the other scope"
    );
    let failed = send(502);
    assert!(blocked(&failed, "gpt-5.1", 1) && !blocked(&failed, "gpt-5.2", 1));
}

fn a_used_up_quota_lasts_until_midnight_within_the_cap() {
    let nine = 20_000 * 86_400_000 + 9 * 3_600_000;
    let mut world = on(Oauth);
    world.fail_combo(nine, answer(429, "quota exceeded"));
    assert_eq!(world.c1().locks[0].reason, Reason::QuotaExhausted);
    assert_eq!(lock(&world), Some((nine + 1_800_000, 1)));
    let mut world = on(Oauth);
    let near_midnight = nine + 15 * 3_600_000 - 600_000;
    world.fail_combo(near_midnight, answer(429, "quota exceeded"));
    assert_eq!(lock(&world), Some((near_midnight + 600_000, 1)));
    let mut world = on(Oauth);
    world.policy.lockout.daily_reset = DailyReset::stated("Asia/Tokyo", 0).unwrap();
    let nine_in_tokyo = 20_000 * 86_400_000;
    let near_its_midnight = nine_in_tokyo + 15 * 3_600_000 - 600_000;
    for (at, length_ms) in [(nine_in_tokyo, 1_800_000), (near_its_midnight, 600_000)] {
        let mut world = world.clone();
        world.fail_combo(at, answer(429, "quota exceeded"));
        assert_eq!(
            lock(&world),
            Some((at + length_ms, 1)),
            "the provider's zone"
        );
    }
}

fn a_lock_never_becomes_shorter() {
    let mut world = on(Apikey);
    world.policy.lockout.exponential = false;
    put(&mut world, 600_000, 2, 0);
    world.fail_combo(1_000, status(503));
    assert_eq!(lock(&world), Some((600_000, 3)));
}

fn without_growth_every_lock_lasts_the_base() {
    let mut world = on(Apikey);
    world.policy.lockout.exponential = false;
    for (number, at) in [(1, 0), (2, 125_000), (3, 250_000)] {
        world.fail_combo(at, status(503));
        assert_eq!(lock(&world), Some((at + 120_000, number)));
    }
}

fn switched_off_combos_lock_nothing() {
    let mut world = World::new(Apikey);
    world.fail_combo(0, status(503));
    assert_eq!(lock(&world), None);
    assert_eq!(world.cooldown(), (Some(3_000), 1));
}

fn failures_in_flight_are_one() {
    let mut world = on(Apikey);
    let attempts: Vec<_> = (0..5).map(|_| world.send("c1")).collect();
    for (number, attempt) in (0..).zip(&attempts) {
        world.end_combo(attempt, number * 1_000, status(503));
    }
    assert_eq!(lock(&world), Some((120_000, 1)));
}

fn only_an_authoritative_hint_exceeds_the_cap() {
    let mut world = on(Apikey);
    world.fail_combo(0, with_header(429, "retry-after", "7200"));
    assert_eq!(lock(&world), Some((7_200_000, 1)));
    let mut world = on(Oauth);
    world.fail_combo(0, with_header(429, "retry-after", "7200"));
    assert_eq!(lock(&world), Some((120_000, 1)), "hints are not trusted");
}

fn a_look_up_finds_the_latest_ending_of_all_shapes() {
    let mut world = on(Apikey);
    world.fail_combo(0, status(503));
    world.fail_combo(50_000, status(429));
    assert_eq!(world.c1().locks.len(), 2);
    let model = ModelId::new(MODEL).unwrap();
    let found = covering(
        &world.c1().locks,
        &world.provider,
        &model,
        Timestamp(60_000),
    )
    .unwrap();
    assert_eq!(found.key, LockKey::Model(model));
    assert_eq!(found.until, Timestamp(170_000));
}

fn a_slow_success_does_not_erase_a_fresh_lock() {
    let mut world = on(Apikey);
    let slow = world.send("c1");
    world.fail_combo(0, status(503));
    world.end_combo(&slow, 1_000, Outcome::Success);
    assert_eq!(lock(&world), Some((120_000, 1)));
}

fn a_success_outside_of_combos_lowers_nothing() {
    let mut world = on(Apikey);
    put(&mut world, 1_800_000, 5, 0);
    world.fail(1_900_000, Outcome::Success);
    assert_eq!(lock(&world), Some((1_800_000, 5)));
}

fn a_lock_that_matters_no_more_is_dropped() {
    let mut world = on(Apikey);
    world.fail_combo(0, status(503));
    let mut other = world.send("c1");
    other.model = ModelId::new("other").unwrap();
    world.end_combo(&other, 150_000, status(503));
    assert_eq!(world.c1().locks.len(), 2, "the first still escalates");
    other.model = ModelId::new("third").unwrap();
    world.end_combo(&other, 150_001, status(503));
    assert_eq!(world.c1().locks.len(), 2);
    assert!(!blocked(&world, MODEL, 0));
}

fn an_operator_clears_by_model_or_all() {
    let mut world = on(Apikey);
    world.fail_combo(0, status(503));
    world.fail_combo(1_000, status(429));
    let clear = |world: &mut World, model: Option<&str>| {
        let event = Event::ClearLocks {
            connection: world.config("c1").id.clone(),
            model: model.map(|model| ModelId::new(model).unwrap()),
        };
        world.event(Some("c1"), &event, Timestamp(2_000)).changed
    };
    assert!(!clear(&mut world, Some("other")));
    assert!(clear(&mut world, Some(MODEL)));
    assert!(world.c1().locks.is_empty());
    assert!(!clear(&mut world, None));
}

fn a_connection_keeps_a_bounded_number() {
    let mut world = on(Apikey);
    for number in 0..100_u64 {
        let mut attempt = world.send("c1");
        attempt.model = ModelId::new(format!("m{number}")).unwrap();
        world.end_combo(&attempt, number * 10, status(503));
    }
    assert_eq!(world.c1().locks.len(), MAX_LOCKS);
    assert!(blocked(&world, "m99", 1_000) && !blocked(&world, "m0", 1_000));
}

fn per_model_quotas_keep_the_connection_active() {
    for (code, reason) in [
        (404, Reason::NotFound),
        (429, Reason::RateLimitExceeded),
        (503, Reason::ServerError),
        (403, Reason::Forbidden),
    ] {
        let mut world = World::new(Apikey);
        world.policy.per_model_quota = true;
        world.fail(0, status(code));
        assert_eq!(world.cooldown(), (None, 0));
        assert_eq!(lock(&world), Some((3_000, 1)), "status {code}");
        assert_eq!(world.c1().locks[0].reason, reason);
    }
    let mut world = World::new(Apikey);
    world.policy.per_model_quota = true;
    world.fail(0, status(500));
    assert_eq!((world.cooldown(), lock(&world)), ((None, 0), None));
}

fn a_connection_says_for_itself_how_its_quota_is_kept() {
    let mut world = World::new(Apikey);
    world.add("c2");
    world.config("c1").per_model_quota = Some(true);
    world.fail(0, status(429));
    let attempt = world.send("c2");
    world.end(&attempt, 0, status(429));
    assert_eq!(
        (world.cooldown(), lock(&world)),
        ((None, 0), Some((3_000, 1)))
    );
    let ordinary = world.connection("c2");
    assert_eq!(ordinary.cooldown.until, Some(Timestamp(3_000)));
    assert!(ordinary.locks.is_empty());
}

fn factory_shares_quotas_by_tier() {
    let provider = ProviderId::new("factory").unwrap();
    let family = |model: &str| quota_family(&provider, &ModelId::new(model).unwrap());
    for (model, tier) in [
        ("claude-opus-4-5", "tier:premium"),
        ("GLM-4.6", "tier:core"),
        ("droid-core", "tier:core"),
        ("gpt-5.1-codex", "tier:standard"),
    ] {
        assert_eq!(
            family(model),
            Some(LockKey::Family(tier.to_owned())),
            "{model}"
        );
    }
}

fn antigravity_shares_quotas_by_family() {
    let mut world = World::named("antigravity", Oauth);
    world.policy.per_model_quota = true;
    let mut attempt = world.send("c1");
    attempt.model = ModelId::new("gemini-3-pro").unwrap();
    world.end(&attempt, 0, status(429));
    assert!(blocked(&world, "gemini-3-flash", 1));
    assert!(!blocked(&world, "claude-sonnet-4-6", 1) && !blocked(&world, "gpt-oss", 1));
}
