//! The limit of the data plane: a hyper proxy that hands bytes on and does nothing else.
#![expect(clippy::print_stdout, reason = "tells its address to who started it")]

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::Context as _;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

type Body = BoxBody<Bytes, hyper::Error>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let upstream: SocketAddr = std::env::args()
        .nth(1)
        .context("usage: bench-bare-proxy UPSTREAM_ADDRESS")?
        .parse()?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<HttpConnector, Incoming> =
        Client::builder(TokioExecutor::new()).build(connector);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening {}", listener.local_addr()?);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let client = client.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| forward(client.clone(), upstream, request));
            // The peer's going away is not this program's matter.
            drop(
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service)
                    .await,
            );
        });
    }
}

async fn forward(
    client: Client<HttpConnector, Incoming>,
    upstream: SocketAddr,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let Ok(uri) = format!("http://{upstream}{path}").parse::<Uri>() else {
        return Ok(failed());
    };
    *request.uri_mut() = uri;
    Ok(match client.request(request).await {
        Ok(response) => response.map(BodyExt::boxed),
        Err(_) => failed(),
    })
}

fn failed() -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}
