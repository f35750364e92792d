//! A data plane with its control plane against a bare hyper proxy, before the same upstream: JSON and a stream of 50
//! chunks. The direct path is measured too, so that what each side adds can be compared.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::load::{Run, Sample, drive, median, percentile_ms};
use crate::process::cpu_time;
use crate::setting::Setting;
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};

/// Requests in flight.
const IN_FLIGHT: usize = 16;
/// What the bare proxy adds to a time counts as this much at least, in ms: beside less than that a ratio says nothing.
const LEAST_ADDED_MS: f64 = 0.1;

type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// One kind of request.
struct Job {
    /// In the figures' names.
    name: &'static str,
    body: &'static str,
}

/// A request for a whole answer.
pub(crate) const JSON: &str = r#"{"model":"bench","messages":[{"role":"user","content":"hi"}]}"#;

const JOBS: [Job; 2] = [
    Job {
        name: "json",
        body: JSON,
    },
    Job {
        name: "sse50",
        body: r#"{"model":"bench","stream":true,"messages":[{"role":"user","content":"hi"}]}"#,
    },
];

/// Runs of the three paths.
#[derive(Default)]
struct Paths {
    ours: Vec<Run>,
    bare: Vec<Run>,
    direct: Vec<Run>,
    /// CPU time of both planes for each request, in µs, one for each round.
    ours_cpu_us: Vec<f64>,
    bare_cpu_us: Vec<f64>,
}

/// Measures all paths and notes the figures.
pub(crate) async fn measure(setting: &Setting, summary: &mut Summary) -> Result<()> {
    for job in &JOBS {
        let paths = run(setting, job).await?;
        if job.name == "sse50" {
            setting.memory("load", summary)?;
        }
        note(job, &paths, summary);
    }
    Ok(())
}

async fn run(setting: &Setting, job: &Job) -> Result<Paths> {
    let data_plane = setting.fleet.data_planes.first().context("no data plane")?;
    let control_plane = setting
        .fleet
        .control_planes
        .first()
        .context("no control plane")?;
    let planes = [data_plane.process.pid(), control_plane.process.pid()];
    let bare = [setting.bare_proxy.0.pid()];
    let mut paths = Paths::default();
    for _ in 0..ROUNDS {
        let (run, _) = side(setting.upstream.addr(), job.body, &[]).await?;
        paths.direct.push(run);
        let (run, cpu_us) = side(setting.bare_proxy.1, job.body, &bare).await?;
        paths.bare.push(run);
        paths.bare_cpu_us.push(cpu_us);
        let (run, cpu_us) = side(data_plane.http, job.body, &planes).await?;
        paths.ours.push(run);
        paths.ours_cpu_us.push(cpu_us);
    }
    Ok(paths)
}

fn note(job: &Job, paths: &Paths, summary: &mut Summary) {
    let over = |runs: &[Run], figure: fn(&Run) -> f64| median(runs.iter().map(figure));
    let ratio = |figure: fn(&Run) -> f64| over(&paths.ours, figure) / over(&paths.bare, figure);
    let added = |figure: fn(&Run) -> f64| {
        let direct = over(&paths.direct, figure);
        (over(&paths.ours, figure) - direct) / (over(&paths.bare, figure) - direct)
    };
    let mut set = |name: &str, figure| summary.set(format!("proxy.{}.{name}", job.name), figure);
    set("throughput_ratio", ratio(Run::throughput));
    set("p50_added_ratio", added(|run| run.latency_ms(0.5)));
    set("p99_added_ratio", added(|run| run.latency_ms(0.99)));
    set(
        "cpu_us_per_request",
        median(paths.ours_cpu_us.iter().copied()),
    );
    set(
        "bare_cpu_us_per_request",
        median(paths.bare_cpu_us.iter().copied()),
    );
    set("per_second", over(&paths.ours, Run::throughput));
    set("p50_ms", over(&paths.ours, |run| run.latency_ms(0.5)));
    set("p99_ms", over(&paths.ours, |run| run.latency_ms(0.99)));
    if job.name == "sse50" {
        let [ours, bare, direct] =
            [&paths.ours, &paths.bare, &paths.direct].map(|runs| first_chunk_p99_ms(runs));
        let bare_added = (bare - direct).max(LEAST_ADDED_MS);
        set("first_chunk_p99_ms", ours);
        set("first_chunk_p99_ratio", ours / bare);
        set("first_chunk_p99_added_ms", ours - direct);
        set("first_chunk_p99_added_ratio", (ours - direct) / bare_added);
    }
}

/// Of all rounds together: a hundredth of one round is too few requests to tell.
fn first_chunk_p99_ms(runs: &[Run]) -> f64 {
    let mut all: Vec<Duration> = runs
        .iter()
        .flat_map(|run| run.first_chunks.iter().copied())
        .collect();
    all.sort_unstable();
    percentile_ms(&all, 0.99)
}

/// Drives one path; also CPU time of some processes for each request, in µs.
pub(crate) async fn side(addr: SocketAddr, body: &'static str, pids: &[u32]) -> Result<(Run, f64)> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(connector);
    let before = total_cpu(pids)?;
    let run = drive(IN_FLIGHT, ROUND_TIME, move |_| {
        let client = client.clone();
        async move { request(&client, addr, body).await }
    })
    .await?;
    let spent = total_cpu(pids)?.saturating_sub(before);
    let each_us = spent.as_secs_f64() * 1e6 / run.requests as f64;
    Ok((run, each_us))
}

fn total_cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| cpu_time(*pid)).sum()
}

async fn request(client: &HttpClient, addr: SocketAddr, body: &'static str) -> Result<Sample> {
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", "Bearer bench")
        .body(Full::new(Bytes::from_static(body.as_bytes())))?;
    let sent = Instant::now();
    let response = client.request(request).await?;
    ensure!(response.status().is_success(), "{}", response.status());
    let mut body = response.into_body();
    let mut first_chunk = None;
    while let Some(frame) = body.frame().await {
        frame?;
        first_chunk.get_or_insert_with(|| sent.elapsed());
    }
    Ok(Sample { first_chunk })
}
