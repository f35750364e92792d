//! Providers with more full accounts than one decision could ask one by one.

use super::*;

/// Accounts of the first provider; each lets one request run.
const ACCOUNTS: u64 = 50;

/// Asked for a model of the first provider, then of the second one, which has one account that lets one request run.
fn many(strategy: &str, members: &str) -> config::Document {
    let capped = |id: String, of: &str, priority| {
        let mut capped = connection(&id, of, priority);
        capped.max_concurrent = Some(1);
        capped
    };
    let numbers = 1..=u32::try_from(ACCOUNTS).unwrap();
    let mut connections: Vec<_> = numbers
        .map(|number| capped(format!("alpha-{number}"), ALPHA, number))
        .collect();
    connections.push(capped("beta-1".to_owned(), "beta", 1));
    let mut document = document(1, strategy, members);
    document.providers.push(provider("beta", 10));
    document.connections = connections;
    let steps = &mut document.combos[0].steps;
    let second = config::Step {
        model: "beta/m".to_owned(),
        ..config::Step::default()
    };
    steps.push(second);
    document
}

async fn fleet_of_many(strategy: &str, members: &str) -> (Fleet, [Replica; 2]) {
    let (fleet, replicas) = Fleet::with_replicas().await;
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(many(strategy, members))
    };
    replicas[0].apply(request).await.unwrap();
    for replica in &replicas {
        replica.has_configuration(2).await;
    }
    (fleet, replicas)
}

#[tokio::test]
async fn the_last_free_account_is_found_behind_many_full_ones() {
    let (_fleet, [one, two]) = fleet_of_many("priority", NOBODY_WAITS).await;
    for number in 1..=ACCOUNTS {
        let replica = if number % 2 == 0 { &one } else { &two };
        assert!(holds(replica, PLANE, number).await, "{number}");
    }
    // Then the next provider is asked.
    let Step::Dispatch(dispatch) = decide(&one, question(PLANE, 51)).await else {
        panic!("the full accounts of one provider hid those of another");
    };
    assert_eq!(dispatch.attempt.unwrap().connection, "beta-1");
    let Step::Reject(rejection) = decide(&two, question(PLANE, 52)).await else {
        panic!("one too many was let in");
    };
    assert_eq!(rejection.code, "concurrency_cap");
}

#[tokio::test]
async fn what_comes_free_behind_many_full_accounts_is_found_again() {
    let (_fleet, [one, two]) = fleet_of_many("priority", "").await;
    for number in 1..=ACCOUNTS + 1 {
        assert!(holds(&one, PLANE, number).await, "{number}");
    }
    assert!(!holds(&two, PLANE, 60).await);
    let released = vec![routing::HeldPermits {
        provider: ALPHA.to_owned(),
        connection: "alpha-40".to_owned(),
        numbers: vec![40],
    }];
    let request = routing::ReleasePermitsRequest {
        plane: PLANE,
        released,
    };
    one.routing().release_permits(request).await.unwrap();
    eventually("the permit to be found", async || {
        holds(&two, PLANE, 61).await
    })
    .await;
}

#[tokio::test]
async fn a_waiting_strategy_finds_the_free_account_too() {
    let (_fleet, [one]) = {
        let (fleet, [one, _]) = fleet_of_many("round-robin", "").await;
        (fleet, [one])
    };
    for number in 1..=ACCOUNTS + 1 {
        assert!(holds(&one, PLANE, number).await, "{number}");
    }
    let wait = wait_for(&one, PLANE, 60).await;
    assert_eq!(wait.kind(), routing::WaitKind::Permit);
}
