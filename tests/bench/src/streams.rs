//! What an open stream that says nothing takes of the data plane's memory, beside what it takes of the bare proxy's.
//!
//! Over HTTP/1.1 each stream is a connection of its own on that side, since that is how SDKs ask and such providers answer.
//! Over HTTP/2 many are on one: at the upstream as many as the proxy puts there, at the client [`AT_ONCE`].

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_test_support::upstream::{Gate, Mode};
use tokio::net::TcpStream;

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

/// The version of HTTP on one side of the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// In the figures' names, and the versions towards clients and upstream.
const KINDS: [(&str, Version, Version); 3] = [
    ("rss", Version::Http1, Version::Http1),
    ("rss.h2_upstream", Version::Http1, Version::Http2),
    ("rss.h2", Version::Http2, Version::Http2),
];

/// Notes what each stream takes, in KiB; `per_stream_kib` is the larger of ours.
pub(crate) async fn measure(summary: &mut Summary) -> Result<()> {
    for (name, clients, upstream) in KINDS {
        // Of its own: memory that others left would be taken for what streams need.
        let setting = match upstream {
            Version::Http1 => Setting::start().await?,
            Version::Http2 => Setting::start_before_http2().await?,
        };
        let plane = setting.fleet.data_planes.first().context("no data plane")?;
        let ours = Side::start(plane.http, plane.process.pid(), clients).await?;
        let (bare, bare_addr) = &setting.bare_proxy;
        let bare = Side::start(*bare_addr, bare.pid(), clients).await?;
        let mut most = 0.0_f64;
        for count in COUNTS {
            let each = ours.each_kib(&setting, count).await?;
            let each_bare = bare.each_kib(&setting, count).await?;
            let mut set = |figure: &str, kib| {
                summary.set(format!("{name}.streams_{count}.{figure}"), kib);
            };
            set("per_stream_kib", each);
            set("bare_per_stream_kib", each_bare);
            most = most.max(each);
        }
        summary.set(format!("{name}.per_stream_kib"), most);
    }
    Ok(())
}

/// A proxy that has served so much that what it needs once is there, and no two requests at a time.
struct Side {
    addr: SocketAddr,
    pid: u32,
    clients: Version,
    idle_mib: f64,
}

impl Side {
    async fn start(addr: SocketAddr, pid: u32, clients: Version) -> Result<Self> {
        for _ in 0..WARM_UP {
            for stream in open_many(addr, clients, 1).await? {
                stream.collect().await?;
            }
        }
        Ok(Self {
            addr,
            pid,
            clients,
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
            let wave = AT_ONCE.min(count - streams.len());
            streams.extend(open_many(self.addr, self.clients, wave).await?);
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

/// Streams that have begun: on a connection each, or over HTTP/2 all on a new one.
async fn open_many(addr: SocketAddr, clients: Version, count: usize) -> Result<Vec<Incoming>> {
    match clients {
        Version::Http1 => {
            let opening = (0..count).map(|_| async {
                let socket = TokioIo::new(TcpStream::connect(addr).await?);
                let (mut sender, connection) = http1::handshake(socket).await?;
                TokioExecutor::new().execute(connection);
                begun(sender.send_request(request(addr)?)).await
            });
            futures::future::try_join_all(opening).await
        }
        Version::Http2 => {
            let socket = TokioIo::new(TcpStream::connect(addr).await?);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), socket).await?;
            TokioExecutor::new().execute(connection);
            let opening = (0..count).map(|_| {
                let mut sender = sender.clone();
                async move { begun(sender.send_request(request(addr)?)).await }
            });
            futures::future::try_join_all(opening).await
        }
    }
}

fn request(addr: SocketAddr) -> Result<Request<Full<Bytes>>> {
    Ok(Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("host", addr.to_string())
        .header("content-type", "application/json")
        .header("authorization", "Bearer bench")
        .body(Full::new(Bytes::from_static(BODY.as_bytes())))?)
}

/// The rest of a stream, once its first event is here.
async fn begun(
    response: impl Future<Output = hyper::Result<Response<Incoming>>>,
) -> Result<Incoming> {
    let response = tokio::time::timeout(LIMIT, response).await??;
    ensure!(response.status().is_success(), "{}", response.status());
    let mut body = response.into_body();
    let first = tokio::time::timeout(LIMIT, body.frame()).await?;
    first.context("an empty stream")??;
    Ok(body)
}
