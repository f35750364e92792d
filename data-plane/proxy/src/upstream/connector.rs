//! Dialling with a limit, and with errors that say which step failed.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::{BoxError, Service};

/// A name did not resolve.
#[derive(Debug, thiserror::Error)]
#[error("the name did not resolve")]
pub(super) struct Unresolved(#[source] io::Error);

/// Dialling took too long.
#[derive(Debug, thiserror::Error)]
#[error("the connection was not made in time")]
pub(super) struct ConnectTimeout;

/// The system's resolver with an error of its own type.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolver(Option<GaiResolver>);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Unresolved;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Unresolved>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Unresolved>> {
        let resolver = self.0.get_or_insert_with(GaiResolver::new);
        resolver.poll_ready(context).map_err(Unresolved)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.0.get_or_insert_with(GaiResolver::new).call(name);
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = resolving.await.map_err(Unresolved)?.collect();
            Ok(addresses.into_iter())
        })
    }
}

/// Gives a connector a time limit that covers resolving, dialling and the TLS handshake.
#[derive(Clone, Debug)]
pub(super) struct Connector<S> {
    inner: S,
    limit_ms: Arc<AtomicU64>,
}

impl<S> Connector<S> {
    pub(super) fn new(inner: S, limit_ms: Arc<AtomicU64>) -> Self {
        Self { inner, limit_ms }
    }
}

impl<S> Service<Uri> for Connector<S>
where
    S: Service<Uri, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.inner.call(target);
        let limit = self.limit_ms.load(Ordering::Relaxed);
        Box::pin(async move {
            if limit == 0 {
                return connecting.await;
            }
            match tokio::time::timeout(Duration::from_millis(limit), connecting).await {
                Ok(connected) => connected,
                Err(_elapsed) => Err(ConnectTimeout.into()),
            }
        })
    }
}
