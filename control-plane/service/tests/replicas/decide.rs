//! Decisions and the half-open probe.

use std::time::Duration;

use tidegate_proto::common::v1 as common;
use tidegate_proto::routing::v1::decide_response::Step;
use tidegate_proto::routing::v1::{self as routing, AbandonRequest, AwaitRequest};
use tonic::Code;

use crate::fleet::{
    ALPHA, Fleet, Replica, apply_request, decide_request, document, eventually, failure, success,
};

mod limits;

/// Past the reset timeout of class `local`.
const PAST_RESET_MS: i64 = 16_000;

fn probe_of(response: &routing::DecideResponse) -> Option<&common::Attempt> {
    match response.step.as_ref().unwrap() {
        Step::Dispatch(dispatch) => dispatch.attempt.as_ref().filter(|attempt| attempt.probe),
        Step::Wait(_) | Step::Reject(_) | Step::Plan(_) => None,
    }
}

async fn half_open(fleet: &Fleet, replicas: [&Replica; 2]) {
    replicas[0].open_breaker(7).await;
    replicas[1].breaker_becomes("OPEN").await;
    fleet.memory.step_clock(PAST_RESET_MS);
    for replica in replicas {
        replica.breaker_becomes("HALF_OPEN").await;
    }
}

#[tokio::test]
async fn two_decisions_at_once_on_half_open_get_one_probe() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    let (first, second) = tokio::join!(one.decide(8, 1), other.decide(9, 1));
    let probes = [probe_of(&first), probe_of(&second)];
    assert_eq!(probes.iter().flatten().count(), 1, "{probes:?}");
    let rejected = [&first, &second]
        .iter()
        .filter(|it| matches!(it.step, Some(Step::Reject(_))))
        .count();
    assert_eq!(rejected, 1);
}

#[tokio::test]
async fn same_attempt_asked_twice_keeps_its_probe_and_success_closes() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    let first = one.decide(8, 1).await;
    let probe = probe_of(&first).expect("the probe").clone();
    eventually("the probe at the other replica", async || {
        probe_of(&other.decide(9, 1).await).is_none()
    })
    .await;
    let again = other.decide(8, 1).await;
    assert_eq!(probe_of(&again).map(|it| it.id), Some(probe.id));
    let mut reporting = other.report().await;
    reporting.send(8, vec![success(8, 1, &probe)]).await;
    reporting.acknowledged_to(1).await;
    one.breaker_becomes("CLOSED").await;
}

#[tokio::test]
async fn abandoned_probe_can_be_taken_by_another() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    let first = one.decide(8, 1).await;
    let probe = probe_of(&first).expect("the probe").clone();
    let abandon = AbandonRequest {
        attempt: probe.id,
        provider: ALPHA.to_owned(),
    };
    other.routing().abandon(abandon).await.unwrap();
    eventually("another probe", async || {
        probe_of(&one.decide(9, 1).await).is_some()
    })
    .await;
}

#[tokio::test]
async fn a_probe_under_way_is_renewed_with_the_permits() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    let store_time = async |replica: &Replica, number| {
        let answer = replica.decide(9, number).await;
        let has_probe = probe_of(&answer).is_some();
        (answer.freshness.unwrap().store_time_unix_ms, has_probe)
    };
    assert!(probe_of(&one.decide(8, 1).await).is_some());
    let (began, _) = store_time(&one, 1).await;
    fleet.memory.step_clock(50_000);
    eventually("the step to be seen", async || {
        store_time(&one, 1).await.0 >= began + 50_000
    })
    .await;
    let keep = routing::KeepPermitsRequest {
        plane: 8,
        newest: 1,
        probes: vec![routing::HeldProbe {
            provider: ALPHA.to_owned(),
            number: 1,
        }],
        ..routing::KeepPermitsRequest::default()
    };
    one.routing().keep_permits(keep).await.unwrap();
    fleet.memory.step_clock(50_000);
    // It was given for 60 s.
    eventually("a time past its first end", async || {
        let (time, has_probe) = store_time(&one, 1).await;
        assert!(!has_probe);
        time >= began + 100_000
    })
    .await;
    fleet.memory.step_clock(50_000);
    eventually("its end", async || store_time(&one, 1).await.1).await;
}

#[tokio::test]
async fn without_the_store_one_replica_still_gives_one_probe() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    one.hot.freeze();
    let first = one.decide(8, 1).await;
    assert!(
        probe_of(&first).is_none(),
        "slow once is not away: {first:?}"
    );
    let mut granted = first;
    for number in 2..=4 {
        granted = one.decide(8, number).await;
        if probe_of(&granted).is_some() {
            break;
        }
    }
    assert!(probe_of(&granted).is_some(), "{granted:?}");
    let second = one.decide(9, 1).await;
    assert!(probe_of(&second).is_none(), "{second:?}");
    one.hot.drop_parked();
    one.hot.thaw().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_store_many_decisions_at_once_get_one_probe() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    one.hot.freeze();
    let decisions = (1..=64).map(|number| one.decide(8, number));
    let answers = futures::future::join_all(decisions).await;
    let probes = answers.iter().filter_map(probe_of).count();
    assert_eq!(probes, 1);
    one.hot.drop_parked();
    one.hot.thaw().await;
}

#[tokio::test]
async fn probe_of_an_attempt_whose_provider_is_not_named_is_found_and_returned() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    let first = one.decide(8, 1).await;
    let probe = probe_of(&first).expect("the probe").clone();
    let abandon = |number| AbandonRequest {
        attempt: Some(common::AttemptId { plane: 8, number }),
        provider: String::new(),
    };
    one.routing().abandon(abandon(2)).await.unwrap();
    assert!(probe_of(&one.decide(9, 1).await).is_none());
    assert_eq!(probe.id, abandon(1).attempt);
    one.routing().abandon(abandon(1)).await.unwrap();
    assert!(probe_of(&one.decide(9, 1).await).is_some());
}

#[tokio::test]
async fn last_failure_is_classified_and_avoided_at_once() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let attempt = one.dispatched(7).await;
    let mut request = decide_request(7, 2);
    request.last_failure = Some(routing::LastFailure {
        attempt: Some(attempt),
        outcome: Some(common::Outcome {
            kind: Some(common::outcome::Kind::Response(common::UpstreamError {
                status: 401,
                ..common::UpstreamError::default()
            })),
        }),
        ..routing::LastFailure::default()
    });
    let answer = one.routing().decide(request).await.unwrap().into_inner();
    assert_eq!(answer.classification.unwrap().status, 401);
    assert!(answer.failed_at_unix_ms > 0);
    assert!(matches!(answer.step, Some(Step::Reject(_))));
    // Nothing was recorded.
    assert_eq!(one.connection("a1").await.state, "active");
}

#[tokio::test]
async fn dispatch_carries_what_its_report_is_compared_with() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let response = one.decide(7, 3).await;
    assert_eq!(response.configuration_version, 1);
    assert!(!response.freshness.unwrap().stale);
    let Some(Step::Dispatch(dispatch)) = response.step else {
        panic!("expected a dispatch");
    };
    let attempt = dispatch.attempt.unwrap();
    assert_eq!(attempt.connection, "a1");
    assert_eq!(attempt.credential_version, 1);
    assert!(attempt.decided_on.unwrap().incarnation > 0);
    assert_eq!(dispatch.deadlines.unwrap().connect_ms, 30_000);
}

#[tokio::test]
async fn unknown_tickets_are_not_granted_and_bad_questions_are_refused() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let mut client = one.routing();
    let refused = client
        .r#await(AwaitRequest {
            attempt: Some(common::AttemptId {
                plane: 7,
                number: 1,
            }),
            ticket: b"?".to_vec(),
            waited_ms: 0,
        })
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let mut without_protocol = decide_request(7, 1);
    without_protocol.facts.as_mut().unwrap().protocol = 0;
    let refused = client.decide(without_protocol).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let mut unknown_key = decide_request(7, 1);
    unknown_key.facts.as_mut().unwrap().key_id = "nobody".to_owned();
    let refused = client.decide(unknown_key).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn replica_asked_with_a_newer_configuration_than_its_own_catches_up() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    for version in 2..=4 {
        let mut changed = document();
        changed.connections[0].priority = Some(version);
        one.apply(apply_request(changed)).await.unwrap();
        let mut request = decide_request(7, u64::from(version));
        request.configuration_version = u64::from(version);
        let answer = other.routing().decide(request).await.unwrap().into_inner();
        // Within the limit of a decision; on a machine under load it may take a second question.
        if answer.configuration_version < u64::from(version) {
            other.has_configuration(u64::from(version)).await;
        }
    }
    // One that nobody has delays no answer for long.
    let mut request = decide_request(7, 9);
    request.configuration_version = 1_000;
    let answer = other.routing().decide(request).await.unwrap().into_inner();
    assert_eq!(answer.configuration_version, 4);
}

/// So far behind the store is what the other replica in the tests below has seen.
const BEHIND: Duration = Duration::from_millis(15);

#[tokio::test]
async fn verdict_of_a_probe_counts_at_a_replica_that_does_not_know_the_probe_yet() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    other.hot.delay_changes(BEHIND);
    let mut reporting = other.report().await;
    let probe = probe_of(&one.decide(8, 1).await).expect("a probe").clone();
    reporting.send(8, vec![success(8, 1, &probe)]).await;
    reporting.acknowledged_to(1).await;
    other.breaker_becomes("CLOSED").await;
    one.breaker_becomes("CLOSED").await;
}

#[tokio::test]
async fn probe_is_returned_by_a_replica_that_does_not_know_it_yet() {
    let (fleet, [one, other]) = Fleet::with_replicas().await;
    half_open(&fleet, [&one, &other]).await;
    other.hot.delay_changes(BEHIND);
    let probe = probe_of(&one.decide(8, 1).await).expect("a probe").clone();
    let abandon = AbandonRequest {
        attempt: probe.id,
        provider: ALPHA.to_owned(),
    };
    // A call has little time on a busy machine, where a data plane asks again, too.
    eventually("the probe to be returned", async || {
        other.routing().abandon(abandon.clone()).await.is_ok()
    })
    .await;
    eventually("another probe", async || {
        probe_of(&one.decide(9, 1).await).is_some()
    })
    .await;
}

#[tokio::test]
async fn failure_decided_after_a_reset_counts_at_a_replica_that_does_not_know_the_reset_yet() {
    let (_fleet, [one, other]) = Fleet::with_replicas().await;
    one.open_breaker(7).await;
    other.breaker_becomes("OPEN").await;
    other.hot.delay_changes(BEHIND);
    let mut reporting = other.report().await;
    let request = tidegate_proto::admin::v1::ResetRequest::default();
    one.admin().reset(request).await.unwrap();
    let attempt = one.dispatched(8).await;
    reporting.send(8, vec![failure(8, 1, &attempt)]).await;
    reporting.acknowledged_to(1).await;
    for replica in [&other, &one] {
        eventually("the failure", async || {
            replica.breaker_status().await.failure_count == 1
        })
        .await;
    }
    // It counted once.
    assert_eq!(other.breaker_status().await.failure_count, 1);
}
