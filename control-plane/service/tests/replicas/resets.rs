//! Resets of much at once.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::ids::{ProviderId, Shard};
use tidegate_proto::admin::v1::{ResetRequest, ResetScope};
use tidegate_proto::common::v1 as common;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

use crate::fleet::{Fleet, connection, document, failure, provider};

/// How long an operator's call waits.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// So many that the time of one call to the durable store for each would be longer.
const PROVIDERS: u16 = 40;

#[tokio::test]
async fn without_the_durable_store_a_reset_reaches_every_provider_and_says_that_it_is_not_saved() {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let limits = SqlLimits::default();
    let store = PgDurableStore::open(&url, limits).await.unwrap();
    let fleet = Fleet::over(Arc::new(store));
    let mut wanted = document();
    for number in 0..PROVIDERS {
        let id = format!("p{number}");
        wanted.providers.push(provider(&id, 100 + number));
        wanted
            .connections
            .push(connection(&format!("c{number}"), &id, 1));
    }
    let [one] = fleet.replicas_with(wanted).await;
    for number in 0..PROVIDERS {
        let mut reporting = one.report().await;
        let (plane, provider) = (100 + u64::from(number), format!("p{number}"));
        let shard = Shard::of_provider(&ProviderId::new(provider.as_str()).unwrap());
        let attempt = common::Attempt {
            provider,
            connection: format!("c{number}"),
            model: "m".to_owned(),
            credential_version: 1,
            ..common::Attempt::default()
        };
        let reports = vec![failure(plane, 1, &attempt)];
        reporting.send_to(plane, shard.number(), reports).await;
        reporting.acknowledged_to(1).await;
    }

    postgres.pause().unwrap();
    let mut request = tonic::Request::new(ResetRequest {
        scope: ResetScope::Breakers.into(),
        ..ResetRequest::default()
    });
    request.set_timeout(CALL_LIMIT);
    let reset = one.admin().reset(request).await.unwrap().into_inner();
    assert_eq!(reset.reset_count, u32::from(PROVIDERS));
    assert!(!reset.checkpointed);
    postgres.resume().unwrap();
}
