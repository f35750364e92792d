//! What traces cost: CPU time of both planes for each request while every request is traced, over that of planes that make
//! no traces. Both fleets run all the time, before the same kind of upstream, and take turns. The collector is in this
//! process and is not counted; what it takes of the machine meets both.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use tidegate_test_support::{Collector, CollectorMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ROUNDS;
use crate::load::median;
use crate::proxy::{JSON, side};
use crate::setting::Setting;
use crate::summary::Summary;

/// Measures and notes the figures.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    let collector = Collector::start().await?;
    collector.set_mode(CollectorMode::Forgets);
    let off = Setting::start().await?;
    let set = |name: &str, value: String| (name.to_owned(), value);
    let on = Setting::start_with(vec![
        set("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        // Spans that are dropped cost nothing: there is room for all.
        set("OTEL_BSP_MAX_QUEUE_SIZE", "65536".to_owned()),
    ])
    .await?;
    // Pools, caches and connections of either are warm before anything counts.
    round(&off).await?;
    round(&on).await?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(round(&off).await?);
        with.push(round(&on).await?);
    }
    ensure!(collector.calls() > 0, "no spans were sent");
    for plane in &on.fleet.data_planes {
        nothing_was_dropped(plane.admin).await?;
    }
    for plane in &on.fleet.control_planes {
        nothing_was_dropped(plane.http).await?;
    }
    let ratios = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with / without);
    summary.set("telemetry.cpu_ratio", median(ratios));
    summary.set("telemetry.off.cpu_us_per_request", median(without));
    summary.set("telemetry.on.cpu_us_per_request", median(with));
    Ok(())
}

/// CPU time of both planes for each request, in µs.
async fn round(setting: &Setting) -> Result<f64> {
    let data_plane = setting.fleet.data_planes.first().context("no data plane")?;
    let replicas = &setting.fleet.control_planes;
    let control_plane = replicas.first().context("no control plane")?;
    let planes = [data_plane.process.pid(), control_plane.process.pid()];
    let (_, cpu_us) = side(data_plane.http, JSON, &planes).await?;
    Ok(cpu_us)
}

/// Looks into the metrics of a plane that makes traces.
async fn nothing_was_dropped(plane: SocketAddr) -> Result<()> {
    let mut connection = TcpStream::connect(plane).await?;
    let request = "GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let of_spans = |name: &str| {
        let lines = answer.lines().filter(|line| line.contains(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    ensure!(
        !of_spans("_spans_exported_total ").is_empty(),
        "{plane} tells nothing of spans"
    );
    let dropped = of_spans("_spans_dropped_total{");
    ensure!(
        dropped.iter().all(|line| line.ends_with("} 0")),
        "spans were dropped: {dropped:?}"
    );
    Ok(())
}
