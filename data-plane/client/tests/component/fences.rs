//! The fence, and the watch over what is in flight under leases.

use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use tidegate_core::ids::{ConnectionId, KeyId};
use tidegate_core::lease::{Generation, LeaseError, LeaseName, OwnerHash};
use tidegate_plane_client::Leased;
use tokio::time::{Instant, sleep, timeout};

use super::fake_leases::{Leasing, Script};
use super::setting::{Setting, until};

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

async fn setting() -> (Setting, Arc<Leasing>) {
    let setting = Setting::start(1).await;
    let leasing = Arc::clone(&setting.replicas[0].leasing);
    (setting, leasing)
}

fn name() -> LeaseName {
    LeaseName {
        owner: OwnerHash::from_bytes([7; 32]),
        generation: Generation::try_from(1).unwrap(),
    }
}

async fn fence_of(setting: &Setting, key: &str) -> Result<Leased, LeaseError> {
    let key = KeyId::new(key).unwrap();
    let connection = ConnectionId::new("a1").unwrap();
    setting.client.fence(name(), &key, &connection).await
}

async fn fence(setting: &Setting) -> Result<Leased, LeaseError> {
    fence_of(setting, "k").await
}

async fn ends_with(leasing: &Leasing, numbers: &[u64]) {
    until("the ends", || leasing.ends() == numbers).await;
}

fn fenced(leasing: &Leasing) -> Vec<u64> {
    let fenced = leasing.fenced.lock();
    let registration =
        |it: &tidegate_proto::lease::v1::FenceRequest| it.registration.clone().unwrap().number;
    fenced.iter().map(registration).collect()
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_registered_until_it_ends_and_the_next_one_anew() {
    let (setting, leasing) = setting().await;
    let leased = fence(&setting).await.unwrap();
    let asked = leasing.fenced.lock()[0].clone();
    let registration = asked.registration.unwrap();
    assert_eq!(
        (asked.key_id.as_str(), registration.connection.as_str()),
        ("k", "a1")
    );
    assert_eq!(registration.plane, setting.client.incarnation().0);
    assert_eq!(setting.client.metrics().lease_attempts.get(), 1);
    drop(leased);
    ends_with(&leasing, &[1]).await;
    drop(fence(&setting).await.unwrap());
    until("the second end", || leasing.ends().len() == 2).await;
    let numbers = fenced(&leasing);
    assert_eq!(leasing.ends(), numbers);
    assert!(numbers[0] < numbers[1], "{numbers:?}");
    assert_eq!(setting.client.metrics().lease_attempts.get(), 0);
    assert_eq!(setting.client.metrics().lease_presences.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn attempts_at_once_share_a_registration() {
    let (setting, leasing) = setting().await;
    let (one, two) = tokio::join!(fence(&setting), fence(&setting));
    let (one, two) = (one.unwrap(), two.unwrap());
    drop(one);
    sleep(ms(2_000)).await;
    assert!(leasing.ends().is_empty());
    drop(two);
    ends_with(&leasing, &[1]).await;
    assert_eq!(fenced(&leasing), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn vector_sessions_62_what_is_in_flight_is_renewed_and_not_cut() {
    let (setting, leasing) = setting().await;
    let leased = fence(&setting).await.unwrap();
    assert!(
        timeout(Duration::from_secs(300), leased.cut())
            .await
            .is_err()
    );
    // A third of a horizon of 30 s apart.
    let renewals = leasing.kept.lock().len();
    assert!((29..=30).contains(&renewals), "{renewals}");
    drop(leased);
    ends_with(&leasing, &[1]).await;
}

#[rstest]
#[case::refused(Script::Fails)]
#[case::unanswered(Script::Hangs)]
#[tokio::test(start_paused = true)]
async fn vector_sessions_60_with_the_authority_away_it_is_cut_at_its_horizon(
    #[case] script: Script,
) {
    let (setting, leasing) = setting().await;
    let start = Instant::now();
    let leased = fence(&setting).await.unwrap();
    leasing.set(script);
    leased.cut().await;
    assert!(leased.is_cut());
    let took = start.elapsed();
    assert!(took >= ms(29_990) && took < ms(30_300), "{took:?}");
    assert_eq!(setting.client.metrics().lease_cuts.get(), 1);
    assert_eq!(setting.client.metrics().lease_late_cuts.get(), 0);
    let renewals = leasing.kept.lock().len();
    assert!(renewals <= 40, "not in a hurry: {renewals}");
    // Nothing is renewed after it, and what comes next starts anew.
    leasing.set(Script::Grants);
    let next = fence(&setting).await.unwrap();
    assert!(!next.is_cut());
    sleep(ms(5_000)).await;
    assert_eq!(leasing.kept.lock().len(), renewals);
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_lets_attempts_start_while_the_authority_is_away() {
    let (setting, leasing) = setting().await;
    let start = Instant::now();
    let running = fence(&setting).await.unwrap();
    leasing.set(Script::Hangs);
    let leased = fence(&setting).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 1_000, "it was waited for");
    assert_eq!(setting.client.metrics().lease_fences_unanswered.get(), 1);
    drop(leased);
    let foreign = fence_of(&setting, "other").await;
    assert_eq!(foreign.unwrap_err(), LeaseError::ServiceUnavailable);
    leasing.set(Script::Fails);
    // Until the guard before the horizon.
    sleep(ms(27_000)).await;
    let late = fence(&setting).await;
    assert_eq!(late.unwrap_err(), LeaseError::ServiceUnavailable);
    assert!(!running.is_cut());
}

#[tokio::test(start_paused = true)]
async fn without_any_grant_nothing_starts_while_the_authority_is_away() {
    let (setting, leasing) = setting().await;
    leasing.set(Script::Fails);
    let start = Instant::now();
    let refused = fence(&setting).await;
    assert_eq!(refused.unwrap_err(), LeaseError::ServiceUnavailable);
    assert!(start.elapsed() <= ms(1_010));
    assert_eq!(setting.client.metrics().lease_presences.get(), 0);
    leasing.set(Script::Grants);
    // The question may have been heard.
    ends_with(&leasing, &[1]).await;
}

#[rstest]
#[case(LeaseError::Required)]
#[case(LeaseError::FenceStale)]
#[case(LeaseError::ConnectionMismatch)]
#[tokio::test(start_paused = true)]
async fn after_a_refusal_nothing_starts_by_an_earlier_grant(#[case] error: LeaseError) {
    let (setting, leasing) = setting().await;
    let running = fence(&setting).await.unwrap();
    leasing.set(Script::Refuses(error));
    assert_eq!(fence(&setting).await.unwrap_err(), error);
    leasing.set(Script::Fails);
    let refused = fence(&setting).await;
    assert_eq!(refused.unwrap_err(), LeaseError::ServiceUnavailable);
    assert!(!running.is_cut(), "what runs may go on to its horizon");
    leasing.set(Script::Grants);
    assert!(fence(&setting).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_another_key_is_told_does_not_bar_the_owner() {
    let (setting, leasing) = setting().await;
    let _running = fence(&setting).await.unwrap();
    leasing.set(Script::Refuses(LeaseError::FenceStale));
    assert!(fence_of(&setting, "other").await.is_err());
    leasing.set(Script::Fails);
    assert!(fence(&setting).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_gone_is_cut_at_once() {
    let (setting, leasing) = setting().await;
    let start = Instant::now();
    let leased = fence(&setting).await.unwrap();
    leasing.set(Script::Forgets);
    leased.cut().await;
    assert!(start.elapsed() < ms(10_500));
    assert_eq!(setting.client.metrics().lease_registrations_lost.get(), 1);
    assert_eq!(setting.client.metrics().lease_late_cuts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_about_to_end_starts_nothing() {
    let (setting, leasing) = setting().await;
    leasing.grant.lock().lease_ms = 2_000;
    assert_eq!(fence(&setting).await.unwrap_err(), LeaseError::FenceStale);
    assert_eq!(fenced(&leasing), [1, 1]);
    ends_with(&leasing, &[1]).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_counts_from_before_its_question() {
    let (setting, leasing) = setting().await;
    leasing.set(Script::GrantsAfter(ms(800)));
    let start = Instant::now();
    let leased = fence(&setting).await.unwrap();
    leasing.set(Script::Fails);
    leased.cut().await;
    let took = start.elapsed();
    assert!(took < ms(30_300), "not from the answer: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_while_it_asks_leaves_nothing_registered() {
    let (setting, leasing) = setting().await;
    leasing.set(Script::GrantsAfter(ms(500)));
    let left = timeout(ms(100), fence(&setting)).await;
    assert!(left.is_err());
    assert!(leasing.ends().is_empty(), "it may still be registered");
    ends_with(&leasing, &[1]).await;
    assert_eq!(setting.client.metrics().lease_attempts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_is_told_again_until_it_is_heard() {
    let (setting, leasing) = setting().await;
    let leased = fence(&setting).await.unwrap();
    leasing.set(Script::Fails);
    drop(leased);
    sleep(ms(2_500)).await;
    leasing.set(Script::Grants);
    ends_with(&leasing, &[1]).await;
    assert_eq!(setting.client.metrics().lease_ends_dropped.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_nobody_hears_is_dropped_after_a_while() {
    let (setting, leasing) = setting().await;
    let leased = fence(&setting).await.unwrap();
    leasing.set(Script::Fails);
    drop(leased);
    until("it is given up", || {
        setting.client.metrics().lease_ends_dropped.get() == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn at_the_end_everything_is_cut_and_told() {
    let (setting, leasing) = setting().await;
    let leased = fence(&setting).await.unwrap();
    let client = setting.client.clone();
    let ending = async {
        leased.cut().await;
        drop(leased);
        let key = KeyId::new("k").unwrap();
        let late = client
            .fence(name(), &key, &ConnectionId::new("a1").unwrap())
            .await;
        assert_eq!(late.unwrap_err(), LeaseError::ServiceUnavailable);
    };
    tokio::join!(setting.end(), ending);
    assert_eq!(leasing.ends(), [1]);
}

#[tokio::test(start_paused = true)]
async fn what_is_granted_after_the_end_is_not_started() {
    let (setting, leasing) = setting().await;
    leasing.set(Script::GrantsAfter(ms(300)));
    let ending = async {
        until("the question", || !leasing.fenced.lock().is_empty()).await;
        setting.end().await;
    };
    let (late, ()) = tokio::join!(fence(&setting), ending);
    assert_eq!(late.unwrap_err(), LeaseError::ServiceUnavailable);
}
