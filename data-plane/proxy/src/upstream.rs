//! The one client towards providers.
//!
//! HTTP/1.1 and HTTP/2 over TLS with the public roots, or in plain text where a base URL says so. Idle
//! connections are kept for a short time, so that few are used that the other side just closed; dead HTTP/2
//! connections are noticed by keep-alive pings.

mod connector;
mod fault;
mod pieces;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate_core::outcome::Outcome;

use connector::{Connector, Resolver};
pub(crate) use pieces::Pieces;

/// Idle connections kept per host.
const IDLE_PER_HOST: usize = 64;
/// How long an idle connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(20);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(5);
/// Most headers and longest head of an upstream's answer.
const MAX_HEADERS: usize = 256;
const MAX_HEAD_BYTES: usize = 256 * 1024;

/// Sends requests to providers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    client: Client<Connector<HttpsConnector<HttpConnector<Resolver>>>, Pieces>,
    /// Limit of dialling in ms, 0 = none. It is one setting of the fleet, so the newest decision's holds for all.
    connect_ms: Arc<AtomicU64>,
}

impl Upstream {
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new() -> Result<Self, rustls::Error> {
        let mut http = HttpConnector::new_with_resolver(Resolver::default());
        http.set_nodelay(true);
        http.enforce_http(false);
        http.set_keepalive(Some(Duration::from_secs(30)));
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let https = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(provider)?
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let connect_ms = Arc::new(AtomicU64::new(0));
        let connector = Connector::new(https, Arc::clone(&connect_ms));
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .pool_idle_timeout(IDLE_TIME)
            .http1_max_headers(MAX_HEADERS)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIME)
            .http2_keep_alive_while_idle(true)
            .build(connector);
        Ok(Self { client, connect_ms })
    }

    /// Sends a request and waits for the head of the answer.
    ///
    /// # Errors
    /// Why no answer came, as the outcome of the attempt.
    pub(crate) async fn send(
        &self,
        request: Request<Pieces>,
        connect: Option<Duration>,
    ) -> Result<Response<Incoming>, Outcome> {
        let limit = connect.map_or(0, |limit| {
            u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
        });
        self.connect_ms.store(limit, Ordering::Relaxed);
        let sent = self.client.request(request).await;
        sent.map_err(|error| fault::outcome_of(&error))
    }
}
