//! A server that freezes, dies, is blocked or ends our session: typed errors, and all is well afterwards.

use std::future::Future;
use std::time::Duration;

use sqlx::{Connection as _, Executor as _, PgConnection};
use tidegate_core::config::Document;
use tidegate_core::ids::Shard;
use tidegate_core::time::Timestamp;
use tidegate_core::version::Version;
use tidegate_store::durable::{
    CheckpointStore as _, ConfigurationStore as _, DurableStore as _, DurableStoreError,
    HistoryStore as _, LeaseStore as _, SealedSecrets,
};
use tidegate_store::hot::Entry;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::eventually;

use super::{OnPostgres, on_postgres_with};

/// Far more than any call may take here.
const LIMIT: Duration = Duration::from_secs(20);
const NOW: Timestamp = Timestamp(1_790_000_000_000);

fn limits() -> SqlLimits {
    SqlLimits {
        call: Duration::from_secs(1),
        whole: Duration::from_secs(2),
        connections: 3,
        ..SqlLimits::default()
    }
}

async fn within<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, call)
        .await
        .expect("the call has no limit")
}

fn entries() -> Vec<Entry> {
    vec![Entry {
        key: "p:openai".to_owned(),
        version: Version::new(1, 1),
        schema: 1,
        payload: b"{}".to_vec(),
        expires_at: Timestamp(u64::MAX),
    }]
}

/// A document without connections has none.
static NO_SECRETS: SealedSecrets = SealedSecrets {
    revision: 0,
    credentials: Vec::new(),
    grants: Vec::new(),
    renewed: Vec::new(),
};

/// One of each kind of call, at once; what became of each.
async fn every_call(store: &PgDurableStore) -> Vec<Result<(), DurableStoreError>> {
    let shard = Shard::new(0).unwrap();
    let (document, entries) = (Document::default(), entries());
    let (ping, load, version, save, checkpoint, restore, sweep, list, leases, tidy) =
        within(async {
            tokio::join!(
                store.ping(),
                store.load_document(),
                store.stored_version(),
                store.save_document(0, &document, &NO_SECRETS, "ops", ""),
                store.save_checkpoint(shard, &entries, &[], NOW),
                store.load_checkpoint(shard, NOW),
                store.delete_expired_checkpoint(NOW),
                store.list_audit(1),
                store.list_leases(),
                store.sweep_leases(LIMIT),
            )
        })
        .await;
    vec![
        ping,
        load.map(drop),
        version.map(drop),
        save.map(drop),
        checkpoint,
        restore.map(drop),
        sweep.map(drop),
        list.map(drop),
        leases.map(drop),
        tidy.map(drop),
    ]
}

async fn recovers(fixture: &OnPostgres) {
    eventually(LIMIT, "the store to answer again", || async {
        fixture.store.ping().await.ok()
    })
    .await
    .unwrap();
    // Every connection of the pool works, several times over.
    for outcome in every_call(&fixture.store).await.into_iter().skip(4) {
        outcome.unwrap();
    }
    let version = fixture.store.stored_version().await.unwrap().document;
    fixture
        .store
        .save_document(version, &Document::default(), &NO_SECRETS, "ops", "")
        .await
        .unwrap();
}

#[tokio::test]
async fn every_call_on_a_frozen_server_ends_with_a_typed_error_and_works_after_resume() {
    let fixture = on_postgres_with(limits()).await;
    for outcome in every_call(&fixture.store).await {
        outcome.unwrap();
    }
    fixture.postgres.pause().unwrap();
    // More calls than there are connections, so that leaving one occupied would show.
    for _ in 0..3 {
        for outcome in every_call(&fixture.store).await {
            let error = outcome.unwrap_err();
            assert!(
                matches!(
                    error,
                    DurableStoreError::Unreachable(_) | DurableStoreError::Indeterminate(_)
                ),
                "{error}"
            );
            assert!(!error.is_certainly_not_applied());
        }
    }
    fixture.postgres.resume().unwrap();
    recovers(&fixture).await;
}

#[tokio::test]
async fn every_call_on_a_dead_server_ends_with_a_typed_error_and_works_after_its_return() {
    let fixture = on_postgres_with(limits()).await;
    fixture
        .store
        .save_checkpoint(Shard::new(0).unwrap(), &entries(), &[], NOW)
        .await
        .unwrap();
    fixture.postgres.kill().await.unwrap();
    for outcome in every_call(&fixture.store).await {
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, DurableStoreError::Unreachable(_)),
            "{error}"
        );
    }
    fixture.postgres.start_again().await.unwrap();
    recovers(&fixture).await;
    let shard = Shard::new(0).unwrap();
    let (stored, _) = fixture.store.load_checkpoint(shard, NOW).await.unwrap();
    assert_eq!(stored, entries());
}

#[tokio::test]
async fn a_write_that_was_blocked_before_its_commit_has_not_happened() {
    let fixture = on_postgres_with(limits()).await;
    let mut blocker = PgConnection::connect(&fixture.url).await.unwrap();
    blocker
        .execute("BEGIN; SELECT * FROM configuration FOR UPDATE")
        .await
        .unwrap();
    let document = Document::default();
    let error = within(
        fixture
            .store
            .save_document(0, &document, &NO_SECRETS, "ops", ""),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Unreachable(_)),
        "{error}"
    );
    blocker.execute("ROLLBACK").await.unwrap();
    assert_eq!(fixture.store.stored_version().await.unwrap().document, 0);
    recovers(&fixture).await;
}

/// Makes each commit of a document wait for a minute.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON admin_audit
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()";

#[tokio::test]
async fn a_commit_without_answer_is_indeterminate() {
    let fixture = on_postgres_with(limits()).await;
    fixture.sql(SLOW_COMMIT).await;
    let document = Document::default();
    let error = within(
        fixture
            .store
            .save_document(0, &document, &NO_SECRETS, "ops", ""),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Indeterminate(_)),
        "{error}"
    );
    assert!(!error.is_certainly_not_applied());
    // The server limits statements, not commits, and this one is still waiting.
    fixture
        .sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep';
             DROP TRIGGER slow_commit ON admin_audit",
        )
        .await;
    recovers(&fixture).await;
}

#[tokio::test]
async fn a_session_terminated_in_its_commit_is_indeterminate() {
    let fixture = on_postgres_with(SqlLimits {
        whole: LIMIT,
        ..limits()
    })
    .await;
    fixture.sql(SLOW_COMMIT).await;
    let document = Document::default();
    let terminate = eventually(LIMIT, "the commit to wait", || async {
        let rows = fixture
            .sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE query LIKE 'COMMIT%' AND wait_event = 'PgSleep'",
            )
            .await;
        (!rows.is_empty()).then_some(())
    });
    let (saved, terminated) = tokio::join!(
        fixture
            .store
            .save_document(0, &document, &NO_SECRETS, "ops", ""),
        terminate
    );
    terminated.unwrap();
    let error = saved.unwrap_err();
    assert!(
        matches!(error, DurableStoreError::Indeterminate(_)),
        "{error}"
    );
    // Here it has not happened, which only looking tells.
    assert_eq!(fixture.store.stored_version().await.unwrap().document, 0);
}

#[tokio::test]
async fn terminated_idle_sessions_cost_no_call() {
    let fixture = on_postgres_with(limits()).await;
    for outcome in every_call(&fixture.store).await {
        outcome.unwrap();
    }
    fixture
        .sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'tidegate'",
        )
        .await;
    // One that came back a moment ago is not tested anew.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let document = Document::default();
    fixture
        .store
        .save_document(1, &document, &NO_SECRETS, "ops", "")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_call_that_its_caller_gives_up_leaves_the_pool_usable() {
    // Its own limits are far, so that it is the caller who gives up.
    let fixture = on_postgres_with(SqlLimits {
        call: LIMIT,
        whole: LIMIT,
        ..limits()
    })
    .await;
    let mut blocker = PgConnection::connect(&fixture.url).await.unwrap();
    blocker
        .execute("BEGIN; SELECT * FROM configuration FOR UPDATE")
        .await
        .unwrap();
    let document = Document::default();
    for _ in 0..limits().connections * 3 {
        let call = fixture
            .store
            .save_document(0, &document, &NO_SECRETS, "ops", "");
        let given_up = tokio::time::timeout(Duration::from_millis(30), call).await;
        assert!(given_up.is_err(), "the call was not blocked: {given_up:?}");
    }
    blocker.execute("ROLLBACK").await.unwrap();
    recovers(&fixture).await;
    assert_eq!(fixture.store.stored_version().await.unwrap().document, 2);
}
