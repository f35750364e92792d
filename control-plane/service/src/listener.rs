//! HTTP/1.1 listeners of our own: connections, their limits, and their end.
//!
//! | what a client may do wrong | what happens |
//! |---|---|
//! | send nothing, its head too slowly, or no TLS handshake | the connection is closed after [`HEAD_LIMIT`] |
//! | refuse to read, or never leave | no request begins after [`CONNECTION_AGE`], and the connection ends [`LAST_REQUEST`] later |
//! | open too many connections | they wait in the kernel's queue |

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Most connections at once; scrapers, probes and operators need few.
const MAX_CONNECTIONS: usize = 128;
/// Limit of a TLS handshake, and of reading a request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// After this a connection is closed with the answer under way, and begins no other request.
const CONNECTION_AGE: Duration = Duration::from_secs(35);
/// How long the request that is under way then may take: its body and a change have ten seconds each, and it is to be told.
const LAST_REQUEST: Duration = Duration::from_secs(25);
/// How long an answer may take that is under way when the listener is stopped.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all connections of a listener share.
#[derive(Clone)]
pub(crate) struct Listening {
    /// For logs.
    pub(crate) name: &'static str,
    /// Speaks TLS with this.
    pub(crate) tls: Option<TlsAcceptor>,
    /// Where connections run.
    pub(crate) tasks: TaskTracker,
    /// Ends everything.
    pub(crate) stop: CancellationToken,
}

/// Serves until it is stopped.
pub(crate) async fn serve<A, F>(listener: TcpListener, listening: Listening, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let name = listening.name;
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = listening.stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        let Ok(slot) = slot else {
            return;
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                tracing::warn!(%error, name, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (answer, tls, stop) = (
            answer.clone(),
            listening.tls.clone(),
            listening.stop.clone(),
        );
        listening.tasks.spawn(async move {
            match tls {
                None => serve_one(stream, answer, name, stop).await,
                Some(tls) => match tokio::time::timeout(HEAD_LIMIT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::pin(serve_one(stream, answer, name, stop)).await,
                    Ok(Err(error)) => tracing::debug!(%error, name, "no TLS handshake"),
                    Err(_elapsed) => tracing::debug!(name, "no TLS handshake in time"),
                },
            }
            drop(slot);
        });
    }
}

async fn serve_one<S, A, F>(stream: S, answer: A, name: &'static str, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let service = service_fn(|request| {
        let answering = answer(request);
        async move { Ok::<_, Infallible>(answering.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = tokio::time::sleep(CONNECTION_AGE) => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => Some(ended),
                () = stop.cancelled() => None,
                () = tokio::time::sleep(LAST_REQUEST) => Some(Ok(())),
            }
        }
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            let ending = tokio::time::timeout(GRACE, connection.as_mut()).await;
            ending.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, name, "a connection ended with an error");
    }
}
