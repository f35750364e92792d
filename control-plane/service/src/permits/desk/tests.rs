use std::collections::BTreeMap;
use std::num::NonZeroU64;

use secrecy::SecretString;
use tempfile::TempDir;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::permit::WaitTerms;
use tidegate_core::time::Timestamp;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;
use tidegate_store::seal::{Sealer, SealingKey};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::clock::{Clock, local_now};
use crate::config::Published;
use crate::hot::Hot;
use crate::telemetry::metrics::{Metrics, SharedRegistry};
use crate::test_durable;
use crate::watch::Live;

const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

struct Setting {
    store: FaultyHotStore<MemoryHotStore>,
    hot: Arc<Hot>,
    permits: Arc<Permits>,
    drain: CancellationToken,
    _directory: TempDir,
}

async fn setting() -> Setting {
    replica("1", &MemoryHotStore::default()).await
}

/// A replica that has no configuration yet.
async fn replica(name: &str, memory: &MemoryHotStore) -> Setting {
    let limit = Duration::from_millis(5);
    let store = FaultyHotStore::new(Arc::new(memory.clone()), limit);
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let clock = Arc::new(Clock::new());
    let shared = Arc::new(store.clone());
    let hot = Arc::new(Hot::new(shared, Arc::clone(&clock), Arc::clone(&metrics)));
    let directory = TempDir::new().unwrap();
    let durable = test_durable::open(directory.path()).await;
    let key = SealingKey::parse(&SecretString::from(KEY)).unwrap();
    let config = Published::new(
        Arc::new(durable),
        Arc::new(Sealer::new(&key).unwrap()),
        BTreeMap::new(),
        Arc::clone(&metrics),
    );
    let drain = CancellationToken::new();
    let permits = Arc::new(Permits::new(Parts {
        hot: Arc::clone(&hot),
        clock,
        config: Arc::new(config),
        live: Live::default(),
        metrics,
        replica: name.to_owned(),
        tasks: TaskTracker::new(),
        drain: drain.clone(),
    }));
    Setting {
        store,
        hot,
        permits,
        drain,
        _directory: directory,
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

fn terms(depth: u32, timeout_ms: u64) -> WaitTerms {
    WaitTerms {
        depth,
        timeout_ms,
        waited_ms: 0,
    }
}

/// Until it is true, for at most ten seconds.
async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let limit = local_now() + Duration::from_secs(10);
    while !is_true().await {
        assert!(local_now() < limit, "it never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Setting {
    async fn take(&self, number: u64) -> Taken {
        self.take_of(number, 1).await
    }

    async fn take_of(&self, number: u64, cap: u32) -> Taken {
        let deadline = local_now() + Duration::from_secs(10);
        let pool = pool();
        let taken = self
            .permits
            .take(&pool, attempt(number), None, cap, deadline);
        taken.await
    }

    /// Waits in the background.
    fn waits(&self, number: u64, terms: WaitTerms) -> tokio::task::JoinHandle<Waited> {
        let permits = Arc::clone(&self.permits);
        let wait = async move { permits.wait(&pool(), attempt(number), 1, terms).await };
        TaskTracker::new().spawn(wait)
    }

    /// How many wait in all replicas, as the store says.
    async fn waiting(&self) -> u32 {
        let shard = Shard::of_provider(&pool().provider);
        let key = permit::key_text(&pool().provider, &pool().connection);
        let found = self.hot.cell(shard, &key, WRITE_LIMIT).await.unwrap();
        found.map_or(0, |cell| {
            let pool = permit::decode(&key, cell.schema, &cell.payload).unwrap();
            // Before any word ends by itself.
            pool.waiting_elsewhere("nobody", Timestamp(0))
        })
    }

    /// Runs what is to happen while the store answers other calls.
    async fn while_others_are_answered<T>(&self, run: impl Future<Output = T>) -> T {
        tokio::select! {
            done = run => done,
            () = self.answers_for_ever() => panic!("calls ended"),
        }
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
    let setting = setting().await;
    assert_eq!(setting.take(1).await, Taken::Held);
    setting.store.answer_no_swap_in_time(true);
    let queue = terms(5, 60_000);
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

#[tokio::test]
async fn what_is_held_counts_towards_shares_and_shares_count_when_the_store_is_back() {
    let setting = setting().await;
    assert_eq!(setting.take_of(1, 2).await, Taken::Held);
    setting.store.fail_each(NonZeroU64::new(1));
    assert_eq!(setting.take_of(2, 2).await, Taken::Held);
    assert_eq!(setting.take_of(3, 2).await, Taken::Refused);
    let looking = Looking {
        attempt: attempt(3),
        replaces: None,
        cap: 2,
    };
    let desk = setting.permits.desk(&pool());
    let parts = &setting.permits.parts;
    // Nothing is known for a moment when the last call is too long ago for the store to count as away.
    eventually("an answer", async || {
        let is_full = desk.is_full_for(parts, looking, WRITE_LIMIT).await;
        assert_ne!(is_full, Some(false));
        is_full.is_some()
    })
    .await;
    setting.store.fail_each(None);
    assert_eq!(setting.take_of(3, 2).await, Taken::Refused);
    assert_eq!(desk.held(parts).await, 2);
    for number in [1, 2] {
        setting.permits.release(&pool(), attempt(number));
        assert_eq!(setting.take_of(number + 2, 2).await, Taken::Held);
    }
    assert_eq!(setting.take_of(5, 2).await, Taken::Refused);
}

#[tokio::test]
async fn single_failures_leave_nothing_to_be_given_out_here() {
    let memory = MemoryHotStore::default();
    let (one, two) = (replica("1", &memory).await, replica("2", &memory).await);
    assert_eq!(two.take(1).await, Taken::Held);
    one.store.fail_each(NonZeroU64::new(2));
    for number in 2..10 {
        assert_eq!(one.take(number).await, Taken::Refused);
    }
}

#[tokio::test]
async fn a_permit_granted_by_a_change_whose_answer_was_lost_is_taken_back() {
    let setting = setting().await;
    setting.store.lose_answers_of_swaps(true);
    let taken = setting.while_others_are_answered(setting.take(1)).await;
    assert_eq!(taken, Taken::Unknown);
    setting.store.lose_answers_of_swaps(false);
    // Long before it ends by itself.
    eventually("the permit to come back", async || {
        setting.take(2).await == Taken::Held
    })
    .await;
}

#[tokio::test]
async fn who_waited_in_vain_leaves_no_permit_behind() {
    let setting = setting().await;
    assert_eq!(setting.take(1).await, Taken::Held);
    setting.store.lose_answers_of_swaps(true);
    setting.permits.release(&pool(), attempt(1));
    let waited = setting.waits(2, terms(5, 50));
    let waited = setting.while_others_are_answered(waited).await.unwrap();
    assert_eq!(waited, Waited::TimedOut);
    setting.store.lose_answers_of_swaps(false);
    eventually("the permit to come back", async || {
        setting.take(3).await == Taken::Held
    })
    .await;
}

#[tokio::test]
async fn the_word_that_somebody_waits_ends_with_the_last_one_that_does() {
    let memory = MemoryHotStore::default();
    let (one, two) = (replica("1", &memory).await, replica("2", &memory).await);
    assert_eq!(one.take(1).await, Taken::Held);
    let waits = one.waits(2, terms(5, 60_000));
    eventually("the word", async || two.waiting().await == 1).await;
    waits.abort();
    eventually("its end", async || two.waiting().await == 0).await;
    two.permits.release(&pool(), attempt(1));
    assert_eq!(two.take(3).await, Taken::Held);
}

#[tokio::test]
async fn who_is_sent_elsewhere_is_not_counted_against_itself_there() {
    const DEPTH: u32 = 3;
    let memory = MemoryHotStore::default();
    let (one, two) = (replica("1", &memory).await, replica("2", &memory).await);
    assert_eq!(one.take(1).await, Taken::Held);
    let waiting: Vec<_> = (2..2 + u64::from(DEPTH))
        .map(|number| one.waits(number, terms(DEPTH, 60_000)))
        .collect();
    eventually("the words", async || two.waiting().await == DEPTH).await;
    let full = two.waits(10, terms(DEPTH, 60_000)).await.unwrap();
    assert_eq!(full, Waited::QueueFull);
    one.drain.cancel();
    let mut again = Vec::new();
    for (waits, number) in waiting.into_iter().zip(20..) {
        assert_eq!(waits.await.unwrap(), Waited::Draining);
        again.push(two.waits(number, terms(DEPTH, 60_000)));
    }
    eventually("the words", async || two.waiting().await == DEPTH).await;
    assert!(again.iter().all(|waits| !waits.is_finished()));
}
