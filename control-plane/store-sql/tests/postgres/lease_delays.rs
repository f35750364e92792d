//! What is foreseen of leases comes late to be written, since it has to wait.

use sqlx::{AssertSqlSafe, Executor as _};
use tidegate_core::lease::{EndReason, LeaseError};
use tidegate_core::time::Timestamp;
use tidegate_store::durable::LeaseStore as _;

use super::lease_races::{
    NOW, ask, ask_for, count, foreign_lease, in_the_middle_of, named, renew_lease, waits,
};
use super::on_postgres;

/// What the replica foresees is right but for the time, which passes while it waits for the row.
#[tokio::test]
async fn what_is_foreseen_of_a_lease_is_not_written_after_its_end() {
    const SOON_MS: u64 = 400;
    let until_its_end = format!(
        "SELECT pg_sleep(greatest(0, max(expires_at) - {NOW} + 1) / 1000.0) FROM leases;
         COMMIT"
    );
    for again in [false, true] {
        let fixture = on_postgres().await;
        let lease = ask_for(&fixture, SOON_MS, 1, &["a"]).await.unwrap();
        let mut foreign = in_the_middle_of(&fixture, "SELECT FROM leases FOR SHARE").await;
        let passes = async { foreign.execute(AssertSqlSafe(until_its_end.clone())).await };
        if again {
            let (next, passed) = tokio::join!(ask(&fixture, 1, &["a"]), passes);
            passed.unwrap();
            assert_ne!(next.unwrap().id, lease.id);
        } else {
            let (renewed, passed) = tokio::join!(renew_lease(&fixture, &lease), passes);
            passed.unwrap();
            assert_eq!(renewed, Err(LeaseError::FenceStale));
        }
    }
}

/// It is as if it had been asked for after the wait.
#[tokio::test]
async fn what_is_foreseen_of_a_lease_is_not_written_long_after() {
    let fixture = on_postgres().await;
    let mut lease = ask(&fixture, 1, &["a"]).await.unwrap();
    for ends in [false, true] {
        let mut foreign = in_the_middle_of(&fixture, "SELECT FROM leases FOR SHARE").await;
        let passes = async {
            waits(&fixture).await;
            foreign.execute("SELECT pg_sleep(0.7)").await.unwrap();
            let now: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT {NOW}")))
                .fetch_one(&mut foreign)
                .await
                .unwrap();
            foreign.execute("COMMIT").await.unwrap();
            Timestamp(now.try_into().unwrap())
        };
        if ends {
            let released =
                fixture
                    .store
                    .release_lease(lease.owner, named(&lease), EndReason::OwnerExit);
            let (released, free_at) = tokio::join!(released, passes);
            let ended = released.unwrap().answer.unwrap().ended.unwrap();
            assert!(ended.at >= free_at, "{ended:?}, {free_at:?}");
        } else {
            let (renewed, free_at) = tokio::join!(renew_lease(&fixture, &lease), passes);
            lease = renewed.unwrap();
            assert!(lease.renewed_at >= free_at, "{lease:?}, {free_at:?}");
        }
    }
}

/// Another lease of the connection comes and goes while a new one waits to be counted.
#[tokio::test]
async fn a_lease_that_waits_to_be_counted_begins_after_what_came_and_went() {
    let fixture = on_postgres().await;
    let lease = ask(&fixture, 1, &["a"]).await.unwrap();
    let named = named(&lease);
    let released = (fixture.store).release_lease(lease.owner, named, EndReason::OwnerExit);
    released.await.unwrap().answer.unwrap();
    let counted = "SELECT FROM lease_generations FOR UPDATE";
    let mut foreign = in_the_middle_of(&fixture, counted).await;
    let passes = async {
        waits(&fixture).await;
        let passing = format!(
            "SELECT pg_sleep(0.01);
             {};
             UPDATE leases SET ended_at = {NOW}, end_reason = 'OWNER_EXIT' WHERE ended_at IS NULL;
             COMMIT",
            foreign_lease("a")
        );
        foreign.execute(AssertSqlSafe(passing)).await.unwrap();
    };
    let (next, ()) = tokio::join!(ask(&fixture, 1, &["a"]), passes);
    next.unwrap();
    let overlapping = "leases AS one JOIN leases AS other ON other.seq > one.seq
         AND other.acquired_at < coalesce(one.ended_at, one.expires_at)";
    assert_eq!(count(&fixture, overlapping).await, 0);
    assert_eq!(count(&fixture, "leases").await, 3);
}
