//! `Decide` against a tonic service that does nothing, at 1 and 64 calls in flight.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use secrecy::SecretString;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::common::v1::AttemptId;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{DecideRequest, Protocol, RequestFacts, decide_response::Step};
use tidegate_test_support::DATA_PLANE_TOKEN;

use crate::load::{Run, Sample, drive, median};
use crate::setting::Setting;
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};

/// HTTP/2 connections that calls are spread over.
const CONNECTIONS: usize = 4;

/// Measures both sides and notes the figures.
pub(crate) async fn measure(setting: &Setting, summary: &mut Summary) -> Result<()> {
    let replica = setting
        .fleet
        .control_planes
        .first()
        .map(|replica| replica.grpc);
    ensure!(replica.is_some(), "no control plane");
    for in_flight in [1, 64] {
        let mut ours = Vec::new();
        let mut echo = Vec::new();
        for _ in 0..ROUNDS {
            echo.push(side(setting.echo.1, in_flight).await?);
            if let Some(replica) = replica {
                ours.push(side(replica, in_flight).await?);
            }
        }
        let throughput = |runs: &[Run]| median(runs.iter().map(Run::throughput));
        let p50 = |runs: &[Run]| median(runs.iter().map(|run| run.latency_ms(0.5)));
        let p99 = |runs: &[Run]| median(runs.iter().map(|run| run.latency_ms(0.99)));
        let mut set =
            |name: &str, figure| summary.set(format!("decide.c{in_flight}.{name}"), figure);
        set("throughput_ratio", throughput(&ours) / throughput(&echo));
        set("p99_ratio", p99(&ours) / p99(&echo));
        set("per_second", throughput(&ours));
        set("p50_ms", p50(&ours));
        set("p99_ms", p99(&ours));
        set("echo_per_second", throughput(&echo));
    }
    Ok(())
}

/// Decisions of one server for a while.
pub(crate) async fn side(addr: SocketAddr, in_flight: usize) -> Result<Run> {
    let address = Address::Tcp(format!("http://{addr}").parse()?);
    let token = SecretString::from(DATA_PLANE_TOKEN);
    let clients = (0..CONNECTIONS.min(in_flight))
        .map(|_| {
            let made = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
            Ok(RoutingServiceClient::new(made))
        })
        .collect::<Result<Vec<RoutingServiceClient<PlaneChannel>>>>()?;
    let number = Arc::new(AtomicU64::new(0));
    drive(in_flight, ROUND_TIME, move |worker| {
        let client = clients.get(worker % clients.len()).cloned();
        let number = Arc::clone(&number);
        async move {
            let Some(mut client) = client else {
                anyhow::bail!("no client");
            };
            let request = DecideRequest {
                attempt: Some(AttemptId {
                    plane: 1,
                    number: number.fetch_add(1, Ordering::Relaxed) + 1,
                }),
                facts: Some(RequestFacts {
                    model: "bench".to_owned(),
                    protocol: Protocol::Openai.into(),
                    ..RequestFacts::default()
                }),
                ..DecideRequest::default()
            };
            let decided = client.decide(request).await?.into_inner();
            ensure!(
                matches!(decided.step, Some(Step::Dispatch(_))),
                "not dispatched: {decided:?}"
            );
            Ok(Sample { first_chunk: None })
        }
    })
    .await
}
