//! A durable store for the tests of this crate.

use std::path::Path;
use std::time::Duration;

use tidegate_store_sql::{SqlLimits, SqliteDurableStore};

/// The store in this directory, made if need be. No test here is about a store that is late, and a machine may be busy,
/// so its limits are long.
pub(crate) async fn open(directory: &Path) -> SqliteDurableStore {
    let limits = SqlLimits {
        call: Duration::from_secs(10),
        whole: Duration::from_secs(20),
        ..SqlLimits::default()
    };
    let file = directory.join("tidegate.db");
    SqliteDurableStore::open(&file, limits).await.unwrap()
}
