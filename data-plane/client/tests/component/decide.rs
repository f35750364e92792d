//! Decisions: asked for, and made here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use secrecy::SecretString;
use tidegate_core::routing::WaitKind;
use tidegate_plane_client::{LastFailure, Step};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::fake::Deciding;
use super::network::Network;
use super::setting::{Setting, ask, attempt, connection, dispatched, failure, snapshot, until};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

#[tokio::test(start_paused = true)]
async fn the_control_plane_decides_and_the_attempt_names_the_credential_in_use() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::To("b1");
    let answer = setting.decide("smart").await;
    assert!(!answer.local);
    assert_eq!(connection(&answer), "b1");
    // The control plane said 1, the snapshot holds 3.
    assert_eq!(dispatched(&answer).attempt.credential_version, 3);
    assert_eq!(setting.client.live_data_planes(), 2);
}

#[tokio::test(start_paused = true)]
async fn every_call_shows_the_shared_token() {
    let setting = Setting::start_with(
        1,
        |address| address,
        |config| {
            config.token = Some(SecretString::from("hush"));
        },
    );
    setting.client_is_ready().await;
    setting.decide("smart").await;
    let tokens = setting.replicas[0].tokens.lock().clone();
    assert_eq!(tokens.into_iter().collect::<Vec<_>>(), ["Bearer hush"]);
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_within_the_limit_the_decision_is_made_here() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::Hangs;
    let start = Instant::now();
    let answer = setting.decide("smart").await;
    assert!(answer.local && answer.combo);
    assert_eq!(connection(&answer), "a1");
    assert_eq!(dispatched(&answer).attempt.credential_version, 3);
    assert!(dispatched(&answer).deadlines.connect.is_some());
    // Time is the test's own here: nothing but the limit passes.
    assert!(start.elapsed() >= ms(50) && start.elapsed() < ms(60));
    assert_eq!(setting.client.metrics().decide_timeouts.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_three_silences_decisions_are_made_at_once_and_one_question_in_a_while_passes() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = Deciding::Hangs;
    for _ in 0..3 {
        setting.decide("smart").await;
    }
    assert!(setting.client.status().deciding_locally);
    let shut = Instant::now();
    assert_eq!(replica.decisions(), 3);
    while shut.elapsed() < ms(2_250) {
        let asked = replica.decisions();
        let start = Instant::now();
        assert!(setting.decide("smart").await.local);
        let took = start.elapsed();
        assert!(took == Duration::ZERO || replica.decisions() == asked + 1);
        sleep(ms(10)).await;
    }
    assert_eq!(replica.decisions(), 3 + 4);
    *replica.deciding.lock() = Deciding::To("b1");
    until("a question passed", || replica.decisions() == 7).await;
    let mut remote = false;
    while !remote {
        remote = !setting.decide("smart").await.local;
        sleep(ms(10)).await;
    }
    assert!(!setting.client.status().deciding_locally);
    assert!(!setting.decide("smart").await.local);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_is_followed_by_the_next_within_one_question() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::Fails;
    *others[0].deciding.lock() = Deciding::To("b1");
    let answer = setting.decide("smart").await;
    assert!(!answer.local);
    assert_eq!(connection(&answer), "b1");
    let asked = home.decisions();
    setting.decide("smart").await;
    assert_eq!(home.decisions(), asked, "home is where it worked");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_hangs_costs_one_silence_even_while_its_heart_beats() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::Hangs;
    assert!(setting.decide("smart").await.local);
    for _ in 0..100 {
        assert!(!setting.decide("smart").await.local);
        sleep(ms(100)).await;
    }
    assert_eq!(home.decisions(), 1);
    assert_eq!(others[0].decisions(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_silence() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::Refuses;
    for _ in 0..10 {
        assert!(setting.decide("smart").await.local);
    }
    assert_eq!(setting.replicas[0].decisions(), 10);
    let status = setting.client.status();
    assert!(!status.deciding_locally && !status.replicas[0].suspect);
}

#[tokio::test(start_paused = true)]
async fn a_stale_replica_is_asked_last() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    home.stale.store(true, Ordering::Relaxed);
    until("the heartbeat told", || {
        setting
            .client
            .status()
            .replicas
            .iter()
            .any(|replica| replica.stale)
    })
    .await;
    setting.decide("smart").await;
    assert_eq!((home.decisions(), others[0].decisions()), (0, 1));
    others[0].stale.store(true, Ordering::Relaxed);
    *others[0].deciding.lock() = Deciding::Fails;
    let answer = setting.decide("smart").await;
    assert!(!answer.local, "stale is better than nobody");
    assert_eq!(home.decisions(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probe_granted_too_late_is_given_back() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = Deciding::ProbeAfter(ms(200));
    let answer = setting.decide("smart").await;
    assert!(answer.local);
    until("the probe is back", || !replica.abandoned.lock().is_empty()).await;
    let abandoned = replica.abandoned.lock()[0].clone();
    assert_eq!(abandoned.provider, "a");
    let number = dispatched(&answer).attempt.id.number;
    assert_eq!(abandoned.attempt.unwrap().number, number);
}

#[tokio::test(start_paused = true)]
async fn a_probe_granted_to_a_request_that_was_dropped_is_given_back() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = Deciding::ProbeAfter(ms(20));
    let left = tokio::time::timeout(ms(10), setting.decide("smart")).await;
    assert!(left.is_err(), "the request was there when the answer came");
    until("the probe is back", || !replica.abandoned.lock().is_empty()).await;
    assert_eq!(replica.abandoned.lock()[0].provider, "a");
}

#[tokio::test(start_paused = true)]
async fn a_decision_on_a_newer_configuration_waits_for_it() {
    let setting = Setting::start(1).await;
    let replica = Arc::clone(&setting.replicas[0]);
    let mut newer = snapshot(2);
    newer.credentials[0].version = 9;
    replica.set_configuration_version(2);
    let push = TaskTracker::new().spawn(async move {
        sleep(ms(20)).await;
        replica.push(tidegate_proto::config::v1::watch_response::Kind::Snapshot(
            newer,
        ));
    });
    let answer = setting.decide("smart").await;
    push.await.unwrap();
    assert!(!answer.local);
    assert_eq!(dispatched(&answer).attempt.credential_version, 9);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_cannot_be_carried_out_here_is_given_back_and_made_again() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::To("a9");
    let answer = setting.decide("smart").await;
    assert!(answer.local);
    assert_eq!(connection(&answer), "a1");
    let replica = &setting.replicas[0];
    until("it was given back", || !replica.abandoned.lock().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_request_sees_its_own_failure_at_once_here_too() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::Hangs;
    let first = setting.decide("smart").await;
    let sent = dispatched(&first).clone();
    let snapshot = setting.client.snapshot().expect("a configuration");
    assert_eq!(sent.order_version, snapshot.config.version);
    let mut next = ask(setting.client.next_attempt(), "smart");
    next.last_failure = Some(LastFailure {
        attempt: sent.attempt,
        outcome: failure(401),
        occurred_at: setting.client.now(),
        pass: sent.pass,
        target: sent.target,
    });
    let second = setting.client.decide(next).await;
    assert!(second.local);
    assert_eq!(second.classification.as_ref().unwrap().status, 401);
    assert_eq!(connection(&second), "b1");
    assert!(!second.next_target_same_provider);
}

#[tokio::test(start_paused = true)]
async fn the_control_planes_words_about_a_failure_are_handed_on() {
    let setting = Setting::start(1).await;
    let mut next = ask(setting.client.next_attempt(), "smart");
    next.last_failure = Some(LastFailure {
        attempt: attempt(1, "a1"),
        outcome: failure(500),
        occurred_at: setting.client.now(),
        pass: 0,
        target: 0,
    });
    let answer = setting.client.decide(next).await;
    assert!(!answer.local);
    assert_eq!(answer.classification.unwrap().status, 500);
}

#[tokio::test(start_paused = true)]
async fn cut_off_a_breaker_of_our_own_opens_and_admits_one_probe() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    network.cut();
    assert_eq!(connection(&setting.decide("smart").await), "a1");
    for _ in 0..3 {
        setting.reports("a1", 500, true);
    }
    assert_eq!(connection(&setting.decide("smart").await), "b1");
    sleep(ms(61_000)).await;
    let probe = setting.decide("smart").await;
    assert!(probe.local && dispatched(&probe).attempt.probe);
    assert!(dispatched(&probe).report_at_readiness);
    assert_eq!(connection(&probe), "a1");
    assert_eq!(connection(&setting.decide("smart").await), "b1");
    assert_eq!(setting.client.metrics().local_probes.get(), 1);
    // It is not sent after all.
    let provider = dispatched(&probe).attempt.provider.clone();
    setting
        .client
        .abandon(dispatched(&probe).attempt.id, Some(provider));
    let probe = setting.decide("smart").await;
    let mut report = super::setting::outcome(1, "a1", 200);
    report.attempt = dispatched(&probe).attempt.clone();
    assert!(report.attempt.probe);
    setting.client.report(report, true);
    let healthy = setting.decide("smart").await;
    assert_eq!(connection(&healthy), "a1");
    assert!(!dispatched(&healthy).attempt.probe);
}

#[tokio::test(start_paused = true)]
async fn after_a_partition_the_first_questions_are_answered_again() {
    let network = Network::new();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    setting.client_is_ready().await;
    assert!(!setting.decide("smart").await.local);
    network.cut();
    for _ in 0..20 {
        assert!(setting.decide("smart").await.local);
        sleep(ms(1_000)).await;
    }
    network.repair();
    let repaired = Instant::now();
    while setting.decide("smart").await.local {
        // Keep-alive gives the dead connection up; without it this lasts for ever.
        assert!(repaired.elapsed() < Duration::from_secs(30));
        sleep(ms(100)).await;
    }
    setting.client_is_ready().await;
}

#[tokio::test(start_paused = true)]
async fn without_any_configuration_the_answer_is_a_clear_refusal() {
    let network = Network::new();
    network.cut();
    let setting = Setting::start_with(1, |address| network.over(address), |_| {});
    assert!(!setting.client.is_ready());
    let answer = setting.decide("smart").await;
    let Step::Reject(rejection) = answer.decision else {
        panic!("decided on nothing");
    };
    assert_eq!(rejection.status, 503);
    assert_eq!(rejection.code, "control_plane_unreachable");
}

#[tokio::test(start_paused = true)]
async fn a_retry_on_the_same_target_is_a_wait_here_too() {
    let setting = Setting::start(1).await;
    *setting.replicas[0].deciding.lock() = Deciding::Hangs;
    let first = setting.decide("smart").await;
    let sent = dispatched(&first).clone();
    let mut next = ask(setting.client.next_attempt(), "smart");
    next.last_failure = Some(LastFailure {
        attempt: sent.attempt,
        outcome: failure(503),
        occurred_at: setting.client.now(),
        pass: sent.pass,
        target: sent.target,
    });
    let second = setting.client.decide(next).await;
    let Step::Wait { kind, wait } = second.decision else {
        panic!("no wait: {:?}", second.decision);
    };
    assert_eq!(kind, WaitKind::RetryDelay);
    assert!(wait > Duration::ZERO);
}
