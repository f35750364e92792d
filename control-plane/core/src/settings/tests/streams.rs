//! Settings of streams: what the environment says, what is read under an earlier name, bounds.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use crate::stream::WatchdogLimits;

fn written(value: Value) -> WrittenSettings {
    serde_json::from_value(value).unwrap()
}

/// What acts, and who said so.
fn acting(stored: Value, environment: &[(&str, &str)], path: &str) -> (Value, Source) {
    let overrides = Overrides::from_environment(environment.iter().copied());
    effective(&written(stored).stored(), &overrides)
        .into_iter()
        .find(|setting| setting.path == path)
        .map(|setting| (setting.value, setting.source))
        .unwrap()
}

fn said_by(variable: &str) -> Source {
    Source::Environment(variable.to_owned())
}

const WATCHDOG: &str = "streamRecovery.throughputWatchdog";

/// Member, its variable, what is built in, and what a 0 of the environment comes to.
#[rstest]
#[case("streams.connectTimeoutMs", "FETCH_CONNECT_TIMEOUT_MS", 30_000, 30_000)]
#[case("streams.headersTimeoutMs", "FETCH_HEADERS_TIMEOUT_MS", 600_000, 0)]
#[case("streams.headersTimeoutMs", "FETCH_TIMEOUT_MS", 600_000, 0)]
#[case("streams.headersTimeoutMs", "REQUEST_TIMEOUT_MS", 600_000, 0)]
#[case("streams.bodyTimeoutMs", "FETCH_BODY_TIMEOUT_MS", 600_000, 0)]
#[case("streams.bodyTimeoutMs", "FETCH_TIMEOUT_MS", 600_000, 0)]
#[case("streams.bodyTimeoutMs", "REQUEST_TIMEOUT_MS", 600_000, 0)]
#[case("streams.readinessTimeoutMs", "STREAM_READINESS_TIMEOUT_MS", 30_000, 0)]
#[case("streams.idleTimeoutMs", "STREAM_IDLE_TIMEOUT_MS", 300_000, 0)]
#[case("streams.idleTimeoutMs", "REQUEST_TIMEOUT_MS", 300_000, 0)]
#[case(
    "streamRecovery.attemptDeadlineMs",
    "UPSTREAM_ATTEMPT_TIMEOUT_MS",
    1_800_000,
    0
)]
#[case(
    "streamRecovery.throughputWatchdog.warmupMs",
    "STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS",
    30_000,
    0
)]
#[case(
    "streamRecovery.throughputWatchdog.windowMs",
    "STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS",
    30_000,
    30_000
)]
#[case(
    "streamRecovery.throughputWatchdog.minUsefulBytesPerSecond",
    "STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND",
    4,
    4
)]
#[case(
    "streamRecovery.throughputWatchdog.minUsefulBytes",
    "STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES",
    1,
    1
)]
fn the_environment_says_a_number_where_nobody_wrote_one(
    #[case] path: &str,
    #[case] variable: &str,
    #[case] built_in: u64,
    #[case] zero: u64,
) {
    let acts = |value: &str| acting(json!({}), &[(variable, value)], path);
    assert_eq!(
        acting(json!({}), &[], path),
        (json!(built_in), Source::BuiltIn)
    );
    assert_eq!(acts(" 7000.9 "), (json!(7_000), said_by(variable)));
    for nonsense in ["soon", "", "-5", "NaN", "inf"] {
        assert_eq!(
            acts(nonsense),
            (json!(built_in), Source::BuiltIn),
            "{nonsense}"
        );
    }
    let (off, source) = acts("0");
    assert_eq!(off, json!(zero));
    assert_eq!(source == Source::BuiltIn, zero != 0);
    let (most, _) = acts("1e300");
    assert!(
        [600_000, 1_000_000, 3_600_000].contains(&most.as_u64().unwrap()),
        "{most}"
    );
    let mut document = json!(1_234);
    for name in path.rsplit('.') {
        document = json!({(name): document});
    }
    assert_eq!(
        acting(document, &[(variable, "7000")], path),
        (json!(1_234), Source::Stored)
    );
}

#[test]
fn the_narrower_variable_counts_whatever_their_order() {
    let mut environment = [
        ("REQUEST_TIMEOUT_MS", "1000"),
        ("FETCH_TIMEOUT_MS", "2000"),
        ("FETCH_HEADERS_TIMEOUT_MS", "3000"),
        ("STREAM_IDLE_TIMEOUT_MS", "4000"),
    ];
    for _ in 0..2 {
        let headers = acting(json!({}), &environment, "streams.headersTimeoutMs");
        assert_eq!(headers, (json!(3_000), said_by("FETCH_HEADERS_TIMEOUT_MS")));
        let idle = acting(json!({}), &environment, "streams.idleTimeoutMs");
        assert_eq!(idle, (json!(4_000), said_by("STREAM_IDLE_TIMEOUT_MS")));
        environment.reverse();
    }
    // What cannot be understood leaves it to the next one.
    let environment = [
        ("FETCH_HEADERS_TIMEOUT_MS", "x"),
        ("FETCH_TIMEOUT_MS", "2000"),
    ];
    let headers = acting(json!({}), &environment, "streams.headersTimeoutMs");
    assert_eq!(headers, (json!(2_000), said_by("FETCH_TIMEOUT_MS")));
}

#[rstest]
#[case("streamRecovery.enabled", "STREAM_RECOVERY_ENABLED")]
#[case(
    "streamRecovery.continueMidStream",
    "STREAM_RECOVERY_MIDSTREAM_ENABLED"
)]
#[case(
    "streamRecovery.throughputWatchdog.enabled",
    "STREAM_THROUGHPUT_WATCHDOG_ENABLED"
)]
fn a_part_is_off_until_the_document_or_the_environment_switches_it_on(
    #[case] path: &str,
    #[case] variable: &str,
) {
    assert_eq!(
        acting(json!({}), &[], path),
        (json!(false), Source::BuiltIn)
    );
    for (value, on) in [
        ("true", true),
        (" ON ", true),
        ("1", true),
        ("yes", false),
        ("", false),
    ] {
        assert_eq!(
            acting(json!({}), &[(variable, value)], path),
            (json!(on), said_by(variable))
        );
    }
    let mut document = json!(false);
    for name in path.rsplit('.') {
        document = json!({(name): document});
    }
    assert_eq!(
        acting(document, &[(variable, "true")], path),
        (json!(false), Source::Stored)
    );
}

#[test]
fn parts_of_stream_recovery_are_switched_on_one_by_one() {
    let parts = |value: Value| {
        let recovery = written(json!({"streamRecovery": value}))
            .strict()
            .unwrap()
            .stream_recovery;
        (
            recovery.is_enabled(),
            recovery.continues(),
            recovery.watchdog().is_some(),
        )
    };
    assert_eq!(parts(json!({})), (false, false, false));
    assert_eq!(parts(json!({"enabled": true})), (true, false, false));
    assert_eq!(
        parts(json!({"continueMidStream": true})),
        (false, true, false)
    );
    assert_eq!(
        parts(json!({"throughputWatchdog": {"enabled": true}})),
        (false, false, true)
    );
}

#[test]
fn vector_sessions_49_what_is_stored_is_brought_into_bounds() {
    let stored = json!({"streamRecovery": {"throughputWatchdog": {
        "enabled": true, "warmupMs": -1, "windowMs": 10, "minUsefulBytesPerSecond": 0, "minUsefulBytes": 0,
    }}});
    let reading = written(stored).stored();
    let limits = WatchdogLimits {
        warmup_ms: 0,
        window_ms: 1_000,
        min_useful_bytes_per_second: 1,
        min_useful_bytes: 1,
    };
    assert_eq!(reading.settings.stream_recovery.watchdog(), Some(limits));
    assert_eq!(reading.warnings.len(), 4);
}

#[rstest]
#[case::warm_up("warmupMs", 600_001)]
#[case::window_below("windowMs", 999)]
#[case::window_beyond("windowMs", 600_001)]
#[case::rate_below("minUsefulBytesPerSecond", 0)]
#[case::rate_beyond("minUsefulBytesPerSecond", 1_000_001)]
#[case::bytes_below("minUsefulBytes", 0)]
#[case::bytes_beyond("minUsefulBytes", 1_000_001)]
fn vector_sessions_49_what_is_sent_is_refused(#[case] name: &str, #[case] value: u64) {
    let section = json!({"streamRecovery": {"throughputWatchdog": {(name): value}}});
    let refused = WrittenSettings::default()
        .patched(section.as_object().unwrap())
        .unwrap_err();
    assert_eq!(refused[0].field, format!("{WATCHDOG}.{name}"));
}

#[rstest]
#[case::only_the_earlier_name(json!({"streams": {"attemptDeadlineMs": 5}}), 5)]
#[case::only_the_name_of_now(json!({"streamRecovery": {"attemptDeadlineMs": 7}}), 7)]
#[case::both(json!({"streams": {"attemptDeadlineMs": 5}, "streamRecovery": {"attemptDeadlineMs": 7}}), 7)]
#[case::beside_others(json!({"streams": {"attemptDeadlineMs": 5, "idleTimeoutMs": 3}, "streamRecovery": {"enabled": true}}), 5)]
#[case::neither(json!({"streams": {"idleTimeoutMs": 3}}), 1_800_000)]
fn the_attempt_deadline_is_read_under_its_earlier_name(#[case] settings: Value, #[case] ms: u64) {
    let written = written(settings);
    assert_eq!(written.strict().unwrap().attempt_limits().attempt_ms, ms);
    let reading = written.stored();
    assert_eq!(reading.settings.attempt_limits().attempt_ms, ms);
    assert_eq!(reading.warnings, []);
    assert_eq!(reading.settings.streams, written.strict().unwrap().streams);
}

#[test]
fn an_earlier_name_is_not_moved_into_what_is_no_section() {
    let both = written(json!({"streams": {"attemptDeadlineMs": 5}, "streamRecovery": 3}));
    let faults = both.strict().unwrap_err();
    let mut fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["streamRecovery", "streams.attemptDeadlineMs"]);
    assert_eq!(both.stored().settings, Settings::default());
}

#[rstest]
#[case::taken_away(json!({"streams": {"attemptDeadlineMs": 5}}), json!({"streamRecovery": {"attemptDeadlineMs": null}}), 1_800_000)]
#[case::taken_away_as_before(json!({"streamRecovery": {"attemptDeadlineMs": 5}}), json!({"streams": {"attemptDeadlineMs": null}}), 1_800_000)]
#[case::set(json!({"streams": {"attemptDeadlineMs": 5}}), json!({"streamRecovery": {"attemptDeadlineMs": 7}}), 7)]
#[case::set_as_before(json!({"streamRecovery": {"attemptDeadlineMs": 5}}), json!({"streams": {"attemptDeadlineMs": 7}}), 7)]
#[case::another_member(json!({"streams": {"attemptDeadlineMs": 5}}), json!({"streams": {"idleTimeoutMs": 7}}), 5)]
fn a_change_of_the_attempt_deadline_is_one_under_either_name(
    #[case] settings: Value,
    #[case] patch: Value,
    #[case] ms: u64,
) {
    let patched = written(settings)
        .patched(patch.as_object().unwrap())
        .unwrap();
    assert_eq!(patched.strict().unwrap().attempt_limits().attempt_ms, ms);
}

#[rstest]
#[case("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD", true)]
#[case("OMNIROUTE_PROVIDER_BREAKER_LOCAL_COOLDOWN_MS", true)]
#[case("PROVIDER_COOLDOWN_ENABLED", true)]
#[case("PROVIDER_COOLDOWN_MIN_MS", true)]
#[case("OMNIROUTE_EMERGENCY_FALLBACK", true)]
#[case("RATE_LIMIT_MAX_WAIT_MS", true)]
#[case("RATE_LIMIT_MAX_QUEUE_DEPTH", true)]
#[case("STREAM_RECOVERY_ENABLED", true)]
#[case("STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS", true)]
#[case("REQUEST_TIMEOUT_MS", true)]
#[case("OMNIROUTE_API_KEY", false)]
#[case("OMNIROUTE_CIRCUIT_BREAKER_KEY", false)]
#[case("PROVIDER_COOLDOWN_PASSWORD", false)]
#[case("STREAM_SECRET", false)]
#[case("PATH", false)]
fn which_variables_are_read(#[case] name: &str, #[case] read: bool) {
    assert_eq!(Overrides::reads(name), read);
    let acts = Overrides::from_environment([(name, "9000")]) != Overrides::default();
    assert_eq!(acts, read);
}
