use http::Uri;
use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::telemetry::{QuotaSnapshot, Telemetry as _};

use tokio::time::timeout;

use super::*;
use crate::endpoint::{Address, ChannelSettings};

const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn account(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn combo() -> ComboName {
    ComboName::new("combo").unwrap()
}

fn end(key: &str, verdict: Verdict) -> End {
    End {
        target: Some((combo(), key.to_owned())),
        provider: ProviderId::new("p").unwrap(),
        connection: account(key),
        model: ModelId::new("m").unwrap(),
        verdict,
        began_at: NOW,
        at: NOW,
        session: None,
    }
}

fn queue() -> TelemetryQueue {
    let plane = PlaneIncarnation(1);
    TelemetryQueue::new(plane, Duration::ZERO, ClientMetrics::default())
}

#[test]
fn another_target_that_serves_is_urgent_and_the_same_one_is_not() {
    let mut gathered = Gathered::default();
    let served = Verdict::Served { ready_ms: 1 };
    let told: Vec<bool> = [
        ("a", served),
        ("a", served),
        ("b", Verdict::Failed),
        ("b", served),
    ]
    .map(|(key, verdict)| {
        gathered.serves_anew(&end(key, verdict), 1, |_| Some(LastServed::Account))
    })
    .to_vec();
    assert_eq!(told, [true, false, false, true]);
    let mut other = end("a", served);
    other.target = Some((ComboName::new("other").unwrap(), "a".to_owned()));
    let has_room = gathered.serves_anew(&other, 1, |_| Some(LastServed::Account));
    assert!(!has_room, "there is no room");
    let follows = gathered.serves_anew(&end("c", served), 1, |_| None);
    assert!(!follows, "the combo does not follow who served last");
    let provider = |_: &ComboName| Some(LastServed::Provider);
    let rotates = gathered.serves_anew(&end("c", served), 1, provider);
    assert!(!rotates, "it is the same provider");
}

#[test]
fn what_is_under_way_goes_up_and_down_within_its_bound() {
    let mut gathered = Gathered::default();
    for key in ["a", "b", "a", "c"] {
        gathered.began(account(key), 2);
    }
    let expected = BTreeMap::from([(account("a"), 2), (account("b"), 1)]);
    assert_eq!(gathered.under_way, expected);
    for key in ["a", "a", "a", "c"] {
        gathered.over(&account(key));
    }
    assert_eq!(gathered.under_way, BTreeMap::from([(account("b"), 1)]));
}

#[test]
fn what_has_no_room_is_counted() {
    let queue = queue();
    let bounds = Bounds {
        connections: 1,
        ..Bounds::default()
    };
    queue.gathered.lock().added = BoundedSum::new(bounds);
    for key in ["a", "b", "b"] {
        let quota = QuotaSnapshot::default();
        queue.take(Observation::Quota(account(key), quota), |_| None);
    }
    assert_eq!(queue.metrics.telemetry_dropped.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_known_here_goes_on_while_nobody_takes_a_message() {
    let queue = queue();
    let address = Address::Tcp(Uri::from_static("http://127.0.0.1:1"));
    let settings = ChannelSettings::default();
    let replicas = Replicas::new(&[address], &settings, None, None, queue.plane).unwrap();
    let now = std::time::UNIX_EPOCH + Duration::from_millis(NOW.0);
    let clock = PlaneClock::new(now, Instant::now());
    let stop = CancellationToken::new();
    let observed = async {
        for number in 1..=3 {
            queue.take(Observation::Ended(end("a", Verdict::Failed)), |_| None);
            let known = || queue.view().target_requests(&combo(), "a") == Some(number);
            let soon = async {
                while !known() {
                    sleep(EVERY).await;
                }
            };
            let in_time = timeout(EVERY * 10, soon).await;
            assert!(in_time.is_ok(), "{number} is never known");
        }
    };
    tokio::select! {
        () = queue.run(&replicas, &clock, &stop) => {}
        () = observed => {}
    }
    assert!(queue.metrics.telemetry_kept.get() > 0);
}

#[test]
fn what_is_known_here_goes_on_while_nothing_is_sent() {
    let queue = queue();
    let requests = || queue.view().target_requests(&combo(), "a");
    for number in 1..=3 {
        queue.take(Observation::Began(account("a")), |_| None);
        queue.take(Observation::Ended(end("a", Verdict::Failed)), |_| None);
        assert_eq!(
            requests().unwrap_or(0),
            number - 1,
            "not before it is looked at"
        );
        queue.learn(NOW);
        assert_eq!(requests(), Some(number));
    }
    assert_eq!(queue.view().in_flight(&account("a")), 3);
    for _ in 0..3 {
        queue.take(Observation::Over(account("a")), |_| None);
    }
    queue.learn(NOW);
    assert_eq!(queue.view().in_flight(&account("a")), 0);
    let waiting = queue.learned.lock().waiting.take();
    assert_eq!(waiting.combos[&combo()].targets["a"].ended, 3);
}
