//! A client that shows answers as they are, and a raw one for what no client library sends.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::bench::LIMIT;

/// Sends requests with a key.
pub(crate) struct Client {
    client: HyperClient<HttpConnector, Full<Bytes>>,
    addr: SocketAddr,
    key: String,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

impl Client {
    pub(crate) fn new(addr: SocketAddr, key: &str) -> Self {
        Self {
            client: HyperClient::builder(TokioExecutor::new()).build_http(),
            addr,
            key: key.to_owned(),
        }
    }

    /// The same over HTTP/2, with a window of 1 KiB.
    pub(crate) fn with_small_window(&self) -> Self {
        self.with_window(1_024)
    }

    /// The same over HTTP/2, with so many bytes of an answer that may come before anything of it is read.
    pub(crate) fn with_window(&self, bytes: u32) -> Self {
        let client = HyperClient::builder(TokioExecutor::new())
            .http2_only(true)
            .http2_initial_stream_window_size(bytes)
            .build_http();
        Self {
            client,
            addr: self.addr,
            key: self.key.clone(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string()).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.send(Method::POST, path, &[], body.into()).await
    }

    /// With these headers beside or instead of the usual ones.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Reply {
        read(self.open(method, path, headers, body).await).await
    }

    /// The answer's head; its body is still to be read.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Response<Incoming> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = format!("http://{}{path}", self.addr).parse().unwrap();
        let usual = [
            ("authorization", format!("Bearer {}", self.key)),
            ("content-type", "application/json".to_owned()),
        ];
        for (name, value) in &usual {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().remove(&name);
            if !value.is_empty() {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
        }
        let sent = tokio::time::timeout(LIMIT, self.client.request(request)).await;
        sent.expect("an answer in time").unwrap()
    }

    pub(crate) async fn open_post(&self, path: &str, body: &Value) -> Response<Incoming> {
        self.open(Method::POST, path, &[], body.to_string().into())
            .await
    }
}

pub(crate) async fn read(response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let body = tokio::time::timeout(LIMIT, body.collect()).await;
    Reply {
        status: head.status.as_u16(),
        headers: head.headers,
        body: body.expect("the body in time").unwrap().to_bytes(),
    }
}

/// Writes bytes and reads until the other side closes.
pub(crate) async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    raw_from(Ipv4Addr::LOCALHOST, addr, bytes).await
}

/// The same from an address of this machine.
pub(crate) async fn raw_from(from: Ipv4Addr, addr: SocketAddr, bytes: &[u8]) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
    // A reset after the answer is as good an end as any.
    let _ended = reading.expect("an end in time");
    String::from_utf8_lossy(&answer).into_owned()
}
