//! The limit of the data plane: a hyper proxy that hands bytes on and does nothing else, to an upstream in plain text or, with
//! authorities, over TLS.
#![expect(clippy::print_stdout, reason = "tells its address to who started it")]

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Context as _;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

type Body = BoxBody<Bytes, hyper::Error>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let upstream = arguments.next();
    let upstream = upstream.context("usage: bench-bare-proxy UPSTREAM_ORIGIN [CA_FILE]")?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let builder = Client::builder(TokioExecutor::new());
    match arguments.next() {
        None => serve(builder.build(connector), upstream).await,
        Some(authorities) => {
            connector.enforce_http(false);
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(trusting(&authorities)?)
                .https_only()
                .enable_all_versions()
                .wrap_connector(connector);
            serve(builder.build(connector), upstream).await
        }
    }
}

/// How TLS is spoken with who shows a certificate of these authorities.
fn trusting(authorities: &str) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authorities)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

async fn serve<C>(client: Client<C, Incoming>, upstream: String) -> anyhow::Result<()>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let upstream: Arc<str> = upstream.into();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening {}", listener.local_addr()?);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (client, upstream) = (client.clone(), Arc::clone(&upstream));
        connections.spawn(async move {
            let service =
                service_fn(move |request| forward(client.clone(), Arc::clone(&upstream), request));
            // The peer's going away is not this program's matter.
            drop(
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service)
                    .await,
            );
        });
    }
}

async fn forward<C>(
    client: Client<C, Incoming>,
    upstream: Arc<str>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let Ok(uri) = format!("{upstream}{path}").parse::<Uri>() else {
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
