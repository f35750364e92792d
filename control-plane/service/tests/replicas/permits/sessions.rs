//! Sessions that are kept together and have to wait for a place.

use super::*;

const SESSION: &str = "header:s";

/// Two replicas and two accounts that let one request run at once each; sessions are kept together.
async fn kept_together() -> (Fleet, [Replica; 2]) {
    let (fleet, replicas) = Fleet::with_replicas::<2>().await;
    let mut document = document(1, "priority", "");
    let mut other = connection("alpha-2", ALPHA, 1);
    other.max_concurrent = Some(1);
    document.connections.push(other);
    document.settings_json = r#"{"sessionAffinityTtlMs": 600000}"#.to_owned();
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(document)
    };
    replicas[0].apply(request).await.unwrap();
    for replica in &replicas {
        replica.has_configuration(2).await;
    }
    (fleet, replicas)
}

fn of_session(number: u64) -> routing::DecideRequest {
    let mut request = question(PLANE, number);
    request.facts.as_mut().unwrap().session_key = SESSION.to_owned();
    request
}

async fn goes_to(replica: &Replica, request: routing::DecideRequest) -> String {
    match decide(replica, request).await {
        Step::Dispatch(dispatch) => {
            assert!(dispatch.permit, "sent without a permit");
            dispatch.attempt.unwrap().connection
        }
        other => panic!("expected a dispatch: {other:?}"),
    }
}

#[tokio::test]
async fn a_session_that_had_to_wait_is_pinned_where_it_got_its_place() {
    let (_fleet, [one, two]) = kept_together().await;
    let first = goes_to(&one, question(PLANE, 1)).await;
    let second = goes_to(&one, question(PLANE, 2)).await;
    assert_ne!(first, second);
    let wait = match decide(&two, of_session(3)).await {
        Step::Wait(wait) => wait,
        other => panic!("expected a wait: {other:?}"),
    };
    assert_eq!(pinned_to(&one).await, None);
    let place = wait.connection;
    let waiting = waits(&two, awaiting(PLANE, 3, &wait.ticket));
    let released = vec![routing::HeldPermits {
        provider: ALPHA.to_owned(),
        connection: place.clone(),
        numbers: vec![if place == first { 1 } else { 2 }],
    }];
    let request = routing::ReleasePermitsRequest {
        plane: PLANE,
        released,
    };
    one.routing().release_permits(request).await.unwrap();
    assert!(within("the grant", waiting).await.unwrap().granted);
    let granted = routing::DecideRequest {
        granted: place.clone(),
        ..of_session(3)
    };
    assert_eq!(goes_to(&two, granted).await, place);
    eventually("the pin", async || {
        pinned_to(&one).await.as_ref() == Some(&place)
    })
    .await;
}

/// Where the session is pinned to.
async fn pinned_to(replica: &Replica) -> Option<String> {
    let request = admin::ExplainRequest {
        facts: of_session(0).facts,
        model: "combo".to_owned(),
        ..admin::ExplainRequest::default()
    };
    let answer = replica.admin().explain(request).await.unwrap().into_inner();
    let pinned = answer.targets.into_iter().find(|target| target.pinned);
    pinned.map(|target| target.connection)
}
