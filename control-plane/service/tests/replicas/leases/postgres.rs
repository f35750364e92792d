//! Leases in Postgres: many replicas at once, and a store that is slow or away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;
use tonic::Code;

use super::*;
use crate::fleet::patient;

async fn on_postgres<const N: usize>(
    accounts: usize,
    limits: SqlLimits,
) -> (Postgres, Fleet, [Replica; N]) {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let store = PgDurableStore::open(&url, limits).await.unwrap();
    let fleet = Fleet::over(Arc::new(store));
    let replicas = fleet.replicas_with(document(accounts)).await;
    (postgres, fleet, replicas)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn vector_sessions_22_nine_owners_get_nine_connections_over_three_replicas() {
    let (_postgres, _fleet, replicas) = on_postgres::<3>(9, patient()).await;
    let owners = "ABCDEFGHI";
    let acquired = owners.chars().zip(replicas.iter().cycle());
    let acquired = acquired.map(async |(letter, replica)| {
        // A store that is busy with the others may be late; the same again says what stands.
        loop {
            match replica.try_acquire(acquire_request(letter)).await {
                Ok(said) => return said,
                Err(late) => assert_eq!(late.code(), Code::Unavailable, "{late:?}"),
            }
        }
    });
    for said in futures::future::join_all(acquired).await {
        assert_eq!(said.unwrap().generation, 1);
    }
    let mut connections = BTreeSet::new();
    for letter in owners.chars() {
        connections.insert(replicas[0].sent_to(letter, 1).await.unwrap());
    }
    assert_eq!(connections.len(), 9, "{connections:?}");
    for replica in &replicas {
        let refused = replica.acquire('J').await.unwrap_err();
        assert_eq!(
            (refused.code.as_str(), refused.eligible),
            ("lease-capacity-unavailable", 9)
        );
    }
}

/// Everything that needs the store.
async fn all_are_unavailable(replica: &Replica) {
    let away = |refused: Status| {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        let text = format!("{refused:?}");
        assert!(text.contains("CP0003"), "{text}");
    };
    away(replica.try_acquire(acquire_request('B')).await.unwrap_err());
    let renew = lease::RenewRequest {
        lease: Some(name('A', 1)),
        key_id: KEY.to_owned(),
        ttl_ms: 0,
    };
    away(replica.try_renew(renew).await.unwrap_err());
    let release = lease::ReleaseRequest {
        lease: Some(name('B', 1)),
        key_id: KEY.to_owned(),
        reason: String::new(),
    };
    away(replica.try_release(release).await.unwrap_err());
    let fence = lease::FenceRequest {
        registration: Some(registration('A', "c1", 1)),
        key_id: KEY.to_owned(),
    };
    away(replica.leases().fence(fence).await.unwrap_err());
    let renew_activity = lease::RenewActivityRequest {
        registration: Some(registration('A', "c1", 1)),
    };
    away(
        replica
            .leases()
            .renew_activity(renew_activity)
            .await
            .unwrap_err(),
    );
    let end = lease::EndActivityRequest {
        registration: Some(registration('A', "c1", 1)),
    };
    away(replica.leases().end_activity(end).await.unwrap_err());
}

#[tokio::test]
async fn without_its_store_nobody_gets_a_lease_and_others_are_served() {
    let (postgres, _fleet, [one]) = on_postgres(2, patient()).await;
    postgres.kill().await.unwrap();
    all_are_unavailable(&one).await;
    let unavailable = (503, "LEASE_SERVICE_UNAVAILABLE".to_owned());
    assert_eq!(refused(one.sent_to('A', 1).await), unavailable);
    let without_key = one.ask(decide_request(9, 2)).await;
    assert_eq!(sent_to(without_key), Ok("c1".to_owned()));
    postgres.start_again().await.unwrap();
    eventually("the store", async || {
        one.try_acquire(acquire_request('A'))
            .await
            .is_ok_and(|said| said.is_ok())
    })
    .await;
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
}

#[tokio::test]
async fn a_store_that_stands_still_is_not_waited_for_long() {
    let (postgres, _fleet, [one]) = on_postgres(2, SqlLimits::default()).await;
    one.acquire('A').await.unwrap();
    // Nothing was known of leases before.
    assert_eq!(one.counter("lease_foresight_total{outcome=\"unknown\"}"), 1);
    postgres.pause().unwrap();
    let began = Instant::now();
    let late = one.try_acquire(acquire_request('A')).await.unwrap_err();
    assert_eq!(late.code(), Code::Unavailable, "{late:?}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400), "it was asked: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let mut without_key = decide_request(9, 2);
    without_key.facts.as_mut().unwrap().forced_connection = "c2".to_owned();
    assert_eq!(sent_to(one.ask(without_key).await), Ok("c2".to_owned()));
    // A data plane that holds a grant may go on there; where nobody remembers a place, nobody goes.
    assert_eq!(one.sent_to('A', 1).await, Ok("c1".to_owned()));
    let unavailable = (503, "LEASE_SERVICE_UNAVAILABLE".to_owned());
    assert_eq!(refused(one.sent_to('A', 2).await), unavailable);
    assert_eq!(refused(one.sent_to('B', 1).await), unavailable);
    postgres.resume().unwrap();
    eventually("the store", async || {
        one.try_acquire(acquire_request('A'))
            .await
            .is_ok_and(|said| said.is_ok())
    })
    .await;
}
