//! One leader at a time, handed over whatever happens to the holder.

use std::time::Duration;

use tidegate_store::durable::{DurableStoreError, Leadership as _};
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::eventually;

use super::{OnPostgres, on_postgres, on_postgres_with, patient};

const LIMIT: Duration = Duration::from_secs(20);
const TASK: &str = "checkpoint";

async fn becomes_leader(store: &PgDurableStore) {
    eventually(LIMIT, "the claim to be handed over", || async {
        matches!(store.try_lead(TASK).await, Ok(true)).then_some(())
    })
    .await
    .unwrap();
}

async fn pair() -> (OnPostgres, PgDurableStore) {
    let fixture = on_postgres().await;
    let other = fixture.another_with(patient()).await;
    assert!(fixture.store.try_lead(TASK).await.unwrap());
    assert!(!other.try_lead(TASK).await.unwrap());
    assert!(fixture.store.try_lead(TASK).await.unwrap(), "not confirmed");
    (fixture, other)
}

#[tokio::test]
async fn of_several_that_try_at_once_one_leads() {
    let fixture = on_postgres().await;
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(fixture.another_with(patient()).await);
    }
    let claims = stores.iter().map(|store| store.try_lead(TASK));
    let mut claims: Vec<bool> = futures::future::try_join_all(claims).await.unwrap();
    claims.sort_unstable();
    assert_eq!(
        claims,
        [false, false, false, false, false, false, false, true]
    );
}

#[tokio::test]
async fn tasks_have_leaders_of_their_own() {
    let (fixture, other) = pair().await;
    assert!(other.try_lead("sweep").await.unwrap());
    assert!(!fixture.store.try_lead("sweep").await.unwrap());
    assert!(!other.try_lead(TASK).await.unwrap());
}

#[tokio::test]
async fn a_claim_is_handed_over_when_given_back() {
    let (fixture, other) = pair().await;
    fixture.store.resign(TASK).await.unwrap();
    assert!(other.try_lead(TASK).await.unwrap());
    assert!(!fixture.store.try_lead(TASK).await.unwrap());
    // Who does not lead gives nothing back.
    fixture.store.resign(TASK).await.unwrap();
    assert!(other.try_lead(TASK).await.unwrap());
}

#[tokio::test]
async fn a_claim_is_handed_over_when_the_holder_closes() {
    let (fixture, other) = pair().await;
    fixture.store.close().await;
    becomes_leader(&other).await;
}

#[tokio::test]
async fn a_claim_is_handed_over_when_its_connection_is_terminated() {
    let (fixture, other) = pair().await;
    let terminated = fixture
        .sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
             WHERE locktype = 'advisory' AND granted",
        )
        .await;
    assert_eq!(terminated, [[Some("1".to_owned())]]);
    becomes_leader(&other).await;
    // The old leader learns of it at its next confirmation.
    assert!(!fixture.store.try_lead(TASK).await.unwrap());
    assert!(other.try_lead(TASK).await.unwrap());
}

#[tokio::test]
async fn a_leader_that_says_nothing_for_too_long_loses_its_claim() {
    let limits = SqlLimits {
        leader_silence: Duration::from_millis(200),
        ..patient()
    };
    let fixture = on_postgres().await;
    let silent = fixture.another_with(limits).await;
    assert!(silent.try_lead(TASK).await.unwrap());
    becomes_leader(&fixture.store).await;
    assert!(!silent.try_lead(TASK).await.unwrap());
}

#[tokio::test]
async fn a_leader_learns_of_a_server_that_is_gone_and_leads_again_when_it_is_back() {
    let fixture = on_postgres().await;
    assert!(fixture.store.try_lead(TASK).await.unwrap());
    fixture.postgres.kill().await.unwrap();
    let error = fixture.store.try_lead(TASK).await.unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Unreachable(_)),
        "{error}"
    );
    fixture.postgres.start_again().await.unwrap();
    becomes_leader(&fixture.store).await;
}

#[tokio::test]
async fn a_leader_before_a_frozen_server_gets_an_error_and_leads_again_afterwards() {
    let fixture = on_postgres_with(SqlLimits::default()).await;
    let other = fixture.another_with(SqlLimits::default()).await;
    becomes_leader(&fixture.store).await;
    fixture.postgres.pause().unwrap();
    let error = fixture.store.try_lead(TASK).await.unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Unreachable(_)),
        "{error}"
    );
    fixture.postgres.resume().unwrap();
    let leads = async |store: &PgDurableStore| store.try_lead(TASK).await.unwrap_or(false);
    let leader = eventually(LIMIT, "one of the two to lead", || async {
        let (one, two) = (leads(&fixture.store).await, leads(&other).await);
        (one || two).then_some((one, two))
    })
    .await
    .unwrap();
    assert_ne!(leader, (true, true));
}
