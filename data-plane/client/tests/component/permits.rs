//! Permits: waited for, held, renewed, given back, and given out here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::ids::AttemptId;
use tidegate_core::routing::ExclusionReason;
use tidegate_plane_client::{Answer, Ask, PermitWait, PermitWaited, Step};
use tidegate_proto::routing::v1 as routing;
use tokio::time::{Instant, sleep};

use super::fake::{Deciding, Replica};
use super::setting::{Setting, ask, connection, dispatched, until};

/// Two data planes are live and `c1` lets four requests run at once.
const SHARE: usize = 2;

async fn setting(deciding: Deciding) -> (Setting, Arc<Replica>) {
    let setting = Setting::start(1).await;
    let replica = Arc::clone(&setting.replicas[0]);
    replica.permits.store(true, Ordering::Relaxed);
    *replica.deciding.lock() = deciding;
    (setting, replica)
}

fn id(answer: &Answer) -> AttemptId {
    dispatched(answer).attempt.id
}

fn held(connection: &str, number: u64) -> routing::HeldPermits {
    routing::HeldPermits {
        provider: connection.chars().take(1).collect(),
        connection: connection.to_owned(),
        numbers: vec![number],
    }
}

/// Everything that was given back.
fn released(replica: &Replica) -> Vec<routing::HeldPermits> {
    let released = replica.released.lock();
    released
        .iter()
        .flat_map(|message| message.released.clone())
        .collect()
}

async fn is_released(replica: &Replica, connection: &str, number: u64) {
    let wanted = held(connection, number);
    until("the permit is given back", || {
        released(replica).contains(&wanted)
    })
    .await;
}

/// What the control plane says is to be waited for.
async fn wanted(setting: &Setting) -> PermitWait {
    match setting.decide("smart").await.decision {
        Step::AwaitPermit(wait) => *wait,
        other => panic!("no wait: {other:?}"),
    }
}

/// Asks, waits, and asks again.
async fn decide_after_a_wait(setting: &Setting) -> Answer {
    let wait = wanted(setting).await;
    let attempt = setting.client.next_attempt();
    let mut question = ask(attempt, "smart");
    match setting.client.await_permit(attempt, &wait).await {
        PermitWaited::Granted => question.waited.granted = Some(wait.connection),
        waited @ (PermitWaited::InVain | PermitWaited::QueueFull) => {
            if waited == PermitWaited::QueueFull {
                question.waited.queues_full.push(wait.connection.clone());
            }
            question.attempt = setting.client.next_attempt();
            question.waited.in_vain.push(wait.connection);
        }
        PermitWaited::Broken => panic!("the replica is there"),
    }
    setting.client.decide(question).await
}

/// Waits past the next renewal.
async fn renewal(replica: &Replica) -> Option<routing::KeepPermitsRequest> {
    replica.kept.lock().clear();
    sleep(Duration::from_secs(11)).await;
    replica.kept.lock().last().cloned()
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_renewed_until_it_is_given_back() {
    let (setting, replica) = setting(Deciding::To("a1")).await;
    let answer = setting.decide("smart").await;
    assert!(dispatched(&answer).permit);
    let waiting = setting.client.next_attempt();
    for _ in 0..2 {
        let message = renewal(&replica).await.unwrap();
        assert_eq!(message.plane, id(&answer).plane.0);
        assert_eq!(message.held, [held("a1", id(&answer).number)]);
        assert_eq!(
            (message.asked, message.newest),
            (vec![waiting.number], waiting.number)
        );
    }
    setting.client.release(id(&answer));
    is_released(&replica, "a1", id(&answer).number).await;
    setting.client.release(id(&answer));
    // It is told once that there is nothing left, and then nothing more.
    assert_eq!(renewal(&replica).await.unwrap().held, []);
    assert_eq!(renewal(&replica).await, None);
    assert_eq!(released(&replica).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_granted_permit_is_named_in_the_next_question_and_kept_there() {
    let (setting, replica) = setting(Deciding::GrantThenTo("a1")).await;
    let answer = decide_after_a_wait(&setting).await;
    assert_eq!(connection(&answer), "a1");
    let questions = replica.questions.lock().clone();
    let granted: Vec<&str> = questions.iter().map(|it| it.granted.as_str()).collect();
    assert_eq!(granted, ["", "a1"]);
    assert_ne!(questions[0].attempt, questions[1].attempt);
    assert_eq!(released(&replica), []);
    setting.client.release(id(&answer));
    is_released(&replica, "a1", id(&answer).number).await;
}

#[tokio::test(start_paused = true)]
async fn a_granted_permit_of_another_account_is_given_back() {
    let (setting, replica) = setting(Deciding::GrantThenTo("b1")).await;
    let answer = decide_after_a_wait(&setting).await;
    assert_eq!(connection(&answer), "b1");
    is_released(&replica, "a1", id(&answer).number).await;
    let message = renewal(&replica).await.unwrap();
    assert_eq!(message.held, [held("b1", id(&answer).number)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_is_told_in_the_next_question() {
    let (setting, replica) = setting(Deciding::GrantThenTo("b1")).await;
    replica.grants.store(false, Ordering::Relaxed);
    decide_after_a_wait(&setting).await;
    let questions = replica.questions.lock().clone();
    assert_eq!(questions[1].granted, "");
    assert_eq!(questions[1].waited_in_vain, ["a1"]);
    assert_eq!(released(&replica), []);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_full_is_told_in_the_next_question() {
    let (setting, replica) = setting(Deciding::GrantThenTo("b1")).await;
    replica.grants.store(false, Ordering::Relaxed);
    replica.queue_full.store(true, Ordering::Relaxed);
    decide_after_a_wait(&setting).await;
    let question = replica.questions.lock()[1].clone();
    assert_eq!(question.waited_in_vain, ["a1"]);
    assert_eq!(question.queues_full, ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_goes_on_says_how_long_it_waited_elsewhere() {
    let (setting, replica) = setting(Deciding::GrantThenTo("a1")).await;
    let begun = wanted(&setting).await;
    for (waited, told) in [
        (Duration::ZERO, 0),
        (Duration::from_micros(1), 1),
        (Duration::from_millis(2_500), 2_500),
    ] {
        let wait = PermitWait {
            waited,
            ..begun.clone()
        };
        let attempt = setting.client.next_attempt();
        assert_eq!(
            setting.client.await_permit(attempt, &wait).await,
            PermitWaited::Granted
        );
        assert_eq!(replica.awaits.lock().last(), Some(&told));
    }
}

/// A replica that stands still would otherwise be waited at until its connection is found to be dead.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_its_replica_falls_silent() {
    let (setting, replica) = setting(Deciding::GrantThenTo("a1")).await;
    let wait = PermitWait {
        limit: Duration::from_secs(60),
        ..wanted(&setting).await
    };
    replica.hangs.store(true, Ordering::Relaxed);
    replica.beats.store(false, Ordering::Relaxed);
    let attempt = setting.client.next_attempt();
    let began = Instant::now();
    let waited = setting.client.await_permit(attempt, &wait).await;
    assert_eq!(waited, PermitWaited::Broken);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    is_released(&replica, "a1", attempt.number).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_while_it_waits_gives_back_what_it_may_be_granted() {
    let (setting, replica) = setting(Deciding::GrantThenTo("a1")).await;
    let wait = wanted(&setting).await;
    let attempt = setting.client.next_attempt();
    let waiting = setting.client.await_permit(attempt, &wait);
    let left = tokio::time::timeout(Duration::from_secs(1), waiting).await;
    assert!(left.is_err());
    is_released(&replica, "a1", attempt.number).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_leaves_no_permit_behind() {
    let (setting, replica) = setting(Deciding::ProbeAfter(Duration::from_millis(20))).await;
    let attempt = setting.client.next_attempt();
    let question = ask(attempt, "smart");
    let left =
        tokio::time::timeout(Duration::from_millis(5), setting.client.decide(question)).await;
    assert!(left.is_err());
    is_released(&replica, "a1", attempt.number).await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_names_the_attempt_whose_permit_it_takes_over() {
    let (setting, replica) = setting(Deciding::To("a1")).await;
    let first = id(&setting.decide("smart").await);
    let second = setting.client.next_attempt();
    let retry = Ask {
        replaces: Some(first),
        ..ask(second, "smart")
    };
    setting.client.decide(retry).await;
    assert_eq!(replica.questions.lock()[1].replaces, first.number);
    setting.client.release(first);
    let message = renewal(&replica).await.unwrap();
    assert_eq!(message.held, [held("a1", second.number)]);
}

#[tokio::test(start_paused = true)]
async fn nobody_holds_a_permit_while_it_waits_for_another() {
    let (setting, replica) = setting(Deciding::To("b1")).await;
    let first = id(&setting.decide("smart").await);
    *replica.deciding.lock() = Deciding::GrantThenTo("a1");
    let next = Ask {
        replaces: Some(first),
        ..ask(setting.client.next_attempt(), "smart")
    };
    let answer = setting.client.decide(next).await;
    assert!(matches!(answer.decision, Step::AwaitPermit(_)));
    is_released(&replica, "b1", first.number).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_control_plane_a_share_is_given_out_here() {
    let (setting, replica) = setting(Deciding::To("c1")).await;
    // One of the share came from the control plane.
    let mut answers = vec![setting.decide("c/m").await];
    *replica.deciding.lock() = Deciding::Fails;
    while answers.len() < SHARE {
        let answer = setting.decide("c/m").await;
        assert!(answer.local && dispatched(&answer).permit);
        answers.push(answer);
    }
    let Step::Reject(rejection) = setting.decide("c/m").await.decision else {
        panic!("more than the share was given out");
    };
    assert_eq!(
        rejection.excluded[0].reason,
        ExclusionReason::ConcurrencyCap
    );
    // Another account has room, and needs no permit.
    let elsewhere = setting.decide("smart").await;
    assert_eq!(connection(&elsewhere), "a1");
    assert!(!dispatched(&elsewhere).permit);
    setting.client.release(id(&answers[0]));
    assert_eq!(connection(&setting.decide("c/m").await), "c1");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_hears_is_named_in_questions_and_given_back_again() {
    let (setting, replica) = setting(Deciding::To("a1")).await;
    let first = id(&setting.decide("smart").await);
    replica.release_fails.store(true, Ordering::Relaxed);
    setting.client.release(first);
    for _ in 0..3 {
        sleep(Duration::from_secs(2)).await;
        let next = id(&setting.decide("smart").await);
        let questions = replica.questions.lock().clone();
        let named = &questions.last().unwrap().released[0].numbers;
        assert!(named.contains(&first.number));
        setting.client.release(next);
    }
    replica.release_fails.store(false, Ordering::Relaxed);
    until("all four are given back", || {
        let numbers = released(&replica).into_iter().flat_map(|held| held.numbers);
        numbers.collect::<Vec<_>>().len() == 4
    })
    .await;
    setting.decide("smart").await;
    assert_eq!(replica.questions.lock().last().unwrap().released, []);
    let failed = &setting.client.metrics().permit_releases_failed;
    assert!(failed.get() >= 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_at_the_end_is_given_back() {
    let (setting, replica) = setting(Deciding::To("a1")).await;
    let answer = setting.decide("smart").await;
    setting.client.release(id(&answer));
    setting.end().await;
    assert_eq!(released(&replica), [held("a1", id(&answer).number)]);
}
