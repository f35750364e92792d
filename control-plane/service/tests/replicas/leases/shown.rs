//! Leases as requests without one see them (decisions 41 and 42b). What the durable store says is shown by every replica
//! within seconds, whatever became of what was announced.

use tidegate_core::ids::{ConnectionId, KeyId, ProviderId};
use tidegate_core::lease::{
    Acquire, Eligibility, Eligible, EndReason, Lease, LeaseId, Named, OwnerHash,
};
use tidegate_core::settings::LeaseSettings;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1::decide_response::Step;

use super::{KEY, acquire_request};
use crate::fleet::{ALPHA, Fleet, Replica, apply_request, connection, eventually, provider};

const PLANE: u64 = 7;
const LEASED: &str = "a1";
const OTHER: &str = "a2";

/// `a1` may be leased and comes first; `a2` may not.
fn document(leasing: bool) -> config::Document {
    let keys = [config::ApiKey {
        id: KEY.to_owned(),
        sha256: "aa".repeat(32),
        allowed_connections: vec![LEASED.to_owned()],
        scopes: vec!["lease:exclusive".to_owned()],
        ..config::ApiKey::default()
    }];
    config::Document {
        providers: vec![provider(ALPHA, 9)],
        connections: vec![connection(LEASED, ALPHA, 1), connection(OTHER, ALPHA, 2)],
        keys: keys.into_iter().filter(|_| leasing).collect(),
        ..config::Document::default()
    }
}

async fn fleet<const N: usize>() -> (Fleet, [Replica; N]) {
    let (fleet, replicas) = Fleet::with_replicas().await;
    apply(&replicas, document(true), 2).await;
    (fleet, replicas)
}

async fn apply(replicas: &[Replica], document: config::Document, version: u64) {
    replicas[0].apply(apply_request(document)).await.unwrap();
    for replica in replicas {
        replica.has_configuration(version).await;
    }
}

/// `owner` gets `a1`, and nobody says so.
async fn lease(fleet: &Fleet, owner: u8) -> Lease {
    let candidates = [Eligible {
        connection: ConnectionId::new(LEASED).unwrap(),
        provider: ProviderId::new(ALPHA).unwrap(),
    }];
    let key = KeyId::new(KEY).unwrap();
    let asked = Acquire {
        id: LeaseId(u128::from(owner)),
        owner: OwnerHash::from_bytes([owner; 32]),
        key: &key,
        eligibility: Eligibility::Some(&candidates),
        why: &|_| None,
        ttl_ms: 120_000,
    };
    let reply = fleet
        .durable
        .acquire_lease(&asked, &LeaseSettings::default())
        .await
        .unwrap();
    reply.answer.unwrap()
}

async fn release(fleet: &Fleet, lease: &Lease) {
    let asked = Named {
        generation: lease.generation,
        key: &lease.key,
    };
    let released = fleet
        .durable
        .release_lease(lease.owner, asked, EndReason::OwnerExit)
        .await;
    released.unwrap().answer.unwrap();
}

/// Where a request without a lease goes.
async fn goes_to(replica: &Replica) -> String {
    replica.dispatched(PLANE).await.connection
}

async fn comes_to_go_to(replicas: &[Replica], connection: &str) {
    for replica in replicas {
        eventually(connection, async || goes_to(replica).await == connection).await;
    }
}

#[tokio::test]
async fn a_lease_that_one_replica_gave_keeps_others_off_its_connection_everywhere() {
    let (fleet, replicas) = fleet::<2>().await;
    comes_to_go_to(&replicas, LEASED).await;
    let held = lease(&fleet, 1).await;
    comes_to_go_to(&replicas, OTHER).await;
    release(&fleet, &held).await;
    comes_to_go_to(&replicas, LEASED).await;
    let next = lease(&fleet, 2).await;
    comes_to_go_to(&replicas, OTHER).await;
    assert_ne!(held.id, next.id);
}

/// Who was given a lease knows that no later decision of that replica sends anybody else there.
#[tokio::test]
async fn a_lease_is_shown_before_it_is_answered() {
    let (_fleet, replicas) = fleet::<2>().await;
    let [one, other] = &replicas;
    comes_to_go_to(&replicas, LEASED).await;
    for round in 1..=3 {
        let request = tidegate_proto::lease::v1::AcquireRequest {
            configuration_version: 2,
            ..acquire_request('A')
        };
        let given = one.try_acquire(request).await.unwrap().unwrap();
        assert_eq!(given.generation, round);
        assert_eq!(goes_to(one).await, OTHER);
        eventually("the other replica", async || goes_to(other).await == OTHER).await;
        one.release('A', round, KEY).await.unwrap();
        assert_eq!(goes_to(one).await, LEASED);
        eventually("the other replica", async || goes_to(other).await == LEASED).await;
    }
}

#[tokio::test]
async fn all_being_leased_is_told_as_want_of_capacity() {
    let (fleet, replicas) = fleet::<1>().await;
    let mut document = document(true);
    document.connections.truncate(1);
    apply(&replicas, document, 3).await;
    lease(&fleet, 1).await;
    let [replica] = &replicas;
    let mut told = None;
    eventually("the refusal", async || {
        if let Some(Step::Reject(rejection)) = replica.decide(PLANE, 1_000_000).await.step {
            told = Some(rejection);
        }
        told.is_some()
    })
    .await;
    let told = told.unwrap();
    assert_eq!(
        (told.status, told.code.as_str()),
        (429, "lease-capacity-unavailable")
    );
    let refusal = told.lease.unwrap();
    assert!(
        (100..=120).contains(&refusal.retry_after_seconds),
        "{refusal:?}"
    );
    assert_eq!(told.excluded[0].reason, "leased");
}

#[tokio::test]
async fn what_the_hot_store_forgot_is_there_again() {
    let (fleet, replicas) = fleet::<2>().await;
    lease(&fleet, 1).await;
    comes_to_go_to(&replicas, OTHER).await;
    let key = "c:alpha/a1";
    assert!(fleet.stores(key).await);
    fleet.memory.flush();
    eventually("the value", async || fleet.stores(key).await).await;
    comes_to_go_to(&replicas, OTHER).await;
}

#[tokio::test]
async fn a_configuration_that_ends_a_lease_is_seen() {
    let (fleet, replicas) = fleet::<2>().await;
    lease(&fleet, 1).await;
    comes_to_go_to(&replicas, OTHER).await;
    apply(&replicas, document(false), 3).await;
    comes_to_go_to(&replicas, LEASED).await;
    assert_eq!(fleet.durable.list_leases().await.unwrap().1, []);
}

/// A lease that was given by who had not heard of the configuration ends when a replica takes it up.
#[tokio::test]
async fn whoever_takes_up_a_configuration_ends_what_it_does_not_cover() {
    let (fleet, replicas) = fleet::<2>().await;
    apply(&replicas, document(false), 3).await;
    lease(&fleet, 1).await;
    let late = fleet.start().await;
    late.has_configuration(3).await;
    eventually("its end", async || {
        fleet.durable.list_leases().await.unwrap().1.is_empty()
    })
    .await;
    comes_to_go_to(&replicas, LEASED).await;
}

#[tokio::test]
async fn with_the_hot_store_away_each_replica_sees_for_itself() {
    let (fleet, replicas) = fleet::<2>().await;
    for replica in &replicas {
        replica.hot.freeze();
    }
    let held = lease(&fleet, 1).await;
    comes_to_go_to(&replicas, OTHER).await;
    release(&fleet, &held).await;
    comes_to_go_to(&replicas, LEASED).await;
    lease(&fleet, 2).await;
    comes_to_go_to(&replicas, OTHER).await;
    for replica in &replicas {
        replica.hot.thaw().await;
    }
    eventually("the value", async || fleet.stores("c:alpha/a1").await).await;
    comes_to_go_to(&replicas, OTHER).await;
}
