//! Dialling with a limit, and with errors that say which step failed.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::{BoxError, Service};

use super::supply::Tapped;

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

tokio::task_local! {
    /// Limit of the dial that the current request asks for. The HTTP client hands a connector nothing but the address;
    /// it calls it from the request's own task, though.
    static LIMIT: Option<Duration>;
}

/// Runs a request whose dial, if it needs one, has this limit.
pub(super) fn with_limit<F: Future>(
    limit: Option<Duration>,
    request: F,
) -> impl Future<Output = F::Output> {
    LIMIT.scope(limit, request)
}

/// Gives a connector a time limit that covers resolving, dialling and the TLS handshake, and watches what it connects.
#[derive(Clone, Debug)]
pub(super) struct Connector<S>(pub(super) S);

impl<S> Service<Uri> for Connector<S>
where
    S: Service<Uri, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = Tapped<S::Response>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.0.call(target);
        let limit = LIMIT.try_with(|limit| *limit).ok().flatten();
        Box::pin(async move {
            let connected = match limit {
                None => connecting.await,
                Some(limit) => tokio::time::timeout(limit, connecting)
                    .await
                    .map_err(|_elapsed| ConnectTimeout)?,
            };
            connected.map(Tapped::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Pending, pending};

    use futures::FutureExt as _;

    use super::*;

    /// Never connects.
    #[derive(Clone)]
    struct Silent;

    impl Service<Uri> for Silent {
        type Response = ();
        type Error = BoxError;
        type Future = Pending<Result<(), BoxError>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _target: Uri) -> Self::Future {
            pending()
        }
    }

    async fn dial(connector: Connector<Silent>) -> Result<Tapped<()>, BoxError> {
        let mut connector = connector;
        connector.call(Uri::from_static("http://a.example")).await
    }

    #[tokio::test]
    async fn each_dial_has_the_limit_of_its_own_request() {
        let connector = Connector(Silent);
        let mut none = Box::pin(with_limit(None, dial(connector.clone())));
        let long = Some(Duration::from_secs(3_600));
        let mut long = Box::pin(with_limit(long, dial(connector.clone())));
        assert!(none.as_mut().now_or_never().is_none());
        assert!(long.as_mut().now_or_never().is_none());
        let short = Some(Duration::from_millis(1));
        let ended = with_limit(short, dial(connector)).await;
        assert!(ended.is_err_and(|error| error.is::<ConnectTimeout>()));
        assert!(none.as_mut().now_or_never().is_none());
        assert!(long.as_mut().now_or_never().is_none());
    }
}
