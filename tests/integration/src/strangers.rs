//! Who shows nothing and tries everything: every method of every path of HTTP listeners, every method of gRPC listeners.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use crate::{Answer, send};

/// The one path that tells everybody a word.
const HEALTH: &str = "/api/monitoring/health";
/// What is tried on each path.
const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
];

/// A path of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// The listener.
    pub addr: SocketAddr,
    /// The path.
    pub path: &'static str,
    /// Its methods, as an `Allow` header names them.
    pub allow: &'static str,
    /// The status that one of them comes to for who shows nothing.
    pub status: u16,
}

impl Door {
    fn expected(self, method: &Method) -> u16 {
        match method {
            it if !self.allow.split(", ").any(|allowed| allowed == it.as_str()) => 405,
            &Method::OPTIONS => 204,
            &Method::GET | &Method::HEAD if self.path == HEALTH => 200,
            _ => self.status,
        }
    }
}

/// Tries every method of these paths without a credential.
///
/// # Errors
/// When one of them is answered otherwise than it should be, or not at all.
pub async fn get_nowhere(doors: &[Door]) -> Result<()> {
    for door in doors {
        for method in METHODS {
            let method = Method::from_bytes(method.as_bytes())?;
            let what = format!("{method} {} at {}", door.path, door.addr);
            let expected = door.expected(&method);
            let answer = try_door(*door, method).await.context(what.clone())?;
            ensure!(
                answer.status == expected,
                "{what}: {answer:?}, not {expected}"
            );
        }
    }
    Ok(())
}

async fn try_door(door: Door, method: Method) -> Result<Answer> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{}{}", door.addr, door.path))
        .header("content-type", "application/json");
    let body = Bytes::from_static(b"{\"model\": \"one/m\"}");
    send(request.body(Full::new(body))?).await
}

/// The gRPC status in the head of an answer to an empty message without a credential, such as `/package.Service/Method`;
/// `None` when something is answered.
///
/// # Errors
/// When there is no answer.
pub async fn grpc_status(addr: SocketAddr, path: &str) -> Result<Option<u16>> {
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let request = Request::post(format!("http://{addr}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(&[0; 5])))?;
    let answer = client.request(request).await?;
    let status = answer.headers().get("grpc-status");
    Ok(status
        .map(|it| it.to_str().map(str::parse))
        .transpose()?
        .transpose()?)
}
