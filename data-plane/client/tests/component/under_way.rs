//! Answers under way: told once, and that they still are for as long as they are.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_core::usage::{OpenAttempt, TokenUsage, UsageRecord};
use tidegate_proto::report::v1 as report;
use tokio::time::{Instant, sleep};

use super::network::Network;
use super::setting::{Setting, until};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn opens(setting: &Setting) -> OpenAttempt {
    let open = OpenAttempt {
        attempt: setting.client.next_attempt(),
        since: setting.client.now(),
        provider: ProviderId::new("a").unwrap(),
        connection: ConnectionId::new("a1").unwrap(),
        model: ModelId::new("m").unwrap(),
        key: None,
    };
    setting.client.opens(open.clone());
    open
}

fn ends(setting: &Setting, open: OpenAttempt) {
    setting.client.record_usage(UsageRecord {
        attempt: open.attempt,
        at: setting.client.now(),
        provider: open.provider,
        connection: open.connection,
        model: open.model,
        key: open.key,
        tokens: TokenUsage::UNKNOWN,
    });
}

/// What the first replica heard.
fn heard(setting: &Setting) -> Vec<report::ReportOpenAttemptsRequest> {
    setting.replicas[0].under_way.lock().clone()
}

fn numbers(message: &report::ReportOpenAttemptsRequest) -> Vec<u64> {
    message.opened.iter().map(|open| open.number).collect()
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_told_once_and_then_that_the_data_plane_lives() {
    let setting = Setting::start(1).await;
    let open = opens(&setting);
    until("it is told", || !heard(&setting).is_empty()).await;
    let told = heard(&setting).remove(0);
    assert_eq!(told.plane, open.attempt.plane.0);
    assert_eq!(numbers(&told), [open.attempt.number]);
    assert_eq!(told.opened[0].connection, "a1");
    assert_eq!(setting.client.metrics().usage_under_way.get(), 1);
    sleep(seconds(60)).await;
    let messages = heard(&setting);
    assert!((10..=14).contains(&messages.len()), "{}", messages.len());
    assert!(messages[1..].iter().all(|it| it.opened.is_empty()));
    ends(&setting, open);
    assert_eq!(setting.client.metrics().usage_under_way.get(), 0);
    sleep(seconds(60)).await;
    assert_eq!(
        heard(&setting).len(),
        messages.len(),
        "nothing is left to tell"
    );
}

#[tokio::test(start_paused = true)]
async fn a_short_answer_is_not_told() {
    let setting = Setting::start(1).await;
    let (short, long) = (opens(&setting), opens(&setting));
    sleep(Duration::from_millis(900)).await;
    ends(&setting, short);
    until("the other is told", || !heard(&setting).is_empty()).await;
    assert_eq!(numbers(&heard(&setting)[0]), [long.attempt.number]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_taken_is_told_again_to_whoever_answers() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    for replica in &setting.replicas {
        replica.usage_fails.store(true, Ordering::Relaxed);
    }
    let open = opens(&setting);
    until("both were asked", || {
        !home.under_way.lock().is_empty() && !others[0].under_way.lock().is_empty()
    })
    .await;
    assert_eq!(setting.client.metrics().usage_under_way.get(), 0);
    others[0].usage_fails.store(false, Ordering::Relaxed);
    until("one took it", || {
        setting.client.metrics().usage_under_way.get() == 1
    })
    .await;
    let last = others[0].under_way.lock().last().cloned().unwrap();
    assert_eq!(numbers(&last), [open.attempt.number]);
    assert!(setting.client.metrics().usage_under_way_failed.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn many_answers_are_told_in_parts_and_no_more_than_there_is_room_for() {
    let setting = Setting::start_with(
        1,
        |address| address,
        |config| {
            config.limits.max_usages = 1_200;
        },
    );
    let all: Vec<_> = (0..1_205).map(|_| opens(&setting)).collect();
    until("all are told", || {
        setting.client.metrics().usage_under_way.get() == 1_200
    })
    .await;
    let parts: Vec<usize> = heard(&setting).iter().map(|it| it.opened.len()).collect();
    assert_eq!(parts, [500, 500, 200]);
    assert_eq!(setting.client.metrics().usage_under_way_untold.get(), 5);
    for open in all {
        ends(&setting, open);
    }
    assert_eq!(setting.client.metrics().usage_under_way.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn with_nobody_to_tell_the_end_is_not_held_up() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    network.cut();
    opens(&setting);
    sleep(seconds(10)).await;
    let start = Instant::now();
    setting.end().await;
    assert!(start.elapsed() < seconds(10));
}
