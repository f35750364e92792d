//! The suite of the hot store.

use crate::host::{Fault, SingleHost};

async fn host() -> Result<SingleHost, Fault> {
    SingleHost::start().await
}

tidegate_store::hot_store_conformance!(host);
tidegate_store::hot_store_freeze_conformance!(host);
