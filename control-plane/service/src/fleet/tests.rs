use rstest::rstest;
use tidegate_core::ids::{ComboName, ModelId, ProviderId};
use tidegate_core::telemetry::aggregate::{End, Verdict};
use tidegate_store::fault::FaultyHotStore;
use tidegate_store::memory::MemoryHotStore;

use super::*;

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
        let metrics = Arc::new(Metrics::new());
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
            .add(PlaneIncarnation(plane), number, seen, under_way);
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
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

#[tokio::test]
async fn what_cannot_be_read_is_left_out() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    let foreign = FaultyHotStore::new(Arc::new(memory.clone()), Duration::from_secs(1));
    let hour = Duration::from_secs(3_600);
    tidegate_store::hot::HotStore::put_blob(&foreign, "2", vec![0xff], hour)
        .await
        .unwrap();
    one.round().await;
    one.hears(7, 1, 0);
    one.round().await;
    assert_eq!(one.requests(), 1);
    assert_eq!(one.gatherer.metrics.fleet.blobs_skipped.get(), 1);
}

#[tokio::test]
async fn what_has_no_room_is_counted() {
    let memory = MemoryHotStore::default();
    let mut one = Replica::start("1", &memory);
    one.gatherer.bounds.connections = 0;
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

#[rstest]
#[case::first(served("a", NOW), None, true)]
#[case::same(served("a", NOW), Some("a"), false)]
#[case::another(served("b", NOW), Some("a"), true)]
#[case::late(served("b", NOW.minus_ms(10)), Some("a"), false)]
#[case::failure(end("a", Verdict::Failed, NOW), Some("a"), true)]
#[case::failure_of_nobody(end("a", Verdict::Failed, NOW), None, false)]
#[case::nothing(end("a", Verdict::None, NOW), Some("a"), false)]
fn who_serves_is_published_when_it_changes(
    #[case] seen: Aggregate,
    #[case] known: Option<&str>,
    #[case] expected: bool,
) {
    let known = known.map(|connection| served(connection, NOW.minus_ms(5)));
    let fleet = Fleet::of(known, &Bounds::default(), NOW);
    assert_eq!(changes_who_serves(&seen, &fleet), expected);
}
