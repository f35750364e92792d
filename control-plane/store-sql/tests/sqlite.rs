//! What only the SQLite adapter does.

use tempfile::TempDir;
use tidegate_store::durable::{ConfigurationStore, DurableStore, DurableStoreError};
use tidegate_store_sql::{SqlLimits, SqliteDurableStore};

#[tokio::test]
async fn a_second_opening_of_the_file_is_refused_until_the_first_is_gone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tidegate.db");
    let first = SqliteDurableStore::open(&path, SqlLimits::default())
        .await
        .unwrap();
    first.ping().await.unwrap();
    let error = SqliteDurableStore::open(&path, SqlLimits::default())
        .await
        .unwrap_err();
    assert!(matches!(error, DurableStoreError::Refused(_)), "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    first.close().await;
    drop(first);
    let again = SqliteDurableStore::open(&path, SqlLimits::default())
        .await
        .unwrap();
    assert_eq!(again.document_version().await.unwrap(), 0);
}
