//! Reports are delivered more than once and count once.

use anyhow::{Context as _, Result};
use secrecy::SecretString;
use tidegate_integration::{LIMIT, World};
use tidegate_plane_client::endpoint::{Address, ChannelSettings, channel};
use tidegate_proto::common::v1::{self as common, outcome::Kind};
use tidegate_proto::report::v1::report_service_client::ReportServiceClient;
use tidegate_proto::report::v1::{AttemptReport, NumberedReport, ReportRequest};
use tidegate_test_support::{DATA_PLANE_TOKEN, eventually};

/// Incarnation of a data plane that only this test plays.
const PLANE: u64 = 0x5eed_5eed;

fn failure(number: u64, shard: u32, occurred_at_unix_ms: u64) -> ReportRequest {
    ReportRequest {
        plane: PLANE,
        shard,
        reports: vec![NumberedReport {
            number,
            report: Some(AttemptReport {
                attempt: Some(common::Attempt {
                    id: Some(common::AttemptId {
                        plane: PLANE,
                        number,
                    }),
                    provider: "two".to_owned(),
                    connection: "two-a".to_owned(),
                    model: "m".to_owned(),
                    credential_version: 1,
                    ..common::Attempt::default()
                }),
                outcome: Some(common::Outcome {
                    kind: Some(Kind::Response(common::UpstreamError {
                        status: 503,
                        ..common::UpstreamError::default()
                    })),
                }),
                occurred_at_unix_ms,
                ..AttemptReport::default()
            }),
        }],
    }
}

/// Sends a report to one replica and waits for its acknowledgement.
async fn deliver(world: &World, replica: usize, report: ReportRequest) -> Result<()> {
    let number = report.reports.first().context("no report")?.number;
    let grpc = world.fleet.control_planes[replica].grpc;
    let address = Address::Tcp(format!("http://{grpc}").parse()?);
    let token = SecretString::from(DATA_PLANE_TOKEN);
    let made = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    sender.send(report).await?;
    let mut answers = ReportServiceClient::new(made)
        .report(tokio_stream::wrappers::ReceiverStream::new(receiver))
        .await?
        .into_inner();
    // A replica may first say how far it already was.
    loop {
        let answer = tokio::time::timeout(LIMIT, answers.message())
            .await??
            .context("the stream ended")?;
        if answer.acknowledged >= number {
            drop(sender);
            return Ok(());
        }
    }
}

#[tokio::test]
async fn a_report_delivered_three_times_to_two_replicas_counts_once() -> Result<()> {
    let world = World::start().await?;
    let shard = u32::from(
        tidegate_core::ids::Shard::of_provider(&tidegate_core::ids::ProviderId::new("two")?)
            .number(),
    );
    let now = u64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_millis(),
    )?;
    let first = failure(1, shard, now);
    deliver(&world, 0, first.clone()).await?;
    deliver(&world, 0, first.clone()).await?;
    deliver(&world, 1, first).await?;
    for replica in 0..2 {
        eventually(LIMIT, "one failure is counted", || async {
            let breaker = world.breaker(replica, "two").await.ok()?;
            (breaker["failures"] == 1).then_some(())
        })
        .await?;
    }
    // The next number counts, so the first was not merely ignored.
    deliver(&world, 1, failure(2, shard, now + 1)).await?;
    eventually(LIMIT, "two failures are counted", || async {
        let breaker = world.breaker(0, "two").await.ok()?;
        (breaker["failures"] == 2).then_some(())
    })
    .await
}
