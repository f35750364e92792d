//! What it costs the control plane to list ten thousand connections, to the last page: CPU time of its process, less what it
//! takes for itself in the same time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tidegate_proto::admin::v1::ListConnectionsRequest;
use tidegate_test_support::{Fleet, FleetOptions};

use crate::ROUNDS;
use crate::load::median;
use crate::process::cpu_time;
use crate::summary::Summary;
use crate::watchers::client;

/// Connections that are listed.
const CONNECTIONS: usize = 10_000;
/// Providers they are at.
const PROVIDERS: usize = 100;
/// Lists of one round: CPU time is told in steps of 10 ms.
const LISTS: u32 = 20;

/// Measures whole lists, and lists of few members, in turns and notes the figures.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    let fleet = Fleet::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 0,
        ..FleetOptions::default()
    })
    .await?;
    fleet.write_secret("bench.key", "sk-bench")?;
    fleet.apply(&document()).await?;
    let (mut whole, mut masked) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        whole.push(round(&fleet, &[]).await?);
        masked.push(round(&fleet, &["id", "state"]).await?);
    }
    summary.set("lists.connections10k.cpu_ms", median(whole));
    summary.set("lists.connections10k.masked_cpu_ms", median(masked));
    Ok(())
}

/// CPU time of one list, in ms.
async fn round(fleet: &Fleet, paths: &[&str]) -> Result<f64> {
    let replica = fleet.control_planes.first().context("no control plane")?;
    let pid = replica.process.pid();
    let mut client = client(replica.grpc)?.max_decoding_message_size(64 * 1024 * 1024);
    let read_mask = (!paths.is_empty()).then(|| prost_types::FieldMask {
        paths: paths.iter().map(|it| (*it).to_owned()).collect(),
    });
    let (began, before) = (Instant::now(), cpu_time(pid)?);
    for _ in 0..LISTS {
        let (mut count, mut page_token) = (0, String::new());
        loop {
            let request = ListConnectionsRequest {
                page_token,
                read_mask: read_mask.clone(),
                ..ListConnectionsRequest::default()
            };
            let page = client.list_connections(request).await?.into_inner();
            count += page.connections.len();
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        ensure!(count == CONNECTIONS, "{count} connections were listed");
    }
    let (took, after) = (began.elapsed(), cpu_time(pid)?);
    // What it does besides: polls, heartbeats.
    tokio::time::sleep(took).await;
    let idle = cpu_time(pid)?.saturating_sub(after);
    let spent: Duration = after.saturating_sub(before).saturating_sub(idle);
    Ok(spent.as_secs_f64() * 1_000.0 / f64::from(LISTS))
}

fn document() -> String {
    let mut yaml = String::from("providers:\n");
    for provider in 0..PROVIDERS {
        yaml.push_str(&format!(
            "  - {{id: p{provider}, protocol: openai, baseUrl: \"http://127.0.0.1:9/v1\", class: apikey}}\n"
        ));
    }
    yaml.push_str("connections:\n");
    for connection in 0..CONNECTIONS {
        let provider = connection % PROVIDERS;
        yaml.push_str(&format!(
            "  - {{id: c{connection}, provider: p{provider}, credential: {{file: bench.key}}}}\n"
        ));
    }
    yaml
}
