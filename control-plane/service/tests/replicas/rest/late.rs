//! Changes that nobody waits for any more, of settings and of state: what was changed since is to stand.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use pretty_assertions::assert_eq;
use rstest::rstest;
use serde_json::{Value, json};
use tidegate_proto::admin::v1::ListBreakersRequest;
use tidegate_proto::management::v1 as management;
use tidegate_proto::management::v1::management_service_client::ManagementServiceClient;
use tidegate_store::hot::HotStore as _;
use tidegate_store_sql::{PgDurableStore, SqlLimits};
use tidegate_test_support::Postgres;

use crate::fleet::{Fleet, Replica, eventually};
use crate::resets::{PROVIDERS, report, with_providers};

use super::{HEALTH, OPERATOR, RESET, SETTINGS, guarded, guarded_in, tokens, with_keys};

const PATCH: (&str, &str) = ("PATCH", SETTINGS);
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

/// A request as a data plane forwards it, with the time that is left for it, and the moment when it is over.
async fn forward(
    replica: &Replica,
    (method, path): (&str, &str),
    body: &Value,
    (remaining_ms, not_after_unix_ms): (Option<u64>, Option<u64>),
) -> management::CallResponse {
    let request = management::CallRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        authorization: Some(format!("Bearer {OPERATOR}")),
        body: body.to_string().into_bytes(),
        remaining_ms,
        not_after_unix_ms,
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
                leave(
                    &postgres,
                    forward(&replica, PATCH, &abandoned, (None, None)),
                )
                .await;
                forward(&replica, ("GET", SETTINGS), &Value::Null, (None, None)).await;
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

/// A replica may have stood still for a long time with the request in its socket.
#[rstest]
#[case::nothing_is_left(Some(0), None, 503)]
#[case::long_on_its_way(Some(60_000), Some(1), 503)]
#[case::without_a_time_of_its_own(None, Some(1), 503)]
#[case::in_time(Some(60_000), Some(u64::MAX), 200)]
#[tokio::test]
async fn settings_are_not_saved_when_the_time_that_was_left_for_it_is_over(
    #[case] remaining_ms: Option<u64>,
    #[case] not_after_unix_ms: Option<u64>,
    #[case] expected: u32,
) {
    let (fleet, replica, http) = guarded().await;
    let change = json!({"modelLockout": {"enabled": true}});
    let answer = forward(&replica, PATCH, &change, (remaining_ms, not_after_unix_ms)).await;
    let told: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer.status, expected, "{told}");
    let is_saved = expected == 200;
    if !is_saved {
        assert_eq!(told["error"]["code"], "CP0015");
    }
    let version = 1 + u64::from(is_saved);
    assert_eq!(http.version().await, version);
    assert_eq!(
        fleet.durable.load_document().await.unwrap().version,
        version
    );
}

#[rstest]
#[case::of_breakers(("DELETE", HEALTH))]
#[case::of_what_is_named(("POST", RESET))]
#[tokio::test]
async fn a_reset_that_comes_too_late_ends_nothing(#[case] of: (&str, &str)) {
    let (_fleet, replica, http) = guarded().await;
    let is = async |state: &str| http.health().await["providerBreakers"][0]["state"] == state;
    replica.open_breaker(7).await;
    eventually("the open breaker", async || is("OPEN").await).await;
    let late = forward(&replica, of, &json!({}), (Some(60_000), Some(1))).await;
    let told: Value = serde_json::from_slice(&late.body).unwrap();
    assert_eq!(
        (late.status, &told["error"]["code"]),
        (503, &json!("CP0015"))
    );
    assert!(is("OPEN").await);
    let timely = forward(&replica, of, &json!({}), (Some(60_000), None)).await;
    assert_eq!(timely.status, 200);
    assert!(is("CLOSED").await);
}

/// A replica's clock stands still in a machine that sleeps, and is behind afterwards.
#[tokio::test]
async fn a_change_is_late_by_the_stores_clock_where_the_replicas_is_behind() {
    let (fleet, replica, http) = guarded().await;
    let not_after = fleet.memory.time().await.unwrap().0 + 30_000;
    fleet.memory.step_clock(60_000);
    let change = json!({"modelLockout": {"enabled": true}});
    let late = forward(&replica, PATCH, &change, (Some(60_000), Some(not_after))).await;
    assert_eq!(late.status, 503);
    assert_eq!(http.version().await, 1);
}

/// One way to a store that takes so long for as many providers that nobody waits for all of them.
const ONE_WAY: Duration = Duration::from_millis(10);

/// A guarded replica, and one that is not, with a failure of each provider.
async fn with_much_to_reset() -> (Fleet, [Replica; 2]) {
    let fleet = Fleet::new().await;
    let [open] = fleet.replicas_with(with_providers(with_keys())).await;
    for number in 0..PROVIDERS {
        report(&open, number, None).await;
    }
    let replica = fleet.start_with(tokens()).await;
    replica.hot.delay_each_way(ONE_WAY);
    (fleet, [replica, open])
}

/// Providers whose last failure is remembered.
async fn left(replica: &Replica) -> usize {
    let request = ListBreakersRequest::default();
    let answer = replica.admin().list_breakers(request).await.unwrap();
    let breakers = answer.into_inner().breakers.into_iter();
    breakers.filter(|it| it.failure_count > 0).count()
}

#[tokio::test]
async fn a_reset_ends_when_nobody_waits_for_it_any_more() {
    let (_fleet, [replica, open]) = with_much_to_reset().await;
    assert_eq!(left(&open).await, usize::from(PROVIDERS));
    let breakers = ("DELETE", HEALTH);
    let cut = forward(&replica, breakers, &Value::Null, (Some(200), None)).await;
    assert!(cut.status >= 500, "{cut:?}");
    assert_ne!(left(&open).await, 0);
    let whole = forward(&replica, breakers, &Value::Null, (None, None)).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    eventually("the reset", async || left(&open).await == 0).await;
}

#[tokio::test]
async fn a_reset_ends_by_the_stores_clock_where_the_replicas_stood_still() {
    let (fleet, [replica, open]) = with_much_to_reset().await;
    let not_after = fleet.memory.time().await.unwrap().0 + 30_000;
    let waited = (Some(60_000), Some(not_after));
    let reset = forward(&replica, ("DELETE", HEALTH), &Value::Null, waited);
    let sleep = async {
        let begun = async || left(&open).await < usize::from(PROVIDERS);
        eventually("the first of it", begun).await;
        fleet.memory.step_clock(60_000);
    };
    let (cut, ()) = tokio::join!(reset, sleep);
    let told: Value = serde_json::from_slice(&cut.body).unwrap();
    assert_eq!(cut.status, 500, "{told}");
    let message = told["error"]["message"].as_str().unwrap();
    let (done, _) = message.split_once(" were reset, then: ").unwrap();
    let done: u16 = done.parse().unwrap();
    assert!((1..PROVIDERS).contains(&done), "{message}");
}
