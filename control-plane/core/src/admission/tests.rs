mod turns;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::config::Document;
use crate::ids::{AttemptId, PlaneIncarnation};
use crate::permit::PERMIT_TTL_MS;
use crate::settings::Overrides;

use super::*;

fn queue() -> QueueName {
    QueueName {
        provider: ProviderId::new("glm").unwrap(),
        connection: ConnectionId::new("c1").unwrap(),
    }
}

#[rstest]
#[case::api_keys("apikey", json!({}), json!({}), true)]
#[case::accounts("oauth", json!({}), json!({}), false)]
#[case::local("local", json!({}), json!({}), false)]
#[case::switched_off("apikey", json!({"autoEnableApiKeyProviders": false}), json!({}), false)]
#[case::off_for_one("apikey", json!({}), json!({"rateLimitProtection": false}), false)]
#[case::on_for_one("oauth", json!({}), json!({"rateLimitProtection": true}), true)]
#[case::on_for_one_in_spite_of_all(
    "local", json!({"autoEnableApiKeyProviders": false}), json!({"rateLimitProtection": true}), true
)]
fn only_protected_connections_have_a_queue(
    #[case] class: &str,
    #[case] settings: Value,
    #[case] members: Value,
    #[case] queued: bool,
) {
    let mut connection = json!({"id": "c1", "provider": "p"});
    let more = members.as_object().unwrap().clone();
    connection.as_object_mut().unwrap().extend(more);
    let document: Document = serde_json::from_value(json!({
        "providers": [{"id": "p", "protocol": "openai", "baseUrl": "https://x.example/v1", "class": class}],
        "connections": [connection],
        "settings": {"requestQueue": settings},
    }))
    .unwrap();
    let config = Config::build(document, 1, &Overrides::default()).unwrap();
    let found = terms(&config, &ConnectionId::new("c1").unwrap());
    let defaults = Terms {
        depth: 0,
        execution_ms: 15_000,
        pace: FREE,
    };
    assert_eq!(found, queued.then_some(defaults));
    assert_eq!(terms(&config, &ConnectionId::new("c2").unwrap()), None);
}

fn at(ms: u64) -> Timestamp {
    Timestamp(1_000_000).plus_ms(ms)
}

#[rstest]
#[case::no_limit(10_000, 0, true)]
#[case::room(2, 3, true)]
#[case::full(3, 3, false)]
#[case::more_than_full(4, 3, false)]
fn vector_sessions_34_a_queue_takes_as_many_as_may_wait(
    #[case] queued: u64,
    #[case] depth: u64,
    #[case] admitted: bool,
) {
    let checked = check_depth(queued, depth, &queue());
    let full = AdmissionError::QueueFull {
        queue: queue(),
        depth,
    };
    assert_eq!((full.status(), full.code()), (429, "RATE_LIMIT_QUEUE_FULL"));
    assert_eq!(checked, if admitted { Ok(()) } else { Err(full) });
}

#[rstest]
#[case::runs_50_ms(5_050, true)]
#[case::runs_100_ms(5_100, false)]
#[case::runs_150_ms(5_150, false)]
fn vector_sessions_35_time_counts_from_dispatch(#[case] ms: u64, #[case] in_time: bool) {
    let execution = Execution {
        dispatched_at: at(5_000),
        limit_ms: 100,
    };
    assert_eq!(execution.ends_at(), at(5_100));
    let expired = AdmissionError::ExecutionExpired {
        queue: queue(),
        limit_ms: 100,
    };
    assert_eq!(
        (expired.status(), expired.code()),
        (504, "RATE_LIMIT_EXECUTION_TIMEOUT")
    );
    let checked = execution.check(&queue(), at(ms));
    assert_eq!(checked, if in_time { Ok(()) } else { Err(expired) });
}

fn attempt(plane: u64, number: u64) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(plane),
        number,
    }
}

const FREE: PaceLimits = PaceLimits {
    per_minute: None,
    apart_ms: 0,
    concurrent: None,
    ttl_ms: PERMIT_TTL_MS,
};

/// A request to a model of which nothing is learned.
fn admit(pace: &mut Pace, attempt: AttemptId, limits: PaceLimits, now: Timestamp) -> Admitted {
    pace.admit(attempt, None, limits, now).0
}

fn look(pace: &mut Pace, plane: PlaneIncarnation, limits: PaceLimits, now: Timestamp) -> Admitted {
    pace.look(plane, None, limits, now).0
}

#[test]
fn without_limits_everything_goes_at_once() {
    let mut pace = Pace::default();
    for number in 0..1_000 {
        assert_eq!(
            admit(&mut pace, attempt(1, number), FREE, at(0)),
            Admitted::Now
        );
    }
}

#[test]
fn requests_keep_a_distance() {
    let limits = PaceLimits {
        apart_ms: 200,
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(199)),
        Admitted::NotBefore(at(200))
    );
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(200)),
        Admitted::Now
    );
}

#[test]
fn so_many_a_minute_of_which_all_may_come_at_once() {
    let limits = PaceLimits {
        per_minute: Some(3),
        ..FREE
    };
    let mut pace = Pace::default();
    for number in 1..=3 {
        assert_eq!(
            admit(&mut pace, attempt(1, number), limits, at(0)),
            Admitted::Now
        );
    }
    // One for every 20 s from then on.
    assert_eq!(
        admit(&mut pace, attempt(1, 4), limits, at(1)),
        Admitted::NotBefore(at(20_000))
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 4), limits, at(20_000)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 5), limits, at(20_000)),
        Admitted::NotBefore(at(40_000))
    );
}

#[test]
fn so_many_at_once_until_one_ends() {
    let limits = PaceLimits {
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(1)),
        Admitted::Full
    );
    pace.running().release(attempt(1, 1));
    assert_eq!(
        admit(&mut pace, attempt(2, 1), limits, at(2)),
        Admitted::Now
    );
}

#[rstest]
#[case::a_minute(PaceLimits { per_minute: Some(1), ..FREE })]
#[case::apart(PaceLimits { apart_ms: 60_000, ..FREE })]
#[case::all(PaceLimits { per_minute: Some(1), apart_ms: 10, concurrent: Some(1), ..FREE })]
fn who_asks_again_is_counted_once(#[case] limits: PaceLimits) {
    let mut pace = Pace::default();
    for ms in [0, 1, ASKED_AGAIN_MS - 1] {
        assert_eq!(
            admit(&mut pace, attempt(1, 1), limits, at(ms)),
            Admitted::Now
        );
    }
    pace.running().release(attempt(1, 1));
    let other = admit(&mut pace, attempt(1, 2), limits, at(ASKED_AGAIN_MS));
    assert_eq!(other, Admitted::NotBefore(at(60_000)));
    assert!(pace.ends_at(limits) >= at(60_000));
}

#[test]
fn only_so_many_are_remembered() {
    let limits = PaceLimits {
        per_minute: Some(100_000),
        ..FREE
    };
    let mut pace = Pace::default();
    for number in 0..1_000 {
        assert_eq!(
            admit(&mut pace, attempt(1, number), limits, at(0)),
            Admitted::Now
        );
    }
    let bytes = serde_json::to_vec(&pace).unwrap().len();
    assert!(bytes < 32 * 1_024, "{bytes}");
    admit(&mut pace, attempt(1, 1_000), limits, at(ASKED_AGAIN_MS));
    assert!(serde_json::to_vec(&pace).unwrap().len() < 512);
}

proptest! {
    /// Replicas whose clocks differ a little ask one after the other.
    #[test]
    fn clocks_that_differ_let_nobody_go_that_should_wait(
        per_minute in 1_u32..=600,
        steps in prop::collection::vec((0_u64..400, 0_u64..=900), 1..200),
    ) {
        let limits = PaceLimits { per_minute: Some(per_minute), ..FREE };
        let mut pace = Pace::default();
        let mut time = 0;
        let mut went = 0_u64;
        for (number, (passes, behind)) in (0_u64..).zip(steps) {
            time += passes;
            let now = at(1_000 + time - behind);
            if admit(&mut pace, attempt(1, number), limits, now) == Admitted::Now {
                went += 1;
            }
            let most = u64::from(per_minute) * (60_000 + 1_000 + time) / 60_000 + 1;
            prop_assert!(went <= most, "{went} of {most}");
        }
    }
}

#[test]
fn a_clock_that_stepped_back_holds_up_nobody_for_ever() {
    let limits = PaceLimits {
        per_minute: Some(1),
        apart_ms: 100,
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(900_000)),
        Admitted::Now
    );
    let Admitted::NotBefore(then) = admit(&mut pace, attempt(1, 2), limits, at(0)) else {
        panic!("it was not counted");
    };
    assert!(then <= at(60_000));
}

#[test]
fn who_must_wait_for_one_limit_uses_up_nothing_of_the_others() {
    let limits = PaceLimits {
        per_minute: Some(2),
        apart_ms: 200,
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    let before = pace.clone();
    assert_eq!(
        admit(&mut pace, attempt(1, 2), limits, at(100)),
        Admitted::NotBefore(at(200))
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 2), limits, at(200)),
        Admitted::Full
    );
    assert_eq!(pace, before);
}

#[test]
fn a_request_that_runs_is_counted_once() {
    let limits = PaceLimits {
        per_minute: Some(1),
        concurrent: Some(2),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(1)),
        Admitted::Now
    );
    assert_eq!(pace.running().held(at(1)), 1);
}

#[test]
fn a_limit_that_is_lowered_acts_at_once() {
    let mut pace = Pace::default();
    let limit = |limit| PaceLimits {
        per_minute: Some(limit),
        ..FREE
    };
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limit(1_000), at(0)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 2), limit(1), at(1)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 3), limit(1), at(1)),
        Admitted::NotBefore(at(60_001))
    );
}

#[test]
fn a_clock_that_went_back_blocks_nobody_for_long() {
    let limits = PaceLimits {
        apart_ms: 200,
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(900_000)),
        Admitted::Now
    );
    assert_eq!(
        admit(&mut pace, attempt(1, 2), limits, at(0)),
        Admitted::NotBefore(at(200))
    );
}

#[test]
fn each_data_plane_may_use_a_part_of_the_limits() {
    let limits = PaceLimits {
        per_minute: Some(100),
        apart_ms: 200,
        concurrent: Some(2),
        ..FREE
    };
    let part = PaceLimits {
        per_minute: Some(25),
        apart_ms: 800,
        concurrent: Some(1),
        ..FREE
    };
    assert_eq!(limits.share(4), part);
    assert_eq!(limits.share(0), limits);
    assert_eq!(FREE.share(4), FREE);
}

#[test]
fn a_stored_pace_is_read_back_and_ends() {
    let limits = PaceLimits {
        per_minute: Some(2),
        apart_ms: 200,
        concurrent: Some(1),
        ..FREE
    };
    let mut pace = Pace::default();
    assert_eq!(pace.ends_at(limits), Timestamp::default());
    assert_eq!(
        admit(&mut pace, attempt(1, 1), limits, at(0)),
        Admitted::Now
    );
    let text = serde_json::to_string(&pace).unwrap();
    assert_eq!(serde_json::from_str::<Pace>(&text).unwrap(), pace);
    // Once it is over, it is as if nothing had been.
    let end = pace.ends_at(limits);
    assert_eq!(end, at(60_000));
    let mut fresh = Pace::default();
    for number in 2..=4 {
        let now = end.plus_ms(200 * number);
        fresh.running().prune(now);
        pace.running().prune(now);
        let (aged, fresh) = (
            admit(&mut pace, attempt(1, number), limits, now),
            admit(&mut fresh, attempt(1, number), limits, now),
        );
        assert_eq!(aged, fresh);
    }
}

proptest! {
    /// In no span of time more than the bucket and its refill, never closer than the distance, and who is told to come
    /// back then may go then.
    #[test]
    fn limits_hold_for_every_span(
        per_minute in 1_u32..50,
        apart_ms in 0_u64..500,
        steps in proptest::collection::vec(0_u64..3_000, 1..80),
    ) {
        let limits = PaceLimits { per_minute: Some(per_minute), apart_ms, ..FREE };
        let mut pace = Pace::default();
        let mut now = at(0);
        let mut gone: Vec<Timestamp> = Vec::new();
        for (number, ms) in (1..).zip(steps) {
            now = now.plus_ms(ms);
            match admit(&mut pace, attempt(1, number), limits, now) {
                Admitted::Now => gone.push(now),
                Admitted::NotBefore(then) => {
                    prop_assert!(then > now);
                    let mut later = pace.clone();
                    prop_assert_eq!(admit(&mut later, attempt(1, number), limits, then), Admitted::Now);
                }
                found @ (Admitted::Full | Admitted::Spent(_)) => {
                    prop_assert!(false, "there is no such limit: {found:?}");
                }
            }
        }
        for (first, begin) in gone.iter().enumerate() {
            for (last, end) in gone.iter().enumerate().skip(first + 1) {
                let went = u64::try_from(last - first + 1).unwrap();
                let span = end.ms_since(*begin);
                let refilled = span * u64::from(per_minute) / 60_000;
                prop_assert!(went <= u64::from(per_minute) + refilled);
                if last == first + 1 {
                    prop_assert!(span >= apart_ms);
                }
            }
        }
    }
}
