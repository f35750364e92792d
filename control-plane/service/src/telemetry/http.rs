//! `/livez`, `/readyz` and `/metrics`, on a listener of their own.
//!
//! Readiness means that decisions can be served: there is a configuration and a view, even an old one. Stores that are
//! away do not make a replica unready (decision 55); its freshness tells data planes to ask it last.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listener::{self, Listening};

use super::metrics::Metrics;

/// What is served. Anybody may ask: nothing here names an account, and the listener is not for clients.
pub(crate) const PATHS: [&str; 3] = ["/livez", "/readyz", "/metrics"];
/// What each path answers.
pub(crate) const ALLOWED: &str = "GET, HEAD";

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
    let listening = Listening {
        name: "telemetry",
        tls: None,
        tasks,
        stop,
    };
    let answer = move |request: http::Request<hyper::body::Incoming>| {
        let response = answer(request.method(), request.uri().path(), &metrics, &*is_ready);
        std::future::ready(response)
    };
    listener::serve(listener, listening, answer).await;
}

fn answer(
    method: &Method,
    path: &str,
    metrics: &Metrics,
    is_ready: &(dyn Fn() -> bool + Send + Sync),
) -> Response<Full<Bytes>> {
    if !PATHS.contains(&path) {
        return text(StatusCode::NOT_FOUND, "try /livez, /readyz or /metrics\n");
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        let allowed = http::HeaderValue::from_static(ALLOWED);
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
        // It was looked up above.
        _ => text(StatusCode::NOT_FOUND, "there is nothing here\n"),
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
