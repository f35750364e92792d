//! Settings of admission, affinity and leases.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use crate::admission::PaceLimits;

fn written(value: Value) -> WrittenSettings {
    serde_json::from_value(value).unwrap()
}

/// A member as it acts, and who said so.
fn acting(stored: Value, environment: &[(&str, &str)], path: &str) -> (Value, Source) {
    let overrides = Overrides::from_environment(environment.iter().copied());
    effective(&written(stored).stored(), &overrides)
        .into_iter()
        .find(|setting| setting.path == path)
        .map(|setting| (setting.value, setting.source))
        .unwrap()
}

#[rstest]
#[case::no_number("abc", 15_000)]
#[case::negative("-5", 15_000)]
#[case::zero("0", 15_000)]
#[case::good("20000", 20_000)]
#[case::with_a_fraction(" 20000.9 ", 20_000)]
#[case::too_large("99999999999", 86_400_000)]
fn vector_sessions_37_the_environment_says_how_long_an_execution_takes(
    #[case] value: &str,
    #[case] ms: u64,
) {
    let environment = [("RATE_LIMIT_MAX_WAIT_MS", value)];
    let path = "requestQueue.maxWaitMs";
    assert_eq!(acting(json!({}), &environment, path).0, json!(ms));
    let stored = json!({"requestQueue": {"maxWaitMs": 9_000}});
    assert_eq!(
        acting(stored, &environment, path),
        (json!(9_000), Source::Stored)
    );
}

#[rstest]
#[case::good("7", 7)]
#[case::off("0", 0)]
#[case::negative("-1", 0)]
#[case::too_large("100001", 100_000)]
fn the_environment_says_how_many_may_wait(#[case] value: &str, #[case] depth: u64) {
    let environment = [("RATE_LIMIT_MAX_QUEUE_DEPTH", value)];
    let acts = acting(json!({}), &environment, "requestQueue.maxQueueDepth");
    assert_eq!(acts.0, json!(depth));
    let said = !value.starts_with('-');
    assert_eq!(acts.1 != Source::BuiltIn, said);
}

#[rstest]
#[case::too_deep(json!(100_001), json!(100_000))]
#[case::a_text_with_a_fraction(json!("12.9"), json!(12))]
#[case::negative(json!(-1), json!(0))]
#[case::no_number(json!("deep"), json!(0))]
fn vector_sessions_38_what_is_stored_is_brought_into_bounds_and_refused_over_the_api(
    #[case] value: Value,
    #[case] acts: Value,
) {
    let section = json!({"requestQueue": {"maxQueueDepth": value}});
    let patch = section.as_object().unwrap();
    let refused = WrittenSettings::default().patched(patch).unwrap_err();
    assert_eq!(refused[0].field, "requestQueue.maxQueueDepth");
    assert_eq!(acting(section, &[], "requestQueue.maxQueueDepth").0, acts);
}

#[test]
fn pacing_is_off_where_nobody_says() {
    let nothing = written(json!({})).stored().settings.request_queue;
    assert_eq!(nothing.pace(30_000), PaceLimits::default());
    let said = json!({"requestQueue": {
        "requestsPerMinute": 100, "minTimeBetweenRequestsMs": 200, "concurrentRequests": 10
    }});
    let limits = PaceLimits {
        per_minute: Some(100),
        apart_ms: 200,
        concurrent: Some(10),
        ..PaceLimits::default()
    };
    assert_eq!(
        written(said).strict().unwrap().request_queue.pace(30_000),
        limits
    );
}

#[rstest]
#[case::only_the_earlier_name(json!({"codexSessionAffinityTtlMs": 1_800_000}), 1_800_000)]
#[case::only_the_name_of_now(json!({"sessionAffinityTtlMs": 7}), 7)]
#[case::both(json!({"codexSessionAffinityTtlMs": 1_800_000, "sessionAffinityTtlMs": 7}), 7)]
#[case::neither(json!({}), 0)]
fn vector_sessions_32_the_earlier_name_is_read_as_the_name_of_now(
    #[case] settings: Value,
    #[case] ttl_ms: u64,
) {
    let written = written(settings);
    assert_eq!(written.strict().unwrap().session_affinity_ttl_ms, ttl_ms);
    let reading = written.stored();
    assert_eq!(reading.settings.session_affinity_ttl_ms, ttl_ms);
    assert_eq!(reading.warnings, []);
    assert!(!reading.members.contains_key("codexSessionAffinityTtlMs"));
}

#[rstest]
#[case::taken_away(json!({"codexSessionAffinityTtlMs": 5}), json!({"sessionAffinityTtlMs": null}), 0)]
#[case::taken_away_as_before(json!({"sessionAffinityTtlMs": 5}), json!({"codexSessionAffinityTtlMs": null}), 0)]
#[case::set(json!({"codexSessionAffinityTtlMs": 5}), json!({"sessionAffinityTtlMs": 7}), 7)]
#[case::set_as_before(json!({"sessionAffinityTtlMs": 5}), json!({"codexSessionAffinityTtlMs": 7}), 7)]
#[case::set_at_first(json!({}), json!({"codexSessionAffinityTtlMs": 7}), 7)]
fn a_change_of_a_renamed_setting_is_one_under_either_name(
    #[case] settings: Value,
    #[case] patch: Value,
    #[case] ttl_ms: u64,
) {
    let Value::Object(patch) = patch else {
        panic!("a patch is an object");
    };
    let patched = written(settings).patched(&patch).unwrap();
    assert_eq!(patched.strict().unwrap().session_affinity_ttl_ms, ttl_ms);
}

#[rstest]
#[case::negative(json!(-1), 0)]
#[case::no_number(json!("soon"), 0)]
#[case::a_text(json!("60000"), 60_000)]
#[case::too_long(json!(1e15), 2_592_000_000)]
fn a_stored_time_of_affinity_is_brought_into_bounds(#[case] value: Value, #[case] ttl_ms: u64) {
    let settings = written(json!({"sessionAffinityTtlMs": value}))
        .stored()
        .settings;
    assert_eq!(settings.session_affinity_ttl_ms, ttl_ms);
}

#[test]
fn the_guard_of_leases_is_refused_by_the_api_and_cut_to_a_third_of_the_horizon_when_stored() {
    let written = written(json!({"leases": {"horizonMs": 5_000, "guardMs": 1_667}}));
    let refused = written.strict().unwrap_err();
    assert_eq!(refused[0].field, "leases.guardMs");
    assert_eq!(written.stored().settings.leases.guard_ms, 1_666);
}

#[rstest]
#[case::a_horizon_below("horizonMs", 4_999, 5_000)]
#[case::a_horizon_beyond("horizonMs", 600_001, 600_000)]
#[case::a_guard_that_takes_most_of_a_lease("guardMs", 10_001, 10_000)]
#[case::a_drain_beyond("drainMs", 600_001, 600_000)]
fn times_of_leases_are_bounded(#[case] name: &str, #[case] value: u64, #[case] acts: u64) {
    let written = written(json!({"leases": {(name): value}}));
    let refused = written.strict().unwrap_err();
    assert_eq!(refused[0].field, format!("leases.{name}"));
    let stored = serde_json::to_value(written.stored().settings.leases).unwrap();
    assert_eq!(stored[name], acts);
}

#[test]
fn leases_may_do_without_a_guard() {
    let written = written(json!({"leases": {"guardMs": 0, "horizonMs": 600_000}}));
    let leases = written.strict().unwrap().leases;
    assert_eq!((leases.guard_ms, leases.horizon_ms), (0, 600_000));
}

#[test]
fn a_heartbeat_is_refused_by_the_api_and_cut_to_a_third_of_a_permits_life_when_stored() {
    let written = written(json!({"permits": {"ttlMs": 5_000, "heartbeatMs": 1_667}}));
    let refused = written.strict().unwrap_err();
    assert_eq!(refused[0].field, "permits.heartbeatMs");
    assert_eq!(written.stored().settings.permits.heartbeat_ms, 1_666);
}

#[rstest]
#[case::permits_shorter_than_a_moment("permits", "ttlMs", 4_999)]
#[case::permits_for_ever("permits", "ttlMs", 600_001)]
#[case::no_heartbeat("permits", "heartbeatMs", 99)]
#[case::too_many_that_wait("routing", "maxWaitingPerDataPlane", 100_001)]
fn what_is_out_of_bounds_is_refused(#[case] section: &str, #[case] name: &str, #[case] value: u64) {
    let written = written(json!({(section): {(name): value}}));
    let refused = written.strict().unwrap_err();
    assert_eq!(refused[0].field, format!("{section}.{name}"));
}

#[rstest]
#[case::nobody_says(json!({}), 10_000)]
#[case::as_written(json!({"permits": {"heartbeatMs": 5_000}}), 5_000)]
#[case::permits_that_last(json!({"permits": {"ttlMs": 600_000, "heartbeatMs": 200_000}}), 20_000)]
#[case::short_probes(json!({"providerBreaker": {"probeTtlMs": 3_000}}), 1_000)]
fn probes_are_renewed_before_they_end(#[case] settings: Value, #[case] heartbeat_ms: u64) {
    let settings = written(settings).strict().unwrap();
    assert_eq!(settings.heartbeat_ms(), heartbeat_ms);
}

#[rstest]
#[case::nothing(json!({}), (Some(100), 200, Some(10)))]
#[case::requests_a_minute(json!({"glm": {"rpm": 7}}), (Some(7), 200, Some(10)))]
#[case::at_once(json!({"glm": {"concurrency": 2}}), (Some(100), 200, Some(2)))]
#[case::of_another(json!({"other": {"rpm": 1}}), (Some(100), 200, Some(10)))]
fn a_providers_own_limits_stand_in_place_of_the_general_ones(
    #[case] overrides: Value,
    #[case] limits: (Option<u32>, u64, Option<u32>),
) {
    let settings = written(json!({
        "requestQueue": {
            "requestsPerMinute": 100, "minTimeBetweenRequestsMs": 200, "concurrentRequests": 10,
        },
        "permits": {"ttlMs": 40_000},
        "providerQuotaOverrides": overrides,
    }));
    let pace = settings
        .strict()
        .unwrap()
        .pace_of(&ProviderId::new("glm").unwrap());
    assert_eq!((pace.per_minute, pace.apart_ms, pace.concurrent), limits);
    assert_eq!(pace.ttl_ms, 40_000);
}

#[rstest]
#[case::none_a_minute(json!({"rpm": 0}), "rpm")]
#[case::none_at_once(json!({"concurrency": 0}), "concurrency")]
#[case::too_many_of_the_provider(json!({"providerConcurrency": 100_001}), "providerConcurrency")]
#[case::unknown(json!({"rps": 1}), "")]
fn a_providers_own_limits_are_bounded(#[case] limits: Value, #[case] member: &str) {
    let written = written(json!({"providerQuotaOverrides": {"glm": limits, "kimi": {"rpm": 1}}}));
    let refused = written.strict().unwrap_err();
    let place = format!("providerQuotaOverrides.glm.{member}");
    assert_eq!(refused[0].field, place.trim_end_matches('.'));
    // Of what is stored the others act.
    let stored = written.stored().settings.provider_quota_overrides;
    let providers: Vec<_> = stored.keys().map(ProviderId::as_str).collect();
    assert_eq!(providers, ["kimi"]);
}
