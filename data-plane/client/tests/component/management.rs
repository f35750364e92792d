//! Requests to the contract's management endpoints.

use std::time::Duration;

use bytes::Bytes;
use rstest::rstest;
use tidegate_core::management::Operation;
use tidegate_plane_client::ManagementCall;
use tokio::time::Instant;
use tonic::Status;

use super::setting::{STORE_TIME, Setting};

/// The status of the answer, if there is one within ten seconds.
async fn manage(setting: &Setting, operation: Operation) -> Option<u16> {
    let call = ManagementCall {
        operation,
        method: "X".to_owned(),
        path: "/api/resilience",
        authorization: None,
        body: Bytes::new(),
        deadline: Instant::now() + Duration::from_secs(10),
    };
    let answer = setting.client.manage(call).await;
    answer.map(|answer| answer.status)
}

/// The time left that replicas were told, in ms, most first.
fn told(setting: &Setting) -> Vec<u64> {
    let replicas = setting.replicas.iter();
    let mut told: Vec<u64> = replicas
        .flat_map(|replica| replica.managed.lock().clone())
        .map(|request| request.remaining_ms.unwrap())
        .collect();
    told.sort_unstable_by(|one, other| other.cmp(one));
    told
}

/// Until when somebody waits, in the store's time, as replicas were told; each moment once.
fn not_after(setting: &Setting) -> Vec<Option<u64>> {
    let replicas = setting.replicas.iter();
    let mut told: Vec<Option<u64>> = replicas
        .flat_map(|replica| replica.managed.lock().clone())
        .map(|request| request.not_after_unix_ms)
        .collect();
    told.dedup();
    told
}

#[rstest]
#[case::looks(Operation::ShowSettings, 2)]
#[case::changes_may_still_be_made(Operation::PatchSettings, 1)]
#[tokio::test(start_paused = true)]
async fn replicas_that_hang_are_joined_by_others_for_looks_only(
    #[case] operation: Operation,
    #[case] expected: usize,
) {
    let setting = Setting::start(2).await;
    assert_eq!(manage(&setting, operation).await, None);
    let told = told(&setting);
    assert_eq!(told.len(), expected);
    assert!(told[0] > 9_900, "{told:?}");
    assert!(told.iter().skip(1).all(|left| *left <= 7_500), "{told:?}");
    // However late a replica is asked, or reads it.
    let not_after = not_after(&setting);
    assert!(
        matches!(not_after[..], [Some(moment)] if moment >= STORE_TIME + 10_000),
        "{not_after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_fails_is_followed_by_the_next_also_for_changes() {
    let setting = Setting::start(2).await;
    for replica in &setting.replicas {
        *replica.managing.lock() = Some(Err(Status::unavailable("on demand")));
    }
    assert_eq!(manage(&setting, Operation::Reset).await, None);
    assert_eq!(told(&setting).len(), 2);
    for replica in &setting.replicas {
        *replica.managing.lock() = Some(Ok(200));
    }
    assert_eq!(manage(&setting, Operation::Reset).await, Some(200));
}
