//! Lists of state in pages, and what ends it by hand.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use tidegate_core::affinity::{Pin, PinKey};
use tidegate_core::ids::{ConnectionId, ProviderId};
use tidegate_core::session_key::SessionKey;
use tidegate_proto::admin::v1 as admin;
use tidegate_proto::config::v1 as config;
use tidegate_proto::lease::v1 as lease;
use tidegate_proto::lease::v1::lease_service_client::LeaseServiceClient;
use tidegate_proto::routing::v1::decide_response::Step;
use tidegate_store::durable::{SAVE_DOCUMENT, StoredPin};
use tidegate_store::hot::HotStore as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{
    ALPHA, Fleet, Replica, connection, decide_request, document, eventually, failure, provider,
};

/// Connections of one provider.
fn crowd(count: u32) -> config::Document {
    let names = (0..count).map(|number| connection(&format!("c{number:05}"), ALPHA, number / 10));
    config::Document {
        connections: names.collect(),
        ..document()
    }
}

fn page_of(size: u32, token: &str) -> admin::ListConnectionsRequest {
    admin::ListConnectionsRequest {
        page_size: size,
        page_token: token.to_owned(),
        ..admin::ListConnectionsRequest::default()
    }
}

impl Replica {
    async fn page(
        &self,
        request: admin::ListConnectionsRequest,
    ) -> Result<admin::ListConnectionsResponse, Status> {
        Ok(self.admin().list_connections(request).await?.into_inner())
    }
}

/// The member that a refusal is about, and its code.
fn blamed(status: &Status) -> (String, String) {
    let details = status.get_error_details();
    let bad = details.bad_request().unwrap();
    let field = bad.field_violations[0].field.clone();
    (details.error_info().unwrap().reason.clone(), field)
}

#[tokio::test]
async fn ten_thousand_connections_come_in_pages_that_any_replica_continues() {
    const COUNT: u32 = 10_000;
    let fleet = Fleet::new().await;
    let replicas: [Replica; 2] = fleet.replicas_with(crowd(COUNT)).await;
    let mut seen = Vec::new();
    let mut token = String::new();
    let mut pages = 0;
    loop {
        let answer = replicas[pages % 2].page(page_of(0, &token)).await.unwrap();
        assert!(answer.connections.len() <= 1_000);
        seen.extend(answer.connections.into_iter().map(|it| it.id));
        pages += 1;
        token = answer.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let expected: Vec<String> = (0..COUNT).map(|number| format!("c{number:05}")).collect();
    assert_eq!((pages, seen), (10, expected));
}

#[tokio::test]
async fn an_oversize_page_and_a_bad_token_are_refused_by_name() {
    let fleet = Fleet::new().await;
    let [one] = fleet.replicas_with(crowd(3)).await;
    let first = one.page(page_of(2, "")).await.unwrap();
    assert_eq!(first.connections.len(), 2);
    let good = first.next_page_token;
    let rest = one.page(page_of(2, &good)).await.unwrap();
    assert_eq!(
        (rest.connections.len(), rest.next_page_token.as_str()),
        (1, "")
    );
    let of_alpha = admin::ListConnectionsRequest {
        provider: ALPHA.to_owned(),
        ..page_of(2, &good)
    };
    for (request, field) in [
        (page_of(1_001, ""), "page_size"),
        (page_of(2, "nonsense"), "page_token"),
        (page_of(2, good.get(1..).unwrap()), "page_token"),
        (of_alpha, "page_token"),
    ] {
        let refused = one.page(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(blamed(&refused), ("CP0006".to_owned(), field.to_owned()));
    }
    // A token of one list is none of another.
    let other = admin::ListBreakersRequest {
        page_token: good,
        ..admin::ListBreakersRequest::default()
    };
    let refused = one.admin().list_breakers(other).await.unwrap_err();
    assert_eq!(blamed(&refused).1, "page_token");
    let nowhere = admin::ListConnectionsRequest {
        provider: "nowhere".to_owned(),
        ..page_of(0, "")
    };
    let refused = one.page(nowhere).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn what_cools_is_listed_with_why_and_until_a_reset() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.connections[0].disable_cooling = false;
    let [one, other] = fleet.replicas_with(wanted).await;
    let attempt = one.dispatched(7).await;
    let mut report = failure(7, 1, &attempt);
    let outcome = report.report.as_mut().unwrap().outcome.as_mut().unwrap();
    if let Some(tidegate_proto::common::v1::outcome::Kind::Response(error)) = &mut outcome.kind {
        error.status = 429;
    }
    let mut reporting = one.report().await;
    reporting.send(7, vec![report]).await;
    reporting.acknowledged_to(1).await;
    let cooldowns = async |replica: &Replica| {
        let request = admin::ListCooldownsRequest::default();
        let answer = replica.admin().list_cooldowns(request).await.unwrap();
        answer.into_inner().cooldowns
    };
    eventually("the cooldown to be listed everywhere", async || {
        !cooldowns(&other).await.is_empty()
    })
    .await;
    let listed = cooldowns(&other).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].kind(), admin::CooldownKind::Connection);
    assert_eq!(listed[0].connection, "a1");
    assert!(listed[0].remaining_ms > 0 && !listed[0].reason.is_empty());
    let reset = admin::ResetRequest {
        scope: admin::ResetScope::Cooldowns.into(),
        connection: "a1".to_owned(),
        ..admin::ResetRequest::default()
    };
    one.admin().reset(reset).await.unwrap();
    eventually("nothing to cool", async || {
        cooldowns(&other).await.is_empty()
    })
    .await;
    let reset = "cooldowns of connection a1 reset, 1 changed";
    let expected = [("reset".to_owned(), reset.to_owned())];
    assert_eq!(operations(&fleet).await, expected);
    let request = admin::ListEventsRequest {
        filter: Some(admin::EventFilter {
            kinds: vec!["operation".to_owned()],
            ..admin::EventFilter::default()
        }),
        ..admin::ListEventsRequest::default()
    };
    let events = other.admin().list_events(request).await.unwrap();
    let events = events.into_inner().events;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (events[0].author.as_str(), events[0].description.as_str()),
        ("local", reset)
    );
}

fn leasing() -> config::Document {
    config::Document {
        providers: vec![provider(ALPHA, 9)],
        connections: vec![connection("c1", ALPHA, 1), connection("c2", ALPHA, 2)],
        keys: vec![config::ApiKey {
            id: "k1".to_owned(),
            sha256: "1".repeat(64),
            allowed_connections: vec!["c1".to_owned(), "c2".to_owned()],
            scopes: vec!["lease:exclusive".to_owned()],
            ..config::ApiKey::default()
        }],
        ..document()
    }
}

async fn acquire(replica: &Replica, owner: u8) -> lease::acquire_response::Answer {
    let mut client = LeaseServiceClient::new(replica.channel.clone());
    let request = lease::AcquireRequest {
        owner_sha256: vec![owner; 32],
        key_id: "k1".to_owned(),
        model: "alpha/m".to_owned(),
        ttl_ms: 0,
        configuration_version: 1,
    };
    let answer = client.acquire(request).await.unwrap();
    answer.into_inner().answer.unwrap()
}

/// What operators did by hand, newest first.
async fn operations(fleet: &Fleet) -> Vec<(String, String)> {
    let audit = fleet.durable.list_audit(100).await.unwrap();
    let by_hand = audit.into_iter().filter(|it| it.action != SAVE_DOCUMENT);
    by_hand
        .inspect(|it| assert_eq!(it.author, "local"))
        .map(|it| (it.action, it.summary))
        .collect()
}

async fn leases(replica: &Replica) -> Vec<admin::LeaseStatus> {
    let request = admin::ListLeasesRequest::default();
    let answer = replica.admin().list_leases(request).await.unwrap();
    answer.into_inner().leases
}

#[tokio::test]
async fn leases_are_listed_without_their_owners_and_ended_by_hand() {
    use lease::acquire_response::Answer;
    let fleet = Fleet::new().await;
    let [one, other] = fleet.replicas_with(leasing()).await;
    for owner in [0xaa, 0xbb] {
        assert!(matches!(acquire(&one, owner).await, Answer::Lease(_)));
    }
    assert!(matches!(acquire(&one, 0xcc).await, Answer::Refused(_)));
    let listed = leases(&other).await;
    let told: Vec<_> = listed
        .iter()
        .map(|it| {
            (
                it.connection.as_str(),
                it.owner_prefix.as_str(),
                it.generation,
            )
        })
        .collect();
    let (a, b) = ("aaaaaaaa", "bbbbbbbb");
    assert_eq!(told, [("c1", a, 1), ("c2", b, 1)]);
    assert!(
        listed
            .iter()
            .all(|it| it.key_id == "k1" && it.remaining_ms > 0)
    );
    let shown = format!("{listed:?}");
    assert!(
        !shown.contains(&"aa".repeat(5)),
        "no more of an owner: {shown}"
    );
    let end = async |generation| {
        let request = admin::EndLeaseRequest {
            connection: "c1".to_owned(),
            generation,
        };
        let answer = other.admin().end_lease(request).await.unwrap();
        answer.into_inner().ended.map(|it| it.connection)
    };
    assert_eq!(end(2).await, None, "of another generation");
    assert_eq!(end(1).await, Some("c1".to_owned()));
    assert_eq!(end(0).await, None, "there is none any more");
    assert_eq!(leases(&one).await.len(), 1);
    let told = operations(&fleet).await;
    let ended = "lease of connection c1 ended, generation 1";
    assert_eq!(told, [("end_lease".to_owned(), ended.to_owned())]);
    // Somebody else gets it, and its former owner has lost it.
    assert!(matches!(acquire(&one, 0xcc).await, Answer::Lease(_)));
    let mut client = LeaseServiceClient::new(one.channel.clone());
    let renew = lease::RenewRequest {
        lease: Some(tidegate_proto::common::v1::LeaseName {
            owner_sha256: vec![0xaa; 32],
            generation: 1,
        }),
        key_id: "k1".to_owned(),
        ttl_ms: 0,
    };
    let answer = client.renew(renew).await.unwrap().into_inner().answer;
    assert!(matches!(
        answer,
        Some(lease::renew_response::Answer::Refused(_))
    ));
    let unknown = admin::EndLeaseRequest {
        connection: "nobody".to_owned(),
        ..admin::EndLeaseRequest::default()
    };
    let refused = one.admin().end_lease(unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
}

async fn pools(replica: &Replica) -> Vec<admin::PermitPool> {
    let request = admin::ListPermitsRequest::default();
    let answer = replica.admin().list_permits(request).await.unwrap();
    answer.into_inner().pools
}

#[tokio::test]
async fn permits_are_listed_with_their_holders_and_forgotten_by_hand() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.connections[0].max_concurrent = Some(2);
    let [one, other] = fleet.replicas_with(wanted).await;
    for number in 1..=2 {
        let decided = one
            .routing()
            .decide(decide_request(7, number))
            .await
            .unwrap();
        let step = decided.into_inner().step.unwrap();
        assert!(matches!(step, Step::Dispatch(dispatch) if dispatch.permit));
    }
    let listed = pools(&other).await;
    assert_eq!(listed.len(), 1, "only where there is a limit");
    let pool = &listed[0];
    assert_eq!(
        (pool.connection.as_str(), pool.limit, pool.held),
        ("a1", 2, 2)
    );
    assert!(!pool.stale);
    let holders: Vec<_> = pool
        .holders
        .iter()
        .map(|it| (it.incarnation.as_str(), it.held))
        .collect();
    assert_eq!(holders, [("0000000000000007", 2)]);
    let clear = admin::ClearPermitsRequest {
        connection: "a1".to_owned(),
    };
    let cleared = other.admin().clear_permits(clear.clone()).await.unwrap();
    assert_eq!(cleared.into_inner().cleared, 2);
    assert_eq!(pools(&one).await[0].held, 0);
    // There is room again, also where the old ones were granted.
    let decided = one.routing().decide(decide_request(8, 1)).await.unwrap();
    assert!(matches!(decided.into_inner().step, Some(Step::Dispatch(_))));
    assert_eq!(pools(&other).await[0].held, 1);
    one.hot.fail_each(NonZeroU64::new(1));
    let refused = one.admin().clear_permits(clear).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(pools(&one).await[0].stale);
    let forgotten = "permits of connection a1 forgotten, 2 were out";
    let expected = [("clear_permits".to_owned(), forgotten.to_owned())];
    assert_eq!(operations(&fleet).await, expected);
}

#[tokio::test]
async fn breakers_come_in_pages_too() {
    let fleet = Fleet::new().await;
    let mut wanted = document();
    wanted.providers = (0..5_u16)
        .map(|number| provider(&format!("p{number}"), 9 + number))
        .collect();
    wanted.connections.clear();
    let [one] = fleet.replicas_with(wanted).await;
    let mut token = String::new();
    let mut seen = BTreeSet::new();
    for expected in [2, 2, 1] {
        let request = admin::ListBreakersRequest {
            page_size: 2,
            page_token: token,
            ..admin::ListBreakersRequest::default()
        };
        let answer = one
            .admin()
            .list_breakers(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.breakers.len(), expected);
        seen.extend(answer.breakers.into_iter().map(|it| it.provider));
        token = answer.next_page_token;
    }
    assert_eq!((token.as_str(), seen.len()), ("", 5));
}

#[tokio::test]
async fn pins_are_listed_by_provider_and_connection_and_sessions_are_not_named() {
    let (fleet, [one]) = Fleet::with_replicas().await;
    let now = fleet.memory.time().await.unwrap();
    let pin = |provider: &str, connection: &str, session: &str, ends: u64| {
        let session = SessionKey::parse(&format!("header:{session}")).unwrap();
        StoredPin {
            key: PinKey::new(&ProviderId::new(provider).unwrap(), None, &session),
            pin: Pin {
                connection: ConnectionId::new(connection).unwrap(),
                created_at: now,
                expires_at: now.plus_ms(ends),
            },
        }
    };
    let mut pins = vec![
        pin("beta", "b1", "s-1", 60_000),
        pin(ALPHA, "gone", "s-2", 60_000),
        pin(ALPHA, "a1", "s-3", 0),
    ];
    pins.extend((0..5).map(|number| pin(ALPHA, "a1", &format!("t-{number}"), 60_000)));
    fleet.durable.save_pins(&pins).await.unwrap();
    let list = async |page_size: u32, provider: &str, connection: &str| {
        let (mut all, mut pages, mut page_token) = (Vec::new(), 0, String::new());
        loop {
            let request = admin::ListPinsRequest {
                page_size,
                page_token,
                provider: provider.to_owned(),
                connection: connection.to_owned(),
            };
            let page = one.admin().list_pins(request).await.unwrap().into_inner();
            all.extend(page.pins);
            pages += 1;
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return (all, pages);
            }
        }
    };
    // What has ended is not told.
    let (all, pages) = list(0, "", "").await;
    assert_eq!((all.len(), pages), (7, 1));
    assert!(all.iter().all(|it| it.session_prefix.len() == 8));
    let (of_alpha, pages) = list(4, ALPHA, "").await;
    assert_eq!((of_alpha.len(), pages), (6, 2));
    for size in [1, 2, 5] {
        let (own, _) = list(size, "", "a1").await;
        assert_eq!(own.len(), 5, "{size}");
        assert!(own.iter().all(|it| it.connection == "a1"));
    }
    let (of_beta, _) = list(0, "beta", "").await;
    assert_eq!(of_beta.len(), 1);
    assert!((1..=60_000).contains(&of_beta[0].remaining_ms));
}
