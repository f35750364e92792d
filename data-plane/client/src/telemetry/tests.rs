use tidegate_core::ids::{ModelId, ProviderId};
use tidegate_core::telemetry::{QuotaSnapshot, Telemetry as _};

use super::*;

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
    .map(|(key, verdict)| gathered.serves_anew(&end(key, verdict), 1))
    .to_vec();
    assert_eq!(told, [true, false, false, true]);
    let mut other = end("a", served);
    other.target = Some((ComboName::new("other").unwrap(), "a".to_owned()));
    assert!(!gathered.serves_anew(&other, 1), "there is no room");
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
    let mut queue = queue();
    queue.bounds.connections = 1;
    for key in ["a", "b", "b"] {
        let quota = QuotaSnapshot::default();
        queue.take(Observation::Quota(account(key), quota));
    }
    assert_eq!(queue.metrics.telemetry_dropped.get(), 2);
}

#[test]
fn nothing_is_known_here_before_the_first_message() {
    let queue = queue();
    queue.take(Observation::Ended(end("a", Verdict::Failed)));
    assert_eq!(queue.view().target_requests(&combo(), "a"), None);
}
