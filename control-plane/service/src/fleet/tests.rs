use std::num::NonZeroU64;

use rstest::rstest;
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::telemetry::aggregate::{End, Verdict};
use tidegate_core::time::Timestamp;
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::hot::HotStore;
use tidegate_store::hot::bounds::MAX_BLOBS;
use tidegate_store::memory::MemoryHotStore;

use super::*;
use crate::telemetry::metrics::SharedRegistry;

const KEY: &str = "target";

struct Replica {
    gatherer: Gatherer,
    others: Others,
    store: FaultyHotStore<MemoryHotStore>,
}

impl Replica {
    fn start(name: &str, memory: &MemoryHotStore) -> Self {
        let limit = Duration::from_millis(50);
        let store = FaultyHotStore::new(Arc::new(memory.clone()), limit);
        let metrics = Arc::new(Metrics::new(SharedRegistry::default()));
        let clock = Arc::new(Clock::new());
        let hot = Hot::new(
            Arc::new(store.clone()),
            Arc::clone(&clock),
            Arc::clone(&metrics),
        );
        Self {
            gatherer: Gatherer::new(name, Arc::new(hot), clock, metrics),
            others: Others::default(),
            store,
        }
    }

    async fn round(&mut self) {
        self.gatherer.round(&mut self.others).await;
    }

    fn hears(&self, plane: u64, number: u64, under_way: u32) {
        let seen = served("a", self.gatherer.clock.now());
        let under_way = BTreeMap::from([(account("a"), under_way)]);
        self.gatherer
            .add(PlaneIncarnation(plane), number, seen, under_way, |_| {
                Some(LastServed::Account)
            });
    }

    fn requests(&self) -> u64 {
        self.gatherer.fleet().connection_requests(&account("a"))
    }

    fn in_flight(&self) -> u32 {
        self.gatherer.fleet().in_flight(&account("a"))
    }
}

fn account(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn combo() -> ComboName {
    ComboName::new("combo").unwrap()
}

fn end(connection: &str, verdict: Verdict, at: Timestamp) -> Aggregate {
    Aggregate::of_end(End {
        target: Some((combo(), KEY.to_owned())),
        provider: ProviderId::new("p").unwrap(),
        connection: account(connection),
        model: ModelId::new("m").unwrap(),
        verdict,
        began_at: at,
        at,
        session: None,
    })
}

fn served(connection: &str, at: Timestamp) -> Aggregate {
    end(connection, Verdict::Served { ready_ms: 1 }, at)
}

#[tokio::test(start_paused = true)]
async fn what_one_replica_hears_is_known_to_the_others() {
    let memory = MemoryHotStore::default();
    let (mut one, mut two) = (Replica::start("1", &memory), Replica::start("2", &memory));
    for replica in [&mut one, &mut two] {
        replica.round().await;
    }
    one.hears(1, 1, 2);
    two.hears(2, 1, 3);
    one.round().await;
    two.round().await;
    assert_eq!((two.requests(), two.in_flight()), (2, 5));
    one.round().await;
    assert_eq!((one.requests(), one.in_flight()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn a_message_sent_again_counts_once_and_tells_what_is_under_way_now() {
    let memory = MemoryHotStore::default();
    let (mut one, mut two) = (Replica::start("1", &memory), Replica::start("2", &memory));
    one.round().await;
    one.hears(7, 1, 1);
    one.hears(7, 1, 4);
    one.round().await;
    assert_eq!((one.requests(), one.in_flight()), (1, 4));
    two.round().await;
    // Its answer was lost, so it goes to the other one, which has heard of it by now.
    two.hears(7, 1, 5);
    two.hears(7, 2, 6);
    two.round().await;
    assert_eq!((two.requests(), two.in_flight()), (2, 6));
    assert_eq!(two.gatherer.metrics.fleet.duplicates.get(), 1);
    assert_eq!(two.gatherer.metrics.fleet.messages.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_again_goes_on_from_what_it_had_published() {
    let memory = MemoryHotStore::default();
    let mut before = Replica::start("1", &memory);
    before.round().await;
    before.hears(7, 1, 0);
    before.round().await;
    let mut after = Replica::start("1", &memory);
    // What comes before it has read counts too.
    after.hears(7, 2, 0);
    after.round().await;
    after.round().await;
    assert_eq!(after.requests(), 2);
    let mut other = Replica::start("2", &memory);
    other.round().await;
    assert_eq!(other.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_its_memory_gets_everything_anew() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    one.round().await;
    one.hears(7, 1, 0);
    one.round().await;
    memory.flush();
    one.round().await;
    one.round().await;
    let mut other = Replica::start("2", &memory);
    other.round().await;
    assert_eq!((one.requests(), other.requests()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_the_others_are_known_as_they_were() {
    let memory = MemoryHotStore::default();
    let (mut one, mut two) = (Replica::start("1", &memory), Replica::start("2", &memory));
    one.round().await;
    one.hears(7, 1, 0);
    one.round().await;
    two.round().await;
    two.store.freeze();
    two.hears(8, 1, 0);
    two.round().await;
    assert_eq!(two.requests(), 2);
    assert_eq!(two.gatherer.metrics.fleet.blob_failures.get(), 1);
    two.store.thaw().await;
    two.round().await;
    one.round().await;
    assert_eq!(one.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_left_out() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    let foreign = FaultyHotStore::new(Arc::new(memory.clone()), Duration::from_secs(1));
    let hour = Duration::from_secs(3_600);
    HotStore::put_blob(&foreign, "2", vec![0xff], hour)
        .await
        .unwrap();
    one.round().await;
    one.hears(7, 1, 0);
    one.round().await;
    assert_eq!(one.requests(), 1);
    assert_eq!(one.gatherer.metrics.fleet.blobs_skipped.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_has_no_room_is_counted() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    let bounds = Bounds {
        connections: 0,
        ..Bounds::default()
    };
    one.gatherer.own.lock().sum = BoundedSum::new(bounds);
    one.hears(7, 1, 0);
    let metrics = one.gatherer.metrics.encode().unwrap();
    let line = "tidegate_cp_telemetry_refused_total{kind=\"connections\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    one.round().await;
    one.round().await;
    let metrics = one.gatherer.metrics.encode().unwrap();
    let line = "tidegate_cp_telemetry_entries{kind=\"targets\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

const NOW: Timestamp = Timestamp(1_800_000_000_000);

async fn publish(store: &FaultyHotStore<MemoryHotStore>, replica: &str, bytes: Vec<u8>) {
    let hour = Duration::from_secs(3_600);
    HotStore::put_blob(store, replica, bytes, hour)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_beside_as_many_others_as_there_may_be_goes_on_hearing() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("own", &memory);
    let now = one.gatherer.clock.now();
    let past = || wire::telemetry::encode(&served("a", now));
    for number in 0..MAX_BLOBS {
        publish(&one.store, &format!("other-{number:02}"), past()).await;
    }
    one.round().await;
    assert_eq!(one.requests(), 64);
    for number in 1..=3 {
        one.hears(7, number, 0);
        let mut twice = served("a", now);
        let refused = twice.absorb(served("a", now), &Bounds::default());
        assert_eq!(refused, Refused::default());
        let twice = wire::telemetry::encode(&twice);
        let other = format!("other-{:02}", 60 + number);
        publish(&one.store, &other, twice).await;
        one.round().await;
        one.round().await;
        // One of the others has left for this replica's own.
        assert_eq!(one.requests(), 63 + number + number, "{number}");
    }
    assert!(one.gatherer.hot.answers());
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_to_be_published_is_shortened_and_the_rest_is_known() {
    let memory = MemoryHotStore::default();
    let (mut one, mut two) = (Replica::start("1", &memory), Replica::start("2", &memory));
    one.round().await;
    let now = one.gatherer.clock.now();
    let mut large = served("a", now);
    let past = large.combos.get_mut(&combo()).unwrap();
    let target = past.targets[KEY].clone();
    for number in 0..1_000 {
        let key = format!("{number:04}").repeat(1_000);
        past.targets.insert(key, target.clone());
    }
    let plane = PlaneIncarnation(7);
    one.gatherer.add(plane, 1, large, BTreeMap::new(), |_| None);
    one.round().await;
    two.round().await;
    assert_eq!(two.requests(), 1);
    let bytes = one.gatherer.metrics.fleet.blob_bytes.get();
    let most = i64::try_from(MAX_BLOB_BYTES).unwrap();
    assert!((most / 2..=most).contains(&bytes), "{bytes}");
    assert_eq!(one.gatherer.metrics.fleet.blob_failures.get(), 0);
    assert!(one.gatherer.hot.answers());
    let metrics = one.gatherer.metrics.encode().unwrap();
    let name = "tidegate_cp_telemetry_shed{kind=\"targets\"} ";
    let shed = metrics.lines().find_map(|line| line.strip_prefix(name));
    let shed: usize = shed.unwrap().parse().unwrap();
    assert!((1..=1_000).contains(&shed), "{shed}");
    // It goes on knowing all of them, also when it publishes again.
    one.hears(7, 2, 0);
    one.round().await;
    let key = |number| format!("{number:04}").repeat(1_000);
    let known = (0..1_000).filter(|number| {
        let requests = one
            .gatherer
            .fleet()
            .target_requests(&combo(), &key(*number));
        requests == Some(1)
    });
    assert_eq!(known.count(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn large_blobs_are_read_in_pieces_and_what_came_is_kept() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    let now = one.gatherer.clock.now();
    let mut large = served("a", now);
    let past = large.combos.get_mut(&combo()).unwrap();
    let target = past.targets[KEY].clone();
    for number in 0..150 {
        let key = format!("{number:04}").repeat(1_000);
        past.targets.insert(key, target.clone());
    }
    for number in 0..6 {
        let bytes = wire::telemetry::encode(&large);
        publish(&one.store, &format!("other-{number}"), bytes).await;
    }
    // A second answer does not come in this round.
    one.store.fail_each(NonZeroU64::new(2));
    one.round().await;
    assert_eq!(one.requests(), 2);
    one.store.fail_each(None);
    let mut rounds = 0;
    while one.requests() < 6 {
        one.round().await;
        rounds += 1;
        assert!(rounds < 6, "each round reads a piece at least");
    }
}

#[rstest]
#[case::first(served("a", NOW), None, true, true)]
#[case::same(served("a", NOW), Some("a"), false, false)]
#[case::another(served("b", NOW), Some("a"), true, false)]
#[case::late(served("b", NOW.minus_ms(10)), Some("a"), false, false)]
#[case::failure(end("a", Verdict::Failed, NOW), Some("a"), true, true)]
#[case::failure_of_nobody(end("a", Verdict::Failed, NOW), None, false, false)]
#[case::nothing(end("a", Verdict::None, NOW), Some("a"), false, false)]
fn who_serves_is_published_when_it_changes(
    #[case] seen: Aggregate,
    #[case] known: Option<&str>,
    #[case] of_account: bool,
    #[case] of_provider: bool,
) {
    let known = known.map(|connection| served(connection, NOW.minus_ms(5)));
    let fleet = Fleet::of(known, &Bounds::default(), NOW);
    let urgent = |follows| changes_who_serves(&seen, &fleet, |_| follows);
    assert_eq!(urgent(Some(LastServed::Account)), of_account);
    assert_eq!(urgent(Some(LastServed::Provider)), of_provider);
    assert!(!urgent(None));
}
