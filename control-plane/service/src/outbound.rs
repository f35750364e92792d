//! One HTTP request of our own, to an endpoint that the configuration names.
//!
//! One connection for each request, no redirect, no second try, a limited answer. Callers say until when the request must
//! be on its way; they are told what went wrong in fixed words, since anything else might repeat what was sent.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::{timeout, timeout_at};
use tower::ServiceExt as _;

use crate::clock::local_now;

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// TLS cannot be set up.
    Tls,
    /// No connection, or it broke.
    Unreachable,
    /// Not in time.
    Timeout,
    /// The body is longer than the limit.
    TooLarge,
}

/// What an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The request is on its way before this moment, or not at all.
    pub(crate) deadline: Instant,
    /// How much longer the answer is waited for whose request is on its way.
    pub(crate) grace: Duration,
    /// Longest body that is read, in bytes.
    pub(crate) body_bytes: usize,
}

/// Sends requests.
#[derive(Debug)]
pub(crate) struct Outbound {
    connector: Option<HttpsConnector<HttpConnector>>,
}

impl Outbound {
    pub(crate) fn new() -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.enforce_http(false);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(provider)
            .map(|builder| builder.https_or_http().enable_http1().wrap_connector(http));
        if let Err(error) = &connector {
            tracing::error!(%error, "endpoints cannot be asked: TLS cannot be set up");
        }
        Self {
            connector: connector.ok(),
        }
    }

    /// Sends the request to where the URI leads, and reads the answer whole. The request has the path and the host in it.
    pub(crate) async fn ask(
        &self,
        uri: Uri,
        request: Request<Full<Bytes>>,
        limits: Limits,
    ) -> Result<Answer, NoAnswer> {
        let deadline = limits.deadline;
        let connector = self.connector.clone().ok_or(NoAnswer::Tls)?;
        let connecting = async {
            let io = connector
                .oneshot(uri)
                .await
                .map_err(|_| NoAnswer::Unreachable)?;
            http1::handshake::<_, Full<Bytes>>(io)
                .await
                .map_err(|_| NoAnswer::Unreachable)
        };
        let (mut sender, connection) = timeout_at(deadline.into(), connecting)
            .await
            .map_err(|_elapsed| NoAnswer::Timeout)??;
        // A process that was stopped may come here long after.
        if local_now() >= deadline {
            return Err(NoAnswer::Timeout);
        }
        let exchange = async {
            let answer = sender
                .send_request(request)
                .await
                .map_err(|_| NoAnswer::Unreachable)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, limits.body_bytes);
            let body = body.collect().await.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    NoAnswer::TooLarge
                } else {
                    NoAnswer::Unreachable
                }
            })?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            })
        };
        tokio::pin!(exchange, connection);
        let exchange = async {
            let mut connected = true;
            loop {
                tokio::select! {
                    answer = &mut exchange => return answer,
                    // What it ends with shows in the exchange.
                    _ended = &mut connection, if connected => connected = false,
                }
            }
        };
        tokio::pin!(exchange);
        match timeout_at(deadline.into(), &mut exchange).await {
            Ok(answer) => answer,
            Err(_elapsed) => timeout(limits.grace, &mut exchange)
                .await
                .map_err(|_elapsed| NoAnswer::Timeout)?,
        }
    }
}

#[cfg(test)]
mod tests;
