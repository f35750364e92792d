//! The one client towards providers.
//!
//! HTTP/1.1 and HTTP/2 over TLS with the public roots and what an operator adds to them, or in plain text where a base
//! URL says so. Idle connections are kept for a short time, so that few are used that the other side just closed; dead
//! HTTP/2 connections are noticed by keep-alive pings. Redirects are not followed: they would carry the credential
//! to whoever is named.
//!
//! A request that certainly was not processed is sent again, on a connection of its own, within the same attempt: it
//! says nothing about the provider, and nothing was paid for. Whoever sends it says whether it may ([`crate::sending`]).

mod body;
mod connector;
mod decode;
mod fault;
mod lanes;
mod pieces;
mod supply;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use tidegate_core::outcome::{LocalFault, Outcome};

pub(crate) use body::UpstreamBody;
use connector::{Connector, Resolver, with_limit};
use lanes::{LANES, Lanes};
pub(crate) use pieces::Pieces;
pub use trust::{AuthoritiesError, UpstreamAuthorities};

/// Idle connections kept per host and lane.
const IDLE_PER_HOST: usize = 64;
/// How long an idle connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(20);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(5);
/// Most headers and longest head of an upstream's answer.
const MAX_HEADERS: usize = 256;
/// It is also what is read of an answer at once, and so what a client that does not read makes us hold, up to three
/// times: read, handed over, and looked at.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// What an HTTP/2 upstream may send of one answer, and of all answers on a connection, before it is read. Fixed, because a
/// window that grows with the speed of the line is held for every client that does not read.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const MAX_HTTP2_HEAD_BYTES: u32 = 256 * 1024;
/// How often an unprocessed request is sent again. A provider that goes on refusing is overloaded, which is a fault of its.
const MAX_RESENDS: usize = 2;

type HttpClient = Client<Connector<HttpsConnector<HttpConnector<Resolver>>>, Pieces>;

/// Sends requests to providers.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// One per lane.
    clients: Vec<HttpClient>,
    lanes: Arc<Lanes>,
    /// Keeps no connection, so each request has a fresh one.
    fresh: HttpClient,
    resends: Counter,
}

impl Upstream {
    /// `resends` counts requests that were sent again because they had not been processed.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(
        authorities: &UpstreamAuthorities,
        resends: Counter,
    ) -> Result<Self, rustls::Error> {
        let mut http = HttpConnector::new_with_resolver(Resolver::default());
        http.set_nodelay(true);
        http.enforce_http(false);
        http.set_keepalive(Some(Duration::from_secs(30)));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(authorities.tls()?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let connector = Connector(https);
        let mut builder = builder();
        let clients = std::iter::repeat_with(|| builder.build(connector.clone()));
        let clients = clients.take(LANES).collect();
        let fresh = builder.pool_max_idle_per_host(0).build(connector);
        Ok(Self {
            clients,
            lanes: Arc::default(),
            fresh,
            resends,
        })
    }

    /// Sends a request and waits for the head of the answer. `connect` is how long it may take to have a connection,
    /// should one have to be made; `may_resend` is asked before a request that was not processed is sent again.
    ///
    /// # Errors
    /// Why no answer came, as the outcome of the attempt; or what `may_resend` says.
    pub(crate) async fn send<E, Asked>(
        &self,
        request: Request<Pieces>,
        connect: Option<Duration>,
        may_resend: impl Fn() -> Asked,
    ) -> Result<Result<Response<UpstreamBody>, Outcome>, E>
    where
        Asked: Future<Output = Result<bool, E>>,
    {
        let Some(host) = request.uri().authority().cloned() else {
            return Ok(Err(Outcome::Local(LocalFault::Internal)));
        };
        let seat = self.lanes.enter(host);
        let client = self.clients.get(seat.lane).unwrap_or(&self.fresh);
        // None of its pieces is copied.
        let again = request.clone();
        let mut sent = with_limit(connect, client.request(request)).await;
        for _ in 0..MAX_RESENDS {
            let is_unprocessed = sent.as_ref().is_err_and(fault::is_unprocessed);
            if !is_unprocessed || !may_resend().await? {
                break;
            }
            tracing::debug!("a request was not processed and is sent again");
            self.resends.inc();
            sent = with_limit(connect, self.fresh.request(again.clone())).await;
        }
        Ok(sent
            .map(|response| {
                let (mut head, incoming) = response.into_parts();
                let body = UpstreamBody::new(&mut head, incoming, seat);
                Response::from_parts(head, body)
            })
            .map_err(|error| fault::outcome_of(&error)))
    }
}

fn builder() -> Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(IDLE_PER_HOST)
        .pool_idle_timeout(IDLE_TIME)
        .http1_max_headers(MAX_HEADERS)
        .http1_max_buf_size(MAX_HEAD_BYTES)
        .http2_max_header_list_size(MAX_HTTP2_HEAD_BYTES)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .http2_keep_alive_timeout(KEEP_ALIVE_TIME)
        .http2_keep_alive_while_idle(true);
    builder
}
