//! Fences, and what is in flight when a lease ends.

use lease::fence_response::Answer;

use super::*;

#[tokio::test]
async fn a_fence_lets_pass_what_is_under_the_lease_and_registers_it() {
    let (_fleet, [one, other]) = fleet(2).await;
    one.acquire('A').await.unwrap();
    let Answer::Grant(grant) = one.fence(registration('A', "c1", 1)).await else {
        panic!("expected a grant");
    };
    assert!(grant.lease_ms > 100_000 && grant.horizon_ms > 20_000 && grant.guard_ms > 0);
    assert!(matches!(
        other.fence(registration('A', "c1", 1)).await,
        Answer::Grant(_)
    ));
    for (asked, expected) in [
        (registration('A', "c2", 1), "LEASE_CONNECTION_MISMATCH"),
        (registration('B', "c1", 1), "LEASE_REQUIRED"),
    ] {
        match one.fence(asked).await {
            Answer::Refused(refused) => assert_eq!(refused.code, expected),
            other => panic!("expected a refusal: {other:?}"),
        }
    }
    assert!(matches!(
        other.fence(registration('A', "c1", 2)).await,
        Answer::Grant(_)
    ));
    assert_eq!(
        one.fence(registration('A', "c1", 1)).await,
        Answer::Superseded(true)
    );
}

#[tokio::test]
async fn vector_sessions_59_a_connection_is_given_away_when_nothing_is_in_flight_any_more() {
    let (_fleet, [one, other]) = fleet(1).await;
    one.acquire('A').await.unwrap();
    one.fence(registration('A', "c1", 1)).await;
    one.release('A', 1, KEY).await.unwrap();
    let refused = other.acquire('B').await.unwrap_err();
    assert_eq!(refused.code, "lease-capacity-unavailable");
    assert!(
        (1..=30).contains(&refused.retry_after_seconds),
        "{refused:?}"
    );
    let activity = registration('A', "c1", 1);
    let grant = other.renew_activity(&activity).await.expect("it drains");
    assert_eq!(grant.lease_ms, 0);
    let end = lease::EndActivityRequest {
        registration: Some(activity.clone()),
    };
    other.leases().end_activity(end).await.unwrap();
    assert_eq!(one.acquire('B').await.unwrap().generation, 1);
    assert_eq!(one.renew_activity(&activity).await, None);
}
