//! Reports and token records: nothing lost, nothing counted twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rstest::rstest;
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_core::usage::{TokenUsage, UsageRecord};
use tokio::time::sleep;

use super::fake::BAD_MODEL;
use super::network::Network;
use super::setting::{Setting, outcome, until};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

#[tokio::test(start_paused = true)]
async fn reports_are_applied_once_and_successes_travel_together() {
    let setting = Setting::start(2).await;
    for _ in 0..500 {
        setting.reports("a1", 200, false);
    }
    setting.reports("b1", 500, true);
    until("all are applied", || {
        setting.store.lock().counts() == (500, 1)
    })
    .await;
    let (home, others) = setting.home_and_others();
    let messages = home.reported.lock().len();
    assert!(messages <= 3, "{messages} messages");
    assert!(others[0].reported.lock().is_empty());
    until("all are acknowledged", || {
        setting.client.status().reports_under_way == 0
    })
    .await;
    assert_eq!(setting.client.metrics().reports_coalesced.get(), 499);
}

#[tokio::test(start_paused = true)]
async fn an_urgent_report_without_acknowledgement_goes_to_another_replica() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    home.applies.store(false, Ordering::Relaxed);
    setting.reports("a1", 500, true);
    until("it was sent", || !home.reported.lock().is_empty()).await;
    let sent = tokio::time::Instant::now();
    until("another applied it", || {
        setting.store.lock().counts() == (0, 1)
    })
    .await;
    assert!(sent.elapsed() >= ms(200) && sent.elapsed() < ms(400));
    assert_eq!(others[0].reported.lock()[0], home.reported.lock()[0]);
}

#[tokio::test(start_paused = true)]
async fn applied_without_acknowledgement_and_sent_again_counts_once() {
    let setting = Setting::start(2).await;
    let (home, _) = setting.home_and_others();
    home.acknowledges.store(false, Ordering::Relaxed);
    for _ in 0..10 {
        setting.reports("a1", 500, true);
        setting.reports("a1", 200, false);
        sleep(ms(30)).await;
    }
    until("all are acknowledged", || {
        let status = setting.client.status();
        status.reports_waiting == 0 && status.reports_under_way == 0
    })
    .await;
    assert_eq!(setting.store.lock().counts(), (10, 10));
    assert!(setting.client.metrics().reports_resent.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn with_one_replica_the_same_one_is_reached_over_a_new_connection() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    setting.reports("a1", 500, true);
    until("it is applied", || setting.store.lock().counts() == (0, 1)).await;
    // Every connection made so far is dead from now on, and nobody says so.
    network.cut();
    network.repair();
    setting.reports("a1", 500, true);
    let start = tokio::time::Instant::now();
    until("it is applied", || setting.store.lock().counts() == (0, 2)).await;
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "sooner than keep-alive"
    );
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_the_log_while_every_control_plane_is_away() {
    let network = Network::new();
    let setting = Setting::start_with(2, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    network.cut();
    for round in 0..60 {
        for _ in 0..20 {
            setting.reports("a1", 200, false);
        }
        if round % 20 == 0 {
            setting.reports("b1", 500, true);
        }
        sleep(ms(1_000)).await;
    }
    let status = setting.client.status();
    assert!(
        status.reports_waiting + status.reports_under_way < 40,
        "{status:?}"
    );
    network.repair();
    until("all are applied", || {
        setting.store.lock().counts() == (1_200, 3)
    })
    .await;
    until("all are acknowledged", || {
        setting.client.status().reports_under_way == 0
    })
    .await;
    assert_eq!(setting.store.lock().counts(), (1_200, 3));
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_five_minutes_is_dropped_without_a_gap() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    network.cut();
    setting.reports("a1", 500, true);
    setting.reports("a1", 429, true);
    sleep(ms(320_000)).await;
    setting.reports("a1", 503, true);
    network.repair();
    // The fake refuses numbers with a gap.
    until("the new one is applied", || {
        setting
            .store
            .lock()
            .applied
            .iter()
            .any(|report| report.outcome == super::setting::failure(503))
    })
    .await;
    let applied = u64::try_from(setting.store.lock().applied.len()).unwrap();
    let dropped = setting.client.metrics().reports_dropped_age.get();
    assert_eq!(applied + dropped, 3);
}

#[tokio::test(start_paused = true)]
async fn with_the_hot_store_away_nothing_is_acknowledged_and_nothing_is_carried_around_in_circles()
{
    let setting = Setting::start(2).await;
    for replica in &setting.replicas {
        replica.applies.store(false, Ordering::Relaxed);
    }
    setting.reports("a1", 500, true);
    sleep(ms(60_000)).await;
    let streams: usize = setting
        .replicas
        .iter()
        .map(|replica| replica.report_streams.load(Ordering::Relaxed))
        .sum();
    assert!((3..40).contains(&streams), "{streams} streams in a minute");
    assert!(!setting.decide("smart").await.local, "decisions go on");
    for replica in &setting.replicas {
        replica.applies.store(true, Ordering::Relaxed);
    }
    until("it is applied", || setting.store.lock().counts() == (0, 1)).await;
}

#[tokio::test]
async fn all_of_it_works_over_tcp() {
    let setting = Setting::start_over_tcp().await;
    setting.client_is_ready().await;
    setting.reports("a1", 500, true);
    setting.client.record_usage(usage(&setting));
    until("it is applied", || setting.store.lock().counts() == (0, 1)).await;
    // Real time passes here, so an answer may come too late; not every one.
    let mut asked = 0;
    while setting.decide("smart").await.local {
        asked += 1;
        assert!(asked < 100);
        sleep(ms(20)).await;
    }
    setting.end().await;
    assert_eq!(setting.store.lock().usages.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_end_delivers_what_waits() {
    let setting = Setting::start(1).await;
    setting.reports("a1", 200, false);
    setting.client.record_usage(usage(&setting));
    setting.end().await;
    assert_eq!(setting.store.lock().counts(), (1, 0));
    assert_eq!(setting.store.lock().usages.len(), 1);
    assert_eq!(setting.client.metrics().reports_dropped_shutdown.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_without_anybody_to_deliver_to_is_bounded_and_counted() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    network.cut();
    setting.reports("a1", 500, true);
    let start = tokio::time::Instant::now();
    setting.end().await;
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(setting.client.metrics().reports_dropped_shutdown.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn synthetic_attempts_are_not_reported() {
    let setting = Setting::start(1).await;
    let mut report = outcome(1, "a1", 500);
    report.attempt.synthetic = true;
    setting.client.report(report, true);
    assert_eq!(setting.client.status().reports_waiting, 0);
}

fn usage(setting: &Setting) -> UsageRecord {
    UsageRecord {
        attempt: setting.client.next_attempt(),
        at: setting.client.now(),
        provider: ProviderId::new("a").unwrap(),
        connection: ConnectionId::new("a1").unwrap(),
        model: ModelId::new("m").unwrap(),
        key: None,
        tokens: TokenUsage::UNKNOWN,
    }
}

#[tokio::test(start_paused = true)]
async fn token_records_are_repeated_until_taken() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    replica.usage_fails.store(true, Ordering::Relaxed);
    for _ in 0..700 {
        setting.client.record_usage(usage(&setting));
    }
    until("an answer was lost", || {
        setting.store.lock().usages.values().any(|times| *times > 1)
    })
    .await;
    replica.usage_fails.store(false, Ordering::Relaxed);
    until("none waits", || setting.client.status().usages_waiting == 0).await;
    assert_eq!(setting.store.lock().usages.len(), 700);
    assert_eq!(setting.client.metrics().usage_recorded.get(), 700);
}

#[tokio::test(start_paused = true)]
async fn token_records_beyond_the_bound_push_out_the_oldest() {
    let network = Network::new();
    network.cut();
    let setting = Setting::start_with(
        1,
        |address| network.over(address),
        |config| {
            config.limits.max_usages = 10;
        },
    );
    for _ in 0..15 {
        setting.client.record_usage(usage(&setting));
    }
    assert_eq!(setting.client.status().usages_waiting, 10);
    assert_eq!(setting.client.metrics().usage_dropped.get(), 5);
    network.repair();
    until("none waits", || setting.client.status().usages_waiting == 0).await;
    let numbers: Vec<u64> = setting
        .store
        .lock()
        .usages
        .keys()
        .map(|key| key.1)
        .collect();
    assert_eq!(numbers, (6..=15).collect::<Vec<_>>());
}

#[rstest]
#[case::by_itself(false)]
#[case::with_its_batch_as_by_the_release_before(true)]
#[tokio::test(start_paused = true)]
async fn of_token_records_only_the_one_that_is_refused_is_dropped(#[case] refuses_batches: bool) {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    replica
        .refuses_batches
        .store(refuses_batches, Ordering::Relaxed);
    for number in 0..700 {
        let mut record = usage(&setting);
        if [3, 600].contains(&number) {
            record.model = ModelId::new(BAD_MODEL).unwrap();
        }
        setting.client.record_usage(record);
    }
    until("none waits", || setting.client.status().usages_waiting == 0).await;
    let metrics = setting.client.metrics();
    assert_eq!(metrics.usage_recorded.get(), 698);
    assert_eq!(metrics.usage_dropped.get(), 2);
    assert_eq!(setting.store.lock().usages.len(), 698);
}
