//! What only the Postgres adapter does.

use tidegate_store::durable::{ConfigurationStore, DurableStore};
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

#[tokio::test]
async fn several_migrators_at_once_make_one_schema() {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let limits = SqlLimits::default();
    let migrate = || PgDurableStore::migrate(&url, limits);
    let (one, two, three, four) = tokio::join!(migrate(), migrate(), migrate(), migrate());
    for outcome in [one, two, three, four] {
        outcome.unwrap();
    }
    let rows = postgres
        .execute(
            "test_1",
            "SELECT count(*), bool_and(success) FROM _sqlx_migrations",
        )
        .await
        .unwrap();
    assert_eq!(rows, [[Some("1".to_owned()), Some("t".to_owned())]]);
    let store = PgDurableStore::open_migrated(&url, limits).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.document_version().await.unwrap(), 0);
}
