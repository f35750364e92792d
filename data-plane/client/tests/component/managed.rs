//! Decisions for managed requests: a second, other replicas, and never here.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use tidegate_core::config::{ApiKey, KeyScope};
use tidegate_core::lease::{Generation, LeaseError, LeaseName, OwnerHash};
use tidegate_core::routing::RequestFacts;
use tidegate_plane_client::{Answer, Step};
use tokio::time::Instant;

use super::fake::Deciding;
use super::setting::{Setting, ask, attempt, connection, dispatched, failure};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn managed(facts: &RequestFacts) -> RequestFacts {
    let key: ApiKey = serde_json::from_value(serde_json::json!({
        "id": "k", "sha256": "00".repeat(32), "allowedConnections": ["a1"],
        "scopes": [KeyScope::ExclusiveLease.as_str()],
    }))
    .unwrap();
    RequestFacts {
        key: Some(Arc::new(key)),
        lease: Some(LeaseName {
            owner: OwnerHash::from_bytes([7; 32]),
            generation: Generation::try_from(1).unwrap(),
        }),
        ..facts.clone()
    }
}

async fn decide(setting: &Setting) -> Answer {
    let mut question = ask(setting.client.next_attempt(), "smart");
    question.facts = Arc::new(managed(&question.facts));
    setting.client.decide(question).await
}

fn refused(answer: &Answer) -> Option<LeaseError> {
    match &answer.decision {
        Step::Reject(rejection) => rejection.lease,
        step => panic!("not refused: {step:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_decision_is_waited_for_and_none_is_made_here() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = Deciding::ToAfter("a1", ms(900));
    for asked in 1..=4 {
        let answer = decide(&setting).await;
        assert!(!answer.local);
        assert_eq!(connection(&answer), "a1");
        assert_eq!(replica.decisions(), asked);
    }
    let question = replica.questions.lock()[0].clone();
    let lease = question.facts.unwrap().lease.unwrap();
    assert_eq!((lease.owner_sha256, lease.generation), (vec![7; 32], 1));
    // Others are not the worse for it.
    let status = setting.client.status();
    assert!(!status.deciding_locally && !status.replicas[0].suspect);
    *replica.deciding.lock() = Deciding::To("a1");
    assert!(!setting.decide("smart").await.local);
}

#[rstest]
#[case::hangs(Deciding::Hangs)]
#[case::fails(Deciding::Fails)]
#[tokio::test(start_paused = true)]
async fn without_an_answer_for_a_second_it_is_refused(#[case] deciding: Deciding) {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = deciding;
    for asked in 1..=4 {
        let start = Instant::now();
        let answer = decide(&setting).await;
        assert_eq!(refused(&answer), Some(LeaseError::ServiceUnavailable));
        let took = start.elapsed();
        assert!(took >= ms(790) && took <= ms(1_010), "{took:?}");
        assert!(replica.decisions() <= 5 * asked, "not in a hurry");
    }
    assert_eq!(setting.client.metrics().lease_undecided.get(), 4);
    // It may be the durable store; whoever needs none of it is not told that nobody is there.
    let status = setting.client.status();
    assert!(!status.deciding_locally && !status.replicas[0].suspect);
    *replica.deciding.lock() = Deciding::To("a1");
    assert!(!setting.decide("smart").await.local);
}

#[tokio::test(start_paused = true)]
async fn while_others_are_decided_on_here_it_is_still_asked() {
    let setting = Setting::start(1).await;
    let replica = &setting.replicas[0];
    *replica.deciding.lock() = Deciding::ToAfter("a1", ms(400));
    for _ in 0..4 {
        assert!(setting.decide("smart").await.local);
    }
    assert!(setting.client.status().deciding_locally);
    let answer = decide(&setting).await;
    assert!(!answer.local && connection(&answer) == "a1");
}

#[tokio::test(start_paused = true)]
async fn another_replica_is_asked_beside_one_that_hangs() {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    *home.deciding.lock() = Deciding::Hangs;
    let start = Instant::now();
    assert_eq!(connection(&decide(&setting).await), "a1");
    assert_eq!(others[0].decisions(), 1);
    assert!(start.elapsed() < ms(310));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_granted_too_late_is_given_back() {
    let setting = Setting::start(1).await;
    let replica = Arc::clone(&setting.replicas[0]);
    *replica.deciding.lock() = Deciding::ProbeAfter(ms(1_500));
    let answer = decide(&setting).await;
    assert_eq!(refused(&answer), Some(LeaseError::ServiceUnavailable));
    super::setting::until("the probe is given back", || {
        !replica.abandoned.lock().is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_led_there_is_still_classified() {
    let setting = Setting::start(1).await;
    let first = decide(&setting).await;
    *setting.replicas[0].deciding.lock() = Deciding::Hangs;
    let mut question = ask(setting.client.next_attempt(), "smart");
    question.facts = Arc::new(managed(&question.facts));
    question.last_failure = Some(tidegate_plane_client::LastFailure {
        attempt: tidegate_core::outcome::Attempt {
            id: dispatched(&first).attempt.id,
            ..attempt(1, "a1")
        },
        outcome: failure(500),
        occurred_at: setting.client.now(),
        pass: 0,
        target: 0,
    });
    let answer = setting.client.decide(question).await;
    assert_eq!(refused(&answer), Some(LeaseError::ServiceUnavailable));
    assert!(answer.classification.is_some());
}
