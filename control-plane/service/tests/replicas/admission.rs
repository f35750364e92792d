//! The pace of connections over several replicas that share a store.

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1::{
    Admission, AdmitRequest, AdmitResponse, AdmittedPlace, HeldPermits, KeepAdmittedRequest,
    ReleaseAdmittedRequest, ToldLimits, ToldRequests, ToldTokens,
};
use tokio::task::JoinSet;
use tonic::Code;

use crate::fleet::{ALPHA, Fleet, Replica, apply_request, connection, eventually, provider};

const PLANE: u64 = 7;
const OTHER: u64 = 8;

/// Replicas with one account and these members of `requestQueue`.
async fn fleet<const N: usize>(queue: &str) -> (Fleet, [Replica; N]) {
    let (fleet, replicas) = Fleet::with_replicas::<N>().await;
    let mut alpha = provider(ALPHA, 9);
    alpha.class = "apikey".to_owned();
    let mut request = apply_request(config::Document {
        providers: vec![alpha],
        connections: vec![connection("alpha-1", ALPHA, 1)],
        settings_json: format!("{{\"requestQueue\": {{{queue}}}}}"),
        ..config::Document::default()
    });
    request.expected_version = Some(1);
    replicas[0].apply(request).await.unwrap();
    for replica in &replicas {
        replica.has_configuration(2).await;
    }
    (fleet, replicas)
}

fn request(plane: u64, number: u64) -> AdmitRequest {
    AdmitRequest {
        admission: Some(common::AttemptId { plane, number }),
        provider: ALPHA.to_owned(),
        connection: "alpha-1".to_owned(),
        look: false,
        released: Vec::new(),
        model: String::new(),
        told: None,
    }
}

/// A request to the model of which something may be learned.
fn modelled(plane: u64, number: u64) -> AdmitRequest {
    AdmitRequest {
        model: "m".to_owned(),
        ..request(plane, number)
    }
}

/// So many of ten are left for half a minute.
fn left(remaining: u32, place: Option<AdmittedPlace>) -> ToldLimits {
    ToldLimits {
        requests: Some(ToldRequests {
            limit: 10,
            remaining,
            resets_in_ms: 30_000,
        }),
        tokens: None,
        place,
    }
}

async fn ask(replica: &Replica, request: AdmitRequest) -> AdmitResponse {
    let answer = replica.admission().admit(request).await;
    answer.unwrap().into_inner()
}

async fn admit(replica: &Replica, plane: u64, number: u64) -> Admission {
    ask(replica, request(plane, number)).await.admission()
}

fn held(numbers: &[u64]) -> Vec<HeldPermits> {
    vec![HeldPermits {
        provider: ALPHA.to_owned(),
        connection: "alpha-1".to_owned(),
        numbers: numbers.to_vec(),
    }]
}

async fn release(replica: &Replica, plane: u64, numbers: &[u64]) {
    let released = held(numbers);
    let request = ReleaseAdmittedRequest { plane, released };
    replica.admission().release_admitted(request).await.unwrap();
}

async fn keep(replica: &Replica, newest: u64, asked: &[u64], numbers: &[u64]) {
    let request = KeepAdmittedRequest {
        plane: PLANE,
        newest,
        asked: asked.to_vec(),
        held: held(numbers),
    };
    replica.admission().keep_admitted(request).await.unwrap();
}

#[tokio::test]
async fn replicas_count_together_and_a_request_counts_once() {
    let (_fleet, [one, two]) = fleet(r#""concurrentRequests": 2"#).await;
    for replica in [&one, &two, &one] {
        assert_eq!(admit(replica, PLANE, 1).await, Admission::Now);
    }
    assert_eq!(admit(&two, OTHER, 1).await, Admission::Now);
    for replica in [&one, &two] {
        assert_eq!(admit(replica, PLANE, 2).await, Admission::Full);
    }
    release(&two, PLANE, &[1]).await;
    // A second time it is nobody's.
    release(&one, PLANE, &[1]).await;
    assert_eq!(admit(&one, PLANE, 2).await, Admission::Now);
    assert_eq!(admit(&two, PLANE, 3).await, Admission::Full);
}

#[tokio::test]
async fn a_storm_over_two_replicas_lets_as_many_go_as_may() {
    let (_fleet, [one, two]) = fleet(r#""requestsPerMinute": 20, "concurrentRequests": 5"#).await;
    let mut requests = JoinSet::new();
    for number in 1..=60 {
        let mut client = [&one, &two][usize::try_from(number % 2).unwrap()].admission();
        requests.spawn(async move { client.admit(request(PLANE, number)).await });
    }
    let mut went = 0;
    while let Some(answer) = requests.join_next().await {
        let answer = answer.unwrap().unwrap().into_inner();
        went += u32::from(answer.admission() == Admission::Now);
    }
    assert_eq!(went, 5);
}

#[tokio::test]
async fn the_distance_holds_over_replicas_and_the_answer_says_when() {
    let (_fleet, [one, two]) = fleet(r#""minTimeBetweenRequestsMs": 60000"#).await;
    assert_eq!(admit(&one, PLANE, 1).await, Admission::Now);
    let answer = ask(&two, request(OTHER, 1)).await;
    assert_eq!(answer.admission(), Admission::NotBefore);
    assert!((50_000..=60_000).contains(&answer.wait_ms), "{answer:?}");
}

#[tokio::test]
async fn a_look_counts_nothing() {
    let (_fleet, [one, two]) = fleet(r#""requestsPerMinute": 1, "concurrentRequests": 1"#).await;
    let look = |number| AdmitRequest {
        look: true,
        ..request(PLANE, number)
    };
    for number in 1..=3 {
        assert_eq!(ask(&one, look(number)).await.admission(), Admission::Now);
    }
    assert_eq!(admit(&two, PLANE, 4).await, Admission::Now);
    let found = ask(&one, look(5)).await.admission();
    assert_eq!(found, Admission::NotBefore, "it is known at once");
}

#[tokio::test]
async fn what_ended_is_free_for_the_request_that_names_it() {
    let (_fleet, [one, two]) = fleet(r#""concurrentRequests": 1"#).await;
    assert_eq!(admit(&one, PLANE, 1).await, Admission::Now);
    let next = AdmitRequest {
        released: held(&[1]),
        ..request(PLANE, 2)
    };
    assert_eq!(ask(&two, next).await.admission(), Admission::Now);
}

#[tokio::test]
async fn what_a_data_plane_does_not_name_ends() {
    let (_fleet, [one, two]) = fleet(r#""concurrentRequests": 3"#).await;
    for number in 1..=3 {
        assert_eq!(admit(&one, PLANE, number).await, Admission::Now);
    }
    // Another replica is told, which knows of none: only what is named there is looked at.
    keep(&two, 3, &[2], &[1]).await;
    assert_eq!(admit(&one, OTHER, 1).await, Admission::Now);
    assert_eq!(admit(&one, OTHER, 2).await, Admission::Full);
    // A message that is older than an admission does not end it.
    keep(&one, 0, &[], &[]).await;
    assert_eq!(admit(&two, OTHER, 3).await, Admission::Full);
}

#[tokio::test]
async fn without_limits_or_protection_everything_goes() {
    let (_fleet, [one]) = fleet("").await;
    for number in 1..=5 {
        assert_eq!(admit(&one, PLANE, number).await, Admission::Now);
    }
    let queue = r#""concurrentRequests": 1, "autoEnableApiKeyProviders": false"#;
    let (_fleet, [one]) = fleet(queue).await;
    for number in 1..=5 {
        assert_eq!(admit(&one, PLANE, number).await, Admission::Now);
    }
}

#[tokio::test]
async fn what_one_data_plane_tells_holds_all_of_them_back() {
    let (_fleet, [one, two]) = fleet("").await;
    // Nothing is known, and nothing is counted.
    let answer = ask(&one, modelled(PLANE, 1)).await;
    assert_eq!(answer.admission(), Admission::Now);
    assert_eq!((answer.learned_ms, answer.place), (0, None));
    let told = AdmitRequest {
        told: Some(left(1, None)),
        ..modelled(PLANE, 2)
    };
    let answer = ask(&one, told).await;
    assert_eq!(answer.admission(), Admission::Now);
    assert!(
        answer.place.is_some() && answer.learned_ms > 30_000,
        "{answer:?}"
    );
    // The other one hears of it through another replica; of another model nothing is known.
    let answer = ask(&two, modelled(OTHER, 1)).await;
    assert_eq!(answer.admission(), Admission::NotBefore);
    assert!(answer.spent && answer.learned_ms > 30_000, "{answer:?}");
    assert!((20_000..=30_000).contains(&answer.wait_ms), "{answer:?}");
    let other = AdmitRequest {
        model: "other".to_owned(),
        ..request(OTHER, 2)
    };
    let answer = ask(&two, other).await;
    assert_eq!((answer.admission(), answer.learned_ms), (Admission::Now, 0));
}

#[tokio::test]
async fn a_newer_answer_tells_of_more() {
    let (_fleet, [one, two]) = fleet("").await;
    let told = AdmitRequest {
        told: Some(left(1, None)),
        ..modelled(PLANE, 1)
    };
    let place = ask(&one, told).await.place;
    assert!(place.is_some());
    let refilled = AdmitRequest {
        told: Some(left(9, place)),
        ..modelled(OTHER, 1)
    };
    assert_eq!(ask(&two, refilled).await.admission(), Admission::Now);
    // An answer of nobody knows which raises nothing.
    let (_fleet, [one]) = fleet("").await;
    for remaining in [0, 9] {
        let told = AdmitRequest {
            told: Some(left(remaining, None)),
            ..modelled(PLANE, 1)
        };
        assert_eq!(ask(&one, told).await.admission(), Admission::NotBefore);
    }
}

#[tokio::test]
async fn without_tokens_nobody_goes() {
    let (_fleet, [one, two]) = fleet("").await;
    let told = AdmitRequest {
        told: Some(ToldLimits {
            tokens: Some(ToldTokens {
                resets_in_ms: 20_000,
            }),
            ..ToldLimits::default()
        }),
        ..modelled(PLANE, 1)
    };
    for (replica, request) in [(&one, told), (&two, modelled(OTHER, 1))] {
        let answer = ask(replica, request).await;
        assert_eq!(answer.admission(), Admission::NotBefore);
        assert!(answer.spent && answer.wait_ms <= 20_000, "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_told_is_of_no_use_where_nothing_is_learned() {
    let queue = r#""autoEnableApiKeyProviders": false"#;
    let (_fleet, [one]) = fleet(queue).await;
    let told = AdmitRequest {
        told: Some(left(0, None)),
        ..modelled(PLANE, 1)
    };
    let answer = ask(&one, told).await;
    assert_eq!((answer.admission(), answer.learned_ms), (Admission::Now, 0));
}

#[tokio::test]
async fn of_a_storm_over_two_replicas_as_many_go_as_are_left() {
    let (_fleet, [one, two]) = fleet("").await;
    let told = |number, plane| AdmitRequest {
        told: Some(ToldLimits {
            requests: Some(ToldRequests {
                limit: 200,
                remaining: 20,
                resets_in_ms: 30_000,
            }),
            ..ToldLimits::default()
        }),
        ..modelled(plane, number)
    };
    let mut requests = JoinSet::new();
    for number in 1..=60 {
        let mut client = [&one, &two][usize::try_from(number % 2).unwrap()].admission();
        requests.spawn(async move { client.admit(told(number, PLANE + number % 2)).await });
    }
    let mut went = 0;
    while let Some(answer) = requests.join_next().await {
        let answer = answer.unwrap().unwrap().into_inner();
        went += u32::from(answer.admission() == Admission::Now);
    }
    assert!((1..=20).contains(&went), "{went}");
}

#[tokio::test]
async fn while_the_store_is_away_nobody_counts() {
    let (_fleet, [one]) = fleet(r#""concurrentRequests": 1"#).await;
    one.hot.freeze();
    eventually("the store to be away", async || {
        admit(&one, PLANE, 1).await == Admission::NobodyCounts
    })
    .await;
    one.hot.thaw().await;
    eventually("the store to be back", async || {
        admit(&one, PLANE, 2).await == Admission::Now
    })
    .await;
}

#[tokio::test]
async fn what_is_not_understood_is_refused() {
    let (_fleet, [one]) = fleet(r#""concurrentRequests": 1"#).await;
    let bad = [
        AdmitRequest {
            admission: None,
            ..request(PLANE, 1)
        },
        AdmitRequest {
            provider: String::new(),
            ..request(PLANE, 1)
        },
        AdmitRequest {
            connection: "a b".to_owned(),
            ..request(PLANE, 1)
        },
        AdmitRequest {
            model: "a b".to_owned(),
            ..request(PLANE, 1)
        },
        AdmitRequest {
            released: held(&(0..300).collect::<Vec<u64>>()),
            ..request(PLANE, 1)
        },
    ];
    for request in bad {
        let status = one.admission().admit(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
}

#[tokio::test]
async fn queues_are_listed_with_who_runs_and_where_requests_wait() {
    let (_fleet, [one, other]) = fleet("\"concurrentRequests\": 1, \"maxQueueDepth\": 9").await;
    assert_eq!(admit(&one, PLANE, 1).await, Admission::Now);
    let look = AdmitRequest {
        look: true,
        ..request(OTHER, 1)
    };
    assert_ne!(ask(&one, look).await.admission(), Admission::Now);
    let listed = async |replica: &Replica| {
        let request = admin::ListQueuesRequest::default();
        let answer = replica.admin().list_queues(request).await;
        answer.unwrap().into_inner().queues
    };
    // Any replica tells it, since it stands in the store.
    let queues = listed(&other).await;
    let [queue] = queues.as_slice() else {
        panic!("one queue: {queues:?}");
    };
    assert_eq!((queue.connection.as_str(), queue.stale), ("alpha-1", false));
    assert_eq!(
        (queue.concurrent_requests, queue.max_queue_depth),
        (Some(1), 9)
    );
    assert_eq!((queue.running, queue.waiting.len()), (1, 1));
    assert_eq!(queue.waiting[0].incarnation, format!("{OTHER:016x}"));
    // While the store is away, what was last seen there.
    one.hot.freeze();
    let queues = listed(&one).await;
    assert!(queues[0].stale);
    assert_eq!(queues[0].running, 1);
    one.hot.drop_parked();
    one.hot.thaw().await;
}
