//! What data planes tell one replica changes where the others send requests.

use tidegate_proto::config::v1 as config;
use tidegate_proto::report::v1 as report;
use tidegate_proto::routing::v1 as routing;
use tidegate_proto::routing::v1::decide_response::Step;
use tonic::Code;

use crate::fleet::{Fleet, Replica, apply_request, decide_request, document, eventually};

/// A combo over two accounts with this strategy.
fn document_with(strategy: &str) -> config::Document {
    let mut document = document();
    document.combos = vec![config::Combo {
        name: "duo".to_owned(),
        strategy: strategy.to_owned(),
        ..duo()
    }];
    document
}

fn duo() -> config::Combo {
    let step = |model: &str| config::Step {
        model: model.to_owned(),
        ..config::Step::default()
    };
    config::Combo {
        steps: vec![step("alpha/m"), step("beta/m")],
        ..config::Combo::default()
    }
}

async fn fleet(strategy: &str) -> (Fleet, [Replica; 2]) {
    let (fleet, replicas) = Fleet::with_replicas().await;
    let request = apply_request(document_with(strategy));
    let version = replicas[0].apply(request).await.unwrap().version;
    for replica in &replicas {
        replica.has_configuration(version).await;
    }
    (fleet, replicas)
}

async fn dispatch(replica: &Replica, number: u64) -> routing::Dispatch {
    let mut request = decide_request(9, number);
    request.facts.as_mut().unwrap().model = "duo".to_owned();
    let response = replica.routing().decide(request).await.unwrap();
    match response.into_inner().step {
        Some(Step::Dispatch(dispatch)) => dispatch,
        other => panic!("expected a dispatch: {other:?}"),
    }
}

async fn provider(replica: &Replica, number: u64) -> String {
    dispatch(replica, number).await.attempt.unwrap().provider
}

/// What a data plane tells of this dispatch: it ended this many times, and took so long when it served.
fn ended(dispatch: &routing::Dispatch, times: u64, ready_ms: Option<f64>) -> report::Telemetry {
    let attempt = dispatch.attempt.as_ref().unwrap();
    let count = f64::from(u32::try_from(times).unwrap());
    let at_unix_ms = now_ms();
    let served = ready_ms.map(|_| report::LastServed {
        provider: attempt.provider.clone(),
        connection: attempt.connection.clone(),
        at_unix_ms,
        began_at_unix_ms: at_unix_ms,
    });
    let ready = ready_ms.unwrap_or_default();
    let track = report::Track {
        ended: times,
        at_unix_ms,
        succeeded: if ready_ms.is_some() { count } else { 0.0 },
        failed: if ready_ms.is_some() { 0.0 } else { count },
        latency_ms: ready * count,
        latency_ms_squared: ready * ready * count,
        ..report::Track::default()
    };
    report::Telemetry {
        combos: vec![report::ComboTelemetry {
            combo: dispatch.combo.clone(),
            targets: vec![report::TargetTelemetry {
                key: dispatch.target_key.clone(),
                ended: times,
                at_unix_ms,
                failed_at_unix_ms: if served.is_some() { 0 } else { at_unix_ms },
                served,
                ..report::TargetTelemetry::default()
            }],
            models: vec![report::ModelTelemetry {
                provider: attempt.provider.clone(),
                model: attempt.model.clone(),
                track: Some(track),
            }],
            sessions: Vec::new(),
        }],
        ..report::Telemetry::default()
    }
}

fn now_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

async fn tell(
    replica: &Replica,
    number: u64,
    telemetry: report::Telemetry,
) -> Result<(), tonic::Status> {
    let request = report::ReportTelemetryRequest {
        plane: 9,
        number,
        telemetry: Some(telemetry),
        in_flight: Vec::new(),
    };
    replica.reports().report_telemetry(request).await.map(drop)
}

#[tokio::test]
async fn a_target_used_at_one_replica_comes_later_at_the_other() {
    let (_fleet, [one, other]) = fleet("least-used").await;
    let first = dispatch(&one, 1).await;
    assert_eq!(first.attempt.as_ref().unwrap().provider, "alpha");
    assert!(!first.target_key.is_empty());
    assert_eq!(first.combo, "duo");
    tell(&one, 1, ended(&first, 5, Some(10.0))).await.unwrap();
    eventually("the other target", async || {
        provider(&other, 2).await == "beta"
    })
    .await;
    eventually("the other target here", async || {
        provider(&one, 3).await == "beta"
    })
    .await;
}

#[tokio::test]
async fn what_served_at_one_replica_is_first_at_the_other_until_it_fails() {
    let (_fleet, [one, other]) = fleet("lkgp").await;
    let alpha = dispatch(&one, 1).await;
    let mut beta = alpha.clone();
    let attempt = beta.attempt.as_mut().unwrap();
    (attempt.provider, attempt.connection) = ("beta".to_owned(), "b1".to_owned());
    beta.target_key = "beta".to_owned();
    tell(&one, 1, ended(&beta, 1, Some(10.0))).await.unwrap();
    eventually("the last one that served", async || {
        provider(&other, 2).await == "beta"
    })
    .await;
    tell(&other, 2, ended(&beta, 1, None)).await.unwrap();
    eventually("the first one again", async || {
        provider(&one, 3).await == "alpha"
    })
    .await;
}

#[tokio::test]
async fn the_faster_of_two_is_found_with_what_others_measured() {
    let (_fleet, [one, other]) = fleet("p2c").await;
    let alpha = dispatch(&one, 1).await;
    let mut beta = alpha.clone();
    beta.attempt.as_mut().unwrap().provider = "beta".to_owned();
    let slow = ended(&alpha, 20, Some(9_990.0));
    tell(&one, 1, slow).await.unwrap();
    tell(&other, 2, ended(&beta, 20, Some(90.0))).await.unwrap();
    // With two candidates both are drawn, whichever is first.
    eventually("only the faster one", async || {
        let mut all = true;
        for number in 0..8 {
            all &= provider(&one, 10 + number).await == "beta";
            all &= provider(&other, 20 + number).await == "beta";
        }
        all
    })
    .await;
}

#[tokio::test]
async fn messages_that_make_no_sense_are_refused() {
    let (_fleet, [one]) = Fleet::with_replicas().await;
    let planes = report::Telemetry {
        planes: vec![report::PlaneLoad::default()],
        ..report::Telemetry::default()
    };
    let unnamed = report::Telemetry {
        connections: vec![report::ConnectionTelemetry::default()],
        ..report::Telemetry::default()
    };
    for telemetry in [planes, unnamed] {
        let status = tell(&one, 1, telemetry).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let status = tell(&one, 0, report::Telemetry::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
