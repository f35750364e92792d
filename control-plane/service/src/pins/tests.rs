use rstest::rstest;
use tidegate_core::affinity::PinChange;
use tidegate_core::ids::ProviderId;
use tidegate_core::session_key::SessionKey;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;

use super::*;
use crate::telemetry::metrics::SharedRegistry;

const CALL: Duration = Duration::from_millis(200);

/// Replicas that share a store.
struct World {
    store: FaultyHotStore<MemoryHotStore>,
    clock: Arc<Clock>,
}

struct Replica {
    pins: Pins,
    metrics: Arc<Metrics>,
}

impl World {
    fn new() -> Self {
        Self::within(Duration::from_millis(5))
    }

    /// The store is waited for so long.
    fn within(limit: Duration) -> Self {
        let memory = Arc::new(MemoryHotStore::default());
        Self {
            store: FaultyHotStore::new(memory, limit),
            clock: Arc::new(Clock::new()),
        }
    }

    fn replica(&self) -> Replica {
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let clock = Arc::clone(&self.clock);
        let store = Arc::new(self.store.clone());
        let hot = Arc::new(Hot::new(store, Arc::clone(&clock), Arc::clone(&metrics)));
        Replica {
            pins: Pins::new(hot, clock, Arc::clone(&metrics)),
            metrics,
        }
    }

    fn pin(&self, id: &str) -> Pin {
        let now = self.clock.now();
        Pin {
            connection: connection(id),
            created_at: now,
            expires_at: now.plus_ms(60_000),
        }
    }
}

impl Replica {
    fn counted(&self, event: &str) -> u64 {
        let text = self.metrics.encode().unwrap();
        let sample = format!("tidegate_cp_pins_total{{event=\"{event}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&sample));
        line.unwrap().parse().unwrap()
    }

    async fn read(&self) -> ReadPins {
        let mut read = ReadPins::default();
        read.insert(key(), self.pins.read(&key(), limits()).await);
        read
    }

    /// A decision that read this wishes for that pin.
    async fn write(&self, read: &mut ReadPins, after: Option<Pin>) -> Result<(), Lost> {
        let PinReading::Read(before) = read.reading(&key()) else {
            panic!("it was not read");
        };
        let write = PinWrite {
            key: key(),
            change: PinChange { before, after },
        };
        self.pins.write(&write, read, limits()).await
    }
}

fn limits() -> Limits {
    Limits {
        call: CALL,
        deadline: local_now() + CALL,
    }
}

fn connection(id: &str) -> ConnectionId {
    ConnectionId::new(id).unwrap()
}

fn key() -> PinKey {
    let session = SessionKey::parse("header:abc").unwrap();
    PinKey::new(&ProviderId::new("alpha").unwrap(), None, &session)
}

fn connection_in(read: &ReadPins) -> Option<String> {
    match read.reading(&key()) {
        PinReading::Read(pin) => pin.map(|pin| pin.connection.to_string()),
        PinReading::Unread => panic!("it was not read"),
    }
}

#[tokio::test]
async fn vector_sessions_31_the_later_of_two_first_requests_adopts_the_pin() {
    let world = World::new();
    let (one, two) = (world.replica(), world.replica());
    let (mut of_one, mut of_two) = (one.read().await, two.read().await);
    assert_eq!(one.write(&mut of_one, Some(world.pin("a"))).await, Ok(()));
    let lost = two.write(&mut of_two, Some(world.pin("b"))).await;
    assert_eq!(lost, Err(Lost));
    assert_eq!(connection_in(&of_two).as_deref(), Some("a"));
    for (replica, event) in [(&one, "created"), (&two, "lost")] {
        assert_eq!(replica.counted(event), 1);
        // Both know it by now.
        assert_eq!(connection_in(&replica.read().await).as_deref(), Some("a"));
        assert_eq!(
            (replica.counted("read"), replica.counted("cache_hit")),
            (1, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pin_is_read_once_a_second() {
    let world = World::new();
    let (one, two) = (world.replica(), world.replica());
    assert_eq!(connection_in(&one.read().await), None);
    let mut read = two.read().await;
    two.write(&mut read, Some(world.pin("a"))).await.unwrap();
    assert_eq!(
        connection_in(&one.read().await),
        None,
        "absence is known for a second"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(connection_in(&one.read().await).as_deref(), Some("a"));
    assert_eq!((one.counted("read"), one.counted("cache_hit")), (2, 1));
}

#[rstest]
#[case::failed_over("a", AttemptEnd::FailedOver, true)]
#[case::target_timeout("a", AttemptEnd::TargetTimeout, true)]
#[case::elsewhere("b", AttemptEnd::FailedOver, false)]
#[case::client_gone("a", AttemptEnd::Abandoned, false)]
#[tokio::test]
async fn a_failure_takes_the_pin_of_its_connection_away(
    #[case] tried: &str,
    #[case] end: AttemptEnd,
    #[case] breaks: bool,
) {
    let world = World::new();
    let (one, two) = (world.replica(), world.replica());
    let mut read = one.read().await;
    one.write(&mut read, Some(world.pin("a"))).await.unwrap();
    let attempt = connection(tried);
    two.pins
        .after_attempt(&key(), &attempt, end, limits())
        .await;
    let other = world.replica();
    assert_eq!(connection_in(&other.read().await).is_none(), breaks);
    assert_eq!(two.counted("deleted"), u64::from(breaks));
}

/// What is decided after a failure has more use for the time.
#[rstest]
#[case::fast(20, true)]
#[case::slow(60, false)]
#[tokio::test(start_paused = true)]
async fn taking_a_pin_away_takes_no_longer_than_one_call(
    #[case] each_way_ms: u64,
    #[case] breaks: bool,
) {
    let world = World::within(CALL);
    let replica = world.replica();
    let mut read = replica.read().await;
    replica
        .write(&mut read, Some(world.pin("a")))
        .await
        .unwrap();
    world
        .store
        .delay_each_way(Duration::from_millis(each_way_ms));
    let began = local_now();
    let limits = Limits {
        deadline: began + CALL * 5,
        ..limits()
    };
    let tried = connection("a");
    let end = AttemptEnd::FailedOver;
    replica
        .pins
        .after_attempt(&key(), &tried, end, limits)
        .await;
    assert!(local_now().saturating_duration_since(began) <= CALL);
    assert_eq!(replica.counted("deleted"), u64::from(breaks));
    assert_eq!(replica.counted("write_failed"), u64::from(!breaks));
}

#[tokio::test]
async fn a_late_failure_leaves_a_newer_pin() {
    let world = World::new();
    let (one, two) = (world.replica(), world.replica());
    let mut read = one.read().await;
    one.write(&mut read, Some(world.pin("a"))).await.unwrap();
    let mut known = two.read().await;
    one.write(&mut read, Some(world.pin("b"))).await.unwrap();
    assert_eq!(one.counted("moved"), 1);
    let tried = connection("a");
    two.pins
        .after_attempt(&key(), &tried, AttemptEnd::FailedOver, limits())
        .await;
    assert_eq!(two.counted("deleted"), 0);
    // Who still takes the earlier pin for the one that stands changes nothing.
    assert_eq!(two.write(&mut known, None).await, Err(Lost));
    assert_eq!(connection_in(&known).as_deref(), Some("b"));
}

#[tokio::test]
async fn a_store_that_is_away_costs_no_request_its_time() {
    let world = World::new();
    let replica = world.replica();
    world.store.freeze();
    let mut read = replica.read().await;
    assert_eq!(connection_in(&read), None);
    assert_eq!(replica.write(&mut read, Some(world.pin("a"))).await, Ok(()));
    assert_eq!(
        (
            replica.counted("read_failed"),
            replica.counted("write_failed")
        ),
        (1, 0)
    );
    let none = Limits {
        deadline: local_now(),
        ..limits()
    };
    let asked = replica.pins.read(&key(), none).await;
    assert_eq!(asked, Standing::unknown());
    assert_eq!(replica.counted("read_failed"), 2);
}

#[tokio::test]
async fn a_pin_of_a_newer_build_is_left_alone() {
    let world = World::new();
    let replica = world.replica();
    let now = world.clock.now();
    let swap = Swap {
        shard: key().shard(),
        key: key().cell_name(),
        expected: None,
        schema: PIN_SCHEMA + 1,
        payload: b"{}".to_vec(),
        expires_at: now.plus_ms(60_000),
        not_after: now.plus_ms(60_000),
        sheddable: false,
    };
    replica.pins.hot.swap(swap, CALL).await.unwrap();
    let mut read = replica.read().await;
    assert_eq!(connection_in(&read), None);
    assert_eq!(replica.write(&mut read, Some(world.pin("a"))).await, Ok(()));
    assert_eq!(
        (replica.counted("created"), replica.counted("lost")),
        (0, 0)
    );
}
