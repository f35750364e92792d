//! How a replica says that it is.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tidegate_core::config::key_hash;
use tidegate_proto::admin::v1::{DegradedMode, GetStatusResponse};
use tidegate_proto::config::v1 as config;
use tidegate_proto::config::v1::snapshot_service_client::SnapshotServiceClient;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

use crate::fleet::{Fleet, Replica, apply_request, document, eventually};

/// Longer than a replica asks for; a store that does not answer by then is away.
const PATIENT: Duration = Duration::from_secs(10);

fn modes(status: &GetStatusResponse) -> Vec<DegradedMode> {
    status.degraded().collect()
}

/// Until exactly this is amiss.
async fn has(replica: &Replica, what: &str, expected: &[DegradedMode]) {
    eventually(what, async || modes(&replica.status().await) == expected).await;
}

async fn uses(replica: &Replica, plane: u64, version: u64, refused: u64) {
    let mut client = SnapshotServiceClient::new(replica.channel.clone());
    let request = config::ReportConfigurationRequest {
        plane,
        configuration_version: version,
        refused_version: refused,
    };
    let answer = client.report_configuration(request).await.unwrap();
    assert!(answer.into_inner().watching);
}

#[tokio::test]
async fn what_is_amiss_is_named_for_as_long_as_it_is() {
    use DegradedMode::{
        ConfigurationRefused, DurableStoreAway, HotStoreAway, NoConfiguration, ViewStale,
    };
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let store = PgDurableStore::open(&url, SqlLimits::default()).await;
    let fleet = Fleet::over(Arc::new(store.unwrap()));
    let (one, other) = (fleet.start().await, fleet.start().await);
    has(&one, "no configuration", &[NoConfiguration]).await;
    let mut wanted = document();
    wanted.keys = vec![config::ApiKey {
        id: "boss".to_owned(),
        sha256: key_hash("sk-boss"),
        scopes: vec!["manage".to_owned()],
        ..config::ApiKey::default()
    }];
    one.apply(apply_request(wanted)).await.unwrap();
    for replica in [&one, &other] {
        has(replica, "all to be well", &[]).await;
    }

    // Data planes count where they watch, and in the fleet.
    let mut watching = [
        one.watch(7, Vec::new()).await,
        other.watch(8, Vec::new()).await,
    ];
    for stream in &mut watching {
        stream.message().await.unwrap().unwrap();
    }
    eventually("both data planes at both replicas", async || {
        let told = [one.status().await, other.status().await];
        told.iter()
            .all(|it| it.data_planes == 1 && it.data_planes_in_fleet == 2)
    })
    .await;
    uses(&one, 7, 1, 2).await;
    has(&one, "the refusal", &[ConfigurationRefused]).await;
    uses(&one, 7, 2, 0).await;
    has(&one, "the end of the refusal", &[]).await;

    // Both stores stand still. What health cannot read it says, in time.
    postgres.pause().unwrap();
    one.hot.freeze();
    let all = [HotStoreAway, DurableStoreAway, ViewStale];
    has(&one, "both stores to be missed", &all).await;
    let health = health(&one).await;
    assert_eq!(health["status"], "degraded");
    let words = json!(["hot_store_away", "durable_store_away", "view_stale"]);
    assert_eq!(health["controlPlane"]["degraded"], words);
    assert_eq!(health["controlPlane"]["notRead"], json!(["sessions"]));
    assert_eq!(health["sessions"]["activeCount"], 0);
    assert_eq!(health["providerBreakers"][0]["state"], "CLOSED");
    postgres.resume().unwrap();
    has(&one, "the durable store", &[HotStoreAway, ViewStale]).await;
    one.hot.thaw().await;
    has(&one, "all to be well again", &[]).await;
}

/// As a data plane forwards it.
async fn health(replica: &Replica) -> Value {
    use tidegate_proto::management::v1 as management;
    use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;

    let request = management::CallRequest {
        method: Method::GET.to_string(),
        path: "/api/monitoring/health".to_owned(),
        authorization: Some("Bearer sk-boss".to_owned()),
        ..management::CallRequest::default()
    };
    let mut request = tonic::Request::new(request);
    request.set_timeout(PATIENT);
    let mut client = ManagementServiceClient::new(replica.channel.clone());
    let answer = client.call(request).await.unwrap().into_inner();
    assert_eq!(answer.status, u32::from(StatusCode::OK.as_u16()));
    serde_json::from_slice(&answer.body).unwrap()
}
