//! Leadership where there is only one process: whoever asks leads. The file's lock keeps others out.

use async_trait::async_trait;
use tidegate_store::durable::{DurableStoreError, Leadership};

use super::SqliteDurableStore;

#[async_trait]
impl Leadership for SqliteDurableStore {
    async fn try_lead(&self, _task: &'static str) -> Result<bool, DurableStoreError> {
        Ok(true)
    }

    async fn resign(&self, _task: &'static str) -> Result<(), DurableStoreError> {
        Ok(())
    }
}
