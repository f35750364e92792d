use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::routing::PermitQueue;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::clock::{Clock, local_now};
use crate::hot::Hot;
use crate::telemetry::metrics::{Metrics, SharedRegistry};
use crate::watch::Live;

struct Setting {
    store: FaultyHotStore<MemoryHotStore>,
    hot: Arc<Hot>,
    permits: Arc<Permits>,
}

fn setting() -> Setting {
    let limit = Duration::from_millis(5);
    let store = FaultyHotStore::new(Arc::new(MemoryHotStore::default()), limit);
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let clock = Arc::new(Clock::new());
    let shared = Arc::new(store.clone());
    let hot = Arc::new(Hot::new(shared, Arc::clone(&clock), Arc::clone(&metrics)));
    let permits = Arc::new(Permits::new(Parts {
        hot: Arc::clone(&hot),
        clock,
        live: Live::default(),
        metrics,
        replica: "1".to_owned(),
        tasks: TaskTracker::new(),
        drain: CancellationToken::new(),
    }));
    Setting {
        store,
        hot,
        permits,
    }
}

fn pool() -> PoolName {
    PoolName {
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new("c").unwrap(),
    }
}

fn attempt(number: u64) -> AttemptId {
    AttemptId {
        plane: PlaneIncarnation(1),
        number,
    }
}

impl Setting {
    async fn take(&self, number: u64) -> Taken {
        let deadline = local_now() + Duration::from_secs(10);
        let pool = pool();
        let taken = self.permits.take(&pool, attempt(number), None, 1, deadline);
        taken.await
    }

    /// Calls that are answered, as other parts of a replica make them.
    async fn answers_for_ever(&self) {
        loop {
            let shard = Shard::of_provider(&pool().provider);
            // Most of them; on a busy machine some are late.
            _ = self.hot.cell(shard, "other", WRITE_LIMIT).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn a_store_that_is_only_too_slow_for_changes_leaves_nothing_to_be_given_out_here() {
    let setting = setting();
    assert_eq!(setting.take(1).await, Taken::Held);
    setting.store.answer_no_swap_in_time(true);
    let queue = PermitQueue {
        depth: 5,
        timeout_ms: 60_000,
    };
    let meanwhile = async {
        setting.permits.release(&pool(), attempt(1));
        let pool = pool();
        let waits = setting.permits.wait(&pool, attempt(2), 1, queue);
        tokio::select! {
            waited = waits => panic!("there was nothing to wait for: {waited:?}"),
            taken = setting.take(3) => assert_eq!(taken, Taken::Unknown),
        }
        assert_eq!(setting.take(4).await, Taken::Unknown);
    };
    tokio::select! {
        () = meanwhile => {}
        () = setting.answers_for_ever() => {}
    }
    // What ended meanwhile has ended when changes arrive again.
    setting.store.answer_no_swap_in_time(false);
    assert_eq!(
        setting.permits.wait(&pool(), attempt(5), 1, queue).await,
        Waited::Granted
    );
}
