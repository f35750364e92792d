//! Resets of much at once.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{ProviderId, Shard};
use tidegate_proto::admin::v1::{ResetRequest, ResetResponse, ResetScope};
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, Replica, connection, document, failure, provider};

/// How long an operator's call waits.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// So many that the time of one call to the durable store for each would be longer.
pub(crate) const PROVIDERS: u16 = 40;

/// With as many providers, and one connection of each.
pub(crate) fn with_providers(mut wanted: config::Document) -> config::Document {
    for number in 0..PROVIDERS {
        let (id, connected) = (format!("p{number}"), format!("c{number}"));
        wanted.providers.push(provider(&id, 100 + number));
        wanted.connections.push(connection(&connected, &id, 1));
    }
    wanted
}

async fn on_postgres() -> (Postgres, Fleet) {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let limits = SqlLimits::default();
    let store = PgDurableStore::open(&url, limits).await.unwrap();
    (postgres, Fleet::over(Arc::new(store)))
}

async fn reset(replica: &Replica, request: ResetRequest) -> Result<ResetResponse, tonic::Status> {
    let mut request = tonic::Request::new(request);
    request.set_timeout(CALL_LIMIT);
    Ok(replica.admin().reset(request).await?.into_inner())
}

/// Reports a failure of a connection `c<number>` at provider `p<number>`.
pub(crate) async fn report(replica: &Replica, number: u16, outcome: Option<common::UpstreamError>) {
    let mut reporting = replica.report().await;
    let (plane, provider) = (100 + u64::from(number), format!("p{number}"));
    let shard = Shard::of_provider(&ProviderId::new(provider.as_str()).unwrap());
    let attempt = common::Attempt {
        provider,
        connection: format!("c{number}"),
        model: "m".to_owned(),
        credential_version: 1,
        ..common::Attempt::default()
    };
    let mut failed = failure(plane, 1, &attempt);
    if let (Some(error), Some(report)) = (outcome, &mut failed.report) {
        let kind = common::outcome::Kind::Response(error);
        report.outcome = Some(common::Outcome { kind: Some(kind) });
    }
    reporting.send_to(plane, shard.number(), vec![failed]).await;
    reporting.acknowledged_to(1).await;
}

#[tokio::test]
async fn without_the_durable_store_a_reset_reaches_every_provider_and_says_that_it_is_not_saved() {
    let (postgres, fleet) = on_postgres().await;
    let [one] = fleet.replicas_with(with_providers(document())).await;
    for number in 0..PROVIDERS {
        report(&one, number, None).await;
    }

    postgres.pause().unwrap();
    let breakers = ResetRequest {
        scope: ResetScope::Breakers.into(),
        ..ResetRequest::default()
    };
    let done = reset(&one, breakers).await.unwrap();
    assert_eq!(done.reset_count, u32::from(PROVIDERS));
    assert!(!done.checkpointed);
    postgres.resume().unwrap();
}

/// How often its token could not be renewed is known to the durable store alone, and holds up nothing else.
#[tokio::test]
async fn without_the_durable_store_a_connection_that_is_named_is_brought_back() {
    const PLAIN: u16 = 0;
    const RENEWING: u16 = 1;
    let (postgres, fleet) = on_postgres().await;
    let mut wanted = document();
    for number in [PLAIN, RENEWING] {
        let id = format!("p{number}");
        let mut provider = provider(&id, 100 + number);
        if number == RENEWING {
            provider.oauth = Some(config::OauthClient {
                token_endpoint: "http://127.0.0.1:9/token".to_owned(),
                ..config::OauthClient::default()
            });
        }
        wanted.providers.push(provider);
        let connection = connection(&format!("c{number}"), &id, 1);
        wanted.connections.push(connection);
    }
    let [one] = fleet.replicas_with(wanted).await;
    let terminal = async |number| one.connection(&format!("c{number}")).await.terminal;
    for number in [PLAIN, RENEWING] {
        let refused = common::UpstreamError {
            status: 401,
            ..common::UpstreamError::default()
        };
        report(&one, number, Some(refused)).await;
        assert_eq!(terminal(number).await, "expired");
    }
    let everything_of = |number| ResetRequest {
        scope: ResetScope::All.into(),
        connection: format!("c{number}"),
        ..ResetRequest::default()
    };

    postgres.pause().unwrap();
    let done = reset(&one, everything_of(PLAIN)).await.unwrap();
    assert_eq!((done.reset_count, done.checkpointed), (1, false));
    let kept = reset(&one, everything_of(RENEWING)).await.unwrap_err();
    let details = kept.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "CP0003", "{kept:?}");
    assert!(kept.message().starts_with("1 were reset"), "{kept:?}");
    for number in [PLAIN, RENEWING] {
        assert_eq!(terminal(number).await, "", "c{number}");
    }
    postgres.resume().unwrap();
}
