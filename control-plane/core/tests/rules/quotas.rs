//! What texts about quotas do: vectors 51 to 54, and the families of `failure-state.md` §7.

use proptest::prelude::*;
use rstest::rstest;
use tidegate_core::classify::{Reason, RetryHint};
use tidegate_core::daily_reset::DailyReset;
use tidegate_core::ids::ModelId;
use tidegate_core::lockout::LockKey;
use tidegate_core::outcome::{Outcome, UpstreamError};
use tidegate_core::settings::ProviderClass;
use tidegate_core::settings::ProviderClass::{Apikey, Oauth};
use tidegate_core::time::Timestamp;

use super::world::{MODEL, World, answer};

/// When the events of the tables happen: Tue, 14 Nov 2023 22:13:20 UTC.
const T: u64 = 1_700_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// An answer with a body and a Retry-After of a minute.
fn within_a_minute(status: u16, body: &str) -> Outcome {
    Outcome::Response(UpstreamError {
        status,
        headers: vec![("retry-after".to_owned(), "60".to_owned())],
        body: body.to_owned(),
        embedded: false,
    })
}

#[rstest]
#[case::vector_failure_51(Oauth, answer(429, "Usage limit reached"), HOUR_MS, 1)]
#[case::vector_failure_52_weekly(
    Apikey,
    answer(429, "You have reached your weekly usage limit"),
    DAY_MS,
    1
)]
#[case::vector_failure_52_session(
    Apikey,
    answer(429, "Session usage limit exceeded"),
    5 * HOUR_MS,
    1
)]
#[case::subscription_is_not_believed_of_a_key(
    Apikey,
    answer(429, "Your usage limit has been hit"),
    6_000,
    2
)]
#[case::subscription_of_a_key_as_the_whole_message(
    Apikey,
    answer(429, r#"{"error":"Usage limit reached"}"#),
    HOUR_MS,
    1
)]
#[case::subscription_with_an_untrusted_hint(
    Oauth,
    within_a_minute(429, "Usage limit reached"),
    HOUR_MS,
    1
)]
#[case::subscription_with_a_trusted_hint(
    Apikey,
    within_a_minute(429, "monthly usage limit reached"),
    60_000,
    0
)]
#[case::weekly_with_a_reset_in_days(
    Apikey,
    answer(429, "Weekly limit reached, resets in 3 days"),
    3 * DAY_MS,
    1
)]
#[case::weekly_with_a_moment(
    Apikey,
    answer(429, "Weekly limit reached, resets at 2023-11-15 00:13:20"),
    2 * HOUR_MS,
    1
)]
#[case::weekly_is_not_a_header(Apikey, within_a_minute(429, "weekly limit reached"), DAY_MS, 1)]
#[case::weekly_in_any_order(
    Apikey,
    answer(429, "You exhausted the quota of your weekly plan"),
    DAY_MS,
    1
)]
#[case::session_in_two_parts(
    Apikey,
    answer(429, "You reached your session based usage limit"),
    5 * HOUR_MS,
    1
)]
#[case::plan_limit_status(Apikey, answer(432, "weekly quota exhausted"), DAY_MS, 1)]
fn a_used_up_quota_cools(
    #[case] class: ProviderClass,
    #[case] outcome: Outcome,
    #[case] length_ms: u64,
    #[case] level_after: u32,
) {
    let mut world = World::new(class);
    world.connection_mut("c1").cooldown.backoff_level = 1;
    world.fail(T, outcome);
    assert_eq!(world.cooldown(), (Some(T + length_ms), level_after));
    let expected = if level_after == 2 {
        Reason::RateLimitExceeded
    } else {
        Reason::QuotaExhausted
    };
    assert_eq!(world.c1().cooldown.reason, Some(expected));
    assert!(world.c1().terminal.is_none());
}

/// A world whose quotas of a day begin anew at an hour of a zone.
fn resets_at(class: ProviderClass, zone: &str, hour: u8) -> World {
    let mut world = World::new(class);
    world.policy.lockout.daily_reset = DailyReset::stated(zone, hour).unwrap();
    world
}

/// A civil time of a zone in the store's time.
fn at(zone: &str, time: &str) -> u64 {
    let time: jiff::civil::DateTime = time.parse().unwrap();
    let moment = time.in_tz(zone).unwrap().timestamp().as_millisecond();
    u64::try_from(moment).unwrap()
}

#[rstest]
#[case::vector_failure_53(
    "Asia/Shanghai",
    "2026-03-10 21:00",
    "today's quota is used up, try again tomorrow",
    10_800_000
)]
#[case::typographic(
    "Asia/Shanghai",
    "2026-03-10 21:00",
    "You used today’s quota",
    10_800_000
)]
#[case::utc("UTC", "2026-03-10 13:00", "daily quota exceeded", 11 * HOUR_MS)]
#[case::spring("America/New_York", "2026-03-07 23:30", "try again tomorrow", HOUR_MS / 2)]
#[case::spring_day_of_23_hours("America/New_York", "2026-03-08 00:30", "try again tomorrow", 45 * HOUR_MS / 2)]
#[case::autumn_day_of_25_hours(
    "America/New_York",
    "2026-11-01 00:00",
    "try again tomorrow",
    DAY_MS
)]
#[case::autumn_evening("America/New_York", "2026-11-01 23:00", "try again tomorrow", HOUR_MS)]
#[case::midnight_that_is_skipped(
    "America/Santiago",
    "2026-09-05 23:00",
    "try again tomorrow",
    HOUR_MS
)]
#[case::half_an_hour("Asia/Kolkata", "2026-03-10 23:45", "try again tomorrow", HOUR_MS / 4)]
#[case::at_midnight("UTC", "2026-03-10 00:00", "try again tomorrow", DAY_MS)]
fn a_quota_of_the_day_lasts_until_the_zones_midnight(
    #[case] zone: &str,
    #[case] time: &str,
    #[case] body: &str,
    #[case] length_ms: u64,
) {
    let mut world = resets_at(Oauth, zone, 0);
    world.connection_mut("c1").cooldown.backoff_level = 1;
    let at = at(zone, time);
    world.fail(at, answer(429, body));
    assert_eq!(world.cooldown(), (Some(at + length_ms), 1));
    assert_eq!(world.c1().cooldown.reason, Some(Reason::QuotaExhausted));
}

#[rstest]
#[case::later_today("2026-03-10 01:00", HOUR_MS)]
#[case::tomorrow("2026-03-10 03:00", 23 * HOUR_MS)]
#[case::on_the_hour("2026-03-10 02:00", DAY_MS)]
#[case::hour_that_is_skipped("2026-03-29 01:30", HOUR_MS / 2)]
#[case::first_of_two("2026-10-25 01:30", HOUR_MS / 2)]
fn a_day_may_begin_at_any_hour(#[case] time: &str, #[case] wait_ms: u64) {
    let zone = "Europe/Berlin";
    let reset = DailyReset::stated(zone, 2).unwrap();
    assert_eq!(reset.ms_until(Timestamp(at(zone, time))), wait_ms);
}

#[test]
fn between_the_two_times_of_an_hour_the_next_day_is_meant() {
    let reset = DailyReset::stated("Europe/Berlin", 2).unwrap();
    let first = at("Europe/Berlin", "2026-10-25 02:00");
    assert_eq!(reset.ms_until(Timestamp(first)), DAY_MS);
    assert_eq!(reset.ms_until(Timestamp(first + HOUR_MS)), DAY_MS);
}

proptest! {
    #[test]
    fn a_reset_is_always_within_a_day(at in 0_u64.., near in 0_u64..4_000_000_000_000, hour in 0_u8..24) {
        for zone in ["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Monrovia"] {
            let reset = DailyReset::stated(zone, hour).unwrap();
            for at in [at, near] {
                let wait_ms = reset.ms_until(Timestamp(at));
                prop_assert!((1..=DAY_MS).contains(&wait_ms));
            }
        }
    }
}

/// Section 3.6 has no such phrase, so a key is not believed; a "daily quota" is.
#[test]
fn a_key_is_believed_about_a_daily_quota_only() {
    let length_ms = |body: &str| {
        let mut world = World::new(Apikey);
        let at = at("UTC", "2026-03-10 21:00");
        world.fail(at, answer(429, body));
        world.cooldown().0.unwrap() - at
    };
    assert_eq!(
        length_ms("today's quota is used up, try again tomorrow"),
        3_000
    );
    assert_eq!(length_ms("your daily quota is used up"), 3 * HOUR_MS);
}

/// Section 7.2, single-model path: the switch decides, a combo has its own lock, and the cap holds.
#[rstest]
#[case::named("today's quota for model Qwen/Q-3.5. Try again tomorrow", "Qwen/Q-3.5")]
#[case::quoted("today's quota for model \\\"other\\\" is used up", "other")]
#[case::the_one_asked_for_in_another_case("today's quota for model M is used up", MODEL)]
#[case::nothing_named("today's quota is used up", MODEL)]
fn a_quota_of_the_day_locks_the_model_it_names(#[case] body: &str, #[case] model: &str) {
    let at = at("UTC", "2026-03-10 21:00");
    let mut world = World::new(Oauth);
    world.fail(at, answer(429, body));
    assert!(world.c1().locks.is_empty(), "switched off");
    world = World::new(Oauth);
    world.policy.lockout.enabled = true;
    world.fail(at, answer(429, body));
    assert_eq!(world.cooldown(), (Some(at + 3 * HOUR_MS), 0));
    let locks = &world.c1().locks;
    assert_eq!(locks.len(), 1);
    assert_eq!(locks[0].key, LockKey::Model(ModelId::new(model).unwrap()));
    assert_eq!(locks[0].until, Timestamp(at + 1_800_000));
    assert_eq!(locks[0].reason, Reason::QuotaExhausted);
    world = World::new(Oauth);
    world.policy.lockout.enabled = true;
    world.policy.lockout.error_codes = vec![503];
    world.fail(at, answer(429, body));
    assert!(world.c1().locks.is_empty(), "429 is not listed");
}

const TPD: &str = "Organization TPD rate limit reached";

#[test]
fn tokens_per_day_last_until_midnight_only_where_an_operator_says_so() {
    let at = at("UTC", "2026-03-10 21:00");
    let mut unsaid = World::new(Apikey);
    unsaid.fail(at, answer(429, TPD));
    assert_eq!(unsaid.cooldown(), (Some(at + 3_000), 1));
    assert_eq!(unsaid.c1().cooldown.reason, Some(Reason::RateLimitExceeded));
    let mut said = resets_at(Apikey, "UTC", 0);
    said.fail(at, answer(429, TPD));
    assert_eq!(said.cooldown(), (Some(at + 3 * HOUR_MS), 0));
    said = resets_at(Apikey, "UTC", 0);
    said.fail(at, within_a_minute(429, TPD));
    assert_eq!(
        said.cooldown(),
        (Some(at + 60_000), 0),
        "a reset header comes first"
    );
    assert_eq!(said.c1().cooldown.reason, Some(Reason::QuotaExhausted));
}

/// A hint makes a believed quota what it says, and the reason says more than the status.
#[rstest]
#[case::believed("daily limit of requests reached", Some(Reason::QuotaExhausted))]
#[case::not_believed("free tier", Some(Reason::RateLimitExceeded))]
fn a_hint_with_a_text_about_quotas_is_a_quota(#[case] body: &str, #[case] reason: Option<Reason>) {
    let mut world = World::new(Apikey);
    world.fail(T, within_a_minute(429, body));
    assert_eq!(world.cooldown(), (Some(T + 60_000), 0));
    assert_eq!(world.c1().cooldown.reason, reason);
}

#[rstest]
#[case::claude("claude", HOUR_MS)]
#[case::another("acme", 10_000)]
fn only_claude_speaks_of_an_accounts_rate_limit(#[case] provider: &str, #[case] length_ms: u64) {
    let mut world = World::named(provider, Oauth);
    world.connection_mut("c1").cooldown.backoff_level = 1;
    let body = "This request would exceed your account's rate limit. Please try again later.";
    world.fail(T, answer(429, body));
    assert_eq!(world.cooldown().0, Some(T + length_ms));
}

/// What gemini answers when the requests of a minute or a day are used up.
fn gemini(quota_id: &str, delay: &str) -> Outcome {
    answer(
        429,
        &format!(
            r#"{{"error":{{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED",
            "details":[{{"@type":"type.googleapis.com/google.rpc.QuotaFailure",
            "violations":[{{"quotaId":"{quota_id}"}}]}},
            {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}]}}}}"#
        ),
    )
}

#[rstest]
#[case::vector_failure_54(
    "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
    "26s",
    26_000,
    Reason::RateLimitExceeded
)]
#[case::per_day(
    "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
    "7200s",
    7_200_000,
    Reason::QuotaExhausted
)]
fn gemini_locks_the_model_whose_metric_ran_out(
    #[case] quota_id: &str,
    #[case] delay: &str,
    #[case] length_ms: u64,
    #[case] reason: Reason,
) {
    let mut world = World::named("gemini", Apikey);
    world.policy.per_model_quota = true;
    let applied = world.fail(T, gemini(quota_id, delay));
    assert_eq!((world.cooldown(), &world.c1().terminal), ((None, 0), &None));
    let lock = &world.c1().locks[0];
    assert_eq!(
        lock.until.0,
        T + length_ms,
        "google's own delay may exceed the cap"
    );
    assert_eq!(lock.reason, reason);
    assert!(matches!(&lock.key, LockKey::Model(model) if model.as_str() == MODEL));
    let hint = applied.classification.and_then(|one| one.hint);
    assert!(matches!(hint, Some(RetryHint { wait_ms, .. }) if wait_ms == length_ms));
}

/// The same words from anyone else mean an account without credits.
#[test]
fn another_provider_saying_the_same_is_out_of_credits() {
    let mut world = World::new(Apikey);
    world.fail(
        T,
        gemini("GenerateRequestsPerMinutePerProjectPerModel", "26s"),
    );
    assert!(world.c1().terminal.is_some());
}
