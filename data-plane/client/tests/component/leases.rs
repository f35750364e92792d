//! What sessions ask for, put to whichever replica answers.

use std::time::Duration;

use rstest::rstest;
use tidegate_core::ids::KeyId;
use tidegate_core::lease::{
    Action, EndReason, Generation, LeaseError, LeaseState, Lifecycle, OwnerHash,
};
use tidegate_plane_client::LeaseAnswer;
use tokio::time::Instant;

use super::fake_leases::{Script, full};
use super::setting::Setting;

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn generation() -> Generation {
    Generation::try_from(3).unwrap()
}

fn acquire() -> Action {
    Action::Acquire {
        model: "a/m".to_owned(),
    }
}

async fn ask(setting: &Setting, action: Action) -> Result<LeaseAnswer, LeaseError> {
    let asked = Lifecycle {
        action,
        owner: OwnerHash::from_bytes([7; 32]),
    };
    let key = KeyId::new("k").unwrap();
    setting.client.lease(&asked, &key).await
}

#[tokio::test(start_paused = true)]
async fn every_action_names_the_owner_by_its_hash_and_is_answered() {
    let setting = Setting::start(1).await;
    let leasing = &setting.replicas[0].leasing;
    let answer = ask(&setting, acquire()).await.unwrap();
    assert_eq!(answer.lease.state, LeaseState::Active);
    assert_eq!(answer.lease.generation, generation());
    assert_eq!(answer.place, None);
    let acquired = leasing.acquired.lock()[0].clone();
    assert_eq!(acquired.owner_sha256, [7; 32]);
    assert_eq!(
        (acquired.key_id.as_str(), acquired.model.as_str()),
        ("k", "a/m")
    );
    assert_eq!(
        (acquired.ttl_ms, acquired.configuration_version),
        (120_000, 1)
    );
    let generation = generation();
    ask(&setting, Action::Renew { generation }).await.unwrap();
    assert_eq!(leasing.renewed.lock()[0].ttl_ms, 120_000);
    let reason = EndReason::ClientCancelled;
    let released = ask(&setting, Action::Release { generation, reason }).await;
    assert_eq!(released.unwrap().lease.state, LeaseState::Released);
    let released = leasing.released.lock()[0].clone();
    assert_eq!(released.reason, "CLIENT_CANCELLED");
    assert_eq!(released.lease.unwrap().generation, 3);
    let standing = ask(&setting, Action::Status { generation }).await.unwrap();
    let place = standing.place.unwrap();
    assert_eq!((place.display_name, place.provider.as_str()), (None, "a"));
}

#[rstest]
#[case::stale(LeaseError::FenceStale)]
#[case::full(full())]
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_as_it_is_and_asked_once(#[case] error: LeaseError) {
    let setting = Setting::start(2).await;
    for replica in &setting.replicas {
        replica.leasing.set(Script::Refuses(error));
    }
    assert_eq!(ask(&setting, acquire()).await, Err(error));
    let asked: usize = setting
        .replicas
        .iter()
        .map(|it| it.leasing.acquired.lock().len())
        .sum();
    assert_eq!(asked, 1);
}

#[rstest]
#[case::fails(Script::Fails, 0)]
#[case::hangs(Script::Hangs, 250)]
#[case::is_slow(Script::GrantsAfter(Duration::from_millis(700)), 250)]
#[tokio::test(start_paused = true)]
async fn another_replica_is_asked_when_one(#[case] script: Script, #[case] after_ms: u64) {
    let setting = Setting::start(2).await;
    let (home, others) = setting.home_and_others();
    home.leasing.set(script);
    let start = Instant::now();
    assert!(ask(&setting, acquire()).await.is_ok());
    assert_eq!(others[0].leasing.acquired.lock().len(), 1);
    let took = start.elapsed();
    assert!(took >= ms(after_ms) && took < ms(after_ms + 60), "{took:?}");
    let status = setting.client.status();
    assert!(
        status.replicas.iter().all(|replica| !replica.suspect),
        "its decisions are another matter"
    );
}

#[rstest]
#[case::fails(Script::Fails)]
#[case::hangs(Script::Hangs)]
#[tokio::test(start_paused = true)]
async fn without_an_answer_for_a_second_the_service_is_not_available(#[case] script: Script) {
    let setting = Setting::start(3).await;
    for replica in &setting.replicas {
        replica.leasing.set(script);
    }
    let start = Instant::now();
    assert_eq!(
        ask(&setting, acquire()).await,
        Err(LeaseError::ServiceUnavailable)
    );
    let took = start.elapsed();
    assert!(took >= ms(790) && took <= ms(1_010), "{took:?}");
    assert_eq!(setting.client.metrics().lease_unanswered.get(), 1);
    for replica in &setting.replicas {
        assert!(replica.leasing.acquired.lock().len() <= 5, "not in a hurry");
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_comes_back_within_the_limit_is_asked_again() {
    let setting = Setting::start(1).await;
    let leasing = setting.replicas[0].leasing.clone();
    leasing.set(Script::Fails);
    let back = async {
        tokio::time::sleep(ms(300)).await;
        leasing.set(Script::Grants);
    };
    let (answer, ()) = tokio::join!(ask(&setting, acquire()), back);
    assert!(answer.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_nothing_is_none() {
    let setting = Setting::start(1).await;
    setting.replicas[0].leasing.set(Script::Forgets);
    assert_eq!(
        ask(&setting, acquire()).await,
        Err(LeaseError::ServiceUnavailable)
    );
}
