//! A control plane that is slow, or hangs, is not one that is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::routing::Rejection;
use tidegate_plane_client::{Answer, Limits, Step};
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::fake::{Deciding, Replica};
use super::setting::{Setting, ask, connection, dispatched, until};

/// Needs a permit of its only account.
const CAPPED: &str = "c/m";
/// Needs none.
const FREE: &str = "smart";

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

async fn setting(deciding: Deciding) -> (Setting, Arc<Replica>) {
    let setting = Setting::start(1).await;
    let replica = Arc::clone(&setting.replicas[0]);
    replica.permits.store(true, Ordering::Relaxed);
    *replica.deciding.lock() = deciding;
    (setting, replica)
}

fn rejection(answer: &Answer) -> &Rejection {
    match &answer.decision {
        Step::Reject(rejection) => rejection,
        step @ (Step::Dispatch(_) | Step::Wait { .. } | Step::AwaitPermit(_) | Step::Plan(_)) => {
            panic!("not refused: {step:?}")
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_needs_a_permit_waits_for_a_slow_control_plane_and_is_asked_once() {
    let (setting, replica) = setting(Deciding::ToAfter("c1", ms(400))).await;
    for asked in 1..=6 {
        let answer = setting.decide(CAPPED).await;
        assert!(!answer.local && dispatched(&answer).permit);
        assert_eq!(replica.decisions(), asked);
    }
    let metrics = setting.client.metrics();
    assert_eq!(metrics.decided_late.get(), 6);
    assert_eq!(metrics.local_permits.get(), 0);
    assert_eq!(metrics.control_plane_slow.get(), 1);
    assert_eq!(metrics.control_plane_gone.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_needs_none_is_decided_here_at_once_while_the_control_plane_is_slow() {
    let (setting, replica) = setting(Deciding::ToAfter("c1", ms(400))).await;
    for _ in 0..3 {
        let start = Instant::now();
        assert!(setting.decide(FREE).await.local);
        assert!(start.elapsed() < ms(60), "its client does not wait longer");
    }
    assert_eq!(setting.client.metrics().control_plane_slow.get(), 1);
    let start = Instant::now();
    let answer = setting.decide(FREE).await;
    assert!(answer.local && start.elapsed() == Duration::ZERO);
    assert_eq!(replica.decisions(), 3);
    // An answer in time makes it well again, whoever asked.
    *replica.deciding.lock() = Deciding::To("c1");
    assert!(!setting.decide(CAPPED).await.local);
    assert!(!setting.client.status().deciding_locally);
    assert!(!setting.decide(FREE).await.local);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_hangs_has_no_permits_to_share_until_it_counts_as_gone() {
    let (setting, replica) = setting(Deciding::Hangs).await;
    let began = Instant::now();
    while began.elapsed() < ms(2_900) {
        let start = Instant::now();
        let answer = setting.decide(CAPPED).await;
        assert!(answer.local);
        let rejection = rejection(&answer);
        assert_eq!(rejection.code, "concurrency_cap");
        assert_eq!(rejection.retry_after_secs, Some(1));
        assert!(start.elapsed() >= ms(1_000));
    }
    // Its heart beats all the time.
    assert!(setting.client.status().following);
    sleep(ms(200)).await;
    let answer = setting.decide(CAPPED).await;
    assert!(answer.local && dispatched(&answer).permit);
    assert_eq!(setting.client.metrics().control_plane_gone.get(), 1);
    // It comes back, as one question in a while finds out.
    *replica.deciding.lock() = Deciding::To("c1");
    sleep(ms(500)).await;
    assert!(!setting.decide(CAPPED).await.local);
    assert_eq!(setting.client.metrics().control_plane_gone.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_refuses_to_decide_has_its_permits_to_itself() {
    let (setting, _replica) = setting(Deciding::Refuses).await;
    let answer = setting.decide(CAPPED).await;
    assert!(answer.local);
    assert_eq!(rejection(&answer).code, "concurrency_cap");
    assert_eq!(setting.client.metrics().local_permits.get(), 0);
    let answer = setting.decide(FREE).await;
    assert!(answer.local && !dispatched(&answer).permit);
}

#[tokio::test(start_paused = true)]
async fn another_replica_is_asked_by_who_waits_for_a_slow_one() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::Hangs;
    *others[0].deciding.lock() = Deciding::To("c1");
    let start = Instant::now();
    let answer = setting.decide(CAPPED).await;
    assert!(!answer.local);
    assert_eq!(connection(&answer), "c1");
    assert!(start.elapsed() < ms(60));
}

#[tokio::test(start_paused = true)]
async fn two_late_answers_with_the_same_permit_leave_it_to_the_request() {
    let setting = Setting::start(2).await;
    for replica in &setting.replicas {
        replica.permits.store(true, Ordering::Relaxed);
    }
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::ToAfter("c1", ms(300));
    *others[0].deciding.lock() = Deciding::ToAfter("c1", ms(100));
    let answer = setting.decide(CAPPED).await;
    assert!(dispatched(&answer).permit && !answer.local);
    sleep(ms(2_000)).await;
    let released = || {
        let count = |replica: &Arc<Replica>| replica.released.lock().len();
        setting.replicas.iter().map(count).sum::<usize>()
    };
    assert_eq!(released(), 0, "the later answer is about the permit in use");
    setting.client.release(dispatched(&answer).attempt.id);
    until("the permit is given back", || released() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn two_late_answers_with_the_same_probe_leave_it_to_the_request() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::ProbeAfter(ms(300));
    *others[0].deciding.lock() = Deciding::ProbeAfter(ms(100));
    let abandoned = || {
        let count = |replica: &Arc<Replica>| replica.abandoned.lock().len();
        setting.replicas.iter().map(count).sum::<usize>()
    };
    let answer = setting.decide(CAPPED).await;
    assert!(dispatched(&answer).attempt.probe && !answer.local);
    sleep(ms(2_000)).await;
    assert_eq!(abandoned(), 0, "the later answer is about the probe in use");
    // One that the request does not use is given back.
    *others[0].deciding.lock() = Deciding::ProbeAfter(ms(300));
    *home.deciding.lock() = Deciding::To("c1");
    let answer = setting.decide(CAPPED).await;
    assert!(!dispatched(&answer).attempt.probe);
    until("the probe is given back", || abandoned() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_control_plane_alone_gives_out_probes() {
    let (setting, replica) = setting(Deciding::Hangs).await;
    // What it hears of failures it does not tell, so that the breaker is known here alone.
    replica.acknowledges.store(false, Ordering::Relaxed);
    // Its clock stands still; without its beat ours goes on.
    replica.beats.store(false, Ordering::Relaxed);
    for _ in 0..3 {
        setting.reports("a1", 500, true);
    }
    sleep(ms(61_000)).await;
    let answer = setting.decide(FREE).await;
    assert!(answer.local);
    assert_eq!(connection(&answer), "b1", "another target needs no probe");
    *replica.deciding.lock() = Deciding::ProbeAfter(ms(400));
    let answer = setting.decide("a/m").await;
    assert!(!answer.local, "{answer:?}");
    assert!(dispatched(&answer).attempt.probe);
    assert_eq!(setting.client.metrics().local_probes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wait_for_a_slow_control_plane() {
    const ROOM: usize = 1_024;
    let (setting, replica) = setting(Deciding::ToAfter("c1", ms(800))).await;
    let asking = TaskTracker::new();
    let mut waiting = Vec::new();
    for _ in 0..ROOM + 1 {
        let client = setting.client.clone();
        let question = ask(client.next_attempt(), CAPPED);
        waiting.push(asking.spawn(async move { client.decide(question).await }));
    }
    let mut refused = 0;
    for answer in waiting {
        let answer = answer.await.unwrap();
        if answer.local {
            assert_eq!(rejection(&answer).code, "concurrency_cap");
            refused += 1;
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(setting.client.metrics().decide_impatient.get(), 1);
    assert_eq!(replica.decisions(), ROOM + 1);
}

#[tokio::test(start_paused = true)]
async fn within_one_process_a_decision_may_take_long() {
    let setting = Setting::start_with(
        1,
        |address| address,
        |config| config.limits = Limits::same_process(),
    );
    setting.client_is_ready().await;
    *setting.replicas[0].deciding.lock() = Deciding::ToAfter("a1", ms(1_500));
    for _ in 0..4 {
        assert!(!setting.decide(FREE).await.local);
    }
}
