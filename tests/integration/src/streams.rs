//! Streams whose length is the test's: clients over HTTP/1.1, a connection each, and over HTTP/2, many on one; an upstream
//! that pauses; and a process that is asked to end meanwhile.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_test_support::upstream::{FakeUpstream, Gate, Mode};
use tidegate_test_support::{Process, Signal, eventually, http_status};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::{CLIENT_KEY, LIMIT};

/// A stream that has begun.
#[derive(Debug)]
pub struct Stream {
    /// What has come.
    text: Vec<u8>,
    body: Incoming,
}

impl Stream {
    /// Once its first event is here.
    async fn begun(response: Response<Incoming>) -> Result<Self> {
        ensure!(response.status() == 200, "{response:?}");
        let mut body = response.into_body();
        let first = tokio::time::timeout(LIMIT, body.frame()).await?;
        let first = first.context("an empty stream")??.into_data();
        let text = first.ok().context("no data")?.to_vec();
        Ok(Self { text, body })
    }

    /// All that came, to its end.
    ///
    /// # Errors
    /// When it does not end, or not as HTTP asks.
    pub async fn read(self) -> Result<String> {
        let Self { mut text, body } = self;
        let rest = tokio::time::timeout(LIMIT, body.collect()).await??;
        text.extend_from_slice(&rest.to_bytes());
        Ok(String::from_utf8(text)?)
    }
}

/// A request for a stream of `model` that ends with its usage.
fn request(addr: SocketAddr, model: &str) -> Result<Request<Full<Bytes>>> {
    let body = serde_json::json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "hi"}],
    });
    let request = Request::post(format!("http://{addr}/v1/chat/completions"))
        .header("host", addr.to_string())
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {CLIENT_KEY}"));
    Ok(request.body(Full::from(body.to_string()))?)
}

/// A stream on a connection of its own.
///
/// # Errors
/// When it does not begin, or not with 200.
pub async fn open(addr: SocketAddr, model: &str) -> Result<Stream> {
    let socket = TokioIo::new(TcpStream::connect(addr).await?);
    let (mut sender, connection) = http1::handshake(socket).await?;
    TaskTracker::new().spawn(connection);
    let response =
        tokio::time::timeout(LIMIT, sender.send_request(request(addr, model)?)).await??;
    Stream::begun(response).await
}

/// Several streams on connections of their own, all of which have begun.
///
/// # Errors
/// When one does not begin, or not with 200.
pub async fn open_many(addr: SocketAddr, model: &str, count: usize) -> Result<Vec<Stream>> {
    let opening = (0..count).map(|_| open(addr, model));
    // A busy machine is not asked for all of them at once.
    let opening = futures::stream::iter(opening).buffer_unordered(AT_ONCE);
    opening.try_collect().await
}

/// Streams that are being opened at a time.
const AT_ONCE: usize = 20;

/// One connection over HTTP/2.
#[derive(Debug)]
pub struct Multiplexed {
    addr: SocketAddr,
    sender: http2::SendRequest<Full<Bytes>>,
}

impl Multiplexed {
    /// Connects, with the version known beforehand.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn connect(addr: SocketAddr) -> Result<Self> {
        let socket = TokioIo::new(TcpStream::connect(addr).await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), socket).await?;
        TaskTracker::new().spawn(connection);
        Ok(Self { addr, sender })
    }

    /// One more stream on it.
    ///
    /// # Errors
    /// When it does not begin, or not with 200.
    pub async fn open(&self, model: &str) -> Result<Stream> {
        let mut sender = self.sender.clone();
        let response = sender.send_request(request(self.addr, model)?);
        Stream::begun(tokio::time::timeout(LIMIT, response).await??).await
    }

    /// The connection takes no further request.
    pub async fn is_told_to_go(&self) -> bool {
        let mut sender = self.sender.clone();
        let uri = format!("http://{}/v1/models", self.addr);
        let Ok(request) = Request::get(uri).body(Full::default()) else {
            return false;
        };
        let answer = tokio::time::timeout(LIMIT, sender.send_request(request)).await;
        matches!(answer, Ok(Err(_)))
    }
}

/// Makes an upstream's streams stop after a few events, until the gate is opened.
pub fn paused(upstream: &FakeUpstream) -> Gate {
    let gate = Gate::new();
    upstream.set_default(Mode::Pause {
        events: 3,
        gate: gate.clone(),
    });
    gate
}

/// Reads streams to their ends.
///
/// # Errors
/// When one does not end with the format's last event.
pub async fn all_end_well(streams: Vec<Stream>) -> Result<()> {
    for stream in streams {
        let text = stream.read().await?;
        ensure!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
    Ok(())
}

/// Reads streams to their ends.
///
/// # Errors
/// When one does not end with the error that says that the process ends.
pub async fn all_are_told(streams: Vec<Stream>) -> Result<()> {
    for stream in streams {
        let text = stream.read().await?;
        let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        ensure!(last.contains("\"shutting_down\""), "{text}");
        ensure!(!text.contains("[DONE]"), "{text}");
    }
    Ok(())
}

/// Asks a process to end, which must have a long delay: readiness goes off while requests are still served. Asked again, it
/// lets nobody in any more.
///
/// # Errors
/// When it does not do so.
pub async fn ask_to_end(process: &Process, http: SocketAddr, admin: SocketAddr) -> Result<()> {
    process.signal(Signal::SIGTERM)?;
    eventually(LIMIT, "readiness goes off", || async {
        (http_status(admin, "/readyz").await.ok()? == 503).then_some(())
    })
    .await?;
    ensure!(http_status(admin, "/livez").await? == 200);
    let served = http_status(http, "/v1/models").await?;
    ensure!(served == 401, "without a key, {served}");
    process.signal(Signal::SIGTERM)?;
    eventually(LIMIT, "connections are refused", || async {
        TcpStream::connect(http).await.err().map(drop)
    })
    .await
}
