//! Permits over several replicas that share a store.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::decide_response::Step;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use tonic::Code;

use crate::fleet::{
    ALPHA, Fleet, Replica, apply_request, connection, decide_request, eventually, provider, within,
};

mod many;
mod sessions;

/// Data planes of these tests.
const PLANE: u64 = 7;
const OTHER: u64 = 8;

/// Members of a combo that is refused at once what is full.
const NOBODY_WAITS: &str = r#"{"queueDepth": 0}"#;

fn document(cap: u32, strategy: &str, members: &str) -> config::Document {
    let mut capped = connection("alpha-1", ALPHA, 1);
    capped.max_concurrent = Some(cap);
    config::Document {
        providers: vec![provider(ALPHA, 9)],
        connections: vec![capped],
        combos: vec![config::Combo {
            name: "combo".to_owned(),
            strategy: strategy.to_owned(),
            steps: vec![config::Step {
                model: "alpha/m".to_owned(),
                ..config::Step::default()
            }],
            config_json: members.to_owned(),
        }],
        ..config::Document::default()
    }
}

/// Replicas with one account that lets `cap` requests run at once.
async fn fleet<const N: usize>(cap: u32, strategy: &str, members: &str) -> (Fleet, [Replica; N]) {
    let (fleet, replicas) = Fleet::with_replicas::<N>().await;
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(1),
        ..apply_request(document(cap, strategy, members))
    };
    replicas[0].apply(request).await.unwrap();
    for replica in &replicas {
        replica.has_configuration(2).await;
    }
    (fleet, replicas)
}

fn question(plane: u64, number: u64) -> routing::DecideRequest {
    let mut request = decide_request(plane, number);
    request.facts.as_mut().unwrap().model = "combo".to_owned();
    request
}

async fn decide(replica: &Replica, request: routing::DecideRequest) -> Step {
    let answer = replica.routing().decide(request).await.unwrap();
    answer.into_inner().step.unwrap()
}

/// The attempt is sent with a permit.
async fn holds(replica: &Replica, plane: u64, number: u64) -> bool {
    match decide(replica, question(plane, number)).await {
        Step::Dispatch(dispatch) => {
            assert!(dispatch.permit, "sent without a permit");
            true
        }
        Step::Wait(_) | Step::Reject(_) | Step::Plan(_) => false,
    }
}

async fn wait_for(replica: &Replica, plane: u64, number: u64) -> routing::Wait {
    match decide(replica, question(plane, number)).await {
        Step::Wait(wait) => wait,
        other => panic!("expected a wait: {other:?}"),
    }
}

fn held(numbers: &[u64]) -> Vec<routing::HeldPermits> {
    vec![routing::HeldPermits {
        provider: ALPHA.to_owned(),
        connection: "alpha-1".to_owned(),
        numbers: numbers.to_vec(),
    }]
}

async fn release(replica: &Replica, plane: u64, numbers: &[u64]) {
    let released = held(numbers);
    let request = routing::ReleasePermitsRequest { plane, released };
    replica.routing().release_permits(request).await.unwrap();
}

async fn keep(replica: &Replica, newest: u64, asked: &[u64], numbers: &[u64]) -> Option<Code> {
    let request = routing::KeepPermitsRequest {
        plane: PLANE,
        newest,
        asked: asked.to_vec(),
        held: held(numbers),
        probes: Vec::new(),
    };
    let answer = replica.routing().keep_permits(request).await;
    answer.err().map(|status| status.code())
}

fn awaiting(plane: u64, number: u64, ticket: &[u8]) -> routing::AwaitRequest {
    routing::AwaitRequest {
        attempt: Some(common::AttemptId { plane, number }),
        ticket: ticket.to_vec(),
        waited_ms: 0,
    }
}

/// Until so many requests wait in the fleet, as the store says.
async fn come_to_wait(replica: &Replica, count: u32) {
    eventually("those that wait", async || {
        let request = admin::ListPermitsRequest::default();
        let answer = replica.admin().list_permits(request).await.unwrap();
        let pools = answer.into_inner().pools;
        !pools[0].stale && pools[0].waiting == count
    })
    .await;
}

/// Waits in the background.
fn waits(
    replica: &Replica,
    request: routing::AwaitRequest,
) -> tokio::task::JoinHandle<routing::AwaitResponse> {
    let mut client = replica.routing();
    let waits = async move { client.r#await(request).await.unwrap().into_inner() };
    TaskTracker::new().spawn(waits)
}

#[tokio::test]
async fn replicas_share_one_pool_and_an_attempt_has_one_permit() {
    let (_fleet, [one, two]) = fleet(2, "priority", NOBODY_WAITS).await;
    for replica in [&one, &two, &one] {
        assert!(
            holds(replica, PLANE, 1).await,
            "asked again it has the same"
        );
    }
    assert!(holds(&two, OTHER, 1).await);
    let Step::Reject(rejection) = decide(&one, question(PLANE, 2)).await else {
        panic!("a third one was let in");
    };
    assert_eq!(
        (rejection.status, rejection.code.as_str()),
        (429, "concurrency_cap")
    );
    assert_eq!(rejection.excluded[0].reason, "concurrency_cap");
    release(&two, PLANE, &[1]).await;
    eventually("the permit to come back", async || {
        holds(&one, PLANE, 2).await
    })
    .await;
    assert!(!holds(&two, PLANE, 3).await);
}

#[tokio::test]
async fn a_storm_over_two_replicas_gets_as_many_permits_as_there_are() {
    let (_fleet, [one, two]) = fleet(5, "priority", "").await;
    let mut requests = JoinSet::new();
    for number in 1..=60 {
        let mut client = if number % 2 == 0 { &one } else { &two }.routing();
        requests.spawn(async move {
            let answer = client.decide(question(PLANE, number)).await.unwrap();
            matches!(answer.into_inner().step, Some(Step::Dispatch(_)))
        });
    }
    let granted = requests.join_all().await.into_iter().filter(|it| *it);
    assert!(granted.count() <= 5);
    // Whoever was too slow to hear of its permit gave it back; then all are to be had.
    let mut number = 100;
    eventually("every permit to be out", async || {
        number += 1;
        !holds(&one, OTHER, number).await
    })
    .await;
    assert!(!holds(&two, OTHER, 999).await);
}

#[tokio::test]
async fn a_retry_takes_the_permit_over_while_others_want_it() {
    let (_fleet, [one, two]) = fleet(1, "priority", "").await;
    assert!(holds(&one, PLANE, 1).await);
    assert!(!holds(&two, OTHER, 1).await);
    let retry = routing::DecideRequest {
        replaces: 1,
        ..question(PLANE, 2)
    };
    assert!(matches!(decide(&two, retry).await, Step::Dispatch(_)));
    // The first one's end is nobody's any more.
    release(&one, PLANE, &[1]).await;
    assert!(!holds(&one, OTHER, 2).await);
}

#[tokio::test]
async fn a_question_gives_back_what_it_says_was_released() {
    let (_fleet, [one, two]) = fleet(1, "priority", "").await;
    assert!(holds(&one, PLANE, 1).await);
    let next = routing::DecideRequest {
        released: held(&[1]),
        ..question(PLANE, 2)
    };
    assert!(matches!(decide(&two, next).await, Step::Dispatch(_)));
    // Heard twice, it frees nobody else's.
    release(&one, PLANE, &[1]).await;
    assert!(!holds(&one, OTHER, 1).await);
    let too_many = routing::DecideRequest {
        released: held(&(1..=70_000).collect::<Vec<_>>()),
        ..question(PLANE, 3)
    };
    let refused = one.routing().decide(too_many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_a_data_plane_does_not_name_is_freed() {
    let (_fleet, [one, two]) = fleet(3, "priority", "").await;
    for number in 1..=3 {
        assert!(holds(&one, PLANE, number).await);
    }
    // 1 was lost, 2 is held, 3 asked when the message was made.
    assert_eq!(keep(&two, 3, &[3], &[2]).await, None);
    assert!(holds(&one, OTHER, 1).await);
    assert!(!holds(&two, OTHER, 2).await);
    // Also where the message names no pool of the connection, in the replica that gave it out.
    let nothing = routing::KeepPermitsRequest {
        plane: PLANE,
        newest: 3,
        ..routing::KeepPermitsRequest::default()
    };
    one.routing().keep_permits(nothing).await.unwrap();
    assert!(holds(&two, OTHER, 2).await && holds(&two, OTHER, 3).await);
}

#[tokio::test]
async fn who_waits_is_granted_what_comes_free_in_either_replica() {
    let (_fleet, [one, two]) = fleet(1, "round-robin", "").await;
    assert!(holds(&one, PLANE, 1).await);
    for releasing in [&one, &two] {
        let wait = wait_for(&two, PLANE, 2).await;
        assert_eq!(wait.kind(), routing::WaitKind::Permit);
        assert_eq!(
            (wait.provider.as_str(), wait.connection.as_str()),
            (ALPHA, "alpha-1")
        );
        assert_eq!(wait.wait_ms, 30_000);
        let waiting = waits(&two, awaiting(PLANE, 2, &wait.ticket));
        come_to_wait(&one, 1).await;
        assert!(!waiting.is_finished());
        // Nobody gets in before it.
        release(releasing, PLANE, &[1]).await;
        assert!(within("the grant", waiting).await.unwrap().granted);
        let granted = routing::DecideRequest {
            granted: "alpha-1".to_owned(),
            ..question(PLANE, 2)
        };
        let Step::Dispatch(dispatch) = decide(&one, granted).await else {
            panic!("a granted permit was of no use");
        };
        assert!(dispatch.permit);
        release(&one, PLANE, &[2]).await;
        eventually("the permit to come back", async || {
            holds(&one, PLANE, 1).await
        })
        .await;
    }
}

#[tokio::test]
async fn the_queue_is_bounded_over_replicas() {
    let (_fleet, [one, two]) = fleet(1, "round-robin", r#"{"queueDepth": 2}"#).await;
    assert!(holds(&one, PLANE, 1).await);
    let wait = wait_for(&one, PLANE, 2).await;
    assert_eq!(wait.wait_ms, 30_000);
    let first = waits(&one, awaiting(PLANE, 2, &wait.ticket));
    come_to_wait(&two, 1).await;
    let second = waits(&two, awaiting(PLANE, 3, &wait.ticket));
    come_to_wait(&one, 2).await;
    // Two wait in the fleet, so a third one is told before any wait ends, wherever it asks.
    for replica in [&one, &two] {
        let third = waits(replica, awaiting(PLANE, 4, &wait.ticket));
        let answer = within("the answer", third).await.unwrap();
        assert!(!answer.granted && answer.queue_full);
    }
    assert!(!first.is_finished() && !second.is_finished());
}

#[tokio::test]
async fn waits_end_in_either_replica() {
    let (_fleet, [one, two]) = fleet(1, "round-robin", r#"{"queueTimeoutMs": 300}"#).await;
    assert!(holds(&one, PLANE, 1).await);
    let ticket = wait_for(&one, PLANE, 2).await.ticket;
    let began = Instant::now();
    let wait = |replica: &Replica, number| {
        let waiting = waits(replica, awaiting(PLANE, number, &ticket));
        async move {
            let answer = within("the wait to end", waiting).await.unwrap();
            assert!(!answer.granted && !answer.queue_full);
            began.elapsed()
        }
    };
    let (first, second) = tokio::join!(wait(&one, 2), wait(&two, 3));
    // Counted in the store's time, whole ms of it, and known a little better now and then.
    let least = Duration::from_millis(250);
    assert!(first >= least && second >= least, "{first:?} {second:?}");
    // In vain it is the next target's turn, and there is none.
    let in_vain = routing::DecideRequest {
        waited_in_vain: vec!["alpha-1".to_owned()],
        ..question(PLANE, 2)
    };
    assert!(matches!(decide(&one, in_vain).await, Step::Reject(_)));
}

#[tokio::test]
async fn who_leaves_the_queue_is_not_granted_anything() {
    let (_fleet, [one]) = fleet(1, "round-robin", "").await;
    assert!(holds(&one, PLANE, 1).await);
    let ticket = wait_for(&one, PLANE, 2).await.ticket;
    let leaves = waits(&one, awaiting(PLANE, 2, &ticket));
    come_to_wait(&one, 1).await;
    leaves.abort();
    come_to_wait(&one, 0).await;
    release(&one, PLANE, &[1]).await;
    eventually("the permit to come back", async || {
        holds(&one, PLANE, 3).await
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_ends_sends_its_queue_elsewhere() {
    let (_fleet, [one, two]) = fleet(1, "round-robin", "").await;
    assert!(holds(&two, PLANE, 1).await);
    let ticket = wait_for(&one, PLANE, 2).await.ticket;
    let mut client = one.routing();
    let request = awaiting(PLANE, 2, &ticket);
    let waiting = TaskTracker::new().spawn(async move { client.r#await(request).await });
    come_to_wait(&two, 1).await;
    within("the end", one.plane.shutdown()).await;
    let refused = within("the answer", waiting).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test]
async fn an_account_is_waited_for_when_nothing_else_is_left() {
    let (_fleet, [one, two]) = fleet(1, "priority", r#"{"queueDepth": 1}"#).await;
    assert!(holds(&one, PLANE, 1).await);
    let wait = wait_for(&two, OTHER, 1).await;
    assert_eq!(wait.wait_ms, 30_000);
    let waiting = waits(&two, awaiting(OTHER, 1, &wait.ticket));
    come_to_wait(&one, 1).await;
    let another = waits(&one, awaiting(PLANE, 2, &wait.ticket));
    assert!(within("the answer", another).await.unwrap().queue_full);
    let full = vec!["alpha-1".to_owned()];
    for (queues_full, code) in [
        (full.clone(), "SEMAPHORE_QUEUE_FULL"),
        (Vec::new(), "SEMAPHORE_TIMEOUT"),
    ] {
        let refused = routing::DecideRequest {
            waited_in_vain: full.clone(),
            queues_full,
            ..question(PLANE, 3)
        };
        let Step::Reject(rejection) = decide(&one, refused).await else {
            panic!("it was not refused");
        };
        assert_eq!((rejection.status, rejection.code.as_str()), (429, code));
        assert_eq!(rejection.terminal_reason, "concurrency_cap");
    }
    release(&one, PLANE, &[1]).await;
    assert!(within("the grant", waiting).await.unwrap().granted);
}

#[tokio::test]
async fn a_wait_that_began_elsewhere_ends_when_it_would_have() {
    let (_fleet, [one]) = fleet(1, "priority", "").await;
    assert!(holds(&one, PLANE, 1).await);
    let ticket = wait_for(&one, PLANE, 2).await.ticket;
    let request = routing::AwaitRequest {
        waited_ms: 29_900,
        ..awaiting(PLANE, 2, &ticket)
    };
    let answer = within("the end", waits(&one, request)).await.unwrap();
    assert!(!answer.granted && !answer.queue_full);
}

#[tokio::test]
async fn who_waits_goes_when_the_cap_is_raised() {
    let (_fleet, [one]) = fleet(1, "priority", "").await;
    assert!(holds(&one, PLANE, 1).await);
    let ticket = wait_for(&one, PLANE, 2).await.ticket;
    let waiting: Vec<_> = (2..=5)
        .map(|number| waits(&one, awaiting(PLANE, number, &ticket)))
        .collect();
    come_to_wait(&one, 4).await;
    assert!(waiting.iter().all(|waits| !waits.is_finished()));
    let request = admin::ApplyConfigurationRequest {
        expected_version: Some(2),
        ..apply_request(document(5, "priority", ""))
    };
    one.apply(request).await.unwrap();
    for waits in waiting {
        assert!(within("the grant", waits).await.unwrap().granted);
    }
}

#[tokio::test]
async fn without_the_store_shares_are_given_out_and_counted_per_data_plane() {
    let (_fleet, [one]) = fleet(1, "priority", "").await;
    one.hot.fail_each(NonZeroU64::new(1));
    eventually("the store to be away", async || holds(&one, PLANE, 1).await).await;
    assert!(!holds(&one, PLANE, 2).await);
    assert!(holds(&one, OTHER, 1).await, "another one has a share, too");
    release(&one, PLANE, &[1]).await;
    eventually("the share to come back", async || {
        holds(&one, PLANE, 3).await
    })
    .await;
    // A renewal that the store did not hear of is not one.
    assert_eq!(keep(&one, 3, &[], &[3]).await, Some(Code::Unavailable));
    one.hot.fail_each(None);
    eventually("the store to be back", async || {
        keep(&one, 3, &[], &[3]).await.is_none()
    })
    .await;
}

#[tokio::test]
async fn a_flushed_store_has_forgotten_every_permit() {
    let (fleet, [one, two]) = fleet(1, "priority", "").await;
    assert!(holds(&one, PLANE, 1).await);
    assert!(!holds(&two, OTHER, 1).await);
    fleet.memory.flush();
    assert!(holds(&two, OTHER, 1).await);
    assert!(!holds(&one, PLANE, 2).await);
    // Saying that it is held does not bring it back.
    assert_eq!(keep(&one, 2, &[], &[1]).await, None);
    release(&two, OTHER, &[1]).await;
    eventually("the permit to come back", async || {
        holds(&one, PLANE, 3).await
    })
    .await;
}

#[tokio::test]
async fn an_explanation_names_a_full_account() {
    let (_fleet, [one, two]) = fleet(1, "priority", "").await;
    let excluded = async |replica: &Replica| {
        let request = admin::ExplainRequest {
            model: "combo".to_owned(),
            ..admin::ExplainRequest::default()
        };
        let answer = replica.admin().explain(request).await.unwrap().into_inner();
        format!("{answer:?}").contains("concurrency_cap")
    };
    assert!(!excluded(&two).await);
    assert!(holds(&one, PLANE, 1).await);
    assert!(excluded(&two).await && excluded(&one).await);
}

#[tokio::test]
async fn what_is_not_understood_about_permits_is_refused() {
    let (_fleet, [one]) = fleet(1, "priority", "").await;
    let mut client = one.routing();
    let keep = routing::KeepPermitsRequest::default();
    let refused = client.keep_permits(keep).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let many = routing::ReleasePermitsRequest {
        plane: PLANE,
        released: held(&vec![1; 65_537]),
    };
    let refused = client.release_permits(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let many = routing::DecideRequest {
        waited_in_vain: vec!["alpha-1".to_owned(); 65],
        ..question(PLANE, 1)
    };
    let refused = client.decide(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let many = routing::DecideRequest {
        queues_full: vec!["alpha-1".to_owned(); 65],
        ..question(PLANE, 1)
    };
    let refused = client.decide(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // What is not configured here is passed over.
    let unknown = routing::ReleasePermitsRequest {
        plane: PLANE,
        released: vec![routing::HeldPermits {
            provider: "gone".to_owned(),
            connection: "alpha-1".to_owned(),
            numbers: vec![1],
        }],
    };
    client.release_permits(unknown).await.unwrap();
}
