//! `/livez`, `/readyz` and `/metrics`, on a listener of their own.
//!
//! Readiness means that decisions can be served: there is a configuration and a view, even an old one. Stores that are
//! away do not make a replica unready (decision 55); its freshness tells data planes to ask it last.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::Metrics;

/// Most connections at once; scrapers and probes need few.
const MAX_CONNECTIONS: usize = 128;
/// Limit of reading a request's headers.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a failure to accept, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether decisions can be served.
pub(crate) type IsReady = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    is_ready: IsReady,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a telemetry connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let metrics = Arc::clone(&metrics);
        let is_ready = Arc::clone(&is_ready);
        let service = service_fn(move |request: Request<Incoming>| {
            let response = answer(request.method(), request.uri().path(), &metrics, &*is_ready);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_LIMIT)
            .serve_connection(TokioIo::new(stream), service);
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "telemetry connection ended");
            }
            drop(slot);
        }));
    }
}

fn answer(
    method: &Method,
    path: &str,
    metrics: &Metrics,
    is_ready: &(dyn Fn() -> bool + Send + Sync),
) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        let allowed = http::HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    match path {
        "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" if is_ready() => text(StatusCode::OK, "ok\n"),
        "/readyz" => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "no configuration or no view of the hot state yet\n",
        ),
        "/metrics" => match metrics.encode() {
            Ok(encoded) => {
                let mut response = text(StatusCode::OK, encoded);
                let kind = http::HeaderValue::from_static(
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                );
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "metrics cannot be written\n",
                )
            }
        },
        _ => text(StatusCode::NOT_FOUND, "try /livez, /readyz or /metrics\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::SharedRegistry;

    fn status(method: &Method, path: &str, ready: bool) -> StatusCode {
        answer(
            method,
            path,
            &Metrics::new(SharedRegistry::default()),
            &move || ready,
        )
        .status()
    }

    #[test]
    fn readiness_follows_the_view_and_liveness_does_not() {
        assert_eq!(status(&Method::GET, "/livez", false), StatusCode::OK);
        assert_eq!(status(&Method::GET, "/readyz", true), StatusCode::OK);
        let unready = status(&Method::GET, "/readyz", false);
        assert_eq!(unready, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn unknown_paths_and_methods_are_refused() {
        assert_eq!(status(&Method::GET, "/", true), StatusCode::NOT_FOUND);
        let refused = status(&Method::POST, "/metrics", true);
        assert_eq!(refused, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn metrics_show_zero_before_anything_happens() {
        let encoded = Metrics::new(SharedRegistry::default()).encode().unwrap();
        assert!(
            encoded.contains("tidegate_cp_decisions_total{step=\"dispatch\"} 0"),
            "{encoded}"
        );
    }
}
