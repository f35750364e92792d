//! Quotas that somebody tells one replica change where the others send requests, and endpoints are asked for them.

use tidegate_proto::admin::v1 as admin;
use tidegate_proto::common::v1 as common;
use tidegate_proto::config::v1 as config;
use tidegate_proto::routing::v1::decide_response::Step;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::fleet::{Fleet, Replica, apply_request, decide_request, document, eventually};

const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

fn weekly(used: f64) -> common::QuotaSnapshot {
    let window = common::QuotaWindow {
        used,
        resets_at_unix_ms: Some(now_ms() + HOUR_MS),
        observed_at_unix_ms: None,
    };
    common::QuotaSnapshot {
        weekly: Some(window),
        ..common::QuotaSnapshot::default()
    }
}

/// `headroom` over one account of each provider.
fn headroom() -> config::Document {
    let step = |model: &str| config::Step {
        model: model.to_owned(),
        ..config::Step::default()
    };
    config::Document {
        combos: vec![config::Combo {
            name: "duo".to_owned(),
            strategy: "headroom".to_owned(),
            steps: vec![step("alpha/m"), step("beta/m")],
            ..config::Combo::default()
        }],
        ..document()
    }
}

async fn fleet<const N: usize>(document: config::Document) -> (Fleet, [Replica; N]) {
    let (fleet, replicas) = Fleet::with_replicas().await;
    let applied = replicas[0].apply(apply_request(document)).await.unwrap();
    for replica in &replicas {
        replica.has_configuration(applied.version).await;
    }
    (fleet, replicas)
}

async fn chosen(replica: &Replica, number: u64) -> String {
    let mut request = decide_request(9, number);
    request.facts.as_mut().unwrap().model = "duo".to_owned();
    let response = replica.routing().decide(request).await.unwrap();
    match response.into_inner().step {
        Some(Step::Dispatch(dispatch)) => dispatch.attempt.unwrap().connection,
        other => panic!("expected a dispatch: {other:?}"),
    }
}

async fn tell(
    replica: &Replica,
    connection: &str,
    quota: Option<common::QuotaSnapshot>,
) -> Result<admin::ReportQuotaResponse, Status> {
    let request = admin::ReportQuotaRequest {
        connection: connection.to_owned(),
        quota,
    };
    Ok(replica.admin().report_quota(request).await?.into_inner())
}

async fn known(
    replica: &Replica,
    connection: &str,
) -> Result<Vec<admin::ConnectionQuotas>, Status> {
    let request = admin::ListQuotasRequest {
        connection: connection.to_owned(),
        ..admin::ListQuotasRequest::default()
    };
    let answer = replica.admin().list_quotas(request).await?;
    Ok(answer.into_inner().quotas)
}

#[tokio::test]
async fn a_quota_told_to_one_replica_moves_requests_of_the_other() {
    let (_fleet, [one, other]) = fleet(headroom()).await;
    let told = tell(&one, "a1", Some(weekly(0.9))).await.unwrap();
    assert!(told.taken);
    let of_answer = told.known.unwrap();
    assert_eq!(of_answer.known.as_ref().unwrap().weekly.unwrap().used, 0.9);
    // Who told it finds it there at once.
    let read = known(&one, "a1").await.unwrap();
    assert_eq!(read[0].known, of_answer.known);
    assert_eq!(read[0].told[0].source(), admin::QuotaSource::Fetched);
    eventually("the account with more left", async || {
        chosen(&other, 1).await == "b1"
    })
    .await;
    tell(&other, "b1", Some(weekly(0.95))).await.unwrap();
    eventually("the first one again", async || {
        chosen(&one, 2).await == "a1"
    })
    .await;
    let all = known(&one, "").await.unwrap();
    let ids: Vec<_> = all.iter().map(|it| it.connection.as_str()).collect();
    assert_eq!(ids, ["a1", "b1"]);
}

#[tokio::test]
async fn what_is_older_than_what_is_known_does_not_take_its_place() {
    let (_fleet, [one]) = fleet(document()).await;
    tell(&one, "a1", Some(weekly(0.5))).await.unwrap();
    let older = common::QuotaSnapshot {
        observed_at_unix_ms: now_ms() - 60_000,
        ..weekly(0.1)
    };
    let told = tell(&one, "a1", Some(older)).await.unwrap();
    assert!(!told.taken);
    let weekly = told.known.unwrap().known.unwrap().weekly.unwrap();
    assert_eq!(weekly.used, 0.5);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_its_member() {
    let (_fleet, [one]) = fleet(document()).await;
    let over = common::QuotaSnapshot {
        session: Some(common::QuotaWindow {
            used: 0.5,
            resets_at_unix_ms: Some(now_ms() - 1),
            observed_at_unix_ms: None,
        }),
        ..common::QuotaSnapshot::default()
    };
    let ahead = common::QuotaSnapshot {
        observed_at_unix_ms: now_ms() + HOUR_MS,
        ..weekly(0.5)
    };
    let of_model = common::ModelQuotaWindow {
        model: "m".to_owned(),
        window: Some(common::QuotaWindow::default()),
    };
    let models = common::QuotaSnapshot {
        weekly_by_model: vec![of_model; 65],
        ..common::QuotaSnapshot::default()
    };
    let cases = [
        (weekly(1.1), "weekly"),
        (weekly(-0.1), "weekly"),
        (weekly(f64::NAN), "weekly"),
        (over, "session"),
        (ahead, "observed_at_unix_ms"),
        (models, "weekly_by_model"),
        (common::QuotaSnapshot::default(), "quota"),
    ];
    for (quota, field) in cases {
        let status = tell(&one, "a1", Some(quota)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert_eq!(status.get_details_error_info().unwrap().reason, "CP0006");
        let named = status.get_details_bad_request().unwrap();
        assert_eq!(named.field_violations[0].field, field);
    }
    let status = tell(&one, "a1", None).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let unknown = [
        tell(&one, "a2", Some(weekly(0.5))).await.map(drop),
        known(&one, "a2").await.map(drop),
    ];
    for status in unknown.map(Result::unwrap_err) {
        assert_eq!(status.get_details_error_info().unwrap().reason, "CP0011");
    }
    assert!(known(&one, "a1").await.unwrap()[0].told.is_empty());
}

/// An endpoint that answers every request with this body. Returns its URL.
async fn endpoint(tasks: &TaskTracker, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1_024];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let good = request.contains("authorization: Bearer secret of a1");
            let (status, body) = if good { (200, body) } else { (401, "{}") };
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    format!("http://{addr}/usage")
}

#[tokio::test]
async fn an_endpoint_is_asked_with_the_credential_of_the_connection() {
    let tasks = TaskTracker::new();
    let body = r#"{"week": {"percent": 75, "seconds": 600}}"#;
    let url = endpoint(&tasks, body).await;
    let mut document = headroom();
    document.connections[0].quota_endpoint_json = serde_json::json!({
        "url": url, "intervalMs": 1_000, "resetFormat": "seconds-from-now",
        "windows": {"weekly": {"usedPercent": "/week/percent", "resetsAt": "/week/seconds"}},
    })
    .to_string();
    let (_fleet, [one]) = fleet(document).await;
    eventually("a quota", async || {
        let quotas = known(&one, "a1").await.unwrap();
        let known = quotas[0].known.as_ref().and_then(|known| known.weekly);
        assert!(quotas[0].polled);
        known.is_some_and(|weekly| weekly.used == 0.75 && weekly.resets_at_unix_ms.is_some())
    })
    .await;
    eventually("the other account", async || chosen(&one, 1).await == "b1").await;
    assert!(!known(&one, "b1").await.unwrap()[0].polled);
}
