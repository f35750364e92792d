//! Changes of settings that nobody waits for any more: what was changed since is to stand.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tidegate_proto::management::v1 as management;
use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

use crate::fleet::{Fleet, Replica, eventually};

use super::{OPERATOR, SETTINGS, guarded, guarded_in, with_keys};

/// The first database a [`Postgres`] makes.
const DATABASE: &str = "test_1";
/// Keeps everybody from the configuration until it is ended.
const HOLD: &str = "BEGIN; LOCK TABLE configuration IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
const HELD: &str = "SELECT pid FROM pg_locks
     WHERE relation = 'configuration'::regclass AND mode = 'AccessExclusiveLock' AND granted";
const LET_GO: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE query LIKE 'BEGIN; LOCK TABLE configuration%'";
/// Those who would read the whole of it.
const WAITING: &str = "SELECT pid FROM pg_stat_activity
     WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT version, secrets_revision, document%'";

/// A request as a data plane forwards it.
async fn forward(
    replica: &Replica,
    method: &str,
    body: &Value,
    remaining_ms: Option<u64>,
) -> management::CallResponse {
    let request = management::CallRequest {
        method: method.to_owned(),
        path: SETTINGS.to_owned(),
        authorization: Some(format!("Bearer {OPERATOR}")),
        body: body.to_string().into_bytes(),
        remaining_ms,
        ..management::CallRequest::default()
    };
    let mut client = ManagementServiceClient::new(replica.channel.clone());
    client.call(request).await.unwrap().into_inner()
}

/// Waits until there is something to be found.
async fn finds(postgres: &Postgres, what: &str) {
    eventually(what, async || {
        let found = postgres.execute(DATABASE, what).await.unwrap();
        !found.is_empty()
    })
    .await;
}

/// Makes a change while the configuration is held, and leaves when it waits for that.
async fn leave<T: Debug>(postgres: &Postgres, change: impl Future<Output = T>) {
    finds(postgres, HELD).await;
    tokio::select! {
        answered = change => panic!("{answered:?}"),
        () = finds(postgres, WAITING) => {}
    }
}

#[tokio::test]
async fn settings_are_not_changed_when_their_caller_has_gone() {
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database().await.unwrap();
    let patient = SqlLimits {
        whole: Duration::from_secs(20),
        ..SqlLimits::default()
    };
    let store = PgDurableStore::open(&url, patient).await.unwrap();
    let fleet = Fleet::over(Arc::new(store));
    let (replica, http) = guarded_in(&fleet, with_keys()).await;
    let before = http.settings().await["modelLockout"].clone();
    let abandoned = json!({"modelLockout": {"maxBackoffSteps": 3}});
    for (is_forwarded, version) in [(true, 2), (false, 3)] {
        let change = async {
            // What is asked next is answered after it was heard that the caller has gone.
            if is_forwarded {
                leave(&postgres, forward(&replica, "PATCH", &abandoned, None)).await;
                forward(&replica, "GET", &Value::Null, None).await;
            } else {
                leave(&postgres, http.patch(&abandoned)).await;
                http.settings().await;
            }
            postgres.execute(DATABASE, LET_GO).await.unwrap();
        };
        let (held, ()) = tokio::join!(postgres.execute(DATABASE, HOLD), change);
        assert!(held.is_err(), "it was held until then");
        let later = json!({"streams": {"idleTimeoutMs": 20_000 + version}});
        let later = http.patch(&later).await;
        assert_eq!(later.status, StatusCode::OK, "{later:?}");
        assert_eq!(later.json()["modelLockout"], before);
        assert_eq!(http.version().await, version);
    }
}

#[tokio::test]
async fn a_change_is_not_made_when_the_time_that_was_left_for_it_is_over() {
    let (fleet, replica, http) = guarded().await;
    let change = json!({"modelLockout": {"enabled": true}});
    let late = forward(&replica, "PATCH", &change, Some(0)).await;
    let told: Value = serde_json::from_slice(&late.body).unwrap();
    assert_eq!(
        (late.status, &told["error"]["code"]),
        (503, &json!("CP0015"))
    );
    assert_eq!(http.version().await, 1);
    assert_eq!(fleet.durable.load_document().await.unwrap().version, 1);
    let timely = forward(&replica, "PATCH", &change, Some(60_000)).await;
    assert_eq!(timely.status, 200);
}
