//! Migrations and what is refused at opening.

use tidegate_store::durable::{ConfigurationStore as _, DurableStore as _, DurableStoreError};
use tidegate_store_sql::PgDurableStore;
use tidegate_test_support::{Postgres, free_port};

use super::{DATABASE, on_postgres, patient};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_migrators_at_once_make_one_schema() {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let limits = patient();
    let migrate = || PgDurableStore::migrate(&url, limits);
    let (one, two, three, four) = tokio::join!(migrate(), migrate(), migrate(), migrate());
    for outcome in [one, two, three, four] {
        outcome.unwrap();
    }
    let rows = postgres
        .execute(
            DATABASE,
            "SELECT bool_and(success), max(version) FROM _sqlx_migrations",
        )
        .await
        .unwrap();
    let newest = tidegate_store_sql::newest_schema().to_string();
    assert_eq!(rows, [[Some("t".to_owned()), Some(newest)]]);
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let rows = postgres.execute(DATABASE, locks).await.unwrap();
    assert_eq!(rows, [[Some("0".to_owned())]], "a lock was left behind");
    let store = PgDurableStore::open_migrated(&url, limits).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.stored_version().await.unwrap().document, 0);
}

#[tokio::test]
async fn a_schema_that_is_not_ours_is_refused_and_left_alone() {
    let changes = [
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'of the future', true, '\\x00', 0)",
        "DELETE FROM _sqlx_migrations WHERE version = 9999;
         UPDATE _sqlx_migrations SET checksum = '\\x00' WHERE version = 1",
    ];
    let fixture = on_postgres().await;
    for change in changes {
        fixture.sql(change).await;
        for error in [
            PgDurableStore::open(&fixture.url, patient()).await,
            PgDurableStore::open_migrated(&fixture.url, patient()).await,
        ]
        .map(Result::unwrap_err)
        {
            assert!(matches!(error, DurableStoreError::Schema(_)), "{error}");
        }
        // The lock of the refused migration must not stay with anybody.
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(fixture.sql(locks).await, [[Some("0".to_owned())]]);
    }
}

#[tokio::test]
async fn a_database_without_schema_is_refused_where_migrating_is_another_job() {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let error = PgDurableStore::open_migrated(&url, patient())
        .await
        .unwrap_err();
    assert!(matches!(error, DurableStoreError::Schema(_)), "{error}");
}

#[tokio::test]
async fn what_cannot_be_opened_says_why() {
    let postgres = Postgres::start().await.unwrap();
    let open = async |url: &str| PgDurableStore::open(url, patient()).await.unwrap_err();
    let error = open(&postgres.url("missing")).await;
    assert!(matches!(error, DurableStoreError::Schema(_)), "{error}");
    let port = free_port().unwrap();
    let error = open(&format!("postgres://me@127.0.0.1:{port}/x")).await;
    assert!(
        matches!(error, DurableStoreError::Unreachable(_)),
        "{error}"
    );
    let error = open("mysql://me@127.0.0.1/x").await;
    assert!(matches!(error, DurableStoreError::Refused(_)), "{error}");
}
