//! Requests of keys that may lease.

use pretty_assertions::assert_eq;
use tidegate_proto::admin::v1 as admin;

use super::*;
use crate::fleet::apply_request;

/// Longer than any cooldown here.
const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn vector_sessions_15_a_request_moves_its_lease_off_a_connection_that_cools() {
    let (_fleet, [one]) = fleet(2).await;
    let lease = one.acquire('A').await.unwrap();
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
    one.cools(&dispatched(one.ask(question('A', 1, 1)).await))
        .await;
    assert_eq!(one.sent_to('A', 1).await, Ok("c2".to_owned()));
    let stands = one.standing('A', 1).await.unwrap().lease.unwrap();
    assert_eq!(stands.expires_at_unix_ms, lease.expires_at_unix_ms);
    let refused = one.fence(registration('A', "c1", 1)).await;
    assert!(
        matches!(&refused, lease::fence_response::Answer::Refused(refused)
            if refused.code == "LEASE_CONNECTION_MISMATCH"),
        "{refused:?}"
    );
    assert!(matches!(
        one.fence(registration('A', "c2", 1)).await,
        lease::fence_response::Answer::Grant(_)
    ));
}

#[tokio::test]
async fn vector_sessions_16_a_lease_without_a_connection_is_lost() {
    let (fleet, [one]) = fleet(1).await;
    one.acquire('A').await.unwrap();
    one.cools(&dispatched(one.ask(question('A', 1, 1)).await))
        .await;
    let cooling = (503, "all_targets_cooling_down".to_owned());
    for _ in 0..2 {
        assert_eq!(ordinary(one.sent_to('A', 1).await), cooling);
        assert_eq!(code(one.standing('A', 1).await), "LEASE_FENCE_STALE");
    }
    fleet.memory.step_clock(HOUR_MS.cast_signed());
    let required = (409, "LEASE_REQUIRED".to_owned());
    eventually("the end of the cooldown", async || {
        let answer = one.sent_to('A', 1).await;
        answer.is_err_and(|reject| (reject.status, reject.code) == required)
    })
    .await;
    assert_eq!(one.acquire('A').await.unwrap().generation, 2);
    assert_eq!(one.sent_to('A', 2).await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn vector_sessions_16_a_request_does_not_wait_for_a_lease_that_is_lost() {
    let fleet = Fleet::new().await;
    let mut waiting = document(1);
    waiting.settings_json = String::new();
    let [one] = fleet.replicas_with(waiting).await;
    one.cools(&dispatched(one.ask(decide_request(9, 1)).await))
        .await;
    let without_key = one.ask(decide_request(9, 2)).await;
    assert!(matches!(without_key, Step::Wait(_)), "{without_key:?}");
    fleet.memory.step_clock(HOUR_MS.cast_signed());
    eventually("the end of the cooldown", async || {
        one.acquire('A').await.is_ok()
    })
    .await;
    one.cools_late(&dispatched(one.ask(question('A', 1, 1)).await), HOUR_MS)
        .await;
    let (status, _) = ordinary(one.sent_to('A', 1).await);
    assert_eq!(status, 503);
}

#[tokio::test]
async fn vector_sessions_17_everything_else_is_leased() {
    let (_fleet, [one, other]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    other.acquire('B').await.unwrap();
    one.cools(&dispatched(one.ask(question('A', 1, 1)).await))
        .await;
    let reject = one.sent_to('A', 1).await.unwrap_err();
    let told = reject.lease.as_ref().expect("a refusal of a lease");
    assert_eq!(
        (reject.status, told.code.as_str(), told.eligible),
        (429, "lease-capacity-unavailable", 1)
    );
    assert!((1..=120).contains(&told.retry_after_seconds), "{told:?}");
    assert_eq!(code(one.standing('A', 1).await), "LEASE_FENCE_STALE");
    assert_eq!(other.sent_to('B', 1).await, Ok("c2".to_owned()));
}

#[tokio::test]
async fn vector_sessions_19_a_lease_given_back_while_a_request_waits() {
    let fleet = Fleet::new().await;
    let mut capped = document(1);
    capped.connections[0].max_concurrent = Some(1);
    capped.combos = vec![config::Combo {
        name: "combo".to_owned(),
        strategy: "round-robin".to_owned(),
        steps: vec![config::Step {
            model: "alpha/m".to_owned(),
            ..config::Step::default()
        }],
        config_json: String::new(),
    }];
    let [one] = fleet.replicas_with(capped).await;
    one.acquire('A').await.unwrap();
    let of_combo = |number| {
        let mut question = question('A', 1, number);
        question.facts.as_mut().unwrap().model = "combo".to_owned();
        question
    };
    assert_eq!(sent_to(one.ask(of_combo(1)).await), Ok("c1".to_owned()));
    let waits = one.ask(of_combo(2)).await;
    let Step::Wait(wait) = waits else {
        panic!("expected a wait: {waits:?}");
    };
    assert_eq!(wait.connection, "c1");
    one.release('A', 1, KEY).await.unwrap();
    let required = (409, "LEASE_REQUIRED".to_owned());
    assert_eq!(refused(sent_to(one.ask(of_combo(2)).await)), required);
}

#[tokio::test]
async fn vector_sessions_20_a_request_insists_on_another_connection() {
    let (_fleet, [one]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    let forced = |connection: &str| {
        let mut question = question('A', 1, 1);
        question.facts.as_mut().unwrap().forced_connection = connection.to_owned();
        question
    };
    let mismatch = (409, "LEASE_CONNECTION_MISMATCH".to_owned());
    assert_eq!(refused(sent_to(one.ask(forced("c2")).await)), mismatch);
    assert_eq!(sent_to(one.ask(forced("c1")).await), Ok("c1".to_owned()));
    assert_eq!(one.connection("c1").await.state, "active");
}

#[tokio::test]
async fn vector_sessions_21_routes_over_several_connections() {
    let fleet = Fleet::new().await;
    let mut routes = document(2);
    let step = |model: &str| config::Step {
        model: model.to_owned(),
        ..config::Step::default()
    };
    let combo = |name: &str, strategy: &str, models: &[&str]| config::Combo {
        name: name.to_owned(),
        strategy: strategy.to_owned(),
        steps: models.iter().map(|model| step(model)).collect(),
        config_json: String::new(),
    };
    let two = ["alpha/m", "alpha/n"];
    routes.combos = vec![
        combo("fusion", "fusion", &two),
        combo("pipeline", "pipeline", &two),
        combo("single", "pipeline", &two[..1]),
    ];
    let [one] = fleet.replicas_with(routes).await;
    one.acquire('A').await.unwrap();
    let asked = async |model: &str| {
        let mut question = question('A', 1, 1);
        question.facts.as_mut().unwrap().model = model.to_owned();
        sent_to(one.ask(question).await)
    };
    let unsupported = (409, "LEASE_UNSUPPORTED_ROUTE".to_owned());
    assert_eq!(refused(asked("fusion").await), unsupported);
    assert_eq!(refused(asked("pipeline").await), unsupported);
    assert_eq!(asked("single").await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn a_request_is_told_what_its_lease_lacks() {
    let (_fleet, [one]) = fleet(1).await;
    let mut without = question('A', 1, 1);
    without.facts.as_mut().unwrap().lease = None;
    let required = (400, "LEASE_CONTEXT_REQUIRED".to_owned());
    assert_eq!(refused(sent_to(one.ask(without).await)), required);
    let no_lease = (409, "LEASE_REQUIRED".to_owned());
    assert_eq!(refused(one.sent_to('A', 1).await), no_lease);
    one.acquire('A').await.unwrap();
    let stale = (409, "LEASE_FENCE_STALE".to_owned());
    assert_eq!(refused(one.sent_to('A', 2).await), stale);
    let mut other_key = question('A', 1, 1);
    other_key.facts.as_mut().unwrap().key_id = OTHER_KEY.to_owned();
    assert_eq!(refused(sent_to(one.ask(other_key).await)), stale);
}

#[tokio::test]
async fn a_key_that_may_not_lease_is_not_looked_at_for_leases() {
    let (_fleet, [one]) = fleet(1).await;
    let mut plain = question('A', 9, 1);
    plain.facts.as_mut().unwrap().key_id = String::new();
    assert_eq!(sent_to(one.ask(plain).await), Ok("c1".to_owned()));
}

/// The question after a failure of an attempt with this status.
fn after(step: Step, status: u32) -> routing::DecideRequest {
    let Step::Dispatch(dispatch) = step else {
        panic!("expected a dispatch: {step:?}");
    };
    let mut request = question('A', 1, 2);
    request.last_failure = Some(routing::LastFailure {
        attempt: dispatch.attempt,
        outcome: Some(common::Outcome {
            kind: Some(common::outcome::Kind::Response(common::UpstreamError {
                status,
                ..common::UpstreamError::default()
            })),
        }),
        pass: dispatch.pass,
        target: dispatch.target,
        ..routing::LastFailure::default()
    });
    request
}

#[tokio::test]
async fn a_failure_of_the_request_itself_moves_its_lease() {
    let (_fleet, [one, other]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    let first = one.ask(question('A', 1, 1)).await;
    let request = after(first, 429);
    // Nothing was reported: the failure is this request's alone so far.
    assert_eq!(sent_to(other.ask(request).await), Ok("c2".to_owned()));
    assert!(matches!(
        one.fence(registration('A', "c2", 1)).await,
        lease::fence_response::Answer::Grant(_)
    ));
}

#[tokio::test]
async fn a_fault_of_the_client_is_its_answer_whatever_the_lease() {
    let (_fleet, [one]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    let first = one.ask(question('A', 1, 1)).await;
    one.release('A', 1, KEY).await.unwrap();
    let (status, code) = ordinary(sent_to(one.ask(after(first, 413)).await));
    assert_eq!((status, code.as_str()), (413, "client_error"));
}

#[tokio::test]
async fn a_failure_that_cools_nothing_does_not_leave_the_lease() {
    let fleet = Fleet::new().await;
    let mut warm = document(2);
    for account in &mut warm.connections {
        account.disable_cooling = true;
    }
    let [one] = fleet.replicas_with(warm).await;
    one.acquire('A').await.unwrap();
    let first = one.ask(question('A', 1, 1)).await;
    let (status, _) = ordinary(sent_to(one.ask(after(first, 500)).await));
    assert_eq!(status, 500);
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn a_model_that_nothing_serves_costs_no_lease() {
    let fleet = Fleet::new().await;
    let mut two = document(2);
    for account in &mut two.connections {
        account.models = vec!["m".to_owned()];
    }
    let [one] = fleet.replicas_with(two).await;
    one.acquire('A').await.unwrap();
    let mut question = question('A', 1, 1);
    question.facts.as_mut().unwrap().model = "alpha/other".to_owned();
    let (status, _) = ordinary(sent_to(one.ask(question).await));
    assert_eq!(status, 404);
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn a_connection_that_is_switched_off_gives_its_lease_up() {
    let (_fleet, [one]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    let mut changed = document(2);
    changed.connections[0].disabled = true;
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(changed)
    };
    one.apply(request).await.unwrap();
    let required = (409, "LEASE_REQUIRED".to_owned());
    assert_eq!(refused(one.sent_to('A', 1).await), required);
    assert_eq!(one.acquire('A').await.unwrap().generation, 2);
    assert_eq!(one.sent_to('A', 2).await, Ok("c2".to_owned()));
}

#[tokio::test]
async fn a_leased_connection_that_runs_all_it_may_is_waited_for() {
    let fleet = Fleet::new().await;
    let mut capped = document(2);
    capped.connections[0].max_concurrent = Some(1);
    let [one] = fleet.replicas_with(capped).await;
    one.acquire('A').await.unwrap();
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
    let Step::Wait(wait) = one.ask(question('A', 1, 2)).await else {
        panic!("it was not to wait");
    };
    assert_eq!(wait.kind(), routing::WaitKind::Permit);
    // Its own connection, and no other one.
    assert_eq!(wait.connection, "c1");
    let released = vec![routing::HeldPermits {
        provider: ALPHA.to_owned(),
        connection: "c1".to_owned(),
        numbers: vec![1],
    }];
    let release = routing::ReleasePermitsRequest { plane: 7, released };
    one.routing().release_permits(release).await.unwrap();
    let request = routing::AwaitRequest {
        attempt: Some(common::AttemptId {
            plane: 7,
            number: 3,
        }),
        ticket: wait.ticket,
        waited_ms: 0,
    };
    let answer = one.routing().r#await(request).await.unwrap();
    assert!(answer.into_inner().granted);
    let granted = routing::DecideRequest {
        granted: "c1".to_owned(),
        ..question('A', 1, 3)
    };
    assert_eq!(sent_to(one.ask(granted).await), Ok("c1".to_owned()));
}
