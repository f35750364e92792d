//! Telemetry: what is added up here reaches the control plane once, and soon where it matters.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::ids::{ComboName, ConnectionId, ModelId, ProviderId};
use tidegate_core::telemetry::aggregate::{End, Verdict};
use tidegate_plane_client::Observation;
use tokio::time::{Instant, sleep};

use super::setting::{Setting, until};

fn account(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn served(setting: &Setting, connection: &str) -> Observation {
    Observation::Ended(End {
        target: Some((ComboName::new("combo").unwrap(), connection.to_owned())),
        provider: ProviderId::new(connection.trim_end_matches('1')).unwrap(),
        connection: account(connection),
        model: ModelId::new("m").unwrap(),
        verdict: Verdict::Served { ready_ms: 7 },
        began_at: setting.client.now(),
        at: setting.client.now(),
        session: None,
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_not_taken_keeps_its_number_and_content_until_it_is() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    replica.telemetry_fails.store(true, Ordering::Relaxed);
    setting.client.observe(served(&setting, "a1"));
    until("it was sent", || !replica.observed.lock().is_empty()).await;
    for _ in 0..3 {
        setting.client.observe(served(&setting, "a1"));
        sleep(Duration::from_secs(1)).await;
    }
    replica.telemetry_fails.store(false, Ordering::Relaxed);
    let highest = || replica.observed.lock().iter().map(|it| it.number).max();
    until("the rest was sent", || highest() == Some(2)).await;
    let heard = replica.observed.lock().clone();
    let first: Vec<_> = heard.iter().filter(|it| it.number == 1).collect();
    assert!(first.len() > 2);
    assert!(first.iter().all(|it| it.telemetry == first[0].telemetry));
    let ended = |number| {
        let of_number = heard.iter().find(|it| it.number == number).unwrap();
        of_number.telemetry.as_ref().unwrap().combos[0].targets[0].ended
    };
    assert_eq!((ended(1), ended(2)), (1, 3));
    assert!(setting.client.metrics().telemetry_kept.get() > 1);
}

#[tokio::test(start_paused = true)]
async fn another_target_that_serves_a_combo_is_told_at_once() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    for (index, connection) in ["a1", "b1", "a1"].into_iter().enumerate() {
        let asked = Instant::now();
        setting.client.observe(served(&setting, connection));
        until("it was told", || replica.observed.lock().len() > index).await;
        assert!(asked.elapsed() < Duration::from_millis(100));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_told_while_it_lasts_and_its_end_once() {
    let setting = Setting::start(1).await;
    let heard = || setting.replicas[0].observed.lock().clone();
    setting.client.observe(Observation::Began(account("a1")));
    until("it was told for a while", || heard().len() >= 4).await;
    assert!(heard().iter().all(|it| it.in_flight.len() == 1));
    setting.client.observe(Observation::Over(account("a1")));
    sleep(Duration::from_secs(5)).await;
    let last: Vec<usize> = heard().iter().map(|it| it.in_flight.len()).collect();
    assert_eq!(
        last.iter().filter(|count| **count == 0).count(),
        1,
        "{last:?}"
    );
    assert_eq!(last.last(), Some(&0));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_sent_before_the_end() {
    let setting = Setting::start(1).await;
    setting.client.observe(served(&setting, "a1"));
    until("the first was sent", || {
        !setting.replicas[0].observed.lock().is_empty()
    })
    .await;
    setting.client.observe(served(&setting, "a1"));
    setting.end().await;
    assert_eq!(setting.replicas[0].observed.lock().len(), 2);
}
