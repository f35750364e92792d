//! The suite over a decorator without faults, and each fault by itself.

mod conformance {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;

    use crate::conformance::Verdict;
    use crate::conformance::hot::{FreezableHost, HotStoreHost};
    use crate::fault::FaultyHotStore;
    use crate::hot::HotStore;
    use crate::memory::MemoryHotStore;

    struct Host(FaultyHotStore<MemoryHotStore>);

    #[async_trait]
    impl HotStoreHost for Host {
        async fn replica(
            &self,
        ) -> Result<Arc<dyn HotStore>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Arc::new(self.0.clone()))
        }

        async fn flush(&self) -> Verdict {
            self.0.store().flush();
            Ok(())
        }

        async fn swap_server(&self) -> Verdict {
            self.0.store().swap_server();
            Ok(())
        }

        fn log_entries(&self) -> usize {
            crate::memory::MemoryOptions::default().log_entries
        }
    }

    #[async_trait]
    impl FreezableHost for Host {
        async fn freeze(&self) -> Verdict {
            self.0.freeze();
            Ok(())
        }

        async fn thaw(&self) -> Verdict {
            for outcome in self.0.thaw().await {
                outcome?;
            }
            Ok(())
        }
    }

    #[expect(clippy::unused_async, reason = "the suite awaits its host")]
    async fn host() -> Result<Host, Box<dyn std::error::Error + Send + Sync>> {
        let limit = Duration::from_millis(300);
        Ok(Host(FaultyHotStore::new(
            Arc::new(MemoryHotStore::default()),
            limit,
        )))
    }

    crate::hot_store_conformance!(host);
    crate::hot_store_freeze_conformance!(host);
}

mod switches;
