use std::num::NonZeroU64;

use rstest::rstest;
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;

use super::*;
use crate::clock::local_now;
use crate::telemetry::metrics::SharedRegistry;

const LIMITS: PaceLimits = PaceLimits {
    per_minute: None,
    apart_ms: 0,
    concurrent: Some(1),
    ttl_ms: 30_000,
};

fn replica() -> (FaultyHotStore<MemoryHotStore>, Lanes) {
    let memory = Arc::new(MemoryHotStore::default());
    let store = FaultyHotStore::new(memory, Duration::from_millis(5));
    let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
    let clock = Arc::new(Clock::new());
    let shared = Arc::new(store.clone());
    let hot = Hot::new(shared, Arc::clone(&clock), Arc::clone(&metrics));
    let lanes = Lanes {
        hot: Arc::new(hot),
        clock,
        metrics,
        lanes: Mutex::default(),
    };
    (store, lanes)
}

fn lane() -> PoolName {
    PoolName {
        provider: ProviderId::new("p").unwrap(),
        connection: ConnectionId::new("c").unwrap(),
    }
}

fn asks(plane: u64, number: u64) -> Asks {
    let plane = PlaneIncarnation(plane);
    Asks {
        request: AttemptId { plane, number },
        look: false,
        ended: BTreeSet::new(),
        model: None,
        told: None,
    }
}

fn looks(plane: u64, number: u64) -> Asks {
    Asks {
        look: true,
        ..asks(plane, number)
    }
}

async fn admit(lanes: &Lanes, asks: &Asks) -> Counted {
    lanes.admit(&lane(), asks, LIMITS).await.0
}

const NOW: Counted = Counted::Fleet(Admitted::Now);
const FULL: Counted = Counted::Fleet(Admitted::Full);

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_opens_no_shares() {
    let (store, lanes) = replica();
    assert_eq!(admit(&lanes, &asks(1, 1)).await, NOW);
    // Each second call from here on finds the connection broken.
    store.fail_each(NonZeroU64::new(2));
    for number in 2..=6 {
        assert_eq!(admit(&lanes, &asks(1, number)).await, FULL);
        assert_eq!(admit(&lanes, &looks(2, number)).await, FULL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_reached_for_long_is_away() {
    let (store, lanes) = replica();
    assert_eq!(admit(&lanes, &asks(1, 1)).await, NOW);
    store.fail_each(NonZeroU64::new(1));
    assert_ne!(admit(&lanes, &looks(1, 2)).await, Counted::Nobody);
    let limit = local_now() + Duration::from_secs(10);
    while admit(&lanes, &asks(1, 3)).await != Counted::Nobody {
        assert!(local_now() < limit, "the store never counts as away");
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_be_counted_unheard_is_not_told_to_come_back() {
    let (store, lanes) = replica();
    assert_eq!(admit(&lanes, &looks(1, 1)).await, NOW);
    store.answer_no_swap_in_time(true);
    assert_eq!(admit(&lanes, &asks(1, 2)).await, Counted::Unknown);
    store.answer_no_swap_in_time(false);
    assert_eq!(admit(&lanes, &asks(1, 3)).await, NOW);
}

#[rstest]
#[case::a_look(true)]
#[case::an_admission(false)]
#[tokio::test]
async fn what_ended_is_free_with_the_same_question(#[case] look: bool) {
    let (_store, lanes) = replica();
    assert_eq!(admit(&lanes, &asks(1, 1)).await, NOW);
    let next = Asks {
        look,
        ended: BTreeSet::from([1]),
        ..asks(1, 2)
    };
    assert_eq!(admit(&lanes, &next).await, NOW);
}

#[tokio::test]
async fn a_place_that_comes_free_goes_to_the_data_plane_that_waits_longest() {
    let (_store, lanes) = replica();
    assert_eq!(admit(&lanes, &asks(2, 1)).await, NOW);
    assert_eq!(admit(&lanes, &looks(1, 1)).await, FULL);
    // What ends the request that ran asks first.
    let next = Asks {
        ended: BTreeSet::from([1]),
        ..looks(2, 2)
    };
    assert_eq!(admit(&lanes, &next).await, FULL);
    assert_eq!(admit(&lanes, &asks(2, 3)).await, FULL);
    assert_eq!(admit(&lanes, &looks(1, 2)).await, NOW);
    assert_eq!(admit(&lanes, &asks(1, 3)).await, NOW);
}
