//! What a permit costs over a bare script of Redis, and what a control plane does while requests wait.
//!
//! One call in flight; the sides alternate within each round: the bare script, a permit acquired and released at the store, a
//! decision that needs no permit, one that takes a permit, and the call that gives it back. What a permit costs at the
//! store, and what it adds to a decision, is compared with the script; the limit is printed beside it. The call that gives
//! back is answered before the store is asked, so it tells what a data plane waits for and nothing of the release.

mod at_the_store;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use secrecy::SecretString;
use tidegate_plane_client::endpoint::{Address, ChannelSettings, PlaneChannel, channel};
use tidegate_proto::common::v1::AttemptId;
use tidegate_proto::routing::v1::decide_response::Step;
use tidegate_proto::routing::v1::routing_service_client::RoutingServiceClient;
use tidegate_proto::routing::v1::{
    AwaitRequest, DecideRequest, HeldPermits, Protocol, ReleasePermitsRequest, RequestFacts,
};
use tidegate_test_support::upstream::{FakeUpstream, Gate, Mode, Selector};
use tidegate_test_support::{DATA_PLANE_TOKEN, Fleet, FleetOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::load::{median, percentile_ms};
use crate::process::cpu_time;
use crate::summary::Summary;
use crate::{ROUND_TIME, ROUNDS};
use at_the_store::Store;

/// What acquiring or releasing a permit may cost at the store, and what it may add to a decision, over the bare script.
const LIMIT: f64 = 3.0;
/// The data plane that the calls are from.
const PLANE: u64 = 1;
/// Waiting ones for a permit: as many as a queue takes.
const AWAITING: u64 = 100;
/// Waiting ones in the queue of a connection.
const QUEUED: usize = 200;
/// How long they are watched.
const WATCHED: Duration = Duration::from_secs(5);
/// A script that does as little as a change of a shared value can: read, compare, write with an end.
const SCRIPT: &str = "local v = redis.call('GET', KEYS[1]) \
    if v ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) end return 1";

/// Measures all of it and notes the figures.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    let upstream = FakeUpstream::start().await?;
    let fleet = Fleet::start_with(FleetOptions {
        control_planes: 1,
        data_planes: 1,
        ..FleetOptions::default()
    })
    .await?;
    fleet.write_secret("bench.key", "sk-bench")?;
    fleet.apply(&document(&upstream.base_url())).await?;
    let replica = fleet.control_planes.first().context("no control plane")?;
    let mut calls = Calls::new(replica.grpc)?;
    cost(&fleet, &mut calls, summary).await?;
    let pid = replica.process.pid();
    await_permits(&mut calls, pid, summary).await?;
    queue(&fleet, &upstream, pid, summary).await
}

fn document(base_url: &str) -> String {
    let provider = |id: &str| {
        format!("  - {{id: {id}, protocol: openai, baseUrl: \"{base_url}\", class: apikey}}\n")
    };
    let connection = |id: &str, members: &str| {
        format!("  - {{id: {id}-a, provider: {id}, credential: {{file: bench.key}}, {members}}}\n")
    };
    format!(
        "providers:\n{}{}{}connections:\n{}{}{}combos:\n  \
         - {{name: turns, strategy: round-robin, steps: [capped/m], config: {{queueDepth: 100, queueTimeoutMs: 60000}}}}\n\
         settings:\n  requestQueue: {{concurrentRequests: 1}}\n",
        provider("free"),
        provider("capped"),
        provider("paced"),
        connection("free", "rateLimitProtection: false"),
        connection("capped", "rateLimitProtection: false, maxConcurrent: 1"),
        connection("paced", "rateLimitProtection: true"),
    )
}

/// Times of one side, in ms.
#[derive(Default)]
struct Side(Vec<f64>);

impl Side {
    fn note(&mut self, mut durations: Vec<Duration>) {
        durations.sort_unstable();
        self.0.push(percentile_ms(&durations, 0.5));
    }

    fn p50(&self) -> f64 {
        median(self.0.iter().copied())
    }
}

async fn cost(fleet: &Fleet, calls: &mut Calls, summary: &mut Summary) -> Result<()> {
    let mut bare = Bare::connect(fleet.redis.addr()).await?;
    let mut store = Store::open(&fleet.redis.url()).await?;
    let [
        mut script,
        mut acquire,
        mut release,
        mut free,
        mut taken,
        mut given_back,
    ] = [(); 6].map(|()| Side::default());
    for _ in 0..ROUNDS {
        let [mut one, mut two, mut three, mut four, mut five, mut six] =
            [(); 6].map(|()| Vec::new());
        let began = Instant::now();
        while began.elapsed() < ROUND_TIME {
            // The store hears of what was given back after the answer; nothing is measured beside that.
            calls.decide("free/m", false).await?;
            bare.call().await?;
            one.push(timed(bare.call()).await?);
            two.push(timed(store.acquire()).await?);
            three.push(timed(store.release()).await?);
            four.push(timed(calls.decide("free/m", false)).await?);
            five.push(timed(calls.decide("capped/m", true)).await?);
            six.push(timed(calls.release(calls.number)).await?);
        }
        script.note(one);
        acquire.note(two);
        release.note(three);
        free.note(four);
        taken.note(five);
        given_back.note(six);
    }
    let mut set = |name: &str, figure| summary.set(format!("permits.{name}"), figure);
    set("script_p50_ms", script.p50());
    set("store.acquire_p50_ms", acquire.p50());
    set("store.release_p50_ms", release.p50());
    set("store.acquire_ratio", acquire.p50() / script.p50());
    set("store.release_ratio", release.p50() / script.p50());
    set("decide_p50_ms", free.p50());
    set("decide_with_permit_p50_ms", taken.p50());
    set(
        "decide_added_ratio",
        (taken.p50() - free.p50()) / script.p50(),
    );
    set("release_call_p50_ms", given_back.p50());
    set("release_call_ratio", given_back.p50() / script.p50());
    set("limit_ratio", LIMIT);
    Ok(())
}

async fn timed(call: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    call.await?;
    Ok(began.elapsed())
}

/// Requests wait for the only permit; nothing happens meanwhile.
async fn await_permits(calls: &mut Calls, pid: u32, summary: &mut Summary) -> Result<()> {
    calls.decide("capped/m", true).await?;
    let mut waits = JoinSet::new();
    for _ in 0..AWAITING {
        let ticket = calls.ticket("turns").await?;
        calls.number += 1;
        let (mut client, number) = (calls.client.clone(), calls.number);
        waits.spawn(async move {
            let attempt = Some(AttemptId {
                plane: PLANE,
                number,
            });
            client
                .r#await(AwaitRequest {
                    attempt,
                    ticket,
                    waited_ms: 0,
                })
                .await
        });
    }
    let percent = cpu_percent(pid).await?;
    summary.set("permits.awaiting_100.control_plane_cpu_percent", percent);
    waits.shutdown().await;
    Ok(())
}

/// Requests wait in the queue of a data plane.
async fn queue(
    fleet: &Fleet,
    upstream: &FakeUpstream,
    pid: u32,
    summary: &mut Summary,
) -> Result<()> {
    let plane = fleet.data_planes.first().context("no data plane")?;
    let gate = Gate::new();
    upstream.set_default(Mode::AtGate {
        gate: gate.clone(),
        then: Box::new(Mode::Ok),
    });
    let mut sent = JoinSet::new();
    for _ in 0..=QUEUED {
        sent.spawn(chat(plane.http));
    }
    let reached = upstream
        .log()
        .wait_for(&Selector::any(), 1, Duration::from_secs(10))
        .await;
    ensure!(reached, "no request reached the upstream");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let data_plane = cpu_time(plane.process.pid())?;
    let percent = cpu_percent(pid).await?;
    let data_plane = cpu_time(plane.process.pid())?.saturating_sub(data_plane);
    summary.set("permits.queued_200.control_plane_cpu_percent", percent);
    summary.set(
        "permits.queued_200.data_plane_cpu_percent",
        data_plane.as_secs_f64() / WATCHED.as_secs_f64() * 100.0,
    );
    gate.open();
    while let Some(ended) = sent.join_next().await {
        ended??;
    }
    Ok(())
}

async fn cpu_percent(pid: u32) -> Result<f64> {
    let before = cpu_time(pid)?;
    tokio::time::sleep(WATCHED).await;
    let used = cpu_time(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / WATCHED.as_secs_f64() * 100.0)
}

async fn chat(addr: SocketAddr) -> Result<()> {
    let body = r#"{"model": "paced/m", "messages": [{"role": "user", "content": "hi"}]}"#;
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    let status = response.status();
    response.into_body().collect().await?;
    ensure!(status == 200, "{status}");
    Ok(())
}

/// Calls of one data plane.
struct Calls {
    client: RoutingServiceClient<PlaneChannel>,
    number: u64,
}

impl Calls {
    fn new(addr: SocketAddr) -> Result<Self> {
        let address = Address::Tcp(format!("http://{addr}").parse()?);
        let token = SecretString::from(DATA_PLANE_TOKEN);
        let made = channel(&address, &ChannelSettings::default(), None, Some(&token))?;
        Ok(Self {
            client: RoutingServiceClient::new(made),
            number: 0,
        })
    }

    async fn step(&mut self, model: &str) -> Result<Step> {
        self.number += 1;
        let request = DecideRequest {
            attempt: Some(AttemptId {
                plane: PLANE,
                number: self.number,
            }),
            facts: Some(RequestFacts {
                model: model.to_owned(),
                protocol: Protocol::Openai.into(),
                ..RequestFacts::default()
            }),
            ..DecideRequest::default()
        };
        let decided = self.client.decide(request).await?.into_inner();
        decided.step.context("no step")
    }

    async fn decide(&mut self, model: &str, permit: bool) -> Result<()> {
        match self.step(model).await? {
            Step::Dispatch(dispatch) if dispatch.permit == permit => Ok(()),
            other => bail!("expected a dispatch: {other:?}"),
        }
    }

    async fn ticket(&mut self, model: &str) -> Result<Vec<u8>> {
        match self.step(model).await? {
            Step::Wait(wait) => Ok(wait.ticket),
            other => bail!("expected a wait: {other:?}"),
        }
    }

    /// Gives back the permit of an attempt.
    async fn release(&mut self, number: u64) -> Result<()> {
        let request = ReleasePermitsRequest {
            plane: PLANE,
            released: vec![HeldPermits {
                provider: "capped".to_owned(),
                connection: "capped-a".to_owned(),
                numbers: vec![number],
            }],
        };
        self.client.release_permits(request).await?;
        Ok(())
    }
}

/// A connection to Redis that calls one script.
struct Bare {
    stream: BufReader<TcpStream>,
    call: Vec<u8>,
}

impl Bare {
    async fn connect(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let mut bare = Self {
            stream: BufReader::new(stream),
            call: Vec::new(),
        };
        bare.send(&command(&["SCRIPT", "LOAD", SCRIPT])).await?;
        let head = bare.line().await?;
        let length: usize = head.trim_start_matches('$').parse()?;
        let mut sha = vec![0; length + 2];
        bare.stream.read_exact(&mut sha).await?;
        sha.truncate(length);
        let sha = String::from_utf8(sha)?;
        bare.call = command(&["EVALSHA", &sha, "1", "bench", "value"]);
        Ok(bare)
    }

    async fn call(&mut self) -> Result<()> {
        let call = std::mem::take(&mut self.call);
        self.send(&call).await?;
        self.call = call;
        let answer = self.line().await?;
        ensure!(answer == ":1", "{answer}");
        Ok(())
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(bytes).await?)
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        Ok(line.trim_end().to_owned())
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    bytes.into_bytes()
}
