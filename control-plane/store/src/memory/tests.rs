//! The suite over the in-process store, and what only it can be made to suffer.

mod conformance {
    use std::sync::Arc;

    use async_trait::async_trait;

    use crate::conformance::Verdict;
    use crate::conformance::hot::HotStoreHost;
    use crate::hot::HotStore;
    use crate::memory::clock::SystemClock;
    use crate::memory::{MemoryHotStore, MemoryOptions};

    struct Host(MemoryHotStore);

    #[async_trait]
    impl HotStoreHost for Host {
        async fn replica(
            &self,
        ) -> Result<Arc<dyn HotStore>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Arc::new(self.0.clone()))
        }

        async fn flush(&self) -> Verdict {
            self.0.flush();
            Ok(())
        }

        async fn swap_server(&self) -> Verdict {
            self.0.swap_server();
            Ok(())
        }

        fn log_entries(&self) -> usize {
            200
        }
    }

    #[expect(clippy::unused_async, reason = "the suite awaits its host")]
    async fn host() -> Result<Host, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Host(MemoryHotStore::new(
            Arc::new(SystemClock),
            MemoryOptions {
                log_entries: 200,
                undo_writes: 0,
            },
        )))
    }

    crate::hot_store_conformance!(host);
}

mod damage;
mod model;
