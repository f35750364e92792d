//! What an open stream that says nothing takes of the data plane's memory, beside what it takes of the bare proxy's.
//!
//! Each stream is a client connection and an upstream connection of its own, since that is how SDKs ask and providers
//! answer over HTTP/1.1.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_test_support::upstream::{Gate, Mode};

use crate::process::resident_mib;
use crate::setting::Setting;
use crate::summary::Summary;

/// How many streams are open at a time.
const COUNTS: [usize; 2] = [500, 2_000];
/// Opened at once, so that no queue of the kernel overflows.
const AT_ONCE: usize = 50;
/// Streams before the first look at memory, one after the other.
const WARM_UP: usize = 50;
/// Memory is looked at when whatever opening took has been given back.
const SETTLE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(30);
const BODY: &str = r#"{"model":"bench","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// Notes what each stream takes, in KiB; `rss.per_stream_kib` is the larger of ours.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    // Of its own: memory that other parts left would be taken for what streams need.
    let setting = Setting::start().await?;
    let plane = setting.fleet.data_planes.first().context("no data plane")?;
    let ours = Side::start(plane.http, plane.process.pid()).await?;
    let (bare, bare_addr) = &setting.bare_proxy;
    let bare = Side::start(*bare_addr, bare.pid()).await?;
    let mut most = 0.0_f64;
    for count in COUNTS {
        let each = ours.each_kib(&setting, count).await?;
        let each_bare = bare.each_kib(&setting, count).await?;
        summary.set(format!("rss.streams_{count}.per_stream_kib"), each);
        summary.set(
            format!("rss.streams_{count}.bare_per_stream_kib"),
            each_bare,
        );
        most = most.max(each);
    }
    summary.set("rss.per_stream_kib", most);
    Ok(())
}

/// A proxy that has served so much that what it needs once is there, and no two requests at a time.
struct Side {
    addr: SocketAddr,
    pid: u32,
    idle_mib: f64,
}

impl Side {
    async fn start(addr: SocketAddr, pid: u32) -> Result<Self> {
        for _ in 0..WARM_UP {
            open(addr).await?.collect().await?;
        }
        Ok(Self {
            addr,
            pid,
            idle_mib: resident_mib(pid)?,
        })
    }

    /// What `count` open streams add to its resident memory, for each.
    async fn each_kib(&self, setting: &Setting, count: usize) -> Result<f64> {
        let gate = Gate::new();
        setting.upstream.set_default(Mode::Pause {
            events: 3,
            gate: gate.clone(),
        });
        let mut streams = Vec::with_capacity(count);
        while streams.len() < count {
            let opening = (streams.len()..count).take(AT_ONCE);
            let opening = opening.map(|_| open(self.addr));
            streams.extend(futures::future::try_join_all(opening).await?);
        }
        tokio::time::sleep(SETTLE).await;
        let added = resident_mib(self.pid)? - self.idle_mib;
        gate.open();
        for stream in streams {
            tokio::time::timeout(LIMIT, stream.collect()).await??;
        }
        Ok(added * 1_024.0 / count as f64)
    }
}

/// A stream that has begun, on a connection of its own.
async fn open(addr: SocketAddr) -> Result<Incoming> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", "Bearer bench")
        .body(Full::new(Bytes::from_static(BODY.as_bytes())))?;
    let response = tokio::time::timeout(LIMIT, client.request(request)).await??;
    ensure!(response.status().is_success(), "{}", response.status());
    let mut body = response.into_body();
    let first = tokio::time::timeout(LIMIT, body.frame()).await?;
    first.context("an empty stream")??;
    Ok(body)
}
